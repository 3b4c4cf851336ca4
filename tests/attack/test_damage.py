"""Every file of a run's folder, damaged in every way: what is read of it is right, or one clear error.

After each damage the run is loaded, reported, requested its models, resumed and compared again. Each either works with
exactly the numbers that were recorded, or ends with a single error; a resumed run is equal to the byte to one that was
never damaged; and what a refusal leaves can be mended by restoring the file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from attack.damage import DAMAGES
from attack.forks import Forks, Outcome
from attack.harness import RESUME, SCENARIOS, Problems, Reference, copied, loaded, none_of, results, run_folders, table
from attack.victims import MEMORY, STATES, Victim, Victims


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In the small attack a file is damaged in one way, another than the file before; in the large one in all."""
    if "ways" in metafunc.fixturenames:
        large = metafunc.config.getoption("attack") == "large"
        metafunc.parametrize("ways", list(DAMAGES) if large else ["one of them"])


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
    problems: Problems = []
    match outcome.step[0]:
        case "load":
            problems = [*misreported(victim, loaded(outcome))]
        case "plain" if victim.finished and table(outcome.out) != victim.printed:
            problems = ["another table"]
        case "model" if outcome.out != victim.models:
            problems = ["another model"]
        case "resume":
            problems = differing(victim, folder, damaged)
    if (last or outcome.step == RESUME) and table(outcome.out) != victim.reference.table:
        problems.append("another table in the end")
    return [f"`{' '.join(outcome.step)}`: {problem}" for problem in problems]


def misreported(victim: Victim, found: Mapping[str, Any]) -> Iterator[str]:
    """What was loaded and is not what was recorded."""
    for name, run in found["runs"].items():
        expected = victim.expected["runs"].get(name, {"records": [None], "messages": None})
        records = run["records"] if run["finished"] else sealed(run["records"])
        if records != (expected["records"] if run["finished"] else expected["records"][: len(records)]):
            yield f"reports records of {name} that were never made"
        if run["messages"] and run["messages"] != expected["messages"]:
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

    A finished run needs no checkpoint. Where and how a run is run may be changed in experiment.toml; the
    numbers must be the same. Without what a grid keeps, the runs of it that had not started cannot be known.
    """
    aside = ["checkpoint@*.safetensors", "clients/*"] if victim.finished else []
    aside += ["experiment.toml"] if damaged.name == "experiment.toml" else []
    differences = victim.reference.differences(folder, aside)
    of_a_grid = len(damaged.parts) <= 3 and not (folder / damaged).is_file()
    return [problem for problem in differences if not (of_a_grid and problem.endswith("is not there"))]


@pytest.mark.parametrize("state", STATES)
def test_damaged(forks: Forks, victims: Victims, tmp_path: Path, state: str, ways: str):
    """Every file of a run, each damaged in one way."""
    victim, problems, draw = victims("run", state), list[str](), random.Random(f"{state} {ways}")
    files = {"clients" if file.parent.name == "clients" else file.name: file for file in victim.files()}
    in_turn = cycle(sorted(DAMAGES, key=lambda name: draw.random()) if ways == "one of them" else [ways])
    for file, way in zip(files.values(), in_turn, strict=False):
        folder = copied(victim.folder, tmp_path / "damaged")
        DAMAGES[way](folder / file, draw)
        problems += [f"{file.name}, {way}: {problem}" for problem in tried(forks, victim, folder, file)]
    none_of(problems)


@pytest.mark.parametrize("state", STATES)
def test_files_of_another_run(forks: Forks, victims: Victims, tmp_path: Path, state: str):
    """The same file of a run that differs only in its seed."""
    scenario = replace(SCENARIOS["run"], changes={**SCENARIOS["run"].changes, "seed": 1})
    other = Reference.of(forks, scenario, tmp_path / "other")
    victim, problems = victims("run", state), list[str]()
    (theirs,), (mine,) = run_folders(other.folder), run_folders(victim.folder)
    for file in victim.files():
        found = theirs / (victim.folder / file).relative_to(mine)
        if not found.is_file() or found.suffix not in (".json", ".jsonl"):
            continue
        folder = copied(victim.folder, tmp_path / "damaged")
        (folder / file).write_bytes(found.read_bytes())
        problems += [f"{file.name}: {problem}" for problem in tried(forks, victim, folder, file)]
    none_of(problems)


@pytest.mark.parametrize("way", ["edited", "deleted"])
def test_the_file_of_a_grid(forks: Forks, victims: Victims, tmp_path: Path, way: str):
    """It lies beside its runs' folders, and names which there are."""
    victim = victims("grid", "unfinished")
    (file,) = (file for file in victim.files() if file.name.startswith("grid-"))
    folder = copied(victim.folder, tmp_path / "damaged")
    DAMAGES[way](folder / file, random.Random(way))
    none_of(tried(forks, victim, folder, file))


def test_what_is_not_damaged_works(forks: Forks, victims: Victims, tmp_path: Path):
    """The judge finds nothing where nothing is wrong, and all that is tried works."""
    for state in STATES:
        victim = victims("run", state)
        folder = copied(victim.folder, tmp_path / state)
        assert not tried(forks, victim, folder, Path())
        assert not victim.reference.differences(folder)
