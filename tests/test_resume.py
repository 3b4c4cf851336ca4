"""A run that is killed at any moment and resumed equals one that never stopped, bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import CNN_WITH_BN, TINY, AfterRound, Make, interrupt_after, results, resume
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.find import write_grid
from fedshift.runs.run import Run
from fedshift.study.grid import expand, override


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_kept_moments_go_on_whatever_their_layout(tmp_path: Path, optimiser: str):
    """A checkpoint is contiguous, the CNN's moments are channels-last; names may hold a slash."""
    method = {"name": "slashed", "optimiser_state": "kept"}
    changes = CNN_WITH_BN | {"method": method, "model.channels": [4, 5], "train.optimiser": optimiser}
    changes |= {"train.lr": 0.01, "train.rounds": 4, "run.checkpoint_every": 2}
    (whole,) = expand(override(TINY, {**changes, "run.out": str(tmp_path / "whole")}))
    (cut,) = expand(override(TINY, {**changes, "run.out": str(tmp_path / "cut")}))
    reference = runner.start(whole, Progress())
    with pytest.raises(KeyboardInterrupt):
        runner.start(cut, interrupt_after(3))
    folder = Run(runner.run_path(cut))
    resume(folder)
    assert results(folder) == results(reference)


# Groups -------------------------------------------------------------------------------------------

GRID = {
    "seed": [0, 1, 2, 3, 4],
    "run.engine": "vectorised",
    "run.together": 2,
    "run.checkpoint_every": 2,
    "train.rounds": 5,
}


@pytest.fixture(scope="module")
def whole_grid(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """Five runs in stacks of two, in float32, whose last bits a stack decides."""
    folders, failed = runner.run_all(grid_in(tmp_path_factory.mktemp("whole")), Progress())
    assert not failed
    return [results(folder) for folder in folders]


def grid_in(out: Path, changes: dict[str, Any] | None = None) -> list[Experiment]:
    return expand(override(TINY, {**GRID, "run.out": str(out), **(changes or {})}))


@pytest.mark.parametrize("rounds", [1, 8, 23])
def test_an_interrupted_grid_is_resumed_as_the_grid_that_it_was(
    whole_grid: list[tuple[Any, ...]], tmp_path: Path, rounds: int
):
    """Ctrl-C after so many rounds of runs, in any of the stacks: the same bits, and all five runs."""
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(rounds))
    folders, failed = runner.resume(runner.below(tmp_path), Progress())
    assert not failed
    assert [results(folder) for folder in folders] == whole_grid


def test_a_run_whose_stack_is_gone_says_so(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(7))
    first, second = (Run(runner.run_path(experiment)) for experiment in grid_in(tmp_path)[:2])
    shutil.rmtree(second.path)
    noted: list[str] = []
    progress = Progress()
    progress.note = noted.append  # type: ignore[method-assign]  # a test's own
    resume(first, progress)
    assert first.finished
    assert re.search(r"was stacked with 1 runs? .* last digits may differ", "\n".join(noted))


def test_a_run_that_was_not_begun_needs_what_the_others_had(tmp_path: Path):
    """The comparison's file knows it, and that the plugin has changed since."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text("")
    changes = {"plugins": [str(plugin)]}
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path / "runs", changes), interrupt_after_all(7))
    plugin.write_text(plugin.read_text() + "\n# changed\n")
    with pytest.raises(FedshiftError, match=r"plugin '.*plugin\.py' of the run .* is not what it was"):
        runner.below(tmp_path / "runs")


def interrupt_after_all(last: int) -> Progress:
    """Ctrl-C after so many rounds of all runs."""
    left = [last]

    def call(position: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    return AfterRound(call)


def test_what_a_kill_left_of_a_grid_is_removed_by_the_next_run(make: Make):
    """Unless its process still writes it, or it is no leftover of this file."""
    experiments = [make({"seed": seed}) for seed in (0, 1)]
    folder = runner.run_path(experiments[0]).parent
    write_grid(experiments, folder)
    (grid,) = folder.iterdir()
    grid.unlink()
    with subprocess.Popen([sys.executable, "-c", ""]) as over:
        pass
    others = [folder / f".{grid.name}.{os.getppid()}.new", folder / f".{grid.name}.mine.new", folder / ".other.1.new"]
    for leftover in (folder / f".{grid.name}.{over.pid}.new", *others):
        leftover.write_text("half")
    write_grid(experiments, folder)
    assert {*folder.iterdir()} == {grid, *others}
