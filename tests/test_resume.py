"""A run that is killed at any moment and resumed equals one that never stopped, bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from conftest import CNN_WITH_BN, TINY, AfterRound, Make, interrupt_after, results, resume, simulate
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.runs.grid_file import write_grid
from fedshift.runs.recorder import Recorder
from fedshift.study.grid import expand, override

# Every kind of state: shared, client (batch norm, r(z|y)), moments of both, batches drawn, a sampled cohort.
EVERYTHING = CNN_WITH_BN | {
    "method": {"name": "fedsr", "reference_scope": "client", "bn": "local", "optimiser_state": "kept"},
    "train.rounds": 24,
    "train.participation": 0.5,
    "train.lr": 0.01,
    "evaluate.every": 2,
    "run.checkpoint_every": 5,
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from conftest import TINY

    return override(TINY, EVERYTHING)


@pytest.fixture(scope="module")
def uninterrupted(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    (experiment,) = expand(override(document, {"run.out": str(tmp_path_factory.mktemp("whole"))}))
    return runner.start(experiment, Progress())


def test_a_half_written_record_and_leftovers_do_no_harm(
    document: dict[str, Any], uninterrupted: RunFolder, tmp_path: Path
):
    """What a crash in the middle of a write can leave behind."""
    stop = interrupt_after(13)
    (experiment,) = expand(override(document, {"run.out": str(tmp_path)}))
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, stop)
    folder = RunFolder.open(runner.run_path(experiment))
    with (folder.path / "records.jsonl").open("a") as file:
        file.write('{"position": 14, "sta')
    (folder.path / ".checkpoint.safetensors.1.new").write_bytes(b"half")
    resume(folder)
    assert results(folder) == results(uninterrupted)
    assert not list(folder.path.glob("*.new")) + list(folder.path.glob(".*.new"))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_kept_moments_go_on_whatever_their_layout(document: dict[str, Any], tmp_path: Path, optimiser: str):
    """A checkpoint is contiguous, the CNN's moments are channels-last; names may hold a slash."""
    changes = {"method": {"name": "slashed", "optimiser_state": "kept"}, "train.optimiser": optimiser}
    changes |= {"model.channels": [4, 5], "train.rounds": 4, "run.checkpoint_every": 2, "train.participation": 1.0}

    stop = interrupt_after(3)
    (whole,) = expand(override(document, {**changes, "run.out": str(tmp_path / "whole")}))
    (cut,) = expand(override(document, {**changes, "run.out": str(tmp_path / "cut")}))
    reference = runner.start(whole, Progress())
    with pytest.raises(KeyboardInterrupt):
        runner.start(cut, stop)
    folder = RunFolder.open(runner.run_path(cut))
    resume(folder)
    assert results(folder) == results(reference)


def test_a_finished_run_is_left_alone(uninterrupted: RunFolder):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.path.iterdir()}
    resume(uninterrupted)
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.path.iterdir()} == before


def test_two_processes_do_not_run_one_run(uninterrupted: RunFolder):
    with (
        uninterrupted.locked(),
        pytest.raises(FedshiftError, match="Another process is running"),
        uninterrupted.locked(),
    ):
        pass


def test_equal_runs_have_equal_records(document: dict[str, Any], uninterrupted: RunFolder, tmp_path: Path):
    (experiment,) = expand(override(document, {"run.out": str(tmp_path), "name": "again"}))
    assert results(runner.start(experiment, Progress())) == results(uninterrupted)


def test_a_seed_changes_the_result(document: dict[str, Any]):
    one, other = (simulate(expand(override(document, {"seed": seed}))[0], rounds=1) for seed in (0, 1))
    shared = other.coordinator.state.shared
    assert any(not tensor.equal(shared[name]) for name, tensor in one.coordinator.state.shared.items())


def test_what_left_before_an_interruption_stays_declared(document: dict[str, Any], tmp_path: Path):
    """Interrupted in training, the index stages' messages are still in messages.json at the end."""
    index = {"name": "dsa-ign", "epochs": 2, "feedforward": 16, "encoder": {"size": 64}}
    changes = {"run.out": str(tmp_path), "method": {"name": "client2vec", "index": index}}
    (experiment,) = expand(override(document, changes))

    stop = interrupt_after(4)
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, stop)
    folder = RunFolder.open(runner.run_path(experiment))
    resume(folder)
    assert set(folder.messages) == {"pairs", "vectors", "train"}


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


@pytest.mark.parametrize("rounds", [1, 3, 7, 8, 10, 23])
def test_an_interrupted_grid_is_resumed_as_the_grid_that_it_was(
    whole_grid: list[tuple[Any, ...]], tmp_path: Path, rounds: int
):
    """Ctrl-C after so many rounds of runs, in any of the stacks: the same bits, and all five runs."""
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(rounds))
    folders, failed = runner.resume(runner.below(tmp_path), Progress())
    assert not failed
    assert [results(folder) for folder in folders] == whole_grid


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("committed", [0, 1])
def test_a_stack_goes_back_to_a_position_that_all_runs_have(
    whole_grid: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, committed: int
):
    """It stops when some runs have written, or committed, the checkpoint of round 4, and others have not."""
    left = {"save": 2 + written, "keep_only": 2 + committed}

    def stops(name: str) -> Callable[..., None]:
        plain = getattr(Recorder, name)

        def stopping(self: Recorder, *arguments: Any) -> None:
            if not left[name]:
                raise KeyboardInterrupt
            left[name] -= 1
            plain(self, *arguments)

        return stopping

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        for name in left:
            patch.setattr(Recorder, name, stops(name))
        runner.run_all(grid_in(tmp_path), Progress())
    folders, failed = runner.resume(runner.below(tmp_path), Progress())
    assert not failed
    assert [results(folder) for folder in folders] == whole_grid


def test_a_run_whose_stack_is_gone_says_so(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(7))
    first, second = (RunFolder(runner.run_path(experiment)) for experiment in grid_in(tmp_path)[:2])
    shutil.rmtree(second.path)
    noted: list[str] = []
    progress = Progress()
    progress.note = noted.append  # type: ignore[method-assign]  # a test's own
    resume(first, progress)
    assert first.finished
    assert re.search(r"was stacked with 1 runs? .* last digits may differ", "\n".join(noted))


def test_a_damaged_run_that_another_process_carries_out_stops_no_other(tmp_path: Path):
    changes = {"run.engine": "sequential", "seed": [0, 1, 2]}
    runner.run_all(grid_in(tmp_path, changes), Progress())
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path, {**changes, "seed": [3, 4]}), interrupt_after_all(6))
    (manifest,) = tmp_path.rglob("*seed3*/manifest-*.json")
    cut = RunFolder(manifest.parent)
    manifest.write_bytes(b"cut")
    lock = FileLock(cut.path / ".lock")
    with lock:
        found, failed = runner.resume(runner.below(tmp_path), Progress())
    assert [str(error) for error in failed.values()] == [
        f"{cut.path.name}: Another process is running '{cut.path}'; wait for it."
    ]
    assert len(found) == 4
    assert all(folder.finished for folder in found)
    assert manifest.read_bytes() == b"cut"


def test_a_copy_under_another_name_goes_on_by_itself(tmp_path: Path):
    """Its checkpoint names the run it was copied from, which goes on as well."""
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(7))
    first = RunFolder(runner.run_path(grid_in(tmp_path)[0]))
    copy = RunFolder(first.path.with_name("a copy"))
    shutil.copytree(first.path, copy.path)
    (tmp_path / "tiny").joinpath(*[path.name for path in (tmp_path / "tiny").glob("grid-*.json")]).unlink()
    resume(copy)
    assert copy.finished


def test_a_run_that_was_not_begun_needs_what_the_others_had(tmp_path: Path):
    """The comparison's file knows it, and that the plugin has changed since."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(Path(__file__).with_name("tiny.py").read_text().replace("slow-fedsr", "other-slow-fedsr"))
    plugin.write_text(plugin.read_text().replace("slashed", "other-slashed").replace('"tiny"', '"other-tiny"'))
    changes = {"plugins": [str(plugin)], "data.name": "other-tiny"}
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
