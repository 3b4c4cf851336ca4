"""The tables and figures of the papers, one TOML file each in ``data/papers/tables``.

- ``paper``: the paper it is of; ``title``: its number there; ``what``: what it shows, in a sentence of ours.
- ``kind``: "table"; "curve"; "analysis", whose runs ``analysis`` measures, a table with its name and settings; or
  "omitted", which is not reproduced, for the reason ``why``.
- ``panels``: names of its scenarios; ``columns``: what is read off their runs, where not as a scenario defines.
- ``along``, of a curve: "round", "environment" (of the test), or tables of dotted settings by label, by scale or under
  "all", which a table may have as well; ``axis`` is what labels along a curve name.
- ``settings``: dotted settings by scale, or under "all".
- ``statement``: the paper's statement about it, where it prints no numbers.
- ``[[row]]``: ``name`` as printed; ``method`` with dotted ``settings`` and settings of single scenarios (``at``), or
  the reason ``why`` it is not run here; ``published``: by scenario the printed numbers in the order of the columns.
  Where a row has any, its other cells are not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from fedshift.errors import UnknownNameError
from fedshift.study.quantities import Quantity, quantity
from fedshift.study.scenarios import AS_PRINTED, Scale, Scenario, files_of, scenarios, text_of
from fedshift.written import parse_toml

PAPERS = {
    "fedsr": "Nguyen, Lim and Torr, FedSR, NeurIPS 2022",
    "fedcir": "Li et al., FedCiR, IEEE TMC 2024",
    "fraug": "Chen et al., FRAug, ICCV 2023",
    "client2vec": "Guo et al., Client2Vec, 2024",
    "fedpin": "Tang et al., FedPIN, ICML 2024",
}
NOT_PRINTED = "-"
EVERY_SCALE = "all"


class Printed(NamedTuple):
    """A paper's number in the column's unit, its standard deviation if printed, and both as printed."""

    mean: float
    std: float | None
    text: str

    @classmethod
    def of(cls, word: str) -> Printed:
        """The number of a word such as "85.9±0.6"."""
        mean, spread, std = word.partition("±")
        return cls(float(mean), float(std) if spread else None, word.replace("±", " ± "))


def printed(text: str) -> list[Printed | None]:
    """The numbers of a text such as "85.9±0.6 - 94.5", where "-" stands for a number that is not printed."""
    return [None if word == NOT_PRINTED else Printed.of(word) for word in text.split()]


@dataclass(frozen=True)
class ExhibitRow:
    """A row of a table, or a line of a curve."""

    name: str  # as it is printed
    method: str = ""  # by name; empty if it is not run here
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted settings
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # further settings of single scenarios, by name
    # the printed numbers by scenario, in the order of the columns
    published: Mapping[str, Sequence[Printed | None]] = field(default_factory=dict)
    why: str = ""  # the reason why it is not run
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values that tuning tries, by dotted setting
    without: Mapping[str, str] = field(default_factory=dict)  # why it has no cell in a scenario, by the scenario's name


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper; see the module for its fields."""

    name: str  # the file's: the paper's method and the number
    paper: str
    title: str  # "Table 1"
    what: str
    kind: Literal["table", "curve", "analysis", "omitted"]
    scenarios: tuple[Scenario, ...] = ()
    rows: tuple[ExhibitRow, ...] = ()
    # what is read off the runs; empty: as each scenario defines
    columns: Mapping[str, str] = field(default_factory=dict)
    along: str | Mapping[str, Mapping[str, Mapping[str, Any]]] = ""
    axis: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # dotted settings by scale, or under "all"
    statement: Sequence[str] = ()
    analysis: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    panel: str = "panel"  # what messages call a scenario of it
    # a row whose method every scenario accepts, which shows which data are needed; by default the first
    plain: ExhibitRow | None = None

    @classmethod
    def of(cls, name: str, text: str) -> Exhibit:
        about = parse_toml(text, f"the table '{name}'")
        rows = tuple(
            ExhibitRow(published={name: printed(text) for name, text in row.pop("published", {}).items()}, **row)
            for row in about.pop("row", ())
        )
        its = tuple(scenarios("papers")[name] for name in about.pop("panels", ()))
        return cls(name=name, paper=PAPERS[about.pop("paper")], scenarios=its, rows=rows, **about)

    @property
    def reproduced(self) -> list[ExhibitRow]:
        return [row for row in self.rows if row.method]

    def quantities(self, scenario: Scenario) -> Mapping[str, str]:
        return self.columns or scenario.columns

    def quantity(self, scenario: Scenario, column: str) -> Quantity:
        quantities = self.quantities(scenario)
        return quantity(quantities.get(column) or next(iter(quantities.values())))

    def scenarios_at(self, scale: Scale) -> tuple[Scenario, ...]:
        return tuple(scenario for scenario in self.scenarios if scale.name in scenario.sizes)[: scale.scenarios]

    def points(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """The settings of each point of a curve along settings, by label.

        For other kinds a single point without settings.
        """
        return {"": {}} if isinstance(self.along, str) else self.along.get(scale) or self.along[EVERY_SCALE]

    @property
    def across(self) -> str:
        return self.along if isinstance(self.along, str) else self.axis

    def number(self, scenario: Scenario, row: ExhibitRow, column: str) -> Printed | None:
        columns = self.quantities(scenario) if isinstance(self.along, str) else self.points(AS_PRINTED)
        return dict(zip(columns, row.published.get(scenario.name, ()), strict=False)).get(column)

    def includes_cell(self, scenario: Scenario, row: ExhibitRow, point: str) -> bool:
        """Whether a cell is run: of a row with printed numbers only cells with a printed number."""
        if not row.published:
            return scenario.name not in row.without
        return scenario.name in row.published and (not point or self.number(scenario, row, point) is not None)

    def settings_at(self, scale: str) -> dict[str, Any]:
        return {**self.settings.get(EVERY_SCALE, {}), **self.settings.get(scale, {})}


@cache
def exhibits() -> Mapping[str, Exhibit]:
    texts = files_of("papers/tables")
    return {name: Exhibit.of(name, texts[name]) for name in sorted(texts, key=_order)}


def _order(name: str) -> tuple[int, bool, int]:
    paper, _, what = name.partition("-")
    return [*PAPERS].index(paper), what.startswith("fig"), int("".join(filter(str.isdigit, what)))


def exhibit_of(name: str) -> Exhibit:
    if name not in exhibits():
        raise UnknownNameError("table", name, exhibits(), "`fedshift reproduce --list` lists what each shows.")
    return exhibits()[name]


@dataclass(frozen=True)
class Published:
    """A paper's figures for a column."""

    column: str  # the column's name
    tables: Sequence[str]  # the paper's tables, by name; a method's first row there counts
    panel: str  # the federation in these tables
    mean: str  # their column of accuracies in %
    set_up: str  # how large it was run there
    differs: str  # how its set-up differs from the column's, at any scale
    worst: str = ""  # their column of accuracies on the worst environment, in %; empty without it
    rows: Mapping[str, str] = field(default_factory=dict)  # by method the name of its row, where it is not its first
    same: Sequence[str] = ()  # the scales at which figures can be compared

    @property
    def source(self) -> str:
        exhibits = [exhibit_of(name) for name in self.tables]
        return f"{exhibits[0].paper}, {' and '.join(each.title for each in exhibits)}, {self.mean}"

    def caution(self, scale: str) -> str:
        if scale in self.same:
            return f"Set-up of the paper: {self.set_up}. Open: {self.differs}."
        return f"Not comparable in size or set-up. The paper: {self.set_up}; {self.differs}."

    def numbers(self, column: str) -> dict[str, Printed]:
        scenario, found = scenarios("papers")[self.panel], dict[str, Printed]()
        for exhibit in map(exhibit_of, self.tables):
            for row in exhibit.reproduced:
                number = exhibit.number(scenario, row, column)
                if number is not None and row.name == self.rows.get(row.method, row.name):
                    found.setdefault(row.method, number)
        return found


@cache
def published() -> tuple[Published, ...]:
    text = text_of("benchmark/published")
    return tuple(Published(**table) for table in parse_toml(text, "the published figures")["table"])
