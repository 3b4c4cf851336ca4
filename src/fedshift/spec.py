"""The base of everything that an experiment can name: a frozen pydantic model of documented settings.

Methods, data sets, models and protocols are declared in the same way, so that they are shown, read from TOML, checked
and written by one implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import getdoc
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Interval, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.written import as_toml, plain, prepared, shown

FLOAT32 = Le(3e38)
SIDE = Le(4096)  # pixels
IN_MEMORY = Le(2**20)  # samples of a batch

Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
Count = Annotated[int, Ge(1), Le(10**9)]
WholeNumber = Annotated[int, Ge(0), Le(10**9)]
Percent = Annotated[int, Ge(0), Le(100)]
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


@dataclass(frozen=True)
class Range:
    """The interval of a hyper-parameter search, uniform or log-uniform."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"

    @property
    def points(self) -> tuple[float, float, float]:
        """Its ends and its middle, which a grid tries."""
        return self.low, sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2, self.high


Search = Range | tuple[Any, ...]


@dataclass(frozen=True)
class DeclaredSetting:
    """The description of a field by :func:`setting`."""

    default: Any  # its default value; ... if the field is required.
    help: str = ""  # one line, with its unit or range
    source: str = ""  # the paper's equation or section
    search: Search | None = None  # where a hyper-parameter search looks
    path: bool = False  # the value may name a file or folder, whose content then counts, not its location
    words: tuple[str, ...] = ()  # values of such a path that name no file, such as "hub"
    code: bool = False  # such a file is code that a run executes: it is trusted as plugins are
    examples: tuple[str, ...] = ()  # values of free text that an editor or a shell may offer

    @property
    def required(self) -> bool:
        return self.default is ...

    def __call__(self, schema: dict[str, Any]) -> None:
        schema.pop("title", None)
        if self.source:
            schema["description"] = f"{self.help} ({self.source})"
        if self.examples:
            schema["examples"] = [*self.examples]


def setting(default: Any = ..., *, help: str, **about: Any) -> Any:
    """A documented field of a :class:`Spec`; without a default it is required.

    Args:
        default: its default value.
        help: one line, with its unit or range.
        about: further attributes of :class:`DeclaredSetting`.
    """
    return Field(default=default, description=help, json_schema_extra=DeclaredSetting(default, help, **about))


def fixed(default: Any = None) -> Any:
    """A field of a :class:`Spec` that is not a setting in this class, though it may be a setting of its base."""
    return Field(default=default, validate_default=False, exclude=True)


class Nested:
    """A setting that is itself a spec: a table of the settings of a class."""

    def __init__(self, cls: type[Spec]) -> None:
        self.cls = cls

    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec that a value describes: a table, or a spec itself; ``where`` names the setting in messages."""
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
        return bool(spec == default)


class Spec(BaseModel):
    """A frozen model whose values are checked whenever an instance is created.

    A class whose settings must fit each other checks that in ``__post_init__``, which runs after each value is valid.

    Attributes:
        section: the table of an experiment with its settings, as messages and ``--set`` name it.
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
            FedshiftError: a name is not a setting, or a value is wrong; the message names the right one.
        """
        check_names(values, self.settings(), self.section or type(self).__name__)
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            given = f"{self._where(name)} = {shown(values[name])}" if name in values else self._where(name)
            raise FedshiftError(f"{given}: {_problem(error, name)}.") from None

    def model_post_init(self, _context: Any, /) -> None:
        self.__post_init__()

    def __post_init__(self) -> None:
        """Raise an error if settings do not fit each other."""

    @classmethod
    def help(cls) -> str:
        """The class's documentation."""
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
        return prepared(plain(value), cls.model_fields[name].annotation)

    @classmethod
    def checked(cls, name: str, value: Any) -> Any:
        """The stored value of a setting that is not a spec.

        Raises:
            FedshiftError: the setting does not accept the value; the message describes what it accepts.
        """
        field = cls.model_fields[name]
        hint: Any = Annotated[field.annotation, field]
        adapter = TypeAdapter[Any](hint, config=ConfigDict(strict=True, allow_inf_nan=False))
        try:
            return adapter.validate_python(prepared(plain(value), field.annotation))
        except ValidationError as error:
            raise FedshiftError(f"{cls._where(name)} = {shown(value)}: {_problem(error)}.") from None

    @classmethod
    @cache
    def settings(cls) -> dict[str, DeclaredSetting]:
        found: dict[str, DeclaredSetting] = {}
        for name, field in cls.model_fields.items():
            if isinstance(field.json_schema_extra, DeclaredSetting):
                found[name] = field.json_schema_extra
            elif not field.exclude:  # a field that is declared without setting()
                found[name] = DeclaredSetting(... if field.is_required() else field.default)
        return found

    @classmethod
    @cache
    def nested(cls) -> dict[str, Nested]:
        """The settings that are specs."""
        found: dict[str, Nested] = {}
        for name in cls.settings():
            field = cls.model_fields[name]
            if marks := [mark for mark in field.metadata if isinstance(mark, Nested)]:
                found[name] = marks[0]
            elif isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
                found[name] = Nested(field.annotation)
        return found

    @classmethod
    def _where(cls, name: str) -> str:
        return f"{cls.section}.{name}" if cls.section else name

    def replace(self, **changes: Any) -> Self:
        """A copy with other values of some settings.

        Raises:
            FedshiftError: a name is not a setting, or a value is wrong.
        """
        values = {name: getattr(self, name) for name in self.settings()}
        return type(self)(**{**values, **changes})

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        nested = self.nested()
        values = {name: (getattr(self, name), about.default) for name, about in self.settings().items()}
        return {
            name: value
            for name, (value, default) in values.items()
            if value != default and not (name in nested and nested[name].is_default(value, default))
        }

    def specs(self) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """This spec and the specs among its settings, each with the names of the settings that lead to it."""
        yield (), self
        for name in self.nested():
            for names, spec in getattr(self, name).specs():
                yield (name, *names), spec

    def paths(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Every setting that may name a file or folder: the names that lead to it, and its value."""
        for names, spec in self.specs():
            for name, about in spec.settings().items():
                if about.path:
                    yield (*names, name), getattr(spec, name)

    def check_here(self) -> None:
        """Raise an error, with the fix, if a file or network that the settings name is neither here nor on the hub.

        It reads little, and does not check the specs among the settings.
        """

    def with_absolute_paths(self) -> Self:
        """A copy in which existing files and folders have absolute paths, so that a run resumes from anywhere."""
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
        """The settings and their values as TOML values; a catalogue adds the name."""
        nested = self.nested()
        values = {name: getattr(self, name) for name in self.settings()}
        return {
            name: nested[name].table(value) if name in nested else as_toml(value)
            for name, value in values.items()
            if value is not None
        }


def check_names(names: Iterable[str], known: Mapping[str, Any], where: str) -> None:
    """Raise an error with the nearest valid name if any of ``names`` is not a setting of the table ``where``."""
    for name in names:
        if name not in known:
            raise UnknownNameError(f"field of [{where}]", name, known)


def _problem(error: ValidationError, name: str = "") -> str:
    """The message for an invalid value; a value of several types may have several."""
    found = [
        str(one["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
        for one in error.errors(include_url=False)
        if not name or one["loc"][0] == name
    ]
    expected = [message.removeprefix("Input should be ") for message in found if message.startswith("Input should be ")]
    return f"it should be {' or '.join(dict.fromkeys(expected))}" if expected else found[0]
