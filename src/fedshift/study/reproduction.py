"""A table or figure of a paper: planned, run, and shown with the paper's numbers under ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedshift.errors import FedshiftError
from fedshift.reporting.results import MeanStd, flat
from fedshift.reporting.table import Table, marked
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.scheduling import run_path
from fedshift.runs.shard import Shard
from fedshift.study.execute import PlanOutcome
from fedshift.study.papers import ExhibitRow, exhibit_of
from fedshift.study.records import LACKING
from fedshift.study.scenarios import AS_PRINTED, Scenario, scale_of
from fedshift.study.study_plan import Cell, StudyPlan
from fedshift.study.study_tables import NONE, StudyResults
from fedshift.written import clock, printable, shown

if TYPE_CHECKING:
    from fedshift.reporting.analyses.analysed import Analysed
    from fedshift.reporting.charts import Chart
    from fedshift.reporting.curves import Panel

OUT = "runs/reproduce"
SPREADS = 2  # standard deviations beyond which a paper's number is marked
NOT_SAID = frozenset({"name", "seed", "run", "evaluate"})  # of settings in which scales differ
IN_THE_PAPER = "  the paper"
MOST_POINTS = 12  # of a curve in its table; the other files have all


def plan_table(
    table: str,
    scale: str = "smoke",
    *,
    panels: str | Sequence[str] | None = None,
    rows: str | Sequence[str] | None = None,
    data: Mapping[str, str | Path] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> StudyPlan:
    exhibit, size, folder = exhibit_of(table), scale_of("papers", scale), Path(out or OUT)
    if exhibit.why:
        raise FedshiftError(f"{exhibit.title} of {exhibit.paper} is not reproduced: {exhibit.why}")
    for name, value in (settings or {}).items():
        if name == "run.out":
            raise FedshiftError(f"{name} = {shown(value)}: tables share their runs' folder; give --out instead.")
        if not name.startswith("run."):
            raise FedshiftError(
                f"{name} = {shown(value)}: a table's settings are what is reproduced, so only settings of [run], "
                "such as run.threads=2, can be given; for others there is `fedshift compare`."
            )
    return StudyPlan.of(
        exhibit,
        size,
        folder=folder / f"{table}-{scale}",
        runs=folder / "runs",  # which tables share
        scenarios=panels,
        rows=rows,
        data=data,
        settings=settings,
    )


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
    shard: str | None = None,
) -> Reproduction:
    """Run a table or figure of one of the five papers, and compare it with the paper.

    Finished work is not repeated: called again, it continues. Tables and figures are written into a folder of the
    exhibit and the scale.

    Args:
        table: its name, such as "fedsr-table1" or "fedcir-fig10".
        scale: "smoke", "short" or "paper".
        panels: the federations to run now, a name or several; by default all whose data are here.
        rows: the rows to run now, a name or several; by default all.
        data: paths of data, by the data set's name (``{"pacs": "pacs.parquet"}``), or by another setting of it
            (``{"digits.usps": "usps.parquet"}``).
        settings: dotted settings of [run] that differ, such as ``{"run.threads": 2}``.
        out: the folder; by default runs/reproduce.
        progress: callback for the progress; by default a live display.
        shard: "3/16" shares the runs with 15 other processes in the same folder, on any machines.

    Raises:
        FedshiftError: a name is unknown, nothing that the table needs is here, or runs cannot run for a reason other
            than their method, such as a full disk; finished work is kept.
    """
    plan = plan_table(table, scale, panels=panels, rows=rows, data=data, settings=settings, out=out)
    return Reproduction.run(plan, progress, Shard.of(shard))


@dataclass(frozen=True, repr=False)
class Reproduction(StudyResults):
    """A table or figure of a paper, as run here; prints as its tables.

    Attributes:
        analysed: of an exhibit with an analysis, its measurements by scenario.
        not_analysed: by scenario why it could not measure.
    """

    analysed: Mapping[str, Analysed] = field(default_factory=dict)
    not_analysed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, plan: StudyPlan, cells: Sequence[Cell], done: PlanOutcome) -> Self:
        found = super().read(plan, cells, done)
        analysed: dict[str, Analysed] = {}
        failed: dict[str, str] = {}
        for scenario in plan.known if plan.exhibit.analysis else ():
            try:
                if its := _analysed(plan, [cell for cell in cells if cell.key[0] == scenario.name]):
                    analysed[scenario.name] = its
            except FedshiftError as error:
                failed[scenario.name] = str(error)
        return replace(found, analysed=analysed, not_analysed=failed)

    def tables(self) -> list[Table]:
        if not self.plan.exhibit.analysis:
            return [self._table(scenario) for scenario in self.plan.known if self.columns(scenario)]
        return [
            replace(table, title=f"{self._title(scenario)}. {table.title}")
            for scenario in self.plan.known
            if scenario.name in self.analysed
            for table in self.analysed[scenario.name].tables()
        ]

    def _title(self, scenario: Scenario) -> str:
        return f"{self.plan.exhibit.title} of {self.plan.exhibit.paper}: {self.plan.title(scenario)}"

    def _table(self, scenario: Scenario) -> Table:
        exhibit, rows = self.plan.exhibit, []
        columns = self.columns(scenario)
        if exhibit.along:  # a table has room for some points, the last among them
            columns = columns[::-1][:: -(-len(columns) // MOST_POINTS) or 1][::-1]
        for row in exhibit.rows:
            paper = [exhibit.number(scenario, row, column) for column in columns]
            name = f"{row.name}, the paper"
            if row.method:
                rows.append([row.name, *(self._cell(scenario, row, column) for column in columns)])
                same = scenario.has_its_data(self.plan.scale.name)
                name = IN_THE_PAPER if same else f"{IN_THE_PAPER}, {scenario.title}"
            if any(paper):
                rows.append([name, *(each.text if each else NONE for each in paper)])
        units = dict.fromkeys(exhibit.quantity(scenario, name).unit for name in exhibit.quantities(scenario))
        title = f"{self._title(scenario)}, in {' and '.join(units)}"
        return Table(title, [exhibit.across, *columns], rows)

    def _cell(self, scenario: Scenario, row: ExhibitRow, column: str) -> str:
        """Our number, with the difference to the paper's where they are comparable."""
        ours, paper = (
            self.mean(scenario.name, row.name, column),
            self.plan.exhibit.number(scenario, row, column),
        )
        if ours is None:
            keys = ((scenario.name, row.name, point) for point in ("", column))
            why = next((found for key in keys if (found := self.lacking.get(key))), None)
            return LACKING[why.kind] if why else NONE
        number = ours.text(decimals=1 if abs(ours.mean) >= 1 else 3)
        return number if paper is None or not self.plan.compared(scenario) else f"{number} {minus(ours, paper.mean)}"

    def columns(self, scenario: Scenario) -> list[str]:
        """The columns of a scenario: headings, or points of a curve."""
        exhibit = self.plan.exhibit
        if not exhibit.along:
            return [*exhibit.quantities(scenario)]
        if not isinstance(exhibit.along, str):
            return [*exhibit.points(self.plan.scale.name)]
        return sorted({column for name, _, column in self.numbers if name == scenario.name}, key=place)

    def notes(self) -> list[str]:
        plan = self.plan
        seeds = ", ".join(map(str, plan.scale.seeds))
        over = f"Mean ± standard deviation over seeds {seeds}" if len(plan.scale.seeds) > 1 else f"Seed {seeds}"
        if plan.scale.compared and not plan.exhibit.analysis:
            over += (
                "; in brackets the difference to the paper's number, with * where that lies outside our mean ± 2 "
                "standard deviations"
            )
        words = [
            plan.exhibit.what,
            f"Scale {plan.scale.name}: {plan.scale.about}. {over}.",
            f"{self.count}; they took {clock(self.count.seconds)} on this machine.",
            *plan.exhibit.statement,
        ]
        if not any(row.published for row in plan.exhibit.rows):
            words.append("The paper draws this figure without printing its numbers; there is nothing to compare with.")
        for scenario in plan.known:
            if scenario.open:
                words.append(f"{scenario.title}, open: {scenario.open}.")
            for rows, changes in differences_from_paper(plan, scenario).items():
                title = ", ".join(filter(None, [plan.title(scenario), rows]))
                words.append(f"{title}, other than in the paper: {', '.join(changes)}.")
        for why in dict.fromkeys(row.why for row in plan.exhibit.rows if row.why):
            names = ", ".join(row.name for row in plan.exhibit.rows if row.why == why)
            words.append(f"{names}: not run here; {why}.")
        for its in self.analysed.values():
            words += its.notes()
        for name, why in self.not_analysed.items():
            words.append(f"{name} could not be analysed: {why} The same command tries again.")
        return [*words, *self.lacking_notes()]

    def measurements(self) -> list[dict[str, Any]]:
        if not self.plan.exhibit.analysis:
            return super().measurements()
        return [{"scenario": name} | row for name, its in self.analysed.items() for row in its.measurements()]

    @cached_property
    def _charts(self) -> dict[str, Chart]:
        several = len(self.plan.known) > 1
        charts = [(name, chart) for name, its in self.analysed.items() for chart in its.charts()]
        return {f"{name}-{chart.name}" if several else chart.name: chart for name, chart in charts}

    def table(self) -> str:
        """The figures, which lie next to it once it is written, tables and notes, as Markdown."""
        pictures = {f"{name}.png": chart.alt for name, chart in self._charts.items()}
        if self._is_drawn:
            pictures["png"] = self.plan.exhibit.what
        of = self.plan.exhibit.name
        return "".join(f"![{marked(alt)}]({of}.{file})\n\n" for file, alt in pictures.items()) + super().table()

    def panels(self, scenario: Scenario) -> list[Panel]:
        """The plots of a scenario; points such as "tau = 1" and "weight = 1" separately."""
        groups: dict[str, list[str]] = {}
        for name in self.columns(scenario):
            groups.setdefault(name.rpartition(" = ")[0], []).append(name)
        return [self._panel(scenario, across or self.plan.exhibit.across, names) for across, names in groups.items()]

    def _panel(self, scenario: Scenario, across: str, columns: Sequence[str]) -> Panel:
        from fedshift.reporting.curves import Line, Panel  # with matplotlib

        exhibit = self.plan.exhibit
        numbered = isinstance(exhibit.along, str)
        places = {name: place(name) if numbered else float(number) for number, name in enumerate(columns)}
        lines = []
        for row in exhibit.reproduced:
            ours = {places[name]: self.mean(scenario.name, row.name, name) for name in columns}
            lines.append(Line(row.name, {where: found for where, found in ours.items() if found}))
        (heading,) = exhibit.quantities(scenario)
        return Panel(
            title=f"{printable(self.plan.title(scenario))}\nscale {self.plan.scale.name}",
            across=across,
            up=f"{heading} ({exhibit.quantity(scenario, heading).unit})",
            lines=lines,
            ticks={} if numbered else {where: name.rpartition(" = ")[2] for name, where in places.items()},
        )

    @property
    def _is_drawn(self) -> bool:
        return self.plan.exhibit.kind == "curve" and bool(self.numbers)

    def more_files(self) -> dict[str, str | bytes]:
        found: dict[str, str | bytes] = {
            f"{name}.{kind}": getattr(chart, kind)()
            for name, chart in self._charts.items()
            for kind in ("svg", "png", "csv")
        }
        if self._is_drawn:
            from fedshift.study.figures import draw_curve  # with matplotlib

            panels = [panel for scenario in self.plan.known for panel in self.panels(scenario)]
            found["png"] = draw_curve([panel for panel in panels if any(line.points for line in panel.lines)])
        return found


def _analysed(plan: StudyPlan, cells: Sequence[Cell]) -> Analysed | None:
    """The exhibit's analysis of the finished runs of cells; None if no run is finished."""
    from fedshift.reporting.analyses import ANALYSES  # with matplotlib
    from fedshift.reporting.analyses.analysed import analyse_rows

    found = {
        ", ".join(filter(None, cell.key[1:])): [
            run for each in cell.experiments if (run := Run(run_path(each))).finished
        ]
        for cell in cells
    }
    rows = {label: runs for label, runs in found.items() if runs}
    return analyse_rows(rows.items(), ANALYSES.build(plan.exhibit.analysis)) if rows else None


def minus(ours: MeanStd, paper: float) -> str:
    """Our mean minus the paper's, with * where that lies outside our mean ± 2 deviations; not of a single seed."""
    difference = ours.mean - paper
    outside = ours.std is not None and abs(difference) > SPREADS * ours.std
    return f"({difference:+.1f}{'*' if outside else ''})"


def place(column: str) -> float:
    """A point's place along a curve: the number at the end of its name."""
    return float(column.rpartition("=")[2])


def differences_from_paper(plan: StudyPlan, scenario: Scenario) -> dict[str, list[str]]:
    """The settings in which a scale differs from the paper's, such as "train.rounds 2 (600)".

    Keys are "" for the settings of all rows, and for example "rows of fraug" for some methods.
    """
    if plan.scale.name == AS_PRINTED or AS_PRINTED not in scenario.sizes:
        return {}
    paper = replace(plan, scale=scale_of("papers", AS_PRINTED), data={}, settings={})
    ours = replace(plan, data={}, settings={})
    rows = [row for row in plan.exhibit.reproduced if plan.exhibit.includes_cell(scenario, row, "")]
    methods = dict.fromkeys(row.method for row in rows)
    changes: dict[str, dict[str, None]] = {}
    for row in rows:
        here, there = (_settings(each, scenario, row) for each in (ours, paper))
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                words = f"{name} {here.get(name, NONE)} ({there.get(name, NONE)})"
                changes.setdefault(words, {})[row.method] = None
    found: dict[str, list[str]] = {}
    for words, its in changes.items():
        whose = "" if len(its) == len(methods) else ", ".join(f"rows of {method}" for method in its)
        found.setdefault(whose, []).append(words)
    return found


def _settings(plan: StudyPlan, scenario: Scenario, row: ExhibitRow) -> dict[str, str]:
    of_points = {name for point in plan.exhibit.points(plan.scale.name).values() for name in point}
    table = flat({key: value for key, value in plan.first_of(scenario, row).table().items() if key not in NOT_SAID})
    return {name: shown(value) for name, value in table.items() if name not in of_points}
