"""How far every table and figure is at every scale, and what it needs that is not on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import ClassVar

from pydantic import TypeAdapter

from fedshift import files
from fedshift.errors import DamagedError, FedshiftError, UnknownNameError
from fedshift.reporting.table import Table
from fedshift.reporting.tabled import Tabled
from fedshift.reporting.units import clock
from fedshift.reproduction.carry_out import RUNS_FILE, Count, said_of_damage
from fedshift.reproduction.exhibits import exhibit_of, exhibits
from fedshift.reproduction.panels import panels, scale_of, scales
from fedshift.reproduction.plan import OUT, Need, Plan
from fedshift.runs.folder import RunFolder

WORDS = 90  # columns of a table's name and of what it shows


@dataclass(frozen=True)
class State:
    """How far a table is at a scale.

    Attributes:
        table: its name.
        scale: the scale's.
        count: how many runs are over; of none before it has begun.
        running: whether a process is at work on one of them.
        damaged: what cannot be read of it, and how it is mended.
        panels: how many federations it has at the scale.
        needs: by panel, what of it is not on this machine.
        why: the reason why it is not carried out at all.
    """

    table: str
    scale: str
    count: Count = Count()
    running: bool = False
    damaged: str = ""
    panels: int = 0
    needs: Mapping[str, Need] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return "not reproduced"
        if not self.panels:
            return "-"
        if self.damaged:
            return "damaged"
        words = "not run"
        if self.count.runs:
            words = f"{'running, ' if self.running else ''}{self.count}"
            diverged = f", {self.count.diverged} diverged" if self.count.diverged else ""
            words = f"done, {clock(self.count.seconds)}{diverged}" if self.count.complete else words
        if not self.needs:
            return words
        first, *others = dict.fromkeys(need.what for need in self.needs.values())
        names = first if not others else f"{first}, {others[0]}" if len(others) == 1 else f"{first}, {len(others)} more"
        part = "" if len(self.needs) == self.panels else f" for {len(self.needs)} of {self.panels}"
        return f"needs {names}{part}" if words == "not run" else f"{words}; needs {names}{part}"


@dataclass(frozen=True, repr=False)
class States(Tabled):
    """How far the tables are; prints as a table."""

    WIDTH: ClassVar[int] = 200

    states: Sequence[State]

    def tables(self) -> list[Table]:
        """One, with a line for each table of the papers and a column for each scale."""
        by_table: dict[str, list[State]] = {}
        for each in self.states:
            by_table.setdefault(each.table, []).append(each)
        shown = list(dict.fromkeys(each.scale for each in self.states))
        rows = [
            [shorten(f"{name}: {exhibit_of(name).what}", WORDS, placeholder="..."), *_once(its)]
            for name, its in by_table.items()
        ]
        return [Table("Tables and figures of the papers", ["table", *shown], rows)]

    def notes(self) -> list[str]:
        """How to get what is needed, once each; and why some are not reproduced."""
        needs: dict[str, dict[str, None]] = {}
        reasons: dict[str, dict[str, None]] = {}
        for each in self.states:
            for panel, need in each.needs.items():
                needs.setdefault(need.why, {})[panels()[panel].title_at(each.scale)] = None
            if each.why:
                reasons.setdefault(each.why, {})[each.table] = None
        return [
            *(f"Damaged, {each.table} at {each.scale}: {each.damaged}" for each in self.states if each.damaged),
            *(f"Needed for {'; '.join(titles)}: {why}" for why, titles in needs.items()),
            *(f"Not reproduced, {', '.join(names)}: {why}." for why, names in reasons.items()),
        ]

    def json(self) -> str:
        """Everything as JSON, a list with an object for each table and scale."""
        found = [
            {**asdict(each), "needs": {panel: need._asdict() for panel, need in each.needs.items()}, "says": str(each)}
            for each in self.states
        ]
        return json.dumps(found, indent=1)


def states(
    tables: Sequence[str] | None = None,
    scale: str | None = None,
    out: str | Path = OUT,
    data: Mapping[str, str | Path] | None = None,
) -> States:
    """How far tables are.

    Args:
        tables: their names, or those of papers' methods; by default all.
        scale: a single one; by default all.
        out: the folder.
        data: files that a user gives, by the data set's name, or by NAME.SETTING.

    Raises:
        FedshiftError: a name is not known, or data are of no table.
    """
    asked = [*exhibits()] if tables is None else [name for each in tables for name in _of_paper(each) or [each]]
    names = [exhibit_of(name).name for name in asked]
    sizes = [*scales()] if scale is None else [scale_of(scale).name]
    plans = {(name, size): plan for name in names for size in sizes if (plan := _plan(name, size, out))}
    for given in data or {}:
        if not any(plan.takes(given) for plan in plans.values()):
            known = sorted({known for plan in plans.values() for known in plan.data_sets})
            raise UnknownNameError("data set", given.partition(".")[0], known)
    return States([_state(name, size, plans.get((name, size)), data or {}) for name in names for size in sizes])


def _of_paper(paper: str) -> list[str]:
    """The tables of a paper, by the name of its method; none of what is no such name."""
    return [name for name in exhibits() if name.partition("-")[0] == paper]


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
    state = State(
        table,
        scale,
        panels=len(plan.panels),
        needs={panel.name: need for panel in plan.panels if (need := plan.needs(panel))},
    )
    try:
        with said_of_damage():
            cells = _folders(plan)
            unfinished = [folder for folders in cells for folder in folders if folder.unfinished]
            return replace(state, count=Count.of(cells), running=any(folder.held for folder in unfinished))
    except DamagedError as error:
        return replace(state, damaged=str(error))


def _folders(plan: Plan) -> list[list[RunFolder]]:
    """The folders of the runs of each of a table's cells, as it last began.

    Raises:
        FedshiftError: what says so is damaged.
    """
    file = plan.folder / RUNS_FILE
    if not file.exists():
        return []
    try:
        cells = TypeAdapter(list[list[str]]).validate_json(files.read(file))
    except (OSError, ValueError) as error:
        raise FedshiftError(f"'{file}' is not what was written.") from error
    return [[RunFolder(plan.out / name) for name in names] for names in cells]


def _once(its: Sequence[State]) -> list[str]:
    """What a line says of each scale; why there is nothing of any is said once."""
    return [str(each) if not (each.why and number) else "" for number, each in enumerate(its)]
