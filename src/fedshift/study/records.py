"""Cells of a study that were run elsewhere: their numbers and chosen settings, and why others have none."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from io import StringIO
from typing import Any, Literal, NamedTuple, cast

Key = tuple[str, str, str]  # a scenario's name, a row's, and a point of a curve or ""
CHOSEN = "chosen"  # in the column of a CSV file's lines on what tuning chose
LACKING = {"diverged": "diverged", "refused": "cannot run", "failed": "failed"}  # the cell of a table without a number


@dataclass(frozen=True)
class Lacking:
    """Why a cell has no number.

    ``kind``: its training diverged, the method refuses the scenario, or a user's method failed.
    """

    reason: str
    kind: Literal["diverged", "refused", "failed"]


class Chosen(NamedTuple):
    """Tuned settings of a cell, in words, and the validation accuracy in %."""

    hold_out: str
    settings: str
    validation: float


@dataclass(frozen=True)
class Records:
    """Cells that were run elsewhere: their numbers, why others have none, and their chosen settings."""

    numbers: Mapping[Key, Mapping[int, float]] = field(default_factory=dict)
    lacking: Mapping[Key, Lacking] = field(default_factory=dict)
    chosen: Mapping[tuple[str, str], Sequence[Chosen]] = field(default_factory=dict)

    @cached_property
    def cells(self) -> frozenset[tuple[str, str]]:
        return frozenset((scenario, row) for scenario, row, _ in (*self.numbers, *self.lacking))

    def of(self, scenarios: Collection[str], rows: Collection[str]) -> Records:
        def requested(key: Sequence[str]) -> bool:
            return key[0] in scenarios and key[1] in rows

        return Records(
            {key: its for key, its in self.numbers.items() if requested(key)},
            {key: why for key, why in self.lacking.items() if requested(key)},
            {key: its for key, its in self.chosen.items() if requested(key)},
        )


def published_records(scale: str) -> Records:
    """The cells of a scale whose numbers come with the package."""
    file = resources.files(__package__).joinpath("data", "benchmark", "published", f"{scale}.csv")
    return records_of(file.read_text(encoding="utf-8")) if file.is_file() else Records()


def records_of(text: str) -> Records:
    numbers: dict[Key, dict[int, float]] = {}
    lacking: dict[Key, Lacking] = {}
    chosen: dict[tuple[str, str], list[Chosen]] = {}
    for line in csv.DictReader(StringIO(text)):
        scenario, row, column = line["scenario"], line["row"], line["column"]
        if column == CHOSEN:
            chosen.setdefault((scenario, row), []).append(Chosen(line["unit"], line["note"], float(line["value"])))
        elif column in LACKING:
            lacking[scenario, row, ""] = Lacking(line["note"], cast(Any, column))
        else:
            numbers.setdefault((scenario, row, column), {})[int(line["seed"])] = float(line["value"])
    return Records(numbers, lacking, chosen)
