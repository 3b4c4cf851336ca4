"""From an experiment's TOML to runs: overrides, presets, and lists that make a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import shipped, shipped_text
from fedshift.methods import METHODS
from fedshift.settings.catalogue import Entry, From
from fedshift.settings.change import Changed, Table, changed, copied, is_list_of_choices
from fedshift.settings.experiment import DEFAULT_NAMES, NAMED, PLAIN, Experiment, load_plugins, section
from fedshift.settings.spec import check_names, setting_type, shown
from fedshift.settings.written import LARGEST_TOML, Written, parse_toml

EVERY_DOMAIN = "all"
SEARCH = "search"  # the table that says where `fedshift tune` looks; no run has it
MOST_RUNS = 10_000  # of a method; they are all planned before the first begins


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
        text = text_of(path)
    elif str(source) in shipped():
        text = shipped_text(str(source))
    else:
        raise UnknownNameError("experiment", str(source), shipped(), hint="Or give the path of a TOML file.")
    return parse_toml(text, f"'{source}'")


def read_changed(source: str | Path, changes: Mapping[str, Any]) -> Changed:
    """What :func:`read` gives, with changes; a path in a file is of the file's folder, if it is there.

    Raises:
        FedshiftError: there is no such experiment, it is not TOML, or a change cannot be made.
    """
    path = Path(source)
    return changed(read(source), changes, path.parent if path.is_file() else None)


def text_of(path: Path) -> str:
    """The text of an experiment's file.

    Raises:
        FedshiftError: it cannot be read, or is too large for an experiment.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_TOML + 1)
        size = max(path.stat().st_size, len(text))  # a pipe has no size
    except (OSError, UnicodeDecodeError) as error:
        raise FedshiftError(f"'{path}' cannot be read as text in UTF-8 ({error}).") from error
    if len(text) > LARGEST_TOML:
        raise FedshiftError(
            f"'{path}' has {size:,} bytes, and at most {LARGEST_TOML:,} are read: leave out what is no setting."
        )
    return text


def override(document: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A copy of the document with dotted keys such as ``method.l2r`` set, as :func:`fedshift.settings.change.changed`.

    For changes of which nobody needs to hear what they leave out.
    """
    return changed(document, changes).document


def parse_assignments(texts: Iterable[str], option: str = "--set") -> dict[str, Written]:
    """The keys and values of texts such as ``method.l2r=0.05``, which an option of the command line gives.

    Raises:
        FedshiftError: one is no assignment, or gives a key again.
    """
    found: dict[str, Written] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise FedshiftError(f"'{text}' is no assignment; write for example {option} method.l2r=0.05")
        if key in found:
            raise FedshiftError(f"{option} gives {key} twice ({found[key].text} and {value.strip()}); give it once.")
        found[key] = Written(value.strip())
    return found


def expand(document: Mapping[str, Any]) -> list[Experiment]:
    """Every run that a document describes: a list where one value is expected is an axis of a grid.

    Seeds vary fastest, then held-out domains, then other axes, then methods.

    Raises:
        FedshiftError: something in it is wrong, or two runs are the same.
    """
    document = {key: value for key, value in document.items() if key != SEARCH}
    check_names(document, Experiment.settings(), "experiment")
    document = {
        key: value.read(setting_type(Experiment, key)) if isinstance(value, Written) else value
        for key, value in document.items()
    }
    for name in (*NAMED, *PLAIN):
        if not isinstance(document.get(name, {}), Mapping):
            example = f'{name} = {{ name = "..." }}' if name in NAMED else f"[{name}]"
            raise FedshiftError(f"{name} = {shown(document[name])} is a value where a table belongs; write {example}")
    load_plugins(document.get("plugins", ()))
    tables = [table for method in _method_tables(document) for table in _product(_with_method(document, method))]
    experiments = [Experiment.from_table(table) for table in tables]
    if len(experiments) > 1 and len({experiment.fingerprint for experiment in experiments}) < len(experiments):
        raise FedshiftError("The grid holds the same run twice; remove repeated values from its lists.")
    return experiments


def _with_method(document: Mapping[str, Any], method: Table) -> Table:
    """The document with defaults for what it leaves out, and one method's table."""
    result: Table = {"plugins": [_absolute(path) for path in document.get("plugins", ())]}
    result |= {key: document[key] for key in ("name", "seed", "data_seed") if key in document}
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
    names = [str(name) for name in _as_list(given.pop("name", DEFAULT_NAMES["method"]))]
    if not names or len(set(names)) < len(names):
        raise FedshiftError(f"method.name = {shown(names)}: give at least one method, each once.")
    preset = given.pop("preset", None)
    entries = {name: METHODS.get(name) for name in names}
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
    table = _with_all_domains(_read_by_type(table))
    axes = {path: values for path, values in _leaves(table) if _is_axis(table, path, values)}
    empty = [".".join(path) for path, values in axes.items() if not values]
    if empty:
        raise FedshiftError(f"{empty[0]} is an empty list; give at least one value.")
    runs = prod(len(values) for values in axes.values())
    if runs > MOST_RUNS:
        sizes = ", ".join(f"{'.'.join(path)} has {len(values)}" for path, values in axes.items())
        raise FedshiftError(
            f"The lists make {runs:,} runs of each method ({sizes}), and a comparison has {MOST_RUNS:,} at most: "
            "divide it."
        )
    slow_first = sorted(axes, key=lambda path: (path == ("protocol", "hold_out")) + 2 * (path == ("seed",)))
    for choice in product(*(axes[path] for path in slow_first)):
        chosen = copied(table)
        for path, value in zip(slow_first, choice, strict=True):
            _put(chosen, path, value)
        yield chosen


def _leaves(table: Table) -> Iterable[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from (((key, *names), leaf) for names, leaf in _leaves(value))
        else:
            yield (key,), value


def _read_by_type(table: Table) -> Table:
    """The table with every value that was written on a command line read as its setting's type has it."""
    result = copied(table)
    for path, value in _leaves(table):
        if isinstance(value, Written):
            owner = _owner(result, path)
            known = owner is not None and path[-1] in owner.settings()
            _put(result, path, value.read(setting_type(owner.cls, path[-1]) if owner and known else Any))
    return result


def _put(table: Table, path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        table = table[name]
    table[path[-1]] = value


def _is_axis(table: Table, path: tuple[str, ...], value: Any) -> bool:
    if not isinstance(value, list):
        return False
    if path[-1] == "name" and len(path) > 1 and (len(path) == 2 or _is_nested(table, path[:-1])):
        raise FedshiftError(f"{'.'.join(path)} takes one name; only method.name may be a list.")
    owner = _owner(table, path)
    if owner is None or path[-1] not in owner.settings():
        return False
    return is_list_of_choices(value, setting_type(owner.cls, path[-1]))


def _is_nested(table: Table, path: tuple[str, ...]) -> bool:
    """Whether a path leads to an entry of a catalogue that is a setting itself."""
    owner = _owner(table, path)
    return owner is not None and isinstance(owner.cls.nested().get(path[-1]), From)


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


def _with_all_domains(table: Table) -> Table:
    """``hold_out = "all"`` means every domain of the data set; in a list it is the name of one."""
    if table["protocol"].get("hold_out") != EVERY_DOMAIN:
        return table
    names = list(NAMED["data"].build(table["data"]).domain_names())
    if EVERY_DOMAIN in names:
        raise FedshiftError(
            "protocol.hold_out = \"all\" is every domain in turn, and the data have a domain called 'all': write "
            'hold_out = ["all"] for that one, or a list of all names.'
        )
    return {**table, "protocol": {**table["protocol"], "hold_out": names}}


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
