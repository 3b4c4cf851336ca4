"""What a grid and a stack keep beside and in the folders of their runs: forged, of another, moved, or gone in part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from attack.faults import Fault
from attack.forks import Forks
from attack.harness import RESUME, SCENARIOS, Problems, Reference, contents, copied, none_of, run_folders
from attack.victims import Victims
from fedshift.manifest import digested_json

ELSEWHERE = ("../../../outside/x", "/tmp/fedshift-outside", "..", "", "a/b", None)


def plan_of(folder: Path) -> Path:
    (plan,) = (folder / "runs").rglob("grid-*.json")
    return plan


# Grids -------------------------------------------------------------------------------------------


def test_a_grid_that_names_folders_elsewhere(forks: Forks, victims: Victims, tmp_path: Path):
    """A run is a folder beside the grid's file, whatever that says."""
    problems = []
    for number, name in enumerate(ELSEWHERE):
        folder = copied(victims("grid", "unfinished").folder, tmp_path / str(number) / "case")
        plan = json.loads(plan_of(folder).read_bytes())
        del plan["digest"]
        plan["runs"][-1]["folder"] = name
        plan_of(folder).write_text(digested_json(plan))
        (outcome,) = forks.run(RESUME, cwd=folder)
        problems += [f"{name!r}: {outcome}"] if not outcome.refused else []
    assert not Path("/tmp/fedshift-outside").exists()
    assert not (tmp_path / "outside").exists()
    none_of(problems)


# Stacks ------------------------------------------------------------------------------------------


def saving(reference: Reference) -> list[int]:
    """The operations at which a run of a stack puts a manifest in its place."""
    return [at for at, done in enumerate(reference.operations, 1) if done.startswith("replace .manifest-")]


def stopped(forks: Forks, reference: Reference, folder: Path, at: int = 0) -> Path:
    """A stack that was killed at an operation, by default where each of its runs has two checkpoints."""
    reference.scenario.write(folder)
    at = at or next(
        at
        for at, done in enumerate(reference.operations, 1)
        if at > saving(reference)[-1] and done.startswith("unlink manifest-")
    )
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
        return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_near, one, other))
    return isclose(one, other, rel_tol=1e-4, abs_tol=1e-6) if isinstance(one, float) else bool(one == other)


def _nothing(runs: list[Path]) -> None:
    """Both checkpoints of each run are there."""


def _no_newest_of_one(runs: list[Path]) -> None:
    (runs[1] / max(path.name for path in runs[1].glob("manifest-*.json"))).unlink()


def _another_bit_in_one(runs: list[Path]) -> None:
    file = max(runs[1].glob("checkpoint@*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def _newest_of_another(runs: list[Path]) -> None:
    shutil.copy(max(runs[0].glob("manifest-*.json")), runs[1])


def _no_position_in_common(runs: list[Path]) -> None:
    for run, which in zip(runs, (min, max, min), strict=True):
        which(run.glob("manifest-*.json")).unlink()


def _one_is_gone(runs: list[Path]) -> None:
    shutil.rmtree(runs[1])


EQUAL: dict[str, Callable[[list[Path]], None]] = {
    "both are there": _nothing,
    "no newest of one": _no_newest_of_one,
    "no position in common": _no_position_in_common,
}
NEAR: dict[str, Callable[[list[Path]], None]] = {
    "another bit in one": _another_bit_in_one,
    "a newest of another run": _newest_of_another,
    "a run is gone": _one_is_gone,
}


@pytest.mark.parametrize("name", [*EQUAL, *NEAR])
def test_checkpoints_of_a_stack(forks: Forks, references: dict[str, Reference], tmp_path: Path, name: str):
    """Equal to the byte where all can go back to one position together; otherwise but for the last digits."""
    reference = references["stack"]
    folder = stopped(forks, reference, tmp_path / "case")
    runs = run_folders(folder)
    assert all(len(list(run.glob("manifest-*.json"))) == 2 for run in runs)
    (EQUAL | NEAR)[name](runs)
    (outcome,) = forks.run(RESUME, cwd=folder)
    assert outcome.fine, outcome
    none_of(reference.differences(folder) if name in EQUAL else alike(reference, folder))


# Trust -------------------------------------------------------------------------------------------

PLUGIN = """
import fedshift
from fedshift.methods.fedavg import FedAvg
from dataclasses import dataclass

@fedshift.METHODS.register("mine")
class Mine(FedAvg):
    \"\"\"A method.\"\"\"
"""


@pytest.mark.parametrize("mark", ["", "of another"])
def test_marks_of_trust(forks: Forks, tmp_path: Path, mark: str):
    """Only a mark of the very plugin lets it be imported; without one it is asked for, and trust needs no mark."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    replace(SCENARIOS["run"], changes={"train.rounds": 3}).write(tmp_path)
    run_mine = ("plain", "run", "case.toml", "--plugin", "mine.py", "--method", "mine")
    forks.run(run_mine, cwd=tmp_path, fault=Fault(str(tmp_path / "runs"), 30, kill=True))
    (run,) = run_folders(tmp_path)
    (digest,) = json.loads((run / "run.json").read_bytes())["plugins"].values()
    if mark:
        (tmp_path / "cache" / "plugins").mkdir(parents=True)
        (tmp_path / "cache" / "plugins" / digest[::-1]).write_text("mine.py")
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
