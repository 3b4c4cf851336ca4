"""What everything that an experiment can name is: a frozen pydantic model of documented settings.

Methods, data sets, models and protocols are all declared the same way, so that showing them, reading them
from TOML, checking their values and writing them back is written once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getdoc
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fedshift.errors import FedshiftError, UnknownNameError

FLOAT32 = Le(3e38)
SIDE = Le(4096)  # pixels
IN_MEMORY = Le(2**20)  # samples of a batch

Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
Count = Annotated[int, Ge(1), Le(10**9)]
WholeNumber = Annotated[int, Ge(0), Le(10**9)]
Rounds = Annotated[int, Ge(1), Le(10**9)]
Steps = Annotated[int, Ge(1), Le(10**7)]
OptionalSteps = Annotated[int, Ge(0), Le(10**7)]
BatchSize = Annotated[int, Ge(1), IN_MEMORY]
Clients = Annotated[int, Ge(1), Le(10**6)]
Processors = Annotated[int, Ge(0), Le(1024)]
Width = Annotated[int, Ge(1), Le(2**16)]
OptionalWidth = Annotated[int, Ge(0), Le(2**16)]
Layers = Annotated[int, Ge(1), Le(1000)]
Pixels = Annotated[int, Ge(1), SIDE]
OptionalPixels = Annotated[int, Ge(0), SIDE]
NonNegative = Annotated[float, Ge(0), FLOAT32]
Positive = Annotated[float, Gt(0), FLOAT32]
LearningRate = Annotated[float, Gt(0), Le(1000)]
Momentum = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
ProperFraction = Annotated[float, Interval(gt=0, lt=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Degrees = Annotated[float, Ge(-360), Le(360)]


def _folder_name(name: str) -> str:
    if not 0 < len(name) <= 100 or name.startswith(".") or set(name) & set("/\\") or not name.isprintable():
        raise ValueError("it names a folder: 1 to 100 printable characters, no slash, no dot at the start")
    return name


def _folder_path(path: str) -> str:
    if not path or not path.isprintable() or len(path) > 1000:
        raise ValueError("it names a folder: 1 to 1,000 printable characters")
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


@dataclass(frozen=True)
class DeclaredSetting:
    """What :func:`setting` says of a field, beside its type.

    Attributes:
        default: its default value; ... where the field must be given.
        help: what it is, in one line, with its unit or range.
        source: the paper's equation or section it comes from.
        search: where a hyper-parameter search should look.
        path: it may name a file or folder of this machine, whose content then counts, not where it lies.
        words: values of such a path that name no file, as "hub" does.
        portable: the file or folder of such a path serves other entries of the catalogue just as well.
        code: the file of such a path is code, or holds some, which a run carries out: it is trusted as plugins are.
        examples: values of free text, or of its items, that an editor or a shell may offer.
    """

    default: Any
    help: str = ""
    source: str = ""
    search: Search | None = None
    path: bool = False
    words: tuple[str, ...] = ()
    portable: bool = False
    code: bool = False
    examples: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is ...

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add to the JSON Schema what editors show."""
        schema.pop("title", None)
        if self.source:
            schema["description"] = f"{self.help} ({self.source})"
        if self.examples:
            schema["examples"] = [*self.examples]


def setting(default: Any = ..., *, help: str, **about: Any) -> Any:
    """A documented field of a :class:`Spec`; without a default it must be given.

    Args:
        default: its default value.
        help: what it is, in one line, with its unit or range.
        about: what else :class:`DeclaredSetting` has.
    """
    return Field(default=default, description=help, json_schema_extra=DeclaredSetting(default, help, **about))


def fixed(default: Any = None) -> Any:
    """A field of a :class:`Spec` that is no setting in this class, though it may be one in its base."""
    return Field(default=default, validate_default=False, exclude=True)


class Nested:
    """A setting that is a spec itself: a table of the settings of a class."""

    def __init__(self, cls: type[Spec]) -> None:
        self.cls = cls

    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec that a table stands for; a spec stands for itself.

        Args:
            value: what was given.
            default: the setting's default.
            where: what messages call the setting.

        Raises:
            FedshiftError: the value stands for none, or something in it is wrong.
        """
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise FedshiftError(f"{where} = {shown(value)} is a value where a table belongs; write [{where}]")
        return self.cls(**value)

    def table(self, spec: Any) -> dict[str, Any]:
        """The table from which :meth:`build` makes an equal spec."""
        table: dict[str, Any] = spec.table()
        return table

    def is_default(self, spec: Any, default: Any) -> bool:
        """Whether a spec is what a default stands for."""
        return bool(spec == default)


class Spec(BaseModel):
    """A frozen model whose values are checked whenever an instance is made.

    A class whose settings must fit each other checks that in ``__post_init__``, which is called once each is right.

    Attributes:
        section: the table of an experiment that holds its settings, as messages and ``--set`` call it.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        validate_default=True,
        defer_build=True,
        protected_namespaces=(),
    )
    section: ClassVar[str] = ""

    def __init__(self, /, **values: Any) -> None:
        """Check the settings.

        Raises:
            FedshiftError: a name is no setting, or a value is wrong; the message names what is right.
        """
        check_names(values, self.settings(), self.section or type(self).__name__)
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            given = f"{self._where(name)} = {shown(values[name])}" if name in values else self._where(name)
            raise FedshiftError(f"{given}: {_problem(error, name)}.") from None

    def model_post_init(self, _context: Any, /) -> None:
        """Check how the settings fit each other."""
        self.__post_init__()

    def __post_init__(self) -> None:
        """Raise an error if settings do not fit each other."""

    @classmethod
    def help(cls) -> str:
        """What it is: the class's documentation."""
        return getdoc(cls) or ""

    def __str__(self) -> str:
        return repr(self)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield from self.changed().items()

    @field_validator("*", mode="before")
    @classmethod
    def _prepare(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if name not in cls.settings():
            return value
        if nested := cls.nested().get(name):
            return nested.build(plain(value), cls.settings()[name].default, cls._where(name))
        return _prepared(plain(value), setting_type(cls, name))

    @classmethod
    def checked(cls, name: str, value: Any) -> Any:
        """The value of a setting that is no spec, as it is kept.

        Raises:
            FedshiftError: the setting does not take it; the message says what it takes.
        """
        try:
            return _adapter(cls, name).validate_python(_prepared(plain(value), setting_type(cls, name)))
        except ValidationError as error:
            raise FedshiftError(f"{cls._where(name)} = {shown(value)}: {_problem(error)}.") from None

    @classmethod
    def takes(cls, name: str, value: Any) -> bool:
        """Whether a value is right for a setting that is no spec."""
        try:
            return name not in cls.nested() and cls.checked(name, value) is not ...
        except FedshiftError:
            return False

    @classmethod
    def settings(cls) -> dict[str, DeclaredSetting]:
        """The fields that can be set, by name."""
        return _settings(cls)

    @classmethod
    def nested(cls) -> dict[str, Nested]:
        """The settings that are specs themselves."""
        return _nested(cls)

    @classmethod
    def _where(cls, name: str) -> str:
        return f"{cls.section}.{name}" if cls.section else name

    def replace(self, **changes: Any) -> Self:
        """The same with other values of some settings.

        Raises:
            FedshiftError: a name is no setting, or a value is wrong.
        """
        values = {name: getattr(self, name) for name in self.settings()}
        return type(self)(**{**values, **changes})

    def changed(self) -> dict[str, Any]:
        """The settings that are not at their defaults."""
        nested = self.nested()
        values = {name: (getattr(self, name), about.default) for name, about in self.settings().items()}
        return {
            name: value
            for name, (value, default) in values.items()
            if value != default and not (name in nested and nested[name].is_default(value, default))
        }

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
                if about.path:
                    yield (*names, name), getattr(spec, name)

    def check_here(self) -> None:
        """Raise an error, with the fix, if what the settings name can neither be found here nor be had from the hub.

        Little is read for that. The specs among the settings are not asked.
        """

    def with_absolute_paths(self) -> Self:
        """The same with every file or folder that exists named from the root, so that a run goes on from anywhere."""
        changes: dict[str, Any] = {name: getattr(self, name).with_absolute_paths() for name in self.nested()}
        for name, about in self.settings().items():
            named = getattr(self, name)
            if not about.path or not named:
                continue
            try:
                named.encode()  # as TOML it has to be UTF-8
                if (there := Path(named).expanduser()).exists():
                    changes[name] = str(there.resolve())
            except (OSError, RuntimeError, ValueError) as error:  # too long; ~ of a user who is not there; a zero byte
                raise FedshiftError(
                    f"{self._where(name)} = {named!r:.200} cannot be a path ({error!s:.200})."
                ) from error
        return self.replace(**changes) if changes else self

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
        return value.tolist()
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
    """The type of a setting, without limits that hold for the whole of it."""
    return cls.model_fields[name].annotation


@cache
def _settings(cls: type[Spec]) -> dict[str, DeclaredSetting]:
    found: dict[str, DeclaredSetting] = {}
    for name, field in cls.model_fields.items():
        if isinstance(field.json_schema_extra, DeclaredSetting):
            found[name] = field.json_schema_extra
        elif not field.exclude:  # a field that is declared without setting()
            found[name] = DeclaredSetting(... if field.is_required() else field.default)
    return found


@cache
def _nested(cls: type[Spec]) -> dict[str, Nested]:
    found: dict[str, Nested] = {}
    for name in cls.settings():
        field = cls.model_fields[name]
        marks = [mark for mark in field.metadata if isinstance(mark, Nested)]
        if marks:
            found[name] = marks[0]
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
            found[name] = Nested(field.annotation)
    return found


@cache
def _adapter(cls: type[Spec], name: str) -> TypeAdapter[Any]:
    field = cls.model_fields[name]
    hint: Any = Annotated[field.annotation, field]
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


def shown(value: Any) -> str:
    """A value in a message, however long it is."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 10]}...{text[-5:]}"


def _prepared(value: Any, hint: Any) -> Any:
    """A value as its type has it: a tuple for lists and single values, text for digits, 0 for -0."""
    if leaf_types(hint) == {Any} or get_origin(hint) is dict:
        return value
    as_text = is_text(hint)
    of_literals = any(get_origin(kind) is Literal for kind in leaf_types(hint))

    def item(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(item(each) for each in value)
        if isinstance(value, bool):
            return None if of_literals else value  # Python takes True for 1, which a Literal may have
        if as_text and isinstance(value, int | float):
            return str(value)
        return value + 0.0 if isinstance(value, float) else value

    value = item(value)
    if get_origin(hint) is not tuple or isinstance(value, tuple) or get_origin(get_args(hint)[0]) is tuple:
        return value
    return (value,)


def _problem(error: ValidationError, name: str = "") -> str:
    """What is wrong with a value; several kinds of value may be right."""
    found = [
        str(one["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
        for one in error.errors(include_url=False)
        if not name or one["loc"][0] == name
    ]
    expected = [message.removeprefix("Input should be ") for message in found if message.startswith("Input should be ")]
    return f"it should be {' or '.join(dict.fromkeys(expected))}" if expected else found[0]


def as_toml(value: Any) -> Any:
    """A value as TOML can hold it."""
    return [as_toml(item) for item in value] if isinstance(value, tuple) else value
