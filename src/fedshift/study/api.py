"""What the commands do, from Python; the command line itself calls these functions.

Every function that carries out or plans experiments takes a *source* and *options*. A source is a TOML file, the name
of an experiment that comes with fedshift, a table like such a file's, an :class:`Experiment`, or a list of these. The
options change it and are those of :class:`Options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedshift.errors import FedshiftError
from fedshift.reporting.live import display
from fedshift.reporting.results import Results
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.predictions import Predictions, nobody, predictions
from fedshift.runs.run import Picked, Run
from fedshift.study.asked import DEFAULT, Source, sources
from fedshift.study.asked import FIELDS as FIELDS
from fedshift.study.asked import Options as Options
from fedshift.study.asked import experiment as experiment
from fedshift.study.asked import grid as grid
from fedshift.study.asked import only as only
from fedshift.study.before import bench as bench
from fedshift.study.before import estimate as estimate
from fedshift.study.before import index as index
from fedshift.study.before import inspect_data as inspect_data
from fedshift.study.comparison import Comparison as Comparison
from fedshift.study.grid import SEARCH, read
from fedshift.study.study_plan import Forecast as Forecast

if TYPE_CHECKING:
    from fedshift.study.search import Sampler
    from fedshift.study.tune import Budget
    from fedshift.study.tuned import Tuning


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
    from fedshift.study.execute import carry_out_runs

    experiments = grid(source, **options)
    with display(progress, len(experiments)) as shown:
        folders, failed = carry_out_runs(experiments, shown)
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


def tune(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    trials: int = 20,
    sampler: Sampler = "tpe",
    parallel: int = 4,
    search: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Tuning:
    """Search the settings of every method that a source describes, on validation data and with one budget for all.

    What is searched is what the methods' pages and [train] declare, the source's table [search], and ``search``; not
    what ``settings`` give. Called again, it goes on where it was, with more trials if more are asked for.

    Args:
        source: what to tune; each method and held-out domain is a study of its own, over all seeds.
        trials: how many choices each study tries.
        sampler: "tpe" (Optuna's tree-structured Parzen estimator) or "random".
        parallel: how many trials are chosen, and carried out, side by side; it decides what is tried.
        search: where to look, by dotted setting: ``{"train.lr": "0.001..0.1", "method.mu": [0.1, 0.5]}``.
        progress: callback for the progress; by default a live display.
        options: what differs from the source, see :class:`Options`.

    Returns:
        The best settings and all trials; its ``path`` is what the option ``tuned`` takes.

    Warns:
        FedshiftWarning: a setting in ``search`` is of no method that is tuned, or what another search of the same
            experiment found is replaced.

    Raises:
        FedshiftError: something in it is wrong, validation looks at the test, or no study has a trial that was carried
            to its end; the message names it and the fix.
    """
    from fedshift.study.tune import search_all

    budget = search_budget(source, trials, sampler, parallel, search, options.get("settings"))
    experiments = grid(source, **options)
    with display(progress, trials * len(experiments)) as shown:
        return search_all(experiments, budget, shown)


def search_budget(
    source: Source | Sequence[Source],
    trials: int,
    sampler: Sampler,
    parallel: int,
    search: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Budget:
    """The budget and the ranges of :func:`tune`.

    Raises:
        FedshiftError: something in it is wrong.
    """
    from fedshift.study.space import flat_ranges
    from fedshift.study.tune import Budget

    given, fixed = flat_ranges(search or {}), tuple(settings or {})
    if both := [key for key in given if key in fixed]:
        raise FedshiftError(f"{both[0]} is searched and given a value; give it once.")
    ranges: dict[str, Any] = {}
    for item in sources(source):
        document = item if isinstance(item, Mapping) else read(item) if isinstance(item, str) else {}
        ranges |= flat_ranges(document.get(SEARCH, {}))
    return Budget(trials=trials, sampler=sampler, parallel=parallel, search=ranges | given, fixed=fixed)
