"""An experiment's document with changes, and what of it they leave out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.settings.catalogue import Catalogue, Entry, From
from fedshift.settings.experiment import DEFAULT_NAMES, NAMED, load_plugins
from fedshift.settings.spec import leaf_types, setting_type, shown
from fedshift.settings.written import Written

Table = dict[str, Any]
Where = tuple[str, ...]  # the names of the tables that lead to a setting or a table


@dataclass(frozen=True)
class Changed:
    """A document after changes.

    Attributes:
        document: the tables.
        left_out: a sentence for each setting of the old document that no longer counts: which, its value, and why.
    """

    document: Table
    left_out: tuple[str, ...]


def changed(document: Mapping[str, Any], changes: Mapping[str, Any], folder: Path | None = None) -> Changed:
    """A document with dotted keys such as ``method.l2r`` set.

    Naming another data set, partition, protocol, model, method, or entry of a nested catalogue keeps the settings that
    the new one takes as well. What it lacks or refuses is left out, and so is the path of files that belong to the old
    one. A method's setting that is given here also takes the place of that in the method's own table.

    Args:
        document: the tables.
        changes: values by dotted key.
        folder: that of the document's file: a path in the document that lies there is named from the root, and any
            other is of the current folder.

    Raises:
        FedshiftError: a name is unknown, or a key leads through a value that is no table.
    """
    change = _Change(document, changes)
    change.apply(folder)
    return Changed(change.document, tuple(change.left_out))


def copied(table: Mapping[str, Any]) -> Table:
    """The table and the tables in it anew."""
    return {key: copied(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def opened(value: Any) -> Table:
    """The table of an entry that may be given by its name alone; empty for what is neither."""
    if isinstance(value, Written):
        value = value.table() or value.names()
    if isinstance(value, str):
        return {"name": value}
    return value if isinstance(value, dict) else {}


def is_list_of_choices(value: Any, hint: Any) -> bool:
    """Whether a list holds several values of a setting, and is not a value itself."""
    if not isinstance(value, list):
        return False
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if len(alternatives) > 1 and value and isinstance(value[0], str):  # words, also where numbers may be listed
        alternatives = tuple(one for one in alternatives if str in leaf_types(one))
    return _depth(value) > max(map(_depth_of_type, alternatives), default=0)


def _depth(value: Any) -> int:
    """How many lists lie in one another: 0 for a value, 2 for a list of lists."""
    if not isinstance(value, list):
        return 0
    return 1 + max((_depth(item) for item in value[:1]), default=0)


def _depth_of_type(hint: Any) -> int:
    """How many lists a setting takes in one another."""
    return 1 + _depth_of_type(get_args(hint)[0]) if get_origin(hint) is tuple else 0


def _choices(value: Any, hint: Any) -> list[Any]:
    return value if is_list_of_choices(value, hint) else [value]


@dataclass(frozen=True)
class _Place:
    """A table of a document that holds an entry, and the catalogue of that; ``default`` is named without a name."""

    where: Where
    catalogue: Catalogue[Any]
    default: str

    def __str__(self) -> str:
        return ".".join(self.where)


class _Change:
    """A document while it is changed, tables before what is in them."""

    def __init__(self, document: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        self.document = copied(document)
        self.changes: dict[Where, Any] = {tuple(key.split(".")): value for key, value in changes.items()}
        self.left_out: dict[str, None] = {}

    def apply(self, folder: Path | None) -> None:
        """Make every change, to paths of a folder first."""
        if folder and "plugins" in self.document:
            self.document["plugins"] = _placed(self.document["plugins"], folder)
        plugins: Any = self.changes.get(("plugins",), self.document.get("plugins", ()))
        if isinstance(plugins, Written):
            names = plugins.names()
            plugins = self.changes["plugins",] = [names] if isinstance(names, str) else names
        load_plugins(plugins)
        if folder:
            self._place_paths(folder)
        data = self._data()
        for where in sorted(self.changes, key=lambda where: (len(where), where[-1] != "name")):
            self._change(where, self.changes[where])
        self._say_what_is_not_run()
        self._say_what_was_published(data, self._data())

    def _change(self, where: Where, value: Any) -> None:
        for own in self._own_tables():
            if where[0] == "method" and where[1:2] and where[1] in own[1] and (*own[0], *where[1:]) not in self.changes:
                self._change((*own[0], *where[1:]), value)
        named = where[-1] == "name"
        place = self._place(where[:-1] if named else where)
        if where in {("method", "preset"), ("name",)} or named:
            value = _texts(value)
        if place is None or (not named and len(where) == 1 and not isinstance(value, Mapping)):
            self._assign(where, value)
            return
        whole = (value.table() or value.names()) if isinstance(value, Written) else value
        if named or isinstance(whole, str):
            self._rename(place, whole)
            return
        self._say_what_is_replaced(place, whole if isinstance(whole, Mapping) else {})
        self._assign(where, whole)

    def _place_paths(self, folder: Path) -> None:
        """Name the paths that lie in a folder from the root."""
        for where, table in _tables(self.document):
            place = self._place(where)
            for entry in _entries(place, table) if place else ():
                for name, about in entry.settings().items():
                    if name in table and about.metadata.get("path"):
                        table[name] = _placed(table[name], folder, about.metadata["words"])

    # Where things are ---------------------------------------------------------------------------------

    def _place(self, where: Where) -> _Place | None:
        """The table of an entry at a path; None if something else is there."""
        if not where or where[0] not in NAMED:
            return None
        place = _Place(where[:1], NAMED[where[0]], DEFAULT_NAMES[where[0]])
        held = opened(self.document.get(where[0]))
        entries = _entries(place, held)
        below = where[1:]
        if where[0] == "method" and below and _is_own(below[0], entries):
            entries, held, below = [METHODS.get(below[0])], opened(held.get(below[0])), below[1:]
            if not below:
                return None
        for name in below:
            nested = [entry for entry in entries if isinstance(entry.cls.nested().get(name), From)]
            if not nested:
                return None
            mark, default = nested[0].cls.nested()[name], nested[0].settings()[name].default
            assert isinstance(mark, From)
            default = default if isinstance(default, str) else ""
            place = _Place((*place.where, name), mark.catalogue, default)
            held = opened(held.get(name))
            entries = _entries(place, held)
        return _Place(where, place.catalogue, place.default)

    def _table(self, where: Where) -> Table:
        """The table at a path, made if there is none."""
        table = self.document
        for depth, name in enumerate(where):
            held = table.get(name)
            if depth and isinstance(held, str | Written):
                held = opened(held)  # an entry of a catalogue, given by its name so far
            table[name] = {} if held is None else held
            table = table[name]
            if not isinstance(table, dict):
                raise FedshiftError(f"'{'.'.join(where)}' cannot be set: '{name}' is a value, not a table.")
        return table

    def _assign(self, where: Where, value: Any) -> None:
        self._table(where[:-1])[where[-1]] = copied(value) if isinstance(value, Mapping) else value

    def _data(self) -> Any:
        return opened(self.document.get("data")).get("name", DEFAULT_NAMES["data"])

    def _methods(self) -> list[Entry[Any]]:
        held = opened(self.document.get("method"))
        return _entries(_Place(("method",), METHODS, DEFAULT_NAMES["method"]), held)

    def _own_tables(self) -> list[tuple[Where, Table]]:
        """The tables of single methods, such as [method.fedsr]."""
        held, entries = opened(self.document.get("method")), self._methods()
        return [
            (("method", name), table)
            for name, table in held.items()
            if isinstance(table, dict) and _is_own(name, entries)
        ]

    def _given(self, place: _Place) -> Table:
        """The settings of an entry that the changes give, by name."""
        depth = len(place.where)
        return {
            where[depth]: value
            for where, value in self.changes.items()
            if where[:depth] == place.where and len(where) == depth + 1 and where[depth] != "name"
        }

    # What is kept -------------------------------------------------------------------------------------

    def _rename(self, place: _Place, name: Any) -> None:
        """Name another entry, and keep of the settings what it takes."""
        table = self._table(place.where)
        if place.where == ("method",):
            self._rename_methods(place, table, name)
        else:
            old = table.get("name", place.default)
            if isinstance(old, str) and isinstance(name, str) and old != name:
                settings = {field: value for field, value in table.items() if field != "name"}
                table.clear()
                kept, refused = self._carried(place, old, name, settings)
                table.update(kept)
                for field, reason in refused.items():
                    self._leave_out(f"{place}.{field}", settings[field], reason)
        table["name"] = name

    def _rename_methods(self, place: _Place, table: Table, names: Any) -> None:
        """Methods share the settings of a table: each of the new ones keeps what it takes."""
        before = self._methods()
        new = [name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str)]
        entries = {name: METHODS.get(name) for name in new}
        ran = {entry.name for entry in before}
        known = {field for entry in before for field in entry.settings()}
        fields = [field for field in table if field in known and field not in self._given(place)]
        carried: dict[str, tuple[Table, dict[str, str]]] = {}
        for name, entry in entries.items():
            its = {field: table[field] for field in fields if field in entry.settings()}
            carried[name] = (its, {}) if name in ran or not before else self._carried(place, before[0].name, name, its)
        for field in fields:
            takers = [name for name in new if field in carried[name][0]]
            refusing = [name for name in new if field in carried[name][1]]
            if takers and not refusing:
                continue
            value = table.pop(field)
            for name in takers:
                self._table(("method", name)).setdefault(field, value)
            for name in refusing:
                self._leave_out(f"method.{field}", value, carried[name][1][field])
            if not takers and not refusing:
                without = " and ".join(f"'{name}'" for name in new)
                self._leave_out(f"method.{field}", value, f"{without} {_has_not(len(new))}")
        preset = table.get("preset")
        published = {data for entry in entries.values() for data in entry.presets}
        if isinstance(preset, str) and preset not in published and ("method", "preset") not in self.changes:
            del table["preset"]
            self._leave_out("method.preset", preset, f"nothing is published for it by {', '.join(new)}")

    def _carried(self, place: _Place, old: str, new: str, settings: Table) -> tuple[Table, dict[str, str]]:
        """Which settings of an entry another takes as well, and why it does not take the others."""
        before, entry = place.catalogue.get(old), place.catalogue.get(new)
        given = {
            field: value.read(setting_type(entry.cls, field)) if isinstance(value, Written) else value
            for field, value in self._given(place).items()
            if field in entry.settings()
        }
        kept: Table = {}
        refused: dict[str, str] = {}
        kind = place.catalogue.kind
        for field, value in settings.items():
            if field in given:
                continue
            if field not in entry.settings():
                refused[field] = f"the {kind} '{new}' {_has_not(1)}"
            elif _tells_apart(before, entry, field, value):
                refused[field] = f"it is that of the {kind} '{old}'"
            elif _names_files(before, entry, field, value):
                refused[field] = f"it names files of the {kind} '{old}'"
            elif reason := _refusal(entry, field, value, {**kept, **given}, str(place)):
                refused[field] = f"the {kind} '{new}' refuses it ({reason})"
            else:
                kept[field] = value
        return kept, refused

    # What is said -------------------------------------------------------------------------------------

    def _leave_out(self, setting: str, value: Any, reason: str) -> None:
        self.left_out[f"{setting} = {_written(value)} is left out: {reason}."] = None

    def _say_what_is_replaced(self, place: _Place, whole: Mapping[str, Any]) -> None:
        """An entry that is given as a whole leaves out the settings that it does not state."""
        entries = _entries(place, whole)
        held = opened(self._table(place.where[:-1]).get(place.where[-1]))
        settings = {(str(place), field): value for field, value in held.items()}
        if place.where == ("method",):
            own = {where[1]: table for where, table in self._own_tables()}
            settings = {key: value for key, value in settings.items() if key[1] not in own}
            for entry in entries:
                settings |= {(f"method.{entry.name}", field): value for field, value in own.get(entry.name, {}).items()}
        for (where, field), value in settings.items():
            stated = any(_stated(entry, field, value, whole) for entry in entries)
            if field != "name" and not stated and field not in self._given(place):
                self._leave_out(f"{where}.{field}", value, f"{place} is given as a whole in its place")

    def _say_what_is_not_run(self) -> None:
        running = {entry.name for entry in self._methods()}
        for where, value in self.changes.items():
            if len(where) > 2 and where[0] == "method" and where[1] not in running and _is_own(where[1], []):
                if any(where[1] in entry.settings() for entry in self._methods()):
                    continue
                self.left_out[
                    f"{'.'.join(where)} = {_written(value)} has no effect: the method '{where[1]}' is not run."
                ] = None

    def _say_what_was_published(self, old: Any, new: Any) -> None:
        """Settings that are published for a data set go with it."""
        held = opened(self.document.get("method"))
        if old == new or not (isinstance(old, str) and isinstance(new, str)) or held.get("preset"):
            return
        for entry in self._methods():
            given = {**held, **opened(held.get(entry.name))}
            defaults = {field: about.default for field, about in entry.settings().items()}
            before = {field: value for field, value in entry.presets.get(old, {}).items() if field not in given}
            lost = {field: value for field, value in before.items() if value != defaults[field]}
            if lost and new not in entry.presets:
                values = ", ".join(f"{field} = {_written(value)}" for field, value in lost.items())
                self.left_out[
                    f"The settings of {entry.name} that are published for {old} ({values}) are left out, as the data "
                    f"set is {new}: defaults apply. method.preset = {_written(old)} keeps them."
                ] = None


def _placed(value: Any, folder: Path, words: Collection[str] = ()) -> Any:
    """A path, or several, named from the root if it lies in a folder; ``words`` are no paths."""
    if isinstance(value, list):
        return [_placed(each, folder, words) for each in value]
    if isinstance(value, str) and value not in ("", *words):
        with suppress(OSError, ValueError):  # what no path can be is refused later, with its setting's name
            return str((folder / value).resolve(strict=True))
    return value


def _tables(table: Table, where: Where = ()) -> Iterator[tuple[Where, Table]]:
    """The tables in a table, each with the names that lead to it."""
    for name, held in table.items():
        if isinstance(held, dict):
            yield (*where, name), held
            yield from _tables(held, (*where, name))


def _entries(place: _Place, held: Mapping[str, Any]) -> list[Entry[Any]]:
    """The entries that a table names."""
    names = held.get("name", place.default)
    listed = names if isinstance(names, list) else [names]
    return [place.catalogue.get(name) for name in listed if isinstance(name, str) and name]


def _is_own(name: str, entries: Iterable[Entry[Any]]) -> bool:
    """Whether [method.NAME] is the table of a single method, and not a setting."""
    return name in [*METHODS] and not any(name in entry.settings() for entry in entries)


def _names_files(before: Entry[Any], entry: Entry[Any], field: str, value: Any) -> bool:
    """Whether a value is the path of what belongs to one entry and would be wrong for another."""
    about = entry.settings()[field].metadata
    if not about.get("path") or about.get("portable") or before.name == entry.name:
        return False
    known = before.settings()
    words = set(about["words"]) & set(known[field].metadata["words"] if field in known else about["words"])
    return not all(choice in words for choice in _choices(value, setting_type(entry.cls, field)))


def _tells_apart(before: Entry[Any], entry: Entry[Any], field: str, value: Any) -> bool:
    """Whether a value is the entry of a catalogue in which two entries differ as they come."""
    if not isinstance(entry.cls.nested().get(field), From) or field not in before.settings():
        return False
    own = before.settings()[field].default
    return bool(own != entry.settings()[field].default and opened(value).get("name", own) == own)


def _refusal(entry: Entry[Any], field: str, value: Any, beside: Mapping[str, Any], where: str) -> str:
    """Why an entry does not take a setting, beside others; empty if it does."""
    hint, nested = setting_type(entry.cls, field), entry.cls.nested().get(field)
    beside = {
        name: _choices(choice, setting_type(entry.cls, name))[0] for name, choice in beside.items() if choice != []
    }
    try:
        for choice in _choices(value, hint):
            if nested:
                nested.build(choice, entry.settings()[field].default, f"{where}.{field}")
            else:
                entry.cls.checked(field, choice)
            if _builds(entry, beside):
                entry(**beside, **{field: choice})
    except FedshiftError as error:
        return str(error).removesuffix(".")
    return ""


def _builds(entry: Entry[Any], settings: Mapping[str, Any]) -> bool:
    """Whether settings make an entry, so that an error with one more is that one's."""
    if any(about.default is MISSING and name not in settings for name, about in entry.settings().items()):
        return False
    try:
        entry(**settings)
    except FedshiftError:
        return False
    return True


def _stated(entry: Entry[Any], field: str, value: Any, whole: Mapping[str, Any]) -> bool:
    """Whether a whole entry has a setting's value, or says another than the default."""
    if field not in entry.settings() or (field in whole and field in entry.cls.nested()):
        return field in whole
    hint, default = setting_type(entry.cls, field), entry.settings()[field].default
    if nested := entry.cls.nested().get(field):
        return bool(nested.build(value, default, field) == nested.build(default, default, field))

    def checked(value: Any) -> list[Any]:
        return [entry.cls.checked(field, choice) for choice in _choices(value, hint)]

    given = checked(whole[field]) if field in whole else [default]
    try:
        return given == checked(value) or given != [default]
    except FedshiftError:
        return given != [default]


def _texts(value: Any) -> Any:
    return value.names() if isinstance(value, Written) else value


def _written(value: Any) -> str:
    """A value as TOML has it, shortened."""
    if isinstance(value, Written):
        return value.text
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and len(value) < 60 else shown(value)


def _has_not(entries: int) -> str:
    return "has no such setting" if entries == 1 else "have no such setting"
