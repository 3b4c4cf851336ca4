"""What everything that an experiment can name is: a frozen dataclass of documented, checked settings.

Methods, data sets, models and protocols are all declared the same way, so that showing them, reading them
from TOML, checking their values and writing them back is written once.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le
from pydantic import AfterValidator, AllowInfNan, ConfigDict, Strict, TypeAdapter, ValidationError

from fedshift.errors import FedshiftError, UnknownNameError

NonNegative = Annotated[float, Strict(), AllowInfNan(False), Ge(0)]
Positive = Annotated[float, Strict(), AllowInfNan(False), Gt(0)]
WholeInt = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Ge(1)]
Pixels = Annotated[int, Strict(), Ge(1), Le(4096)]
WholeNumber = Annotated[int, Strict(), Ge(0)]


def _folder_name(name: str) -> str:
    if not 0 < len(name) <= 100 or name.startswith(".") or set(name) & set("/\\\0"):
        raise ValueError("it names a folder: 1 to 100 characters, no slash, no dot at the start")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
ProperFraction = Annotated[float, Interval(gt=0, lt=1)]


@dataclass(frozen=True)
class Range:
    """Where a search over a setting should look: an interval, uniform or log-uniform."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


Search = Range | tuple[Any, ...]


def setting(
    default: Any = MISSING, *, help: str, source: str = "", search: Search | None = None, path: bool = False
) -> Any:
    """A documented field of a :class:`Spec`.

    Args:
        default: its default value; without one the field must be given.
        help: what it is, in one line, with its unit or range.
        source: the paper's equation or section it comes from.
        search: where a hyper-parameter search should look.
        path: it may name a file or folder of this machine, whose content then counts, not where it lies.
    """
    return field(default=default, metadata={"help": help, "source": source, "search": search, "path": path})


class Nested(ABC):
    """How a setting that is a spec itself is made from what a user writes, and written back."""

    @abstractmethod
    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec that a value stands for; a spec stands for itself.

        Args:
            value: what was given.
            default: the setting's default.
            where: what messages call the setting.

        Raises:
            FedshiftError: the value stands for none, or something in it is wrong.
        """

    @abstractmethod
    def table(self, spec: Any) -> dict[str, Any]:
        """The table from which :meth:`build` makes an equal spec."""


@dataclass(frozen=True)
class Table(Nested):
    """A setting that is always a spec of the same class: a table of its settings, without a name."""

    cls: type[Spec]

    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec of a table's values."""
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise FedshiftError(f"{where} = {value!r} is a value where a table belongs; write [{where}]")
        check_names(value, self.cls.settings(), where)
        return self.cls(**value)

    def table(self, spec: Spec) -> dict[str, Any]:
        """The spec's settings."""
        return spec.table()


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A frozen dataclass whose field values are checked whenever an instance is made.

    Attributes:
        section: the table of an experiment that holds its settings, as messages and ``--set`` call it.
        listed_as: the catalogue's name for it where its class does not tell: for a variant of the class.
    """

    section: ClassVar[str] = ""

    listed_as: str = field(default="", repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Spec.__repr__  # type: ignore[method-assign]  # or dataclass would write one with every field

    def __repr__(self) -> str:
        """The class, and the settings that are not at their defaults."""
        values = {name: (getattr(self, name), about.default) for name, about in self.settings().items()}
        changed = (f"{name}={value!r}" for name, (value, default) in values.items() if value != default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def __post_init__(self) -> None:
        for name in self.settings():
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name, nested in self.nested().items():
            built = nested.build(getattr(self, name), self.settings()[name].default, self._where(name))
            object.__setattr__(self, name, built)
        for name, adapter in _adapters(type(self)).items():  # type: ignore[arg-type]  # classes are hashable
            value = getattr(self, name)
            try:
                checked = adapter.validate_python(_as_list(value, setting_type(type(self), name)))
            except ValidationError as error:
                raise FedshiftError(f"{self._where(name)} = {value!r}: {_problem(error)}.") from None
            object.__setattr__(self, name, checked)

    @classmethod
    def settings(cls) -> dict[str, Field[Any]]:
        """The fields that can be set, by name."""
        return {field.name: field for field in fields(cls) if field.init and field.name != "listed_as"}

    @classmethod
    def nested(cls) -> dict[str, Nested]:
        """The settings that are specs themselves."""
        return _nested(cls)  # type: ignore[arg-type]  # classes are hashable

    @classmethod
    def _where(cls, name: str) -> str:
        return f"{cls.section}.{name}" if cls.section else name

    def specs(self) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """This spec and those among its settings, each with the names of the settings that lead to it."""
        yield (), self
        for name in self.nested():
            for names, spec in getattr(self, name).specs():
                yield (name, *names), spec

    def paths(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Every setting that may name a file or folder of this machine: the names that lead to it, and its value."""
        for names, spec in self.specs():
            for name, about in spec.settings().items():
                if about.metadata.get("path"):
                    yield (*names, name), getattr(spec, name)

    def with_absolute_paths(self) -> Self:
        """The same with every file or folder that exists named from the root, so that a run goes on from anywhere."""
        changes: dict[str, Any] = {name: getattr(self, name).with_absolute_paths() for name in self.nested()}
        for name, about in self.settings().items():
            named = getattr(self, name)
            if not about.metadata.get("path") or not named:
                continue
            try:
                named.encode()  # as TOML it has to be UTF-8
                if (there := Path(named).expanduser()).exists():
                    changes[name] = str(there.resolve())
            except (OSError, RuntimeError, ValueError) as error:  # too long; ~ of a user who is not there; a zero byte
                raise FedshiftError(
                    f"{self._where(name)} = {named!r:.200} cannot be a path ({error!s:.200})."
                ) from error
        return replace(self, **changes) if changes else self

    def table(self) -> dict[str, Any]:
        """The settings and their values, as TOML can hold them; a catalogue adds the name."""
        nested = self.nested()
        values = {name: getattr(self, name) for name in self.settings()}
        return {
            name: nested[name].table(value) if name in nested else _as_toml(value)
            for name, value in values.items()
            if value is not None
        }


def plain(value: Any) -> Any:
    """A value as TOML can hold it: paths as text, NumPy's numbers and arrays as Python's, also within lists and tables.

    What is none of these comes back as it is.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist") and not isinstance(value, type):  # a float64 is a float, but TOML cannot hold it
        python = value.tolist()
        if type(python) is not type(value):
            return plain(python)
        return float(python) if isinstance(python, Real) else python  # a longdouble, which Python has not
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def check_names(names: Iterable[str], known: Mapping[str, Any], where: str) -> None:
    """Raise an error that gives the nearest right name if any of ``names`` is no setting of the table ``where``."""
    for name in names:
        if name not in known:
            raise UnknownNameError(f"field of [{where}]", name, known)


def setting_type(cls: type[Spec], name: str) -> Any:
    """The type of a setting, with its limits."""
    return get_type_hints(cls, include_extras=True)[name]


@cache
def _nested(cls: type[Spec]) -> dict[str, Nested]:
    hints = get_type_hints(cls, include_extras=True)
    found: dict[str, Nested] = {}
    for name in cls.settings():
        marks = [mark for mark in getattr(hints[name], "__metadata__", ()) if isinstance(mark, Nested)]
        if marks:
            found[name] = marks[0]
        elif isinstance(hints[name], type) and issubclass(hints[name], Spec):
            found[name] = Table(hints[name])
    return found


@cache
def _adapters(cls: type[Spec]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    config = ConfigDict(coerce_numbers_to_str=True)
    return {name: TypeAdapter(hints[name], config=config) for name in cls.settings() if name not in cls.nested()}


def _as_list(value: Any, hint: Any) -> Any:
    """A single value where a list of values is expected is a list of one."""
    if get_origin(hint) is not tuple or isinstance(value, tuple | list):
        return value
    return value if get_origin(get_args(hint)[0]) is tuple else (value,)


def _problem(error: ValidationError) -> str:
    """What is wrong, in the words of a user; several kinds of value may be right."""
    found = [str(one["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list") for one in error.errors()]
    expected = [message.removeprefix("Input should be ") for message in found if message.startswith("Input should be ")]
    return f"it should be {' or '.join(dict.fromkeys(expected))}" if expected else found[0]


def _as_toml(value: Any) -> Any:
    return [_as_toml(item) for item in value] if isinstance(value, tuple) else value
