"""Searching settings: what is tried, what is pruned, what is chosen, and that a kill changes nothing of it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import fedshift
from conftest import TINY, a_record, a_row, add_record
from fedshift.cli.app import app
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples
from fedshift.errors import DiskError, DivergedError, FedshiftError, FedshiftWarning
from fedshift.experiments import Experiment
from fedshift.runs import simulation as simulating
from fedshift.runs.events import AnyEvent, Progress
from fedshift.runs.folder import RunFolder, find
from fedshift.runs.runner import Asked
from fedshift.runs.trials import STUDY
from fedshift.spec import Range
from fedshift.study import tune as tuning
from fedshift.study.api import search_budget
from fedshift.study.figures import draw_search
from fedshift.study.grid import expand, override
from fedshift.study.search import Study
from fedshift.study.space import Space, settings_of, with_settings
from fedshift.study.tune import Budget, plan_studies, search_all
from fedshift.study.tuned import Found, TunedSettings, Tuning
from refusal import refuses

PLUGIN = str(Path(__file__).parent / "tiny.py")
LR = {"train.lr": Range(0.001, 0.3, log=True)}
Curve = Callable[[Experiment], Sequence[float]]


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
        ("1e-2..0.02", Range(0.01, 0.02, log=True)),  # as the page says of it
        ({"low": 0.1, "high": 0.2, "log": False}, Range(0.1, 0.2)),
        (Range(0.1, 0.2), Range(0.1, 0.2)),
        ([0.1, 0.2], (0.1, 0.2)),
    ):
        assert space_of({}, {"train.lr": given}).searched["train.lr"] == found


def test_whole_numbers_texts_lists_and_booleans_are_searched():
    method = {"method.name": "fedpac"}
    ranges = {"method.head_steps": "1..4", "model.batch_norm": [True, False], "model.hidden": [[8], [4, 4]]}
    space = space_of(method, ranges, fixed=["method.lam"])
    parameters = {"train.lr": 0.0123456, "method.head_steps": 3, "model.batch_norm": False, "model.hidden": "[4, 4]"}
    settings = space.settings(parameters)
    others = {"method.head_steps": 3, "model.batch_norm": False, "model.hidden": [4, 4]}
    assert settings == {"train.lr": 0.01235, **others}
    (experiment,) = expand(override(TINY, method))
    changed = with_settings(experiment, settings)
    assert (changed.method.table()["head_steps"], changed.model.table()["hidden"]) == (3, [4, 4])


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"train.lr": [0.1]}, ["train.lr", "--set train.lr=A"]),
        ({"train.lr": "0.1..0.01"}, ["0.1 to 0.01", "lower first"]),
        ({"train.lr": "-1..0.01"}, ["train.lr", "greater than 0"]),
        ({"train.weight_decay": {"low": 0, "high": 1, "log": True}}, ["train.weight_decay", "log = false"]),
        ({"train.lr": {"low": 1}}, ["train.lr", "low and high"]),
        ({"train.rounds": "1..5"}, ["train.rounds", "--set train.rounds"]),
        ({"protocol.validation": "0.1..0.5"}, ["protocol.validation", "--set"]),
        ({"train.ler": "0.1..0.2"}, ["'train.ler'", "'train.lr'"]),
    ],
)
def test_a_wrong_range_is_an_error_with_its_fix(tmp_path: Path, ranges: dict[str, Any], words: list[str]):
    with refuses(*words):
        planned(experiments(tmp_path), Budget(search=ranges))


def test_a_budget_is_checked_and_a_range_of_another_method_is_said(tmp_path: Path):
    with refuses("trials = 0", "1"):
        search_budget(TINY, 0, "tpe", 4)
    with refuses("sampler = 'tpee'", "'tpe'"):
        search_budget(TINY, 1, "tpee", 4)  # type: ignore[arg-type]  # that is the point
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
    paths = [
        planned(experiments(tmp_path, changes), plan)[0].path
        for changes, plan in [
            ({}, Budget()),
            ({}, Budget(search={"train.lr": "0.01..0.1"})),
            ({}, Budget(sampler="random")),
            ({}, Budget(parallel=2)),
            ({"train.rounds": 3}, Budget()),
            ({"seed": [0, 1]}, Budget()),
        ]
    ]
    assert len({*paths}) == len(paths)
    assert planned(experiments(tmp_path), Budget(trials=40))[0].path == paths[0]  # more trials go on


def test_validation_that_is_a_test_is_refused():
    changes = {"protocol.name": "personal-under-shift"}
    with refuses("--set protocol.validation=held-out"):
        planned(expand(override({"data": {"name": "colored-mnist"}}, changes)), Budget())
    changes["protocol.validation"] = "held-out"
    (study,) = planned(expand(override({"data": {"name": "colored-mnist"}}, changes)), Budget())
    assert study.label == "fedavg"


# What is tried ------------------------------------------------------------------------------------


def a_study(tmp_path: Path, budget: Budget | None = None, changes: Mapping[str, Any] | None = None) -> Study:
    (study,) = planned(experiments(tmp_path, changes), budget or Budget())
    study.read()
    return study


def told(study: Study, trials: int, value: Callable[[Mapping[str, Any]], float]) -> None:
    """Ask for trials, each of which has a curve that ends with its value, or fails where that is not finite."""
    while numbers := study.ask(trials):
        for number in numbers:
            trial = study.trials[number]
            came = value(trial.settings)
            if math.isfinite(came):
                study.tell(number, replace(trial, state="complete", value=came, curve=[(1, 0.1), (2, came)]))
            else:
                study.tell(number, replace(trial, state="failed", reason="The loss is not finite."))


def near(settings: Mapping[str, Any]) -> float:
    """Highest at a learning rate of 10^-1.5 = 0.0316."""
    return 1 - abs(math.log10(settings["train.lr"]) + 1.5) / 2


def test_the_first_trial_is_the_experiment_as_it_stands(tmp_path: Path):
    inside = a_study(tmp_path, changes={"train.lr": 0.123456})
    told(inside, 1, near)
    assert inside.trials[0].settings == {"train.lr": 0.123456}
    study = a_study(tmp_path, Budget(search={"train.momentum": [0.1, 0.5]}), {"train.lr": 0.5})
    told(study, 24, near)  # neither is in the range, and the sampler does without
    assert study.trials[0].settings == {"train.lr": 0.5, "train.momentum": 0.9}
    assert all(trial.settings["train.lr"] <= 0.3 for trial in study.trials[1:])
    assert {*draw_search(study, 24)} == {"history.png", "slices.png", "importance.png"}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_study_that_is_opened_again_goes_on_to_the_same_trials(tmp_path: Path, sampler: Any):
    """After each batch, within one, and with a line that a kill cut short: Optuna's journal has all that is needed."""
    whole = a_study(tmp_path / "whole", Budget(sampler=sampler))
    whole.digest = "same"
    told(whole, 24, near)
    for half in range(1, 24):
        study = a_study(tmp_path / "parts", Budget(sampler=sampler))
        study.digest = "same"
        study.read()
        numbers = study.ask(24)
        for number in numbers[: 1 + half % 4]:
            came = near(study.trials[number].settings)
            study.tell(number, replace(study.trials[number], state="complete", value=came, curve=[(1, 0.1), (2, came)]))
        with (study.path / STUDY).open("ab") as file:
            file.write(b'{"op_code": 5, "trial')
    study = a_study(tmp_path / "parts", Budget(sampler=sampler))
    study.digest = "same"
    told(study, 24, near)
    assert study.trials == whole.trials
    assert len({trial.settings["train.lr"] for trial in study.trials}) > 20


def test_a_failed_trial_is_the_worst(tmp_path: Path):
    """Of two studies that differ in how bad high learning rates are told to be, both avoid them."""
    for bad in (math.nan, 0.1):
        study = a_study(tmp_path / str(bad))
        told(study, 30, lambda settings, bad=bad: bad if settings["train.lr"] > 0.02 else 0.5)
        assert sum(trial.settings["train.lr"] > 0.02 for trial in study.trials[15:]) <= 6
        assert {trial.state for trial in study.trials} == ({"complete"} if bad == 0.1 else {"complete", "failed"})


def test_a_damaged_journal_is_an_error(tmp_path: Path):
    study = a_study(tmp_path)
    told(study, 2, near)
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


@pytest.mark.parametrize(
    ("curve", "end"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6], None),  # never below the median
        ([0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6], None),  # in the warm-up it may be
        ([0.0, 0.1, 0.9], 2),
        ([0.2, 0.3, 0.2, 0.2, 0.5], 4),  # its best so far counts: 0.3 in round 3, but 0.3 < 0.4 in round 4
        ([0.9, 0.1, 0.1, 0.1, 0.1], None),
        ([0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6], None),  # 0.6 < 0.7, but after the last round nobody is pruned
    ],
)
def test_the_median_of_earlier_trials_prunes(tmp_path: Path, curve: list[float], end: int | None):
    study = a_study(tmp_path, Budget(parallel=5))
    for number, values in zip(study.ask(5), TABLE.values(), strict=True):
        scored = list(enumerate(values, start=1))
        study.tell(number, replace(study.trials[number], state="complete", value=values[-1], curve=scored))
    scored = list(enumerate(curve, start=1))
    assert study.pruned_at(5, scored, 8) == end
    if end is not None:  # whatever follows
        assert study.pruned_at(7, scored[:end], 8) == end
    assert study.pruned_at(4, scored, 8) is None  # beside trials that are not over
    study.trials = study.trials[:4]
    assert study.pruned_at(5, scored, 8) is None  # before five are complete


# A search over known curves -----------------------------------------------------------------------


class Known:
    """Takes the place of carrying runs out: each is scored as a curve says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, curve: Curve) -> None:
        self._curve, self.carried_out = curve, list[str]()
        monkeypatch.setattr(tuning, "attempt", self.attempt)

    def attempt(self, asked: Sequence[Asked], progress: Progress, judge: Any) -> dict[Path, FedshiftError]:
        failed: dict[Path, FedshiftError] = {}
        for each in asked:
            experiment, folder = each.experiment(), each.folder
            if folder.finished:
                continue
            self.carried_out.append(folder.path.name)
            RunFolder.create(experiment, folder.path)
            curve = self._curve(experiment)
            for position, value in enumerate(curve, start=1):
                if math.isnan(value):
                    failed[folder.path] = DivergedError(f"{folder.path.name}: The loss is not finite.")
                    break
                rows = [a_row("dark", "validation", value), a_row("light", "test", 1 - value)]
                add_record(folder, a_record(position, rows))
                if position < len(curve) and judge(folder):
                    break
            else:
                (folder.path / "manifest.json").write_text("{}")
        return failed


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up runs have no weights, so their records are read without a summary."""
    from fedshift.runs import folder

    def records(self: folder.RunFolder) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "records.jsonl").read_text().splitlines()]

    monkeypatch.setattr(folder.RunFolder, "records", records)


def mu(experiment: Experiment) -> float:
    value: float = experiment.method.table()["mu"]
    return value


PROX = {"method.name": "fedprox", "train.rounds": 4, "evaluate.every": 1}
MU = {"method.mu": [0.1, 0.2, 0.3, 0.4, 0.5]}
FIXED = ("train.lr",)


@pytest.mark.usefixtures("readable")
def test_choices_that_repeat_cost_nothing_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = Known(monkeypatch, lambda experiment: [mu(experiment)] * 4)
    found = search_all(experiments(tmp_path, PROX), Budget(trials=20, search=MU, fixed=FIXED), Progress())
    trials = found.studies[0].trials
    different = {trial.settings["method.mu"] for trial in trials}
    assert len(known.carried_out) == len(different)
    assert found.tuned.tuned[0].repeated == 20 - len(different) > 0
    for trial in trials:
        assert trial.repeats is None or trials[trial.repeats].settings == trial.settings
        assert trial.value == (trial.settings["method.mu"] if trial.state == "complete" else None)


@pytest.mark.usefixtures("readable")
def test_more_trials_go_on_from_those_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """8 trials and then 24 are, trial by trial, 24 at once; a smaller number reads the first of them."""
    known = Known(monkeypatch, lambda experiment: [near({"train.lr": experiment.train.lr})] * 4)
    changes = {"train.rounds": 4}
    eight = search_all(experiments(tmp_path, changes), Budget(trials=8), Progress())
    first = len(known.carried_out)
    more = search_all(experiments(tmp_path, changes), Budget(trials=24), Progress())
    assert len(known.carried_out) - first == sum(trial.repeats is None for trial in more.studies[0].trials[8:])
    assert more.studies[0].trials[:8] == eight.studies[0].trials
    count = len(known.carried_out)
    with pytest.warns(FedshiftWarning, match="there were 24 trials"):
        again = search_all(experiments(tmp_path, changes), Budget(trials=8), Progress())
    assert (again.tuned, len(known.carried_out)) == (eight.tuned, count)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.usefixtures("readable")
def test_a_method_that_fails_is_named_and_the_others_are_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
):
    """Whether none of its trials comes to an end, or it takes no such settings."""
    Known(monkeypatch, lambda experiment: [math.nan] if experiment.method_name == "fedprox" else [0.5] * 4)
    words = ("fedprox", "not finite")
    if refused:

        def refuse(*given: Any) -> Any:
            raise FedshiftError("It takes no batches of 4.")

        monkeypatch.setattr(fedshift.METHODS.get("fedprox").cls, "check", refuse)
        words = ("fedprox", "no batches of 4")
    both = experiments(tmp_path, PROX | {"method.name": ["fedprox", "fedavg"]})
    with refuses(*words):
        search_all(both[:1], Budget(trials=4), Progress())
    found = search_all(both, Budget(trials=4), Progress())
    assert [entry.method for entry in found.tuned.tuned] == ["fedavg"]
    (message,) = found.failed
    assert all(word in message for word in words)
    assert message in str(found)


@pytest.mark.usefixtures("readable")
def test_what_is_not_the_trials_fault_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = Known(monkeypatch, lambda experiment: [0.5] * 4)
    full = {"at": 6}

    def attempt(asked: Sequence[Asked], progress: Progress, judge: Any) -> dict[Path, FedshiftError]:
        if len(known.carried_out) >= full["at"]:
            return {asked[0].folder.path: DiskError("The disk is full.")}
        return known.attempt(asked, progress, judge)

    monkeypatch.setattr(tuning, "attempt", attempt)
    with pytest.raises(DiskError):
        search_all(experiments(tmp_path, PROX), Budget(trials=12), Progress())
    study = a_study(tmp_path, changes=PROX)
    assert [trial.state == "asked" for trial in study.trials] == [False] * 8 + [True] * 4
    full["at"] = 100
    (study,) = search_all(experiments(tmp_path, PROX), Budget(trials=12), Progress()).studies
    assert "asked" not in {trial.state for trial in study.trials}


@pytest.mark.usefixtures("readable")
def test_the_first_seed_decides_what_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A trial's value is the mean over seeds; of a pruned one only the first seed was begun."""
    known = Known(monkeypatch, lambda e: [e.train.lr * (1 + e.seed)] * 8)
    changes = {"train.rounds": 8, "seed": [0, 1]}
    (study,) = search_all(experiments(tmp_path, changes), Budget(trials=12), Progress()).studies
    states = {trial.state for trial in study.trials}
    assert states == {"complete", "pruned"}
    for trial in study.trials:
        if trial.state == "complete":
            assert trial.value == pytest.approx(1.5 * trial.settings["train.lr"])
            assert len(trial.runs) == 2
        else:
            assert [position for position, _ in trial.curve] == [1, 2]
            assert not (study.path / trial.runs[1]).exists()
    assert len(known.carried_out) == sum(2 - (trial.state == "pruned") for trial in study.trials)


# Real runs ----------------------------------------------------------------------------------------

REAL: dict[str, Any] = {"train.rounds": 6, "evaluate.every": 1, "run.checkpoint_every": 2, "train.lr": 0.01}
REAL["plugins"] = [PLUGIN]  # which a command needs, to know the tiny data
REAL_BUDGET = Budget(trials=16, sampler="random")


def outcome(found: Tuning) -> tuple[Any, ...]:
    """What must be equal of searches that are."""
    (study,) = found.studies
    return found.path.read_bytes(), study.trials


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A search that nothing interrupted."""
    return search_all(experiments(tmp_path_factory.mktemp("whole"), REAL), REAL_BUDGET, Progress())


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


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_killed_again_and_again_it_comes_to_the_same(whole: Tuning, tmp_path: Path, engine: str):
    """SIGKILL at one write to the disk after the other: of the study's file, of records, of checkpoints."""
    uninterrupted = whole
    if engine != TINY["run"]["engine"]:
        uninterrupted = search_all(
            experiments(tmp_path / "whole", REAL | {"run.engine": engine}), REAL_BUDGET, Progress()
        )
    asked = experiments(tmp_path / "killed", REAL | {"run.engine": engine})
    kills = 0
    for at in (1, 2, 7, 20, 45, 80, 130, 220, 10**9):
        pid = os.fork()
        if not pid:
            try:
                kill_at_write(at)
                search_all(asked, REAL_BUDGET, Progress())
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        kills += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not os.WIFSIGNALED(status):
            break
    assert kills >= 5
    assert outcome(search_all(asked, REAL_BUDGET, Silent())) == outcome(uninterrupted)


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

    for name in ("write", "append", "rename", "write_soon"):
        setattr(files, name, counted(getattr(files, name)))


class Silent(Progress):
    """Of a search that is over: no run begins."""

    def handle(self, run: str, event: AnyEvent) -> None:
        raise AssertionError(event)


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
        [
            row["accuracy"]
            for folder in find(each.studies[0].path)
            for row in folder.records()[-1]["environments"]
            if row["role"] == "test"
        ]
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
    assert (mu(tuned), tuned.train.lr) == (0.9, 0.2)
    with pytest.warns(FedshiftWarning, match=r"fedprox: method\.mu = 0\.3 is given, and counts before the tuned 0\.9"):
        (one,) = fedshift.grid(table, tuned=path, settings={"method.mu": 0.3})
    assert (mu(one), one.train.lr) == (0.3, 0.2)


def test_what_has_no_entry_is_named_with_the_command(tmp_path: Path):
    path = entry(tmp_path).write(tmp_path)
    with refuses("fedavg with light", "fedshift tune", "--method fedavg --hold-out light"):
        fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=path)
    with refuses("dark held out"):
        fedshift.grid(override(TINY, PROX), hold_out="dark", tuned=path)


def test_another_experiment_and_unequal_budgets_are_said(tmp_path: Path):
    path = entry(tmp_path).write(tmp_path)
    with pytest.warns(FedshiftWarning, match=r"another experiment: train\.rounds = 4 there and 5 here"):
        fedshift.grid(override(TINY, PROX), rounds=5, tuned=path)
    assert entry(tmp_path, method="fedavg", trials=40, settings={}).write(tmp_path) == path  # beside what is there
    with pytest.warns(FedshiftWarning, match=r"not tuned with the same budget.*40 trials"):
        assert len(fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=path)) == 2


def test_an_entry_that_is_replaced_is_said(tmp_path: Path):
    """Whether another search found it, or fewer trials of the same; the same once more, or longer, says nothing."""
    for study, trials, said in (
        ("x", 20, ""),
        ("x", 20, ""),
        ("y", 8, "20"),
        ("y", 9, ""),
        ("y", 8, "9"),
    ):
        with pytest.warns(FedshiftWarning, match=f"there were {said} trials") if said else nullcontext():
            path = entry(tmp_path, study=study, trials=trials).write(tmp_path)
        (found,) = TunedSettings.read(path).tuned
        assert (found.study, found.trials) == (study, trials)


def test_a_setting_that_is_best_without_a_value_is_not_in_the_file(tmp_path: Path):
    """The first trial is FTFA as it stands, whose ``finetune_lr`` is None; its settings make the same experiment."""
    asked = experiments(tmp_path, {"method.name": "ftfa", "train.rounds": 1})
    found = search_all(asked, Budget(trials=1), Progress())
    assert found.studies[0].trials[0].settings["method.finetune_lr"] is None
    assert "finetune_lr" not in found.tuned.tuned[0].settings
    assert [each.fingerprint for each in found.tuned.apply(asked)] == [each.fingerprint for each in asked]


# Commands and pages -------------------------------------------------------------------------------


def test_the_command_and_python_do_the_same(tmp_path: Path):
    document = override(TINY, REAL | {"run.out": str(tmp_path / "runs")})
    document["search"] = {"train": {"lr": [0.01, 0.1]}, "method.mu": [0.1, 0.2]}
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(document))
    words = ["tune", str(file), "--method", "fedavg,fedprox", "--trials", "6", "--search", "train.momentum=0..0.9"]
    plan = CliRunner().invoke(app, [*words, "--dry-run"], catch_exceptions=False)
    assert plan.exit_code == 0, plan.output
    assert "fedprox (light held out) searches method.mu: 0.1 | 0.2, train.lr: 0.01 | 0.1, train.momentum" in plan.output
    assert "Chosen on source validation accuracy" in plan.output
    assert not (tmp_path / "runs").exists()
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = fedshift.tune(
        file, method=["fedavg", "fedprox"], trials=6, search={"train.momentum": "0..0.9"}, progress=Silent()
    )
    assert str(found.path) in result.output
    assert {trial.settings["train.lr"] for study in found.studies for trial in study.trials} <= {0.01, 0.1}
    assert "fedprox (light held out): method.mu=" in str(found)
    assert repr(found) == str(found)
    page = found.path.with_suffix(".html").read_text()
    assert page.count("data:image/png;base64,") == sum(len(draw_search(study, 6)) for study in found.studies)
    assert "cdn" not in re.sub(r"base64,[^\"]*", "", page)
    compared = CliRunner().invoke(app, ["compare", *words[1:4], "--tuned", str(found.path)], catch_exceptions=False)
    assert compared.exit_code == 0, compared.output
    with pytest.raises(FedshiftError, match="nothing to search"):
        CliRunner().invoke(app, [*words[:2], "--set", "train.lr=0.1"], catch_exceptions=False)


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FedshiftError, match=r"pip install 'fedshift\[tune\]'"):
        search_all(experiments(tmp_path, REAL), Budget(trials=2), Progress())


def test_every_declared_range_is_of_its_setting():
    """What pages declare must be values that the setting takes."""
    for method in fedshift.METHODS:
        try:
            (experiment,) = expand(override(TINY, {"method.name": method}))
        except FedshiftError:
            continue
        for key, search in Space.of(experiment, {}, ()).searched.items():
            assert settings_of(experiment)[key].read(key, search) == search


# The documentation --------------------------------------------------------------------------------

DOCS = (Path(__file__).parents[1] / "docs" / "tuning.md").read_text(encoding="utf-8")


def block(marker: str, language: str) -> str:
    return DOCS.partition(f"<!-- {marker} -->\n```{language}\n")[2].partition("```")[0]


def test_the_example_of_the_documentation_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With fewer rounds and trials; it prints what the page shows, but for the numbers."""
    monkeypatch.chdir(tmp_path)
    small = {"data.images_per_class": 10, "train.batch": 16, "run.engine": "sequential", "run.threads": 1}
    for name, fewer in (("tune", {"rounds": 1, "trials": 2}), ("compare", {"rounds": 1})):
        original = getattr(fedshift, name)
        short = {**fewer, "progress": Progress(), "settings": small}
        monkeypatch.setattr(fedshift, name, lambda o=original, s=short, **options: o(**{**options, **s}))
    names: dict[str, Any] = {}
    exec(compile(block("tune", "python"), "tuning.md", "exec"), names)
    assert names["page"].is_file()
    printed = " ".join(capsys.readouterr().out.split())
    shown = DOCS.partition("```text\n")[2].partition("```")[0]
    for line in shown.splitlines():
        words = [word for word in line.split() if not word.replace(".", "").isdigit() and "=" not in word]
        if line.startswith(("Validation", "Budget", "Note: Chosen", "  method")):
            assert " ".join(words) in printed, line
    (fedprox,) = (line for line in shown.splitlines() if "Note: fedprox" in line)
    assert fedprox.partition("; ")[2] in printed
