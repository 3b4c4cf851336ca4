"""The command ``fedshift index``: what a method makes of clients before any training, such as a vector of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.cli.ending import interruptible

if TYPE_CHECKING:
    from fedshift.experiments import Experiment


def print_indices(experiments: Sequence[Experiment], dry_run: bool) -> None:
    """Make and write the index of each run; runs that differ only in how they use it share one."""
    from fedshift.cli.console import open_console
    from fedshift.runs.preparation import describe
    from fedshift.study import api

    console = open_console()
    different = {repr((e.seed, e.data, e.partition, e.protocol, e.method.prepares)): e for e in experiments}
    for experiment in different.values():
        if dry_run:
            console.print(describe(experiment), highlight=False, markup=False)
            continue
        with interruptible("; nothing was written."):
            index = api.index(experiment)
        for line in (*index.summary, *(f"Note: {note}" for note in index.notes)):
            console.print(line, highlight=False)
        folder = f"index-seed{experiment.seed}-{experiment.fingerprint[:8]}"
        for path in index.write(Path(experiment.run.out) / experiment.name / folder):
            console.print(f"Written: {path}", highlight=False, markup=False, soft_wrap=True)
