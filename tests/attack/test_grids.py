"""What a grid and a stack keep beside and in the folders of their runs: forged, of another, moved, or gone in part."""

from __future__ import annotations

import json
import shutil
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from attack.faults import Fault
from attack.forks import Forks
from attack.harness import RESUME, Problems, Reference, copied, none_of, run_folders
from attack.victims import Victims
from fedshift.manifest import digested_json

ELSEWHERE = ("../../../outside/x", "/tmp/fedshift-outside", "..", "", "a/b", None)


def plan_of(folder: Path) -> Path:
    (plan,) = (folder / "runs").rglob("grid-*.json")
    return plan


# Grids -------------------------------------------------------------------------------------------


def test_a_grid_that_names_folders_elsewhere(forks: Forks, victims: Victims, tmp_path: Path):
    """A run is a folder beside the grid's file, whatever that states."""
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


def alike(reference: Reference, folder: Path) -> Problems:
    """Where records differ by more than the last digits, in which a run may differ that continues without its mates."""
    problems = []
    for name, data in reference.results.items():
        if name.endswith("records.jsonl"):
            file = folder / "runs" / name
            both = data.splitlines(), file.read_bytes().splitlines() if file.is_file() else []
            same = _near(*([json.loads(line) for line in lines] for lines in both))
            problems += [] if same else [f"the records {name} differ"]
    return problems


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_near, one, other))
    return isclose(one, other, rel_tol=1e-4, abs_tol=1e-6) if isinstance(one, float) else bool(one == other)


@pytest.mark.parametrize(
    "change", ["none", "no newest of one", "no position in common", "another bit", "of another run", "a run is gone"]
)
def test_checkpoints_of_a_stack(forks: Forks, references: dict[str, Reference], tmp_path: Path, change: str):
    """Equal to the byte where all can go back to one position together; otherwise but for the last digits."""
    reference = references["stack"]
    folder = reference.scenario.write(tmp_path / "case")
    done = list(enumerate(reference.operations, 1))
    last = max(at for at, what in done if what.startswith("replace .manifest-"))
    at = next(at for at, what in done if at > last and what.startswith("unlink manifest-"))
    forks.run(reference.scenario.step, cwd=folder, fault=Fault(str(folder / "runs"), at, kill=True))
    runs = run_folders(folder)
    assert all(len(list(run.glob("manifest-*.json"))) == 2 for run in runs)
    match change:
        case "no newest of one":
            max(runs[1].glob("manifest-*.json")).unlink()
        case "no position in common":
            for run, which in zip(runs, (min, max, min), strict=True):
                which(run.glob("manifest-*.json")).unlink()
        case "another bit":
            file = max(runs[1].glob("checkpoint@*.safetensors"))
            data = file.read_bytes()
            file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        case "of another run":
            shutil.copy(max(runs[0].glob("manifest-*.json")), runs[1])
        case "a run is gone":
            shutil.rmtree(runs[1])
    (outcome,) = forks.run(RESUME, cwd=folder)
    assert outcome.fine, outcome
    near = change in ("another bit", "of another run", "a run is gone")
    none_of(alike(reference, folder) if near else reference.differences(folder))
