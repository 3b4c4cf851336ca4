"""What fedshift asks of the machine it runs on: cores, and how memory is kept."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

# mallopt's parameters and values (malloc.h of the GNU C library), in bytes: from how much unused memory at the end of
# the heap some is given back, and from what size (this is the most) a tensor gets pages of its own, cleared each time.
_KEEP = {-1: 2**28, -3: 2**25}


# What users limit the threads of numerical programs with; fedshift takes it for the cores that it may use in all.
LIMITS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS")


def cores() -> int:
    """How many cores this process may use, for threads or for worker processes.

    By its affinity, its container's quota, ``LOKY_MAX_CPU_COUNT``, and :data:`LIMITS`. What an experiment says itself
    (``run.threads``, ``run.workers``) is taken as it is.
    """
    import joblib

    here: int = joblib.cpu_count()
    return min([here, *(limit for name in LIMITS if (limit := _limit(name)))])


def _limit(name: str) -> int:
    """What a variable limits threads to; 0 if it limits nothing. Of a list, for nested threads, the first counts."""
    value = os.environ.get(name, "").partition(",")[0].strip()
    return int(value) if value.isascii() and value.isdecimal() else 0  # as OpenMP ignores what is no number


def processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def keep_memory() -> None:
    """Let the C library keep what a training step frees, as the next step asks for the same again."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        for parameter, value in _KEEP.items():
            mallopt(parameter, value)
