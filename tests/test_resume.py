"""A run that is killed at any moment and resumed equals one that never stopped, bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import CNN_WITH_BN, TINY, AfterRound, Make, a_record, a_row, interrupt_after, results, resume
from federated import Local, as_sent, kill_after, members
from fedshift import load
from fedshift.core.contract import Stage
from fedshift.core.setup import Round
from fedshift.core.training import Train
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.runs import runner, scheduling
from fedshift.runs.events import Progress
from fedshift.runs.find import write_grid
from fedshift.runs.run import Run
from fedshift.runs.selection import best_of, end_early
from fedshift.runs.simulation import Simulation, make_federated
from fedshift.study.grid import expand, override
from fedshift.study.search import Budget
from fedshift.study.tune import search_all
from refusal import refuses


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_kept_moments_go_on_whatever_their_layout(tmp_path: Path, optimiser: str):
    """A checkpoint is contiguous, the CNN's moments are channels-last; names may contain a slash."""
    method = {"name": "slashed", "optimiser_state": "kept"}
    changes = CNN_WITH_BN | {"method": method, "model.channels": [4, 5], "train.optimiser": optimiser}
    changes |= {"train.lr": 0.01, "train.rounds": 4, "run.checkpoint_every": 2}
    (whole,) = expand(override(TINY, {**changes, "run.out": str(tmp_path / "whole")}))
    (cut,) = expand(override(TINY, {**changes, "run.out": str(tmp_path / "cut")}))
    reference = runner.start(whole, Progress())
    with pytest.raises(KeyboardInterrupt):
        runner.start(cut, interrupt_after(3))
    folder = Run(scheduling.run_path(cut))
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
    """Ctrl-C after that many rounds of runs, in any of the stacks: the same bits, and all five runs."""
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(rounds))
    folders, failed = runner.resume(runner.below(tmp_path), Progress())
    assert not failed
    assert [results(folder) for folder in folders] == whole_grid


def test_a_run_whose_stack_is_gone_says_so(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(grid_in(tmp_path), interrupt_after_all(7))
    first, second = (Run(scheduling.run_path(experiment)) for experiment in grid_in(tmp_path)[:2])
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
    with pytest.raises(FedshiftError, match=r"plugin '.*plugin\.py' of the run .* changed"):
        runner.below(tmp_path / "runs")


def interrupt_after_all(last: int) -> Progress:
    """Ctrl-C after that many rounds of all runs."""
    left = [last]

    def call(position: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    return AfterRound(call)


def test_what_a_kill_left_of_a_grid_is_removed_by_the_next_run(make: Make):
    """Unless its process still writes it, or it is no leftover of this file."""
    experiments = [make({"seed": seed}) for seed in (0, 1)]
    folder = scheduling.run_path(experiments[0]).parent
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


def scored(scores: Sequence[float]) -> list[dict[str, Any]]:
    """An evaluation in every round with such validation scores, beside test scores that only become better."""
    return [
        a_record(place, [a_row("a", "validation", score), a_row("b", "test", place / 1000)])
        for place, score in enumerate(scores, 1)
    ]


def ended(scores: Sequence[float], patience: int, min_delta: float = 0.0) -> int:
    """After how many evaluations a stage of a hundred rounds ends; 0: after none of these."""
    stage = Stage("train", 100, ())
    for number in range(1, len(scores) + 1):
        coordinator: Any = SimpleNamespace(
            setup=SimpleNamespace(train=Train(patience=patience, min_delta=min_delta), stages=(stage,)),
            position=number,
            schedule=[Round(stage, each) for each in range(1, 101)],
            stage_over=False,
            end_stage=lambda: None,
        )
        if end_early(coordinator, scored(scores[:number])):
            return number
    return 0


def test_by_hand():
    """0.5 is the best after evaluation 2; 3 and 4 are not above it, so patience 2 ends at 4 and 3 at 7.

    With patience 3, evaluation 5 is better (0.6 > 0.5) and the count begins again: 6, 7, 8 are not above 0.6.
    With a least gain of 0.2, evaluation 2 is no better than the first (0.5 - 0.4 = 0.1): 2 and 3 are out at 3.
    """
    scores = [0.4, 0.5, 0.5, 0.3, 0.6, 0.6, 0.1, 0.59]
    assert ended(scores, patience=1) == 3
    assert ended(scores, patience=2) == 4
    assert ended(scores, patience=3) == 8
    assert ended(scores, patience=4) == 0
    assert ended(scores, patience=2, min_delta=0.2) == 3


@pytest.mark.parametrize("metric", ["auroc", "calibration-error-15"])
def test_nothing_is_waited_for_while_no_round_has_a_score(metric: str):
    """Patience 2 and 0.2 at first in round 4: undefined again in rounds 5 and 6, which are not better, it ends at 6.

    A metric may be undefined everywhere while a model predicts one class alone; without any score nothing ends.
    """
    undefined: list[float | None] = [None] * 3
    for scores, best in (([*undefined, 0.2, None, None], (4, 2)), (undefined, (3, 0))):
        rows = [a_row("a", "validation", 0.9, metrics={metric: score}) for score in scores]
        records = [a_record(n, [row], round=n, select=metric) for n, row in enumerate(rows, 1)]
        found, waited = best_of(records, 0.0)
        assert (found["round"], waited) == best


# Runs ---------------------------------------------------------------------------------------------

EARLY = {"train.rounds": 14, "train.patience": 2, "evaluate.every": 1, "run.checkpoint_every": 3, "train.lr": 0.2}


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that ends early."""
    (experiment,) = expand(override(TINY, {**EARLY, "run.out": str(tmp_path_factory.mktemp("early"))}))
    return runner.start(experiment, Progress())


def test_a_run_ends_early_and_says_where_and_why(early: Run):
    records = early.records
    assert 2 < records[-1]["position"] < 14
    assert [bool(record.get("ended")) for record in records] == [False] * (len(records) - 1) + [True]
    number = records[-1]["round"]
    assert f"after round {number} of 14: no better validation score than " in records[-1]["ended"]
    assert early.final.ended == {"train": records[-1]["ended"]}
    assert early.final.selected["last"]["position"] == number
    assert early.damage() == ""
    assert f"The stage 'train' ended early {records[-1]['ended']}." in load(early.path).notes()


def test_until_there_it_is_the_run_that_it_would_be(make: Make, early: Run):
    """A run of as many rounds has the same weights, and one without patience the same records."""
    rounds = early.records[-1]["round"]
    through = runner.start(make({**EARLY, "train.patience": "off"}), Progress())
    unended = [{name: value for name, value in record.items() if name != "ended"} for record in early.records]
    assert unended == through.records[:rounds]
    short = runner.start(make({**EARLY, "train.patience": "off", "train.rounds": rounds}), Progress())
    assert (early.path / "weights.safetensors").read_bytes() == (short.path / "weights.safetensors").read_bytes()
    assert early.messages == short.messages


@pytest.mark.parametrize("before_its_end", [0, 1, 2])
def test_killed_anywhere_it_ends_as_it_would(tmp_path: Path, early: Run, before_its_end: int):
    (experiment,) = expand(override(TINY, {**EARLY, "run.out": str(tmp_path)}))
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(early.records[-1]["round"] - before_its_end))
    folder = Run(scheduling.run_path(experiment))
    runner.resume(runner.below(folder.path), Progress())
    assert results(folder) == results(early)
    assert folder.final.ended == early.final.ended


def test_the_next_stage_goes_on_from_there(make: Make):
    """FTFA's fine-tuning follows the stage that has ended, from its model; positions count rounds that were done."""
    folder = runner.start(make({**EARLY, "method": {"name": "ftfa", "finetune_steps": 2}}), Progress())
    records = folder.records
    *_, last, tuned = records
    assert last["ended"]
    assert (tuned["stage"], tuned["round"], tuned["position"]) == ("finetune", 1, last["position"] + 1)
    assert {*folder.final.ended} == {"train"}


# Runs that advance together -----------------------------------------------------------------------

GROUP = {
    **EARLY,
    "data.per_class": 20,
    "seed": [0, 1, 2],
    "train.lr": 0.02,
    "run.engine": "vectorised",
    "run.together": 3,
    "run.checkpoint_every": 4,
}


def group_in(out: Path) -> list[Experiment]:
    return expand(override(TINY, {**GROUP, "run.out": str(out)}))


@pytest.fixture(scope="module")
def whole_group(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folders, failed = runner.run_all(group_in(tmp_path_factory.mktemp("group")), Progress())
    assert not failed
    return folders


@pytest.mark.parametrize("rounds", [15, 22])
def test_a_stack_that_some_have_left_is_resumed_to_the_same_bits(tmp_path: Path, whole_group: list[Run], rounds: int):
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(group_in(tmp_path), interrupt_after_all(rounds))
    folders, failed = runner.resume(runner.below(tmp_path), Progress())
    assert not failed
    assert [results(folder) for folder in folders] == [results(folder) for folder in whole_group]


# Elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [0, 10, 25])
def test_a_federation_ends_where_a_simulation_does(make: Make, tmp_path: Path, answers: int):
    """Also if its coordinator is killed after that many answers: to an order, or to what a model scores."""
    changes = {**EARLY, "protocol": {"name": "in-domain"}, "evaluate.batch": 6}
    experiment = make(changes | {"method": {"name": "ftfa", "finetune_steps": 2}})
    folder = members(tmp_path / "trial", experiment)
    if answers:
        kill_after(answers, folder)
    run, simulated = coordinate(folder / "coordinator", Local(folder), Progress()), rehearse(folder, Progress())
    assert as_sent(run.records) == as_sent(simulated.records)
    assert run.messages == simulated.messages
    assert run.final.ended == simulated.final.ended != {}


def test_trials_of_a_search_end_early_as_well(tmp_path: Path):
    """Each by its own curve; one that ended counts by its last round, as any."""
    changes = {**EARLY, "run.out": str(tmp_path), "run.engine": "vectorised"}
    budget = Budget(trials=3, search={"train.lr": [0.2, 0.05, 0.01]}, parallel=3)
    found = search_all(expand(override(TINY, changes)), budget, Progress())
    (study,) = found.studies
    assert [trial.state for trial in study.trials] == ["complete"] * 3
    for trial in study.trials:
        (run,) = (Run(study.path / name) for name in trial.runs)
        assert [position for position, _ in trial.curve] == [record["position"] for record in run.records]
        assert trial.value == trial.curve[-1][1]
    assert min(trial.curve[-1][0] for trial in study.trials) < 14


def test_without_validation_samples_there_is_nothing_to_wait_for(make: Make):
    experiment = make(EARLY)
    federation = make_federated(experiment)
    tests = [each for each in federation.environments if each.role == "test"]
    with refuses("train.patience = 2", "--set protocol.validation=0.1", "'off'"):
        Simulation(experiment, federated=replace(federation, environments=tests))


def test_what_is_chosen_on_the_test_is_refused(make: Make):
    shift = {"data.name": "colored-mnist", "protocol": {"name": "personal-under-shift", "validation": "test"}}
    with refuses("protocol.validation = 'test'", "train.patience", "--set protocol.validation=held-out"):
        make({**shift, "train.patience": 3})
    make(shift)
