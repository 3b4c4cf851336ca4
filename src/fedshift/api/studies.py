"""Studies: a search of settings, the benchmark, and the tables and curves of the five papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedshift.api.display import display
from fedshift.api.experiments import grid, sources
from fedshift.api.options import DEFAULT, Options, Source
from fedshift.errors import FedshiftError
from fedshift.runs.progress import Progress
from fedshift.settings.grid import SEARCH, read

if TYPE_CHECKING:
    from fedshift.study.benchmark_results import Benchmark
    from fedshift.study.reproduction import Reproduction
    from fedshift.study.search import Sampler
    from fedshift.study.search_results import Tuning
    from fedshift.study.states import States
    from fedshift.study.tune import Budget


def benchmark(
    scale: str = "smoke",
    methods: Sequence[str] | None = None,
    federations: Sequence[str] | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    plugins: Sequence[str | Path] = (),
    out: str | Path | None = None,
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
        out: the folder; by default runs/benchmark.
        progress: hears of the progress; by default a live display.

    Raises:
        FedshiftError: a name is not known, no column has its data, or runs cannot be carried out for a reason that is
            not their method's, such as a full disk; what is finished is kept, and no table is written.
    """
    from fedshift.study.benchmark_plan import OUT, BenchmarkPlan
    from fedshift.study.benchmark_results import carry_out_benchmark

    plan = BenchmarkPlan.of(scale, methods, federations, out or OUT, data, plugins)
    with display(progress, plan.most_runs) as shown:
        done = carry_out_benchmark(plan, shown)
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
    out: str | Path | None = None,
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
        out: the folder; by default runs/reproduce.
        progress: hears of the progress; by default a live display.

    Raises:
        FedshiftError: a name is not known, nothing that the table needs is here, or runs cannot be carried out for a
            reason that is not their method's, such as a full disk; what is finished is kept.
    """
    from fedshift.study.reproduction import reproduce_table
    from fedshift.study.table_plan import OUT, TablePlan

    plan = TablePlan.of(table, scale, panels, rows, out or OUT, data, settings)
    with display(progress, sum(len(cell.experiments) for cell in plan.cells)) as shown:
        return reproduce_table(plan, shown)


def reproductions(
    tables: Sequence[str] | None = None,
    scale: str | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    out: str | Path | None = None,
) -> States:
    """How far the tables and curves of the papers are, and what they need that is not on this machine.

    Args:
        tables: their names, or papers' such as "fedcir"; by default all.
        scale: "smoke", "short" or "paper"; by default all.
        data: paths of data, as for :func:`reproduce`.
        out: the folder; by default runs/reproduce.

    Raises:
        FedshiftError: a name is not known.
    """
    from fedshift.study.states import states
    from fedshift.study.table_plan import OUT

    return states(tables, scale, out or OUT, data)


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

    settings = settings or {}
    if search is not None and not isinstance(search, Mapping):
        raise FedshiftError(f'search = {search!r}: give ranges by setting, as in {{"train.lr": "0.001..0.1"}}.')
    for key in search or {}:
        if key in settings:
            raise FedshiftError(f"{key} is searched and given a value; give it once.")
    ranges: dict[str, Any] = {}
    for item in sources(source):
        document = item if isinstance(item, Mapping) else read(item) if isinstance(item, str) else {}
        table = document.get(SEARCH, {})
        if not isinstance(table, Mapping):
            raise FedshiftError(f'search = {table!r} is a value where a table belongs; write [search] "train.lr" = ...')
        ranges |= flat_ranges(table)
    asked = dict(search or {})
    return Budget(trials, sampler, parallel, ranges | asked, frozenset(settings), frozenset(asked))
