"""How much memory this process used and may still use, and refusing what cannot fit."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.errors import FedshiftError
from fedshift.written import bytes_text

if sys.platform != "win32":
    import resource
if TYPE_CHECKING:
    import torch

PROCESSES = Path("/proc")
PAGES = Path("/proc/self/statm")
MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")

# Messages of torch and of the system for errors without a dedicated class.
_SHORTAGE = (
    *("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory", "bad_alloc"),
    "cublas_status_alloc_failed",
)


def available() -> int | None:
    """Bytes this process may still use, limited by the machine, containers and process limits; None: unknown."""
    known = [count for count in (_machine(), _process(), *_containers()) if count is not None]
    return max(min(known), 0) if known else None


def peak(device: torch.device) -> int | None:
    """The peak memory in bytes since this process started; None: unknown.

    For a CUDA device the peak of its tensors; else the peak resident size of this process or, if larger, of its largest
    worker process (they share pages, so a sum would count these several times).
    """
    if device.type == "cuda":
        from torch.cuda import max_memory_allocated

        return max_memory_allocated(device)
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    processes = "self", *(str(child.pid) for child in multiprocessing.active_children())
    return max(filter(None, map(_most_resident, processes)), default=None)


def check(nbytes: int, what: str, fix: str) -> None:
    """Refuse what cannot fit before it is allocated; where the available memory is unknown, nothing is refused.

    Args:
        nbytes: the bytes needed.
        what: the subject of the message, such as "A batch of 512 images of 224 x 224 pixels".
        fix: a sentence with an alternative.
    """
    free = available()
    if free is not None and nbytes > free:
        raise FedshiftError(f"{what} takes {bytes_text(nbytes)}, but only {bytes_text(free)} of memory is free. {fix}")


def is_shortage(error: BaseException) -> bool:
    """Whether an error reports that memory is used up, also on an accelerator."""
    if isinstance(error, MemoryError):
        return True
    kinds = RuntimeError, OSError, ImportError
    return isinstance(error, kinds) and any(words in str(error).lower() for words in _SHORTAGE)


def in_words(error: BaseException) -> str:
    """The message for a shortage, with its fix."""
    reason = (str(error).strip() or "an allocation failed").splitlines()[0]
    return (
        f"The memory is used up ({reason}). Lower what is in memory at once: train.batch, evaluate.batch, the number "
        "of samples, data.size of images, run.together (runs of a table that advance together) or run.workers, or set "
        "run.engine=sequential. Records are kept: `fedshift resume` continues from the last checkpoint, and "
        "takes [run] from the run's experiment.toml, where it may be changed."
    )


def _machine() -> int | None:
    for line in _text(MEMINFO).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and value.split()[:1] and value.split()[0].isdigit():
            return int(value.split()[0]) * 1024
    return None


def _process() -> int | None:
    pages = _text(PAGES).split()[:1]
    if sys.platform == "win32" or not pages or not pages[0].isdigit():
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most - int(pages[0]) * resource.getpagesize()


def _most_resident(process: str) -> int | None:
    for line in _text(PROCESSES / process / "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _containers() -> Iterator[int | None]:
    """The bytes left in each control group (version 2) of this process, and in every group above it."""
    for line in _text(GROUPS).splitlines():
        if not line.startswith("0::"):
            continue
        folder = MOUNT / line.removeprefix("0::").lstrip("/")
        # A container may see its control group mounted at the root, under another path than the kernel names.
        for group in dict.fromkeys((folder, *(above for above in folder.parents if above.is_relative_to(MOUNT)))):
            yield _left(group)


def _left(group: Path) -> int | None:
    most, now = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    if not (most.isdigit() and now.isdigit()):  # "max": no limit
        return None
    statistics = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    return int(most) - int(now) + int(statistics.get("inactive_file", 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
