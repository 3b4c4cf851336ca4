"""Searching settings: what is tried, what is pruned, what is chosen, and that a kill changes nothing of it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import fedshift
import fresh
from conftest import TINY, a_record, a_row
from fedshift.api import search_plan
from fedshift.cli.app import app
from fedshift.errors import DiskError, DivergedError, FedshiftError, FedshiftWarning
from fedshift.federation.federation import Federation
from fedshift.federation.samples import Samples
from fedshift.reporting.live import LiveProgress
from fedshift.reporting.watch import Watch
from fedshift.runs.folder import RunFolder, find
from fedshift.runs.lock import locked
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.runner import Asked
from fedshift.runs.studies import STUDY
from fedshift.settings.experiment import Experiment
from fedshift.settings.grid import expand, override
from fedshift.settings.spec import Range
from fedshift.simulation import simulation as simulating
from fedshift.tuning import tune as tuning
from fedshift.tuning.figures import shares_of
from fedshift.tuning.page import pictures
from fedshift.tuning.space import Space, flat_ranges, settings_of, with_settings
from fedshift.tuning.study import Study, Trial
from fedshift.tuning.tune import Plan, studies, tune
from fedshift.tuning.tuned import Tuned

PLUGIN = str(Path(__file__).parent / "tiny.py")
LR = {"train.lr": Range(0.001, 0.3, log=True)}
Curve = Callable[[Experiment], Sequence[float]]


def experiments(tmp_path: Path, changes: Mapping[str, Any] | None = None) -> list[Experiment]:
    return expand(override(TINY, {"run.out": str(tmp_path / "runs"), **(changes or {})}))


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


def test_settings_of_nested_specs_have_dotted_names():
    space = space_of({"method": {"name": "client2vec", "base": "fedprox"}})
    assert space.searched["method.base.mu"] == (0.1, 0.5, 0.9)
    assert space.searched["method.index.epochs"] == (100, 500, 1000)
    assert "method.tau" in space.searched


def test_what_a_variant_fixes_is_not_searched():
    assert "method.l_align" not in space_of({"method.name": "fedreg"}).searched
    assert {"method.l_align", "method.l_reg"} & {*space_of({"method.name": "fedcir"}).searched}


def test_fedcir_is_searched_where_its_alignment_weighs_and_over_what_it_aligns_with():
    """At the published 5e-7 the term is a thousandth of the loss; sigma and the generator decide what it pulls to."""
    searched = space_of({"method.name": "fedcir"}).searched
    assert searched["method.l_align"] == Range(5e-7, 5e-3, log=True)
    assert {"method.sigma_floor", "method.generator_steps", "method.generator_noise"} <= searched.keys()
    assert "method.sigma_floor" in space_of({"method.name": "fedalign"}).searched


def test_what_is_fixed_is_not_searched():
    assert "method.mu" not in space_of({"method.name": "fedprox"}, fixed=["method.mu"]).searched
    assert "method.mu" not in space_of({"method.name": "fedprox"}, fixed=["method.fedprox.mu"]).searched
    assert "method.mu" in space_of({"method.name": "fedprox"}, fixed=["method.fedsr.mu"]).searched
    nested = space_of({"method": {"name": "client2vec", "base": "fedprox"}}, fixed=["method.base"])
    assert "method.base.mu" not in nested.searched


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("0.001..0.1", Range(0.001, 0.1, log=True)),
        ("1e-2..0.02", Range(0.01, 0.02, log=True)),  # as the page says of it
        ({"low": 0.1, "high": 0.2, "log": False}, Range(0.1, 0.2)),
        (Range(0.1, 0.2), Range(0.1, 0.2)),
        ([0.1, 0.2], (0.1, 0.2)),
    ],
)
def test_ranges_are_given_in_several_ways(given: object, found: object):
    assert space_of({}, {"train.lr": given}).searched["train.lr"] == found


def test_an_interval_is_by_the_logarithm_where_it_spans_a_decade():
    assert space_of({}, {"train.weight_decay": "0.001..0.1"}).searched["train.weight_decay"] == Range(0.001, 0.1, True)
    assert space_of({}, {"train.weight_decay": "0.01..0.05"}).searched["train.weight_decay"] == Range(0.01, 0.05)
    assert space_of({}, {"train.weight_decay": "0..0.05"}).searched["train.weight_decay"] == Range(0, 0.05)


def test_whole_numbers_texts_lists_and_booleans_are_searched():
    method = {"method.name": "fedpac"}
    ranges = {"method.head_steps": "1..4", "model.batch_norm": [True, False], "model.hidden": [[8], [4, 4]]}
    space = space_of(method, ranges, fixed=["method.lam"])
    inner = {"train.lr": 0.01, "method.head_steps": 3, "model.batch_norm": 1, "model.hidden": 1}
    settings = space.outer(inner)
    assert settings == {"train.lr": 0.01, "method.head_steps": 3, "model.batch_norm": False, "model.hidden": [4, 4]}
    assert space.inner(settings) == inner
    (experiment,) = expand(override(TINY, method))
    changed = with_settings(experiment, settings)
    assert (changed.method.table()["head_steps"], changed.model.table()["hidden"]) == (3, [4, 4])
    assert changed.fingerprint != experiment.fingerprint


def test_dots_of_toml_make_no_difference():
    expected = {"train.lr": "0.1..0.2", "method.mu": [1, 2], "train.momentum": {"low": 0.1, "high": 0.2}}
    nested = {"train": {"lr": "0.1..0.2", "momentum": {"low": 0.1, "high": 0.2}}, "method.mu": [1, 2]}
    assert flat_ranges(nested) == flat_ranges(expected) == expected


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"train.lr": [0.1]}, ["train.lr", "different choices", "--set train.lr=A"]),
        ({"train.lr": "0.1..0.01"}, ["from 0.1 to 0.01", "the lower first"]),
        ({"train.lr": "-1..0.01"}, ["train.lr", "greater than 0"]),
        ({"train.weight_decay": {"low": 0, "high": 1, "log": True}}, ["logarithm"]),
        ({"train.lr": {"low": 1}}, ["needs low and high"]),
        ({"train.rounds": "1..5"}, ["which is its budget; it is the same for all", "--set train.rounds"]),
        ({"train.steps": "1..5"}, ["which is its budget; it is the same for all", "--set train.steps"]),
        ({"train.unit": ["steps", "epochs"]}, ["which is its budget; it is the same for all", "--set train.unit"]),
        ({"train.batch": [2, 4]}, ["which is its budget; it is the same for all", "--set train.batch"]),
        ({"train.participation": "0.5..1"}, ["which is its budget; it is the same for all"]),
        ({"train.absent": "0.1..0.5"}, ["judged on; it is the same for all", "--set train.absent"]),
        ({"protocol.validation": "0.1..0.5"}, ["the same for all"]),
        ({"train.ler": "0.1..0.2"}, ["Did you mean 'train.lr'"]),
        ({"method.nothing": [1, 2]}, ["Unknown setting to search 'method.nothing'"]),
        ({"train.optimiser": "0.1..0.2"}, ["train.optimiser", "'sgd' or 'adam'"]),
    ],
)
def test_a_wrong_range_is_an_error_with_its_fix(tmp_path: Path, ranges: dict[str, Any], words: list[str]):
    with pytest.raises(FedshiftError) as error:
        studies(experiments(tmp_path), Plan(search=ranges))
    assert all(word in str(error.value) for word in words), error.value


def test_a_method_in_a_method_is_not_searched(tmp_path: Path):
    of = experiments(tmp_path, {"method": {"name": "client2vec", "base": "fedprox"}})
    with pytest.raises(FedshiftError, match=r"each choice is a study of its own: --set method\.base"):
        studies(of, Plan(search={"method.base": ["fedavg", "fedprox"]}))


def test_a_range_of_a_method_that_is_not_run_has_no_effect(tmp_path: Path):
    (study,) = studies(experiments(tmp_path), Plan(search={"method.mu": [0.1, 0.2], "method.fedsr.l2r": "0.1..0.2"}))
    assert {*study.space.searched} == {"train.lr"}


def test_a_range_that_is_asked_for_in_vain_is_said(tmp_path: Path):
    """Of a file's [search] it is not, as that may be for other methods as well; the dry run says it too."""
    document = override(TINY, {"run.out": str(tmp_path / "runs"), "plugins": [PLUGIN]})
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(document | {"search": {"method.mu": [0.1, 0.2]}}))
    plan = search_plan(str(file), 2, "tpe", 4, {"method.fedsr.l2r": "0.1..0.2"})
    with pytest.warns(FedshiftWarning) as warned:
        studies(experiments(tmp_path), plan)
    said = "method.fedsr.l2r is a setting of no method that is tuned, so it is not searched."
    assert [str(each.message) for each in warned] == [said]
    words = ["tune", str(file), "--trials", "2", "--dry-run", "--search", "method.fedsr.l2r=0.1..0.2"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.count("Note: ") == result.output.count(f"Note: {said}") == 1


# Studies ------------------------------------------------------------------------------------------


def test_a_study_is_of_a_method_and_a_held_out_domain_over_all_seeds(tmp_path: Path):
    changes = {"method.name": ["fedavg", "fedprox"], "seed": [0, 1], "protocol.hold_out": ["light", "dark"]}
    found = studies(experiments(tmp_path, changes), Plan())
    assert [(study.method, study.hold_out, len(study.experiments)) for study in found] == [
        (method, domain, 2) for method in ("fedavg", "fedprox") for domain in ("light", "dark")
    ]
    assert len({study.path for study in found}) == 4


def test_whatever_decides_a_study_gives_it_another_folder(tmp_path: Path):
    paths = [
        studies(experiments(tmp_path, changes), plan)[0].path
        for changes, plan in [
            ({}, Plan()),
            ({}, Plan(search={"train.lr": "0.01..0.1"})),
            ({}, Plan(sampler="random")),
            ({}, Plan(parallel=2)),
            ({"train.rounds": 3}, Plan()),
            ({"seed": [0, 1]}, Plan()),
        ]
    ]
    assert len({*paths}) == len(paths)
    assert studies(experiments(tmp_path), Plan(trials=40))[0].path == paths[0]  # more trials go on


def test_a_grid_of_settings_is_refused(tmp_path: Path):
    with pytest.raises(FedshiftError, match=r"--search train\.lr=0\.1,0\.01"):
        studies(experiments(tmp_path, {"train.batch": [2, 4]}), Plan())


def test_there_must_be_something_to_search(tmp_path: Path):
    with pytest.raises(FedshiftError, match="nothing to search"):
        studies(experiments(tmp_path), Plan(fixed=frozenset({"train.lr"})))


def test_validation_that_is_a_test_is_refused():
    of = expand(override({"data": {"name": "colored-mnist"}}, {"protocol.name": "personal-under-shift"}))
    with pytest.raises(FedshiftError, match=r"--set protocol\.validation=held-out"):
        studies(of, Plan())
    (study,) = studies(
        expand(
            override(
                {"data": {"name": "colored-mnist"}},
                {"protocol.name": "personal-under-shift", "protocol.validation": "held-out"},
            )
        ),
        Plan(),
    )
    assert study.hold_out == ""


@pytest.mark.parametrize("changes", [{"trials": 0}, {"parallel": 0}, {"sampler": "grid"}, {"trials": True}])
def test_a_wrong_budget_is_an_error(changes: dict[str, Any]):
    with pytest.raises(FedshiftError):
        Plan(**changes)


# What is tried ------------------------------------------------------------------------------------


def a_study(tmp_path: Path, plan: Plan | None = None, changes: Mapping[str, Any] | None = None) -> Study:
    (study,) = studies(experiments(tmp_path, changes), plan or Plan())
    return study


def told(study: Study, curve: Sequence[float], **changes: Any) -> None:
    """Ask for a trial, and say how it went: accuracies after rounds 1, 2, ..."""
    trial = study.ask()
    scored = {"rounds": list(range(1, len(curve) + 1)), "values": list(curve)}
    study.trials.append(trial.model_copy(update={"state": "complete", "value": curve[-1], **scored, **changes}))


def test_the_first_trial_is_the_experiment_as_it_stands(tmp_path: Path):
    assert a_study(tmp_path, changes={"train.lr": 0.2}).ask().settings == {"train.lr": 0.2}
    study = a_study(tmp_path, Plan(search={"train.momentum": [0.1, 0.5]}), {"train.lr": 0.5})
    for _ in range(24):  # neither is in the range, and the sampler does without
        told(study, [0.5])
    assert study.trials[0].settings == {"train.lr": 0.5, "train.momentum": 0.9}
    assert all(study.space.holds(trial.settings) for trial in study.trials[1:])
    assert pictures(study, study.trials)


def test_random_choices_are_optunas(tmp_path: Path):
    """The sampler's own numbers for this seed, of four digits; an outcome changes none."""
    study = a_study(tmp_path, Plan(sampler="random"))
    for value in (0.1, 0.9, 0.5, 0.3, 0.7, 0.2):
        told(study, [value])
    from fedshift import files

    for number in range(1, 6):
        seed = int(files.digest_of(f"{study.digest} {number}".encode())[:8], 16)
        sampled = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        expected = sampled.ask({"train.lr": optuna.distributions.FloatDistribution(0.001, 0.3, log=True)}).params
        assert study.trials[number].settings["train.lr"] == pytest.approx(expected["train.lr"], rel=1e-3)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_choice_depends_on_earlier_generations_alone(tmp_path: Path, sampler: Any):
    """Asking for all of a generation at once, or after some of it is told, or after a restart, gives the same."""
    value = lambda trial: 1 - abs(math.log10(trial.settings["train.lr"]) + 1.5)  # noqa: E731
    at_once, one_by_one = (a_study(tmp_path, Plan(sampler=sampler)) for _ in range(2))
    for _ in range(6):
        asked = []
        for _ in range(4):
            asked.append(at_once.ask())
            at_once.trials.append(asked[-1])
        at_once.trials[-4:] = [trial.model_copy(update={"state": "complete", "value": value(trial)}) for trial in asked]
    for _ in range(24):
        trial = one_by_one.ask()
        one_by_one.trials.append(trial.model_copy(update={"state": "complete", "value": value(trial)}))
        one_by_one.write()
        one_by_one = a_study(tmp_path, Plan(sampler=sampler))
        one_by_one.read()
    assert at_once.trials == one_by_one.trials
    assert len({trial.settings["train.lr"] for trial in at_once.trials}) == 24


def test_a_failed_trial_is_the_worst(tmp_path: Path):
    """Of two studies that differ in how bad high learning rates are told to be, both avoid them."""

    def late(failing: bool) -> list[float]:
        study = a_study(tmp_path)
        for _ in range(30):
            trial = study.ask()
            bad = trial.settings["train.lr"] > 0.02
            changes: dict[str, Any] = {"state": "complete", "value": 0.1 if bad else 0.5}
            if bad and failing:
                changes = {"state": "failed", "reason": "The loss is not finite."}
            study.trials.append(trial.model_copy(update=changes))
        return [trial.settings["train.lr"] for trial in study.trials[15:]]

    for rates in (late(True), late(False)):
        assert sum(rate > 0.02 for rate in rates) <= 6


def test_another_studys_file_and_a_damaged_one_are_errors(tmp_path: Path):
    study = a_study(tmp_path)
    told(study, [0.5])
    study.write()
    file = study.path / STUDY
    with pytest.raises(FedshiftError, match="of another study"):
        replace(study, digest="0" * 32).read()
    file.write_text(file.read_text().replace("0.5", "0.6"))
    with pytest.raises(FedshiftError, match="is not what was written"):
        study.read()


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
    study = a_study(tmp_path, Plan(parallel=5))
    for values in TABLE.values():
        told(study, values)
    scored = list(enumerate(curve, start=1))
    assert study.pruner(5)(scored, 8) == end
    if end is not None:  # whatever follows
        assert study.pruner(7)(scored[:end], 8) == end
    assert study.pruner(4)(scored, 8) is None  # beside trials that are not over


def test_nothing_is_pruned_before_five_trials_are_complete(tmp_path: Path):
    study = a_study(tmp_path)
    for values in list(TABLE.values())[:4]:
        told(study, values)
    assert study.pruner(4)([(1, 0.0), (2, 0.0), (3, 0.0)], 8) is None


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
            log, curve = folder.recording(), self._curve(experiment)
            for position, value in enumerate(curve, start=1):
                if math.isnan(value):
                    failed[folder.path] = DivergedError(f"{folder.path.name}: The loss is not finite.")
                    break
                rows = [a_row("dark", "validation", value), a_row("light", "test", 1 - value)]
                log.append(a_record(position, rows))
                if position < len(curve) and judge(folder):
                    break
            else:
                (folder.path / "summary.json").write_text("{}")
        return failed


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up runs have no weights, so their records are read without a summary."""
    from fedshift.runs import folder
    from fedshift.runs.records import read

    monkeypatch.setattr(
        folder.RunFolder, "records", lambda self: read(self.path / "records.jsonl", self.identity.fingerprint, [])
    )


def mu(experiment: Experiment) -> float:
    value: float = experiment.method.table()["mu"]
    return value


PROX = {"method.name": "fedprox", "train.rounds": 4, "evaluate.every": 1}
MU = {"method.mu": [0.1, 0.2, 0.3, 0.4, 0.5]}
FIXED = frozenset({"train.lr"})


@pytest.mark.usefixtures("readable")
def test_the_best_choice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The value of mu is 1 - |mu - 0.4|, which 0.4 maximises."""
    Known(monkeypatch, lambda experiment: [0.5, 0.5, 0.5, 1 - abs(mu(experiment) - 0.4)])
    found = tune(experiments(tmp_path, PROX), Plan(20, search=MU, fixed=FIXED), Progress())
    (entry,) = found.tuned.tuned
    assert (entry.settings, entry.value) == ({"method.mu": 0.4}, 1.0)
    assert (entry.trials, entry.rounds, entry.seeds, entry.sampler) == (20, 4, [0], "tpe")


@pytest.mark.usefixtures("readable")
def test_the_best_place_of_an_interval_is_come_near_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The value is highest at a learning rate of 10^-1.5 = 0.0316; random choices of 40 come less near than TPE's."""
    Known(monkeypatch, lambda experiment: [1 - abs(math.log10(experiment.train.lr) + 1.5) / 2] * 4)
    changes = {"train.rounds": 4, "train.lr": 0.3}
    (entry,) = tune(experiments(tmp_path, changes), Plan(40), Progress()).tuned.tuned
    assert entry.settings["train.lr"] == pytest.approx(10**-1.5, rel=0.05)


@pytest.mark.usefixtures("readable")
def test_choices_that_repeat_cost_nothing_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = Known(monkeypatch, lambda experiment: [mu(experiment)] * 4)
    found = tune(experiments(tmp_path, PROX), Plan(20, search=MU, fixed=FIXED), Progress())
    trials = found.studies[0].trials
    different = {trial.settings["method.mu"] for trial in trials}
    assert len(known.carried_out) == len(different)
    assert found.tuned.tuned[0].repeated == 20 - len(different) > 0
    for trial in trials:
        assert trial.repeats is None or trials[trial.repeats].settings == trial.settings
        assert trial.value == (trial.settings["method.mu"] if trial.state == "complete" else None)


@pytest.mark.usefixtures("readable")
def test_a_method_with_nothing_to_search_has_the_same_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = Known(monkeypatch, lambda experiment: [0.5] * 4)
    both = experiments(tmp_path, PROX | {"method.name": ["fedavg", "fedprox"]})
    found = tune(both, Plan(6, search=MU, fixed=FIXED), Progress())
    first, second = found.tuned.tuned
    assert (first.method, first.settings, first.repeated) == ("fedavg", {}, 5)
    assert first.budget == second.budget
    assert sum("fedavg" in name for name in known.carried_out) == 1


@pytest.mark.usefixtures("readable")
def test_more_trials_go_on_from_those_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """10 trials and then 24 are, trial by trial, 24 at once; a smaller number reads the first of them."""
    known = Known(monkeypatch, lambda experiment: [1 - abs(math.log10(experiment.train.lr) + 1.5) / 2] * 4)
    changes = {"train.rounds": 4}
    ten = tune(experiments(tmp_path / "a", changes), Plan(10), Progress())
    first = len(known.carried_out)
    more = tune(experiments(tmp_path / "a", changes), Plan(24), Progress())
    assert len(known.carried_out) - first == sum(trial.repeats is None for trial in more.studies[0].trials[10:])
    whole = tune(experiments(tmp_path / "b", changes), Plan(24), Progress())
    assert more.studies[0].trials == whole.studies[0].trials
    assert more.studies[0].trials[:10] == ten.studies[0].trials
    assert more.path.read_bytes() == whole.path.read_bytes()
    count = len(known.carried_out)
    with pytest.warns(FedshiftWarning, match="there were 24 trials"):
        again = tune(experiments(tmp_path / "b", changes), Plan(10), Progress())
    assert (again.tuned, len(known.carried_out)) == (ten.tuned, count)


@pytest.mark.usefixtures("readable")
def test_a_run_that_diverges_is_a_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Known(monkeypatch, lambda experiment: [0.5, math.nan] if mu(experiment) > 0.3 else [mu(experiment)] * 4)
    found = tune(experiments(tmp_path, PROX), Plan(20, search=MU, fixed=FIXED), Progress())
    failed = [trial for trial in found.studies[0].trials if trial.state == "failed"]
    assert failed
    assert all("not finite" in trial.reason and trial.value is None for trial in failed)
    assert found.tuned.tuned[0].settings == {"method.mu": 0.3}
    assert found.tuned.tuned[0].failed == len(failed)


@pytest.mark.usefixtures("readable")
def test_all_failed_is_an_error_and_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Known(monkeypatch, lambda experiment: [math.nan] if experiment.method_name == "fedprox" else [0.5] * 4)
    with pytest.raises(FedshiftError, match=r"No trial of fedprox \(light held out\).*not finite"):
        tune(experiments(tmp_path, PROX), Plan(4), Progress())
    found = tune(experiments(tmp_path, PROX | {"method.name": ["fedavg", "fedprox"]}), Plan(4), Progress())
    assert [entry.method for entry in found.tuned.tuned] == ["fedavg"]
    assert len(found.failed) == 1


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
        tune(experiments(tmp_path, PROX), Plan(12), Progress())
    study = a_study(tmp_path, changes=PROX)
    study.read()
    assert [trial.told for trial in study.trials] == [True] * 8 + [False] * 4
    full["at"] = 100
    assert all(trial.told for trial in tune(experiments(tmp_path, PROX), Plan(12), Progress()).studies[0].trials)


@pytest.mark.usefixtures("readable")
def test_the_first_seed_decides_what_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A trial's value is the mean over seeds; of a pruned one only the first seed was begun."""
    known = Known(monkeypatch, lambda e: [e.train.lr * (1 + e.seed)] * 8)
    changes = {"train.rounds": 8, "seed": [0, 1]}
    (study,) = tune(experiments(tmp_path, changes), Plan(12), Progress()).studies
    states = {trial.state for trial in study.trials}
    assert states == {"complete", "pruned"}
    for trial in study.trials:
        if trial.state == "complete":
            assert trial.value == pytest.approx(1.5 * trial.settings["train.lr"])
            assert len(trial.runs) == 2
        else:
            assert trial.rounds == [1, 2]
            assert not (study.path / trial.runs[1]).exists()
    assert len(known.carried_out) == sum(2 - (trial.state == "pruned") for trial in study.trials)


def test_settings_that_do_not_go_together_are_a_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = with_settings

    def some(spec: Any, settings: Mapping[str, Any]) -> Any:
        if settings.get("method.mu") == 0.5:
            raise FedshiftError("mu = 0.5 does not go with it.")
        return real(spec, settings)

    monkeypatch.setattr(tuning, "with_settings", some)
    changes = PROX | {"train.rounds": 1, "method.mu": 0.5}
    (study,) = tune(experiments(tmp_path, changes), Plan(4, fixed=FIXED), Progress()).studies
    first, *others = study.trials
    assert (first.state, first.reason) == ("failed", "mu = 0.5 does not go with it.")
    for trial in others:
        assert trial.state == ("failed" if trial.settings["method.mu"] == 0.5 else "complete")
    assert "complete" in {trial.state for trial in others}


# Real runs ----------------------------------------------------------------------------------------

REAL: dict[str, Any] = {"train.rounds": 6, "evaluate.every": 1, "run.checkpoint_every": 2, "train.lr": 0.01}
REAL["plugins"] = [PLUGIN]  # which a command needs, to know the tiny data
REAL_PLAN = Plan(16, "random")


def outcome(found: tuning.Tuning) -> tuple[Any, ...]:
    """What must be equal of searches that are."""
    (study,) = found.studies
    return found.path.read_bytes(), [trial.model_dump() for trial in study.trials]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuning.Tuning:
    """A search that nothing interrupted."""
    return tune(experiments(tmp_path_factory.mktemp("whole"), REAL), REAL_PLAN, Progress())


def test_some_trials_are_pruned_and_stay_unfinished(whole: tuning.Tuning):
    (study,) = whole.studies
    assert {trial.state for trial in study.trials} == {"complete", "pruned"}
    for trial in study.trials:
        (run,) = (RunFolder(study.path / name) for name in trial.runs)
        assert run.finished == (trial.state == "complete")
        assert run.records()[-1]["position"] == trial.rounds[-1]


def test_what_lies_above_a_study_reads_and_resumes_no_trial(whole: tuning.Tuning):
    (study,) = whole.studies
    assert find(whole.path.parent, least=0) == []
    assert len(find(study.path)) == len({run for trial in study.trials for run in trial.runs})
    with pytest.raises(FedshiftError, match="no run folder"):
        fedshift.resume(whole.path.parent)


def test_test_scores_of_trials_are_not_to_be_seen(whole: tuning.Tuning):
    """Neither in a report nor by watching, of a study's folder or of a trial's."""
    (study,) = whole.studies
    run = next(each.path for each in find(study.path) if each.finished)
    for path in (study.path, run, run / ".." / run.name):
        for look in (fedshift.resume, fedshift.load):
            with pytest.raises(FedshiftError, match=r"trials of a study.*tuned-\*\.html.*the command that began"):
                look(path)
        with pytest.raises(FedshiftError, match="trials of a study"):
            CliRunner().invoke(app, ["report", str(path)], catch_exceptions=False)
    assert not list(study.path.rglob("report.html"))
    for path in (study.path, run):
        output = CliRunner().invoke(app, ["watch", str(path)], catch_exceptions=False).output
        assert "dark validation" in output
        assert "test" not in output


def test_watching_a_search_goes_on_while_trials_are_chosen(whole: tuning.Tuning):
    (study,) = whole.studies
    watch = Watch(study.path, LiveProgress(0))
    watch.look()
    assert watch.over
    with locked(study.path):
        assert not watch.over


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_killed_again_and_again_it_comes_to_the_same(whole: tuning.Tuning, tmp_path: Path, engine: str):
    """SIGKILL at one write to the disk after the other: of the study's file, of records, of checkpoints."""
    uninterrupted = whole
    if engine != TINY["run"]["engine"]:
        uninterrupted = tune(experiments(tmp_path / "whole", REAL | {"run.engine": engine}), REAL_PLAN, Progress())
    asked = experiments(tmp_path / "killed", REAL | {"run.engine": engine})
    kills = 0
    for at in (1, 2, 7, 20, 45, 80, 130, 220, 10**9):
        pid = os.fork()
        if not pid:
            try:
                kill_at_write(at)
                tune(asked, REAL_PLAN, Progress())
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        kills += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not os.WIFSIGNALED(status):
            break
    assert kills >= 5
    assert outcome(tune(asked, REAL_PLAN, Silent())) == outcome(uninterrupted)


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

    def begin(self, outlook: Outlook) -> RunProgress:
        raise AssertionError(outlook)


def test_a_command_that_is_killed_goes_on(whole: tuning.Tuning, tmp_path: Path):
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(override(TINY, REAL | {"run.out": str(tmp_path / "runs")})))
    words = ["tune", str(file), "--trials", str(REAL_PLAN.trials), "--sampler", "random"]
    child = fresh.start(fresh.fedshift, *words)

    def begun() -> int:
        name = study_folder(tmp_path)
        return len(find(tmp_path / "runs" / "tiny" / name, least=0)) if name else 0

    fresh.until(lambda: begun() >= 6, child)
    child.kill()
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (held,) = (tmp_path / "runs").rglob(STUDY)
    theirs = [Trial.model_validate(trial) for trial in json.loads(held.read_text())["trials"]]
    assert theirs == whole.studies[0].trials


def study_folder(tmp_path: Path) -> str:
    """The name of the study's folder, once it is there."""
    found = list((tmp_path / "runs" / "tiny").glob("tune-*"))
    return found[0].name if found else ""


def test_labels_of_the_test_do_not_matter(whole: tuning.Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With those of test environments shuffled, every trial and the best are the same."""
    real = simulating.make_federation

    def poisoned(*arguments: Any) -> Federation:
        federation = real(*arguments)
        environments = list(federation.environments)
        for number, environment in enumerate(environments):
            if environment.role == "test":
                samples = environment.samples
                order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))
                environments[number] = replace(environment, samples=Samples(samples.x, samples.y[order]))
        return replace(federation, environments=tuple(environments))

    monkeypatch.setattr(simulating, "make_federation", poisoned)
    found = tune(experiments(tmp_path, REAL), REAL_PLAN, Progress())
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


def test_what_is_shown_has_no_test_scores(tmp_path: Path):
    seen: list[str] = []

    class Seeing(Progress):
        def begin(self, outlook: Outlook) -> RunProgress:
            run = RunProgress()
            run.evaluated = lambda record: seen.extend(row["role"] for row in record["environments"])  # type: ignore[method-assign]
            return run

        def note(self, text: str) -> None:
            seen.append(text)

    tune(experiments(tmp_path, REAL), Plan(2), Seeing())
    assert "validation" in seen
    assert "test" not in seen
    assert any(text.startswith("fedavg (light held out): trial 2 of 2: ") for text in seen)


def test_two_processes_do_not_carry_out_one_study(whole: tuning.Tuning):
    (study,) = whole.studies
    with locked(study.path), pytest.raises(FedshiftError, match="Another process"):
        tune(study.experiments, REAL_PLAN, Progress())


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "attempt", interrupt)
    monkeypatch.setattr(sys, "argv", ["fedshift", "tune", "x.toml", "--trials", "2"])
    file = tmp_path / "x.toml"
    file.write_text(tomli_w.dumps(override(TINY, {"run.out": str(tmp_path / "runs"), "plugins": [PLUGIN]})))
    result = CliRunner().invoke(app, ["tune", str(file), "--trials", "2"])
    assert result.exit_code == 130
    assert "The same command carries on, and no trial is lost: fedshift tune x.toml --trials 2" in result.output


# What was found, applied --------------------------------------------------------------------------


def entry(tmp_path: Path, **changes: Any) -> Tuned:
    """Made-up results of FedProx."""
    (one,) = experiments(tmp_path, PROX)
    whole = tune_of_one(tmp_path, changes)
    return Tuned.of(one, "validation", ["train.lr"], [whole])


def tune_of_one(tmp_path: Path, changes: Mapping[str, Any]) -> Any:
    from fedshift.tuning.tuned import Found

    budget = {"trials": 20, "pruned": 0, "failed": 0, "repeated": 0, "sampler": "tpe", "parallel": 4, "rounds": 4}
    more = {"steps": 2, "unit": "steps", "seeds": [0], "search": {}, "study": "x", "value": 0.5, "trial": 3}
    settings = {"method.mu": 0.9, "train.lr": 0.2}
    return Found(**{"method": "fedprox", "hold_out": "light", "settings": settings, **budget, **more, **changes})


def test_compare_takes_what_was_found(tmp_path: Path):
    path = entry(tmp_path).written(tmp_path)
    table = override(TINY, {"run.out": str(tmp_path / "runs"), **PROX})
    (one,) = fedshift.grid(table, tuned=path)
    assert (mu(one), one.train.lr) == (0.9, 0.2)
    done = fedshift.compare(table, tuned=path, progress=Progress())
    assert done.runs[0].table["method"]["mu"] == 0.9


def test_what_is_given_counts_before_what_was_found(tmp_path: Path):
    path = entry(tmp_path).written(tmp_path)
    table = override(TINY, PROX)
    with pytest.warns(FedshiftWarning, match=r"fedprox: method\.mu = 0\.3 is given, and counts before the tuned 0\.9"):
        (one,) = fedshift.grid(table, tuned=path, settings={"method.mu": 0.3})
    assert (mu(one), one.train.lr) == (0.3, 0.2)


def test_what_has_no_entry_is_named_with_the_command(tmp_path: Path):
    path = entry(tmp_path).written(tmp_path)
    with pytest.raises(FedshiftError, match=r"fedavg with light held out.*fedshift tune .*--method fedavg") as error:
        fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=path)
    assert "--hold-out light --trials 20" in str(error.value)
    with pytest.raises(FedshiftError, match="dark held out"):
        fedshift.grid(override(TINY, PROX), hold_out="dark", tuned=path)


def test_another_experiment_and_unequal_budgets_are_said(tmp_path: Path):
    found = entry(tmp_path)
    path = found.written(tmp_path)
    with pytest.warns(FedshiftWarning, match=r"another experiment: train\.rounds = 4 there and 5 here"):
        fedshift.grid(override(TINY, PROX), rounds=5, tuned=path)
    other = tune_of_one(tmp_path, {"method": "fedavg", "trials": 40, "settings": {}})
    assert found.model_copy(update={"tuned": [other]}).written(tmp_path) == path  # beside what is there
    with pytest.warns(FedshiftWarning, match=r"not tuned with the same budget.*40 trials"):
        assert len(fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=path)) == 2


LR_TABLE = {"low": 0.001, "high": 0.3, "log": True}


def test_different_ranges_of_what_methods_share_are_said(tmp_path: Path):
    """Ranges of a method's own settings are no part of the budget."""
    own = {"train.lr": LR_TABLE, "method.mu": [0.1, 0.9]}
    found = entry(tmp_path, search=own)
    one = tune_of_one(tmp_path, {"method": "fedavg", "settings": {}, "search": {"train.lr": LR_TABLE}})
    path = found.model_copy(update={"tuned": [found.tuned[0], one]}).written(tmp_path)
    assert len(fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=path)) == 2
    momentum = {"train.lr": LR_TABLE, "train.momentum": [0.0, 0.9]}
    other = tune_of_one(tmp_path, {"method": "fedavg", "settings": {}, "search": momentum})
    found.model_copy(update={"tuned": [found.tuned[0], other]}).written(tmp_path / "other")
    with pytest.warns(FedshiftWarning, match="not tuned with the same budget") as warned:
        fedshift.grid(override(TINY, PROX), method=["fedprox", "fedavg"], tuned=tmp_path / "other" / path.name)
    said = str(warned[0].message)
    assert said.endswith(
        "fedprox with light held out 20 trials (tpe) of 4 rounds with 2 steps and 1 seed over train.lr: 0.001 to 0.3 "
        "(log); fedavg with light held out 20 trials (tpe) of 4 rounds with 2 steps and 1 seed over train.lr: 0.001 "
        "to 0.3 (log), train.momentum: 0.0 | 0.9."
    )


def test_an_entry_that_is_replaced_is_said(tmp_path: Path):
    """Whether another search found it, or fewer trials of the same; the same once more, or longer, says nothing."""
    found = entry(tmp_path, search={"method.mu": [0.1, 0.9]})
    path = found.written(tmp_path)
    assert found.written(tmp_path) == path
    other = entry(tmp_path, study="y", trials=8, search={"method.mu": {"low": 0.0, "high": 1.0, "log": False}})
    with pytest.warns(FedshiftWarning, match=r"The entry for fedprox with light held out in .* is replaced") as warned:
        assert other.written(tmp_path) == path
    assert str(warned[0].message).endswith(
        "there were 20 trials (tpe) of 4 rounds with 2 steps and 1 seed over method.mu: 0.1 | 0.9, now 8 trials (tpe) "
        "of 4 rounds with 2 steps and 1 seed over method.mu: 0 to 1."
    )
    assert Tuned.read(path).tuned == other.tuned
    entry(tmp_path, study="y", trials=9).written(tmp_path)
    with pytest.warns(FedshiftWarning, match="there were 9 trials"):
        entry(tmp_path, study="y", trials=8).written(tmp_path)


def test_plugins_are_in_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A method of one's own, whatever its text, is tuned beside those that come along."""
    monkeypatch.setattr(fedshift.METHODS, "_listed", {**fedshift.METHODS._listed})

    def path(name: str, *plugins: str, **more: Any) -> Path:
        (one,) = experiments(tmp_path, {"method.name": name, "plugins": [PLUGIN, *plugins], **more})
        found = tune_of_one(tmp_path, {"method": name, "settings": {}})
        return Tuned.of(one, "validation", ["train.lr"], [found]).written(tmp_path)

    plugin = tmp_path / "my_method.py"
    before = path("fedavg")
    for line in ("", "# changed"):
        plugin.write_text(MY_METHOD + line)
        assert path("my-own", str(plugin)) == path("fedavg", str(plugin)) == before
    assert [found.method for found in Tuned.read(before).tuned] == ["fedavg", "my-own"]


MY_METHOD = """
from dataclasses import dataclass

from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg


@METHODS.register("my-own")
@dataclass(frozen=True, kw_only=True)
class MyOwn(FedAvg):
    \"\"\"A method of one's own.\"\"\"
"""


def test_a_setting_that_is_best_without_a_value_is_not_in_the_file(tmp_path: Path):
    """The first trial is FTFA as it stands, whose ``finetune_lr`` is None; its settings make the same experiment."""
    asked = experiments(tmp_path, {"method.name": "ftfa", "train.rounds": 1})
    found = tune(asked, Plan(1), Progress())
    assert found.studies[0].trials[0].settings["method.finetune_lr"] is None
    assert "finetune_lr" not in found.tuned.tuned[0].settings
    assert [each.fingerprint for each in found.tuned.applied(asked)] == [each.fingerprint for each in asked]


def test_a_list_that_a_tuned_setting_makes_equal_is_an_error(tmp_path: Path):
    path = entry(tmp_path).written(tmp_path)
    with pytest.raises(FedshiftError, match="two of these runs are the same"):
        fedshift.grid(override(TINY, PROX | {"train.lr": [0.1, 0.3]}), tuned=path)


@pytest.mark.parametrize("text", ["", "x = 1", "format = 2", "not toml", "search"])
def test_a_file_that_is_none_is_an_error(tmp_path: Path, text: str):
    file = tmp_path / "tuned.toml"
    if text == "search":  # of which a part is gone
        whole = entry(tmp_path, search={"train.lr": LR_TABLE}).written(tmp_path).read_text()
        text = whole.replace("low = 0.001\n", "")
        assert text != whole
    file.write_text(text)
    with pytest.raises(FedshiftError, match="holds no tuned settings"):
        Tuned.read(file)
    with pytest.raises(FedshiftError, match="cannot be read"):
        Tuned.read(tmp_path / "none.toml")


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
    assert page.count("data:image/png;base64,") == 6
    assert "cdn" not in re.sub(r"base64,[^\"]*", "", page)
    compared = CliRunner().invoke(app, ["compare", *words[1:4], "--tuned", str(found.path)], catch_exceptions=False)
    assert compared.exit_code == 0, compared.output
    with pytest.raises(FedshiftError, match="nothing to search"):
        CliRunner().invoke(app, [*words[:2], "--set", "train.lr=0.1"], catch_exceptions=False)


def test_figures_are_pngs_of_the_study_and_equal_for_equal_trials(whole: tuning.Tuning):
    whole.report()
    (study,) = whole.studies
    names = {path.name for path in study.path.glob("*.png")}
    assert names == {"history.png", "slices.png"}  # a single setting has all the importance
    again = {picture.name: picture.png for picture in pictures(study, study.trials)}
    assert {name: (study.path / name).read_bytes() for name in names} == again
    assert all(png.startswith(b"\x89PNG") for png in again.values())


def test_every_trial_says_what_part_of_the_loss_each_term_made_up(whole: tuning.Tuning):
    """Here there is one term, and repeated trials have the runs of those that they repeat."""
    page = whole.report().read_text()
    (study,) = whole.studies
    assert "loss terms, in % of the loss" in page
    assert page.count("cross_entropy 100") == sum(bool(trial.rounds) for trial in study.trials)


def test_importance_knows_what_matters_without_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of two settings of which only the first changes the value."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    study = a_study(tmp_path, Plan(sampler="random", search={"train.momentum": "0..0.9"}))
    for _ in range(40):
        trial = study.ask()
        value = 1 - abs(math.log10(trial.settings["train.lr"]) + 1.5) / 2
        study.trials.append(trial.model_copy(update={"state": "complete", "value": value}))
    shares = shares_of(study, study.trials)
    assert list(shares) == ["train.lr", "train.momentum"]
    assert shares["train.lr"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FedshiftError, match=r"pip install 'fedshift\[tune\]'"):
        tune(experiments(tmp_path, REAL), Plan(2), Progress())


def test_optuna_is_silent_and_left_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = a_study(tmp_path)
        for _ in range(6):
            told(study, [0.5])
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""


def test_a_file_with_ranges_is_run_as_if_it_had_none(tmp_path: Path):
    assert fedshift.grid(TINY | {"search": {"train.lr": [0.1, 0.2]}}) == fedshift.grid(TINY)


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
        if line.startswith(("Validation", "Budget", "Chosen", "  searched", "  method")):
            assert " ".join(words) in printed or line.startswith("  searched"), line
    assert "fedprox (75 held out): method.mu=" in printed
    assert " ".join(line.strip() for line in shown.splitlines() if "searched: method.mu" in line) in printed


def test_the_ranges_of_the_documentation_are_read(tmp_path: Path):
    import tomllib

    table = flat_ranges(tomllib.loads(block("search", "toml"))["search"])
    (study,) = studies(experiments(tmp_path, PROX), Plan(search=table))
    assert study.space.searched == {
        "method.mu": (0.01, 0.1, 1.0),
        "train.lr": Range(0.001, 0.1, log=True),
        "train.momentum": Range(0.0, 0.95),
    }
