"""What a reader must know of runs beside any number: data, clients, sizes, versions, machine, and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fedshift.reporting.results import flat
from fedshift.runs.run import Run

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_NAMED = 6  # things that are listed one by one
POOLED = {"all"}  # the domain of a client that holds everybody's data


def title(comparison: Comparison) -> str:
    """Which methods on which data."""
    tables = [run.table for run in comparison.runs]
    methods, data = ([table[kind]["name"] for table in tables] for kind in ("method", "data"))
    return f"{_listed(methods, 'methods')} on {_listed(data, 'data sets')}"


def facts(comparison: Comparison, now: datetime) -> dict[str, str]:
    """What is known, by what it is; what no file of the runs says is left out."""
    runs, tables = comparison.runs, [run.table for run in comparison.runs]
    federations = [run.data_facts for run in runs]
    machines = [run.environment for run in runs]
    samples = [list(federation.get("samples", {}).values()) for federation in federations]
    unfinished = sum(not run.finished for run in runs)
    found = {
        "Experiment": _listed([table["name"] for table in tables], "experiments"),
        "Data": _listed([_data(table["data"]) for table in tables], "data sets"),
        "Domains": _range([max(map(_domains, tables, federations))]),
        "Held out": _listed([str(table["protocol"].get("hold_out", "")) for table in tables], "domains in turn"),
        "Protocol": _listed([table["protocol"]["name"] for table in tables], "protocols"),
        "Classes": _range(len(federation.get("classes", ())) for federation in federations),
        "Clients": _range(len(federation.get("clients", ())) for federation in federations),
        "Training samples": _range(map(sum, samples)),
        "Samples of a client": _range(size for sizes in samples for size in sizes),
        "Scored on": _scored(comparison),
        "Model": _listed([table["model"]["name"] for table in tables], "models"),
        "Rounds": _range(table["train"]["rounds"] for table in tables),
        "Seeds": _listed([str(seed) for seed in comparison.seeds], "seeds"),
        "Runs": f"{len(runs)}, of which {unfinished} not finished" if unfinished else str(len(runs)),
        "Versions": _listed([_versions(machine) for machine in machines], "sets of versions"),
        "Machine": _listed([_machine(machine) for machine in machines], "machines"),
        "Written": now.strftime("%Y-%m-%d %H:%M %Z"),
    }
    return {name: text for name, text in found.items() if text}


def _listed(words: Sequence[str], kind: str) -> str:
    """Words that differ, in the order they come; how many they are where there are too many of them."""
    every = list(dict.fromkeys(filter(None, words)))
    if len(every) > MOST_NAMED:
        return f"{len(every)} {kind} ({', '.join(every[:MOST_NAMED])}, ...)"
    *others, last = every or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _range(numbers: Iterable[int]) -> str:
    """Numbers as their least and greatest; 0 is one that nobody knows."""
    known = [number for number in numbers if number]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _data(table: Mapping[str, Any]) -> str:
    return f"{table['name']} ({table['path']})" if table.get("path") else str(table["name"])


def _domains(table: Mapping[str, Any], federation: Mapping[str, Any]) -> int:
    """How many domains a run has, the one that is held out included; 0 where nobody knows."""
    training = set(federation.get("domains", {}).values()) - POOLED
    held_out = {table["protocol"]["hold_out"]} if "hold_out" in table["protocol"] else set()
    return len(training | held_out) if training else 0


def _scored(comparison: Comparison) -> str:
    """The samples and environments of each role."""
    words = []
    for role in ("test", "validation"):
        sizes = [_scored_samples(run, role) for run in comparison.runs]
        if any(sizes):
            count = len(comparison.environments(role))
            where = f"{count} environments" if count > 1 else "1 environment"
            words.append(f"{comparison.label(role)}: {_range(sizes)} samples a run, {where}")
    return "; ".join(words)


def _scored_samples(run: Run, role: str) -> int:
    return sum(row.get("n", 0) for row in run.records[-1]["environments"] if row["role"] == role)


def _versions(machine: Mapping[str, Any]) -> str:
    packages = machine.get("packages", {})
    words = [f"{name} {packages[name]}" for name in ("fedshift", "torch") if name in packages]
    return ", ".join([*words, f"Python {machine['python']}"] if "python" in machine else words)


def _machine(machine: Mapping[str, Any]) -> str:
    cores = f"{machine['cores']} cores" if machine.get("cores") else ""
    words = (machine.get("processor"), cores, machine.get("accelerator"), machine.get("platform"))
    return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Merged:
    """Nested tables, merged.

    Attributes:
        common: the values that all of them have, nested as they were.
        differing: by dotted name, the others' values in words, one text for each group.
    """

    common: dict[str, Any]
    differing: dict[str, list[str]]


def merged(groups: Sequence[Sequence[Mapping[str, Any]]]) -> Merged:
    """Merge groups of nested tables; the values that a group's tables have of one name stand together."""
    words = [
        [{name: json.dumps(value, ensure_ascii=False) for name, value in flat(table).items()} for table in group]
        for group in groups
    ]
    every = [table for group in words for table in group]
    names = dict.fromkeys(name for table in every for name in table)
    same = {name for name in names if len({table.get(name, "") for table in every}) == 1}
    differing = {
        name: [", ".join(dict.fromkeys(filter(None, (table.get(name, "") for table in group)))) for group in words]
        for name in names
        if name not in same
    }
    return Merged(_only(same, groups[0][0]), differing)


def _only(names: set[str], table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table with the values of these dotted names alone."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= {key: inner} if (inner := _only(names, value, f"{prefix}{key}.")) else {}
        elif f"{prefix}{key}" in names:
            found[key] = value
    return found
