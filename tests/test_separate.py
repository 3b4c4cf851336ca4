"""Coordinator and sites in separate processes over plain bytes: the same bits as in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load

from conftest import Make, evaluated, simulate, states
from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, pack
from fedshift.core.tensors import Tensors
from fedshift.runs.simulation import Simulation
from reference import ARCHETYPES, small
from separate import Processes, every_tensor, fingerprints, processes
from test_methods import KEPT_AS_SENT


@pytest.fixture(scope="module")
def running() -> Iterator[Processes]:
    with processes(sites=2) as started:
        yield started


@pytest.mark.parametrize("name", ARCHETYPES)
def test_the_same_bits_in_separate_processes(make: Make, running: Processes, name: str):
    """Server tensors, every client's state, scores, loss terms, bytes and declarations are equal.

    The coordinator's process loads neither sites nor simulations, and none of its tensors, or of their rows, is a
    sample or what training made of a private tensor.
    """
    # A batch of one environment's samples: a product of more rows at once is rounded differently.
    experiment = make({**small(name), "protocol": {"name": "in-domain"}, "evaluate.batch": 6})
    here = simulate(experiment)
    federation = here.federated
    about = {
        "experiment": experiment.table(),
        "shape": list(federation.shape),
        "classes": len(federation.classes),
        "names": {client.id: client.name for client in federation.clients},
    }
    ended, kept = running.run(json.loads(json.dumps(about)))
    coordinator = here.coordinator
    there = load(ended)
    assert there.keys() == coordinator.state.tensors.keys()
    assert all(torch.equal(tensor, there[key]) for key, tensor in coordinator.state.tensors.items())
    assert kept == {client: pack(state.flat()) for client, state in states(here)}
    told = json.loads(json.loads(ended[8 : 8 + int.from_bytes(ended[:8], "little")])["__metadata__"]["told"])
    rows = [row for of_client in told["rows"] for row in of_client]
    expected = evaluated(here, coordinator.schedule[-1])["environments"]
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, expected))
    assert told["terms"] == coordinator.terms
    assert told["bytes"] == [coordinator.bytes_down, coordinator.bytes_up, coordinator.bytes_telemetry]
    assert told["messages"] == coordinator.ledger.declaration()
    assert told["loaded"] == []
    assert fingerprints(list(coordinator.state.tensors.values())) <= set(told["seen"])
    assert not set(told["seen"]) & private(here)


def private(simulation: Simulation) -> set[str]:
    """Digests of samples, and of what clients keep and never sent; not of what is public: initial and sent values."""
    samples = fingerprints([row for client in simulation.federated.clients for row in client.train.x.flatten(1)])
    assert samples
    kept = [tensor for _, state in states(simulation) for tensor in state.tensors.values()]
    return (samples | fingerprints(kept)) - fingerprints(list(public(simulation)))


def public(simulation: Simulation) -> Iterator[torch.Tensor]:
    """Values that the coordinator may know: those that everything starts with, and those that clients sent."""
    yield from simulation.site.initial.values()
    if copy := KEPT_AS_SENT.get(simulation.experiment.method_name):
        for _, state in states(simulation):
            yield from (tensor for name, tensor in state.tensors.items() if name.startswith(copy))
    exchanges = (exchange for stage in simulation.setup.stages for exchange in stage.exchanges)
    revealed = {upload.reveals for exchange in exchanges for upload in exchange.uploads}
    for _, state in states(simulation):
        yield from Tensors(state.tensors).of_parts(revealed).values()


def test_a_process_that_holds_samples_and_private_tensors_would_be_noticed(make: Make):
    simulation = simulate(make({**small("fedpin"), "protocol": {"name": "in-domain"}}))
    assert private(simulation) <= fingerprints(every_tensor())


def test_orders_and_answers_survive_the_wire_bit_for_bit():
    tensors = {"w": torch.tensor([float("nan"), -0.0, 1e-45]), "n": torch.tensor(3), "b": torch.tensor([True])}
    order = Order("r", "train", 3, "train", 7, Down(tensors))
    again = Order.from_bytes(order.to_bytes())
    assert again.to_bytes() == order.to_bytes()
    assert (again.run, again.stage, again.round, again.exchange, again.client) == ("r", "train", 3, "train", 7)
    assert Order.from_bytes(Order("r", "s", 1, "x", 0, Down({})).to_bytes()).down.keys() == set()
    telemetry = Telemetry.from_numbers({"cross_entropy": 0.1 + 0.2}, 5)
    answer = Answer("r", "train", 3, "train", 7, Up(tensors), telemetry)
    back = Answer.from_bytes(answer.to_bytes())
    assert back.to_bytes() == answer.to_bytes()
    assert back.telemetry.terms == {"cross_entropy": 0.1 + 0.2}
    assert int(back.telemetry["steps"]) == 5


def test_a_site_refuses_orders_of_another_run(make: Make):
    from fedshift.errors import FedshiftError

    simulation = Simulation(make())
    with pytest.raises(FedshiftError, match="An order of the run other came to a site of the run tiny-seed0"):
        simulation.site.job(Order("other", "train", 1, "train", 0, Down({})))
