"""A plan of cells, each the runs of a row on a federation, and what of it this machine lacks.

The cells of a comparison are its rows. A :class:`StudyPlan` creates the cells of a paper's table, and of the benchmark,
which are tuned if its scale has trials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.reporting.results import described, labels
from fedshift.runs.dry_run import Estimate
from fedshift.spec import Spec
from fedshift.study.grid import expand, override
from fedshift.study.papers import Exhibit, ExhibitRow
from fedshift.study.records import Key, Records
from fedshift.study.scenarios import Scale, Scenario, choose
from fedshift.study.search import Budget
from fedshift.written import clock, shown


@dataclass(frozen=True)
class Cell:
    """The runs of a row: a run for each seed and held-out domain."""

    key: Key  # the scenario's name, the row's and, of a curve along settings, the point
    label: str  # its name in messages
    # returns the runs with some seeds, or raises the reason why it cannot run
    make: Callable[[Collection[int]], list[Experiment]]
    seeds: Collection[int]
    budget: Budget | None = None  # for tuning its settings first, if they are tuned
    tuning_seeds: Collection[int] = ()  # of each trial

    @cached_property
    def experiments(self) -> list[Experiment]:
        return self.make(self.seeds)


def of_seeds(experiments: Sequence[Experiment]) -> Callable[[Collection[int]], list[Experiment]]:
    """A cell's function ``make`` for existing runs."""
    return lambda seeds: [each for each in experiments if each.seed in seeds]


@dataclass(frozen=True)
class Plan:
    """The cells of a comparison, a table or the benchmark, scenario by scenario.

    ``seed_by_seed``: the seeds of a cell run in sequence, and the rest is skipped once a seed has diverged; if not, all
    runs run at once, so that equal ones advance together.
    """

    cells: Sequence[Cell]
    seed_by_seed: bool = False

    @classmethod
    def of(cls, experiments: Sequence[Experiment]) -> Plan:
        """A comparison, whose rows differ in more than seed and held-out domain, and are named by that."""
        groups: dict[str, list[Experiment]] = {}
        for each in experiments:
            groups.setdefault(each.series, []).append(each)
        called = labels({series: described(its[0].table(), its[0].contents) for series, its in groups.items()})
        return cls(
            [
                Cell(("", called[series], ""), called[series], of_seeds(its), {each.seed: None for each in its}.keys())
                for series, its in groups.items()
            ]
        )


class Need(NamedTuple):
    """A data set, network or method (``what``) that is not on this machine.

    ``why``: what it lacks, and how to get it.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Forecast:
    """The cost of runs that differ only in their seed and held-out domain.

    Attributes:
        label: distinguishes them from others.
        runs: how many they are.
        cost: of each run; None if they cannot run, or none is left.
        problem: why they cannot run.
    """

    label: str
    runs: int
    cost: Estimate | None
    problem: str = ""

    def __repr__(self) -> str:
        if self.cost is None:
            return f"Forecast({self.label!r}, runs: {self.runs}, problem: {self.problem})"
        about = "" if self.cost.seconds is None else f", about {clock(self.cost.seconds)}"
        each = f"each {self.cost.rounds} rounds, {self.cost.steps} steps{about}"
        return f"Forecast({self.label!r}, runs: {self.runs}, {each})"


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A requested study."""

    exhibit: Exhibit  # the table or curve that it fills
    scale: Scale
    scenarios: tuple[Scenario, ...]
    rows: tuple[ExhibitRow, ...]
    folder: Path  # where its tables lie
    runs: Path  # where its runs lie
    # files that a user gives, by the data set's name, or by NAME.SETTING
    data: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted settings that a user gives
    records: Records = Records()  # cells that were run elsewhere and are not run again

    @classmethod
    def of(
        cls,
        exhibit: Exhibit,
        scale: Scale,
        *,
        folder: Path,
        runs: Path,
        scenarios: str | Sequence[str] | None = None,
        rows: str | Sequence[str] | None = None,
        data: Mapping[str, str | Path] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """The plan of what a user names; None stands for all scenarios, or rows."""
        there = {scenario.name: scenario for scenario in exhibit.scenarios_at(scale)}
        another = f"is not of the scale {scale.name}: give another --scale."
        if not there:
            raise FedshiftError(f"{exhibit.name} {another}")
        elsewhere = {each.name: f"it {another}" for each in exhibit.scenarios}
        refused = {row.name: f"it is not run here: {row.why}." for row in exhibit.rows if row.why}
        plan = cls(
            exhibit=exhibit,
            scale=scale,
            scenarios=tuple(choose(exhibit.panel, there, scenarios, elsewhere)),
            rows=tuple(choose("row", {row.name: row for row in exhibit.reproduced}, rows, refused)),
            folder=folder,
            runs=runs,
            data=paths_by_name(data),
            settings=dict(settings or {}),
        )
        for name in plan.data:
            if not plan.takes(name):
                hint = f"The scale '{scale.name}' has {', '.join(plan.data_sets)}."
                raise UnknownNameError("data set", name.partition(".")[0], plan.data_sets, hint)
        return plan

    @property
    def known(self) -> Sequence[Scenario]:
        return self.exhibit.scenarios_at(self.scale)

    @property
    def whole(self) -> StudyPlan:
        return replace(self, scenarios=tuple(self.known), rows=tuple(self.exhibit.reproduced))

    def title(self, scenario: Scenario) -> str:
        return scenario.title_at(self.scale.name)

    def compared(self, scenario: Scenario) -> bool:
        return self.scale.compared and scenario.has_its_data(self.scale.name)

    # Experiments -------------------------------------------------------------------------------------

    def cells_of(self, scenario: Scenario) -> Iterator[Cell]:
        """The cells of a scenario, row by row, with their initial settings."""
        for row in self.rows:
            for point in self.exhibit.points(self.scale.name):
                if self.exhibit.includes_cell(scenario, row, point):
                    label = ", ".join(filter(None, (self.title(scenario), row.name, point)))
                    make = partial(self.experiments, scenario, row, point)
                    budget, tuned_on = self._budget(scenario, row), self.scale.tuning_seeds
                    yield Cell((scenario.name, row.name, point), label, make, self.scale.seeds, budget, tuned_on)

    def _budget(self, scenario: Scenario, row: ExhibitRow) -> Budget | None:
        """The grid of a cell: learning rates, the same for all rows, times choices of a setting of the row.

        None if the scale tunes nothing.
        """
        count, fixed = self.scale.rates, self.scale.settings_of(row.method)
        if not count:
            return None
        grid: dict[str, Sequence[Any]] = {"train.lr": scenario.rates[-count:]}
        choices = scenario.choices.get(row.method, row.choices)
        grid |= {key: values[: self.scale.choices] for key, values in choices.items() if key not in fixed}
        searched = {key: values for key, values in grid.items() if len(values) > 1}
        trials = prod(map(len, searched.values()))
        return Budget(
            trials=trials,
            sampler="grid",
            parallel=trials,
            search=searched,
            declared=False,
            finalists=scenario.finalists,
            cross_validate=scenario.cross_validate,
        )

    def experiments(self, scenario: Scenario, row: ExhibitRow, point: str, seeds: Collection[int]) -> list[Experiment]:
        """The runs of a cell: for each held-out domain, if any, a run per seed."""
        size = scenario.sizes[self.scale.name]
        its = {
            "method.name": row.method,
            **self.scale.settings,
            **self.scale.settings_of(row.method),
            **size.settings,
            **self.exhibit.settings_at(self.scale.name),
            **self.exhibit.points(self.scale.name)[point],
            **row.settings,
            **row.at.get(scenario.name, {}),
            **self.settings,
        }
        fixed = {"name": scenario.name, "seed": list(seeds), "run.out": str(self.runs)}
        return expand(override(size.experiment, {**its, **self._given(scenario), **fixed}))

    @property
    def cells(self) -> list[Cell]:
        return [cell for scenario in self.scenarios for cell in self.cells_of(scenario)]

    def first_of(self, scenario: Scenario, row: ExhibitRow) -> Experiment:
        (point, *_) = self.exhibit.points(self.scale.name)
        return self.experiments(scenario, row, point, self.scale.seeds[:1])[0]

    # Data --------------------------------------------------------------------------------------------

    def need(self, scenario: Scenario, *, methods: bool = False) -> Need | None:
        """What the data, the network, or (if requested) the methods of a scenario need that is not here.

        None if nothing.
        """
        data = self.data_of(scenario)
        rows = [row for row in self.rows if self.exhibit.includes_cell(scenario, row, "")]
        try:
            first = self.first_of(scenario, self.exhibit.plain or rows[0])
            specs: list[Spec] = [first.data, first.partition, first.protocol, first.model]
            for row in {row.method: row for row in rows}.values() if methods else ():
                specs += [spec for _, spec in self.first_of(scenario, row).method.specs()]
        except FedshiftError as error:  # its data have to be read for that, or are to be given
            return Need(data, _given_here(str(error), data))
        for spec in specs:
            try:
                spec.check_here()
            except FedshiftError as error:
                if spec.section != "data":
                    return Need(type(spec).__name__, str(error))
                return Need(data, _given_here(str(error), data if "path" in spec.settings() else _lacking(error, data)))
        return None

    def data_of(self, scenario: Scenario) -> str:
        return scenario.sizes[self.scale.name].data

    @property
    def data_sets(self) -> list[str]:
        return sorted({self.data_of(scenario) for scenario in self.known})

    def takes(self, name: str) -> bool:
        return name.partition(".")[0] in self.data_sets

    def _given(self, scenario: Scenario) -> dict[str, str]:
        own = self.data_of(scenario)
        named = {tuple(name.split(".", 1)): path for name, path in self.data.items()}
        return {f"data.{'.'.join(rest) or 'path'}": path for (name, *rest), path in named.items() if name == own}

    @cached_property
    def excluded(self) -> dict[str, str]:
        """Why scenarios that lack something are excluded, by name; raises a FedshiftError if all are."""
        requested = [each for each in self.scenarios if not self._recorded(each)]
        needs = [(scenario, need) for scenario in requested if (need := self.need(scenario))]
        found = {scenario.name: f"{self.title(scenario)} is excluded: {need.why}" for scenario, need in needs}
        if len(found) == len(self.scenarios):
            raise FedshiftError("\n".join(found.values()))
        return found

    def _recorded(self, scenario: Scenario) -> bool:
        return all((scenario.name, row.name) in self.records.cells for row in self.rows)

    @property
    def available(self) -> Plan:
        out = {*self.excluded}
        cells = [cell for cell in self.cells if cell.key[0] not in out and cell.key[:2] not in self.records.cells]
        return Plan(cells, seed_by_seed=True)


def paths_by_name(data: Mapping[str, str | Path] | None) -> dict[str, str]:
    if data is not None and not isinstance(data, Mapping):
        raise FedshiftError(f'data = {shown(data)}: give paths by data set, such as {{"pacs": "pacs.parquet"}}.')
    return {name: str(path) for name, path in (data or {}).items()}


def _lacking(error: FedshiftError, data: str) -> str:
    setting = re.search(r"\bdata\.(\w+)", str(error))
    return f"{data}.{setting[1] if setting else 'SETTING'}"


def _given_here(error: str, given: str) -> str:
    why = error.replace("--set data.path=", f"--data {given}=")
    return why if why != error else f"{why.rstrip('.')}. Give it by --data {given}=PATH."
