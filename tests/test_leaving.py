"""What leaves a site: categories, the page for an auditor, and what a policy refuses and withholds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import TINY
from fedshift.core.contract import Category, Exchange
from fedshift.core.messages import Answer, Telemetry, Up
from fedshift.core.method import make_parts
from fedshift.core.model import ModelBuilder
from fedshift.core.setup import Setup
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.leaving import CATEGORIES, Leaves, category, leaving, refusal, refused, what_leaves, without
from fedshift.deployment.wire import Done, SiteScore
from fedshift.experiments import Experiment
from fedshift.streams import Streams
from fedshift.study.grid import expand, override
from reference import EVERY_METHOD, POOLED, reference, small
from refusal import refuses


def setup_of(experiment: Experiment) -> Setup:
    """What two members agree on, made without data."""
    streams, device = Streams(experiment.seed), torch.device("cpu")
    model = ModelBuilder(experiment.model, (1, 10, 10), 3, streams, 2, environments=2)
    parts, names = make_parts(experiment.method, model), ("0", "1", "2")
    train, evaluate = experiment.train, experiment.evaluate
    return Setup("a run", experiment.method, model, parts, train, evaluate, streams, device, names)


FEDERATION = FederationSettings(
    name="hospitals", sites=("a", "b"), shape=(1, 10, 10), classes=("x", "y", "z"), address="fl.example.org:8000"
)
GLOBAL = {"method.index.strategy": "global"}
DEPLOYED = [name for name in EVERY_METHOD if name not in POOLED]


def experiment(method: str, changes: dict[str, Any] | None = None) -> Experiment:
    (one,) = expand(override(TINY, small(method) | (changes or {})))
    return one


def setup(method: str, changes: dict[str, Any] | None = None) -> Setup:
    return setup_of(experiment(method, changes))


def exchanges(one: Setup) -> Iterator[Exchange]:
    return (exchange for stage in one.stages for exchange in stage.exchanges)


def by_name(one: Setup, kind: str = "reply") -> dict[str, Category]:
    return {each.name: each.category for each in leaving(one) if each.kind == kind}


@pytest.mark.parametrize("name", DEPLOYED)
def test_every_tensor_of_every_method_has_a_category_and_is_once_on_the_page(name: str):
    one = setup(name)
    page = what_leaves(one, FEDERATION)
    tables = page.partition("## Every tensor")[2].partition("## To refuse")[0]
    rows = re.findall(r"^\| `([^`]+)` \| \w+\d+ \|", tables, re.MULTILINE)
    assert sorted(rows) == sorted(each.name for each in leaving(one))
    never = page.partition("## What never leaves")[2].partition("##")[0]
    assert all(f"`{part}`" in never for part, about in one.parts.items() if about.scope == "client")
    declared = [(exchange, one.declaration(exchange)) for exchange in exchanges(one)]
    for exchange, own in declared:
        assert own.categories.keys() == own.reply.keys()
        assert set(own.categories.values()) <= set(get_args(Category))
        assert all(own.categories[tensor] == "model update" for tensor in own.returned)
        for kind, tensors in (("up", own.reply), ("telemetry", own.telemetry)):
            assert all(category(one, exchange, f"{kind}.{tensor}") in CATEGORIES for tensor in tensors)


@pytest.mark.parametrize("name", DEPLOYED)
def test_what_is_listed_is_what_leaves(name: str):
    """The first messages of a run have the listed names, types, shapes and bytes."""
    run = reference(name)
    one = setup_of(run.experiment)
    stage = one.stages[0]
    for exchange in stage.exchanges:
        for kind, direction in (("reply", "up"), ("telemetry", "telemetry")):
            message: dict[str, Tensor] = dict(run.ledger.first.get((exchange.name, direction), {}))
            place = stage.name, exchange.name, kind
            mine = [each for each in leaving(one) if (each.stage, each.exchange, each.kind) == place]
            names = {each.name for each in mine}
            assert names == message.keys() if kind == "reply" else names >= message.keys()  # terms may be missing
            for each in (each for each in mine if each.name in message):
                tensor = message[each.name]
                assert str(tensor.dtype) == f"torch.{each.dtype}"
                assert all(want in (None, has) for want, has in zip(each.shape, tensor.shape, strict=True))
                assert each.bytes in (None, tensor.nbytes)


def test_categories_by_hand():
    assert by_name(setup("client2vec", GLOBAL))["pairs"] == "embedding"
    federated = by_name(setup("client2vec", {"method.index.strategy": "federated"}))
    assert (federated["feature"], federated["label"], federated["samples"]) == ("statistic", "statistic", "count")
    assert "embedding" not in federated.values()
    assert by_name(setup("client2vec", {"method.index": "model-weights"}))["feature"] == "model update"
    assert by_name(setup("client2vec", {"method.index": "class-prototypes"}))["feature"] == "statistic"
    assert by_name(setup("fediir"))["gradient.head.weight"] == "model update"
    assert set(by_name(setup("fedavg")).values()) == {"model update"}
    assert by_name(setup("fedavg", {"method.weighting": "samples"}))["samples"] == "count"
    telemetry = {"steps": "count", "term.cross_entropy": "statistic"}
    assert by_name(setup("fedavg"), "telemetry") == telemetry
    ends = {"low.accuracy": "statistic", "high.accuracy": "statistic"}
    assert by_name(setup("fedavg"), "scores") == {"accuracy": "statistic", "loss": "statistic", "n": "count", **ends}


def test_how_often_and_how_much_by_hand():
    changes = {"train.rounds": 25, "evaluate.every": 10, "model": {"name": "mlp", "dim": 4, "hidden": [8]}}
    (one,) = expand(override(TINY, changes))
    listed = leaving(setup_of(one))
    assert Leaves("train", "train", 25, "reply", "head.weight", "float32", (3, 4), "model update", 48, True) in listed
    assert Leaves("train", "train", 25, "telemetry", "steps", "int64", (), "count", 8, False) in listed
    assert Leaves("train", "", 3, "scores", "loss", "float64", (), "statistic", 8, False) in listed
    pairs = next(each for each in leaving(setup("client2vec", GLOBAL)) if each.name == "pairs")
    assert (pairs.rounds, pairs.shape, pairs.bytes) == (1, (None, 2, 64), None)


def test_what_is_not_declared_has_no_category():
    one = setup("fedavg")
    for name in ("up.samples", "head.bias", "telemetry.term.secret", "scores.0.samples", ""):
        with refuses("was not sent", "'train'", "not declare"):
            category(one, next(exchanges(one)), name)


# What a site refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fediir", "client2vec"])
@pytest.mark.parametrize("category", CATEGORIES)
def test_a_policy_refuses_what_is_needed_of_its_categories(method: str, category: Category):
    one = setup(method, GLOBAL if method == "client2vec" else {"method.weighting": "samples"})
    expected = [
        (exchange.name, name)
        for exchange in exchanges(one)
        for name, what in one.declaration(exchange).categories.items()
        if what == category
    ]
    found = refused(one, {category})
    assert [(each.exchange, each.name) for each in found] == expected
    assert all(each.needed and each.category == category for each in found)


@given(st.sets(st.sampled_from(CATEGORIES)))
def test_what_is_optional_is_left_out(refuse: set[Category]):
    told = Telemetry.from_numbers({"cross_entropy": 1.0, "norm": 2.0}, 3)
    score = SiteScore("a", "test", "global", 1, 0.5, 1.0, 10, {"f1": 0.5})
    left = without(Done("a", Answer("r", "s", 1, "x", 0, Up(), told), (score,)), refuse)
    assert left.answer is not None
    assert ("steps" in left.answer.telemetry) == ("count" not in refuse)
    assert left.answer.telemetry.terms == ({} if "statistic" in refuse else told.terms)
    statistics = (None, None, {}) if "statistic" in refuse else (0.5, 1.0, {"f1": 0.5})
    (score,) = left.scores
    assert (score.accuracy, score.loss, score.metrics) == statistics
    assert score.n == (None if "count" in refuse else 10)


def test_the_error_names_site_category_exchange_tensor_and_the_fix():
    words = "'clinic'", "category 'embedding', 'pairs'", "exchange 'pairs' of the stage 'index'. Choose another method"
    with refuses(*words):
        raise refusal(setup("client2vec", GLOBAL), "clinic", ["embedding"])
    with refuses("'count', 'samples' (and 1 more)", "method.weighting = 'uniform'"):
        raise refusal(setup("fediir", {"method.weighting": "samples"}), "clinic", ["count"])
