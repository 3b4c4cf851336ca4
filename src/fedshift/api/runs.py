"""Runs: carried out, carried on, read, and predicting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from fedshift import files
from fedshift.api.comparison import Comparison
from fedshift.api.display import display
from fedshift.api.experiments import experiment, grid
from fedshift.api.options import DEFAULT, Options, Source
from fedshift.errors import DiskError, FedshiftError, LockedError
from fedshift.reporting.results import REFUSED, Results
from fedshift.runs import runner
from fedshift.runs.folder import RunFolder
from fedshift.runs.predictions import Predictions, nobody, predictions
from fedshift.runs.progress import Progress
from fedshift.runs.run import Picked, Run


def run(source: Source = DEFAULT, *, progress: Progress | None = None, **options: Unpack[Options]) -> Run:
    """Carry out one new run; :func:`compare` reuses a finished one instead.

    Args:
        source: what to run.
        progress: hears of the progress; by default a live display.
        options: what differs from the source, see :class:`Options`.

    Raises:
        FedshiftError: it describes several runs, its folder exists, or it cannot be carried out.
    """
    asked = experiment(source, **options)
    with display(progress, 1) as shown:
        return Run(runner.start(asked, shown))


def compare(
    source: Source | Sequence[Source] = DEFAULT, *, progress: Progress | None = None, **options: Unpack[Options]
) -> Comparison:
    """Carry out every run that a source describes; finished ones are not repeated.

    Args:
        source: what to run.
        progress: hears of the progress; by default a live display.
        options: what differs from the source, see :class:`Options`.

    Raises:
        FedshiftError: something in the experiments is wrong, or every run failed; the message names it and the fix.
    """
    experiments = grid(source, **options)
    with display(progress, len(experiments)) as shown:
        folders, failed = runner.run_all(experiments, shown)
    for path, error in failed.items():
        if not (RunFolder(path).begun or isinstance(error, DiskError | LockedError)):
            files.make_folder(path)
            files.write(path / REFUSED, str(error).removeprefix(f"{path.name}: "))
    return Comparison.of(folders, failed, len(experiments), experiments)


def resume(path: str | Path, progress: Progress | None = None, *, trust: bool = False) -> Comparison:
    """Carry on every unfinished run at or below a path, from its last checkpoint to the same bits.

    Runs that advanced together go on together, and those of a comparison that have not begun, begin. A run whose files
    were damaged is set aside and made again.

    Args:
        path: a run folder, or a folder of them.
        progress: hears of the progress; by default a live display.
        trust: whether plugins may be imported that never ran on this machine; read them first.

    Raises:
        UntrustedError: a run needs such a plugin.
        FedshiftError: there is no run, or every run failed; the message names it and the fix.
    """
    asked = runner.below(_path(path), trust)
    with display(progress, len(asked)) as shown:
        folders, failed = runner.resume(asked, shown)
    return Comparison.of(folders, failed, len(asked))


def load(path: str | Path, *, trust: bool = False) -> Comparison:
    """What the runs at or below a path have recorded so far; nothing is imported for that.

    Args:
        path: a run folder, or a folder of them.
        trust: whether ``model()`` of these runs may import plugins that never ran on this machine.

    Raises:
        FedshiftError: there is none, none has a record, all are damaged, or they are trials of a study.
    """
    results = Results.at(_path(path), trust)
    return Comparison(results, asked=len(results.runs))


def predict(
    path: str | Path,
    files: Sequence[str | Path],
    *,
    client: int | str | None = None,
    round: Picked = "last",
    trust: bool = False,
    tell: Callable[[int, int], None] = nobody,
) -> Predictions:
    """Predict for files of the kind that a run was trained on: images, .npz arrays, CSV or Parquet, as its data are.

    Labels in them are not looked at. Files that cannot be read do not keep the others from being predicted for; the
    ``check()`` of what is returned raises an error that names them.

    Args:
        path: the run's folder.
        files: files, or folders, of which every such file below is taken.
        client: whose model, by name or id; None: the global one.
        round: "last": the final model; "selected": that of the round which source validation picks.
        trust: whether plugins may be imported that never ran on this machine.
        tell: hears how many files are read, of how many.

    Raises:
        FedshiftError: there is no such model or file, or no file could be read; the message names every one.
    """
    return predictions(Run.open(_path(path), trust), files, client, round, tell)


def _path(path: str | Path) -> Path:
    """A path that a user gives."""
    if not isinstance(path, str | Path):
        raise FedshiftError(f"{path!r} is no path; give a run folder, or a folder of them.")
    return Path(path)
