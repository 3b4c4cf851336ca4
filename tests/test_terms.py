"""Loss terms are telemetry: declared, scalar, few, finite, and refused otherwise, by the engine and the coordinator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import Make, go_on
from fedshift.cli.catalogues import print_named
from fedshift.core.contract import Objective, Phase, term_names
from fedshift.core.messages import Answer, Telemetry, Up
from fedshift.errors import DivergedError, FedshiftError
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds.checks import check_answer
from fedshift.runs.simulation import Simulation
from reference import BUILT_IN, reference
from refusal import refuses


def nothing(net: Any, batch: Any, context: Any) -> dict[str, Tensor]:
    return {}


# Names --------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_gets_its_objectives_or_its_phases_before_it():
    a, b = (Objective(name, lambda net, batch, context: {}, (), ("x", own)) for name, own in (("a", "y"), ("b", "z")))
    assert term_names((Phase("one", (a, b)), Phase("two", (b,)))) == {
        ("one", "a", "x"): "x",
        ("one", "a", "y"): "y",
        ("one", "b", "x"): "b.x",
        ("one", "b", "z"): "z",
        ("two", "b", "x"): "two.x",
        ("two", "b", "z"): "two.z",
    }


# What a method declares though the settings of these runs leave it out.
LEFT_OUT: dict[str, set[str]] = {
    "fedl2r": {"term.cmi"},
    "fedcmi": {"term.l2r"},
    "fedreg": {"term.align"},
    "fedalign": {"term.reg"},
    "fedpin-lambda-0": {"term.contrast"},
    "fedpin-gamma-0": {"term.variance"},
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_declares_what_it_tells(name: str):
    """Some of what it declares is told in three rounds; nothing else is, or the run would have ended."""
    simulation = reference(name).simulation
    declared = {
        f"term.{term}"
        for stage in simulation.setup.stages
        for exchange in stage.exchanges
        for term in term_names(exchange.phases).values()
    }
    told = {
        tensor
        for entry in simulation.coordinator.ledger.entries
        for tensor, _, _ in entry.signature
        if entry.direction == "telemetry"
    }
    assert told - {"steps"} == declared - LEFT_OUT.get(name, set())


# What is refused ----------------------------------------------------------------------------------


class Undeclared(FedAvg):
    """Tells 20 pixels a step."""

    def loss(self, net, batch, context):
        pixels = batch.x.flatten()[:20]
        return super().loss(net, batch, context) | {f"pixel{number}": pixel for number, pixel in enumerate(pixels)}


def test_a_term_that_is_not_declared_is_refused(make: Make):
    with refuses("objective 'train'", "'pixel0'", "there are cross_entropy", '(*FedAvg.terms, "pixel0")'):
        go_on(Simulation(make().replace(method=Undeclared())))


def test_at_most_16_terms_are_declared(make: Make):
    class Declaring(Undeclared):
        """Declares too much."""

        terms = tuple(f"pixel{number}" for number in range(17))

    with refuses("objective 'train'", "at most 16"):
        Simulation(make().replace(method=Declaring()))


BAD = [
    ({"pixels": torch.zeros(20)}, FedshiftError, "'pixels', which no objective"),
    ({"term.cross_entropy": torch.zeros(20).double()}, FedshiftError, "as torch.float64 [20], declared as"),
    ({"steps": torch.tensor(2.0)}, FedshiftError, "'steps' as torch.float32 [], declared as torch.int64 []"),
    ({"term.cross_entropy": torch.tensor(float("nan")).double()}, DivergedError, "which is not finite"),
]


@pytest.mark.parametrize(("changed", "kind", "words"), BAD)
def test_telemetry_that_is_not_declared_is_refused(
    make: Make, changed: dict[str, Tensor], kind: type[FedshiftError], words: str
):
    simulation = Simulation(make())
    good = {**Telemetry.from_numbers({"cross_entropy": 0.5}, 2)}
    check(simulation, good)
    with refuses("The telemetry of client 'dark', round 1 in the exchange 'train'", words, error=kind):
        check(simulation, {**good, **changed})


def test_telemetry_that_is_switched_off_is_refused(make: Make):
    simulation = Simulation(make({"evaluate.telemetry": False}))
    check(simulation, {})
    with pytest.raises(FedshiftError, match=r"evaluate\.telemetry = false"):
        check(simulation, {"steps": torch.tensor(2)})


def check(simulation: Simulation, telemetry: dict[str, Tensor]) -> None:
    """A reply of FedAvg with some telemetry."""
    exchange = simulation.setup.stages[0].exchanges[0]
    answer = Answer("tiny", "train", 1, "train", 0, Up(simulation.coordinator.down(exchange, 0)), Telemetry(telemetry))
    check_answer(simulation.setup, answer, exchange, "client 'dark', round 1")


def test_the_command_line_lists_terms(capsys: pytest.CaptureFixture[str]):
    print_named("ditto", {})
    assert "Loss terms, whose means leave the client: cross_entropy, personal, pull" in capsys.readouterr().out
