"""What is carried out: the experiments of every cell of a table, and which of its panels have what they need here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.reproduction.exhibits import Exhibit, Row, exhibit_of
from fedshift.reproduction.panels import Panel, Scale, scale_of
from fedshift.runs import runner
from fedshift.settings.experiment import Experiment
from fedshift.settings.grid import expand, override
from fedshift.settings.spec import Spec, shown

OUT = "runs/reproduce"
RUNS = "runs"  # the folder in OUT that holds all runs, so that tables share those that they have in common


@dataclass(frozen=True)
class Cell:
    """The runs of a row on a panel: a seed or held-out domain each.

    Attributes:
        panel: the federation.
        row: the row.
        point: of a curve along settings; otherwise "".
        experiments: the runs, by seed.
    """

    panel: Panel
    row: Row
    point: str
    experiments: tuple[Experiment, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """The panel's name, the row's and the point."""
        return self.panel.name, self.row.name, self.point


class Need(NamedTuple):
    """Something that is not on this machine.

    Attributes:
        what: the data set, or what of the network or the method.
        why: what is lacking, and how to get it.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Plan:
    """A table that is asked for.

    Attributes:
        exhibit: the table or curve.
        scale: how large.
        panels: those of its panels that are carried out.
        rows: those of its rows that are carried out.
        out: the folder.
        data: files that a user gives, by the data set's name, or by NAME.SETTING.
        run: dotted settings of [run], which decide no result.
    """

    exhibit: Exhibit
    scale: Scale
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]
    out: Path
    data: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        table: str,
        scale: str,
        panels: str | Sequence[str] | None = None,
        rows: str | Sequence[str] | None = None,
        out: str | Path = OUT,
        data: Mapping[str, str | Path] | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> Self:
        """The plan of what a user names; None stands for all panels, or rows.

        Raises:
            FedshiftError: a name is not known, the table is not reproduced, or a setting decides results.
        """
        exhibit, size = exhibit_of(table), scale_of(scale)
        if exhibit.why:
            raise FedshiftError(f"{exhibit.title} of {exhibit.paper} is not reproduced: {exhibit.why}")
        there = {panel.name: panel for panel in exhibit.panels_of(size)}
        if not there:
            raise FedshiftError(f"{table} is not of the scale {scale}: give another --scale.")
        elsewhere = {panel.name: f"it is not of the scale {scale}: give another --scale." for panel in exhibit.panels}
        refused = {row.name: f"it is not carried out here: {row.why}." for row in exhibit.rows if row.why}
        given = {name: str(path) for name, path in (data or {}).items()}
        plan = cls(
            exhibit,
            size,
            tuple(_chosen("panel", there, panels, elsewhere)),
            tuple(_chosen("row", {row.name: row for row in exhibit.carried_out}, rows, refused)),
            Path(out),
            given,
            dict(run or {}),
        )
        plan.check_given()
        return plan

    def check_given(self) -> None:
        """Raise an error if data are of no panel, or a setting is not of [run]."""
        for name in self.data:
            if not self.takes(name):
                raise UnknownNameError("data set", name.partition(".")[0], self.data_sets, f"In {self.exhibit.name}.")
        for name, value in self.run.items():
            if name == "run.out":
                raise FedshiftError(f"{name} = {shown(value)}: tables share their runs' folder; give --out instead.")
            if not name.startswith("run."):
                raise FedshiftError(
                    f"{name} = {shown(value)}: a table's settings are what is reproduced, so only those of [run], "
                    "such as run.threads=2, can be given; for others there is `fedshift compare`."
                )

    def takes(self, name: str) -> bool:
        """Whether data of this name, or of this NAME.SETTING, are of a panel."""
        return name.partition(".")[0] in self.data_sets

    @property
    def data_sets(self) -> list[str]:
        """The data sets of the panels that the scale has."""
        return sorted({self._data_of(panel) for panel in self.whole.panels})

    @property
    def folder(self) -> Path:
        """Where its tables lie."""
        return self.out / f"{self.exhibit.name}-{self.scale.name}"

    @property
    def command(self) -> str:
        """The command that makes the table."""
        words = ["fedshift", "reproduce", self.exhibit.name, "--scale", self.scale.name]
        if self.panels != self.whole.panels:
            words += [word for panel in self.panels for word in ("--panel", panel.name)]
        if self.rows != self.whole.rows:
            words += [word for row in self.rows for word in ("--row", row.name)]
        words += [word for name, path in self.data.items() for word in ("--data", f"{name}={path}")]
        words += [word for name, value in self.run.items() for word in ("--set", f"{name}={shown(value)}")]
        return shlex.join([*words, *(["--out", str(self.out)] if str(self.out) != OUT else [])])

    def title(self, panel: Panel) -> str:
        """A panel's title at the scale."""
        return panel.title_at(self.scale.name)

    def compared(self, panel: Panel) -> bool:
        """Whether a panel's numbers can be compared with the paper's."""
        return self.scale.compared and panel.has_its_data(self.scale.name)

    @property
    def whole(self) -> Plan:
        """The plan of all panels and rows."""
        there, rows = self.exhibit.panels_of(self.scale), tuple(self.exhibit.carried_out)
        return Plan(self.exhibit, self.scale, there, rows, self.out, self.data, self.run)

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell, panel by panel.

        Raises:
            FedshiftError: the settings of one are wrong.
        """
        return [cell for panel in self.panels for cell in self.cells_of(panel)]

    def cells_of(self, panel: Panel) -> Iterator[Cell]:
        """The cells of a panel, row by row."""
        for row in self.rows:
            for point, settings in self.exhibit.points(self.scale.name).items():
                if self.exhibit.asks_for(panel, row, point):
                    its = self.experiments(panel, row, settings, self.scale.seeds)
                    yield Cell(panel, row, point, tuple(its))

    def experiments(self, panel: Panel, row: Row, point: Mapping[str, Any], seeds: Sequence[int]) -> list[Experiment]:
        """A cell's runs: for each domain that is held out, if any is, one for each seed."""
        size = panel.sizes[self.scale.name]
        changes: dict[str, Any] = {
            "method.name": row.method,
            **self.scale.settings,
            **{f"method.{name}": value for name, value in self.scale.methods.get(row.method, {}).items()},
            **size.settings,
            **self.exhibit.own(self.scale.name),
            **point,
            **row.settings,
            **row.at.get(panel.name, {}),
            **self._given(panel),
            **self.run,
            "name": panel.name,
            "seed": list(seeds),
            "run.out": str(self.out / RUNS),
        }
        return expand(override(size.experiment, changes))

    def lacking(self, panel: Panel) -> Need | None:
        """What the data and the network of a panel need that is not here; None if nothing."""
        return _need(_data_and_model(next(self._firsts(panel))), self._data_of(panel))

    def needs(self, panel: Panel) -> Need | None:
        """As :meth:`lacking`, or else what the methods of its rows need."""
        firsts = self._firsts(panel)
        first = next(firsts)
        if need := _need(_data_and_model(first), self._data_of(panel)):
            return need
        specs = [spec for each in (first, *firsts) for _, spec in each.method.specs()]
        return _need(specs, self._data_of(panel))

    def first(self, panel: Panel, row: Row) -> Experiment:
        """The first run of a row, which needs what all of them need."""
        (point, *_) = self.exhibit.points(self.scale.name).values()
        return self.experiments(panel, row, point, self.scale.seeds[:1])[0]

    def _firsts(self, panel: Panel) -> Iterator[Experiment]:
        """The first run of one row of each method: rows of a method need the same."""
        rows = [row for row in self.rows if self.exhibit.asks_for(panel, row, "")]
        return (self.first(panel, row) for row in {row.method: row for row in rows}.values())

    def run_title(self, cell: Cell, experiment: Experiment) -> str:
        """What a run of a cell is called while it goes on."""
        held_out = getattr(experiment.protocol, "hold_out", None)
        words = [cell.row.name, cell.point, f"{held_out} held out" if held_out is not None else ""]
        return ", ".join(filter(None, [*words, f"seed {experiment.seed}", cell.panel.name]))

    @cached_property
    def left_out(self) -> dict[str, str]:
        """The panels that lack something, by name, with what it is.

        Raises:
            FedshiftError: all do.
        """
        needs = [(panel, need) for panel in self.panels if (need := self.lacking(panel))]
        found = {panel.name: f"{self.title(panel)}: {need.why}" for panel, need in needs}
        if len(found) == len(self.panels):
            raise FedshiftError("\n".join(found.values()))
        return found

    def run_folders(self) -> list[list[str]]:
        """The folders of the runs of each cell of the whole table, below OUT."""
        return [
            [str(runner.run_path(experiment).relative_to(self.out)) for experiment in cell.experiments]
            for cell in self.whole.cells
        ]

    def _data_of(self, panel: Panel) -> str:
        return panel.sizes[self.scale.name].data

    def _given(self, panel: Panel) -> dict[str, str]:
        """The settings by which a panel reads what a user gives."""
        data = self._data_of(panel)
        named = {tuple(name.split(".", 1)): path for name, path in self.data.items()}
        return {f"data.{'.'.join(rest) or 'path'}": path for (name, *rest), path in named.items() if name == data}


def _chosen(
    kind: str, there: Mapping[str, Any], names: str | Sequence[str] | None, refused: Mapping[str, str]
) -> list[Any]:
    """Those that are named, in their order; all where no name is given."""
    asked = [names] if isinstance(names, str) else names
    quoted = [f"'{name}'" if "," in name else name for name in there]
    if asked is not None and not asked:
        raise FedshiftError(f"No {kind} is named: give some of {', '.join(quoted)}.")
    for name in asked or ():
        if name not in there and name in refused:
            raise FedshiftError(f"{kind} '{name}': {refused[name]}")
        if name not in there:
            raise UnknownNameError(kind, name, quoted)
    return [each for name, each in there.items() if asked is None or name in asked]


def _data_and_model(experiment: Experiment) -> list[Spec]:
    return [experiment.data, experiment.partition, experiment.protocol, experiment.model]


def _need(specs: Sequence[Spec], data: str) -> Need | None:
    """What the first of some specs lacks; the data set's is called by its name."""
    for spec in specs:
        try:
            spec.check_here()
        except FedshiftError as error:
            if spec.section != "data":
                return Need(type(spec).__name__, str(error))
            given = data if "path" in spec.settings() else f"{data}.SETTING"
            told = str(error).replace("--set data.path=", f"--data {data}=")  # by which paths are given here
            return Need(data, told if told != str(error) else f"{told.rstrip('.')}. Give it by --data {given}=PATH.")
    return None
