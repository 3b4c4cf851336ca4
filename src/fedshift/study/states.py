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
from fedshift.errors import DamagedError, UnknownNameError
from fedshift.reporting.table import Table, Tabled
from fedshift.runs.run import Run
from fedshift.study.papers import exhibit_of, exhibits
from fedshift.study.reproduction import plan_table
from fedshift.study.scenarios import scale_of, scales, scenarios
from fedshift.study.study_plan import Need, StudyPlan, paths_by_name
from fedshift.study.study_tables import RUNS_FILE, Count, naming_damage
from fedshift.written import clock

WORDS = 90  # columns of a table's name and of what it shows


@dataclass(frozen=True)
class State:
    """How far a table is at a scale.

    Attributes:
        table: its name.
        scale: the scale's.
        count: how many runs are over; of none before it has begun.
        damaged: what cannot be read of it, and how it is mended.
        scenarios: how many it has at the scale.
        needs: by scenario, what of it is not on this machine.
        why: the reason why it is not carried out at all.
    """

    table: str
    scale: str
    count: Count = Count()
    damaged: str = ""
    scenarios: int = 0
    needs: Mapping[str, Need] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        if self.why or self.damaged or not self.scenarios:
            return "not reproduced" if self.why else "damaged" if self.damaged else "-"
        words = str(self.count) if self.count.runs else "" if self.needs else "not run"
        if self.count.runs and self.count.complete:
            diverged = f", {self.count.diverged} diverged" if self.count.diverged else ""
            words = f"done, {clock(self.count.seconds)}{diverged}"
        names = shorten(
            ", ".join(dict.fromkeys(need.what for need in self.needs.values())), WORDS // 2, placeholder=" ..."
        )
        part = "" if len(self.needs) == self.scenarios else f" for {len(self.needs)} of {self.scenarios}"
        return "; ".join(filter(None, (words, f"needs {names}{part}" if self.needs else "")))


@dataclass(frozen=True, repr=False)
class States(Tabled):
    """How far the tables are; prints as a table."""

    WIDTH: ClassVar[int] = 200

    states: Sequence[State]

    def tables(self) -> list[Table]:
        """One, with a line for each table of the papers and a column for each scale."""
        by_table: dict[str, list[str]] = {}
        for each in self.states:
            by_table.setdefault(each.table, []).append(str(each))
        rows = [
            [shorten(f"{name}: {exhibit_of(name).what}", WORDS, placeholder="..."), *its]
            for name, its in by_table.items()
        ]
        scales = dict.fromkeys(each.scale for each in self.states)
        return [Table("Tables and figures of the papers", ["table", *scales], rows)]

    def notes(self) -> list[str]:
        """How to get what is needed, once each; and why some are not reproduced."""
        needs: dict[str, dict[str, None]] = {}
        reasons: dict[str, dict[str, None]] = {}
        for each in self.states:
            for name, need in each.needs.items():
                needs.setdefault(need.why, {})[scenarios("papers")[name].title_at(each.scale)] = None
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
            {**asdict(each), "needs": {name: need._asdict() for name, need in each.needs.items()}, "says": str(each)}
            for each in self.states
        ]
        return json.dumps(found, indent=1)


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
        data: paths of data, as for :func:`~fedshift.study.reproduction.reproduce`.
        out: the folder; by default runs/reproduce.

    Raises:
        FedshiftError: a name is not known, or data are of no table.
    """
    names = [name for name in exhibits() if tables is None or {name, name.partition("-")[0]} & {*tables}]
    for each in tables or ():
        if not any(each in (name, name.partition("-")[0]) for name in names):
            exhibit_of(each)  # which names those that are there
    sizes = [*scales("papers")] if scale is None else [scale_of("papers", scale).name]
    plans = {(name, size): _plan(name, size, out) for name in names for size in sizes}
    known = sorted({name for plan in plans.values() if plan for name in plan.data_sets})
    given = paths_by_name(data)
    for name in given:
        if name.partition(".")[0] not in known:
            raise UnknownNameError("data set", name.partition(".")[0], known)
    return States([_state(name, size, plan, given) for (name, size), plan in plans.items()])


def _plan(table: str, scale: str, out: str | Path | None) -> StudyPlan | None:
    """The plan of a table, if the scale has any of it."""
    exhibit = exhibit_of(table)
    there = not exhibit.why and exhibit.scenarios_at(scale_of("papers", scale))
    return plan_table(table, scale, out=out) if there else None


def _state(table: str, scale: str, plan: StudyPlan | None, data: Mapping[str, str]) -> State:
    """How far a table is at a scale; nothing is written."""
    if plan is None:
        return State(table, scale, why=exhibit_of(table).why)
    plan = replace(plan, data={name: path for name, path in data.items() if plan.takes(name)})
    needs = {each.name: need for each in plan.scenarios if (need := plan.need(each, methods=True))}
    state = State(table, scale, scenarios=len(plan.scenarios), needs=needs)
    file, cells = plan.folder / RUNS_FILE, []
    try:
        with naming_damage():
            if file.exists():
                cells = TypeAdapter(list[list[str]]).validate_json(files.read(file))
            return replace(state, count=Count.of([Run(plan.folder.parent / name) for name in names] for names in cells))
    except (OSError, ValueError):
        return replace(state, damaged=f"'{file}' is not what was written.")
    except DamagedError as error:
        return replace(state, damaged=str(error))
