"""Run folders whose digests were all made again, as only somebody could who wants to.

Digests know no forger, so numbers may be another's. But nothing ends with a traceback, hangs, fills the memory or
touches what lies outside of the folder.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from attack.forks import Forks
from attack.harness import Problems, contents, copied, none_of, run_folders
from attack.victims import MEMORY, STATES, Victim, Victims
from fedshift.manifest import FileDigest, digested_json

VALUES = (None, True, -1, 0, 2**70, 1e308, "", "x", [], {}, [[]], "../../x")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a parsed value with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def change(value: Any, draw: random.Random) -> None:
    """Remove something, replace it, or put two things in each other's place."""
    (one, first), (other, second) = draw.sample(places(value), 2)
    match draw.randrange(3):
        case 0:
            del one[first]
        case 1:
            one[first] = draw.choice(VALUES)
        case _:
            one[first], other[second] = json.loads(json.dumps(other[second])), json.loads(json.dumps(one[first]))


def forged(data: bytes, draw: random.Random, lines_of: bool, digested: bool) -> bytes:
    """A file of JSON, or of lines of it, that states something else, with a digest that fits."""
    lines = data.splitlines(keepends=True) if lines_of else [data]
    number = draw.randrange(len(lines))
    value = json.loads(lines[number])
    if digested:
        value.pop("digest", None)
    change(value, draw)
    lines[number] = (digested_json(value) if digested else json.dumps(value) + "\n").encode()
    return b"".join(lines)


def sign_anew(folder: Path) -> None:
    """Make the digests in every manifest of a run fit its files."""
    for path in folder.glob("manifest*.json"):
        manifest = json.loads(path.read_bytes())
        manifest.pop("digest", None)
        for name, entry in manifest["files"].items():
            data = (folder / name).read_bytes()
            whole = len(data) if name not in ("records.jsonl", "timings.jsonl") else min(entry["size"], len(data))
            manifest["files"][name] = FileDigest.of(data[:whole]).model_dump()
        path.write_text(digested_json(manifest))


def tried(forks: Forks, victim: Victim, folder: Path) -> Problems:
    """Try everything; returns what is neither an answer nor one clear error, and what lies outside and was touched."""
    outside = contents(folder.parent, but=folder)
    outcomes = forks.run(*victim.steps(folder), cwd=folder, memory=MEMORY)
    problems = [str(outcome) for outcome in outcomes if not outcome.clean]
    after = contents(folder.parent, but=folder)
    touched = (name for name in outside.keys() | after.keys() if outside.get(name) != after.get(name))
    return problems + [f"touches {name}" for name in touched if name != "out.html"]


@pytest.mark.parametrize("state", STATES)
def test_forged(forks: Forks, victims: Victims, tmp_path: Path, large: bool, state: str):
    victim, problems = victims("run", state), list[str]()
    draw = random.Random(f"forged {state}")
    (run,) = (path.relative_to(victim.folder) for path in run_folders(victim.folder))
    names = sorted(path.name for path in (victim.folder / run).iterdir() if path.suffix in (".json", ".jsonl"))
    for name in names * (30 if large else 2):
        folder = copied(victim.folder, tmp_path / "case" / "forged")
        file = folder / run / name
        digested = name.endswith(".json") and b'"digest"' in file.read_bytes()
        file.write_bytes(forged(file.read_bytes(), draw, name.endswith(".jsonl"), digested))
        if not name.startswith("manifest"):
            sign_anew(folder / run)
        problems += [f"{name}: {problem}" for problem in tried(forks, victim, folder)]
    none_of(problems)
