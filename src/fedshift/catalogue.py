"""Specs by name. Each room lists its specs in its ``__init__``, as text, so that a page is imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import resolve_name
from inspect import getdoc
from typing import Any, Generic, TypeVar

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.spec import Declaration, Nested, Spec, check_names, shown

T = TypeVar("T", bound=Spec)
C = TypeVar("C", bound=Spec)
Presets = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An entry that is another with some settings fixed, such as FedCiR without a term.

    Attributes:
        of: the name of the other entry, which is no variant.
        fixed: the values of the settings that make it the variant.
        unused: settings that have no effect then; like fixed ones they cannot be set.
        help: what it is, in one line.
        paper: where it comes from.
        presets: published settings, by the data set's name; None: the other's, less what is fixed.
    """

    of: str
    fixed: Mapping[str, object]
    unused: tuple[str, ...] = ()
    help: str
    paper: str = ""
    presets: Presets | None = None


@dataclass(frozen=True)
class Entry(Generic[T]):
    """What a name of a catalogue stands for: a class, and what is fixed of it; it is called as the class is.

    Attributes:
        cls: the class.
        name: its name in the catalogue, if it is in any.
        variant: what tells it from the class.
    """

    cls: type[T]
    name: str = ""
    variant: Variant | None = None

    def __call__(self, **values: Any) -> T:
        """Make the spec with some settings.

        Raises:
            FedshiftError: a name is no setting, or a value is wrong.
        """
        check_names(values, self.settings(), self.cls.section)
        fixed = {"listed_as": self.name, **self.variant.fixed} if self.variant else {}
        return self.cls(**fixed, **values)

    def settings(self) -> dict[str, Declaration]:
        """The fields that can be set, by name."""
        fixed = self.fixed()
        return {name: about for name, about in self.cls.settings().items() if name not in fixed}

    def fixed(self) -> dict[str, object]:
        """The values of the settings that cannot be set."""
        if self.variant is None:
            return {}
        known = self.cls.settings()
        return {name: known[name].default for name in self.variant.unused} | dict(self.variant.fixed)

    def made(self, spec: Spec) -> bool:
        """Whether a spec is of this entry: of its class, with its fixed values."""
        return type(spec) is self.cls and all(getattr(spec, name) == value for name, value in self.fixed().items())

    @property
    def built_in(self) -> bool:
        """Whether it comes with the package; otherwise it is a user's."""
        return self.cls.__module__.startswith("fedshift.")

    @property
    def help(self) -> str:
        """What it is: a line, or the class's documentation."""
        return self.variant.help if self.variant else getdoc(self.cls) or ""

    @property
    def paper(self) -> str:
        """Where it comes from; the paper of a class that a user's is derived from is not the user's."""
        if self.variant:
            return self.variant.paper
        return str(getattr(self.cls, "paper", "") if self.built_in else vars(self.cls).get("paper", ""))

    @property
    def presets(self) -> Presets:
        """Published settings, by the data set's name."""
        if self.variant and self.variant.presets is not None:
            return self.variant.presets
        known, published = self.settings(), getattr(self.cls, "presets", {})
        return {data: {key: preset[key] for key in preset if key in known} for data, preset in published.items()}


class Catalogue(Generic[T]):
    """Entries by name. A room's own are imported when first asked for; users add theirs by a decorator."""

    def __init__(self, name: str, room: str, *, kind: str, base: str, entries: Mapping[str, str | Variant]) -> None:
        """Say what is listed; classes are written "module:Class", the module as ``from`` has it: ".page" is the room's.

        Args:
            name: what the catalogue is called in its room, such as METHODS.
            room: the package that lists it.
            kind: what messages call an entry.
            base: the class that every entry derives from.
            entries: what the room has.
        """
        self.kind = kind
        self._variable = f"{room}.{name}"
        self._base = resolve_name(base, room)
        self._listed: dict[str, str | type[Spec] | Variant] = {
            name: resolve_name(listed, room) if isinstance(listed, str) else listed for name, listed in entries.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._listed))

    def base(self) -> type[T]:
        """The class every entry derives from."""
        base: type[T] = _load(self._base)
        return base

    @property
    def table(self) -> str:
        """The table of an experiment that holds an entry."""
        return self.base().section

    def get(self, name: str) -> Entry[T]:
        """The entry of a name.

        Raises:
            UnknownNameError: no entry has that name; the message names the nearest one.
        """
        if name not in self._listed:
            raise UnknownNameError(self.kind, name, self._listed)
        listed = self._listed[name]
        if isinstance(listed, Variant):
            return Entry(self.get(listed.of).cls, name, listed)
        cls: Any = _load(listed) if isinstance(listed, str) else listed
        return Entry(cls, name)

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Class decorator that makes a user's class known by a name.

        Raises:
            FedshiftError: the name is taken, or the class does not derive from the right base.
        """

        def add(cls: type[C]) -> type[C]:
            base: type[Spec] = self.base()
            if not issubclass(cls, base):
                raise FedshiftError(f"{cls.__name__} is no {self.kind}: it must derive from {base.__name__}.")
            listed = self._listed.get(name)
            if listed is not None and _path(listed) != _path(cls):
                raise FedshiftError(f"The {self.kind} name '{name}' is taken by {_path(listed)}; choose another.")
            self._listed[name] = cls
            return cls

        return add

    def entry_of(self, spec: Spec) -> Entry[T]:
        """The entry a spec was made by; a variant whose fixed settings were changed since is its class's.

        Raises:
            FedshiftError: its class is not in the catalogue.
        """
        if spec.listed_as in self._listed and (entry := self.get(spec.listed_as)).made(spec):
            return entry
        for name, listed in self._listed.items():
            if _path(listed) == _path(type(spec)):
                return self.get(name)
        missing = type(spec).__name__
        raise FedshiftError(f"{missing} has no name: decorate it with @{self._variable}.register('name').")

    def name_of(self, spec: Spec) -> str:
        """The name of the entry that a spec was made by."""
        return self.entry_of(spec).name

    def table_of(self, spec: Spec) -> dict[str, Any]:
        """A spec's name and settings, as TOML can hold them; :meth:`build` makes an equal spec of them."""
        entry = self.entry_of(spec)
        known = entry.settings()
        return {"name": entry.name, **{name: value for name, value in spec.table().items() if name in known}}

    def build(self, table: Mapping[str, Any], where: str = "") -> T:
        """Make a spec from a table with its ``name`` and settings; ``where`` is the table's name if it is another's.

        Raises:
            FedshiftError: a name or value in it is wrong or lacking.
        """
        entry = self.get(str(table["name"]))
        values = {key: value for key, value in table.items() if key != "name"}
        where = where or self.table
        check_names(values, entry.settings(), where)
        missing = [name for name, about in entry.settings().items() if about.required and name not in values]
        if missing:
            example = f"--set {where}.{missing[0]}=..."
            raise FedshiftError(f"The {self.kind} '{entry.name}' needs {', '.join(missing)}: {example}")
        return entry(**values)


class From(Nested):
    """Marks a setting that is itself an entry of a catalogue: its name, or a table with a name and settings.

    Write ``encoder: Annotated[Encoder, From(ENCODERS)]``.
    """

    def __init__(self, catalogue: Catalogue[Any]) -> None:
        self.catalogue = catalogue

    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec behind a name or table; a table without a name is of the default's."""
        if isinstance(value, Spec) and isinstance(value, self.catalogue.base()):
            return value
        table = {"name": value} if isinstance(value, str) else value
        if isinstance(table, Mapping) and ("name" in table or isinstance(default, str)):
            built: Spec = self.catalogue.build({"name": default, **table}, where)
            return built
        raise FedshiftError(
            f"{where} = {shown(value)}: give the name of a {self.catalogue.kind} ({', '.join(self.catalogue)}), or a "
            'table such as { name = "..." }.'
        )

    def is_default(self, spec: Spec, default: Any) -> bool:
        """Whether a spec is what a default, or its name, stands for."""
        return (
            self.catalogue.get(default).made(spec) and not spec.changed()
            if isinstance(default, str)
            else spec == default
        )

    def table(self, spec: Spec) -> dict[str, Any]:
        """The spec's name in the catalogue, and its settings."""
        return self.catalogue.table_of(spec)


def _path(listed: str | type | Variant) -> str:
    if isinstance(listed, Variant):
        return f"a variant of '{listed.of}'"
    return listed if isinstance(listed, str) else f"{listed.__module__}:{listed.__qualname__}"


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module) or import_module(module)
    return getattr(loaded, name)
