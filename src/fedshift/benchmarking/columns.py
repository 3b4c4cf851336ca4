"""The columns of the benchmark: federations, each an experiment's file with what it is for and how large it is made.

A file is an experiment without a method, and a table ``[benchmark]``: ``title``; ``score``, what its number is;
``worst``, whether the lowest environment stands beside the mean; ``search``, where to look for settings beside what
pages declare; ``brings``, the data that a user has to give; and for every scale that has the column a table of dotted
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.settings.written import parse_toml


@dataclass(frozen=True)
class Column:
    """A federation of the benchmark.

    Attributes:
        name: the file's.
        title: over its column.
        score: what is compared.
        experiment: the tables of the experiment, without a method.
        scales: dotted settings of each scale that has this column.
        worst: whether the accuracy on the worst environment is shown beside the mean.
        search: where to look for settings, by dotted name.
        brings: what a user gives by ``--data``; empty where the data are there or made.
    """

    name: str
    title: str
    score: str
    experiment: Mapping[str, Any]
    scales: Mapping[str, Mapping[str, Any]]
    worst: bool = False
    search: Mapping[str, Any] = field(default_factory=dict)
    brings: str = ""

    @property
    def data(self) -> str:
        """The name of its data set."""
        return str(self.experiment["data"]["name"])

    @classmethod
    def of(cls, name: str, text: str) -> Column:
        """The column that a file describes."""
        tables = parse_toml(text, f"the federation '{name}'")
        about = tables.pop("benchmark")
        rest = {key: about.pop(key) for key in ("worst", "search", "brings") if key in about}
        return cls(name, about.pop("title"), about.pop("score"), tables, about, **rest)


@dataclass(frozen=True)
class Scale:
    """How large the benchmark is carried out.

    Attributes:
        name: "smoke", "short" or "paper".
        about: what it is for.
        trials: of each study, by which settings are chosen.
        tuning_seeds: seeds of each trial.
        seeds: of the results; none of them has been tuned on.
        settings: dotted settings of every column.
        methods: settings of single methods, by their names, which are not searched.
    """

    name: str
    about: str
    trials: int
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@cache
def all_columns() -> tuple[Column, ...]:
    """Every column, in the order in which files name themselves."""
    folder = resources.files(__package__) / "federations"
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda each: each.name)
    found = [Column.of(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8")) for entry in entries]
    return tuple(sorted(found, key=lambda column: ORDER.index(column.name)))


ORDER = (
    "rotated-mnist-0",
    "rotated-mnist-75",
    "colored-fashion-mnist",
    "pacs-in-domain",
    "pacs-leave-one-out",
    "shakespeare",
)


@cache
def scales() -> Mapping[str, Scale]:
    """Every scale by name, from small to large."""
    text = (resources.files(__package__) / "scales.toml").read_text(encoding="utf-8")
    return {name: _scale(name, **table) for name, table in parse_toml(text, "the scales").items()}


def _scale(name: str, tuning_seeds: Sequence[int], seeds: Sequence[int], **rest: Any) -> Scale:
    return Scale(name, tuning_seeds=tuple(tuning_seeds), seeds=tuple(seeds), **rest)


def scale_of(name: str) -> Scale:
    """The scale of a name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in scales():
        raise UnknownNameError("scale", name, [*scales()])
    return scales()[name]


def columns_of(scale: Scale, names: Sequence[str] | None = None) -> list[Column]:
    """The columns that a scale has, in order; or those of them that are named.

    Raises:
        FedshiftError: the names are none, or the scale has no column of a name.
    """
    there = [column for column in all_columns() if scale.name in column.scales]
    known = [column.name for column in there]
    if names is not None and not names:
        raise FedshiftError(f"No federation is named: give some of {', '.join(known)}.")
    for name in names or ():
        if name not in known:
            have = [each for column in all_columns() if column.name == name for each in column.scales]
            raise _not_there("federation", name, scale, have, [column.name for column in all_columns()], known)
    return [column for column in there if names is None or column.name in names]


def check_data(scale: Scale, names: Iterable[str]) -> None:
    """Raise an error if a name is of no data set that a column of the scale has."""
    known = {column.data for column in columns_of(scale)}
    for name in names:
        if name not in known:
            have = [each for column in all_columns() if column.data == name for each in column.scales]
            raise _not_there("data set", name, scale, have, {column.data for column in all_columns()}, known)


def _not_there(
    kind: str, name: str, scale: Scale, have: Sequence[str], every: Iterable[str], here: Iterable[str]
) -> FedshiftError:
    """The error for a name that a scale does not have, though others may."""
    there = f"The scale '{scale.name}' has {', '.join(sorted(here))}."
    if not have:
        return UnknownNameError(kind, name, every, there)
    others = " or ".join(f"--scale {each}" for each in scales() if each in have)
    return FedshiftError(f"The {kind} '{name}' is of {others}. {there}")
