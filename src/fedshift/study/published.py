"""What the papers' own tables say of the benchmark's columns, and how their set-up differs from ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from fedshift.settings.written import parse_toml
from fedshift.study.papers import Exhibit, Printed, exhibit_of
from fedshift.study.scenarios import scenarios, text_of


@dataclass(frozen=True)
class Published:
    """A paper's figures for one column.

    Attributes:
        column: the column's name.
        tables: the paper's tables, by name; a method's first row there counts.
        panel: the federation in these tables.
        mean: their column of accuracies in %.
        set_up: how large it was carried out there.
        differs: in what its set-up is another than the column's, at any scale.
        worst: their column of accuracies on the worst environment, in %; empty if there is none.
        rows: by method the name of its row, where it is not its first.
        same: the scales at which figures can be compared.
    """

    column: str
    tables: Sequence[str]
    panel: str
    mean: str
    set_up: str
    differs: str
    worst: str = ""
    rows: Mapping[str, str] = field(default_factory=dict)
    same: Sequence[str] = ()

    @property
    def source(self) -> str:
        """The paper, its tables, and their column."""
        exhibits = self._exhibits
        return f"{exhibits[0].paper}, {' and '.join(each.title for each in exhibits)}, {self.mean}"

    def means(self) -> dict[str, Printed]:
        """By method, the accuracy in %."""
        return self._printed(self.mean)

    def worsts(self) -> dict[str, Printed]:
        """By method, the accuracy on the worst environment in %."""
        return self._printed(self.worst) if self.worst else {}

    def caution(self, scale: str) -> str:
        """How these figures stand to those of a scale."""
        if scale in self.same:
            return f"Set-up of the paper: {self.set_up}. Open: {self.differs}."
        return f"Not comparable in size or set-up. The paper: {self.set_up}; {self.differs}."

    @property
    def _exhibits(self) -> list[Exhibit]:
        return [exhibit_of(name) for name in self.tables]

    def _printed(self, column: str) -> dict[str, Printed]:
        scenario, found = scenarios("papers")[self.panel], dict[str, Printed]()
        for exhibit in self._exhibits:
            for row in exhibit.carried_out:
                number = exhibit.number(scenario, row, column)
                if number is not None and row.name == self.rows.get(row.method, row.name):
                    found.setdefault(row.method, number)
        return found


@cache
def published() -> tuple[Published, ...]:
    """Every table."""
    text = text_of("benchmark/published")
    return tuple(Published(**table) for table in parse_toml(text, "the published figures")["table"])
