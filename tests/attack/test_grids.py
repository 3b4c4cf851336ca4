"""What a grid and a stack keep beside and in the folders of their runs: forged, of another, moved, or gone in part."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from attack.damage import TEXT
from attack.faults import Fault
from attack.forgery import FORGERIES, sealed
from attack.forks import Forks
from attack.harness import (
    RESUME,
    SCENARIOS,
    Problems,
    Reference,
    contents,
    copied,
    in_small,
    none_of,
    run_folders,
)
from attack.victims import MEMORY, Victims

ELSEWHERE = ("../../../outside/x", "/tmp/fedshift-outside", "..", "", "a/b", "a\0b", "x" * 300, "tiny\udcff", None, 5)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """How many forgeries of each file."""
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", range(40 if metafunc.config.getoption("attack") == "large" else 2))


def attempted(forks: Forks, folder: Path) -> Problems:
    """Resume and compare; returns what is neither done nor refused by one error, and what was touched outside."""
    outside = contents(folder.parent, but=folder)
    steps = (RESUME, SCENARIOS["grid"].step, ("load", "runs"))
    outcomes = forks.run(*steps, cwd=folder, memory=MEMORY)
    problems = [str(outcome) for outcome in outcomes if not outcome.clean]
    after = contents(folder.parent, but=folder)
    return problems + [f"touches {name}" for name in outside.keys() ^ after.keys()]


def plan_of(folder: Path) -> Path:
    (plan,) = (folder / "runs").rglob("grid-*.json")
    return plan


# Grids -------------------------------------------------------------------------------------------


def test_a_grid_that_names_folders_elsewhere(forks: Forks, victims: Victims, tmp_path: Path, large: bool):
    """A run is a folder beside the grid's file, whatever that says."""
    problems = []
    for number, name in enumerate(ELSEWHERE if large else ELSEWHERE[:2]):
        folder = copied(victims("grid", "unfinished").folder, tmp_path / str(number) / "case")
        plan = json.loads(plan_of(folder).read_bytes())
        plan["runs"][-1]["folder"] = name
        plan_of(folder).write_bytes(sealed(plan, ""))
        (outcome,) = forks.run(RESUME, cwd=folder)
        problems += [f"{name!r}: {outcome}"] if not outcome.refused else []
        problems += [f"{name!r}: {problem}" for problem in attempted(forks, folder)]
    assert not Path("/tmp/fedshift-outside").exists()
    none_of(problems)


def test_a_forged_grid(forks: Forks, victims: Victims, tmp_path: Path, variant: int):
    draw = random.Random(f"grid {variant}")
    folder = copied(victims("grid", "unfinished").folder, tmp_path / "case")
    how = draw.choice(FORGERIES)
    data = TEXT[how](plan_of(folder).read_bytes(), draw)
    assert data is not None
    said = json.loads(data)
    plan_of(folder).write_bytes(sealed(said, "") if isinstance(said, dict) else data)
    none_of([f"{how}: {problem}" for problem in attempted(forks, folder)])


def test_a_grid_beside_another(forks: Forks, victims: Victims, references: dict[str, Reference], tmp_path: Path):
    """Two comparisons in a folder, one of which has begun nothing, are both resumed; neither changes the other."""
    folder = copied(victims("grid", "unfinished").folder, tmp_path / "case")
    other = replace(SCENARIOS["grid"], changes={**SCENARIOS["grid"].changes, "seed": [5, 6]})
    made = Reference.of(forks, other, tmp_path / "other")
    shutil.copy(plan_of(made.folder), plan_of(folder).parent)
    (outcome,) = forks.run(RESUME, cwd=folder)
    assert outcome.fine, outcome
    both = replace(made, results={**made.results, **references["grid"].results})
    none_of(both.differences(folder))


# Stacks ------------------------------------------------------------------------------------------


def saved_together(reference: Reference) -> list[int]:
    """The operations at which all runs of a stack have written their next checkpoint and none has committed it."""
    found = [at for at, done in enumerate(reference.operations, 1) if done == "replace checkpoint.next.safetensors"]
    assert found, sorted(set(reference.operations))
    return found


def stopped(forks: Forks, reference: Reference, folder: Path, at: int = 0) -> Path:
    """A stack that was killed at an operation, by default where each of its runs has two checkpoints."""
    reference.scenario.write(folder)
    at = at or saved_together(reference)[-3]  # the first of the last three: nobody has committed
    forks.run(reference.scenario.step, cwd=folder, fault=Fault(str(folder / "runs"), at, kill=True))
    return folder


def alike(reference: Reference, folder: Path) -> Problems:
    """Where records are another's by more than the last digits, which a run may lose that goes on without its mates."""
    problems = []
    for name, data in reference.results.items():
        if name.endswith("records.jsonl"):
            file = folder / "runs" / name
            found = file.read_bytes() if file.is_file() else b""
            pairs = zip(data.splitlines(), found.splitlines(), strict=False)
            near = all(_near(json.loads(one), json.loads(other)) for one, other in pairs)
            same = near and len(data.splitlines()) == len(found.splitlines())
            problems += [] if same else [f"the records {name} differ"]
    return problems


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one if name != "chain")
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_near, one, other))
    return isclose(one, other, rel_tol=1e-4, abs_tol=1e-6) if isinstance(one, float) else bool(one == other)


def _nothing(runs: list[Path]) -> None:
    """Both checkpoints of each run are there."""


def _only_next(runs: list[Path]) -> None:
    for run in runs:
        (run / "checkpoint.safetensors").unlink()


def _only_next_of_one(runs: list[Path]) -> None:
    (runs[1] / "checkpoint.safetensors").unlink()


def _no_next_of_one(runs: list[Path]) -> None:
    (runs[1] / "checkpoint.next.safetensors").unlink()


def _next_is_cut(runs: list[Path]) -> None:
    file = runs[1] / "checkpoint.next.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def _next_has_another_bit(runs: list[Path]) -> None:
    """Its header is read, its tensors are not those that were written."""
    file = runs[1] / "checkpoint.next.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def _next_of_another(runs: list[Path]) -> None:
    shutil.copy(runs[0] / "checkpoint.next.safetensors", runs[1])


def _no_position_in_common(runs: list[Path]) -> None:
    for run, name in zip(runs, ("checkpoint", "checkpoint.next", "checkpoint"), strict=True):
        (run / f"{name}.safetensors").unlink()


def _one_is_gone(runs: list[Path]) -> None:
    shutil.rmtree(runs[1])


def _all_but_one_are_gone(runs: list[Path]) -> None:
    for run in runs[1:]:
        shutil.rmtree(run)


EQUAL: dict[str, Callable[[list[Path]], None]] = {
    "both are there": _nothing,
    "only the next": _only_next,
    "only the next of one": _only_next_of_one,
    "no next of one": _no_next_of_one,
}
NEAR: dict[str, Callable[[list[Path]], None]] = {
    "a next that is cut": _next_is_cut,
    "a next with another bit": _next_has_another_bit,
    "a next of another run": _next_of_another,
    "no position in common": _no_position_in_common,
    "a run is gone": _one_is_gone,
    "all runs but one are gone": _all_but_one_are_gone,
}
IN_SMALL = ("only the next of one", "a next with another bit", "no position in common", "a run is gone")


@pytest.mark.parametrize("name", in_small([*EQUAL, *NEAR], *IN_SMALL))
def test_checkpoints_of_a_stack(forks: Forks, references: dict[str, Reference], tmp_path: Path, name: str):
    """Equal to the byte where all can go back to one position together; otherwise but for the last digits."""
    reference = references["stack"]
    folder = stopped(forks, reference, tmp_path / "case")
    runs = run_folders(folder)
    assert all((run / f"checkpoint{next}.safetensors").is_file() for run in runs for next in ("", ".next"))
    (EQUAL | NEAR)[name](runs)
    (outcome,) = forks.run(RESUME, cwd=folder)
    assert outcome.fine, outcome
    none_of(reference.differences(folder) if name in EQUAL else alike(reference, folder))


def test_a_stack_that_was_moved(forks: Forks, references: dict[str, Reference], tmp_path: Path):
    """No file of it needs the name of the folder that its runs lie in."""
    reference = references["stack"]
    folder = stopped(forks, reference, tmp_path / "case")
    (tmp_path / "other").mkdir()
    (folder / "runs" / "tiny").rename(tmp_path / "other" / "moved")
    (outcome,) = forks.run(("resume", str(tmp_path / "other" / "moved")), cwd=tmp_path)
    assert outcome.fine, outcome
    (tmp_path / "other" / "moved").rename(folder / "runs" / "tiny")
    none_of(reference.differences(folder))


def test_a_stack_without_a_checkpoint_in_common(forks: Forks, references: dict[str, Reference], tmp_path: Path):
    """Killed before all have their first one, they begin again together; killed then, no record is called damaged."""
    reference = references["stack"]
    first = reference.operations.index("replace checkpoint.next.safetensors") + 1
    operations = list(enumerate(reference.operations[:first], 1))
    saving = [at for at, done in operations if done.split()[1].startswith(".checkpoint.next")]
    begun = [at for at in saving if reference.operations[at - 1].startswith("open")]
    assert len(begun) == 3, operations
    folder = stopped(forks, reference, tmp_path / "case", begun[1])
    assert len(list(folder.rglob("checkpoint.next.safetensors"))) == 1
    trace = tmp_path / "trace"
    copy = copied(folder, tmp_path / "traced")
    forks.run(RESUME, cwd=copy, fault=Fault(str(copy / "runs"), trace=str(trace)))
    again = trace.read_text().splitlines().index("write records.jsonl") + 1
    forks.run(RESUME, cwd=folder, fault=Fault(str(folder / "runs"), again, kill=True))
    load, resume = forks.run(("load", "runs"), RESUME, cwd=folder)
    assert load.refused or "is left out" not in load.out, load
    assert "lacks records" not in load.err
    assert resume.fine, resume
    none_of(reference.differences(folder))


# Trust -------------------------------------------------------------------------------------------

PLUGIN = """
import fedshift
from fedshift.methods.fedavg import FedAvg
from dataclasses import dataclass

@fedshift.METHODS.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    \"\"\"A method.\"\"\"
"""


def _no_marks(marks: Path, digest: str) -> None:
    """Another machine."""


def _a_folder(marks: Path, digest: str) -> None:
    (marks / digest).mkdir(parents=True)


def _of_another(marks: Path, digest: str) -> None:
    marks.mkdir(parents=True)
    (marks / digest[::-1]).write_text("mine.py")


def _a_file_for_all(marks: Path, digest: str) -> None:
    marks.parent.mkdir(parents=True)
    marks.write_text(digest)


@pytest.mark.parametrize(
    "marks", in_small([_no_marks, _a_folder, _of_another, _a_file_for_all], _no_marks, _of_another)
)
def test_marks_of_trust(forks: Forks, tmp_path: Path, marks: Callable[[Path, str], None]):
    """Only a mark of the very plugin lets it be imported; without one it is asked for, and trust needs no mark."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    replace(SCENARIOS["run"], changes={"train.rounds": 3}).write(tmp_path)
    run_mine = ("plain", "run", "case.toml", "--plugin", "mine.py", "--method", "mine")
    forks.run(run_mine, cwd=tmp_path, fault=Fault(str(tmp_path / "runs"), 30, kill=True))
    (run,) = run_folders(tmp_path)
    (digest,) = json.loads((run / "run.json").read_bytes())["plugins"].values()
    marks(tmp_path / "cache" / "plugins", digest)
    here = {"FEDSHIFT_CACHE": str(tmp_path / "cache")}
    before = contents(tmp_path / "runs")
    resume = ("plain", "resume", "runs")
    refused, load = forks.run(resume, ("load", "runs"), cwd=tmp_path, environment=here)
    assert refused.refused, refused
    assert "--trust" in refused.err, refused
    assert load.clean, load
    assert contents(tmp_path / "runs") == before
    (trusted,) = forks.run((*resume, "--trust"), cwd=tmp_path, environment=here)
    assert trusted.fine, trusted
