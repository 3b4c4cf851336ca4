"""The command ``fedshift index``: vectors of clients before any training."""

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
    from fedshift.methods.client2vec.heat_maps import check_writable, cosines, write_index
    from fedshift.methods.client2vec.vectors import check_makes_index
    from fedshift.runs.lockstep import describe
    from fedshift.study import api

    console = open_console()
    different = {
        repr((e.seed, e.data, e.partition, e.protocol, getattr(e.method, "index", None))): e for e in experiments
    }
    if dry_run:
        for experiment in different.values():
            check_makes_index(experiment.method, experiment.method_name)
            console.print(describe(experiment), highlight=False, markup=False)
        return
    check_writable()
    for experiment in different.values():
        with interruptible("; nothing was written."):
            index = api.index(experiment)
        folder = f"index-seed{experiment.seed}-{experiment.fingerprint[:8]}"
        sent = [message["up"] for message in index.messages.values()]
        console.print(
            f"{len(index.clients)} clients of {len(set(index.domains))} domains, {index.feature.shape[1]} features; "
            f"clients sent {sum(up['bytes'] for up in sent)} bytes in {sum(up['messages'] for up in sent)} messages.",
            highlight=False,
        )
        console.print(cosines(index), highlight=False)
        for note in index.notes:
            console.print(f"Note: {note}", highlight=False)
        for path in write_index(index, Path(experiment.run.out) / experiment.name / folder):
            console.print(f"Written: {path}", highlight=False, markup=False, soft_wrap=True)
