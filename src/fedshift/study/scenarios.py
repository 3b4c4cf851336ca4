"""Scenarios: federations of the benchmark or of a paper, and their size at each scale.

A scenario's file is an experiment without a method, and a table ``[scenario]`` with the fields of :class:`Scenario`; a
table for every scale has ``settings`` (dotted), and optionally a ``title`` and ``experiment``, the name of a shipped
experiment that replaces the file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.study.grid import read
from fedshift.written import parse_toml

Collection = Literal["benchmark", "papers"]
AS_PRINTED = "paper"  # the scale that is as the papers have it


@dataclass(frozen=True)
class Scale:
    """The size of a study."""

    name: str
    about: str  # its purpose
    seeds: Sequence[int]  # of the results; tuning uses none of them
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted settings of every scenario
    # settings of single methods, by their names, which are not searched
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rates: int = 0  # how many of a scenario's learning rates are tried, the highest; 0: nothing is tuned
    choices: int = 3  # how many values of a method's first setting are tried, at most
    tuning_seeds: Sequence[int] = ()  # seeds of each trial
    compared: bool = True  # whether numbers can be compared with a paper's
    scenarios: int | None = None  # how many of a table's scenarios it has, the first ones; None: all

    def settings_of(self, method: str) -> dict[str, Any]:
        return {f"method.{name}": value for name, value in self.methods.get(method, {}).items()}


@dataclass(frozen=True)
class Size:
    """A scenario at a scale: an experiment's tables, dotted settings that differ, and a title if not the paper's."""

    experiment: Mapping[str, Any]
    settings: Mapping[str, Any]
    title: str = ""

    @property
    def data(self) -> str:
        return str(self.settings.get("data.name", self.experiment["data"]["name"]))


@dataclass(frozen=True)
class Scenario:
    """A federation of the benchmark, or of a paper."""

    name: str
    title: str
    sizes: Mapping[str, Size]
    # what :func:`fedshift.study.quantities.quantity` reads off its runs, by heading
    columns: Mapping[str, str] = field(default_factory=dict)
    open: str = ""  # what the paper leaves open, or what differs here at any scale
    score: str = ""  # what the benchmark compares
    worst: bool = False  # whether the accuracy on the worst environment is shown next to the mean
    rates: Sequence[float] = ()  # the learning rates that are tried, ascending
    finalists: int | None = None  # how many choices, the best by the first tuning seed, run with the others; None: all
    cross_validate: bool = False  # whether settings are chosen by cross-validation over the domains that train
    # by method, values to try of its settings, by dotted name, instead of the row's
    choices: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    weight: float = 1.0  # its weight in means over scenarios, where several are of the same data

    @classmethod
    def of(cls, name: str, text: str) -> Scenario:
        tables = parse_toml(text, f"the scenario '{name}'")
        about = tables.pop("scenario")
        named = {key: about.pop(key) for key in cls.__dataclass_fields__ if key in about}
        sizes = {
            scale: Size(read(base) if (base := size.pop("experiment", "")) else tables, **size)
            for scale, size in about.items()
        }
        return cls(name, sizes=sizes, **named)

    def title_at(self, scale: str) -> str:
        """The title at a scale, which names data that replace the paper's."""
        size = self.sizes[scale]
        if self.has_its_data(scale):
            return size.title or self.title
        return f"{size.title or size.data} instead of {self.title}"

    def has_its_data(self, scale: str) -> bool:
        """Whether the data set of a scale is the paper's, so that numbers can be compared."""
        return AS_PRINTED not in self.sizes or self.sizes[scale].data == self.sizes[AS_PRINTED].data


def files_of(folder: str) -> dict[str, str]:
    """The texts of the TOML files in a folder of the package, by their names, sorted."""
    found: Traversable = resources.files(__package__).joinpath("data", folder)
    texts = {entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8") for entry in found.iterdir()}
    return dict(sorted(texts.items()))


def text_of(file: str) -> str:
    return resources.files(__package__).joinpath("data", f"{file}.toml").read_text(encoding="utf-8")


@cache
def scenarios(collection: Collection) -> Mapping[str, Scenario]:
    return {name: Scenario.of(name, text) for name, text in files_of(f"{collection}/scenarios").items()}


@cache
def scales(collection: Collection) -> Mapping[str, Scale]:
    tables = parse_toml(text_of(f"{collection}/scales"), "the scales")
    return {name: Scale(name, **table) for name, table in tables.items()}


def scale_of(collection: Collection, name: str) -> Scale:
    if name not in scales(collection):
        raise UnknownNameError("scale", name, [*scales(collection)])
    return scales(collection)[name]


def choose(
    kind: str, there: Mapping[str, Any], names: str | Sequence[str] | None, refused: Mapping[str, str]
) -> list[Any]:
    """The named entries of ``there``, in its order; all if no name is given.

    ``kind`` is what messages call an entry; ``refused`` has why other names cannot be chosen. Raises a FedshiftError if
    a name is unknown or refused, or nothing is there.
    """
    requested = [names] if isinstance(names, str) else names
    quoted = [f"'{name}'" if "," in name else name for name in there]
    if requested is not None and not requested:
        raise FedshiftError(f"No {kind} is named: give some of {', '.join(quoted)}.")
    for name in requested or ():
        if name not in there and name in refused:
            raise FedshiftError(f"{kind} '{name}': {refused[name]}")
        if name not in there:
            raise UnknownNameError(kind, name, quoted)
    return [each for name, each in there.items() if requested is None or name in requested]
