"""What the coordinator refuses, whom it blames, and how a round continues without a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from conftest import CNN_WITH_BN, Make, engine_of, evaluated, go_on, simulate
from fedshift.core.contract import ServerState
from fedshift.core.messages import Answer, Missing, Telemetry, Up
from fedshift.core.tensors import Tensors
from fedshift.engines.engine import Job, Outcome
from fedshift.errors import DivergedError, FedshiftError
from fedshift.rounds.message_checks import check_answer, enough, first_not_finite
from fedshift.runs.simulation import Simulation
from refusal import refuses
from test_errors import with_inputs
from test_methods import small

Harm = Callable[[Up], Tensors]

THREE = {"protocol": {"name": "in-domain"}}  # dark, gray and light
HALF = {"train.min_answers": 0.5}


def harm_answers(simulation: Simulation, monkeypatch: pytest.MonkeyPatch, harm: Harm) -> dict[int, Up]:
    """Have gray send something else in training; what each of the others sent last is written down."""
    keep, sent = simulation.site.keep, dict[int, Up]()

    def keeping(job: Job, outcome: Outcome) -> Answer:
        answer = keep(job, outcome)
        if job.client.id == 1 and job.exchange.name == "train":
            return replace(answer, up=Up(harm(answer.up)))
        sent[job.client.id] = answer.up
        return answer

    monkeypatch.setattr(simulation.site, "keep", keeping)
    return sent


def with_another(name: str) -> Harm:
    return lambda up: up | {name: torch.ones(1)}


WEIGHT, BIAS = "head.weight", "head.bias"
PLACE = ["client 'gray'", "round 2", "exchange 'train'"]


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "error", "words"),
    [
        (lambda up: up.only(up.keys() - {BIAS}), FedshiftError, [f"lacks '{BIAS}', which the exchange declares"]),
        (with_another("extra"), FedshiftError, ["contains 'extra', which the exchange does not declare"]),
        (
            lambda up: up | {BIAS: up[BIAS].double()},
            FedshiftError,
            ["torch.float64 [3], declared as torch.float32 [3]"],
        ),
        (lambda up: up | {WEIGHT: up[WEIGHT].T}, FedshiftError, ["[4, 3], declared as torch.float32 [3, 4]"]),
        (lambda up: up | {BIAS: up[BIAS] * float("nan")}, DivergedError, [BIAS, "not finite", "--set train.lr=0.01"]),
        (lambda up: up | {BIAS: up[BIAS] / 0}, DivergedError, [BIAS, "not finite"]),
    ],
)
def test_a_bad_answer_ends_the_run_with_an_error_that_names_its_place(
    make: Make, monkeypatch: pytest.MonkeyPatch, harm: Harm, error: type[FedshiftError], words: list[str]
):
    """All answers are required by default; what the coordinator had before stays as it was."""
    simulation = simulate(make(THREE), rounds=1)
    before = simulation.coordinator.state
    harm_answers(simulation, monkeypatch, harm)
    with refuses(*words, *PLACE, error=error):
        go_on(simulation)
    assert is_as_it_was(simulation.coordinator.state, before)
    assert simulation.coordinator.position == 1


@pytest.mark.parametrize(
    ("changes", "name", "scope"),
    [
        ({**CNN_WITH_BN, "method.bn": "local"}, "encoder.1.running_mean", "client"),
        ({"method.name": "feddyn"}, "correction.head.weight", "server"),
    ],
)
def test_an_answer_that_names_what_never_leaves(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], name: str, scope: str
):
    """Its name alone is refused, whatever lies under it."""
    simulation = Simulation(make({**THREE, **changes}))
    assert simulation.setup.scopes[name] == scope
    harm_answers(simulation, monkeypatch, with_another(name))
    with refuses(f"'{name}'", f"the {scope}", "client 'gray'", "round 1", "exchange 'train'"):
        go_on(simulation)


def answered(simulation: Simulation, up: Tensors, stage: int = 0) -> None:
    """Check a reply to the first exchange of a stage."""
    exchange = simulation.setup.stages[stage].exchanges[0]
    check_answer(
        simulation.setup,
        Answer("tiny", "train", 1, exchange.name, 0, Up(up), Telemetry()),
        exchange,
        "client 'dark', round 1",
    )


def test_a_count_of_samples_is_one_whole_number(make: Make):
    simulation = Simulation(make({**THREE, "method.weighting": "samples"}))
    shared = simulation.coordinator.state.shared
    answered(simulation, shared | {"samples": torch.tensor(9)})
    for given, words in (
        ({}, ("lacks 'samples'",)),
        ({"samples": torch.tensor(9.0)}, ("'samples'", "torch.float32 []", "torch.int64 []")),
        ({"samples": torch.tensor([9])}, ("'samples'", "torch.int64 [1]", "torch.int64 []")),
    ):
        with refuses(*words):
            answered(simulation, shared | given)


def test_an_upload_of_any_length(make: Make):
    """Client2Vec's global index takes as many pairs (2, 64) as a client gives, none too, and nothing else."""
    simulation = Simulation(make(small("client2vec")))
    assert [stage.name for stage in simulation.setup.stages] == ["index", "vectors", "train"]
    for pairs in (0, 1, 30):
        answered(simulation, Tensors({"pairs": torch.zeros(pairs, 2, 64)}))
    for shape in ((30, 2, 63), (30, 3, 64), (2, 64)):
        with refuses("'pairs'", "torch.float32 [any, 2, 64]"):
            answered(simulation, Tensors({"pairs": torch.zeros(shape)}))


def test_the_first_tensor_that_is_not_finite_is_found():
    """Four times 3e38 is more than float32 contains, and yet each is finite; +inf and -inf sum to no number."""
    large, infinite = torch.full((4,), 3e38), torch.tensor([float("inf"), -float("inf")])
    assert first_not_finite(Tensors()) == ""
    assert first_not_finite(Tensors({"none": torch.zeros(0), "count": torch.tensor(2**62)})) == ""
    assert first_not_finite(Tensors({"large": large})) == ""
    assert first_not_finite(Tensors({"large": large, "one": infinite, "other": infinite})) == "one"


# Going on without a client ------------------------------------------------------------------------


def test_with_fewer_answers_asked_for_the_round_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch):
    """Two of three are at least a half: they are merged and counted, and the round's record lists the missing client.

    In the round after, everybody answers.
    """
    simulation = simulate(make({**THREE, **HALF, "train.rounds": 3}), rounds=1)
    coordinator = simulation.coordinator
    _, second, third = coordinator.schedule
    before = coordinator.sent[1]
    with monkeypatch.context() as patch:
        sent = harm_answers(simulation, patch, lambda up: up | {BIAS: up[BIAS] * float("nan")})
        go_on(simulation)
    assert sorted(sent) == [0, 2]
    for name, tensor in coordinator.state.shared.items():
        torch.testing.assert_close(tensor, (sent[0][name] + sent[2][name]) / 2)
    record = evaluated(simulation, second)
    assert record["bytes_up"] - before == sent[0].nbytes + sent[2].nbytes
    assert sorted(record["terms"]) == ["dark", "light"]
    (missing,) = record["missing"]
    about = {"stage": "train", "round": 2, "exchange": "train", "client": "gray"}
    assert missing == about | {"why": missing["why"]}
    assert all(word in missing["why"] for word in [BIAS, "not finite", *PLACE])
    go_on(simulation)
    record = evaluated(simulation, third)
    assert "missing" not in record
    assert sorted(record["terms"]) == ["dark", "gray", "light"]


def test_a_client_whose_training_fails_is_missing_too(make: Make):
    """Its inputs are no numbers, so that its loss is none; the place of that is the engine's to name."""

    def poisoned(changes: dict[str, Any]) -> Simulation:
        simulation = Simulation(make({**THREE, **changes}))
        simulation.site.federated = with_inputs(simulation.federated, 1, lambda x: x * float("nan"))
        return simulation

    with refuses("'gray'", "round 1", "'train'", "step 1", error=DivergedError):
        go_on(poisoned({}))
    simulation = poisoned(HALF)
    go_on(simulation)
    (missing,) = evaluated(simulation, simulation.coordinator.schedule[0])["missing"]
    assert missing["client"] == "gray"
    assert "client 'gray', round 1, phase 'train', step 1" in missing["why"]
    assert 1 not in simulation.site.store.ids(), "a client that failed keeps what it had"


# Too few answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "requested", "answered", "expected"),
    [
        ("all", 3, 3, True),
        (0.55, 100, 55, True),  # though 0.55 * 100 is 55.00000000000001
        (0.55, 100, 54, False),
        (0.1, 3, 0, False),  # of nothing there is no mean
    ],
)
def test_how_many_are_enough(make: Make, least: Any, requested: int, answered: int, expected: bool):
    assert enough(Simulation(make({"train.min_answers": least})).setup, requested, answered) == expected


def is_as_it_was(now: ServerState, before: ServerState) -> bool:
    """Whether a server has the very tensors that it had, any round it is in."""
    return now.tensors.keys() == before.tensors.keys() and all(
        tensor is before.tensors[name] for name, tensor in now.tensors.items()
    )


def test_too_few_answers_end_the_round_without_a_merge(make: Make):
    """One of FedIIR's three answers in time: its probe is not merged, and there is no training in that round."""
    simulation = Simulation(make({**THREE, **HALF, "method.name": "fediir"}))
    coordinator = simulation.coordinator
    before = coordinator.state
    asking = coordinator.round()
    orders = next(asking)
    answer, *_ = simulation.site.answers(orders, engine_of(simulation))
    assert [order.exchange for order in orders] == ["probe"] * 3
    with pytest.raises(StopIteration):
        asking.send([answer, Missing(1, "late"), Missing(2, "late")])
    assert is_as_it_was(coordinator.state, before)
    assert coordinator.position == 1
    about = {"stage": "train", "round": 1, "exchange": "probe", "why": "late"}
    assert coordinator.missing == [about | {"client": name} for name in ("gray", "light")]
    go_on(simulation)
    assert coordinator.position == 2
    assert not is_as_it_was(coordinator.state, before)
