"""What is published: the benchmark, and the tables and curves of the five papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.api.display import display
from fedshift.runs.progress import Progress

if TYPE_CHECKING:
    from fedshift.study.benchmark import Benchmark
    from fedshift.study.reproduction import Reproduction
    from fedshift.study.states import States


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
    from fedshift.study.benchmark import carry_out_benchmark
    from fedshift.study.benchmark_plan import OUT, BenchmarkPlan

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
    from fedshift.study.reproduce import OUT, TablePlan
    from fedshift.study.reproduction import reproduce_table

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
    from fedshift.study.reproduce import OUT
    from fedshift.study.states import states

    return states(tables, scale, out or OUT, data)
