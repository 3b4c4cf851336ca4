"""Placeholder."""
from __future__ import annotations
from collections.abc import Callable, Sequence
import os
from fedshift.engines.choice import Choice
from fedshift.engines.engine import Job
from fedshift.engines.kernels import Kernels
from fedshift.experiment import RunOptions

def choose(jobs: Sequence[Job], options: RunOptions, tell: Callable[[str], None]) -> Choice:
    cores = len(os.sched_getaffinity(0))
    name = "sequential" if options.engine == "auto" else options.engine
    return Choice(name, options.workers or cores if name=="workers" else 1, 1 if name=="workers" else options.threads or cores, Kernels())
