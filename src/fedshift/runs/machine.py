"""What a run was made with."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """The versions and the machine that a run was made with."""
    import torch

    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's; a GPU that is not used stays so
    packages = ("fedshift", "torch", "numpy", "safetensors", "transformers", "kornia")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "accelerator": torch.cuda.get_device_name() if used else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packages": {package: _installed(package) for package in packages},
    }


@cache  # a package's metadata are read whole each time
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
