"""Loss terms are telemetry: declared, scalar, few, finite, and refused otherwise, by the engine and the coordinator."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from conftest import Make, at, go_on, values
from fedshift.cli.catalogues import print_named
from fedshift.core.contract import Batch, Objective, Phase, Term, term_names
from fedshift.core.messages import Answer, Telemetry, Up
from fedshift.core.net import Net
from fedshift.engines.kernels import Kernels
from fedshift.engines.merging import kind
from fedshift.engines.vectorised import Vectorised
from fedshift.errors import DivergedError, FedshiftError
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds.message_checks import check_answer
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from fedshift.spec import setting
from reference import BUILT_IN, reference
from refusal import refuses

# Names --------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_gets_its_objectives_or_its_phases_before_it():
    term = Term(lambda net, batch, context: torch.zeros(()))
    a, b = (Objective(name, {"x": term, own: term}, ()) for name, own in (("a", "y"), ("b", "z")))
    assert term_names((Phase("one", (a, b)), Phase("two", (b,)))) == {
        ("one", "a", "x"): "x",
        ("one", "a", "y"): "y",
        ("one", "b", "x"): "b.x",
        ("one", "b", "z"): "z",
        ("two", "b", "x"): "two.x",
        ("two", "b", "z"): "two.z",
    }


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_declares_what_it_tells(name: str):
    """All that it declares receives in three rounds, and nothing else, or the run would have ended."""
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
    assert told - {"steps"} == declared


# What is refused ----------------------------------------------------------------------------------


class Given(FedAvg):
    """Terms that a test gives."""

    given: ClassVar[Any] = {}

    def terms(self):
        return super().terms() | self.given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 0.5}, ("0.5 for 'size'", "Term(self.risk)")),
        ({"size": Term(lambda net, batch, context: batch.z.mean(dim=1))}, ("'size'", "of the shape (4,)", "scalar")),
        ({"size": Term(lambda net, batch, context: None)}, ("'size'", "a NoneType", "scalar")),
        ({f"pixel{number}": Term(FedAvg().risk) for number in range(16)}, ("objective 'train'", "at most 16")),
        ({"cross_entropy": Term(FedAvg().risk, since=2)}, ("objective 'train'", "from round 1 on")),
    ],
)
def test_what_is_no_term_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch, given: Any, words: tuple[str, ...]):
    monkeypatch.setattr(Given, "given", given)
    with refuses(*words):
        go_on(Simulation(make().replace(method=Given())))


# Weights and rounds -------------------------------------------------------------------------------


class Weighed(FedAvg):
    """Terms by a weight of either sign, and one that begins later."""

    mu: float = setting(0.5, help="a number")

    def terms(self):
        own = {"drift": Term(self.drift, -self.mu / 2), "late": Term(self.drift, 2.0, since=2)}
        return super().terms() | own

    def drift(self, net, batch, context):
        return (net.weights - context.received).squared_norm()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "stacked"])
def test_a_term_of_the_weight_0_is_left_out_and_one_that_begins_later_counts_then(make: Make, together: bool):
    """Two runs of each weight; those with 0 and without are not stacked, and the others are."""
    made = make({"train.precision": "float64"})
    simulations = [Simulation(made.replace(method=Weighed(mu=mu))) for mu in (0.0, 0.25, 0.0, 0.5)]
    kinds = [kind(simulation.setup) for simulation in simulations]
    assert kinds[0] == kinds[2] != kinds[1] == kinds[3]
    told = list[str]()
    for round in (1, 2):
        if together:
            assert not advance(simulations, Vectorised(Kernels(), told.append))
        else:
            for simulation in simulations:
                go_on(simulation)
        terms = [simulation.coordinator.terms["dark"] for simulation in simulations]
        late = {"late"} if round == 2 else set()
        assert [set(each) for each in terms] == [{"cross_entropy", *own, *late} for own in ((), ("drift",)) * 2]
        assert terms[1]["drift"] < 0
    assert terms[1]["drift"] == pytest.approx(-0.0625 * terms[1]["late"])
    assert terms[3]["drift"] == pytest.approx(-0.125 * terms[3]["late"])
    assert not told


def test_what_terms_share_is_made_once_in_a_step():
    calls: list[int] = []

    def doubled(x: Tensor) -> Tensor:
        calls.append(len(x))
        return 2 * x

    def value(net: Any, batch: Batch, context: Any) -> Tensor:
        return batch.once(doubled, batch.x).sum()

    objective = Objective("train", {"one": Term(value), "other": Term(value, 0.5)}, ())
    batch = Batch(torch.ones(3))
    assert values(objective.evaluate(Net({}), batch, at())) == {"one": 6.0, "other": 3.0}
    assert calls == [3]
    assert objective.loss(Net({}), batch, at()).item() == 9.0
    assert calls == [3, 3]
    assert batch.once(doubled, batch.x) is not batch.once(doubled, batch.x)  # outside of a step


# Telemetry ----------------------------------------------------------------------------------------

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
