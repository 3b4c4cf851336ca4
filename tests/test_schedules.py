"""Learning rates by round against numbers derived by hand, and in runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedshift
from conftest import simulate, states
from fedshift.core.training import Train
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.scaffold import SCAFFOLD
from fedshift.reporting.results import flat
from fedshift.runs.events import Progress
from fedshift.study.grid import expand, override
from quadratics import OnQuadratics, W, at_rest, on_quadratics
from refusal import refuses

__all__ = ["on_quadratics"]  # a fixture


def rates(rounds: int, **settings: Any) -> list[float]:
    train = Train(lr=1.0, rounds=rounds, **settings)
    return [train.lr_in(round, rounds) for round in range(1, rounds + 1)]


def test_a_step_every_three_rounds():
    """Rounds 1 to 3 at 1, 4 to 6 at 1/2, 7 at 1/4."""
    found = rates(7, schedule="step", step_every=3, step_factor=0.5)
    assert found == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_steps_after_the_rounds_that_are_named():
    """After round 2 and after round 5, in whatever order they are named."""
    found = rates(7, schedule="step", step_at=(5, 2), step_factor=0.1)
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_a_warm_up_rises_in_equal_steps_to_the_first_round_of_the_schedule():
    """W = 3: 1/4, 2/4, 3/4, then the schedule's first round at 4/4 and the others after it, as without a warm-up."""
    assert rates(6, warmup=3) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(9, warmup=4, schedule="cosine")[4:] == rates(5, schedule="cosine")


@given(
    rounds=st.integers(2, 60),
    schedule=st.sampled_from(["constant", "cosine", "step"]),
    every=st.integers(1, 20),
    factor=st.floats(0.1, 1),
    data=st.data(),
)
def test_a_rate_rises_in_the_warm_up_and_never_after_it(
    rounds: int, schedule: str, every: int, factor: float, data: st.DataObject
):
    warmup = data.draw(st.integers(0, rounds - 1))
    found = rates(rounds, schedule=schedule, step_every=every, step_factor=factor, warmup=warmup)
    assert all(0 < rate <= 1 for rate in found)
    assert found[warmup] == 1
    assert found[:warmup] == sorted(set(found[:warmup]))
    assert found[warmup:] == sorted(found[warmup:], reverse=True)


def test_a_stage_that_is_shorter_than_the_warm_up_has_none():
    """A last round of fine-tuning, say, which would else be at a fraction of the rate."""
    train = Train(lr=1.0, rounds=10, warmup=5)
    assert [train.lr_in(round, 6) for round in range(1, 7)] == pytest.approx([n / 6 for n in range(1, 7)])
    assert [train.lr_in(round, 5) for round in range(1, 6)] == [1] * 5
    assert train.lr_in(1, 1) == 1


def test_what_leads_nowhere_is_refused():
    with refuses("train.warmup = 5", "train.rounds = 5"):
        Train(rounds=5, warmup=5)
    with refuses("train.step_at = [3]", "train.schedule = 'cosine'"):
        Train(schedule="cosine", step_at=(3,))
    with refuses("train.min_delta = 0.01", "train.patience = 'off'"):
        Train(min_delta=0.01)


def test_a_run_takes_the_steps_of_its_schedule(on_quadratics: OnQuadratics):
    """One step a round on F_1 = (w - 1)^2 / 2 and F_2 = 4 (w + 1)^2 / 2 goes from w to w - lr (5 w + 3) / 2.

    With a warm-up of one round and a fall to a tenth after the schedule's first, the rates are 0.05, 0.1, 0.01:
    w = -0.075; then -0.075 - 0.1 (2.625) / 2 = -0.20625; then -0.20625 - 0.01 (1.96875) / 2 = -0.21609375.
    """
    steps = {"train.rounds": 3, "train.steps": 1, "train.lr": 0.1, "train.warmup": 1}
    schedule = {"train.schedule": "step", "train.step_at": [1]}
    assert at_rest(on_quadratics.run(FedAvg(), steps | schedule)) == pytest.approx(-0.21609375, abs=1e-12)


def test_control_variates_are_gradients_in_a_warm_up_as_well(on_quadratics: OnQuadratics):
    """SCAFFOLD divides by the round's rate, 0.05 in a warm-up of one round.

    One step from w = 0 and variates of zero leave c_k = F_k'(0) = a_k (0 - b_k) = (-1, 4).
    """
    changes = {"train.rounds": 2, "train.steps": 1, "train.lr": 0.1, "train.warmup": 1}
    simulation = simulate(on_quadratics.experiment(SCAFFOLD(), changes), rounds=1)
    kept = [state.tensors[f"own_variate.{W}"].item() for _, state in states(simulation)]
    assert kept == pytest.approx([-1.0, 4.0], abs=1e-12)


# docs/training.md ---------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("written", BLOCKS)
def test_what_the_page_writes_is_an_experiment(tiny_document: dict[str, Any], written: str):
    """As it stands, and carried out with fewer rounds."""
    changes = flat(tomllib.loads(written))
    (experiment,) = expand(override(tiny_document, changes))
    assert changes.items() <= flat(experiment.table()).items()
    fewer = {"train.rounds": 8} if "train.rounds" in changes else {}
    (experiment,) = expand(override(tiny_document, changes | fewer))
    assert simulate(experiment).coordinator.position == experiment.train.rounds


def test_the_python_on_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"<!-- early -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    original = fedshift.run

    def short(**options: Any) -> Any:
        settings = options.pop("settings") | {"run.engine": "sequential"}  # nothing is measured for
        return original(**options, settings=settings, progress=Progress())

    monkeypatch.setattr(fedshift, "run", short)
    exec(compile(code, "training.md", "exec"), {})  # the point of the test
    assert "no better validation score than" in capsys.readouterr().out
