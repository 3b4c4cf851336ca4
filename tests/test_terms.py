"""Loss terms are telemetry: declared, scalar, few, finite, and refused otherwise, by the engine and the coordinator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import Make, go_on
from fedshift.core.contract import Measure, Objective, Phase, term_names
from fedshift.core.messages import Answer, Telemetry, Up
from fedshift.errors import DivergedError, FedshiftError
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds.checks import check_answer
from fedshift.runs.simulation import Simulation
from reference import BUILT_IN, reference


def nothing(net: Any, batch: Any, context: Any) -> dict[str, Tensor]:
    return {}


# Names --------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_gets_its_objectives_or_its_phases_before_it():
    a = Objective("a", nothing, (), ("x", "y"))
    b = Objective("b", nothing, (), ("x", "z"))
    names = term_names((Phase("one", (a, b)), Measure("sums", nothing), Phase("two", (b,))))
    assert names == {
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
    with pytest.raises(FedshiftError) as caught:
        go_on(Simulation(make().replace(method=Undeclared())))
    for word in ("objective 'train'", "'pixel0'", "there are cross_entropy", '(*FedAvg.terms, "pixel0")'):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ((), "declares the loss terms ()"),
        ("cross_entropy", "declares the loss terms 'cross_entropy'"),
        (("a", "b", "a"), "declares the loss terms ('a', 'b', 'a')"),
        (tuple(f"pixel{number}" for number in range(17)), "at most 16"),
    ],
)
def test_what_is_declared_is_checked_when_a_run_is_set_up(make: Make, terms: Any, words: str):
    class Declaring(Undeclared):
        """Declares too much or nothing."""

    Declaring.terms = terms
    with pytest.raises(FedshiftError) as caught:
        Simulation(make().replace(method=Declaring()))
    assert words in str(caught.value)
    assert "objective 'train'" in str(caught.value)


def test_a_loss_without_terms_is_refused(make: Make):
    class Empty(FedAvg):
        """Returns nothing."""

        def loss(self, net, batch, context):
            return {}

    with pytest.raises(FedshiftError, match="'train' returns nothing: return terms by name"):
        go_on(Simulation(make().replace(method=Empty())))


BAD = [
    ({"term.pixel": torch.tensor(0.5, dtype=torch.float64)}, FedshiftError, "'term.pixel', which no objective"),
    ({"pixels": torch.zeros(20)}, FedshiftError, "'pixels', which no objective"),
    ({"term.cross_entropy": torch.tensor(0.5)}, FedshiftError, "as torch.float32 [], declared as torch.float64 []"),
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
    with pytest.raises(kind) as caught:
        check(simulation, {**good, **changed})
    assert words in str(caught.value)
    assert "The telemetry of client 'dark', round 1 in the exchange 'train'" in str(caught.value)


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


NAMES = st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True).map(tuple)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), NAMES), min_size=1, max_size=4))
def test_no_term_hides_another(objectives: list[tuple[str, tuple[str, ...]]]):
    """Whatever phases declare, every term has a name of its own."""
    phases = tuple(
        Phase(f"phase{number}", (Objective(name, nothing, (), terms), Objective("c", nothing, (), terms)))
        for number, (name, terms) in enumerate(objectives)
    )
    names = term_names(phases)
    assert len(set(names.values())) == len(names) == sum(2 * len(terms) for _, terms in objectives)


def test_the_command_line_lists_terms(capsys: pytest.CaptureFixture[str]):
    from fedshift.cli.catalogues import print_named

    print_named("fedprox", {})
    assert "Loss terms, whose means leave the client: cross_entropy, proximal" in capsys.readouterr().out
    print_named("ditto", {})
    assert "Loss terms, whose means leave the client: cross_entropy, personal, pull" in capsys.readouterr().out
