"""The classifier behaves as scikit-learn's do: their own checks, pipelines, cross-validation, and what is ours."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedshift
from fedshift.sklearn import FederatedClassifier
from refusal import refuses

QUICK: dict[str, Any] = {"run.device": "cpu", "run.threads": 1, "model.hidden": [32], "train.lr": 0.01}


def classifier(method: Any = "fedavg", **options: Any) -> FederatedClassifier:
    settings = QUICK | options.pop("settings", {})
    return FederatedClassifier(method, rounds=options.pop("rounds", 8), settings=settings, **options)


# No check is expected to fail.
@parametrize_with_checks([classifier("fedsr"), classifier("fedavg")])
def test_every_check_of_scikit_learn(estimator: Any, check: Any):
    check(estimator)


def blobs(seed: int = 0) -> tuple[Any, Any, Any]:
    x, y = make_blobs(120, centers=3, n_features=4, random_state=seed)
    return x, np.array(["a", "b", "c"])[y], np.array(["north", "south"])[np.arange(120) % 2]


def test_a_mapping_and_labels_of_sites_are_the_same():
    x, y, sites = blobs()
    by_site = {name: (x[sites == name], y[sites == name]) for name in ("north", "south")}
    order = np.argsort(sites, kind="stable")
    one, other = classifier().fit(by_site), classifier().fit(x[order], y[order], sites=sites[order])
    assert one.run_.records == other.run_.records
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))
    assert one.sites_.tolist() == ["north", "south"]
    assert one.score(x, y) > 0.9
    assert one.classes_.tolist() == ["a", "b", "c"]


def test_it_is_the_runs_model_and_all_is_trained_on(tmp_path: Path):
    x, y, sites = blobs()
    fitted = classifier(out=tmp_path / "kept", seed=3).fit(x, y, sites=sites)
    (run,) = fedshift.load(tmp_path / "kept").runs
    assert run.table["seed"] == 3
    assert sum(run.data_facts["samples"].values()) == 120
    with torch.no_grad():
        expected = run.model().double()(torch.tensor(x, dtype=torch.float32)).softmax(dim=1)
    np.testing.assert_allclose(fitted.predict_proba(x), expected, rtol=1e-12)
    assert any("No sample was left for a test" in note for note in run.notes)


def test_validation_chooses_the_round():
    x, y, sites = blobs(1)
    x = StandardScaler().fit_transform(x) + np.random.default_rng(0).normal(0, 1, x.shape)
    settings = {"evaluate.every": 1, "train.lr": 0.05, "train.batch": 8}
    fitted = classifier(validation_fraction=0.2, round="selected", settings=settings).fit(x, y, sites=sites)
    assert sum(fitted.run_.data_facts["samples"].values()) == 96  # a fifth of each class of each site is excluded
    assert fitted.run_.summary["source_validation"]["position"] < 8, "it would state nothing"
    with torch.no_grad():
        expected = fitted.run_.model(round="selected").double()(torch.tensor(x, dtype=torch.float32)).softmax(dim=1)
    np.testing.assert_allclose(fitted.predict_proba(x), expected, rtol=1e-12)


def test_methods_with_a_model_for_each_site():
    x, y, sites = blobs()
    fitted = classifier("fedrep").fit(x, y, sites=sites)
    found = fitted.predict_proba(x, sites=sites)
    for name in ("north", "south"):
        with torch.no_grad():
            own = fitted.run_.model(name).double()(torch.tensor(x[sites == name], dtype=torch.float32)).softmax(dim=1)
        np.testing.assert_allclose(found[sites == name], own, rtol=1e-12)
    assert classifier("fedrep").fit(x, y).score(x, y) > 0.9  # a single site's model serves all


def own_probabilities(fitted: FederatedClassifier, x: Any) -> dict[str, Any]:
    samples = torch.tensor(x, dtype=torch.float32)
    with torch.no_grad():
        return {name: fitted.run_.model(name).double()(samples).softmax(dim=1).numpy() for name in fitted.sites_}


def test_without_a_site_the_methods_rule_for_unseen_clients_predicts():
    """Of FedRep the mean of the clients' heads behind the shared encoder; of FedProto every client's whole model."""
    x, y, sites = blobs()
    fitted = classifier("fedrep").fit(x, y, sites=sites)
    models = [fitted.run_.model(name).double() for name in ("north", "south")]
    samples = torch.tensor(x, dtype=torch.float32)
    with torch.no_grad():
        heads = [model.get_submodule("head").state_dict() for model in models]
        mean = {name: (heads[0][name] + heads[1][name]) / 2 for name in heads[0]}
        models[0].get_submodule("head").load_state_dict(mean)
        expected = models[0](samples).softmax(dim=1)
    np.testing.assert_allclose(fitted.predict_proba(x), expected, rtol=1e-6)  # the mean is taken in float32
    assert np.array_equal(fitted.predict_proba(x, ["east"] * 120), fitted.predict_proba(x))
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict_proba(x), fitted.predict_proba(x))
    fitted = classifier("fedproto").fit(x, y, sites=sites)
    expected = np.mean([*own_probabilities(fitted, x).values()], axis=0)
    np.testing.assert_allclose(fitted.predict_proba(x), expected, rtol=1e-12)


def test_a_selected_round_keeps_no_model_for_others():
    """Ditto's unseen clients have the shared model, of which the selected round keeps nothing."""
    x, y, sites = blobs()
    fitted = classifier("ditto", validation_fraction=0.2, round="selected").fit(x, y, sites=sites)
    assert fitted.score(x, y, sites=sites) > 0.9
    with refuses("'east'", "north, south", 'round="last"'):
        fitted.predict(x[:1], sites=["east"])
    with refuses("sites=", "north, south"):
        fitted.predict(x)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_sites_are_routed_through_cross_validation(routing: None):
    """By hand: fit and score with the sites of each fold; without score's request scores are those without sites."""
    x, y, sites = blobs()
    y = np.where((sites == "north") & (y == "a"), "b", np.where((sites == "north") & (y == "b"), "a", y))  # own labels
    folds = StratifiedKFold(2)
    requested = classifier("fedrep").set_fit_request(sites=True).set_score_request(sites=True)
    found = cross_val_score(requested, x, y, cv=folds, params={"sites": sites})
    expected, without = list[float](), list[float]()
    for train, test in folds.split(x, y):
        fitted = classifier("fedrep").fit(x[train], y[train], sites=sites[train])
        expected.append(fitted.score(x[test], y[test], sites=sites[test]))
        without.append(fitted.score(x[test], y[test]))
    assert found.tolist() == expected
    assert min(expected) > 0.9 > max(without)
    requested = requested.set_score_request(sites=False)
    assert cross_val_score(requested, x, y, cv=folds, params={"sites": sites}).tolist() == without


def test_a_site_that_is_left_out_is_one_that_never_trained(routing: None):
    x, y, _ = blobs()
    requested = classifier("fedper").set_fit_request(sites=True).set_score_request(sites=True)
    names = np.resize(["north", "south", "east"], 120)
    found = cross_val_score(requested, x, y, cv=LeaveOneGroupOut(), params={"sites": names, "groups": names})
    assert found.shape == (3,)
    assert found.min() > 0.9


def test_class_weights_are_those_of_each_sites_training():
    """They are the run's: by class, 1 for one that is not named, and a class that is not there does not count."""
    x, y, sites = blobs()
    given = {"train.class_weights": [1.0, 5.0, 1.0]}
    one = classifier(class_weight={"b": 5, "z": 2}).fit(x, y, sites=sites)
    other = classifier(settings=given).fit(x, y, sites=sites)
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))
    assert not np.array_equal(one.predict_proba(x), classifier().fit(x, y, sites=sites).predict_proba(x))
    assert one.run_.table["train"]["class_weights"] == {"a": 1.0, "b": 5.0, "c": 1.0}
    balanced = classifier(class_weight="balanced").fit(x, y, sites=sites)
    assert balanced.run_.table["train"]["class_weights"] == "balanced"
    with pytest.raises(ValueError, match="class_weight and settings"):
        classifier(class_weight="balanced", settings=given).fit(x, y)


def test_pipelines_searches_and_clones():
    x, y, sites = blobs()
    pipeline = make_pipeline(StandardScaler(), classifier())
    assert pipeline.fit(x, y, federatedclassifier__sites=sites).score(x, y) > 0.9
    assert cross_val_score(pipeline, x, y, cv=2).min() > 0.8
    search = GridSearchCV(classifier(), {"method": ["fedavg", fedshift.FedProx(mu=0.1)], "seed": [1]}, cv=2)
    assert search.fit(x, y).best_score_ > 0.8
    assert clone(classifier(fedshift.FedProx(mu=0.5))).method.mu == 0.5


def test_samples_that_are_no_vectors():
    """Signals (N, channels, time), and images of bytes, whose type is kept."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    signals = draw.normal(y[:, None, None], 0.3, (60, 2, 6))
    assert classifier().fit(signals, y).score(signals, y) > 0.9
    images = np.clip(draw.normal(80 + 100 * y[:, None, None, None], 20, (60, 1, 5, 5)), 0, 255).astype(np.uint8)
    fitted = classifier().fit(images, y)
    assert fitted.score(images, y) > 0.9
    with pytest.raises(ValueError, match="fitted to uint8"):
        fitted.predict(images / 255)


TABLE = pd.DataFrame({"a": [0.0, 1.0], "b": [1.0, 0.0]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "contains no site"),
        (
            {"north": (np.zeros((2, 2)), [0, 1]), "south": (np.zeros((2, 3)), [0, 1])},
            r"'south' has samples of the shape, type and columns \(\(3,\).* the first site \(\(2,\)",
        ),
        ({"north": (np.zeros((2, 2)), [1, 1])}, "All 2 samples are of 1 class"),
        ({"north": (TABLE, [0, 1]), "south": (TABLE[["b", "a"]], [0, 1])}, r"'south' .*\['b', 'a'\]"),
    ],
)
def test_what_is_wrong_with_a_site_is_said(given: Any, message: str):
    with pytest.raises(ValueError, match=message):
        classifier().fit(given)


def test_masked_values_are_no_values():
    x, y = np.arange(8.0).reshape(4, 2), np.arange(4) % 2
    masked = np.ma.masked_greater(x, 6)
    for given in ((masked, y), ({"north": (masked, y)},), (x, np.ma.masked_equal(y, 1))):
        with pytest.raises(ValueError, match="masked values"):
            FederatedClassifier().fit(*given)


def test_it_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nor does a copy that was pickled, which predicts the same and has no run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    x, y, _ = blobs()
    with pytest.raises(NotFittedError):
        classifier().predict(x)
    fitted = classifier().fit(x, y)
    assert list((tmp_path / "temporary").iterdir())
    assert fitted.run_.records
    copy = pickle.loads(pickle.dumps(fitted))
    assert not hasattr(copy, "run_")
    assert np.array_equal(copy.predict_proba(x), fitted.predict_proba(x))
    classifier().fit(x, y).fit(x, y)
    del fitted
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


def test_a_row_is_predicted_alike_in_any_batch():
    """The mean of n products in float64 is off by n eps at most: some 1e-14 here, where float32 would have 1e-6."""
    x, y, sites = blobs()
    x = np.concatenate([x, 100 * x])  # scores far from zero, whose last digits weigh more
    fitted = classifier("fedbn", settings={"model.norm": "batch"}).fit(x[:120], y, sites=sites)
    where = np.resize(sites, len(x))
    together = fitted.predict_proba(x, where)
    alone = np.concatenate([fitted.predict_proba(x[[row]], where[[row]]) for row in range(0, len(x), 7)])
    np.testing.assert_allclose(together[::7], alone, rtol=0, atol=1e-12)
