"""Where a search looks: an interval or choices for each setting, by its dotted name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from fedshift.catalogue import From
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.spec import Range, Search, Spec, as_toml, leaf_types, plain, setting_type, shown

S = TypeVar("S", bound=Spec)

SEARCHED = ("method", "train", "model")  # tables; the others decide what is measured
JUDGED = "what trials are judged on"
SAME_FOR_ALL = {  # settings of [train] that are not searched, and what they decide
    **dict.fromkeys(
        (
            *("train.rounds", "train.steps", "train.unit", "train.batch", "train.participation"),
            *("train.patience", "train.min_delta"),
        ),
        "how much training a trial has, which is its budget",
    ),
    **dict.fromkeys(("train.absent", "train.late", "train.min_answers"), JUDGED),
}
NUMBER = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
INTERVAL = re.compile(rf"{NUMBER}\.\.{NUMBER}")
DECADE = 10  # an interval this many times as wide as its lower end is searched by its logarithm
DIGITS = 4  # of a number that a trial has


@dataclass(frozen=True)
class Setting:
    """A setting that can be searched.

    Attributes:
        cls: its class.
        name: its name there.
        value: the experiment's value.
    """

    cls: type[Spec]
    name: str
    value: Any

    @property
    def declared(self) -> Search | None:
        """The range that its page declares."""
        return self.cls.settings()[self.name].search

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole."""
        return float not in leaf_types(setting_type(self.cls, self.name))

    def read(self, key: str, given: Any) -> Search:
        """The interval or choices that a user gives for it.

        Args:
            key: its name in messages.
            given: a :class:`Range`, a table with ``low``, ``high`` and perhaps ``log``, "0.001..0.1", or choices.

        Raises:
            FedshiftError: it is none of these, or the setting does not accept one of its values.
        """
        if self.cls.settings()[self.name].path:
            raise FedshiftError(f"{key} names a file, which is not searched; give it by --set {key}=...")
        if isinstance(given, str) and (ends := INTERVAL.fullmatch(given)):
            given = {"low": _number(ends[1]), "high": _number(ends[2])}
        if isinstance(given, Range):
            given = {"low": given.low, "high": given.high, "log": given.log}
        if isinstance(given, Mapping):
            return self._interval(key, **given)
        several = isinstance(given, Sequence) and not isinstance(given, str)
        choices = tuple(self.cls.checked(self.name, choice) for choice in plain(given)) if several else ()
        if len(choices) < 2 or len({repr(choice) for choice in choices}) < len(choices):
            raise FedshiftError(
                f"The search over {key} = {shown(given)} needs different choices (--search {key}=A,B) or an interval "
                f"(--search {key}=LOW..HIGH); --set {key}=A gives it one value."
            )
        return choices

    def _interval(self, key: str, low: Any = None, high: Any = None, log: Any = None, **other: Any) -> Range:
        if other or low is None or high is None or log not in (None, False, True):
            raise FedshiftError(f"The interval of {key} needs low and high, and log if any.")
        low, high = (self.cls.checked(self.name, end) for end in (low, high))
        if not (isinstance(low, int | float) and low < high):
            raise FedshiftError(f"The interval of {key} goes from {low} to {high}: give two numbers, the lower first.")
        if log is None:
            declared = self.declared
            log = declared.log if isinstance(declared, Range) else low > 0 and high / low >= DECADE
        if log and low <= 0:
            raise FedshiftError(f"The interval of {key} begins at {low:g}, which has no logarithm: log = false")
        return Range(low, high, log=bool(log))


def _number(text: str) -> float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


@dataclass(frozen=True)
class Space:
    """What a search varies.

    Attributes:
        searched: an interval or choices, by the setting's dotted name, in the order of names.
        whole: the names of settings whose numbers are whole.
    """

    searched: Mapping[str, Search]
    whole: frozenset[str]

    @classmethod
    def of(cls, experiment: Experiment, ranges: Mapping[str, Any], fixed: Collection[str]) -> Space:
        """The ranges that pages declare and a user gives, without the settings that the user fixed.

        Args:
            experiment: what is tuned.
            ranges: where to look, by dotted name; ``method.fedsr.l2r`` applies to one method.
            fixed: dotted names of settings that keep their values.

        Raises:
            FedshiftError: a range does not fit its setting.
        """
        known = settings_of(experiment)
        found = {
            key: setting.declared
            for key, setting in known.items()
            if setting.declared is not None and key.partition(".")[0] in ("method", "train")
        }
        given = {here: value for key, value in ranges.items() if (here := key_here(key, experiment)) in known}
        found |= {key: known[key].read(key, value) for key, value in given.items()}
        kept = {key_here(key, experiment) for key in fixed}
        searched = {key: search for key, search in sorted(found.items()) if not _is_kept(key, kept)}
        return cls(searched, frozenset(key for key in searched if known[key].whole))

    def table(self) -> dict[str, Any]:
        """The ranges as TOML can hold them."""
        return {
            key: {"low": search.low, "high": search.high, "log": search.log}
            if isinstance(search, Range)
            else as_toml(search)
            for key, search in self.searched.items()
        }

    def own(self, experiment: Experiment) -> dict[str, Any]:
        """An experiment's values of the settings, as TOML can hold them; they may lie outside of the space."""
        known = settings_of(experiment)
        return {key: as_toml(known[key].value) for key in self.searched}

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether a trial's settings are in the space."""
        return all(self._has(search, settings[key]) for key, search in self.searched.items())

    def _has(self, search: Search, value: Any) -> bool:
        if isinstance(search, Range):
            return isinstance(value, int | float) and search.low <= value <= search.high
        return labelled(value) in map(labelled, search)

    def parameters(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A sampler's parameters for a trial's settings."""
        return {key: labelled(settings[key]) for key in self.searched}

    def settings(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's settings for a sampler's parameters, as TOML can hold them; numbers have four digits."""
        settings: dict[str, Any] = {}
        for key, search in self.searched.items():
            found = parameters[key]
            if not isinstance(search, Range):
                settings[key] = as_toml(search[[labelled(choice) for choice in search].index(found)])
            elif key in self.whole:
                settings[key] = int(found)
            else:
                settings[key] = min(max(float(f"{found:.{DIGITS}g}"), search.low), search.high)
        return settings

    def __str__(self) -> str:
        return ", ".join(f"{key}: {in_words(search)}" for key, search in self.searched.items()) or "nothing"


def labelled(choice: Any) -> Any:
    """A choice as Optuna accepts it: itself, or text in the place of a list."""
    return shown(as_toml(choice)) if isinstance(choice, tuple | list) else choice


def in_words(search: Search) -> str:
    """An interval or choices for a reader."""
    if isinstance(search, Range):
        return str(search)
    return " | ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in search)


def settings_of(experiment: Experiment) -> dict[str, Setting]:
    """Every setting that can be searched, by dotted name; not those that a variant fixes."""
    return {
        key: setting
        for table in SEARCHED
        for key, setting in _settings(experiment, table, table)
        if key not in SAME_FOR_ALL
    }


def _settings(owner: Spec, name: str, prefix: str) -> Iterator[tuple[str, Setting]]:
    spec, mark = getattr(owner, name), owner.nested()[name]
    for field in mark.catalogue.entry_of(spec).settings() if isinstance(mark, From) else spec.settings():
        if field in spec.nested():
            yield from _settings(spec, field, f"{prefix}.{field}")
        else:
            yield f"{prefix}.{field}", Setting(type(spec), field, getattr(spec, field))


def key_here(key: str, experiment: Experiment) -> str:
    """A dotted name as an experiment's method has it: "method.l2r" for ``method.fedsr.l2r``; empty for another's."""
    table, _, below = key.partition(".")
    owner, _, rest = below.partition(".")
    if table != "method" or not rest or owner not in METHODS or owner in experiment.method.settings():
        return key
    return f"method.{rest}" if owner == experiment.method_name else ""


def _is_kept(key: str, kept: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in kept)


def flat_ranges(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The ranges of a table [search] by dotted name, also where TOML made tables of the dots."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and not value.keys() <= {"low", "high", "log"}
        found |= flat_ranges(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def check_ranges(ranges: Mapping[str, Any], experiments: Sequence[Experiment]) -> list[str]:
    """Raise an error if a range is of no setting of any method.

    Returns:
        The dotted names of settings that only methods have that are not tuned.
    """
    unused = []
    known = [settings_of(experiment) for experiment in experiments]
    names = {name for settings in known for name in settings}
    of_any = {
        f"method.{name}" for name in (*METHODS, *(key for each in METHODS for key in METHODS.get(each).settings()))
    }
    for key in ranges:
        if any(key_here(key, experiment) in settings for experiment, settings in zip(experiments, known, strict=True)):
            continue
        table = key.partition(".")[0]
        if key in SAME_FOR_ALL or (table in Experiment.settings() and table not in SEARCHED):
            raise FedshiftError(
                f"{key} decides {SAME_FOR_ALL.get(key, JUDGED)}; it is the same for all: --set {key}=... gives it a "
                "value."
            )
        if any(name.startswith(f"{key}.") for name in names):
            raise FedshiftError(f"{key} has settings of its own, so each choice is a study of its own: --set {key}=...")
        if ".".join(key.split(".")[:2]) not in of_any:
            raise UnknownNameError("setting to search", key, names)
        unused.append(key)
    return unused


def with_settings(spec: S, settings: Mapping[str, Any]) -> S:
    """A spec with other values of some settings, by dotted name.

    Raises:
        FedshiftError: a value is wrong, or values do not go together.
    """
    changes: dict[str, Any] = {}
    for name, group in groupby(sorted(settings), key=lambda key: key.partition(".")[0]):
        below = {key.partition(".")[2]: settings[key] for key in group}
        changes[name] = below[""] if "" in below else with_settings(getattr(spec, name), below)
    return spec.replace(**changes)
