"""fedshift validate, as a hospital uses it that never joined: its own labelled file under a model of three others."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import fedshift
from conftest import TINY
from fedshift.core.disclosure import WITHHELD
from fedshift.core.reliability import operating_points
from fedshift.core.uncertainty import auroc_bounds, share_bounds, wilson
from fedshift.reporting.validate import validated
from fedshift.reporting.validation import Validation
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.observed import TrainedSimulation
from fedshift.runs.released import Released, released
from fedshift.runs.run import Run
from fedshift.study.grid import expand, override
from fresh import ok
from refusal import refuses

HOSPITALS = ("berlin", "oslo", "rome")
METRICS = ["auroc", "class-sensitivity", "class-precision"]  # whose intervals need no resamples


def patients(number: int, rows: int, wards: int = 2) -> pd.DataFrame:
    """Patients of a hospital, of whom the old and those with a high marker are likelier ill."""
    random = np.random.default_rng(number)
    age, marker = random.normal(50 + 2 * number, 10, rows).round(2), random.normal(0, 1, rows).round(3)
    ill = random.random(rows) < 1 / (1 + np.exp(-(marker + (age - 55) / 10)))
    columns = {"age": age, "marker": np.where(np.arange(rows) % 5 == 0, np.nan, marker)}
    columns |= {"sex": np.array(["f", "m"])[random.integers(0, 2, rows)], "label": np.where(ill, "ill", "healthy")}
    return pd.DataFrame(columns).assign(ward=[f"ward {row % wards}" for row in range(rows)])


def carried_out(folder: Path, data: dict[str, Any], **changes: Any) -> Run:
    short = {
        "train.rounds": 8,
        "train.steps": 10,
        "train.lr": 0.3,
        "train.batch": 16,
        "evaluate.every": 8,
        "protocol": {"name": "in-domain"},
    }
    document = override({**TINY, "data": data}, {**short, "run.out": str(folder / "runs"), **changes})
    (experiment,) = expand(document)
    return runner.start(experiment, Progress())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of three hospitals, and that of one more."""
    folder = tmp_path_factory.mktemp("hospitals")
    (folder / "three").mkdir()
    for number, name in enumerate(HOSPITALS):
        patients(number, 80).to_csv(folder / "three" / f"{name}.csv", index=False)
    patients(9, 150).to_csv(folder / "paris.csv", index=False)
    return folder


def table_of(place: Path, **settings: Any) -> dict[str, Any]:
    columns = {"columns": ["age", "marker", "sex"], "statistics": "pooled"}
    return {"name": "table", "path": str(place / "three"), **columns, **settings}


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    return carried_out(place, table_of(place))


def validate(run: Run, data: Path, **requested: Any) -> Validation:
    return fedshift.validate(run.path, data, **{"metrics": METRICS, **requested})


def changed(place: Path, tmp_path: Path, **columns: Any) -> Path:
    """The file of the hospital that never joined, with other columns."""
    pd.read_csv(place / "paris.csv").assign(**columns).to_csv(tmp_path / "changed.csv", index=False)
    return tmp_path / "changed.csv"


def values(scores: Any) -> dict[str, float]:
    return {score.name: score.value for score in scores if score.value is not None}


# Numbers --------------------------------------------------------------------------------------------------


def test_scores_and_intervals_are_those_of_the_predictions(run: Run, place: Path):
    found = validate(run, place / "paris.csv", metrics=["balanced-accuracy", *METRICS])
    predictions = fedshift.predict(run.path, [place / "paris.csv"])
    y, p = pd.read_csv(place / "paris.csv")["label"].to_numpy() == "ill", predictions.probabilities[:, 1].numpy()
    ill, group = p > 0.5, np.arange(150)
    published = values(found.overall.scores)
    assert published["accuracy"] == pytest.approx((ill == y).mean())
    assert published["auroc"] == pytest.approx(roc_auc_score(y, p))
    assert published["balanced-accuracy"] == pytest.approx(balanced_accuracy_score(y, ill))
    assert published["precision of ill"] == pytest.approx(y[ill].mean())
    by_name = {score.name: score for score in found.overall.scores}
    ends = {name: (score.low, score.high) for name, score in by_name.items()}
    assert ends["accuracy"] == wilson((ill == y).mean(), 150)
    assert ends["sensitivity of ill"] == share_bounds(ill[y], group[y])
    assert ends["auroc"] == auroc_bounds(y, p, group)
    assert by_name["precision of healthy"].n == (~ill).sum()
    assert found.overall.support == {"healthy": (~y).sum(), "ill": y.sum()}
    assert sum(each.n for each in found.reliability) == 150


def test_thresholds_are_those_of_the_runs_validation_samples(run: Run, place: Path, tmp_path: Path):
    observed = [*TrainedSimulation(run).observe("validation")]
    p = torch.cat([each.log_probabilities for each in observed])[:, 1].double().exp().numpy()
    positive = torch.cat([each.y for each in observed]).numpy() == 1
    points = {point.rule: point.threshold for point in operating_points(p, positive)}
    found = validate(run, place / "paris.csv", min_count=1).points
    assert {point.rule: point.threshold for point in found} == points
    labels = pd.read_csv(place / "paris.csv")["label"].map({"ill": "healthy", "healthy": "ill"})
    others = validate(run, changed(place, tmp_path, label=labels), min_count=1).points
    assert {point.rule: point.threshold for point in others} == points  # whatever the labels here are
    (youden,) = (values(point.scores) for point in found if point.rule == "Youden")
    y = labels.to_numpy() == "healthy"  # who is ill
    chosen = fedshift.predict(run.path, [place / "paris.csv"]).probabilities[:, 1].numpy() > points["Youden"]
    assert youden["sensitivity"] == pytest.approx(chosen[y].mean())
    assert youden["specificity"] == pytest.approx((~chosen)[~y].mean())
    assert youden["positive predictive value"] == pytest.approx(y[chosen].mean())


def test_drift_is_that_of_training_rows(run: Run, place: Path, tmp_path: Path):
    """Means, standard deviations and missing cells of what the three trained on; here every fifth marker is missing."""
    rows = TrainedSimulation(run).simulation.federated.clients
    trained = torch.cat([client.train.x for client in rows]).numpy()
    own = pd.read_csv(place / "paris.csv")
    age, marker, sex = validate(run, place / "paris.csv").drift
    assert age.difference == pytest.approx((own.age.mean() - trained[:, 0].mean()) / trained[:, 0].std(), abs=6e-4)
    assert age.spread == pytest.approx(own.age.std(ddof=0) / trained[:, 0].std(), abs=6e-4)
    assert (age.missing, age.trained_missing, age.remark) == ("< 10", 0.0, "differs")  # 18 years in four hospitals
    assert (marker.missing, marker.trained_missing) == (0.2, round(float(np.isnan(trained[:, 1]).mean()), 3))
    assert sex.difference == pytest.approx(abs((own.sex == "m").mean() - trained[:, 2].mean()), abs=6e-4)
    months = validate(run, changed(place, tmp_path, age=own.age * 12)).drift[0]
    assert months.remark == "another unit?"


def test_where_the_runs_data_are_gone_the_models_own_statistics_are_there(run: Run, place: Path, tmp_path: Path):
    folder = shutil.copytree(place / "runs", tmp_path / "runs") / run.path.relative_to(place / "runs")
    model = replace(released(folder, None, "last", False), reread=None)
    before, after = validate(run, place / "paris.csv"), validated(model, str(place / "paris.csv"), metrics=METRICS)
    assert after.drift[0].difference == before.drift[0].difference  # no age is missing, so nothing was filled in
    assert (after.drift[0].trained_missing, after.drift[2].difference) == (None, None)
    assert after.overall == before.overall
    assert after.points == ()
    assert any("There is no threshold" in note for note in after.notes())
    shutil.move(place / "three", place / "away")
    try:
        assert any("cannot be read here" in note for note in validate(run, place / "paris.csv").notes())
    finally:
        shutil.move(place / "away", place / "three")


def test_a_paired_comparison_is_of_the_same_samples(run: Run, place: Path):
    other = carried_out(place, table_of(place), **{"train.rounds": 1, "seed": 3})
    found = {
        score.name: score for score in validate(run, place / "paris.csv", against=other.path, min_count=1).differences
    }
    y = pd.read_csv(place / "paris.csv")["label"].to_numpy() == "ill"
    one, two = (fedshift.predict(each.path, [place / "paris.csv"]).probabilities[:, 1].numpy() for each in (run, other))
    right = [(p > 0.5) == y for p in (one, two)]
    accuracy = found["accuracy"]
    assert accuracy.value == pytest.approx(right[0].mean() - right[1].mean())
    each = right[0].astype(float) - right[1].astype(float)
    assert accuracy.low == pytest.approx(each.mean() - 1.959964 * each.std() / np.sqrt(150), abs=1e-6)
    assert found["auroc"].value == pytest.approx(roc_auc_score(y, one) - roc_auc_score(y, two))
    itself = {score.name: score for score in validate(run, place / "paris.csv", against=run.path).differences}
    assert (itself["accuracy"].value, itself["p of McNemar's test"].value) == (0, 1)


def test_a_clients_model_has_its_own_thresholds_and_statistics(place: Path):
    own = carried_out(place, table_of(place, statistics="site"), **{"method": {"name": "fedper"}})
    found = {name: fedshift.validate(own.path, place / "paris.csv", client=name, metrics=METRICS) for name in HOSPITALS}
    assert len({each.drift[0].difference for each in found.values()}) == 3
    assert len({each.points[0].threshold for each in found.values()}) > 1
    assert found["oslo"].classes[0].trained != found["rome"].classes[0].trained
    with refuses("There is no global model", "client="):
        validate(own, place / "paris.csv")


def test_of_three_classes_the_diagram_is_of_the_predicted_class(tmp_path: Path):
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    arrays = {"x": (random.normal(size=(240, 4)) + y[:, None]).astype("float32"), "y": y}
    arrays |= {"domain": np.repeat(["a", "b"], 120), "classes": np.array(["x", "y", "z"])}
    np.savez(tmp_path / "train.npz", **arrays)
    own = carried_out(tmp_path, {"name": "arrays", "path": str(tmp_path / "train.npz")}, **{"train.lr": 0.1})
    found = validate(own, tmp_path / "train.npz", by="domain")
    p = own.model()(torch.from_numpy(arrays["x"])).exp()
    right = (p.argmax(dim=1) == torch.from_numpy(y)).double()
    assert found.points == found.calibration == ()
    assert sum(each.n * each.observed for each in found.reliability) == pytest.approx(float(right.sum()))
    mean = sum(each.n * each.predicted for each in found.reliability) / 240
    assert mean == pytest.approx(float(p.amax(dim=1).detach().mean()), abs=1e-6)
    assert [each.n for each in found.subgroups] == [120, 120]


def test_drift_tells_of_no_few_cells(run: Run, place: Path, tmp_path: Path):
    few = np.arange(150) < 5
    marker = pd.read_csv(place / "paris.csv").marker
    rare = {"sex": np.where(few, "f", "m"), "marker": np.where(few, 1.0, 0.0), "age": np.where(few, np.nan, 50.0)}
    age, marked, sex = validate(run, changed(place, tmp_path, **rare)).drift
    assert (sex.difference, marked.difference, marked.spread) == (None, None, None)
    assert (age.missing, age.spread) == ("< 10", 0.0)
    assert [each.remark for each in (age, marked, sex)] == ["another unit?", "withheld", "withheld"]
    age, *_ = validate(run, changed(place, tmp_path, age=np.where(few, 50.0, np.nan), marker=marker)).drift
    assert (age.missing, age.difference, age.remark) == ("all but < 10", None, "hardly there")


# Subgroups ------------------------------------------------------------------------------------------------


def test_subgroups_are_by_a_column_of_inputs_or_of_the_file_or_by_domain(run: Run, place: Path, tmp_path: Path):
    own = pd.read_csv(place / "paris.csv")
    by_sex = {each.name: each for each in validate(run, place / "paris.csv", by="sex").subgroups}
    assert {name: each.n for name, each in by_sex.items()} == own.sex.value_counts().to_dict()
    y, p = own.label == "ill", fedshift.predict(run.path, [place / "paris.csv"]).probabilities[:, 1].numpy()
    women = (own.sex == "f").to_numpy()
    assert values(by_sex["f"].scores)["auroc"] == pytest.approx(roc_auc_score(y[women], p[women]))
    assert [(each.name, each.n) for each in validate(run, place / "paris.csv", by="ward").subgroups] == [
        ("ward 0", 75),
        ("ward 1", 75),
    ]
    shutil.copytree(place / "three", tmp_path / "more")
    assert [each.name for each in validate(run, tmp_path / "more", by="domain").subgroups] == [*HOSPITALS]
    with refuses("--by age", "20 at most"):
        validate(run, place / "paris.csv", by="age")
    with refuses("'wards'", "ward"):
        validate(run, place / "paris.csv", by="wards")


def test_small_subgroups_have_no_name_and_no_size(run: Run, place: Path, tmp_path: Path):
    wards = ["north"] * 70 + ["south"] * 69 + ["east"] * 8 + ["west"] * 3
    found = validate(run, changed(place, tmp_path, ward=wards), by="ward")
    assert [(each.name, each.n) for each in found.subgroups] == [("north", 70), ("south", 69), ("others", 11)]
    assert "east" not in json.dumps(found.document())
    alone = validate(run, changed(place, tmp_path, ward=["north"] * 145 + ["west"] * 5), by="ward")
    assert alone.subgroups == ()
    assert any("no subgroups" in note for note in alone.notes())


# What is published ---------------------------------------------------------------------------------------------


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [
            number for each in (value.values() if isinstance(value, dict) else value) for number in numbers_in(each)
        ]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_files_hold_no_count_below_the_floor_no_sample_and_no_file(run: Run, place: Path, tmp_path: Path):
    own = pd.read_csv(place / "paris.csv")
    ill = own.label.to_numpy() == "ill"
    few = own[~ill | (np.cumsum(ill) <= 4)]
    few.to_csv(tmp_path / "secret-name.csv", index=False)
    found = validate(run, tmp_path / "secret-name.csv", by="sex", against=run.path)
    assert found.overall.support == {"healthy": WITHHELD, "ill": WITHHELD}
    assert [each.scores for each in found.subgroups] == [(), ()]
    assert values(found.overall.scores).keys() == {"accuracy"}
    assert (found.reliability, found.calibration) == ((), ())
    assert all(point.threshold is None and not point.scores for point in found.points)
    written = found.write(tmp_path / "to")
    assert {path.name for path in written} == {"validation.json", "validation.md", "validation.html"}
    texts = [path.read_text() for path in written]
    assert not any("secret-name" in text or str(tmp_path) in text for text in texts)
    published = set(numbers_in(json.loads(texts[0])))
    assert published.isdisjoint({4, len(few) - 4})
    p = fedshift.predict(run.path, [tmp_path / "secret-name.csv"]).probabilities.flatten().tolist()
    assert published.isdisjoint({*p, *few.age.tolist(), *few.marker.dropna().tolist()})


def test_the_files_of_a_large_hospital(run: Run, place: Path, tmp_path: Path):
    found = validate(run, place / "paris.csv", by="sex")
    written = {path.name: path for path in found.write(tmp_path / "to")}
    assert written.keys() == {f"validation.{kind}" for kind in ("json", "md", "html")} | {
        "reliability.svg",
        "reliability.png",
    }
    document = json.loads(written["validation.json"].read_text())
    assert document == json.loads(json.dumps(found.document()))
    assert "rows" not in document
    assert "reading" not in document
    assert all(number == float(f"{number:.4g}") for number in numbers_in(document))
    page = written["validation.html"].read_text()
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org", "")
    again = validate(run, place / "paris.csv", by="sex")
    assert again.document() == found.document()
    p = fedshift.predict(run.path, [place / "paris.csv"]).probabilities.flatten().tolist()
    assert set(numbers_in(document)).isdisjoint(p)


def test_a_cell_is_counted_by_patients(tmp_path: Path):
    """Slices of nine patients are fewer than ten, however many there are."""
    random = np.random.default_rng(0)
    arrays = {"x": random.normal(size=(180, 4)).astype("float32"), "y": np.arange(180) // 10 % 2}
    arrays |= {"domain": np.repeat(["a", "b"], 90), "classes": np.array(["well", "ill"])}
    np.savez(tmp_path / "train.npz", **arrays)
    own = carried_out(tmp_path, {"name": "arrays", "path": str(tmp_path / "train.npz")})
    np.savez(tmp_path / "new.npz", **{**arrays, "group": np.arange(180) // 10})
    found = validate(own, tmp_path / "new.npz")
    assert found.overall.support == {"well": WITHHELD, "ill": WITHHELD}  # of nine patients each
    assert validate(own, tmp_path / "new.npz", min_count=9).overall.support == {"well": 90, "ill": 90}
    accuracy = found.overall.scores[0]
    single = validate(own, tmp_path / "train.npz").overall.scores[0]
    assert accuracy.value == single.value
    assert accuracy.n == 180
    with refuses("groups of samples", "--min-count"):
        validate(own, tmp_path / "new.npz", min_count=19)


# What is wrong with a hospital's file -----------------------------------------------------------------------


def test_a_file_that_is_none_of_the_models(run: Run, place: Path, tmp_path: Path):
    own = pd.read_csv(place / "paris.csv")
    with refuses("'sick'", "'unwell'", "row 3", "healthy, ill", "data.label"):
        words = own.label.where(own.index != 3, "sick").where(own.index != 5, "unwell")
        validate(run, changed(place, tmp_path, label=words))
    own.drop(columns="marker").to_csv(tmp_path / "less.csv", index=False)
    with refuses("'marker'", "less.csv"):
        validate(run, tmp_path / "less.csv")
    with refuses("'label'", "data.label"):
        own.rename(columns={"label": "diagnosis"}).to_csv(tmp_path / "named.csv", index=False)
        validate(run, tmp_path / "named.csv")
    assert validate(run, tmp_path / "named.csv", settings={"data.label": "diagnosis"}).overall.n == 150
    with refuses("'age'", "'old'"):
        validate(run, changed(place, tmp_path, age=own.age.astype(object).where(own.index != 0, "old")))
    with refuses("'age' contains categories", "the model takes numbers"):
        validate(run, changed(place, tmp_path, age="old"))
    own[:9].to_csv(tmp_path / "few.csv", index=False)
    with refuses("few.csv", "< 10 samples", "--min-count"):
        validate(run, tmp_path / "few.csv")
    with refuses("gone.csv"):
        validate(run, tmp_path / "gone.csv")
    with refuses("metric 'auc'", "auroc"):
        validate(run, place / "paris.csv", metrics=["auc"])


def test_the_file_of_one_site_need_not_say_which_it_is(place: Path, tmp_path: Path):
    files = [pd.read_csv(place / "three" / f"{name}.csv").assign(hospital=name) for name in HOSPITALS]
    pd.concat(files).to_csv(tmp_path / "all.csv", index=False)
    data = table_of(place, path=str(tmp_path / "all.csv"), domain="hospital")
    own = carried_out(tmp_path, data)
    assert validate(own, place / "paris.csv").overall.n == 150
    with refuses("'hospital'", "paris.csv"):
        validate(own, place / "paris.csv", by="domain")
    by_hospital = validate(own, tmp_path / "all.csv", by="hospital").subgroups
    assert [(each.name, each.n) for each in by_hospital] == [(name, 80) for name in HOSPITALS]


def test_numbers_for_categories_and_categories_that_are_new(run: Run, place: Path, tmp_path: Path):
    """Text columns of the model are read as such; a category that it does not know has a separate subgroup."""
    found = validate(run, changed(place, tmp_path, sex=np.arange(150) % 2), by="sex")
    assert [(each.name, each.n) for each in found.subgroups] == []
    half = ["f"] * 75 + ["x"] * 75
    assert [each.name for each in validate(run, changed(place, tmp_path, sex=half), by="sex").subgroups] == [
        "(unknown)",
        "f",
    ]


def test_a_data_set_without_a_path_cannot_read_another(tmp_path: Path, place: Path):
    own = carried_out(tmp_path, {"name": "tiny"}, **{"train.rounds": 1})
    with refuses("'tiny' does not read a single file", "run.model()"):
        validate(own, place / "paris.csv")


def test_two_models_of_other_classes_are_not_compared(run: Run, place: Path):
    model = released(run.path, None, "last", False)
    with refuses("ill, healthy", "the same classes"):
        validated(model, str(place / "paris.csv"), against=replace(model, classes=("ill", "healthy")))


def test_any_callable_can_be_scored(run: Run, place: Path):
    """Another folder needs only to declare what it predicts and what a sample is."""
    model = released(run.path, None, "last", False)

    def rule(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros(len(x)), (x[:, 0] - 55) / 10], dim=1).log_softmax(dim=1)

    made = Released("by age", rule, model.dataset, model.classes, model.shape, model.columns, model.inputs)
    found = validated(made, str(place / "paris.csv"), metrics=METRICS)
    own = pd.read_csv(place / "paris.csv")
    assert values(found.overall.scores)["auroc"] == pytest.approx(roc_auc_score(own.label == "ill", own.age))


# The command ----------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(run: Run, place: Path, tmp_path: Path):
    arguments = [str(run.path), str(place / "paris.csv"), "--by", "sex", "--metric", "auroc", "--min-count", "12"]
    files = ["--to", str(tmp_path / "to"), "--rows", str(tmp_path / "stays.csv"), "--client", "oslo"]
    output = ok("validate", *arguments, *files)
    for published in ("on 150 samples", "95 % interval", "By sex", "Reliability", "Youden", "must stay at the site"):
        assert published in output
    assert json.loads((tmp_path / "to" / "validation.json").read_text())["floor"] == 12
    rows = list(csv.DictReader(StringIO((tmp_path / "stays.csv").read_text())))
    assert len(rows) == 150
    assert rows[3]["sample"] == f"row 3 of '{place / 'paris.csv'}'"
    assert float(rows[3]["p_healthy"]) + float(rows[3]["p_ill"]) == pytest.approx(1)
    assert (tmp_path / "stays.csv").stat().st_mode & 0o077 == 0
