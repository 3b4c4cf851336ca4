"""A run that ended near chance under a term that outweighs the classification names the setting; no other run does."""

from __future__ import annotations

from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedshift
from conftest import Make, a_record, a_row
from fedshift.reporting.report_page import page
from fedshift.runs.collapse import chance_of, weighing
from fedshift.runs.schema import Blueprint
from fedshift.runs.simulation import Simulation

FEDPROX = {"name": "fedprox", "mu": 0.5}
SIZES = {"a": 30, "b": 20}  # samples by class, at each of two sites


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two linearly separable classes at two sites."""
    draw = np.random.default_rng(0)
    sites = {}
    for site in ("north", "south"):
        y = np.repeat([*SIZES], [*SIZES.values()])
        sites[site] = (draw.normal(4 * (y == "b"), 1, (4, 50)).T.astype(np.float32), y)
    return fedshift.in_memory(sites, folder=tmp_path_factory.mktemp("data"))


def run(data: Any, tmp_path: Path, **settings: Any) -> fedshift.Run:
    given = {"method.l2r": 0.01, "method.cmi": 0.001, "model.hidden": [8], "model.dim": 4, "protocol.validation": 0.3}
    given |= {"run.engine": "sequential", "run.threads": 1, "train.lr": 0.05, "evaluate.every": 5, **settings}
    options: dict[str, Any] = {"data": data, "model": "mlp", "rounds": 20, "out": tmp_path, "seed": 0}
    return fedshift.run(method="fedsr", **options, settings=given)


def test_a_collapsed_run_names_the_setting_in_its_notes_its_events_the_tables_and_the_report(data: Any, tmp_path: Path):
    done = run(data, tmp_path, **{"method.l2r": 2.0, "train.lr": 0.02})
    (note,) = [note for note in done.notes if "chance" in note]
    for words in ("FedSR ended near chance", "'l2r'", "lower method.l2r, which was 2 (--set method.l2r=0.2", "60.0 %"):
        assert words in note
    share = max(its["l2r"] + its["cmi"] for its in done.shares.values())
    assert f"the cross-entropy and unweighted terms, {100 * (1 - share):.0f} %" in note
    assert note in fedshift.load(done.path).notes()
    assert "lower method.l2r" in page(fedshift.load(done.path), datetime(2026, 1, 1, tzinfo=UTC))
    assert "lower method.l2r" in (done.path / "events.jsonl").read_text()


def test_healthy_runs_have_no_such_note(data: Any, tmp_path: Path):
    """One learns with mild weights, one although a term outweighs the classification; one learns nothing at all."""
    mild = run(data, tmp_path / "mild")
    heavy = run(data, tmp_path / "heavy", **{"method.l2r": 0.0, "method.cmi": 0.3})
    idle = run(data, tmp_path / "idle", **{"train.lr": 1e-6})
    assert max(its["cmi"] for its in heavy.shares.values()) > 0.5, "it would state nothing"
    for done in (mild, heavy, idle):
        at_chance = chance_of(Blueprint.model_validate(done.data_facts), done.records[-1]).reached
        assert at_chance == (done is idle)
        assert not [note for note in done.notes if "chance" in note]


def test_chance_by_hand():
    """At p class b is 60 of 100, at q class a 90 of 100: in the mean a has (0.4 + 0.9) / 2 = 0.65, and b 0.35.

    The variance of that mean is (0.4 0.6 / 100 + 0.9 0.1 / 100) / 4 = 0.33 / 400, and a tenth of what is to be learned
    0.035. Own models name the best class of
    each: (0.6 + 0.9) / 2 = 0.75. Without counts it is one of two classes; where n is not reported, luck is two points.
    """
    facts = {"shape": (1,), "classes": ("a", "b"), "clients": {0: "p", 1: "q"}, "inputs": {}}
    scored = {"validation": {"p": (40, 60), "q": (90, 10)}}

    def chance(model: str = "global", counts: Any = scored, **n: Any) -> Any:
        rows = [a_row(name, "validation", 0.66, model=model, **({"n": 100} | n)) for name in ("p", "q")]
        record = a_record(1, [*rows, a_row("t", "test", 0.1)])
        return chance_of(Blueprint.model_validate({**facts, "scored_classes": counts}), record)

    found = chance()
    assert (found.guessed, found.margin, found.n) == pytest.approx((0.65, 0.035 + 1.645 * sqrt(0.33 / 400), 200))
    assert found.reached
    assert chance("own").guessed == pytest.approx(0.75)
    assert chance(counts={}).guessed == 0.5
    assert (chance(n=None).margin, chance(n=None).n) == (pytest.approx(0.035 + 0.02), 0)
    assert not chance(counts={}, n=1000).reached


@pytest.mark.parametrize(
    ("method", "terms"),
    [
        ("fedavg", {}),
        ("fedsr", {"l2r": ("method.l2r", 0.01), "cmi": ("method.cmi", 0.001)}),
        ({"name": "ditto", "lam": 0.5}, {"pull": ("method.lam", 0.5)}),
        (
            {"name": "client2vec", "base": FEDPROX, "index": "random", "local_training": True, "local_weight": 5.0},
            {"proximal": ("method.base.mu", 0.5), "index_orth": ("method.local_weight", 5.0)},
        ),
    ],
)
def test_which_setting_weighs_which_term(make: Make, method: Any, terms: dict[str, tuple[str, float]]):
    given = {"name": method} if isinstance(method, str) else method
    found = weighing(Simulation(make({"method": given})).setup)
    assert {name: its for name, its in found.items() if name in terms or not terms} == terms
