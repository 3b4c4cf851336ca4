"""The command ``fedshift bench``: which engine is fastest here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedshift.experiments import Experiment


def print_engines(experiments: Sequence[Experiment], dry_run: bool) -> None:
    """Measure the engines for the first run of each method, and print everything."""
    from fedshift.cli.console import open_console
    from fedshift.reporting.table import Table
    from fedshift.study import api

    console = open_console()
    first: dict[str, Experiment] = {}
    for experiment in experiments:
        first.setdefault(experiment.method_name, experiment)
    for name, experiment in first.items():
        title = f"{name}, {type(experiment.model).__name__}, batches of {experiment.train.batch}"
        if dry_run:
            console.print(title, highlight=False, markup=False)
            continue
        with console.status("") as status:
            calibration = api.bench(experiment, tell=status.update)
        rows = [
            [str(timing.choice), f"{timing.milliseconds:.2f}", str(len(timing.turns)), timing.note]
            for timing in (*calibration.kernels, *calibration.engines)
        ]
        console.print(Table(title, ["engine", "ms a client's step", "turns", ""], rows).rich())
        console.print(f"{calibration}\n", highlight=False, markup=False)
    kept = (
        '`run.engine = "auto"` measures this anew before each run that is long enough. The number is the median over '
        "turns; one that took far longer than the fastest left early."
    )
    console.print("Nothing was measured." if dry_run else kept, highlight=False, markup=False)
