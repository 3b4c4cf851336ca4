"""Every file of a run's folder, damaged in every way: what is read of it is right, or one clear error.

After each damage the run is loaded, reported, asked for its models, resumed and compared again. Each either works with
exactly the numbers that were recorded, or ends with a single error; a resumed run is equal to the byte to one that was
never damaged; and what a refusal leaves can be mended by restoring the file.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attack import damage
from attack.damage import DAMAGES, FILES
from attack.forks import Forks, Outcome
from attack.harness import (
    RESUME,
    SCENARIOS,
    Problems,
    Reference,
    copied,
    loaded,
    none_of,
    results,
    run_folders,
    table,
)
from attack.victims import MEMORY, STATES, Victim, Victims

# Of each kind of damage one: to bytes, to a document, to its lines, to a header, to tensors, to a whole file.
IN_SMALL = (
    "truncated",
    "a bit flipped",
    "zeros",
    "no UTF-8",
    "key removed",
    "value replaced",
    "nested",
    "line removed",
)
IN_SMALL += ("line cut", "header is no object", "tensor reshaped", "offsets beyond the file", "value changed")
WHOLE_IN_SMALL = ("deleted", "a folder in its place", "a pipe in its place")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The small attack damages one file in each way, of a run in one state; the large one all of them many times."""
    large = metafunc.config.getoption("attack") == "large"
    if "damaging" in metafunc.fixturenames:
        drawn = metafunc.function is test_damaged
        names: Mapping[str, Any] = DAMAGES if drawn else FILES
        few, variants = (IN_SMALL, 24) if drawn else (WHOLE_IN_SMALL, 1)
        every = [(name, state, variant) for name in names for state in STATES for variant in range(variants)]
        one = [(name, random.Random(name).choice(STATES), 0) for name in few]
        metafunc.parametrize("damaging", every if large else one, ids=lambda case: "-".join(map(str, case)))


# The judge ---------------------------------------------------------------------------------------


def tried(forks: Forks, victim: Victim, folder: Path, damaged: Path) -> Problems:
    """Try everything on a folder in which a file is damaged; returns all that is wrong."""
    before = results(folder)
    outcomes = forks.run(*victim.steps(folder), cwd=folder, memory=MEMORY)
    problems = [str(outcome) for outcome in outcomes if not outcome.clean]
    for outcome in outcomes:
        if outcome.fine:
            problems += wrong(victim, outcome, folder, damaged, last=outcome is outcomes[-1])
    if outcomes[-1].refused and outcomes[-2].refused and results(folder) != before:
        problems += lost(forks, victim, folder, damaged)
    return problems


def lost(forks: Forks, victim: Victim, folder: Path, damaged: Path) -> Problems:
    """What is wrong after a refusal that changed something, once the damaged file is restored."""
    if (folder / damaged).is_dir():
        (folder / damaged).rmdir()
    (folder / damaged).unlink(missing_ok=True)
    (folder / damaged).write_bytes((victim.folder / damaged).read_bytes())
    (outcome,) = forks.run(RESUME, cwd=folder)
    if not outcome.fine:
        return [f"once the file is restored {outcome}"]
    return [f"once the file is restored {problem}" for problem in victim.reference.differences(folder)]


def wrong(victim: Victim, outcome: Outcome, folder: Path, damaged: Path, last: bool) -> Problems:
    """What is not as it was recorded in the answer of a step that worked."""
    step = f"`{' '.join(outcome.step)}`"
    match outcome.step[0]:
        case "load":
            return [f"{step} {problem}" for problem in misreported(victim, loaded(outcome))]
        case "plain" if victim.finished and table(outcome.out) != victim.printed:
            return [f"{step} prints another table:\n{table(outcome.out)}"]
        case "model" if outcome.out != victim.models:
            return [f"{step} gives another model"]
        case "resume":
            found = differing(victim, folder, damaged)
            if not found and table(outcome.out) != victim.reference.table:
                found = ["it prints another table"]
            return [f"{step} works, but {problem}" for problem in found]
        case _ if last and table(outcome.out) != victim.reference.table:
            return [f"{step} prints another table:\n{table(outcome.out)}"]
    return []


def misreported(victim: Victim, found: Mapping[str, Any]) -> Iterator[str]:
    """What was loaded and is not what was recorded."""
    for name, run in found["runs"].items():
        expected = victim.expected["runs"].get(name)
        if expected is None:
            yield f"reports a run {name} that was not there"
        elif run["finished"] and run["records"] != expected["records"]:
            yield f"reports other records of {name}"
        elif (
            not run["finished"] and sealed(run["records"]) != sealed(expected["records"])[: len(sealed(run["records"]))]
        ):
            yield f"reports records of {name} that were never made"
        elif run["messages"] and run["messages"] != expected["messages"]:
            yield f"reports other messages of {name}"
    if victim.finished and all(run["finished"] for run in found["runs"].values()):
        if found["runs"].keys() != victim.expected["runs"].keys():
            yield "leaves a run out"
        if found["measurements"] != victim.expected["measurements"]:
            yield "reports other measurements"


def sealed(records: list[Any]) -> list[Any]:
    """The records of before the last checkpoint, which knows them; a crash may have cut off those after it."""
    every = 2  # rounds between checkpoints of the scenarios
    return records[: len(records) // every * every]


def differing(victim: Victim, folder: Path, damaged: Path) -> list[str]:
    """How runs that were resumed differ from those that were never damaged, in what is still read of them.

    A finished run needs no checkpoint. Where and how a run is carried out, and its label, may be changed in
    experiment.toml, of which the summary has a digest; the numbers must be the same. Without what a grid keeps, the
    runs of it that had not begun cannot be known.
    """
    aside = ["checkpoint.safetensors", "clients/*"] if victim.finished else []
    aside += ["experiment.toml", "summary.json"] if damaged.name == "experiment.toml" else []
    aside += ["summary.json"] if damaged.name == "summary.json" and _says_the_same(victim, folder, damaged) else []
    differences = victim.reference.differences(folder, aside)
    of_a_grid = len(damaged.parts) <= 3 and not (folder / damaged).is_file()
    return [problem for problem in differences if not (of_a_grid and problem.endswith("is not there"))]


def _says_the_same(victim: Victim, folder: Path, file: Path) -> bool:
    """Whether a JSON file says what it did in other words: its keys in another order, or one of them twice."""
    try:
        said, before = (json.loads((path / file).read_bytes()) for path in (folder, victim.folder))
    except (OSError, ValueError):
        return False
    return bool(said == before)


# Damages -----------------------------------------------------------------------------------------


def chosen(files: list[Path], what: str, variant: int, large: bool) -> list[Path]:
    """The files that a test damages: all in the large attack, one in the small one, another for each damage."""
    names: dict[str, Path] = {}
    draw = random.Random(f"{what} {variant}")
    for file in draw.sample(files, len(files)):
        names.setdefault("clients" if file.parent.name == "clients" else file.name, file)
    every = list(names.values())
    return every if large else every[:1]


def test_damaged(forks: Forks, victims: Victims, tmp_path: Path, large: bool, damaging: tuple[str, str, int]):
    name, state, variant = damaging
    victim, problems = victims("run", state), []
    draw = random.Random(f"{name} {state} {variant}")
    damages = {file: DAMAGES[name]((victim.folder / file).read_bytes(), draw) for file in victim.files()}
    possible = [file for file, data in damages.items() if data is not None]
    for file in chosen(possible, f"{name} {state}", variant, large):
        folder = copied(victim.folder, tmp_path / "damaged")
        data = damages[file]
        assert data is not None
        (folder / file).write_bytes(data)
        for problem in tried(forks, victim, folder, file):
            kept = data if len(data) < 300 else difference((victim.folder / file).read_bytes(), data)
            problems.append(f"{file.name} ({kept!r}): {problem}")
    none_of(problems)


def difference(before: bytes, after: bytes) -> bytes:
    """Where two contents begin to differ, for a message."""
    at = next((i for i, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before))
    return after[max(0, at - 60) : at + 100]


def test_replaced(forks: Forks, victims: Victims, tmp_path: Path, large: bool, damaging: tuple[str, str, int]):
    """A file that is gone, or is none."""
    name, state, variant = damaging
    victim, problems = victims("run", state), []
    for file in chosen(victim.files(), f"{name} {state}", variant, large):
        folder = copied(victim.folder, tmp_path / "damaged")
        FILES[name](folder / file)
        problems += [f"{file.name}: {problem}" for problem in tried(forks, victim, folder, file)]
    none_of(problems)


@pytest.fixture(scope="module")
def other(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A run with another seed."""
    scenario = replace(SCENARIOS["run"], changes={**SCENARIOS["run"].changes, "seed": 1})
    return Reference.of(forks, scenario, tmp_path_factory.mktemp("other"))


@pytest.mark.parametrize("state", STATES)
def test_files_of_another_run(
    forks: Forks, victims: Victims, tmp_path: Path, large: bool, other: Reference, state: str
):
    """The same file of a run that differs only in its seed."""
    victim, problems = victims("run", state), []
    (theirs,) = run_folders(other.folder)
    (mine,) = run_folders(victim.folder)
    same = [
        file
        for file in victim.files()
        if (found := theirs / (victim.folder / file).relative_to(mine)).is_file()
        and found.read_bytes() != (victim.folder / file).read_bytes()
    ]
    for file in same if large else chosen(same, state, 0, large=True)[:2]:
        folder = copied(victim.folder, tmp_path / "damaged")
        (folder / file).write_bytes((theirs / (victim.folder / file).relative_to(mine)).read_bytes())
        problems += [f"{file.name}: {problem}" for problem in tried(forks, victim, folder, file)]
    none_of(problems)


@pytest.mark.parametrize("state", STATES)
def test_files_of_a_grid(forks: Forks, victims: Victims, tmp_path: Path, large: bool, state: str):
    """What a grid keeps beside its runs' folders."""
    victim, problems = victims("grid", state), []
    files = [file for file in victim.files() if len(file.parts) <= 3]
    for file in files:
        draw = random.Random(f"{file.name} {state}")
        content = (victim.folder / file).read_bytes()
        damages = {name: data for name, how in DAMAGES.items() if (data := how(content, draw)) is not None}
        for name, data in damages.items() if large else draw.sample(sorted(damages.items()), 2):
            folder = copied(victim.folder, tmp_path / "damaged")
            (folder / file).write_bytes(data)
            problems += [f"{file.name}, {name}: {problem}" for problem in tried(forks, victim, folder, file)]
        for name, replaced in FILES.items() if large else draw.sample(sorted(FILES.items()), 1):
            folder = copied(victim.folder, tmp_path / "damaged")
            replaced(folder / file)
            problems += [f"{file.name}, {name}: {problem}" for problem in tried(forks, victim, folder, file)]
    none_of(problems)


# The attack itself -------------------------------------------------------------------------------


def test_what_is_not_damaged_works(forks: Forks, victims: Victims, tmp_path: Path):
    """The judge finds nothing where nothing is wrong, and all that is tried works."""
    for state in STATES:
        victim = victims("run", state)
        folder = copied(victim.folder, tmp_path / state)
        assert not tried(forks, victim, folder, Path())
        assert not victim.reference.differences(folder)


def test_checksums_are_made_again(forks: Forks, victims: Victims, tmp_path: Path):
    """A sealed file whose header is written anew, with another checksum, is still read: only what it says can hurt."""
    victim = victims("run", "unfinished")
    sealed = [file for file in victim.files() if b"checksum" in (victim.folder / file).read_bytes()]
    sealed = [file for file in sealed if file.suffix == ".safetensors"]
    assert {file.name for file in sealed} >= {"checkpoint.safetensors"}
    folder = copied(victim.folder, tmp_path / "sealed")
    for file in sealed:
        data = (folder / file).read_bytes()
        assert damage.resealed(data) == data
        again = damage.rewritten(data, random.Random(0))
        assert again is not None
        (folder / file).write_bytes(again)
        checksums = [re.findall(rb"[0-9a-f]{32}", content) for content in (data, again)]
        assert checksums[0] != checksums[1] or data == again
    (outcome,) = forks.run(RESUME, cwd=folder)
    assert outcome.fine, outcome
