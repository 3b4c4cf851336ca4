"""How certain the scores of a run are: intervals in its records, groups, rare classes, and paired differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import fedshift
from fedshift.core.uncertainty import auroc, auroc_bounds, share
from fedshift.runs.run import Run

METRICS = ["auroc", "balanced-accuracy", "class-sensitivity"]


def clinics(path: Path, slices: int = 1, ill: float = 0.4) -> str:
    """Two clinics with 60 patients each, and that many equal slices of every patient; Oslo has few who are ill."""
    random = np.random.default_rng(0)
    y = np.concatenate([random.random(60) < ill, np.arange(60) < 5]).astype(int)
    x = random.normal(size=(120, 4)).astype("float32")
    x[:, 0] += y
    domain = np.repeat(["Berlin", "Oslo"], 60)
    group = np.arange(120)
    arrays: dict[str, Any] = {"x": x, "y": y, "domain": domain, "group": group}
    np.savez(path, **{name: each.repeat(slices, axis=0) for name, each in arrays.items()}, classes=["well", "ill"])
    return str(path)


def runs(folder: Path, slices: int = 1, **settings: Any) -> dict[str, Run]:
    """A run of FedAvg, and one that trains alone, on the same split."""
    found = fedshift.compare(
        method=["fedavg", "single"],
        model="mlp",
        protocol="in-domain",
        rounds=2,
        out=str(folder),
        settings={
            "data": {"name": "arrays", "path": clinics(folder.with_suffix(".npz"), slices)},
            "protocol.test": 0.5,
            "evaluate.metrics": METRICS,
            "run": {"device": "cpu", "engine": "sequential", "threads": 1},
            **settings,
        },
    )
    return {row.label: row.runs[0] for row in found.rows()}


def scored(run: Run, environment: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = run.records[-1]["environments"]
    return next(row for row in rows if (row["environment"], row["role"]) == (environment, "test"))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return runs(tmp_path_factory.mktemp("honest") / "runs")


def test_records_have_the_intervals_of_accuracy_and_metrics(both: dict[str, Run]):
    """Wilson's for the samples of the environment, as scipy has it; a patient is a sample here."""
    row = scored(both["fedavg"], "Berlin")
    right = round(row["accuracy"] * row["n"])
    expected = binomtest(right, row["n"]).proportion_ci(method="wilson")
    assert row["intervals"]["accuracy"] == pytest.approx([expected.low, expected.high])
    low, high = row["intervals"]["auroc"]
    assert low < row["metrics"]["auroc"] < high
    assert set(row["intervals"]) == {"accuracy", "auroc", "sensitivity of well", "sensitivity of ill"}


def test_slices_of_a_patient_make_nothing_more_certain(tmp_path: Path):
    """Three equal slices of each patient: the interval is that of the patients, not of three times as many samples."""
    row = scored(runs(tmp_path / "runs", slices=3)["single"], "Berlin")
    patients = row["n"] // 3
    expected = binomtest(round(row["accuracy"] * patients), patients).proportion_ci(method="wilson")
    assert row["intervals"]["accuracy"] == pytest.approx([expected.low, expected.high])


def test_an_environment_with_too_few_of_a_class_enters_no_mean(both: dict[str, Run]):
    """Of Oslo's 30 test patients 2 or 3 are ill, fewer than the 5 that a metric of two classes needs."""
    row, berlin = scored(both["fedavg"], "Oslo"), scored(both["fedavg"], "Berlin")
    assert {name for name, value in row["metrics"].items() if value is None} == {
        "auroc",
        "balanced-accuracy",
        "sensitivity of ill",
    }
    assert row["undefined"]["auroc"] == "too few samples of the class, or of others"
    assert "auroc" not in row["intervals"]
    comparison = fedshift.load(both["fedavg"].path)
    (only,) = comparison.rows()
    mean = only.score("test", metric="auroc")
    assert mean is not None
    assert mean.mean == berlin["metrics"]["auroc"]
    assert "Means exclude 1 of 2 test environments (Oslo)" in str(comparison)


def test_a_comparison_says_how_many_samples_its_scores_rest_on(both: dict[str, Run]):
    """Of every environment, and of its rarest class: as the record and the labels have it."""
    comparison = fedshift.load(both["fedavg"].path.parent)
    counts = both["fedavg"].data_facts["scored_classes"]["test"]
    expected = ", ".join(f"{name} {scored(both['fedavg'], name)['n']} ({min(counts[name])})" for name in counts)
    assert f"Test samples (of the rarest class): {expected}." in comparison.notes()


def test_how_many_are_too_few_is_a_setting(tmp_path: Path):
    found = runs(tmp_path / "runs", **{"evaluate.min_support": 1})
    assert scored(found["fedavg"], "Oslo")["metrics"]["auroc"] is not None


def test_a_report_has_the_intervals_beside_those_over_seeds(both: dict[str, Run]):
    comparison = fedshift.load(both["fedavg"].path.parent)
    (table,) = [each for each in comparison.more_tables() if "within an environment" in each.title]
    low, high = scored(both["fedavg"], "Berlin")["intervals"]["accuracy"]
    berlin = next(row for row in table.rows if row[0] == "Berlin")
    assert berlin[table.columns.index("fedavg")] == f"{100 * low:.1f} to {100 * high:.1f}"


def test_a_plot_has_them_behind_its_marks(both: dict[str, Run]):
    (axis,) = fedshift.load(both["fedavg"].path.parent).plot(metric="accuracy").axes
    drawn = [segment[:, 1].tolist() for lines in axis.collections for segment in lines.get_segments()]
    expected = [100 * end for end in scored(both["fedavg"], "Berlin")["intervals"]["accuracy"]]
    assert any(ends == pytest.approx(expected) for ends in drawn)


def test_models_are_compared_on_the_same_samples(both: dict[str, Run]):
    """The table's difference and interval follow from what each model predicted for each sample."""
    found = fedshift.analyse("uncertainty", both["fedavg"].path.parent)
    by_label = {}
    for label, (one,) in found.rows.items():
        rows = [row for row in one.measured.rows if "sample" in row and row["environment"] == "Berlin"]
        by_label[label] = {key: np.array([row[key] for row in rows]) for key in ("right", "own", "p", "group")}
    ours, theirs = by_label["single"], by_label["fedavg"]
    own, group = ours["own"] == 1, ours["group"]
    assert np.array_equal(theirs["own"] == 1, own)
    accuracy = share(ours["right"] == 1) - share(theirs["right"] == 1)
    areas = [auroc(own, each["p"]) for each in (ours, theirs)]
    assert areas[0] is not None
    assert areas[1] is not None
    table = found.tables()[1]
    cells = {row[1]: row for row in table.rows if row[0] == "single: Berlin"}
    for name, expected in (("accuracy", accuracy), ("AUROC", areas[0] - areas[1])):
        low, high = expected.bounds(group, least=-1.0)
        assert cells[name][2:5] == [
            f"{len(own)}",
            f"{100 * expected.value:+.1f}",
            f"{100 * low:+.1f} to {100 * high:+.1f}",
        ]
    assert auroc_bounds(own, theirs["p"], group) == pytest.approx(
        scored(both["fedavg"], "Berlin")["intervals"]["auroc"]
    )
    assert "single: Oslo" not in {row[0] for row in table.rows if row[1] == "AUROC" and row[3]}
