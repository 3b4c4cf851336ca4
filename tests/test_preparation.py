"""Rows of tables: statistics of training rows alone, of each site or of all, equal to scikit-learn's, in every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedshift
from conftest import interrupt_after
from federated import Local, members, set_site
from fedshift.clients.preparation import UNSEEN, Column, Preparation
from fedshift.core.contract import Upload
from fedshift.core.preparation_part import COMMON, PREPARATION
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.inspection import inspect
from fedshift.deployment.leaving import leaving
from fedshift.deployment.site_data import SiteFolder
from fedshift.errors import AuditError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import runner, scheduling
from fedshift.runs.events import Progress
from fedshift.runs.simulation import Simulation, make_federated
from refusal import refuses

CLINICS = ("Berlin", "Oslo", "Rome")
EACH = 40
WAYS: dict[str, dict[str, Any]] = {
    "site": {"statistics": "site"},
    "pooled": {"statistics": "pooled", "indicate": ["marker"]},
    "combat": {"statistics": "combat", "covariates": ["dose", "sex"]},
    "some pooled": {"statistics": "site", "pool": ["marker", "region"], "indicate": ["region"]},
}


def table(seed: int = 0) -> pd.DataFrame:
    """120 rows of three clinics: a column near 1e9 that hardly differs, one with missing cells, and categories."""
    draw = np.random.default_rng(seed)
    count = EACH * len(CLINICS)
    clinic = np.repeat(CLINICS, EACH)
    frame = pd.DataFrame({"time": 1e9 + draw.normal(size=count)})
    frame["marker"] = draw.normal(size=count) * 100 + 50 * (clinic == "Oslo")
    frame["sex"] = draw.choice(["f", "m"], count)
    frame["region"] = draw.choice(["east", "north", "west"], count)
    frame["dose"] = draw.integers(0, 3, count).astype(float)
    frame["label"] = np.where(frame.marker + 60 * (frame.sex == "f") > 20, "ill", "well")
    frame.loc[draw.random(count) < 0.2, "marker"] = np.nan
    frame.loc[draw.random(count) < 0.2, "region"] = None
    frame["clinic"] = clinic
    return frame


def experiment(folder: Path, frame: pd.DataFrame, data: Mapping[str, Any] | None = None, **tables: Any) -> Experiment:
    """Three rounds on a frame, as CSV."""
    folder.mkdir(exist_ok=True, parents=True)
    frame.to_csv(folder / "clinics.csv", index=False)
    whole: dict[str, Any] = {
        "data": {"name": "table", "path": str(folder / "clinics.csv"), "domain": "clinic", **(data or {})},
        "partition": {"name": "domains"},
        "protocol": {"name": "in-domain", "test": 0.25, "validation": 0.25},
        "model": {"name": "mlp", "hidden": [8], "dim": 4},
        "method": {"name": "fedavg"},
        "train": {"rounds": 3, "steps": 3, "batch": 8, "lr": 0.01},
        "evaluate": {"every": 2, "batch": 16},
        "run": {"out": str(folder / "runs"), "engine": "sequential", "threads": 1, "audit": True},
    }
    return Experiment.from_table(whole | tables)


def carried_out(requested: Experiment) -> fedshift.Run:
    return runner.start(requested, Progress())


def training_rows(requested: Experiment) -> np.ndarray:
    return torch.cat([client.train.rows for client in make_federated(requested).clients]).numpy()


def sklearns(frame: pd.DataFrame, impute: str = "mean") -> Any:
    """Scikit-learn's own preparation, fitted on a frame."""
    numbers = make_pipeline(SimpleImputer(strategy=impute), StandardScaler())
    words = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    columns = [("numbers", numbers, ["time", "marker", "dose"]), ("words", words, ["sex", "region"])]
    return ColumnTransformer(columns).fit(frame)


# Statistics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("impute", ["mean", "median"])
def test_each_site_alone_equals_scikit_learn_on_its_training_rows(tmp_path: Path, impute: str):
    frame = table()
    requested = experiment(tmp_path, frame, {"statistics": "site", "impute": impute})
    simulation = Simulation(requested)
    for client in simulation.federated.clients:
        statistics = simulation.site.prepared_by(client.id, {}).of(PREPARATION)
        reference = sklearns(frame.iloc[client.train.rows.numpy()], impute)
        x = simulation.federated.inputs.fitted(statistics).evaluation(client.train.pool.x)
        expected = torch.tensor(reference.transform(frame), dtype=torch.float32)
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)
        assert statistics["rows"] == len(client.train)


def test_all_sites_together_equal_scikit_learn_on_all_training_rows(tmp_path: Path):
    frame = table()
    run = carried_out(experiment(tmp_path, frame, {"statistics": "pooled"}))
    federation = make_federated(run.experiment)
    statistics = {name: run.weights[f"{PREPARATION}.{name}"] for name in ("rows", "fill", "center", "scale")}
    reference = sklearns(frame.iloc[training_rows(run.experiment)])
    pool = federation.clients[0].train.pool.x
    x = federation.inputs.fitted(statistics).evaluation(pool)
    torch.testing.assert_close(x, torch.tensor(reference.transform(frame), dtype=torch.float32), rtol=1e-6, atol=1e-6)
    scaler = reference.named_transformers_["numbers"][1]
    assert statistics["center"].dtype == torch.float64
    assert statistics["center"].tolist() == pytest.approx(scaler.mean_, rel=1e-12)
    assert statistics["scale"].tolist() == pytest.approx(scaler.scale_, rel=1e-7)  # means near 1e9 have steps of 1e-7
    assert 0.9 < statistics["scale"][0] < 1.1  # of 1e9 + noise, of which float32 would keep nothing


def test_constant_columns_negative_zeros_and_columns_of_nothing():
    """A constant column is 0 in training and keeps its distance elsewhere, as scikit-learn's; -0.0 is a number.

    The third column has no training value: it is 0 whatever another row contains.
    """
    preparation = Preparation("site", columns=(Column("same"), Column("sign"), Column("none"), Column("c", ("u", "v"))))
    nan = float("nan")
    x = torch.tensor([[0.1, -0.0, nan, nan], [0.1, 0.0, nan, nan], [0.1, 3.0, nan, nan]], dtype=torch.float64)
    statistics = preparation.of_rows(x)
    scaler = StandardScaler().fit(x[:, :2].numpy())
    assert statistics["scale"].tolist() == pytest.approx([*scaler.scale_, 0.0])
    assert statistics["scale"][0] == 1
    assert statistics["fill"][3] == UNSEEN
    test = torch.tensor([[0.6, nan, 1e9, 1.0], [0.1, 1.0, nan, nan]])
    assert preparation.inputs(test, statistics).tolist() == [
        pytest.approx([0.5, 0, 0, 0, 1], abs=1e-7),
        pytest.approx([0, 0, 0, 0, 0], abs=1e-7),
    ]


def test_a_site_that_never_trained_is_given_the_mean_of_those_that_know_a_column():
    """By hand: site 1 has mean 1 and deviation 1 and "v", site 2 mean 5 and deviation 3 and "u", site 3 nothing.

    The mean is (1 + 5) / 2 = 3 and (1 + 3) / 2 = 2; of "v" and "u", once each, "u" comes first.
    """
    preparation = Preparation("site", columns=(Column("a"), Column("c", ("u", "v"))))
    nan = float("nan")
    sites = [[[0, 1], [2, 1]], [[2, 0], [8, 0]], [[nan, nan]]]
    given = preparation.of_unseen([preparation.of_rows(torch.tensor(rows, dtype=torch.float64)) for rows in sites], {})
    assert {name: tensor.tolist() for name, tensor in given.items()} == {
        "rows": 5,
        "fill": [3, 0],
        "center": [3],
        "scale": [2],
    }


def test_an_indicator_says_where_a_cell_is_missing():
    """After all other inputs, in the order of columns; also of a category, and of a column that the site lacks."""
    columns = (Column("a"), Column("c", ("u", "v")), Column("b"))
    preparation = Preparation("site", columns=columns, indicate=("b", "c"))
    nan = float("nan")
    x = torch.tensor([[1, 0, nan], [3, nan, nan], [nan, 1, nan]], dtype=torch.float64)
    inputs = preparation.inputs(x, preparation.of_rows(x))
    assert preparation.width == 6
    assert inputs[:, 1:].tolist() == [[0, 1, 0, 0, 1], [0, 1, 0, 1, 1], [0, 0, 1, 0, 1]]


def test_a_pooled_column_is_prepared_as_with_pooled_statistics_and_the_others_as_with_each_sites():
    """Also at a site that lacks it. What is sent of it reveals nothing about the others."""
    draw = np.random.default_rng(0)
    columns = (Column("a"), Column("b"), Column("c", ("u", "v")), Column("d", ("x", "y", "z")))
    sites = [
        torch.from_numpy(np.column_stack([draw.normal(n, 1 + n, (9, 2)), np.arange(9) % 2, np.arange(9) % 3]))
        for n in (0, 1)
    ]
    sites[0][1:, 1], sites[0][:, 3] = torch.nan, torch.nan
    ways = {way: Preparation(way, columns=columns) for way in ("site", "pooled")}
    preparation = Preparation("site", columns=columns, pool=("b", "d"))
    common = preparation.common
    assert common is not None
    assert common.columns == (columns[1], columns[3])
    told = [common.measured(rows[:, [1, 3]]) for rows in sites]
    assert {name: tuple(tensor.shape) for name, tensor in told[0].items()} == {
        "rows": (),
        "present": (1,),
        "mean": (1,),
        "squares": (1,),
        "frequencies": (3,),
    }
    pooled = ways["pooled"].shared_by([ways["pooled"].measured(rows) for rows in sites])
    for rows in sites:
        inputs = preparation.inputs(rows, preparation.of_site(rows, common.shared_by(told)))
        alone = ways["site"].inputs(rows, ways["site"].of_rows(rows))
        together = ways["pooled"].inputs(rows, pooled)
        assert torch.equal(inputs[:, [0, 2, 3]], alone[:, [0, 2, 3]])
        assert torch.equal(inputs[:, [1, 4, 5, 6]], together[:, [1, 4, 5, 6]])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"statistics": "none", "indicate": ["a"]}, ["data.indicate = ['a']", "data.statistics=site"]),
        ({"statistics": "pooled", "pool": ["a"]}, ["data.pool = ['a']", "data.statistics=site"]),
        ({"statistics": "site", "covariates": ["a"]}, ["data.covariates = ['a']", "data.statistics=combat"]),
        ({"statistics": "site", "pool": ["a"], "impute": "median"}, ["data.impute = 'median'", "no data.pool"]),
        ({"statistics": "combat", "impute": "median"}, ["data.impute = 'median'", "data.impute=mean"]),
        ({"statistics": "site", "pool": ["markr"]}, ["column in data.pool 'markr'", "'marker'"]),
        ({"statistics": "site", "indicate": ["clinic"]}, ["column in data.indicate 'clinic'"]),
        ({"statistics": "combat", "covariates": ["label"]}, ["column in data.covariates 'label'"]),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], words: list[str]):
    """The label is no column of inputs, so it can be no covariate."""
    with refuses(*words):
        make_federated(experiment(tmp_path, table(), settings))


# Training rows alone -----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [*WAYS.values(), {"statistics": "site", "impute": "median"}], ids=[*WAYS, "median"])
def test_rows_of_validation_and_test_change_no_bit_of_the_weights(tmp_path: Path, data: dict[str, Any]):
    frame = table()
    clean = experiment(tmp_path / "clean", frame, data)
    others = np.setdiff1d(np.arange(len(frame)), training_rows(clean))
    poisoned = frame.copy()
    poisoned.loc[others, ["time", "marker", "dose", "sex"]] = [-7e20, np.nan, 1e30, "aaa"]  # "aaa" is first in order
    poisoned.loc[others, "region"] = [f"place {number % 9}" for number in range(len(others))]
    runs = [carried_out(clean), carried_out(experiment(tmp_path / "poisoned", poisoned, data))]
    weights = [load_file(run.path / "weights.safetensors") for run in runs]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert runs[0].data_facts["inputs"] == runs[1].data_facts["inputs"]
    assert runs[0].messages == runs[1].messages
    assert runs[0].records[-1]["environments"] != runs[1].records[-1]["environments"]
    (note,) = [note for note in runs[1].notes if "'sex'" in note and "No training row" in note]
    assert "'aaa'" in note


# Runs --------------------------------------------------------------------------------------------

OTHER_METHODS = [
    {"name": "fedpin", "alpha": 1.0, "global_steps": 2, "personal_steps": 2},
    {"name": "client2vec", "index": {"name": "feature-average", "encoder": {"name": "offline", "size": 8}}},
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", OTHER_METHODS, ids=lambda method: method["name"])
def test_methods_and_engines(tmp_path: Path, method: dict[str, Any], way: str):
    """Every method runs unchanged, sends nothing else than it declares, and engines agree."""
    tables = {"method": method, "train": {"rounds": 2, "steps": 2, "batch": 8, "lr": 0.001, "precision": "float64"}}
    requested = experiment(tmp_path, table(), WAYS[way], **tables)
    run = carried_out(requested)
    other = carried_out(
        requested.replace(run=requested.run.replace(engine="vectorised", out=str(tmp_path / "stacked")))
    )
    assert run.weights.keys() == other.weights.keys()
    for name, tensor in run.weights.items():
        torch.testing.assert_close(tensor, other.weights[name], rtol=1e-7, atol=1e-9)
    assert run.messages.keys() == other.messages.keys()
    expected = {"rows", "present", "mean", "squares", "frequencies", "steps"} if way != "site" else set()
    expected |= {"covariates", "covariate_squares", "covariate_products"} if way == "combat" else set()
    assert {name for way in run.messages.get("preparation", {}).values() for name in way["tensors"]} == expected
    crossed = {name for exchange in run.messages.values() for way in exchange.values() for name in way["tensors"]}
    assert any(name.startswith("preparation.") for name in crossed) == (way == "pooled")
    assert any(name.startswith("common_preparation.") for name in crossed) == (way in {"combat", "some pooled"})


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_interrupted_goes_on_to_the_same_bits(tmp_path: Path, way: str):
    run_table = {"out": str(tmp_path / "runs"), "engine": "sequential", "threads": 1, "checkpoint_every": 1}
    requested = experiment(tmp_path, table(), WAYS[way], run=run_table)
    whole = carried_out(requested.replace(run=requested.run.replace(out=str(tmp_path / "whole"))))
    with pytest.raises(KeyboardInterrupt):
        runner.start(requested, interrupt_after(2))
    fedshift.resume(scheduling.run_path(requested), progress=Progress())
    (resumed,) = fedshift.load(scheduling.run_path(requested)).runs
    assert all(torch.equal(tensor, resumed.weights[name]) for name, tensor in whole.weights.items())
    assert whole.records == resumed.records


@pytest.mark.parametrize("way", WAYS)
def test_the_model_of_a_run_takes_rows_as_they_are_stored(tmp_path: Path, way: str):
    run = carried_out(experiment(tmp_path, table(), WAYS[way]))
    for environment in make_federated(run.experiment).environments:
        model = run.model(None if way == "pooled" else environment.client)
        x, y = environment.samples.x, environment.samples.y
        with torch.no_grad():
            accuracy = float((model(x).argmax(dim=1) == y).double().mean())
        rows = {(row["environment"], row["role"]): row for row in run.records[-1]["environments"]}
        assert rows[environment.name, environment.role]["accuracy"] == pytest.approx(accuracy)
    if WAYS[way]["statistics"] == "site":
        with refuses("data.statistics = 'site'", "client="):
            run.model()


def test_a_held_out_site_has_the_mean_of_the_others_and_the_record_says_so(tmp_path: Path):
    held_out = {"name": "leave-one-domain-out", "hold_out": "Rome"}
    run = carried_out(experiment(tmp_path, table(), {"statistics": "site"}, protocol=held_out))
    (rome,) = [row for row in run.records[-1]["environments"] if row["environment"] == "Rome"]
    assert rome["model"] == "unseen"
    assert run.records[-1]["only_in_simulation"] is True


def test_a_held_out_site_is_not_harmonised_and_needs_nothing_but_what_sites_share(tmp_path: Path):
    """So its model is the global one, also for rows of a hospital that nobody knew of, and in a federation."""
    held_out = {"name": "leave-one-domain-out", "hold_out": "Rome"}
    run = carried_out(experiment(tmp_path, table(), WAYS["combat"], protocol=held_out))
    (rome,) = [row for row in run.records[-1]["environments"] if row["environment"] == "Rome"]
    assert rome["model"] == "global"
    assert not run.records[-1].get("only_in_simulation")
    (environment,) = [each for each in make_federated(run.experiment).environments if each.name == "Rome"]
    with torch.no_grad():
        right = run.model()(environment.samples.x).argmax(dim=1) == environment.samples.y
    assert rome["accuracy"] == pytest.approx(float(right.double().mean()))
    folder = institutions(tmp_path / "apart", "combat", protocol=held_out)
    ours, theirs = coordinate(folder / "coordinator", Local(folder), Progress()), rehearse(folder, Progress())
    scored = [
        [(row["environment"], row["accuracy"]) for row in each.records[-1]["environments"]] for each in (ours, theirs)
    ]
    assert scored[0] == scored[1]
    assert "Rome" in dict(scored[0])


def test_a_site_keeps_its_gamma_and_delta(tmp_path: Path):
    """Of three clinics the weights have three preparations, and what crossed only sums and what all share."""
    run = carried_out(experiment(tmp_path, table(), {"statistics": "combat"}))
    centers = [run.weights[f"client.{number}.{PREPARATION}.center"] for number in range(3)]
    assert len({tuple(center.tolist()) for center in centers}) == 3
    crossed = {name for exchange in run.messages.values() for way in exchange.values() for name in way["tensors"]}
    assert not any(name.startswith(f"{PREPARATION}.") for name in crossed)


class Leaking(FedAvg):
    """FedAvg that uploads a client's own means."""

    def stages(self, rounds):
        leak = {"upload": lambda work: {"means": work.private["preparation.center"]}}
        uploads = (Upload("means", (None,), dtype=torch.float64),)
        (stage,) = super().stages(rounds)
        return (replace(stage, exchanges=(self.exchange("train", uploads=uploads, **leak),)),)


def test_statistics_of_a_site_alone_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tensors of client scope: the audit knows them, so a page that sent them would be stopped."""
    monkeypatch.setitem(METHODS._listed, "leaking", Leaking)
    frame = table()
    for number in range(8):  # equality of fewer numbers than eight states nothing
        frame[f"more {number}"] = np.random.default_rng(number).normal(size=len(frame))
    with refuses("'preparation.center'", error=AuditError):
        carried_out(experiment(tmp_path, frame, {"statistics": "site"}, method={"name": "leaking"}))


# Across machines ---------------------------------------------------------------------------------

AGREED = [["time"], ["marker"], ["sex", "f", "m"], ["region", "east", "north", "west"], ["dose"]]


def institutions(tmp_path: Path, way: str, **tables: Any) -> Path:
    """A federation of three clinics, each with its own rows."""
    frame = table()
    columns = {**WAYS[way], "columns": [name for name, *_ in AGREED], "domain": ""}
    train = {"rounds": 2, "steps": 2, "batch": 8, "lr": 0.01, "min_answers": 0.5}
    requested = experiment(tmp_path, frame, columns, train=train, **tables)
    said = {"shape": [5], "classes": ["ill", "well"], "columns": AGREED}
    folder = members(tmp_path / "federation", requested, CLINICS, said)
    for clinic in CLINICS:
        own = folder / "sites" / clinic / "mine.csv"
        frame[frame.clinic == clinic].drop(columns="clinic").to_csv(own, index=False)
        set_site(folder, clinic, domains=[], data={"path": str(own)})
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_a_federation_ends_with_the_bits_of_a_simulation(tmp_path: Path, way: str):
    folder = institutions(tmp_path, way)
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    other = rehearse(folder, Progress())
    ours, theirs = load_file(run.path / "weights.safetensors"), load_file(other.path / "weights.safetensors")
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert run.messages == other.messages
    assert (f"{PREPARATION}.scale" in ours) == (way == "pooled")
    assert (f"{COMMON}.scale" in ours) == (way in {"combat", "some pooled"})


def test_what_leaves_says_the_statistics_and_a_policy_refuses_them(tmp_path: Path):
    folder = institutions(tmp_path, "pooled")
    leaves = leaving(Agreement.read(folder / "coordinator").setup(torch.device("cpu")))
    told = {each.name: each.category for each in leaves if each.stage == PREPARATION and each.kind == "reply"}
    statistics = dict.fromkeys(("mean", "squares", "frequencies"), "statistic")
    assert told == {"rows": "count", "present": "count", **statistics}
    assert "### Stage `preparation`: the exchange `preparation`, the reply" in inspect(folder / "sites" / "Oslo").page
    path = folder / "sites" / "Oslo" / "mine.csv"
    set_site(folder, "Oslo", domains=[], data={"path": str(path)}, refuse=["statistic"])
    with refuses("refuses", "'mean'", "data.statistics = 'site'", "'none'"):
        coordinate(folder / "coordinator", Local(folder), Progress())


def test_columns_that_are_pooled_are_told_and_refused_as_well(tmp_path: Path):
    folder = institutions(tmp_path, "some pooled")
    leaves = leaving(Agreement.read(folder / "coordinator").setup(torch.device("cpu")))
    told = {each.name: each.shape for each in leaves if each.stage == PREPARATION and each.kind == "reply"}
    assert told == {"rows": (), "present": (1,), "mean": (1,), "squares": (1,), "frequencies": (3,)}
    path = folder / "sites" / "Oslo" / "mine.csv"
    frame = pd.read_csv(path)
    set_site(folder, "Oslo", domains=[], data={"path": str(path)}, refuse=["statistic"])
    with refuses("refuses", "'mean'", "no data.pool"):
        coordinate(folder / "coordinator", Local(folder), Progress())
    frame.assign(marker=np.nan, dose=np.nan).to_csv(path, index=False)
    (note,) = [note for note in inspect(folder / "sites" / "Oslo").notes if "Almost all" in note]
    assert "at 1 of 1 sites: Oslo 100 % of 'dose'." in note  # of the marker a setting states what becomes of it


def test_columns_that_a_site_hardly_has_are_noted_with_what_to_do(tmp_path: Path):
    """39 of Oslo's 40 cells are 97.5 %; of Rome's 35 are 87.5 %, which is not yet almost all."""
    frame = table()
    frame.loc[EACH + 1 : 2 * EACH - 1, "dose"] = np.nan
    frame.loc[2 * EACH : 2 * EACH + 34, "dose"] = np.nan
    requested = experiment(tmp_path, frame, {"statistics": "site"})
    (note,) = [note for note in make_federated(requested).notes if "Almost all" in note]
    assert "at 1 of 3 sites: Oslo 98 % of 'dose'." in note
    for fix in ("data.exclude=dose", "data.indicate=dose", "data.pool=dose"):
        assert f"--set {fix}" in note
    for settings in ({"indicate": ["dose"]}, {"pool": ["dose"]}):
        requested = experiment(tmp_path, frame, {"statistics": "site", **settings})
        assert not [note for note in make_federated(requested).notes if "Almost all" in note]


def test_a_site_with_other_columns_is_named(tmp_path: Path):
    folder = institutions(tmp_path, "pooled")
    site = folder / "sites" / "Oslo"
    frame = pd.read_csv(site / "mine.csv")
    frame.assign(dose=["high"] * EACH).to_csv(site / "mine.csv", index=False)
    with refuses("'dose' contains categories, but the federation agreed on numbers"):
        inspect(site).problems.check()
    frame.drop(columns="dose").to_csv(site / "mine.csv", index=False)
    with refuses("Unknown column of inputs"):
        inspect(site).problems.check()
    frame.loc[3, "sex"] = "x"
    frame.to_csv(site / "mine.csv", index=False)
    mine = SiteFolder(site).samples()
    assert mine.x[3, 2] == UNSEEN
    assert any("no category 'x' of the column 'sex'" in note for note in mine.notes)
