"""What a study carries out: cells, each with the runs of a row on a scenario, and what of them this machine lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.reporting.units import clock
from fedshift.settings.experiment import Experiment
from fedshift.settings.grid import expand, override
from fedshift.settings.spec import Spec, shown
from fedshift.simulation.dry_run import Estimate
from fedshift.study.scenarios import Scale, Scenario

Key = tuple[str, str, str]  # a scenario's name, a row's, and a point of a curve or ""


@dataclass(frozen=True)
class Cell:
    """The runs of a row on a scenario: one for each seed and held-out domain.

    Attributes:
        scenario: the scenario.
        row: the row's name.
        point: of a curve along settings; otherwise "".
        experiments: the runs.
    """

    scenario: Scenario
    row: str
    point: str
    experiments: Sequence[Experiment]

    @property
    def key(self) -> Key:
        """The scenario's name, the row's and the point."""
        return self.scenario.name, self.row, self.point


class Need(NamedTuple):
    """Something that is not on this machine.

    Attributes:
        what: the data set, or what of the network or the method.
        why: what is lacking, and how to get it.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Lacking:
    """Why a cell has no number.

    Attributes:
        reason: in words.
        kind: its training diverged, the method refuses the scenario, or a user's method failed.
    """

    reason: str
    kind: Literal["diverged", "refused", "failed"]


@dataclass(frozen=True)
class Forecast:
    """What some runs would cost that differ only in their seed and held-out domain.

    Attributes:
        label: what tells them from others.
        runs: how many they are.
        cost: that of each; None if they cannot run, or none is left.
        problem: why they cannot.
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


@dataclass(frozen=True)
class StudyPlan:
    """A study that is asked for.

    Attributes:
        scale: how large.
        scenarios: those that are carried out.
        out: the folder.
        data: files that a user gives, by the data set's name, or by NAME.SETTING.
    """

    scale: Scale
    scenarios: tuple[Scenario, ...]
    out: Path
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> Sequence[Scenario]:
        """All scenarios that the scale has."""
        return self.scenarios

    @property
    def folder(self) -> Path:
        """Where its tables lie."""
        raise NotImplementedError

    @property
    def runs(self) -> Path:
        """Where its runs lie."""
        raise NotImplementedError

    def title(self, scenario: Scenario) -> str:
        """A scenario's title at the scale."""
        return scenario.title_at(self.scale.name)

    # Experiments -------------------------------------------------------------------------------------

    def experiments(
        self, scenario: Scenario, method: str, seeds: Sequence[int], changes: Mapping[str, Any]
    ) -> list[Experiment]:
        """A method's runs on a scenario: for each domain that is held out, if any is, one for each seed.

        Raises:
            FedshiftError: the method cannot run there.
        """
        size = scenario.sizes[self.scale.name]
        own = self.scale.settings_of(method)
        fixed = {"name": scenario.name, "seed": list(seeds), "run.out": str(self.runs)}
        whole = {"method.name": method, **self.scale.settings, **own, **size.settings, **changes}
        return expand(override(size.experiment, {**whole, **self._given(scenario), **fixed}))

    def first(self, scenario: Scenario) -> Experiment:
        """A run on a scenario, which needs the data and the model that all need."""
        raise NotImplementedError

    def forecasts(self, scenario: Scenario) -> list[Forecast]:
        """What the cells of a scenario would cost."""
        raise NotImplementedError

    # Data --------------------------------------------------------------------------------------------

    def data_of(self, scenario: Scenario) -> str:
        """The name of a scenario's data set."""
        return scenario.sizes[self.scale.name].data

    @property
    def data_sets(self) -> list[str]:
        """The data sets of the scenarios that the scale has."""
        return sorted({self.data_of(scenario) for scenario in self.known})

    def takes(self, name: str) -> bool:
        """Whether data of this name, or of this NAME.SETTING, are of a scenario."""
        return name.partition(".")[0] in self.data_sets

    def check_data(self) -> None:
        """Raise an error if data are given that no scenario has."""
        for name in self.data:
            if not self.takes(name):
                hint = f"The scale '{self.scale.name}' has {', '.join(self.data_sets)}."
                raise UnknownNameError("data set", name.partition(".")[0], self.data_sets, hint)

    def _given(self, scenario: Scenario) -> dict[str, str]:
        """The settings by which a scenario reads what a user gives."""
        own = self.data_of(scenario)
        named = {tuple(name.split(".", 1)): path for name, path in self.data.items()}
        return {f"data.{'.'.join(rest) or 'path'}": path for (name, *rest), path in named.items() if name == own}

    def lacking(self, scenario: Scenario, methods: Iterable[Experiment] = ()) -> Need | None:
        """What the data, the network, or ``methods`` of a scenario need that is not here; None if nothing."""
        data = self.data_of(scenario)
        try:
            first = self.first(scenario)
            specs: list[Spec] = [first.data, first.partition, first.protocol, first.model]
            specs += [spec for each in methods for _, spec in each.method.specs()]
        except FedshiftError as error:  # its data have to be read for that, or are to be given
            return Need(data, _given_here(str(error), data))
        return _need(specs, data)

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Why scenarios are left out that lack something, by name.

        Raises:
            FedshiftError: all do.
        """
        needs = [(scenario, need) for scenario in self.scenarios if (need := self.lacking(scenario))]
        found = {scenario.name: f"{self.title(scenario)} is left out: {need.why}" for scenario, need in needs}
        if len(found) == len(self.scenarios):
            raise FedshiftError("\n".join(found.values()))
        return found

    @property
    def available(self) -> list[Scenario]:
        """The scenarios that lack nothing."""
        return [scenario for scenario in self.scenarios if scenario.name not in self.left_out]


def paths_by_name(data: Mapping[str, str | Path] | None) -> dict[str, str]:
    """Files that a user gives, by the data set's name.

    Raises:
        FedshiftError: they have no names.
    """
    if data is not None and not isinstance(data, Mapping):
        raise FedshiftError(f'data = {shown(data)}: give paths by data set, such as {{"pacs": "pacs.parquet"}}.')
    return {name: str(path) for name, path in (data or {}).items()}


def _need(specs: Sequence[Spec], data: str) -> Need | None:
    """What the first of some specs lacks; the data set's is called by its name."""
    for spec in specs:
        try:
            spec.check_here()
        except FedshiftError as error:
            if spec.section != "data":
                return Need(type(spec).__name__, str(error))
            return Need(data, _given_here(str(error), data if "path" in spec.settings() else f"{data}.SETTING"))
    return None


def _given_here(error: str, given: str) -> str:
    """An error about data, with the option by which paths are given here."""
    why = error.replace("--set data.path=", f"--data {given}=")
    return why if why != error else f"{why.rstrip('.')}. Give it by --data {given}=PATH."
