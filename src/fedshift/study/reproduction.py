"""A table or curve of a paper: planned, carried out, and beside the paper's numbers.

Under each row of ours stands the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.errors import FedshiftError
from fedshift.reporting.live import display
from fedshift.reporting.results import MeanStd, flat
from fedshift.reporting.table import Table
from fedshift.reporting.units import clock, printable
from fedshift.runs.events import Progress
from fedshift.runs.lock import locked
from fedshift.runs.runner import run_path
from fedshift.spec import shown
from fedshift.study.execute import LACKING, carry_out, read_findings
from fedshift.study.papers import ExhibitRow, Printed, exhibit_of
from fedshift.study.quantities import CurvePanel, quantity
from fedshift.study.scenarios import AS_PRINTED, Scenario, scale_of
from fedshift.study.study_plan import Key, Lacking, StudyPlan
from fedshift.study.study_tables import StudyResults

OUT = "runs/reproduce"
NONE = "-"
SPREADS = 2  # standard deviations beyond which a paper's number is marked
NOT_SAID = frozenset({"name", "seed", "run", "evaluate"})  # of settings in which scales differ
IN_THE_PAPER = "  the paper"
MOST_POINTS = 12  # of a curve in its table; the other files have all
RUNS_FILE = "runs.json"  # in a table's folder: the folders of the runs of each of its cells
WAIT = 600.0  # seconds for another process that reads and writes the same table


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
    """The plan of what a user names, as for :func:`reproduce`.

    Raises:
        FedshiftError: a name is not known, the table is not reproduced, or a setting decides results.
    """
    exhibit, size, folder = exhibit_of(table), scale_of("papers", scale), Path(out or OUT)
    if exhibit.why:
        raise FedshiftError(f"{exhibit.title} of {exhibit.paper} is not reproduced: {exhibit.why}")
    for name, value in (settings or {}).items():
        if name == "run.out":
            raise FedshiftError(f"{name} = {shown(value)}: tables share their runs' folder; give --out instead.")
        if not name.startswith("run."):
            raise FedshiftError(
                f"{name} = {shown(value)}: a table's settings are what is reproduced, so only those of [run], "
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
        progress: callback for the progress; by default a live display.

    Raises:
        FedshiftError: a name is not known, nothing that the table needs is here, or runs cannot be carried out for a
            reason that is not their method's, such as a full disk; what is finished is kept.
    """
    plan = plan_table(table, scale, panels=panels, rows=rows, data=data, settings=settings, out=out)
    return reproduce_table(plan, progress)


def reproduce_table(plan: StudyPlan, progress: Progress | None = None) -> Reproduction:
    """Carry out a plan, and write the table of all that is there then."""
    with display(progress, sum(len(cell.experiments) for cell in plan.cells)) as callback:
        files.check_folder(plan.folder)
        if plan.available:
            files.make_folder(plan.folder)
            files.write(plan.folder / RUNS_FILE, json.dumps(run_folders(plan), indent=1))
        _, lacking, _ = carry_out(plan, callback)
    with locked(plan.folder, WAIT):  # another process may have finished more runs since these were read
        done = read_table(plan, lacking)
        done.write()
    return done


def read_table(plan: StudyPlan, lacking: Mapping[Key, Lacking]) -> Reproduction:
    """What the folders of a whole table hold, whoever carried them out."""
    return Reproduction(plan, read_findings(plan, plan.whole.cells, lacking))


def run_folders(plan: StudyPlan) -> list[list[str]]:
    """The folders of the runs of each cell of the whole table, below OUT."""
    out = plan.folder.parent
    return [[str(run_path(each).relative_to(out)) for each in cell.experiments] for cell in plan.whole.cells]


@dataclass(frozen=True)
class Beside:
    """A number of ours beside the paper's, both in the column's unit.

    Attributes:
        ours: mean and standard deviation over seeds; None if there is none yet.
        paper: the printed one; None if none is printed.
        compared: whether they are of the same thing.
    """

    ours: MeanStd | None
    paper: Printed | None
    compared: bool = True

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; None where one of them is lacking, or they are not compared."""
        if self.ours is None or self.paper is None or not self.compared:
            return None
        return self.ours.mean - self.paper.mean

    @property
    def outside(self) -> bool:
        """Whether the paper's number lies outside our mean ± 2 standard deviations; not of a single seed."""
        if self.difference is None or self.ours is None or self.ours.std is None:
            return False
        return abs(self.difference) > SPREADS * self.ours.std


@dataclass(frozen=True, repr=False)
class Reproduction(StudyResults):
    """A table or curve of a paper, as carried out here; prints as the table."""

    def tables(self) -> list[Table]:
        """A table for each scenario."""
        return [_table(self, scenario) for scenario in self.plan.known]

    def notes(self) -> list[str]:
        """What was carried out, how it differs from the paper, and what has no number."""
        plan, findings = self.plan, self.findings
        words = [
            plan.exhibit.what,
            f"Scale {plan.scale.name}: {plan.scale.about}. {_over(plan)}",
            f"{findings.count}; they took {clock(findings.count.seconds)} on this machine.",
            *plan.exhibit.says,
        ]
        if not any(row.published for row in plan.exhibit.rows):
            words.append("The paper draws this figure and prints no numbers of it, so there is none to compare with.")
        for scenario in plan.known:
            if scenario.open:
                words.append(f"{scenario.title}, open: {scenario.open}.")
            words += _changes(plan, scenario)
        for why in dict.fromkeys(row.why for row in plan.exhibit.rows if row.why):
            names = ", ".join(row.name for row in plan.exhibit.rows if row.why == why)
            words.append(f"{names}: not carried out here; {why}.")
        return [*words, *self.what_is_lacking()]

    def columns(self, scenario: Scenario) -> list[str]:
        """The columns of a scenario: headings, or points of a curve."""
        exhibit = self.plan.exhibit
        if not exhibit.along:
            return [*exhibit.quantities(scenario)]
        if not isinstance(exhibit.along, str):
            return [*exhibit.points(self.plan.scale.name)]
        names = {each.column for each in self.findings.numbers if each.scenario == scenario.name}
        return sorted(names, key=place)

    def beside(self, scenario: Scenario, row: ExhibitRow, column: str) -> Beside:
        """A cell beside the paper's."""
        ours = self.mean(scenario.name, row.name, column)
        return Beside(ours, self.plan.exhibit.number(scenario, row, column), self.plan.compared(scenario))

    def unit(self, scenario: Scenario, column: str) -> str:
        """The unit of a column, or of the points of a curve."""
        quantities = self.plan.exhibit.quantities(scenario)
        return quantity(quantities.get(column) or next(iter(quantities.values()))).unit

    @property
    def complete(self) -> bool:
        """Whether nothing is left to carry out."""
        return self.findings.count.complete

    def panel(self, scenario: Scenario) -> CurvePanel:
        """What is drawn of a scenario."""
        exhibit, columns = self.plan.exhibit, self.columns(scenario)
        places = {name: float(number) for number, name in enumerate(columns)}
        if isinstance(exhibit.along, str):
            places = {name: place(name) for name in columns}
        rows = [row.name for row in exhibit.carried_out]
        ours = {row: {name: self.mean(scenario.name, row, name) for name in columns} for row in rows}
        ((heading, _),) = exhibit.quantities(scenario).items()
        return CurvePanel(
            title=f"{printable(self.plan.title(scenario))}\nscale {self.plan.scale.name}",
            across=exhibit.across,
            up=f"{heading} ({self.unit(scenario, heading)})",
            lines={row: {places[name]: one for name, one in found.items() if one} for row, found in ours.items()},
            ticks={} if isinstance(exhibit.along, str) else {places[name]: name for name in columns},
        )

    def write(self) -> list[Path]:
        """Write Markdown, CSV, JSON, and of a curve the figure into the plan's folder, replacing earlier ones.

        Returns:
            The files.

        Raises:
            FedshiftError: one cannot be written.
        """
        if self.plan.exhibit.kind != "curve" or not self.findings.numbers:
            return self.write_files({})
        from fedshift.study.figures import draw_curve  # with matplotlib

        return self.write_files({"png": draw_curve([self.panel(scenario) for scenario in self.plan.known])})


def place(column: str) -> float:
    """Where a point lies along a curve: the number that its name ends with."""
    return float(column.rpartition("=")[2])


def differences_from_paper(plan: StudyPlan, scenario: Scenario) -> dict[str, list[str]]:
    """The settings in which a scale differs from the paper's, such as "train.rounds 2 (600)".

    Returns:
        For each of them the rows that it is of.
    """
    exhibit = plan.exhibit
    if plan.scale.name == AS_PRINTED or AS_PRINTED not in scenario.sizes:
        return {}
    ours, theirs = (
        replace(plan, scale=scale, data={}, settings={}) for scale in (plan.scale, scale_of("papers", AS_PRINTED))
    )
    found: dict[str, list[str]] = {}
    for row in (row for row in exhibit.carried_out if exhibit.asks_for(scenario, row, "")):
        here, paper = (_settings(each, scenario, row) for each in (ours, theirs))
        for name in sorted(here.keys() | paper.keys()):
            if here.get(name) != paper.get(name):
                words = f"{name} {here.get(name, NONE)} ({paper.get(name, NONE)})"
                found.setdefault(words, []).append(row.name)
    return found


def _settings(plan: StudyPlan, scenario: Scenario, row: ExhibitRow) -> dict[str, str]:
    """The settings of a row's runs by dotted name, as they are written, but for those of the points."""
    of_points = {name for point in plan.exhibit.points(plan.scale.name).values() for name in point}
    table = flat({key: value for key, value in plan.first_of(scenario, row).table().items() if key not in NOT_SAID})
    return {name: shown(value) for name, value in table.items() if name not in of_points}


def _table(done: Reproduction, scenario: Scenario) -> Table:
    exhibit = done.plan.exhibit
    columns = _few(done.columns(scenario)) if exhibit.along else done.columns(scenario)
    rows = []
    for row in exhibit.rows:
        cells = {column: done.beside(scenario, row, column) for column in columns}
        paper = [each.paper.text if each.paper else NONE for each in cells.values()]
        name = f"{row.name}, the paper"
        if row.method:
            rows.append([row.name, *(_ours(done, scenario, row, column, cells[column]) for column in columns)])
            same = scenario.has_its_data(done.plan.scale.name)
            name = IN_THE_PAPER if same else f"{IN_THE_PAPER}, {scenario.title}"
        if any(each.paper for each in cells.values()):
            rows.append([name, *paper])
    units = dict.fromkeys(quantity(text).unit for text in exhibit.quantities(scenario).values())
    title = f"{exhibit.title} of {exhibit.paper}: {done.plan.title(scenario)}, in {' and '.join(units)}"
    return Table(title, [exhibit.across, *columns], rows)


def _few(points: Sequence[str]) -> list[str]:
    """So many points that a table has room for, the last among them."""
    apart = -(-len(points) // MOST_POINTS)
    return [*points[::-1][::apart]][::-1] if points else []


def _ours(done: Reproduction, scenario: Scenario, row: ExhibitRow, column: str, cell: Beside) -> str:
    if cell.ours is None:
        keys = ((scenario.name, row.name, point) for point in ("", column))
        why = next((found for key in keys if (found := done.findings.lacking.get(key))), None)
        return LACKING[why.kind] if why else NONE
    number = cell.ours.text(decimals=1 if abs(cell.ours.mean) >= 1 else 3)
    if cell.difference is None:
        return number
    return f"{number} ({cell.difference:+.1f}{'*' if cell.outside else ''})"


def _over(plan: StudyPlan) -> str:
    """What a cell of the tables is."""
    seeds = ", ".join(map(str, plan.scale.seeds))
    mean = f"Mean ± standard deviation over seeds {seeds}" if len(plan.scale.seeds) > 1 else f"Seed {seeds}"
    if not plan.scale.compared:
        return f"{mean}."
    return (
        f"{mean}; in brackets the difference to the paper's number, with * where that lies outside our mean ± 2 "
        "standard deviations."
    )


def _changes(plan: StudyPlan, scenario: Scenario) -> list[str]:
    """The settings that differ from the paper's in words, together where they are of the same rows."""
    every = [row for row in plan.exhibit.carried_out if plan.exhibit.asks_for(scenario, row, "")]
    by_rows: dict[tuple[str, ...], list[str]] = {}
    for change, rows in differences_from_paper(plan, scenario).items():
        by_rows.setdefault(tuple(rows), []).append(change)
    found = []
    for names, changes in by_rows.items():
        methods = dict.fromkeys(row.method for row in every if row.name in names)
        whole = {row.name for row in every if row.method in methods} == {*names}
        of_methods = ", ".join(f"rows of {method}" for method in methods)
        where = "" if len(names) == len(every) else of_methods if whole else "; ".join(names)
        title = ", ".join(filter(None, [plan.title(scenario), where]))
        found.append(f"{title}, other than in the paper: {', '.join(changes)}.")
    return found
