"""How far every table and figure is at every scale, and what it needs that is not on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedshift.errors import UnknownNameError
from fedshift.reporting.table import Table, text
from fedshift.reporting.units import clock
from fedshift.reproduction.carry_out import RUNS_FILE
from fedshift.reproduction.exhibits import exhibit_of, exhibits
from fedshift.reproduction.panels import panels, scale_of, scales
from fedshift.reproduction.plan import OUT, Need, Plan
from fedshift.runs.cells import divergence
from fedshift.runs.folder import RunFolder

WIDTH = 160


@dataclass(frozen=True)
class State:
    """How far a table is at a scale.

    Attributes:
        table: its name.
        scale: the scale's.
        runs: how many runs it has; 0 before it has begun.
        finished: how many of them are over.
        running: whether a process is at work on one of them.
        seconds: what the finished ones took.
        panels: how many federations it has at the scale.
        needs: by panel, what of it is not on this machine.
        why: the reason why it is not carried out at all.
    """

    table: str
    scale: str
    runs: int = 0
    finished: int = 0
    running: bool = False
    seconds: float = 0.0
    panels: int = 0
    needs: Mapping[str, Need] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return "not reproduced"
        if not self.panels:
            return "-"
        words = "not run"
        if self.runs:
            words = f"{'running, ' if self.running else ''}{self.finished} of {self.runs} runs"
            words = f"done, {clock(self.seconds)}" if self.finished == self.runs else words
        if not self.needs:
            return words
        names = ", ".join(dict.fromkeys(need.what for need in self.needs.values()))
        part = "" if len(self.needs) == self.panels else f" for {len(self.needs)} of {self.panels}"
        return f"needs {names}{part}" if words == "not run" else f"{words}; needs {names}{part}"


@dataclass(frozen=True, repr=False)
class States:
    """How far the tables are; prints as a table."""

    states: Sequence[State]

    def table(self) -> Table:
        """A line for each table, with a column for each scale."""
        by_table: dict[str, list[State]] = {}
        for each in self.states:
            by_table.setdefault(each.table, []).append(each)
        shown = list(dict.fromkeys(each.scale for each in self.states))
        rows = [[f"{name}: {exhibit_of(name).what}", *map(str, its)] for name, its in by_table.items()]
        return Table("Tables and figures of the papers", ["table", *shown], rows)

    def notes(self) -> list[str]:
        """How to get what is needed, once each; and why some are not reproduced."""
        needs: dict[str, dict[str, None]] = {}
        reasons: dict[str, dict[str, None]] = {}
        for each in self.states:
            for panel, need in each.needs.items():
                needs.setdefault(need.why, {})[panels()[panel].title] = None
            if each.why:
                reasons.setdefault(each.why, {})[each.table] = None
        return [
            *(f"Needed for {'; '.join(titles)}: {why}" for why, titles in needs.items()),
            *(f"Not reproduced, {', '.join(names)}: {why}." for why, names in reasons.items()),
        ]

    def __str__(self) -> str:
        return text([self.table()], self.notes(), WIDTH)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedshift.reporting.page import render  # with matplotlib

        return render("tables.html.jinja", tables=[self.table()], notes=self.notes())


def states(
    tables: Sequence[str] | None = None,
    scale: str | None = None,
    out: str | Path = OUT,
    data: Mapping[str, str | Path] | None = None,
) -> States:
    """How far tables are.

    Args:
        tables: their names; by default all.
        scale: a single one; by default all.
        out: the folder.
        data: files that a user gives, by the data set's name, or by NAME.SETTING.

    Raises:
        FedshiftError: a name is not known, or data are of no table.
    """
    names = [exhibit_of(name).name for name in (exhibits() if tables is None else tables)]
    sizes = [*scales()] if scale is None else [scale_of(scale).name]
    plans = {(name, size): plan for name in names for size in sizes if (plan := _plan(name, size, out))}
    for given in data or {}:
        if not any(plan.takes(given) for plan in plans.values()):
            known = sorted({known for plan in plans.values() for known in plan.data_sets})
            raise UnknownNameError("data set", given.partition(".")[0], known)
    return States([_state(name, size, plans.get((name, size)), data or {}) for name in names for size in sizes])


def _plan(table: str, scale: str, out: str | Path) -> Plan | None:
    """The plan of a table, if the scale has any of it."""
    exhibit = exhibit_of(table)
    there = not exhibit.why and exhibit.panels_of(scale_of(scale))
    return Plan.of(table, scale, out=out) if there else None


def _state(table: str, scale: str, plan: Plan | None, data: Mapping[str, str | Path]) -> State:
    """How far a table is at a scale; nothing is written."""
    if plan is None:
        return State(table, scale, why=exhibit_of(table).why)
    plan = replace(plan, data={name: str(path) for name, path in data.items() if plan.takes(name)})
    folders = _folders(plan)
    over = [folder for folder in folders if folder.finished or divergence(folder)]
    times = [folder.times() for folder in over if folder.finished]
    return State(
        table,
        scale,
        runs=len(folders),
        finished=len(over),
        running=any(folder.held for folder in folders if folder.unfinished),
        seconds=sum(each.training + each.evaluation for each in times),
        panels=len(plan.panels),
        needs={panel.name: need for panel in plan.panels if (need := plan.needs(panel))},
    )


def _folders(plan: Plan) -> list[RunFolder]:
    """The folders of a table's runs, as it last began."""
    try:
        names: list[str] = json.loads((plan.folder / RUNS_FILE).read_bytes())
    except (OSError, ValueError):
        return []
    return [RunFolder(plan.out / name) for name in names]
