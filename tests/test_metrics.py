"""Metrics are scikit-learn's, the same however models are scored, and one of them selects and is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import CNN_WITH_BN, Make, a_folder, a_record, a_row, models_of, scored, simulate
from federated import Local, as_sent, members, reply_of, set_site
from fedshift.core.messages import Down, Order
from fedshift.core.metrics import Metric, mean_of, measured, names
from fedshift.core.training import Evaluate
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.journal import Scoring
from fedshift.deployment.leaving import what_leaves
from fedshift.deployment.wire import Done, SiteScore
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.engines.workers import Workers
from fedshift.reporting.comparison import Comparison
from fedshift.reporting.run_status import scores_text
from fedshift.runs.events import Progress
from fedshift.runs.selection import by_environment, mean_score, summary
from fedshift.study.search import Budget
from fedshift.study.tune import plan_studies
from refusal import refuses

EVERY = (
    "balanced-accuracy",
    "macro-f1",
    "auroc",
    "average-precision",
    "sensitivity-at-specificity-0.8",
    "calibration-error-15",
    "class-sensitivity",
    "class-precision",
    "class-auroc",
)
TWO = ("healthy", "ill")


def of(p: Sequence[Sequence[float]], y: Sequence[int], declared: Sequence[str] = EVERY) -> dict[str, float | None]:
    """Metrics of probabilities (n, classes) for labels."""
    classes = [f"class {c}" for c in range(len(p[0]))]
    return measured(declared, classes, torch.tensor(p, dtype=torch.float64).log(), torch.tensor(y))


def of_two(second: Sequence[float], y: Sequence[int], declared: Sequence[str] = EVERY) -> dict[str, float | None]:
    """The same of two classes, by the probability of the second."""
    return measured(declared, TWO, torch.tensor([[1 - p, p] for p in second]).double().log(), torch.tensor(y))


# By hand ------------------------------------------------------------------------------------------


def test_two_classes_by_hand():
    """Labels 0, 0, 1, 1 with the probabilities 0.1, 0.45, 0.35, 0.8 of class 1, which is predicted for the last alone.

    - Sensitivities are 1 and 1/2, whose mean is 3/4; precisions 2/3 and 1.
    - F1 = 2PR / (P + R) is 4/5 and 2/3, whose mean is 11/15.
    - Of the four pairs of a sample of each class, three are in order: AUROC = 3/4.
    - From the top, class 1 is at places 1 and 3: average precision = (1/1 + 2/3) / 2 = 5/6.
    - No false positive is allowed by a specificity of 0.8, which leaves the sample at 0.8: sensitivity 1/2. With one of
      two allowed, the threshold 0.35 finds both.
    - Confidences are 0.9, 0.55 (right), 0.65 (wrong), 0.8; in quarters, those in (1/2, 3/4] have 1 right of 1.2 and
      those above 2 of 1.7: the error is (0.2 + 0.3) / 4 = 0.125.
    """
    at_half = "sensitivity-at-specificity-0.5"
    found = of_two([0.1, 0.45, 0.35, 0.8], [0, 0, 1, 1], [*EVERY, at_half, "calibration-error-4"])
    expected = {
        "balanced-accuracy": 3 / 4,
        "macro-f1": 11 / 15,
        "auroc": 3 / 4,
        "average-precision": 5 / 6,
        "sensitivity-at-specificity-0.8": 1 / 2,
        at_half: 1.0,
        "calibration-error-4": 0.125,
        "sensitivity of healthy": 1.0,
        "sensitivity of ill": 1 / 2,
        "precision of healthy": 2 / 3,
        "precision of ill": 1.0,
        "auroc of healthy": 3 / 4,
        "auroc of ill": 3 / 4,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_an_environment_of_one_class_lacks_what_needs_two():
    """All are class 0 of three, and one of them is taken for class 1; nobody is taken for class 2."""
    found = of([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1]], [0, 0])
    undefined = {name for name, value in found.items() if value is None}
    assert undefined == {
        "auroc",
        "sensitivity-at-specificity-0.8",
        *(f"auroc of class {c}" for c in range(3)),
        "sensitivity of class 1",
        "sensitivity of class 2",
        "precision of class 2",
    }
    assert found["balanced-accuracy"] == 1 / 2
    assert found["average-precision"] == 1.0
    assert found["precision of class 1"] == 0.0
    assert all(Metric(name).lacks for name in undefined)


def test_a_specificity_is_reached_exactly():
    """9 of 10 negatives below a threshold are a specificity of 0.9, whatever 1 - 0.9 is in floating point."""
    found = of_two([*[0.1] * 9, 0.7, 0.6], [*[0] * 10, 1], ["sensitivity-at-specificity-0.9"])
    assert found == {"sensitivity-at-specificity-0.9": 1.0}


# Equal to scikit-learn's, and to plain loops ------------------------------------------------------


@st.composite
def predictions(draw: Any) -> tuple[Tensor, Tensor]:
    """Probabilities with ties, and labels of which some classes may be absent."""
    classes, n = draw(st.integers(2, 4)), draw(st.integers(1, 30))
    parts = draw(st.lists(st.lists(st.integers(1, 4), min_size=classes, max_size=classes), min_size=n, max_size=n))
    p = torch.tensor(parts, dtype=torch.float64)
    y = draw(st.lists(st.integers(0, draw(st.integers(0, classes - 1))), min_size=n, max_size=n))
    return p / p.sum(dim=1, keepdim=True), torch.tensor(y)


def loop_calibration(p: Any, y: Any, bins: int) -> float:
    """The expected calibration error bin by bin."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    edges, error = np.linspace(0, 1, bins + 1), 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return float(error)


def loop_sensitivity(score: Any, own: Any, specificity: float) -> float:
    """The best sensitivity of every threshold that has the specificity."""
    thresholds = [*np.unique(score), np.inf]
    kept = [t for t in thresholds if (score[~own] < t).mean() >= specificity - 1e-12]
    return max(float((score[own] >= t).mean()) for t in kept)


@settings(max_examples=60)
@given(predictions())
def test_metrics_equal_scikit_learns_and_plain_loops(case: tuple[Tensor, Tensor]):
    log_p, y = case[0].log(), case[1].numpy()
    p, classes = log_p.exp().numpy(), range(case[0].shape[1])
    found = measured(EVERY, [str(c) for c in classes], log_p, case[1])
    predicted = log_p.argmax(dim=1).numpy()
    one = {"labels": [*classes], "average": None, "zero_division": np.nan}
    sensitivity, precision = (score(y, predicted, **one) for score in (sk.recall_score, sk.precision_score))
    both = [0 < (y == c).sum() < len(y) for c in classes]
    at = [loop_sensitivity(p[:, c], y == c, 0.8) if both[c] else math.nan for c in classes]
    assert found["calibration-error-15"] == pytest.approx(loop_calibration(p, y, 15))
    assert [found[f"sensitivity of {c}"] is None for c in classes] == np.isnan(sensitivity).tolist()
    assert [found[f"precision of {c}"] is None for c in classes] == np.isnan(precision).tolist()
    assert found["balanced-accuracy"] == pytest.approx(np.nanmean(sensitivity))
    there = at[1:] if len(classes) == 2 else [each for each in at if not math.isnan(each)]
    if there and not math.isnan(there[0]):
        assert found["sensitivity-at-specificity-0.8"] == pytest.approx(np.mean(there))
    if all((y == c).any() for c in classes):  # where scikit-learn has the mean itself
        whole = p[:, 1] if len(classes) == 2 else p
        assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, whole, multi_class="ovr"))


def test_several_models_are_averaged_over_those_that_define_a_metric():
    means, undefined = mean_of([{"precision of a": 0.5, "auroc": 0.5}, {"precision of a": None, "auroc": 0.7}])
    assert means == {"precision of a": 0.5, "auroc": pytest.approx(0.6)}
    assert undefined == {"precision of a": "the class is never predicted, of 1 of 2 models"}
    nowhere = mean_of([{"auroc": None}, {"auroc": None}])
    assert nowhere == ({"auroc": None}, {"auroc": "too few samples of the class, or of others"})


# Declared once ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": ["aurok"]}, "Unknown metric 'aurok'. Did you mean 'auroc'?"),
        ({"metrics": ["sensitivity-at-specificity-1.5"]}, "between 0 and 1"),
        ({"select": "auroc"}, "set evaluate.metrics = ['auroc']"),
        ({"metrics": ["class-auroc"], "select": "class-auroc"}, "as in 'auroc of CLASS'"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_an_error_with_its_fix(changes: dict[str, Any], said: str):
    with refuses(said):
        Evaluate(**changes)


def test_the_class_that_selects_must_be_there(make: Make):
    with refuses("evaluate.select", "'class 7'", "class 0"):
        simulate(make({"evaluate.metrics": ["class-auroc"], "evaluate.select": "auroc of class 7"}), 0)


# Of every environment, the same however models are scored -----------------------------------------

MEASURED = {"evaluate.metrics": list(EVERY), "train.precision": "float64"}


def record_of(changes: dict[str, Any], make: Make, engine: Any = None) -> dict[str, Any]:
    """The last record of a run by the sequential engine, scored by another."""
    simulation = simulate(make(changes))
    return simulation.record(simulation.coordinator.schedule[-1], engine or Sequential(Kernels()))


@pytest.mark.parametrize("engine", [Vectorised, Workers])
def test_engines_measure_alike(make: Make, engine: Callable[..., Any]):
    """Personal models of clients of several sizes, whose scores the vectorised engine stacks."""
    own = {"data.per_class": 12, "data.fewer": 3, "protocol": {"name": "in-domain", "test": 0.3}}
    changes = MEASURED | own | CNN_WITH_BN | {"method": {"name": "fedsr", "bn": "local"}}
    made = engine(Kernels(), 2) if engine is Workers else engine(Kernels())
    try:
        one, other = record_of(changes, make), record_of(changes, make, made)
    finally:
        made.close()
    for row, theirs in zip(one["environments"], other["environments"], strict=True):
        assert row["metrics"] == pytest.approx(theirs["metrics"], abs=1e-9)
        assert row.get("undefined") == theirs.get("undefined")


def test_models_of_an_unseen_client_are_averaged(make: Make):
    """A held-out domain is scored with each client's model, and a metric is the mean over these."""
    simulation = simulate(make(MEASURED | {"method": {"name": "single"}}))
    when = simulation.coordinator.schedule[-1]
    record = simulation.record(when, Sequential(Kernels()))
    (row,) = [row for row in record["environments"] if row["role"] == "test"]
    (environment,) = [e for e in simulation.federated.environments if e.role == "test"]
    each = [scored(simulation, model, environment, when).metrics for model in models_of(simulation, environment)]
    assert row["models"] == len(each) == 2
    assert row["metrics"] == mean_of(each)[0]


# One of them selects ------------------------------------------------------------------------------


def selecting(name: str, pairs: Sequence[tuple[float | None, float | None]]) -> list[dict[str, Any]]:
    """Records that select by a metric, with its value on a test and a validation environment."""
    both = [{role: {name: value} for role, value in zip(("test", "validation"), pair, strict=True)} for pair in pairs]
    rows = [[a_row(role, role, 0.5, metrics=metrics) for role, metrics in each.items()] for each in both]
    return [a_record(n, each, select=name) for n, each in enumerate(rows, start=1)]


@pytest.mark.parametrize(("name", "best"), [("auroc", 2), ("calibration-error-15", 3)])
def test_rules_go_by_what_selects_and_know_which_way_is_better(name: str, best: int):
    """Of 0.5, 0.9, 0.1, 0.9 on validation, the largest first is in round 2, the smallest in round 3."""
    values = [0.5, 0.9, 0.1, 0.9]
    chosen = summary(selecting(name, [(v / 2, v) for v in values]))
    assert [chosen[rule]["position"] for rule in ("last", "source_validation", "target_best")] == [4, best, best]
    assert chosen["source_validation"]["validation"] == values[best - 1]
    assert chosen["source_validation"]["test"] == values[best - 1] / 2


def test_a_round_without_the_metric_is_not_selected():
    found = summary(selecting("auroc", [(0.5, v) for v in (None, 0.2, None)]))
    assert found["source_validation"]["position"] == 2
    assert found["last"]["validation"] is None
    assert summary(selecting("auroc", [(0.5, None)] * 2))["source_validation"]["position"] == 2


def test_means_leave_out_where_a_metric_is_undefined():
    """Environment a has two clients, of which one defines it; b has none that does."""
    rows = [
        a_row("a", "test", 0.1, metrics={"auroc": 0.6}),
        a_row("a", "test", 0.3, metrics={"auroc": None}),
        a_row("b", "test", 0.5, metrics={"auroc": None}),
        a_row("v", "validation", 0.5, metrics={"auroc": 1.0}),
    ]
    record = a_record(1, rows, select="auroc")
    assert by_environment(record, "test") == {"a": 0.6}
    assert mean_score(record, "test") == 0.6
    assert mean_score(record, "test", "accuracy") == pytest.approx(0.35)
    assert scores_text(record).endswith("a test 60.0  b test –  v validation 100.0")


def test_tables_show_what_selects_first_and_say_what_is_left_out(make: Make, tmp_path: Path):
    """Two made-up runs, whose rows select by the calibration error; b has no AUROC."""
    found = []
    for method, error in (("fedavg", 0.3), ("fedprox", 0.1)):
        changes = {"evaluate.metrics": ["auroc", "calibration-error-15"], "evaluate.select": "calibration-error-15"}
        values = {"a": (0.9, error), "b": (None, error / 2), "v": (0.8, error)}
        rows = [
            a_row(name, "validation" if name == "v" else "test", 0.5, metrics={"auroc": a, "calibration-error-15": e})
            | ({"undefined": {"auroc": "too few samples of the class, or of others"}} if a is None else {})
            for name, (a, e) in values.items()
        ]
        record = a_record(1, rows, select="calibration-error-15")
        found.append(a_folder(tmp_path / method, make({"method": {"name": method}, **changes}), [record]))
    results = Comparison.read(found)
    headline, *_, every = results.tables()
    assert headline.title.startswith("Calibration error (15 bins) in % (smaller is better), last round")
    worst, mean = (headline.columns.index(f"{results.label('test')} {which}") for which in ("worst", "mean"))
    assert [row[worst] for row in headline.rows] == ["30.0", "10.0"]
    assert [row[mean] for row in headline.rows] == ["22.5", "7.5"]
    assert every.columns == ["method", "calibration error (15 bins) (smaller is better)", "accuracy", "AUROC"]
    assert every.rows == [["fedavg", "22.5", "50.0", "90.0"], ["fedprox", "7.5", "50.0", "90.0"]]
    said = "Means exclude 1 of 2 test environments (b) where a metric is undefined"
    assert f"{said}: AUROC (too few samples of the class, or of others)." in results.notes()
    assert results.score("fedprox") == pytest.approx(0.075)
    assert (results.score("fedprox", "auroc"), results.accuracy("fedprox")) == (0.9, 0.5)
    with refuses("metric 'aurok'", "'auroc'"):
        results.score("fedprox", "aurok")


@pytest.mark.parametrize(("name", "best"), [("auroc", 1), ("calibration-error-15", 0)])
def test_a_search_goes_the_right_way(make: Make, name: str, best: int):
    experiment = make({"evaluate.metrics": [name], "evaluate.select": name})
    ((study,), _) = plan_studies([experiment], Budget(trials=3))
    study.read()
    for number, value in zip(study.ask(), (0.2, 0.8, 0.5), strict=True):
        study.tell(number, replace(study.trials[number], state="complete", value=value))
    assert study.best() == best
    assert study.optuna_study.best_value == study.trials[best].value


# Across sites -------------------------------------------------------------------------------------

ACROSS = {"protocol": {"name": "in-domain"}, "train.min_answers": 0.5, "evaluate.batch": 6}


def test_sites_send_metrics_and_the_records_are_a_simulations(make: Make, tmp_path: Path):
    """Also of classes that a site's part lacks; every number is on the page of what leaves."""
    changes = {**ACROSS, "evaluate.metrics": list(EVERY), "evaluate.select": "auroc of class 1", "data.per_class": 3}
    folder = members(tmp_path / "trial", make(changes))
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    assert as_sent(run.records) == as_sent(rehearse(folder, Progress()).records)
    rows = [row for record in run.records for row in record["environments"]]
    assert all(tuple(row["metrics"]) == names(EVERY, [f"class {c}" for c in range(3)]) for row in rows)
    assert any("undefined" in row for row in rows)
    agreement = Agreement.read(folder / "coordinator")
    page = what_leaves(agreement.setup(torch.device("cpu")), agreement.federation)
    for name in rows[0]["metrics"]:
        assert f"| `metrics.{name}` | float64 | [] | 8 | statistic | no |" in page


def test_a_site_that_refuses_statistics_sends_no_metrics(make: Make, tmp_path: Path):
    folder = members(tmp_path / "trial", make({**ACROSS, "evaluate.metrics": ["auroc"], "evaluate.select": "auroc"}))
    set_site(folder, "gray", refuse=["statistic"])
    link = Local(folder)
    run = coordinate(folder / "coordinator", link, Progress())
    assert all(row["environment"] != "gray" for record in run.records for row in record["environments"])
    assert {each["why"] for each in run.records[-1]["unscored"]} == {"its policy withholds scores"}
    replies = [reply_of(reply) for site, _, reply in link.messages if site == "gray"]
    told = [score for reply in replies if isinstance(reply, Done) for score in reply.scores]
    assert told
    assert all(not score.metrics and score.accuracy is None for score in told)


def test_a_score_with_other_metrics_is_not_recorded():
    done = Done("a", scores=(SiteScore("a", "test", "global", 1, 0.5, 1.0, 10, {"other": 0.5}),))
    arrived, order = reply_of(done.to_bytes()), Order("a run", "train", 1, "train", 0, Down())
    record = Scoring({"a": order}, {"a": {"a"}}, a_record(1, []), ("auroc",), 1).completed({"a": arrived})
    assert not record["environments"]
    assert [each["why"] for each in record["unscored"]] == ["it sent other metrics than were agreed on"]
