"""What the commands do, from Python; the command line itself calls these functions.

Every function that carries out or plans experiments takes a *source* and *options*. A source is a TOML file, the name
of an experiment that comes with fedshift, a table like such a file's, an :class:`Experiment`, or a list of these. The
options change it and are those of :class:`Options`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fedshift.benchmarking.benchmark import Benchmark
from fedshift.benchmarking.carry_out import carry_out as carry_out_benchmark
from fedshift.benchmarking.plan import OUT
from fedshift.benchmarking.plan import Plan as BenchmarkPlan
from fedshift.core.metrics import ACCURACY
from fedshift.errors import DivergedError, FedshiftError, FedshiftWarning, UnknownNameError
from fedshift.reporting.frames import as_frame
from fedshift.reporting.predictions import Predictions, nobody, predictions
from fedshift.reporting.results import MeanStd, Results, Row, described, label
from fedshift.reporting.table import as_text
from fedshift.reporting.units import clock
from fedshift.reproduction.plan import OUT as REPRODUCED
from fedshift.reproduction.plan import Plan as TablePlan
from fedshift.reproduction.reproduction import Reproduction
from fedshift.reproduction.states import States, states
from fedshift.runs import runner
from fedshift.runs.folder import RunFolder
from fedshift.runs.progress import Progress
from fedshift.runs.records import Record
from fedshift.runs.run import Picked, Run
from fedshift.runs.selection import ORACLES, RULES
from fedshift.settings.change import Changed, changed
from fedshift.settings.experiment import NAMED, Experiment
from fedshift.settings.grid import EVERY_DOMAIN, SEARCH, expand, read
from fedshift.settings.spec import Spec, plain, shown
from fedshift.simulation import dry_run
from fedshift.tuning.space import flat_ranges
from fedshift.tuning.study import Sampler
from fedshift.tuning.tune import Plan, Tuning
from fedshift.tuning.tune import tune as carry_out_studies
from fedshift.tuning.tuned import Tuned

if TYPE_CHECKING:
    import pandas as pd

    from fedshift.engines.calibration import Calibration
    from fedshift.methods.client2vec.vectors import Index
    from fedshift.reporting.data_report.report import DataReport

Source = str | Path | Mapping[str, Any] | Experiment
Choice = str | Spec | Mapping[str, Any]

DEFAULT = "rotated-mnist"
FIELDS = {  # each option's field of an experiment; what they name comes first, as it takes its settings along
    "method": "method.name",
    "data": "data.name",
    "partition": "partition.name",
    "protocol": "protocol.name",
    "model": "model.name",
    "hold_out": "protocol.hold_out",
    "seed": "seed",
    "rounds": "train.rounds",
    "device": "run.device",
    "out": "run.out",
    "name": "name",
    "plugins": "plugins",
}
YOURS = {
    "data": " Arrays or a torch Dataset of yours: data=fedshift.in_memory({site: (x, y), ...})",
    "model": " A module of yours: model=fedshift.own_model(module)",
}


class Options(TypedDict, total=False):
    """How experiments differ from their source; None is as good as nothing.

    Attributes:
        method: a name, an instance such as ``FedSR(l2r=0.05)``, or a table with a name; or a list of these, each a run.
            A name keeps the settings of the source that the method has as well. An instance or table takes the place
            of all that the source says of methods. What is left out is said by a :class:`FedshiftWarning`.
        data: the data set, as a name, instance or table; so are the partition, the protocol and the model. Paths of
            files of another data set are not kept. Without a source, each domain of other data is scored on samples
            of its own, unless ``hold_out`` or ``protocol`` says otherwise.
        partition: how domains are divided among clients.
        protocol: what is held out, and who is scored on what.
        model: the network.
        hold_out: the domain that is held out, a list of them, or "all" for each in turn; in a list "all" is the name
            of a domain.
        seed: the seed, or a list.
        rounds: communication rounds.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        out: the folder that holds run folders.
        name: a label; run folders lie in a folder of that name.
        plugins: Python files that register methods, models or data sets.
        settings: any other field, dotted: ``{"method.l2r": 0.05}``. A list where one value is expected makes a run for
            each.
        tuned: the file of a search, whose best settings of each method take the place of the source's; ``settings``
            count before them.
    """

    method: Choice | Sequence[Choice] | None
    data: Choice | None
    partition: Choice | None
    protocol: Choice | None
    model: Choice | None
    hold_out: str | Sequence[str] | None
    seed: int | Sequence[int] | None
    rounds: int | None
    device: str | None
    out: str | Path | None
    name: str | None
    plugins: str | Path | Sequence[str | Path] | None
    settings: Mapping[str, Any] | None
    tuned: str | Path | None


# From a source and options to experiments --------------------------------------------------------


def grid(source: Source | Sequence[Source] = DEFAULT, **options: Unpack[Options]) -> list[Experiment]:
    """Every run that a source describes with these options; a list where one value is expected makes a run for each.

    Warns:
        FedshiftWarning: a setting of the source is left out, as the options replace what it belongs to.

    Raises:
        FedshiftError: something in it is wrong, or two runs are the same; the message names it and the fix.
    """
    for option in options:
        if option not in (*FIELDS, "settings", "tuned"):
            hint = 'Any field of an experiment can be given as settings={"train.lr": 0.1}.'
            raise UnknownNameError("option", option, [*FIELDS, "settings", "tuned"], hint=hint)
    given: dict[str, Any] = {option: plain(value) for option, value in options.items() if value is not None}
    settings, tuned = given.pop("settings", {}), given.pop("tuned", None)
    if not isinstance(settings, Mapping) or not all(isinstance(field, str) for field in settings):
        raise FedshiftError(f'settings = {settings!r}: give dotted fields and values, as in {{"method.l2r": 0.05}}.')
    found: list[Experiment] = []
    said: set[str] = set()
    for item in _sources(source):
        for method in _methods(given.get("method")):
            changes = {**given, **method}
            if isinstance(item, Experiment) and not (changes or settings):
                found.append(item)
                continue
            document = _document(item, changes, settings)
            for note in document.left_out:
                if note not in said:
                    warnings.warn(note, FedshiftWarning, stacklevel=_callers())
                said.add(note)
            found += expand(document.document)
    if len({experiment.fingerprint for experiment in found}) < len(found):
        raise FedshiftError("The grid holds the same run twice; give every experiment and every method once.")
    return found if tuned is None else Tuned.read(tuned).applied(found, settings, str(tuned))


def _sources(source: Any) -> list[str | Mapping[str, Any] | Experiment]:
    """The sources that are given, one or several."""
    source, kinds = plain(source), (str, Mapping, Experiment)
    sources = [source] if isinstance(source, kinds) else source
    if not isinstance(sources, list) or not sources or not all(isinstance(item, kinds) for item in sources):
        raise FedshiftError(f"{source!r} is no experiment; give a TOML file, a name, a table, or Experiments.")
    return sources


def experiment(source: Source = DEFAULT, **options: Unpack[Options]) -> Experiment:
    """The single run that a source describes with these options.

    Raises:
        FedshiftError: something in it is wrong, or it describes several runs.
    """
    return only(grid(source, **options))


def only(experiments: Sequence[Experiment]) -> Experiment:
    """The single experiment of a list.

    Raises:
        FedshiftError: there are several.
    """
    if len(experiments) > 1:
        names = [e.run_name for e in experiments[:4]] + ["..."] * (len(experiments) > 4)
        raise FedshiftError(
            f"This describes {len(experiments)} runs ({', '.join(names)}). "
            "`fedshift compare` carries them all out; for one run choose --method, --seed and --hold-out (method, seed "
            "and hold_out in Python)."
        )
    return experiments[0]


def _methods(value: Any) -> list[dict[str, Any]]:
    """The option ``method`` in pieces that a document can hold: names in a row, or a table."""
    if value is None:
        return [{}]
    if not isinstance(value, list):
        return [{"method": value}]
    if not value:
        raise FedshiftError("method is an empty list; give a name or an instance.")
    named = groupby(enumerate(value), key=lambda item: -1 if isinstance(item[1], str) else item[0])
    groups = [[choice for _, choice in group] for _, group in named]
    return [{"method": group if isinstance(group[0], str) else group[0]} for group in groups]


def _document(source: Source, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Changed:
    """What a source says, changed by options and settings."""
    changes: dict[str, Any] = {}
    for option in (option for option in FIELDS if option in given):
        value = _chosen(option, given[option]) if option in NAMED else given[option]
        changes[option if isinstance(value, Mapping) else FIELDS[option]] = value
    if source == DEFAULT and "data" in given:
        data = changes.get("data", {"name": changes.get("data.name")})["name"]
        changes = {"name": data} | changes  # other data are another experiment
        if data != DEFAULT:
            source = _of_other_data(source, {*changes, *settings})
    if isinstance(changes.get("plugins"), str):
        changes["plugins"] = [changes["plugins"]]
    twice = [field for field in settings if field in changes and field != "name"]
    if twice or ("name" in settings and "name" in given):
        field = (twice or ["name"])[0]
        raise FedshiftError(f"{field} is given twice, as an option and among the settings; give it once.")
    changes |= settings
    if isinstance(source, Experiment):
        return changed(_stated(source, changes), changes)
    return changed(source if isinstance(source, Mapping) else read(source), changes)


def _of_other_data(source: str, given: Collection[str]) -> dict[str, Any]:
    """The default experiment for data that have other domains: none is held out, unless that is asked for."""
    held_out = "protocol.hold_out" in given
    return {**read(source), "protocol": {"name": "leave-one-domain-out" if held_out else "in-domain"}}


def _stated(source: Experiment, changes: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment as a document; of what is replaced only what differs from the defaults, which are another's."""
    document = source.table()
    for name, catalogue in NAMED.items():
        spec = getattr(source, name)
        entry = catalogue.entry_of(spec)
        if changes.get(f"{name}.name", entry.name) != entry.name:
            defaults = {field: about.default for field, about in entry.settings().items()}
            document[name] = {
                field: value
                for field, value in document[name].items()
                if field == "name" or field in spec.nested() or getattr(spec, field) != defaults[field]
            }
    if document["protocol"].get("hold_out") == EVERY_DOMAIN:  # here the name of a domain
        document["protocol"]["hold_out"] = [EVERY_DOMAIN]
    return document


def _callers() -> int:
    """How far up the call that entered fedshift is, for a warning to point at it."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("fedshift."):
        frame, depth = frame.f_back, depth + 1
    return depth


def _chosen(option: str, value: Any) -> Any:
    """What a document says for a name, an instance or a table; of methods also for a list of names."""
    catalogue = NAMED[option]
    if isinstance(value, str) or (option == "method" and isinstance(value, list)):
        return value
    if isinstance(value, catalogue.base()):
        return catalogue.table_of(value)
    if isinstance(value, Mapping) and "name" in value:
        return value
    several = "" if option == "method" else "; only method may be a list"
    raise FedshiftError(
        f"{option} = {shown(value)}: give the name of a {catalogue.kind} ({', '.join(catalogue)}), an instance, or a "
        f"table with a name{several}.{YOURS.get(option, '')}"
    )


# Carrying out -------------------------------------------------------------------------------------


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
    with _shown(progress, 1) as shown:
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
    with _shown(progress, len(experiments)) as shown:
        folders, failed = runner.run_all(experiments, shown)
    return _compared(folders, failed, len(experiments))


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
        progress: hears of the progress; by default a live display.
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
    plan = search_plan(source, trials, sampler, parallel, search, options.get("settings"))
    return tune_planned(grid(source, **options), plan, progress)


def tune_planned(experiments: Sequence[Experiment], plan: Plan, progress: Progress | None = None) -> Tuning:
    """Carry out :func:`tune` of experiments with a plan."""
    with _shown(progress, plan.trials * len(experiments)) as shown:
        return carry_out_studies(experiments, plan, shown)


def search_plan(
    source: Source | Sequence[Source],
    trials: int,
    sampler: Sampler,
    parallel: int,
    search: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """The budget and the ranges of :func:`tune`.

    Raises:
        FedshiftError: something in it is wrong.
    """
    settings = settings or {}
    if search is not None and not isinstance(search, Mapping):
        raise FedshiftError(f'search = {search!r}: give ranges by setting, as in {{"train.lr": "0.001..0.1"}}.')
    for key in search or {}:
        if key in settings:
            raise FedshiftError(f"{key} is searched and given a value; give it once.")
    ranges: dict[str, Any] = {}
    for item in _sources(source):
        document = item if isinstance(item, Mapping) else read(item) if isinstance(item, str) else {}
        table = document.get(SEARCH, {})
        if not isinstance(table, Mapping):
            raise FedshiftError(f'search = {table!r} is a value where a table belongs; write [search] "train.lr" = ...')
        ranges |= flat_ranges(table)
    asked = dict(search or {})
    return Plan(trials, sampler, parallel, ranges | asked, frozenset(settings), frozenset(asked))


def benchmark(
    scale: str = "smoke",
    methods: Sequence[str] | None = None,
    federations: Sequence[str] | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    plugins: Sequence[str | Path] = (),
    out: str | Path = OUT,
    progress: Progress | None = None,
) -> Benchmark:
    """Carry out the published benchmark: methods on a set of federations, tuned alike, with ranks and differences.

    What is finished is not repeated: called again, it goes on where it was. The tables, a page and the figure are
    written into the scale's folder.

    Args:
        scale: "smoke", "short" or "paper".
        methods: the rows, or one; "all" among them stands for the published methods that come with the package. By
            default these.
        federations: the columns, or one; by default all that the scale has.
        data: paths of the data that are not there or made, by data set: ``{"pacs": "pacs.parquet"}``.
        plugins: Python files that register methods, which are rows if ``methods`` names them.
        out: the folder.
        progress: hears of the progress; by default a live display.

    Raises:
        FedshiftError: a name is not known, no column has its data, or runs cannot be carried out for a reason that is
            not their method's, such as a full disk; what is finished is kept, and no table is written.
    """
    plan = BenchmarkPlan.of(scale, methods, federations, out, data, plugins)
    with _shown(progress, plan.most_runs) as shown:
        done = Benchmark(plan, carry_out_benchmark(plan, shown))
    done.write()
    return done


def reproduce(
    table: str,
    scale: str = "smoke",
    *,
    panels: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    data: Mapping[str, str | Path] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = REPRODUCED,
    progress: Progress | None = None,
) -> Reproduction:
    """Carry out a table or curve of one of the five papers, and put it beside the paper's numbers.

    What is finished is not repeated: called again, it goes on where it was. The table, and of a curve the figure, are
    written into a folder of the table and the scale.

    Args:
        table: its name, such as "fedsr-table1" or "fedcir-fig10".
        scale: "smoke", "short" or "paper".
        panels: of its federations those that are carried out now, or one; by default all whose data are here.
        rows: of its rows those that are carried out now, or one; by default all.
        data: paths of data, by the data set's name (``{"pacs": "pacs.parquet"}``), or by another setting of it
            (``{"digits.usps": "usps.parquet"}``).
        settings: dotted settings of [run] that differ, such as ``{"run.threads": 2}``.
        out: the folder.
        progress: hears of the progress; by default a live display.

    Raises:
        FedshiftError: a name is not known, nothing that the table needs is here, or runs cannot be carried out for a
            reason that is not their method's, such as a full disk; what is finished is kept.
    """
    plan = TablePlan.of(table, scale, panels, rows, out, data, settings)
    with _shown(progress, sum(len(cell.experiments) for cell in plan.cells)) as shown:
        return Reproduction.made(plan, shown)


def reproductions(
    tables: Sequence[str] | None = None,
    scale: str | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    out: str | Path = REPRODUCED,
) -> States:
    """How far the tables and curves of the papers are, and what they need that is not on this machine.

    Args:
        tables: their names, or papers' such as "fedcir"; by default all.
        scale: "smoke", "short" or "paper"; by default all.
        data: paths of data, as for :func:`reproduce`.
        out: the folder.

    Raises:
        FedshiftError: a name is not known.
    """
    return states(tables, scale, out, data)


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
    with _shown(progress, len(asked)) as shown:
        folders, failed = runner.resume(asked, shown)
    return _compared(folders, failed, len(asked))


def _compared(folders: Sequence[RunFolder], failed: Sequence[FedshiftError], asked: int) -> Comparison:
    """What came of runs.

    Raises:
        FedshiftError: all failed.
    """
    problems = tuple(str(error) for error in failed)
    if len(failed) == asked:
        raise type(failed[0])(_failure(problems, asked))
    return Comparison(Results.read(folders), problems, asked)


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


@dataclass(frozen=True)
class Forecast:
    """What some runs would cost that differ only in their seed and held-out domain.

    Attributes:
        label: what tells them from others.
        runs: how many they are.
        cost: that of each; None if they diverge at once.
        problem: why there is no cost.
    """

    label: str
    runs: int
    cost: dry_run.Estimate | None
    problem: str = ""

    def __repr__(self) -> str:
        if self.cost is None:
            return f"Forecast({self.label!r}, runs: {self.runs}, problem: {self.problem})"
        each = f"each {self.cost.rounds} rounds, {self.cost.steps} steps, about {clock(self.cost.seconds)}"
        return f"Forecast({self.label!r}, runs: {self.runs}, {each})"


def estimate(source: Source | Sequence[Source] = DEFAULT, **options: Unpack[Options]) -> list[Forecast]:
    """What a comparison would cost, measured on two rounds and one evaluation of each row; nothing is written.

    Raises:
        FedshiftError: something in the experiments is wrong.
    """
    groups: dict[str, list[Experiment]] = {}
    for asked in grid(source, **options):
        groups.setdefault(asked.series, []).append(asked)
    flat = [described(group[0].table(), group[0].contents) for group in groups.values()]
    forecasts = []
    for group, settings in zip(groups.values(), flat, strict=True):
        name = label(settings, flat)
        try:
            forecasts.append(Forecast(name, len(group), dry_run.estimate(group[0])))
        except DivergedError as error:
            forecasts.append(Forecast(name, len(group), None, str(error)))
    return forecasts


def inspect_data(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    test: bool = False,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> DataReport:
    """What a data set holds, who would have it and what is odd about it, before anything is trained or written.

    Args:
        source: the experiment; of several runs the data and division of the first are looked at.
        test: whether test samples, those of a held-out domain among them, are judged and shown as well; by default
            nothing of them is looked at but their labels, and whether they are equal to others.
        progress: hears of the progress; by default a live display.
        options: what differs from the source, see :class:`Options`.

    Raises:
        FedshiftError: something in the experiment is wrong, or its data cannot be read or divided.
    """
    from fedshift.reporting.data_report.report import DataReport
    from fedshift.settings.experiment import NAMED
    from fedshift.simulation.simulation import read_federation

    experiments = grid(source, **options)
    asked = experiments[0]
    divisions = {repr((e.seed_of_data, e.data, e.partition, e.protocol)) for e in experiments}
    notes = []
    if len(divisions) > 1:
        held_out = getattr(asked.protocol, "hold_out", None)
        words = [f"seed {asked.seed_of_data}", *([f"'{held_out}' held out"] if held_out is not None else [])]
        notes.append(f"These runs divide data in {len(divisions)} ways; this is the first: {', '.join(words)}.")
    inputs, refused = asked.data.inputs(), list[FedshiftError]()
    try:
        asked.model.check(inputs)
    except FedshiftError as error:
        refused.append(error)
    with _shown(progress, 1) as shown:
        data, federation = read_federation(asked)
        try:
            federation = federation.checked()
        except FedshiftError as error:
            refused.append(error)
        return DataReport.of(
            data,
            federation,
            inputs,
            seed=asked.seed_of_data,
            batch=asked.train.batch,
            experiment=asked.name,
            dataset=NAMED["data"].name_of(asked.data),
            test=test,
            refused=refused,
            notes=notes,
            tell=shown.inspected,
        )


def bench(
    source: Source = DEFAULT, *, tell: Callable[[str], None] = lambda text: None, **options: Unpack[Options]
) -> Calibration:
    """Measure which engine is fastest for a run on this machine; ``run.engine = "auto"`` uses it from then on.

    Args:
        source: exactly one run, as for :func:`run`.
        tell: hears what is measured.
        options: what differs from the source.

    Raises:
        FedshiftError: it describes several runs, or they cannot be carried out.
    """
    from fedshift.engines.calibration import calibrate, remember
    from fedshift.simulation.simulation import Simulation

    asked = experiment(source, **options)
    jobs = Simulation(asked).example()
    calibration = calibrate(jobs, asked.run, tell)
    remember(jobs, asked.run, calibration)
    return calibration


def index(source: Source = DEFAULT, *, progress: Progress | None = None, **options: Unpack[Options]) -> Index:
    """A vector for each client of one run, before any training; of 'client2vec' unless another method is given.

    Raises:
        FedshiftError: it describes several runs, the method makes no index, or it cannot be carried out.
    """
    from fedshift.methods.client2vec.vectors import Index, check_makes_index
    from fedshift.runs.preparation import prepare

    if not isinstance(source, Experiment) and options.get("method") is None:
        options["method"] = "client2vec"
    asked = experiment(source, **options)
    check_makes_index(asked.method, asked.method_name)
    with _shown(progress, 1) as shown:
        done = prepare(asked, "index", shown)
    return Index.of(done.federation, done.coordinator.state, done.coordinator.ledger.declaration())


def _shown(progress: Progress | None, runs: int) -> AbstractContextManager[Progress]:
    from fedshift.reporting.live import LiveProgress

    return nullcontext(progress) if progress else LiveProgress(runs)


def _failure(failed: Sequence[str], asked: int) -> str:
    return f"{len(failed)} of {asked} runs failed. {failed[0]}"


# What came of it ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs and what was measured; prints as its tables.

    Attributes:
        results: the records of every run, in the rows of its tables.
        failed: a message for each run that blew up or could not be carried out.
        asked: how many runs were asked for.
    """

    results: Results
    failed: tuple[str, ...] = ()
    asked: int = 0

    @property
    def runs(self) -> list[Run]:
        """The runs that have records."""
        return self.results.runs

    @property
    def folders(self) -> list[Path]:
        """The folders of these runs."""
        return [run.path for run in self.runs]

    @property
    def failure(self) -> str:
        """One message about all that failed; empty if nothing did."""
        return _failure(self.failed, self.asked) if self.failed else ""

    def report(self, path: str | Path) -> Path:
        """Write the self-contained HTML report, into a folder that is made if need be, and return its path.

        Raises:
            FedshiftError: it cannot be written.
        """
        from fedshift.reporting.page import write_report

        return write_report(self.results, Path(path))

    def accuracy(self, method: str) -> float:
        """A row's headline: test accuracy at the last round, mean over environments and seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return self.score(method, ACCURACY)

    def score(self, method: str, metric: str | None = None) -> float:
        """A row's test score at the last round, mean over environments and seeds, in 0..1.

        Args:
            method: the row's label.
            metric: such as "auroc" or "auroc of cat", of those in ``evaluate.metrics``; None: the one that selects.

        Raises:
            FedshiftError: no row has that label, or its runs no such metric.
        """
        row, known = self._row(method), [one.name for one in self.results.metrics]
        if metric is not None and metric not in known:
            raise UnknownNameError("metric", metric, known)
        return _mean(row.score("test", metric=metric))

    def worst(self, method: str) -> float:
        """A row's test score, by the metric that selects, at the last round on each seed's worst environment.

        It is the mean over seeds, in 0..1.

        Raises:
            FedshiftError: no row has that label.
        """
        return _mean(self._row(method).worst("test"))

    def measurements(self) -> list[Record]:
        """Every model's score on every environment, at the round that each selection rule picks.

        Each has the ``run`` (its folder's name), the row's label as ``method``, ``seed``, ``hold_out`` (or None); the
        ``rule``, whether it is an ``oracle`` that looks at test data, and the ``position`` (rounds done), ``stage`` and
        ``round`` it picks; the ``environment`` and its ``role`` (test or validation), whose ``model`` is scored on it
        (global, own, unseen), the mean over how many ``models``, the ``accuracy`` in 0..1, the ``loss`` in nats,
        over how many samples ``n``, and each metric by its name (None where it is undefined). An environment of several
        clients comes once for each.
        """
        return [
            {
                "run": run.path.name,
                "method": row.label,
                "seed": run.table["seed"],
                "hold_out": run.table["protocol"].get("hold_out"),
                "rule": name,
                "oracle": name in ORACLES,
                **{key: record[key] for key in ("position", "stage", "round")},
                **{name: value for name, value in scored.items() if name not in ("metrics", "undefined")},
                **scored.get("metrics", {}),
            }
            for row in self.results.rows()
            for run in row.runs
            for name, rule in RULES.items()
            for record in [rule(run.records)]
            for scored in record["environments"]
        ]

    def frame(self) -> pd.DataFrame:
        """The :meth:`measurements` as a pandas table, a row for each.

        Raises:
            FedshiftError: pandas is not installed.
        """
        return as_frame(self.measurements())

    def _row(self, label: str) -> Row:
        rows = {row.label: row for row in self.results.rows()}
        if label not in rows:
            raise FedshiftError(f"No row is called '{label}'; rows: {', '.join(rows)}.")
        return rows[label]

    def __str__(self) -> str:
        return as_text(self.results)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedshift.reporting.page import tables_html

        return tables_html(self.results)


def _mean(measured: MeanStd | None) -> float:
    if measured is None:
        raise FedshiftError("The row has no test environment on which the metric is defined.")
    return measured.mean
