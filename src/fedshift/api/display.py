"""Who hears of the progress."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from fedshift.runs.progress import Progress


def display(progress: Progress | None, runs: int) -> AbstractContextManager[Progress]:
    """What hears of the progress of so many runs: what is given, or a live display."""
    from fedshift.reporting.live import LiveProgress

    return nullcontext(progress) if progress else LiveProgress(runs)
