"""The progress of every table and figure at every scale, and what they need that is not on this machine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import ClassVar

from pydantic import TypeAdapter

from fedshift import files
from fedshift.errors import DamagedError, UnknownNameError
from fedshift.reporting.table import Table, Tabled
from fedshift.runs.run import Run
from fedshift.study.costs import Cost, cost_of
from fedshift.study.papers import exhibit_of, exhibits
from fedshift.study.reproduction import plan_table
from fedshift.study.scenarios import scale_of, scales, scenarios
from fedshift.study.study_plan import Need, StudyPlan, paths_by_name
from fedshift.study.study_tables import RUNS_FILE, Count, naming_damage
from fedshift.written import clock

WORDS = 46  # letters of what a table shows, in the list of all
OPTION = re.compile(r"--data ([\w.-]+)=")  # in a need's words
ESTIMATED = (
    "Costs are estimated: rounds x clients of a round x local steps x the time of a step, measured on two CPU cores "
    "and rounded, of all runs of the table, one after the other, without evaluation. (GPU): it takes more than a day "
    "there, so a machine with a GPU is recommended."
)


@dataclass(frozen=True)
class State:
    """The progress of a table at a scale."""

    table: str
    scale: str
    count: Count = Count()  # how many runs are over; None before it has started
    damaged: str = ""  # what cannot be read, and the fix
    scenarios: int = 0  # how many it has at the scale
    needs: Mapping[str, Need] = field(default_factory=dict)  # by scenario, what is not on this machine
    why: str = ""  # the reason why it is not run at all
    command: str = ""  # runs it, once what it needs is there
    cost: Cost | None = None  # of all its runs, if requested and known

    def __str__(self) -> str:
        if self.why or self.damaged or not self.scenarios:
            return "drawing" if self.why else "damaged" if self.damaged else "-"
        if self.done:
            return "done"
        if self.count.finished:
            return f"{self.count.finished} of {self.count.runs}"
        names = [*dict.fromkeys(need.what for need in self.needs.values())]
        part = "" if len(self.needs) == self.scenarios else f" for {len(self.needs)} of {self.scenarios}"
        what = names[0] if len(names) == 1 else f"{len(names)}" if part else f"{len(names)} data sets"
        return f"needs {what}{part}" if names else "not run"

    @property
    def done(self) -> bool:
        return self.count.runs > 0 and self.count.complete


@dataclass(frozen=True, repr=False)
class States(Tabled):
    """The progress of the tables.

    Prints as a table, and where costs were requested, as a table of commands and costs.
    """

    WIDTH: ClassVar[int] = 100

    states: Sequence[State]

    def tables(self) -> list[Table]:
        by_table: dict[str, list[str]] = {}
        for each in self.states:
            by_table.setdefault(each.table, []).append(str(each))
        costs = [each for each in self.states if each.cost and not each.done]
        rows = [
            [name, exhibit_of(name).what if costs else shorten(exhibit_of(name).what, WORDS, placeholder="..."), *its]
            for name, its in by_table.items()
        ]
        scales = dict.fromkeys(each.scale for each in self.states)
        tables = [Table("Tables and figures of the papers", ["table", "what it shows", *scales], rows, words=1)]
        if costs:
            lines = [
                [each.command, f"{each.cost.runs:,}", f"{each.cost.steps:,}", str(each.cost)]
                for each in costs
                if each.cost
            ]
            title = "Left to run, once what is needed is there, and its estimated cost"
            tables.append(Table(title, ["command", "runs", "local steps", "on 2 CPU cores"], lines))
        return tables

    def notes(self) -> list[str]:
        needs: dict[str, dict[str, None]] = {}
        reasons: dict[str, dict[str, None]] = {}
        for each in self.states:
            for name, need in each.needs.items():
                needs.setdefault(need.why, {})[scenarios("papers")[name].title_at(each.scale)] = None
            if each.why:
                reasons.setdefault(each.why, {})[each.table] = None
        return [
            *(f"Damaged, {each.table} at {each.scale}: {each.damaged}" for each in self.states if each.damaged),
            *(
                f"{each.table} at {each.scale}: {each.count}; they took {clock(each.count.seconds)} on this machine."
                for each in self.states
                if each.count.runs
            ),
            *(f"Needed for {'; '.join(titles)}: {why}" for why, titles in needs.items()),
            *([ESTIMATED] if any(each.cost for each in self.states) else []),
            *(f"Not run, {', '.join(names)}: {why}." for why, names in reasons.items()),
        ]

    def json(self) -> str:
        found = [
            {**asdict(each), "needs": {name: need._asdict() for name, need in each.needs.items()}, "summary": str(each)}
            for each in self.states
        ]
        return json.dumps(found, indent=1)


def reproductions(
    tables: Sequence[str] | None = None,
    scale: str | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    out: str | Path | None = None,
    costs: bool = False,
) -> States:
    """The progress of the papers' tables and curves, and what they need that is not on this machine.

    Args:
        tables: their names, or papers' such as "fedcir"; by default all.
        scale: "smoke", "short" or "paper"; by default all.
        data: paths of data, as for :func:`~fedshift.study.reproduction.reproduce`.
        out: the folder; by default runs/reproduce.
        costs: estimate costs too, which takes some seconds for all tables.

    Raises:
        FedshiftError: a name is unknown, or no table uses the data.
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
    states = []
    for (name, size), plan in plans.items():
        state = _state(name, size, plan, given)
        if plan:
            command = command_of(state, {key: path for key, path in given.items() if plan.takes(key)}, out)
            state = replace(state, command=command, cost=cost_of(plan) if costs and not state.done else None)
        states.append(state)
    return States(states)


def command_of(state: State, data: Mapping[str, str], out: str | Path | None) -> str:
    """The command that runs a table once what it needs is there; PATH stands for unknown paths."""
    needed = {name: "PATH" for need in state.needs.values() for name in OPTION.findall(need.why)}
    options = [("--data", f"{name}={path}") for name, path in (needed | dict(data)).items()]
    options += [] if out is None else [("--out", str(out))]
    return shlex.join(["fedshift", "reproduce", state.table, "--scale", state.scale, *chain(*options)])


def _plan(table: str, scale: str, out: str | Path | None) -> StudyPlan | None:
    exhibit = exhibit_of(table)
    there = not exhibit.why and exhibit.scenarios_at(scale_of("papers", scale))
    return plan_table(table, scale, out=out) if there else None


def _state(table: str, scale: str, plan: StudyPlan | None, data: Mapping[str, str]) -> State:
    """The progress of a table at a scale; nothing is written."""
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
        return replace(state, damaged=f"'{file}' was changed since it was written.")
    except DamagedError as error:
        return replace(state, damaged=str(error))
