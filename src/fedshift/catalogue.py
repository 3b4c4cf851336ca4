"""Catalogues of specs by name. A room lists its specs as text in its ``__init__``, so that a module is imported on use.

A variant, such as FedCiR without a term, is a subclass in which settings are :func:`~fedshift.spec.fixed`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import resolve_name
from typing import Any, Generic, TypeVar

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.spec import Nested, Spec, check_names
from fedshift.written import shown

T = TypeVar("T", bound=Spec)
C = TypeVar("C", bound=Spec)
YOUR_OWN = "--plugin FILE (plugins in Python) adds your own."


class Catalogue(Generic[T]):
    """Specs by name: the built-in entries are imported on first use, users add theirs by a decorator."""

    def __init__(self, name: str, room: str, *, kind: str, base: str, entries: Mapping[str, str]) -> None:
        """Create a catalogue; entries map a name to "module:Class", with ".page" relative to the room.

        Args:
            name: the catalogue's variable name, such as METHODS.
            room: the package that defines it.
            kind: the noun for an entry in messages.
            base: the class that every entry derives from.
            entries: the built-in entries.
        """
        self.kind, self.plural = kind, name.lower()
        self._variable = f"{room}.{name}"
        self._base = resolve_name(base, room)
        self._listed: dict[str, str | type[Spec]] = {
            name: resolve_name(listed, room) for name, listed in entries.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._listed))

    def base(self) -> type[T]:
        base: type[T] = _load(self._base)
        return base

    @property
    def table(self) -> str:
        return self.base().section

    def get(self, name: str) -> type[T]:
        """Return the class of a name.

        Raises:
            UnknownNameError: no entry has that name; the message names the nearest one.
        """
        if name not in self._listed:
            raise UnknownNameError(self.kind, name, self._listed, hint=YOUR_OWN)
        listed = self._listed[name]
        cls: type[T] = _load(listed) if isinstance(listed, str) else listed  # type: ignore[assignment]  # register checks
        return cls

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Class decorator that registers a user's class under a name."""

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

    def name_of(self, spec: Spec) -> str:
        cls = type(spec)
        for name, listed in self._listed.items():
            if _path(listed) == _path(cls):
                return name
        raise FedshiftError(f"{cls.__name__} has no name: decorate it with @{self._variable}.register('name').")

    def table_of(self, spec: Spec) -> dict[str, Any]:
        """A spec's name and settings as TOML values; :meth:`build` makes an equal spec of them."""
        return {"name": self.name_of(spec), **spec.table()}

    def build(self, table: Mapping[str, Any], where: str = "") -> T:
        """Make a spec from a table with its ``name`` and settings; ``where`` names the table in messages."""
        name, where = str(table["name"]), where or self.table
        cls = self.get(name)
        values = {key: value for key, value in table.items() if key != "name"}
        check_names(values, cls.settings(), where)
        missing = [key for key, about in cls.settings().items() if about.required and key not in values]
        if missing:
            raise FedshiftError(f"The {self.kind} '{name}' needs {', '.join(missing)}: --set {where}.{missing[0]}=...")
        return cls(**values)


class From(Nested):
    """Marks a setting that is an entry of a catalogue: a name, or a table with a name and settings.

    Write ``encoder: Annotated[Encoder, From(ENCODERS)]``.
    """

    def __init__(self, catalogue: Catalogue[Any]) -> None:
        self.catalogue = catalogue

    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec that a name or table describes; a table without a name describes the default's class."""
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
        """Whether a spec equals the default, which may be given as a name."""
        named = isinstance(default, str)
        return type(spec) is self.catalogue.get(default) and not spec.changed() if named else spec == default

    def table(self, spec: Spec) -> dict[str, Any]:
        return self.catalogue.table_of(spec)


def built_in(cls: type) -> bool:
    """Whether a class comes with the package, and not from a user's file."""
    return cls.__module__.startswith("fedshift.")


def _path(listed: str | type) -> str:
    return listed if isinstance(listed, str) else f"{listed.__module__}:{listed.__qualname__}"


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module) or import_module(module)
    return getattr(loaded, name)
