"""The space of a search: an interval or choices for each setting, by its dotted name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.spec import Range, Search, Spec
from fedshift.written import as_toml, leaf_types, parse_value, plain, shown

S = TypeVar("S", bound=Spec)

SEARCHED = ("method", "train", "model")  # tables; the others decide what is measured
SAME_FOR_ALL = {  # settings of [train] that decide how long a trial takes, or what it is judged on
    *("train.rounds", "train.steps", "train.unit", "train.batch", "train.participation"),
    *("train.patience", "train.min_delta", "train.absent", "train.late", "train.min_answers"),
}
DECADE = 10  # an interval this many times as wide as its lower end is searched by its logarithm
DIGITS = 4  # of a number that a trial has


class Setting(NamedTuple):
    """A setting that can be searched: its class, its name there, and the experiment's value."""

    cls: type[Spec]
    name: str
    value: Any

    @property
    def declared(self) -> Search | None:
        return self.cls.settings()[self.name].search

    @property
    def whole(self) -> bool:
        hint: Any = self.cls.model_fields[self.name].annotation
        return float not in leaf_types(hint)

    def read(self, key: str, given: Any) -> Search:
        """The interval or choices that a user gives for it; ``key`` is its name in messages.

        A :class:`Range`, a table with ``low``, ``high`` and perhaps ``log``, "0.001..0.1", or choices. Raises a
        FedshiftError for anything else, or if the setting does not accept a value.
        """
        if self.cls.settings()[self.name].path:
            raise FedshiftError(f"{key} names a file, which is not searched; give it by --set {key}=...")
        if isinstance(given, str) and ".." in given:
            low, _, high = given.partition("..")
            given = {"low": parse_value(low), "high": parse_value(high)}
        if isinstance(given, Range):
            given = asdict(given)
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


@dataclass(frozen=True)
class Space:
    """What a search varies."""

    searched: Mapping[str, Search]  # an interval or choices, by the setting's dotted name, in the order of names
    whole: frozenset[str]  # the names of integer settings
    own: Mapping[str, Any]  # the experiment's values, as TOML values; they may lie outside of the space

    @classmethod
    def of(
        cls, experiment: Experiment, ranges: Mapping[str, Any], fixed: Collection[str], declared: bool = True
    ) -> Space:
        """The ranges that pages declare (if ``declared``) and a user gives, without the settings that the user fixed.

        ``ranges`` are by dotted name; ``method.fedsr.l2r`` applies to FedSR only. Raises a FedshiftError if a range
        does not fit its setting.
        """
        known = settings_of(experiment)
        found = {
            key: setting.declared
            for key, setting in known.items()
            if declared and setting.declared is not None and not key.startswith("model.")
        }
        given = {here: value for key, value in ranges.items() if (here := key_here(key, experiment)) in known}
        found |= {key: known[key].read(key, value) for key, value in given.items()}
        kept = tuple(f"{key_here(key, experiment)}." for key in fixed)
        searched = {key: search for key, search in sorted(found.items()) if not f"{key}.".startswith(kept)}
        whole = frozenset(key for key in searched if known[key].whole)
        return cls(searched, whole, {key: as_toml(known[key].value) for key in searched})

    def table(self) -> dict[str, Any]:
        return {
            key: asdict(search) if isinstance(search, Range) else as_toml(search)
            for key, search in self.searched.items()
        }

    def settings(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's settings for a sampler's parameters, as TOML values; numbers have four digits."""
        settings: dict[str, Any] = {}
        for key, search in self.searched.items():
            found = parameters[key]
            if not isinstance(search, Range):
                settings[key] = as_toml(search[[*map(labelled, search)].index(found)])
            elif key in self.whole:
                settings[key] = found
            else:
                settings[key] = min(max(float(f"{found:.{DIGITS}g}"), search.low), search.high)
        return settings

    def __str__(self) -> str:
        return ", ".join(f"{key}: {describe_range(search)}" for key, search in self.searched.items()) or "nothing"


def labelled(choice: Any) -> Any:
    """A choice as Optuna accepts it: itself, or text instead of a list."""
    return shown(as_toml(choice)) if isinstance(choice, tuple | list) else choice


def describe_range(search: Search) -> str:
    if isinstance(search, Range):
        return str(search)
    return " | ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in search)


def settings_of(experiment: Experiment) -> dict[str, Setting]:
    return {
        key: Setting(type(spec), name, getattr(spec, name))
        for table in SEARCHED
        for names, spec in getattr(experiment, table).specs()
        for name in spec.settings()
        if (key := ".".join((table, *names, name))) not in SAME_FOR_ALL and name not in spec.nested()
    }


def key_here(key: str, experiment: Experiment) -> str:
    """A dotted name for an experiment's method: "method.l2r" for ``method.fedsr.l2r``; empty for another method's."""
    table, _, below = key.partition(".")
    owner, _, rest = below.partition(".")
    if table != "method" or not rest or owner not in METHODS or owner in experiment.method.settings():
        return key
    return f"method.{rest}" if owner == experiment.method_name else ""


def flat_ranges(table: Any, prefix: str = "") -> dict[str, Any]:
    """The ranges of a table [search] by dotted name, also where TOML made tables of the dots."""
    if not isinstance(table, Mapping):
        raise FedshiftError(f'search = {shown(table)}: give ranges by setting, as in {{"train.lr" = "0.001..0.1"}}.')
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and not value.keys() <= {"low", "high", "log"}
        found |= flat_ranges(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def unused_ranges(ranges: Mapping[str, Any], experiments: Sequence[Experiment]) -> list[str]:
    """The dotted names in ``ranges`` that only untuned methods have."""
    known = [(experiment, settings_of(experiment)) for experiment in experiments]
    names = {name for _, settings in known for name in settings}
    of_any = {
        f"method.{name}" for name in (*METHODS, *(key for each in METHODS for key in METHODS.get(each).settings()))
    }
    unused = []
    for key in ranges:
        if any(key_here(key, experiment) in settings for experiment, settings in known):
            continue
        table = key.partition(".")[0]
        inner = any(name.startswith(f"{key}.") for name in names)
        if inner or key in SAME_FOR_ALL or (table in Experiment.settings() and table not in SEARCHED):
            raise FedshiftError(
                f"{key} is the same for all trials: it decides which settings there are, how much training a trial has "
                f"(its budget), or what it is judged on. --set {key}=... gives it a value."
            )
        if ".".join(key.split(".")[:2]) not in of_any:
            raise UnknownNameError("setting to search", key, names)
        unused.append(key)
    return unused


def with_settings(spec: S, settings: Mapping[str, Any]) -> S:
    changes: dict[str, Any] = {}
    for name, group in groupby(sorted(settings), key=lambda key: key.partition(".")[0]):
        below = {key.partition(".")[2]: settings[key] for key in group}
        changes[name] = below[""] if "" in below else with_settings(getattr(spec, name), below)
    return spec.replace(**changes)
