"""Searching settings: what is tried, what is pruned, what is chosen, and that a kill changes nothing of it."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Begun
from fedshift.cli.app import app
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples
from fedshift.errors import DiskError, FedshiftError, FedshiftWarning
from fedshift.experiments import Experiment
from fedshift.runs import simulation as simulating
from fedshift.runs.events import Progress
from fedshift.runs.find import find
from fedshift.runs.origin import STUDY
from fedshift.runs.run import Run
from fedshift.runs.selection import mean_score
from fedshift.spec import Range
from fedshift.study.api import search_budget
from fedshift.study.grid import expand, override
from fedshift.study.search import Budget, Study
from fedshift.study.space import Space, settings_of, with_settings
from fedshift.study.tune import plan_studies, search_all
from fedshift.study.tuned import Found, TunedSettings, Tuning
from fresh import ok
from refusal import refuses

PLUGIN = str(Path(__file__).parent / "tiny.py")
LR = {"train.lr": Range(0.001, 0.3, log=True)}


def experiments(tmp_path: Path, changes: Mapping[str, Any] | None = None) -> list[Experiment]:
    return expand(override(TINY, {"run.out": str(tmp_path / "runs"), **(changes or {})}))


def planned(experiments: Sequence[Experiment], budget: Budget) -> list[Study]:
    return plan_studies(experiments, budget)[0]


# Where a study looks ------------------------------------------------------------------------------


def space_of(changes: Mapping[str, Any], ranges: Mapping[str, Any] | None = None, fixed: Sequence[str] = ()) -> Space:
    (experiment,) = expand(override(TINY, changes))
    return Space.of(experiment, ranges or {}, fixed)


def test_it_looks_where_the_page_and_train_say():
    space = space_of({"method.name": "fedsr"})
    assert {**space.searched} == {
        "method.cmi": Range(1e-5, 1, log=True),
        "method.l2r": Range(1e-4, 1, log=True),
        "method.l2r_form": ("squared", "norm"),
        **LR,
    }
    assert {**space_of({"method.name": "fedavg"}).searched} == LR
    assert "method.l_align" not in space_of({"method.name": "fedreg"}).searched  # a variant fixes it


def test_ranges_are_given_in_several_ways():
    for given, found in (
        ("0.001..0.1", Range(0.001, 0.1, log=True)),
        ("1e-2..0.02", Range(0.01, 0.02, log=True)),  # as the page states about it
        ({"low": 0.1, "high": 0.2, "log": False}, Range(0.1, 0.2)),
        (Range(0.1, 0.2), Range(0.1, 0.2)),
        ([0.1, 0.2], (0.1, 0.2)),
    ):
        assert space_of({}, {"train.lr": given}).searched["train.lr"] == found


def test_whole_numbers_texts_lists_and_booleans_are_searched():
    method = {"method.name": "fedpac"}
    ranges = {"method.head_steps": "1..4", "model.norm": ["batch", "none"], "model.hidden": [[8], [4, 4]]}
    space = space_of(method, ranges, fixed=["method.lam"])
    parameters = {"train.lr": 0.0123456, "method.head_steps": 3, "model.norm": "none", "model.hidden": "[4, 4]"}
    settings = space.settings(parameters)
    others = {"method.head_steps": 3, "model.norm": "none", "model.hidden": [4, 4]}
    assert settings == {"train.lr": 0.01235, **others}
    (experiment,) = expand(override(TINY, method))
    changed = with_settings(experiment, settings)
    assert (changed.method.table()["head_steps"], changed.model.table()["hidden"]) == (3, [4, 4])


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"train.lr": [0.1]}, ["train.lr", "--set train.lr=A"]),
        ({"train.lr": "-1..0.01"}, ["train.lr", "greater than 0"]),
        ({"train.rounds": "1..5"}, ["train.rounds", "--set train.rounds"]),
        ({"train.ler": "0.1..0.2"}, ["'train.ler'", "'train.lr'"]),
    ],
)
def test_a_wrong_range_is_an_error_with_its_fix(tmp_path: Path, ranges: dict[str, Any], words: list[str]):
    with refuses(*words):
        planned(experiments(tmp_path), Budget(search=ranges))


def test_a_budget_is_checked_and_a_range_of_another_method_is_said(tmp_path: Path):
    with refuses("train.lr", "once"):
        search_budget(TINY, 1, "tpe", 4, {"train.lr": "0.1..0.2"}, {"train.lr": 0.1})
    plan = search_budget(TINY | {"search": {"method.mu": [0.1, 0.2]}}, 2, "tpe", 4)
    with pytest.warns(FedshiftWarning, match=r"method\.mu .*not searched"):
        planned(experiments(tmp_path), plan)


# Studies ------------------------------------------------------------------------------------------


def test_a_study_is_of_a_method_and_a_held_out_domain_over_all_seeds(tmp_path: Path):
    changes = {"method.name": ["fedavg", "fedprox"], "seed": [0, 1], "protocol.hold_out": ["light", "dark"]}
    found = planned(experiments(tmp_path, changes), Budget())
    assert [(*study.case, len(study.experiments)) for study in found] == [
        (method, domain, 2) for method in ("fedavg", "fedprox") for domain in ("light", "dark")
    ]
    assert len({study.path for study in found}) == 4


def test_whatever_decides_a_study_gives_it_another_folder(tmp_path: Path):
    requested = experiments(tmp_path)
    others = (Budget(search={"train.lr": "0.01..0.1"}), Budget(sampler="random"), Budget(parallel=2), Budget())
    assert len({planned(requested, budget)[0].path for budget in others}) == 4
    assert planned(experiments(tmp_path, {"seed": [0, 1]}), Budget())[0].path != planned(requested, Budget())[0].path


def test_validation_that_is_a_test_is_refused():
    changes = {"protocol.name": "personal-under-shift"}
    with refuses("--set protocol.validation=held-out"):
        planned(expand(override({"data": {"name": "colored-mnist"}}, changes)), Budget())
    for change in ({"protocol.validation": "held-out"}, {"protocol.exclude_validation": True}):
        (study,) = planned(expand(override({"data": {"name": "colored-mnist"}}, changes | change)), Budget())
        assert study.label == "fedavg"


# What is tried ------------------------------------------------------------------------------------


def a_study(tmp_path: Path, budget: Budget | None = None, changes: Mapping[str, Any] | None = None) -> Study:
    (study,) = planned(experiments(tmp_path, changes), budget or Budget())
    study.read()
    return study


def told(study: Study, value: Callable[[Mapping[str, Any]], float]) -> None:
    """Ask for trials, each of which has a curve that ends with its value, or fails where that is not finite."""
    while numbers := study.ask():
        for number in numbers:
            trial = study.trials[number]
            arrived = value(trial.settings)
            if math.isfinite(arrived):
                study.tell(number, replace(trial, state="complete", value=arrived, curve=[(1, 0.1), (2, arrived)]))
            else:
                study.tell(number, replace(trial, state="failed", reason="The loss is not finite."))


def near(settings: Mapping[str, Any]) -> float:
    """Highest at a learning rate of 10^-1.5 = 0.0316."""
    return 1 - abs(math.log10(settings["train.lr"]) + 1.5) / 2


def test_the_first_trial_is_the_experiment_as_it_stands(tmp_path: Path):
    study = a_study(tmp_path, Budget(trials=24, search={"train.momentum": [0.1, 0.5]}), {"train.lr": 0.5})
    told(study, near)  # neither is in the range, and the sampler does without
    assert study.trials[0].settings == {"train.lr": 0.5, "train.momentum": 0.9}
    assert all(trial.settings["train.lr"] <= 0.3 for trial in study.trials[1:])


def test_a_grid_tries_every_combination_in_order(tmp_path: Path):
    """Of mu 0.1 and 0.5 and the ends and middle of 0.01 to 1, sqrt(0.01) = 0.1: six, the rate fastest; no seventh."""
    ranges = {"method.mu": [0.1, 0.5], "train.lr": "0.01..1"}
    of = experiments(tmp_path, {"method.name": "fedprox"})
    (study,) = planned(of, Budget(trials=6, sampler="grid", parallel=6, search=ranges))
    assert len(study.ask()) == study.count == 6
    tried = [tuple(trial.settings.values()) for trial in study.trials]
    assert tried == [(mu, rate) for mu in (0.1, 0.5) for rate in (0.01, 0.1, 1.0)]
    (small,) = planned(of, Budget(trials=5, sampler="grid", search=ranges))
    with refuses("6 combinations", "--trials 6"):
        small.ask()
    (plain,) = planned(of, Budget(trials=9, sampler="grid", search={"train.lr": [0.1, 0.2]}, declared=False))
    assert [*plain.space.searched] == ["train.lr"]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_study_that_is_opened_again_goes_on_to_the_same_trials(tmp_path: Path, sampler: Any):
    """After each batch, within one, and with a line that a kill cut short: Optuna's journal has all that is needed."""
    whole = a_study(tmp_path / "whole", Budget(trials=24, sampler=sampler))
    whole.digest = "same"
    told(whole, near)
    for half in range(1, 24):
        study = a_study(tmp_path / "parts", Budget(trials=24, sampler=sampler))
        study.digest = "same"
        study.read()
        numbers = study.ask()
        for number in numbers[: 1 + half % 4]:
            arrived = near(study.trials[number].settings)
            study.tell(
                number, replace(study.trials[number], state="complete", value=arrived, curve=[(1, 0.1), (2, arrived)])
            )
        with (study.path / STUDY).open("ab") as file:
            file.write(b'{"op_code": 5, "trial')
    study = a_study(tmp_path / "parts", Budget(trials=24, sampler=sampler))
    study.digest = "same"
    told(study, near)
    assert study.trials == whole.trials
    assert len({trial.settings["train.lr"] for trial in study.trials}) > 20


def test_a_failed_trial_is_the_worst(tmp_path: Path):
    """Of two studies that differ in how bad high learning rates receive to be, both avoid them."""
    for bad in (math.nan, 0.1):
        study = a_study(tmp_path / str(bad), Budget(trials=30))
        told(study, lambda settings, bad=bad: bad if settings["train.lr"] > 0.02 else 0.5)
        assert sum(trial.settings["train.lr"] > 0.02 for trial in study.trials[15:]) <= 6
        assert {trial.state for trial in study.trials} == ({"complete"} if bad == 0.1 else {"complete", "failed"})


def test_a_damaged_journal_is_an_error(tmp_path: Path):
    study = a_study(tmp_path, Budget(trials=2))
    told(study, near)
    file = study.path / STUDY
    file.write_text("what is this\n" + file.read_text())
    with refuses(str(file), "damaged", "Remove it"):
        a_study(tmp_path)


# What is pruned -----------------------------------------------------------------------------------

# Validation accuracies after rounds 1 to 8; the quarter of warm-up ends with round 2.
TABLE = {
    1: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
    2: [0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    3: [0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
    4: [0.2, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
    5: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6],
}  # medians: 0.1 0.2 0.3 0.4 0.5 0.6 0.6 0.7


def test_the_median_of_earlier_trials_prunes(tmp_path: Path):
    study = a_study(tmp_path, Budget(parallel=5))
    for number, values in zip(study.ask(), TABLE.values(), strict=True):
        scored = list(enumerate(values, start=1))
        study.tell(number, replace(study.trials[number], state="complete", value=values[-1], curve=scored))
    for curve, end in (
        ([0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6], None),  # in the warm-up it may be
        ([0.0, 0.1, 0.9], 2),
        ([0.2, 0.3, 0.2, 0.2, 0.5], 4),  # its best so far counts: 0.3 in round 3, but 0.3 < 0.4 in round 4
        ([0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6], None),  # 0.6 < 0.7, but after the last round nobody is pruned
    ):
        scored = list(enumerate(curve, start=1))
        assert study.pruned_at(5, scored, 8) == end
        assert study.pruned_at(4, scored, 8) is None  # beside trials that are not over
    study.trials = study.trials[:4]
    assert study.pruned_at(5, scored, 8) is None  # before five are complete


# Real runs ----------------------------------------------------------------------------------------


PROX = {"method.name": "fedprox", "train.rounds": 4, "evaluate.every": 1}
REAL: dict[str, Any] = {"train.rounds": 6, "evaluate.every": 1, "run.checkpoint_every": 2, "train.lr": 0.01}
REAL["plugins"] = [PLUGIN]  # which a command needs, to know the tiny data
REAL_BUDGET = Budget(trials=16, sampler="random")
RATES = [0.001, 0.01, 0.1, 0.3]


def outcome(found: Tuning) -> tuple[Any, ...]:
    """What must be equal of searches that are."""
    (study,) = found.studies
    return found.path.read_bytes(), study.trials


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A search that nothing interrupted."""
    return search_all(experiments(tmp_path_factory.mktemp("whole"), REAL), REAL_BUDGET, Progress())


def test_a_full_disk_ends_the_search_and_fails_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Tuning):
    """In the midst of a run; with room again the search continues to what it would have been."""
    left = [100]

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    requested = experiments(tmp_path, REAL)
    with monkeypatch.context() as patch, refuses("No space left", error=DiskError):
        patch.setattr(os, "fsync", fsync)
        search_all(requested, REAL_BUDGET, Progress())
    assert outcome(search_all(requested, REAL_BUDGET, Progress())) == outcome(whole)


def test_choices_that_repeat_cost_nothing_and_more_trials_go_on_from_those_there_are(tmp_path: Path):
    """8 trials and then 20 are the first 8 and 12 more; a smaller number reads the first of them."""
    requested, heard = experiments(tmp_path, PROX), Begun()
    budget = Budget(trials=8, search={"method.mu": [0.1, 0.2, 0.3, 0.4, 0.5]}, fixed=["train.lr"])
    eight = search_all(requested, budget, heard)
    found = search_all(requested, budget.replace(trials=20), heard)
    trials = found.studies[0].trials
    assert trials[:8] == eight.studies[0].trials
    different = {trial.settings["method.mu"] for trial in trials}
    assert len(heard.begun) == len({*heard.begun}) == len(different)
    assert found.tuned.tuned[0].repeated == 20 - len(different) > 0
    for trial in trials:
        if trial.repeats is not None:
            assert (trials[trial.repeats].settings, trials[trial.repeats].value) == (trial.settings, trial.value)
    again = Begun()
    with pytest.warns(FedshiftWarning, match="there were 20 trials"):
        assert search_all(requested, budget, again).tuned == eight.tuned
    assert again.begun == []


def test_a_method_that_fails_is_named_and_the_others_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FedProx diverges in every trial; FedLC refuses its settings."""

    def blow_up(self: Any, net: Any, batch: Any, context: Any) -> Any:
        return net.head(batch.z).sum() / 0

    def refuse(*given: Any) -> Any:
        raise FedshiftError("It takes no batches of 4.")

    monkeypatch.setattr(fedshift.METHODS.get("fedprox"), "proximal", blow_up)
    monkeypatch.setattr(fedshift.METHODS.get("fedlc"), "check", refuse)
    requested = experiments(tmp_path, {"method.name": ["fedprox", "fedlc", "fedavg"]})
    with refuses("fedprox", "not finite"):
        search_all(requested[:1], Budget(trials=2), Progress())
    found = search_all(requested, Budget(trials=2), Progress())
    assert [entry.method for entry in found.tuned.tuned] == ["fedavg"]
    for method, words in (("fedprox", "not finite"), ("fedlc", "no batches of 4")):
        (message,) = (each for each in found.failed if method in each)
        assert words in message
        assert message in str(found)


def test_the_first_seed_decides_what_is_pruned(tmp_path: Path):
    """A trial's value is the mean over seeds; of a pruned one only the first seed was started."""
    (study,) = search_all(experiments(tmp_path, REAL | {"seed": [0, 1]}), REAL_BUDGET, Progress()).studies
    assert {trial.state for trial in study.trials} == {"complete", "pruned"}
    for trial in study.trials:
        runs = [Run(study.path / name) for name in trial.runs]
        if trial.state == "complete":
            assert trial.value == pytest.approx(sum(mean_score(run.records[-1], "validation") for run in runs) / 2)
        else:
            assert runs[0].path.exists()
            assert not runs[1].path.exists()


def test_finalists_alone_run_with_the_other_seeds(tmp_path: Path):
    """The two best of a grid of four by the last score of the first seed; the best is the best mean of these two."""
    budget = Budget(trials=4, sampler="grid", parallel=4, search={"train.lr": RATES}, declared=False, finalists=2)
    (study,) = search_all(experiments(tmp_path, REAL | {"seed": [0, 1]}), budget, Progress()).studies
    first = [mean_score(Run(study.path / trial.runs[0]).records[-1], "validation") for trial in study.trials]
    best = sorted(range(4), key=lambda number: -(first[number] or 0.0))[:2]
    assert [trial.state for trial in study.trials] == ["complete" if n in best else "pruned" for n in range(4)]
    for number, trial in enumerate(study.trials):
        folders = [Run(study.path / name) for name in trial.runs]
        assert folders[0].finished
        assert folders[1].path.exists() == (number in best)
        assert [score for _, score in trial.curve][-1] == first[number]
    assert study.best() == max(best, key=lambda number: study.trials[number].value or 0.0)


def test_cross_validation_leaves_out_each_domain_that_trains(tmp_path: Path):
    """Two folds of two seeds: the two finalists by the first seed's mean have four runs, the others two."""
    budget = Budget(
        trials=4,
        sampler="grid",
        parallel=4,
        search={"train.lr": RATES},
        declared=False,
        finalists=2,
        cross_validate=True,
    )
    requested = experiments(tmp_path, REAL | {"seed": [0, 1]})
    found = search_all(requested, budget, Progress())
    (study,) = found.studies
    folders = [[Run(study.path / name) for name in trial.runs] for trial in study.trials]
    finalist = folders[study.best() or 0]
    protocols = [run.table["protocol"] for run in finalist]
    assert [(each["hold_out"], each["validate_on"]) for each in protocols] == [("light", "dark"), ("light", "gray")] * 2
    assert [run.table["seed"] for run in finalist] == [0, 0, 1, 1]
    first = [mean(mean_score(run.records[-1], "validation") or 0.0 for run in of_trial[:2]) for of_trial in folders]
    best = sorted(range(4), key=lambda number: -first[number])[:2]
    for number, (trial, of_trial) in enumerate(zip(study.trials, folders, strict=True)):
        assert trial.curve[-1][1] == pytest.approx(first[number])
        assert [run.finished for run in of_trial] == [True, True, number in best, number in best]
        if number in best:
            scores = [mean_score(run.records[-1], "validation") or 0.0 for run in of_trial]
            assert trial.value == pytest.approx(mean(scores))
    assert (found.found[0].seeds, sum(budget.runs(2) for _ in budget.folds(requested[0]))) == ([0, 1], 12)
    assert "each held out in turn" in found.tuned.chosen_on
    (tuned, *_) = found.tuned.apply(requested)  # without a warning that the experiment differs
    assert tuned.protocol == requested[0].protocol
    with refuses("protocol.name=leave-one-domain-out"):
        planned(experiments(tmp_path, {"protocol": {"name": "in-domain"}}), budget)


@pytest.mark.parametrize(
    ("budget", "seeds", "runs"),
    [(Budget(trials=15, parallel=15, finalists=3), 2, 18), (Budget(trials=15, parallel=15), 2, 30),
     (Budget(trials=6, parallel=4, finalists=3), 3, 18), (Budget(trials=2, parallel=4, finalists=3), 3, 6)],
)  # fmt: skip
def test_how_many_runs_a_study_takes(budget: Budget, seeds: int, runs: int):
    """15 + 3 and 15 x 2; of batches of 4 and 2, 6 + 2 x 6; of two trials both are finalists."""
    assert budget.runs(seeds) == runs


def test_test_scores_of_trials_are_not_to_be_seen(whole: Tuning):
    """Neither in a report nor by watching, of a study's folder or of a trial's."""
    (study,) = whole.studies
    run = next(each.path for each in find(study.path) if each.finished)
    for path in (study.path, run, run / ".." / run.name):
        for look in (fedshift.resume, fedshift.load):
            with refuses("trials of a study", "tuned-*.html"):
                look(path)
    for path in (study.path, run):
        output = CliRunner().invoke(app, ["watch", str(path)], catch_exceptions=False).output
        assert "dark validation" in output
        assert "test" not in output


def test_killed_again_and_again_it_comes_to_the_same(whole: Tuning, tmp_path: Path):
    """SIGKILL at one write to the disk after the other: of the study's file, of records, of checkpoints."""
    requested = experiments(tmp_path / "killed", REAL)
    kills = 0
    for at in (1, 2, 7, 20, 45, 80, 130, 220, 10**9):
        pid = os.fork()
        if not pid:
            try:
                kill_at_write(at)
                search_all(requested, REAL_BUDGET, Progress())
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        kills += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not os.WIFSIGNALED(status):
            break
    assert kills >= 5
    assert outcome(search_all(requested, REAL_BUDGET, Progress())) == outcome(whole)


def kill_at_write(at: int) -> None:
    """End this process as a power cut would, just before its so manyth write."""
    from fedshift import files

    written = 0

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def write(*what: Any, **more: Any) -> None:
            nonlocal written
            written += 1
            if written == at:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*what, **more)

        return write

    for name in ("write", "append", "rename"):
        setattr(files, name, counted(getattr(files, name)))


def test_labels_of_the_test_do_not_matter(whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With those of test environments shuffled, every trial and the best are the same."""
    real = simulating.make_federated

    def poisoned(*arguments: Any) -> FederatedData:
        federation = real(*arguments)
        environments = list(federation.environments)
        for number, environment in enumerate(environments):
            if environment.role == "test":
                samples = environment.samples
                order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))
                environments[number] = replace(environment, samples=Samples(samples.x, samples.y[order]))
        return replace(federation, environments=tuple(environments))

    monkeypatch.setattr(simulating, "make_federated", poisoned)
    found = search_all(experiments(tmp_path, REAL), REAL_BUDGET, Progress())
    assert outcome(found) == outcome(whole)
    tests = [
        [row["accuracy"] for run in find(each.studies[0].path) for row in run.records[-1]["environments"]]
        for each in (whole, found)
    ]
    assert tests[0] != tests[1]


# What was found, applied --------------------------------------------------------------------------


def entry(tmp_path: Path, **changes: Any) -> TunedSettings:
    """Made-up results of FedProx."""
    (one,) = experiments(tmp_path, PROX)
    budget = {"trials": 20, "pruned": 0, "failed": 0, "repeated": 0, "sampler": "tpe"}
    more = {"seeds": [0], "search": {}, "study": "x", "value": 0.5, "trial": 3}
    settings = {"method.mu": 0.9, "train.lr": 0.2}
    found = Found(**{"method": "fedprox", "hold_out": "light", "settings": settings, **budget, **more, **changes})
    return TunedSettings.of(one, "validation", ["train.lr"], [found])


def test_what_is_given_counts_before_what_was_found(tmp_path: Path):
    path = entry(tmp_path).write(tmp_path)
    table = override(TINY, PROX)
    (tuned,) = fedshift.grid(table, tuned=path)
    assert (tuned.method.table()["mu"], tuned.train.lr) == (0.9, 0.2)
    with pytest.warns(FedshiftWarning, match=r"fedprox: method\.mu = 0\.3 is given, and overrides the tuned 0\.9"):
        (one,) = fedshift.grid(table, tuned=path, settings={"method.mu": 0.3})
    assert (one.method.table()["mu"], one.train.lr) == (0.3, 0.2)
    with refuses("fedavg with light", "fedshift tune", "--method fedavg --hold-out light"):
        fedshift.grid(table, method=["fedprox", "fedavg"], tuned=path)


def test_another_experiment_and_unequal_budgets_are_said(tmp_path: Path):
    path = entry(tmp_path).write(tmp_path)
    with pytest.warns(FedshiftWarning, match=r"another experiment: train\.rounds = 4 there and 5 here"):
        fedshift.grid(override(TINY, PROX), rounds=5, tuned=path)
    assert entry(tmp_path, method="fedavg", trials=40, settings={}).write(tmp_path) == path  # beside what is there
    with pytest.warns(FedshiftWarning, match=r"not tuned with the same budget.*40 trials"):
        assert len(fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=path)) == 2


# Commands and pages -------------------------------------------------------------------------------


def test_the_command_and_python_do_the_same(tmp_path: Path):
    document = override(TINY, REAL | {"run.out": str(tmp_path / "runs")})
    document["search"] = {"train": {"lr": [0.01, 0.1]}, "method.mu": [0.1, 0.2]}
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(document))
    words = ["tune", str(file), "--method", "fedavg,fedprox", "--trials", "6", "--search", "train.momentum=0..0.9"]
    plan = ok(*words, "--dry-run")
    assert "fedprox (light held out) searches method.mu: 0.1 | 0.2, train.lr: 0.01 | 0.1, train.momentum" in plan
    assert "Chosen on source validation accuracy" in plan
    assert not (tmp_path / "runs").exists()
    result = ok(*words)
    found = fedshift.tune(
        file, method=["fedavg", "fedprox"], trials=6, search={"train.momentum": "0..0.9"}, progress=Progress()
    )
    assert str(found.path) in result
    assert {trial.settings["train.lr"] for study in found.studies for trial in study.trials} <= {0.01, 0.1}
    assert "fedprox (light held out): method.mu=" in str(found)
    assert found.path.with_suffix(".html").read_text().count("data:image/png;base64,") > 3
    with refuses("nothing to search", "--search"):
        fedshift.tune(file, method="fedprox", settings={"train.lr": 0.1, "method.mu": 0.1})


def test_every_declared_range_is_of_its_setting():
    """What pages declare must be values that the setting takes."""
    for method in fedshift.METHODS:
        try:
            (experiment,) = expand(override(TINY, {"method.name": method}))
        except FedshiftError:
            continue
        for key, search in Space.of(experiment, {}, ()).searched.items():
            assert settings_of(experiment)[key].read(key, search) == search
