"""From an experiment's TOML to runs: overrides, presets, and lists that make a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedshift.catalogue import Catalogue, From
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import DEFAULT_NAMES, NAMED, Experiment, load_plugins
from fedshift.methods import METHODS
from fedshift.spec import Spec, check_names
from fedshift.written import parse_toml, read_toml, shown

EXPERIMENTS = resources.files(__package__) / "experiments"


def shipped() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in EXPERIMENTS.iterdir() if entry.name.endswith(".toml"))


def shipped_text(name: str) -> str:
    return (EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8")


Document = dict[str, Any]
EVERY_DOMAIN = "all"
SEARCH = "search"  # the table that names where `fedshift tune` looks; no run has it
MOST_RUNS = 10_000  # of a method; they are all planned before the first begins


def read(source: str | Path) -> Document:
    """Read an experiment: the path of a TOML file, or the name of a shipped experiment.

    Paths in a file that lie in its folder become absolute. Raises a FedshiftError if it does not exist or is not TOML.
    """
    path = Path(source)
    if path.suffix != ".toml" and not path.is_file():
        if str(source) not in shipped():
            raise UnknownNameError("experiment", str(source), shipped(), hint="Or give the path of a TOML file.")
        return parse_toml(shipped_text(str(source)), f"'{source}'")
    if not path.is_file():
        raise FedshiftError(
            f"The experiment '{source}' does not exist; give a TOML file or one of {', '.join(shipped())}."
        )
    document = read_toml(path)
    document["plugins"] = _placed(document.get("plugins", []), path.parent)
    load_plugins(document["plugins"])
    for table, name, cls in _given(document):
        about = cls.settings()[name]
        if about.path and table[name] not in about.words:
            table[name] = _placed(table[name], path.parent)
    return document


def override(
    document: Mapping[str, Any], changes: Mapping[str, Any], notify: Callable[[str], None] | None = None
) -> Document:
    """A copy of the document with dotted keys such as ``method.l2r`` set.

    Naming another entry of a catalogue resets its table, except the settings that every entry has; ``notify`` receives
    a line for each reset table that had settings. A method's setting in ``changes`` also overrides the method's table.
    Raises a FedshiftError if a key leads through a value that is not a table.
    """
    result = copied(document)
    load_plugins(changes.get("plugins", result.get("plugins", ())))
    keys = {tuple(key.split(".")): value for key, value in changes.items()}
    for where in sorted(keys, key=lambda where: (len(where), where[-1] != "name")):
        lost = _change(result, where, keys[where])
        if lost and notify is not None:
            table = ".".join(where).removesuffix(".name")
            notify(
                f"{'.'.join(where)} = {shown(keys[where])} resets the table [{table}]: these settings of the file are "
                f"not used: {', '.join(lost)}"
            )
        if where[0] == "method" and where[1:] not in ((), ("name",)):
            for method in _method_tables(result):
                if where[1] in result["method"][method]:
                    _change(result, ("method", method, *where[1:]), keys[where])
    return result


def expand(document: Mapping[str, Any]) -> list[Experiment]:
    """Every run that a document describes: a list where one value is expected is an axis of a grid.

    Seeds vary fastest, then held-out domains, then other axes, then methods. Raises a FedshiftError if something is
    wrong.
    """
    document = {key: value for key, value in document.items() if key != SEARCH}
    check_names(document, Experiment.settings(), "experiment")
    load_plugins(document.setdefault("plugins", []))
    document["plugins"] = [str(Path(path).expanduser().resolve()) for path in document["plugins"]]
    return [
        Experiment.from_table(table)
        for method in _methods(document)
        for table in _product({**copied(document), "method": method})
    ]


def copied(table: Mapping[str, Any]) -> Document:
    return {key: copied(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def _placed(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_placed(each, folder) for each in value]
    lies_there = isinstance(value, str) and value and "\0" not in value and (folder / value).exists()
    return str((folder / value).resolve()) if lies_there else value


def _places(
    table: Document, classes: list[type[Spec]], choice: Catalogue[Any] | None = None
) -> Iterator[tuple[Document, list[type[Spec]], Catalogue[Any] | None]]:
    """A table and its subtables, each with the classes of its settings, and the catalogue of these classes."""
    yield table, classes, choice
    for name, value in list(table.items()):
        owner = next((cls for cls in classes if name in cls.settings()), None)
        mark = owner.nested().get(name) if owner else None
        if not isinstance(value, dict):
            continue
        if owner and isinstance(mark, From):
            names = _as_list(value.get("name", owner.settings()[name].default))
            inner = [mark.catalogue.get(each) for each in names if each in mark.catalogue]
            yield from _places(value, inner, mark.catalogue)
        elif mark:
            yield from _places(value, [mark.cls])
        elif choice is METHODS and name in METHODS:  # [method.fedsr], for example
            yield from _places(value, [METHODS.get(name)], METHODS)


def _given(document: Document) -> Iterator[tuple[Document, str, type[Spec]]]:
    for table, classes, _ in _places(document, [Experiment]):
        for name, value in list(table.items()):
            owner = next((cls for cls in classes if name in cls.settings()), None)
            if owner and not (name in owner.nested() and isinstance(value, dict)):
                yield table, name, owner


def _method_tables(document: Document) -> list[str]:
    held = document.get("method")
    return (
        [name for name in held if name in [*METHODS] and isinstance(held[name], dict)] if isinstance(held, dict) else []
    )


def _entry(value: Any) -> Document:
    return copied(value) if isinstance(value, Mapping) else {"name": value}


def _table(document: Document, where: Sequence[str]) -> Document:
    table = document
    for name in where:
        held = table.setdefault(name, {})
        table[name] = _entry(held) if isinstance(held, str) else held
        table = table[name]
        if not isinstance(table, dict):
            raise FedshiftError(f"'{'.'.join(where)}' cannot be set: '{name}' is a value, not a table.")
    return table


def _change(document: Document, where: Sequence[str], value: Any) -> list[str]:
    """Set a value; returns the names of the settings that are lost as a table is reset."""
    if where[-1] == "name" and len(where) > 1:
        return _change_entry(document, where[:-1], {"name": value})
    *above, last = where
    table = _table(document, above)
    if (isinstance(table.get(last), dict) and isinstance(value, str | list | Mapping)) or (last in NAMED and not above):
        return _change_entry(document, where, _entry(value))
    table[last] = copied(value) if isinstance(value, Mapping) else value
    return []


def _change_entry(document: Document, where: Sequence[str], entry: Document) -> list[str]:
    """Replace a catalogue's entry; only the settings that every entry has stay."""
    held = _table(document, where)
    places = _places(document, [Experiment])
    classes, choice = next(((classes, choice) for table, classes, choice in places if table is held), ([], None))
    kept: Document = {}
    if choice is not None and entry.keys() == {"name"}:
        new = [choice.get(str(name)) for name in _as_list(entry["name"])]
        settings = {name for cls in new for name in cls.settings()}
        stays = {*getattr(choice.base(), "common", choice.base().settings())} & settings
        stays |= {*(_method_tables(document) if choice is METHODS else ())}
        again = all(cls in classes for cls in new)
        kept = {name: value for name, value in held.items() if again or name in stays}
    _table(document, where[:-1])[where[-1]] = kept | entry
    return [name for name in held if name not in (*kept, *entry, "name")]


def _methods(document: Mapping[str, Any]) -> Iterator[Document]:
    given = _entry(document.get("method", {}))
    names = [str(name) for name in _as_list(given.pop("name", DEFAULT_NAMES["method"]))]
    if not names or len(set(names)) < len(names):
        raise FedshiftError(f"method.name = {shown(names)}: give at least one method, each once.")
    entries = {name: METHODS.get(name) for name in names}
    own = {name: given.pop(name) for name in _method_tables({"method": given})}
    for name, settings in own.items():
        check_names(settings, METHODS.get(name).settings(), f"method.{name}")
    presets = sorted({data for entry in entries.values() for data in entry.presets})
    preset = given.pop("preset", None)
    if preset is not None and preset not in presets:
        raise UnknownNameError("preset", str(preset), presets)
    preset = preset or _entry(document.get("data", {})).get("name", DEFAULT_NAMES["data"])
    # What all methods have may stand there for those that take it: a method on top of another has its base's.
    known = {*METHODS.base().settings(), *(name for entry in entries.values() for name in entry.settings())}
    check_names(given, dict.fromkeys(known), f"method, for {', '.join(names)}")
    for name, entry in entries.items():
        common = {field: value for field, value in given.items() if field in entry.settings()}
        yield {"name": name, **entry.published().get(str(preset), {}), **common, **own.get(name, {})}


def _product(table: Document) -> Iterator[Document]:
    """The table for each combination of lists that stand where one value is expected."""
    protocol = table.get("protocol")
    if isinstance(protocol, dict) and protocol.get("hold_out") == EVERY_DOMAIN:  # in a list it is the name of a domain
        protocol["hold_out"] = list(NAMED["data"].build(_entry(table["data"])).domain_names())
    axes = [
        (held, name, held[name], cls)
        for held, name, cls in _given(table)
        if isinstance(held[name], list) and not takes(cls, name, held[name])
    ]
    empty = [f"{cls.section}.{name}".lstrip(".") for _, name, values, cls in axes if not values]
    if empty:
        raise FedshiftError(f"{empty[0]} is an empty list; give at least one value.")
    runs = prod(len(values) for _, _, values, _ in axes)
    if runs > MOST_RUNS:
        raise FedshiftError(f"The lists make {runs:,} runs of each method; a comparison has {MOST_RUNS:,} at most.")
    axes.sort(key=lambda axis: ["hold_out", "seed"].index(axis[1]) if axis[1] in ("hold_out", "seed") else -1)
    for choice in product(*(values for _, _, values, _ in axes)):
        for (held, name, _, _), value in zip(axes, choice, strict=True):
            held[name] = value
        yield copied(table)


def takes(cls: type[Spec], name: str, value: Any) -> bool:
    try:
        return name not in cls.nested() and cls.checked(name, value) is not ...
    except FedshiftError:
        return False


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
