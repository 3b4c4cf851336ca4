"""From an experiment's TOML to runs: overrides, presets, and lists that make a grid."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_origin

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import shipped, shipped_text
from fedshift.methods import METHODS
from fedshift.settings.catalogue import Entry, From
from fedshift.settings.experiment import NAMED, PLAIN, Experiment, load_plugins, section
from fedshift.settings.spec import check_names, setting_type

Table = dict[str, Any]
DEFAULT_NAMES = {
    "data": "rotated-mnist",
    "partition": "domains",
    "protocol": "leave-one-domain-out",
    "model": "cnn",
    "method": "fedavg",
}


def read(source: str | Path) -> Table:
    """Read an experiment: the path of a TOML file, or the name of one that comes with fedshift.

    Raises:
        FedshiftError: there is none, or it is not TOML.
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise FedshiftError(
                f"The experiment '{source}' does not exist; give a TOML file or one of {', '.join(shipped())}."
            )
        text = _text(path)
    elif str(source) in shipped():
        text = shipped_text(str(source))
    else:
        raise UnknownNameError("experiment", str(source), shipped(), hint="Or give the path of a TOML file.")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedshiftError(f"'{source}' is not TOML: {error}.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedshiftError(f"'{path}' cannot be read as text in UTF-8 ({error}).") from error


def override(document: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A copy of the document with dotted keys such as ``method.l2r`` set.

    Naming another data set, partition, protocol or model drops the settings of the one it replaces.
    """
    result = _copy(document)
    for key, value in changes.items():
        first, _, second = key.partition(".")
        held = result.get(first)
        if (
            second == "name"
            and first in NAMED
            and first != "method"
            and isinstance(held, dict)
            and held.get("name") != value
        ):
            result[first] = {}
    for key, value in changes.items():
        *path, last = key.split(".")
        table = result
        for name in path:
            if isinstance(table.get(name), str) and table is not result:
                table[name] = {"name": table[name]}  # an entry of a catalogue, given by its name so far
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise FedshiftError(f"'{key}' cannot be set: '{name}' is a value, not a table.")
        table[last] = _copy(value) if isinstance(value, Mapping) else value
    return result


def _copy(table: Mapping[str, Any]) -> Table:
    """The table and the tables in it anew."""
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def parse_assignment(text: str) -> tuple[str, Any]:
    """``key=value`` with a TOML value; a bare word is a string, and commas make a list."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise FedshiftError(f"'{text}' is no assignment; write for example --set method.l2r=0.05")
    return key.strip(), parse_value(value.strip())


def parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string; ``a,b`` is a list."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        return value if isinstance(value, bool | int | float | str | list | dict) else text
    except tomllib.TOMLDecodeError:
        if "," in text and not text.startswith(("[", '"', "'")):
            return [parse_value(word.strip()) for word in text.split(",") if word.strip()]
        return text


def expand(document: Mapping[str, Any]) -> list[Experiment]:
    """Every run that a document describes: a list where one value is expected is an axis of a grid.

    Seeds vary fastest, then held-out domains, then other axes, then methods.

    Raises:
        FedshiftError: something in it is wrong, or two runs are the same.
    """
    check_names(document, Experiment.settings(), "experiment")
    for name in (*NAMED, *PLAIN):
        if not isinstance(document.get(name, {}), Mapping):
            example = f'{name} = {{ name = "..." }}' if name in NAMED else f"[{name}]"
            raise FedshiftError(f"{name} = {document[name]!r} is a value where a table belongs; write {example}")
    load_plugins(document.get("plugins", ()))
    tables = [table for method in _method_tables(document) for table in _product(_with_method(document, method))]
    experiments = [Experiment.from_table(table) for table in tables]
    names = [experiment.fingerprint for experiment in experiments]
    if len(set(names)) < len(names):
        raise FedshiftError("The grid holds the same run twice; remove repeated values from its lists.")
    return experiments


def _with_method(document: Mapping[str, Any], method: Table) -> Table:
    """The document with defaults for what it leaves out, and one method's table."""
    result: Table = {"plugins": [_absolute(path) for path in document.get("plugins", ())]}
    result |= {key: document[key] for key in ("name", "seed") if key in document}
    for name in (*NAMED, *PLAIN):
        values = document.get(name, {})
        result[name] = {"name": DEFAULT_NAMES[name], **values} if name in NAMED else dict(values)
    result["method"] = method
    return result


def _absolute(path: str) -> str:
    """An absolute path if there is such a file or folder, so that a run can be resumed from anywhere."""
    there = Path(path).expanduser()
    return str(there.resolve()) if there.exists() else path


def _method_tables(document: Mapping[str, Any]) -> Iterable[Table]:
    """One table for each method: its own sub-table over common fields over the data set's preset."""
    given = dict(document.get("method", {}))
    names = _as_list(given.pop("name", DEFAULT_NAMES["method"]))
    if not names or len(set(names)) < len(names):
        raise FedshiftError(f"method.name = {names}: give at least one method, each once.")
    preset = given.pop("preset", None)
    entries = {str(name): METHODS.get(str(name)) for name in names}
    # What all methods have may stand there for those that take it: a method on top of another has its base's.
    known = set(METHODS.base().settings()).union(*(entry.settings() for entry in entries.values()))
    own = {key: given.pop(key) for key in list(given) if isinstance(given[key], Mapping) and key not in known}
    for name, fields in own.items():
        if name not in [*METHODS]:
            raise UnknownNameError(f"field of [method] for {', '.join(entries)}", name, known)
        METHODS.get(name).check_names(fields, f"method.{name}")
    for field in given:
        if field not in known:
            raise UnknownNameError(f"field of [method] for {', '.join(entries)}", field, known)
    presets = sorted({known for entry in entries.values() for known in entry.presets})
    if preset is not None and preset not in presets:
        raise UnknownNameError("preset", str(preset), presets)
    preset = preset or document.get("data", {}).get("name", DEFAULT_NAMES["data"])
    for name, entry in entries.items():
        common = {field: value for field, value in given.items() if field in entry.settings()}
        published = entry.presets.get(preset, {}) if isinstance(preset, str) else {}
        yield {"name": name, **published, **common, **own.get(name, {})}


def _product(table: Table) -> Iterable[Table]:
    """The table once for each choice from the lists that stand where one value is expected."""
    table = _with_all_domains(table)
    axes = {path: values for path, values in _leaves(table) if _is_axis(table, path, values)}
    empty = [".".join(path) for path, values in axes.items() if not values]
    if empty:
        raise FedshiftError(f"{empty[0]} is an empty list; give at least one value.")
    slow_first = sorted(axes, key=lambda path: (path == ("protocol", "hold_out")) + 2 * (path == ("seed",)))
    for choice in product(*(axes[path] for path in slow_first)):
        yield override(table, {".".join(path): value for path, value in zip(slow_first, choice, strict=True)})


def _leaves(table: Table) -> Iterable[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from (((key, *names), leaf) for names, leaf in _leaves(value))
        else:
            yield (key,), value


def _is_axis(table: Table, path: tuple[str, ...], value: Any) -> bool:
    if not isinstance(value, list):
        return False
    if path[-1] == "name" and len(path) > 1:
        raise FedshiftError(f"{'.'.join(path)} takes one name; only method.name may be a list.")
    owner = _owner(table, path)
    if owner is None or path[-1] not in owner.settings():
        return False
    return _depth_of(value) > _depth_of_type(setting_type(owner.cls, path[-1]))


def _owner(table: Table, path: tuple[str, ...]) -> Entry[Any] | None:
    """The entry whose setting a path such as (method, index, strategy) names; None if it leads into a plain table."""
    if len(path) == 1:
        return Entry(Experiment)
    held = table[path[0]]
    owner = section(path[0], held.get("name"))
    for name in path[1:-1]:
        nested = owner.cls.nested().get(name)
        if not isinstance(nested, From):
            return None
        held = held[name]
        owner = nested.catalogue.get(str(held.get("name", owner.settings()[name].default)))
    return owner


def _depth_of(value: Any) -> int:
    """How many lists lie in one another: 0 for a value, 2 for a list of lists."""
    if not isinstance(value, list):
        return 0
    return 1 + max((_depth_of(item) for item in value[:1]), default=0)


def _depth_of_type(hint: Any) -> int:
    """How many lists a setting takes in one another."""
    return 1 + _depth_of_type(get_args(hint)[0]) if get_origin(hint) is tuple else 0


def _with_all_domains(table: Table) -> Table:
    """``hold_out = "all"`` means every domain of the data set."""
    if table["protocol"].get("hold_out") != "all":
        return table
    dataset = NAMED["data"].build(table["data"])
    return override(table, {"protocol.hold_out": list(dataset.domain_names())})


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
