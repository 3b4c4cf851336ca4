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
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from fedshift.errors import FedshiftError, UnknownNameError


@dataclass(frozen=True)
class AtMost(GroupedMetadata):
    """The upper limit of a number, and the reason for it, which the error gives."""

    limit: float
    reason: str

    def __iter__(self) -> Iterator[object]:
        yield Le(self.limit)


A_BILLION = AtMost(10**9, "more than any data set here has samples")
IN_MEMORY = AtMost(2**20, "a batch is in memory as a whole")
FLOAT32 = AtMost(3e38, "float32 holds no larger number")
SIDE = AtMost(4096, "a colour image of 4096 by 4096 pixels takes 200 MB as numbers")

Seed = Annotated[int, Ge(0), AtMost(2**63 - 1, "a whole number of TOML has 64 bits")]
Count = Annotated[int, Ge(1), A_BILLION]
WholeNumber = Annotated[int, Ge(0), A_BILLION]
Rounds = Annotated[int, Ge(1), AtMost(10**9, "at a thousand rounds a second, so many take eleven days")]
Steps = Annotated[int, Ge(1), AtMost(10**7, "nothing is recorded or saved until a round has ended")]
OptionalSteps = Annotated[int, Ge(0), AtMost(10**7, "nothing is recorded or saved until a round has ended")]
BatchSize = Annotated[int, Ge(1), IN_MEMORY]
Clients = Annotated[int, Ge(1), AtMost(10**6, "each client has a name and files of its own")]
Processors = Annotated[int, Ge(0), AtMost(1024, "a machine has fewer cores")]
Width = Annotated[int, Ge(1), AtMost(2**16, "a layer with so many inputs and outputs takes 17 GB")]
OptionalWidth = Annotated[int, Ge(0), AtMost(2**16, "a layer with so many inputs and outputs takes 17 GB")]
Layers = Annotated[int, Ge(1), AtMost(1000, "networks of this kind are not so deep")]
Pixels = Annotated[int, Ge(1), SIDE]
OptionalPixels = Annotated[int, Ge(0), SIDE]
NonNegative = Annotated[float, Ge(0), FLOAT32]
Positive = Annotated[float, Gt(0), FLOAT32]
LearningRate = Annotated[float, Gt(0), AtMost(1000, "a step of a thousand gradients leads nowhere")]
Momentum = Annotated[float, Ge(0), AtMost(1, "beyond that every step is larger than the one before")]
Fraction = Annotated[float, Interval(gt=0, le=1)]
ProperFraction = Annotated[float, Interval(gt=0, lt=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Degrees = Annotated[float, Ge(-360), AtMost(360, "a full turn")]


def _folder_name(name: str) -> str:
    if not 0 < len(name) <= 100 or name.startswith(".") or set(name) & set("/\\") or not name.isprintable():
        raise ValueError("it names a folder: 1 to 100 printable characters, no slash, no dot at the start")
    return name


def _folder_path(path: str) -> str:
    parts = Path(path).parts
    if not path or not path.isprintable() or len(path) > 1000 or any(len(part.encode()) > 255 for part in parts):
        raise ValueError(
            "it names a folder: 1 to 1,000 printable characters in UTF-8, at most 255 bytes between two slashes"
        )
    return path


def _run_name(name: str) -> str:
    if name in ("", ".", "..") or Path(name).name != name or "\0" in name or len(name.encode()) > 255:
        raise ValueError("it names no folder beside others: at most 255 bytes and no slash")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
RunName = Annotated[str, AfterValidator(_run_name)]  # that a file of a run or of a grid names, beside it
FolderPath = Annotated[str, AfterValidator(_folder_path)]


@dataclass(frozen=True)
class Range:
    """Where a search over a setting should look: an interval, uniform or log-uniform."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


Search = Range | tuple[Any, ...]
LONGEST_SHOWN = 100  # characters of a value in a message


def setting(
    default: Any = MISSING,
    *,
    help: str,
    source: str = "",
    search: Search | None = None,
    path: bool = False,
    words: tuple[str, ...] = (),
    portable: bool = False,
    code: bool = False,
    examples: tuple[str, ...] = (),
) -> Any:
    """A documented field of a :class:`Spec`.

    Args:
        default: its default value; without one the field must be given.
        help: what it is, in one line, with its unit or range.
        source: the paper's equation or section it comes from.
        search: where a hyper-parameter search should look.
        path: it may name a file or folder of this machine, whose content then counts, not where it lies.
        words: values of such a path that name no file, as "hub" does.
        portable: the file or folder of such a path serves other entries of the catalogue just as well.
        code: the file of such a path is code, or holds some, which a run carries out: it is trusted as plugins are.
        examples: values of free text, or of its items, that an editor or a shell may offer.
    """
    about: dict[str, Any] = {"help": help, "source": source, "search": search}
    about |= {"path": path, "words": words, "portable": portable, "code": code, "examples": examples}
    return field(default=default, metadata=about)


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

    def is_default(self, spec: Any, default: Any) -> bool:
        """Whether a spec is what a default stands for."""
        return bool(spec == default)

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
            raise FedshiftError(f"{where} = {shown(value)} is a value where a table belongs; write [{where}]")
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
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"

    def changed(self) -> dict[str, Any]:
        """The settings that are not at their defaults."""
        nested = self.nested()
        values = {name: (getattr(self, name), about.default) for name, about in self.settings().items()}
        return {
            name: value
            for name, (value, default) in values.items()
            if value != default and not (name in nested and nested[name].is_default(value, default))
        }

    def __post_init__(self) -> None:
        for name in self.settings():
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name, nested in self.nested().items():
            built = nested.build(getattr(self, name), self.settings()[name].default, self._where(name))
            object.__setattr__(self, name, built)
        for name in self.settings():
            if name not in self.nested():
                object.__setattr__(self, name, self.checked(name, getattr(self, name)))

    @classmethod
    def checked(cls, name: str, value: Any) -> Any:
        """The value of a setting that is no spec, as it is kept.

        Raises:
            FedshiftError: the setting does not take it; the message says what it takes.
        """
        hint = setting_type(cls, name)
        try:
            return adapter(hint).validate_python(_prepared(value, hint))
        except ValidationError as error:
            raise FedshiftError(f"{cls._where(name)} = {shown(value)}: {_problem(error, hint)}.") from None

    @classmethod
    def value_schema(cls, name: str) -> dict[str, Any]:
        """The JSON Schema of a setting's values, which an editor shows."""
        about = cls.settings()[name]
        hint = setting_type(cls, name)
        schema = {} if name in cls.nested() else _for_toml(adapter(hint).json_schema(), is_text(hint))
        schema["description"] = " ".join(filter(None, (about.metadata["help"], about.metadata["source"])))
        if about.default is not MISSING and about.default is not None:
            schema["default"] = as_toml(about.default)
        if about.metadata["examples"]:
            schema["examples"] = [*about.metadata["examples"]]
        return schema

    @classmethod
    def takes(cls, name: str, value: Any) -> bool:
        """Whether a value is right for a setting that is no spec."""
        try:
            return name not in cls.nested() and cls.checked(name, value) is not ...
        except FedshiftError:
            return False

    @classmethod
    def settings(cls) -> dict[str, Field[Any]]:
        """The fields that can be set, by name."""
        return dict(_settings(cls))  # type: ignore[arg-type]  # classes are hashable

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

    def code_paths(self) -> tuple[str, ...]:
        """The values of settings whose files hold code that a run carries out."""
        return tuple(getattr(self, name) for name, about in self.settings().items() if about.metadata.get("code"))

    def check_here(self) -> None:
        """Raise an error, with the fix, if what the settings name can neither be found here nor be had from the hub.

        Little is read for that. The specs among the settings are not asked.
        """

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
            name: nested[name].table(value) if name in nested else as_toml(value)
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
    return _hints(cls)[name]  # type: ignore[arg-type]  # classes are hashable


@cache
def _hints(cls: type[Spec]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


@cache
def _settings(cls: type[Spec]) -> dict[str, Field[Any]]:
    return {field.name: field for field in fields(cls) if field.init and field.name != "listed_as"}


@cache
def _nested(cls: type[Spec]) -> dict[str, Nested]:
    hints = _hints(cls)  # type: ignore[arg-type]  # classes are hashable
    found: dict[str, Nested] = {}
    for name in cls.settings():
        marks = [mark for mark in getattr(hints[name], "__metadata__", ()) if isinstance(mark, Nested)]
        if marks:
            found[name] = marks[0]
        elif isinstance(hints[name], type) and issubclass(hints[name], Spec):
            found[name] = Table(hints[name])
    return found


@cache
def adapter(hint: Any) -> TypeAdapter[Any]:
    """What checks values of a type: nothing is converted but a whole number where any number may stand."""
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


@cache
def leaf_types(hint: Any) -> frozenset[Any]:
    """The types that a setting's values have, in lists as well; the values of a Literal are not among them."""
    if get_origin(hint) is Annotated:
        return leaf_types(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType, tuple):
        return frozenset[Any]().union(*(leaf_types(option) for option in get_args(hint) if option is not ...))
    return frozenset({hint})


def is_text(hint: Any) -> bool:
    """Whether a setting's values are free text, so that a number given for one can only mean its digits."""
    kinds = leaf_types(hint)
    return str in kinds and not kinds & {int, float, bool}


def _for_toml(schema: Any, text: bool) -> Any:
    """The schema without null, which TOML has not; a number may stand for a text."""
    if isinstance(schema, list):
        return [_for_toml(item, text) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    if text and schema.get("type") == "string" and "enum" not in schema:
        return {**schema, "type": ["string", "number"]}
    return {key: _for_toml(value, text) for key, value in schema.items()}


def limits(hint: Any) -> Iterator[Any]:
    """What is said of a setting's numbers, in lists and alternatives as well: Ge, Gt, Le, Lt, Interval, AtMost."""
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Ge | Gt | Le | Lt | Interval | AtMost):
            yield mark
    for part in get_args(hint):
        if not isinstance(part, Ge | Gt | Le | Lt | Interval | AtMost):
            yield from limits(part)


def shown(value: Any) -> str:
    """A value in a message, however long it is."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 10]}...{text[-5:]}"


def _prepared(value: Any, hint: Any) -> Any:
    """A value as its type has it: a tuple for lists and single values, Python's numbers for NumPy's, 0 for -0."""
    if leaf_types(hint) == {Any} or get_origin(hint) is dict:
        return value
    as_text = is_text(hint)
    of_literals = any(get_origin(kind) is Literal for kind in leaf_types(hint))

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            value = value.tolist()
        if isinstance(value, tuple | list):
            return tuple(plain(item) for item in value)
        if as_text and isinstance(value, Path | int | float) and not isinstance(value, bool):
            return str(value)
        if of_literals and isinstance(value, bool):
            return None  # Python takes True for 1, which a Literal may have
        return value + 0.0 if isinstance(value, float) else value

    value = plain(value)
    if get_origin(hint) is not tuple or isinstance(value, tuple) or get_origin(get_args(hint)[0]) is tuple:
        return value
    return (value,)


def _problem(error: ValidationError, hint: Any) -> str:
    """What is wrong, in the words of a user; several kinds of value may be right."""
    found = [str(one["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list") for one in error.errors()]
    expected = [message.removeprefix("Input should be ") for message in found if message.startswith("Input should be ")]
    reached = {one["ctx"]["le"] for one in error.errors() if one["type"] == "less_than_equal"}
    reasons = [mark.reason for mark in limits(hint) if isinstance(mark, AtMost) and mark.limit in reached]
    problem = f"it should be {' or '.join(dict.fromkeys(expected))}" if expected else found[0]
    return f"{problem} ({reasons[-1]})" if reasons else problem


def as_toml(value: Any) -> Any:
    """A value as TOML can hold it."""
    return [as_toml(item) for item in value] if isinstance(value, tuple) else value
