"""The commands as Python functions; the command line itself calls these functions.

Every function that runs or plans experiments takes a *source* and *options*. A source is a TOML file, the name of a
shipped experiment, a table like such a file's, an :class:`Experiment`, or a list of these. The options, see
:class:`Options`, change the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedshift.errors import FedshiftError
from fedshift.experiments import NAMED, Experiment
from fedshift.methods import INDEXING
from fedshift.reporting.comparison import Comparison as Comparison
from fedshift.reporting.live import display
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.predictions import Predictions, ignore_progress, predictions
from fedshift.runs.run import Picked, Run
from fedshift.runs.shard import Shard
from fedshift.runs.spread import spread
from fedshift.study.execute import forecast, run_plan
from fedshift.study.grid import SEARCH, read
from fedshift.study.sources import DEFAULT, Source, sources
from fedshift.study.sources import FIELDS as FIELDS
from fedshift.study.sources import Options as Options
from fedshift.study.sources import experiment as experiment
from fedshift.study.sources import grid as grid
from fedshift.study.sources import only as only
from fedshift.study.study_plan import Forecast as Forecast
from fedshift.study.study_plan import Plan

if TYPE_CHECKING:
    from fedshift.core.method import Prepared
    from fedshift.engines.timings import EngineTimings
    from fedshift.reporting.analyses.analysed import Analysed
    from fedshift.reporting.data_report.report import DataReport
    from fedshift.reporting.export.export import Exported
    from fedshift.reporting.export.formats import Format
    from fedshift.reporting.validation import Validation
    from fedshift.runs.released import Released
    from fedshift.runs.trained import Trained
    from fedshift.study.search import Budget, Sampler
    from fedshift.study.tuned import Tuning


def run(source: Source = DEFAULT, *, progress: Progress | None = None, **options: Unpack[Options]) -> Run:
    """Start a new run; :func:`compare` reuses a finished run instead.

    Args:
        source: the experiment: a name of ``fedshift list experiments``, a TOML file, a table of settings, or an
            :class:`Experiment`; by default the main job.
        progress: receives the progress events; by default a live display.
        options: changes of the source, such as ``method="fedbn"``, ``rounds=20`` or ``data={site: (x, y)}``; see
            :class:`Options`.

    Returns:
        The finished run: its records, scores, messages and models.

    Raises:
        FedshiftError: the source describes several runs, the run's folder exists, or the experiment cannot run.
    """
    requested = experiment(source, **options)
    with display(progress, 1) as shown:
        return runner.start(requested, shown)


def compare(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    progress: Progress | None = None,
    shard: str | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Run every run that a source describes; finished runs are not repeated, interrupted runs are resumed.

    Args:
        source: the experiment, as in :func:`run`, or a list of experiments; a list where one value is expected, such
            as ``method=["fedavg", "fedsr"]`` or ``seed=[0, 1, 2]``, makes a run for each.
        progress: receives the progress events; by default a live display.
        shard: "3/16" shares the runs with 15 other processes in the same folder, on any machines.
        options: changes of the source, see :class:`Options`.

    Returns:
        The runs with their tables, scores and report; runs that diverged are noted in it.

    Raises:
        FedshiftError: a setting is wrong, or every run failed; the message names it and the fix.
    """
    experiments = grid(source, **options)
    with display(progress, len(experiments)) as shown:
        plan = Plan.of(experiments)
        share = spread(partial(run_plan, plan, Progress()), experiments, Shard.of(shard), shown)
        done = run_plan(plan, shown, share)
    rows = [(cell.label, cell.experiments) for cell in done.cells]
    return Comparison.of(done.runs, done.failed, len(experiments), rows)


def resume(path: str | Path, progress: Progress | None = None, *, trust: bool = False) -> Comparison:
    """Resume every unfinished run at or below a path, from its last checkpoint to the same bits.

    Runs that advanced together resume together, and runs of a comparison that have not started, start. A run with
    damaged files is set aside and repeated.

    Args:
        path: a run folder, or a folder of them.
        progress: receives the progress; by default a live display.
        trust: whether plugins may be imported that never ran on this machine; read them first.

    Raises:
        UntrustedError: a run needs such a plugin.
        FedshiftError: there are no runs, or every run failed; the message names it and the fix.
    """
    requested = runner.below(_path(path), trust)
    with display(progress, len(requested)) as shown:
        folders, failed = runner.resume(requested, shown)
    return Comparison.of(folders, failed, len(requested))


def load(*paths: str | Path, trust: bool = False) -> Comparison:
    """Load the records so far of the runs at or below paths; no plugin is imported.

    Args:
        paths: run folders, or folders of them.
        trust: whether ``model()`` of these runs may import plugins that never ran on this machine.

    Raises:
        FedshiftError: there are no runs, none has a record, all are damaged, or they are trials of a study.
    """
    if not paths:
        raise FedshiftError("No path is given; give a run folder, or a folder of them.")
    return Comparison.at(*map(_path, paths), trust=trust)


def analyse(
    name: str,
    *paths: str | Path,
    trust: bool = False,
    notify: Callable[[Run], None] = lambda run: None,
    **settings: Any,
) -> Analysed:
    """Measure finished runs again from their folders and data, without training.

    Earlier measurements are read from the run's folder.

    Args:
        name: the analysis, of ``fedshift list analyses``.
        paths: run folders, or folders of them.
        trust: whether plugins may be imported that never ran on this machine; read them first.
        notify: called with each run before it is measured.
        settings: the analysis's settings, by name.

    Raises:
        FedshiftError: there is no such analysis or setting, or no run that it applies to.
    """
    from fedshift.reporting.analyses import ANALYSES, analysed

    analysis = ANALYSES.build({"name": name, **settings})
    return analysed.analyse(load(*paths, trust=trust), analysis, notify)


def predict(
    path: str | Path,
    files: Sequence[str | Path],
    *,
    client: int | str | None = None,
    round: Picked = "last",
    trust: bool = False,
    notify: Callable[[int, int], None] = ignore_progress,
) -> Predictions:
    """Predict for files of the kind that a run was trained on: images, .npz arrays, CSV or Parquet, as its data are.

    Labels in them are ignored. Files that cannot be read do not stop the others; the result's ``check()`` raises an
    error that names them.

    Args:
        path: the run's folder.
        files: files, or folders, which are searched recursively.
        client: whose model, by name or id; None: the global model.
        round: "last": the final model; "selected": the model of the round that source validation selects.
        trust: whether plugins may be imported that never ran on this machine.
        notify: called with the number of files read, and of all files.

    Raises:
        FedshiftError: there is no such model or file, or no file could be read; the message names every file.
    """
    return predictions(Run.open(_path(path), trust), files, client, round, notify)


def validate(
    model: str | Path | Trained,
    data: str | Path,
    *,
    client: int | str | None = None,
    round: Picked = "last",
    against: str | Path | Trained | None = None,
    metrics: Sequence[str] = (),
    by: str = "",
    min_count: int = 10,
    settings: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Validation:
    """Score a trained model on labelled samples of a site that never joined, as numbers that may be published.

    Thresholds are those that the run's validation samples choose, if available locally; nothing is chosen on the scored
    samples. The result contains no number that is based on few samples, and none that would reveal one; only
    ``rows``, and the file of ``write_rows``, are about single samples.

    Args:
        model: a run's folder, a folder that :func:`export` wrote, or a model that ``run.model()`` or ``site_model()``
            returned.
        data: a file or folder of the kind that the model was trained on, with labels that are the model's classes.
        client: for a run's folder, the client of a personalised model, by name or id; None: the global model.
        round: for a run's folder, "last": the final model; "selected": the model of the round that source validation
            selects.
        against: another model of the same classes, to compare with on the same samples.
        metrics: as ``evaluate.metrics`` names them; none: those that the run declares, or else balanced accuracy,
            AUROC, each class's sensitivity and precision, and the calibration error.
        by: a column of the file, whose values define subgroups, or "domain"; empty: there are no subgroups.
        min_count: the least number of samples (or groups, for grouped samples) on which a published number is based.
        settings: what differs from the data set's settings in training, such as ``{"label": "diagnosis"}``.
        trust: whether plugins may be imported that never ran on this machine.

    Raises:
        FedshiftError: there is no such model, the samples cannot be read or do not fit the model, or there are fewer
            than ``min_count``; the message names it and the fix.
    """
    from fedshift.reporting.validate import validated

    scored = _released(model, client, round, trust)
    other = None if against is None else _released(against, client, round, trust)
    known = {name.removeprefix("data."): value for name, value in (settings or {}).items()}
    return validated(scored, str(_path(data)), against=other, metrics=metrics, by=by, floor=min_count, settings=known)


def _released(model: str | Path | Trained, client: int | str | None, round: Picked, trust: bool) -> Released:
    from fedshift.reporting.export.reading import exported, is_exported
    from fedshift.runs.released import Released, released
    from fedshift.runs.trained import Trained

    if isinstance(model, Trained):
        return Released.of(model)
    if is_exported(folder := _path(model)):
        return exported(folder, trust)
    return released(folder, client, round, trust)


def export(
    run: str | Path | Run,
    *,
    client: int | str | None = None,
    format: Format | Sequence[Format] = "onnx",
    to: str | Path | None = None,
    round: Picked = "last",
    trust: bool = False,
) -> Exported:
    """Write a run's model for people without fedshift, with a model card and samples on which it was checked.

    Every file is executed, and refused if a probability differs by more than 1e-5 from ``Run.model()``.

    Args:
        run: the run, or its folder.
        client: whose model, by name or id; None: the global model.
        format: "onnx" (needs fedshift[onnx]; runs in ONNX Runtime), "torch" (``torch.export.load``), "safetensors" (the
            weights, and a Python file of the model that needs only torch and safetensors); or several.
        to: a new folder; None: ``export`` in the run's folder, followed by the client's name.
        round: "last": the final model; "selected": the model of the round that source validation selects.
        trust: whether plugins may be imported that never ran on this machine.

    Raises:
        FedshiftError: there is no such model, the folder exists, an extra is missing, a format cannot express the
            model, or a file's predictions differ; then no file is left behind.
    """
    from fedshift.reporting.export import export as exporting

    opened = run if isinstance(run, Run) else Run.open(_path(run), trust)
    formats: Sequence[Format] = (format,) if isinstance(format, str) else format
    return exporting.export(opened, formats, client, round, to)


def _path(path: str | Path) -> Path:
    if not isinstance(path, str | Path):
        raise FedshiftError(f"{path!r} is not a path; give a run folder, or a folder of them.")
    return Path(path)


def tune(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    trials: int = 20,
    sampler: Sampler = "tpe",
    parallel: int = 4,
    search: Mapping[str, Any] | None = None,
    cross_validate: bool = False,
    progress: Progress | None = None,
    shard: str | None = None,
    **options: Unpack[Options],
) -> Tuning:
    """Search the settings of every method that a source describes, on validation data and with one budget for all.

    The search covers the settings that the methods' pages and [train] declare, the source's table [search], and
    ``search``, but not those in ``settings``. Called again, it continues, with more trials if more are requested.

    Args:
        source: what to tune; each method and held-out domain is a separate study, over all seeds.
        trials: how many choices each study tries.
        sampler: "tpe" (Optuna's tree-structured Parzen estimator), "random", or "grid": every combination of choices,
            of an interval its ends and its middle.
        parallel: the number of trials that are chosen and run in parallel; another number gives other trials.
        search: ranges by dotted setting: ``{"train.lr": "0.001..0.1", "method.mu": [0.1, 0.5]}``.
        cross_validate: train once for each domain that trains, without it, and validate on it. Needs the protocol
            leave-one-domain-out; no trial is pruned.
        progress: callback for the progress; by default a live display.
        shard: "3/16" shares the trials' runs with 15 other processes, as in :func:`compare`.
        options: changes of the source, see :class:`Options`.

    Returns:
        The best settings and all trials; its ``path`` is the file that the option ``tuned`` takes.

    Warns:
        FedshiftWarning: no tuned method has a setting in ``search``, or the result of another search of the same
            experiment is replaced.

    Raises:
        FedshiftError: a setting is wrong, validation data are test data, or no study has a complete trial; the message
            names it and the fix.
    """
    from fedshift.study.tune import search_all

    budget = search_budget(source, trials, sampler, parallel, search, options.get("settings"), cross_validate)
    experiments = grid(source, **options)
    with display(progress, trials * sum(len(budget.folds(each)) for each in experiments)) as shown:
        share = spread(partial(search_all, experiments, budget, Progress()), experiments, Shard.of(shard), shown)
        return search_all(experiments, budget, shown, share)


def search_budget(
    source: Source | Sequence[Source],
    trials: int,
    sampler: Sampler,
    parallel: int,
    search: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    cross_validate: bool = False,
) -> Budget:
    """The budget and the ranges of :func:`tune`; raises a FedshiftError if something in them is wrong."""
    from fedshift.study.search import Budget
    from fedshift.study.space import flat_ranges

    given, fixed = flat_ranges(search or {}), tuple(settings or {})
    if both := [key for key in given if key in fixed]:
        raise FedshiftError(f"{both[0]} is searched and given a value; give it once.")
    ranges: dict[str, Any] = {}
    for item in sources(source):
        document = item if isinstance(item, Mapping) else read(item) if isinstance(item, str) else {}
        ranges |= flat_ranges(document.get(SEARCH, {}))
    return Budget(
        trials=trials,
        sampler=sampler,
        parallel=parallel,
        search=ranges | given,
        fixed=fixed,
        cross_validate=cross_validate,
    )


def estimate(source: Source | Sequence[Source] = DEFAULT, **options: Unpack[Options]) -> list[Forecast]:
    """Estimate the cost of a comparison; nothing is written, and only a few steps are trained, to time them.

    Raises:
        FedshiftError: something in the experiments is wrong, or no row can run.
    """
    return forecast(Plan.of(grid(source, **options)), lambda cell: len(cell.experiments))


def inspect_data(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    test: bool = False,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> DataReport:
    """Report what a data set contains, how it would be divided and what is odd about it; nothing is trained or written.

    Args:
        source: the experiment; of several runs the first run's data and division are inspected.
        test: inspect test samples too, including a held-out domain; by default only their labels are used, and
            whether they equal other samples.
        progress: receives the progress; by default a live display.
        options: changes of the source, see :class:`Options`.

    Raises:
        FedshiftError: something in the experiment is wrong, or its data cannot be read or divided.
    """
    from fedshift.reporting.data_report.report import look_at
    from fedshift.runs.simulation import read_federated

    experiments = grid(source, **options)
    requested = experiments[0]
    divisions = {repr((e.seed_of_data, e.data, e.partition, e.protocol)) for e in experiments}
    notes = []
    if len(divisions) > 1:
        held_out = [f"'{requested.held_out}' held out"] if requested.held_out is not None else []
        words = [f"seed {requested.seed_of_data}", *held_out]
        notes.append(f"These runs divide data in {len(divisions)} ways; this is the first: {', '.join(words)}.")
    inputs, refused = requested.data.inputs(), list[FedshiftError]()
    try:
        requested.model.check(inputs)
    except FedshiftError as error:
        refused.append(error)
    with display(progress, 1) as shown:
        data, federation = read_federated(requested)
        try:
            federation = federation.checked(data)
        except FedshiftError as error:
            refused.append(error)
        return look_at(
            data,
            federation,
            inputs,
            seed=requested.seed_of_data,
            experiment=requested.name,
            dataset=NAMED["data"].name_of(requested.data),
            batch=requested.train.batch,
            test=test,
            refused=refused,
            notes=notes,
            notify=shown.inspected,
        )


def bench(
    source: Source = DEFAULT, *, notify: Callable[[str], None] = lambda text: None, **options: Unpack[Options]
) -> EngineTimings:
    """Measure which engine is fastest for a run on this machine now, as ``run.engine = "auto"`` does before a run.

    Args:
        source: exactly one run, as for :func:`run`.
        notify: called with each measurement.
        options: changes of the source.

    Raises:
        FedshiftError: it describes several runs, or they cannot run.
    """
    from fedshift.engines.timings import calibrate
    from fedshift.runs.simulation import Simulation

    requested = experiment(source, **options)
    return calibrate(Simulation(requested).example(), requested.run, notify)


def index(source: Source = DEFAULT, *, progress: Progress | None = None, **options: Unpack[Options]) -> Prepared:
    """Compute what a method derives from a run's clients before any training, such as a vector of each.

    The method is :data:`~fedshift.methods.INDEXING` unless another is given.

    Raises:
        FedshiftError: it describes several runs, the method has no index, or it cannot run.
    """
    from fedshift.runs.lockstep import prepare

    if not isinstance(source, Experiment) and options.get("method") is None:
        options["method"] = INDEXING
    requested = experiment(source, **options)
    with display(progress, 1) as shown:
        done = prepare(requested, "index", shown)
    assert requested.method.prepares is not None
    return requested.method.prepares.prepared(
        done.federated, done.coordinator.state, done.coordinator.ledger.declaration()
    )
