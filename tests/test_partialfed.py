"""PartialFed by hand, what Fix is for some layers, and how Adaptive chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import CNN_WITH_BN, Make, at, evaluated, go_on, linear, models_of, simulate, states
from fedshift.core.contract import Batch, Part
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Tensors
from fedshift.methods.partialfed import MOST_LAYERS, PartialFed, PartialFedAdaptive
from fedshift.runs.simulation import Simulation
from quadratics import PLAIN
from refusal import refuses
from test_fedrep import Factor, product

FIX, ADAPTIVE = {"method.name": "partialfed"}, {"method.name": "partialfed-adaptive"}


# Fix ------------------------------------------------------------------------------------------------


class Product(PartialFed):
    """1/2 (h u - c_k)^2 of the encoder's u and the head's h, with c = (3, -1); h is the client's own."""

    def parts(self, model):
        modules = {"encoder": Factor(3), "head": Factor(3)}
        last = {"head.w": modules["head"].w, "done": torch.zeros(())}
        return {**{name: Part(module) for name, module in modules.items()}, "last": Part(holder(last), "client")}

    def risk(self, net, batch, context):
        return product(net, context)


def test_two_rounds_by_hand(make: Make):
    """One step of 0.1 a round, from u = h = 1, with e = h u - c: u - 0.1 e h and h - 0.1 e u.

    Round 1: e = -2 and 2; both have (u, h) = (1.2, 1.2) and (0.8, 0.8), whose mean is (1, 1).
    Round 2: client 0 begins with u = 1 and its h = 1.2: e = -1.8, u = 1 + 0.18 * 1.2 = 1.216, h = 1.2 + 0.18 = 1.38;
    client 1 with u = 1 and h = 0.8: e = 1.8, u = 1 - 0.18 * 0.8 = 0.856, h = 0.8 - 0.18 = 0.62. The mean is u = 1.036,
    h = 1. FedAvg would stay at (1, 1). The clients predict with u = 1.036 and their own h, the unseen with h = 1.
    """
    simulation = Simulation(make({**PLAIN, "train.steps": 1}).replace(method=Product(own=("head",))))
    for u, own in ((1.0, [1.2, 0.8]), (1.036, [1.38, 0.62])):
        go_on(simulation)
        shared = simulation.coordinator.state.shared
        assert shared["encoder.w"].item() == pytest.approx(u, abs=1e-6)
        assert shared["head.w"].item() == pytest.approx(1.0, abs=1e-6)
        assert [state.tensors["last.head.w"].item() for _, state in states(simulation)] == pytest.approx(own, abs=1e-6)
    method = simulation.experiment.method
    for environment in simulation.federated.environments:
        (model,) = models_of(simulation, replace(environment, own=True))
        begun = model | method.begin(model, model)
        h = 1.0 if environment.client is None else [1.38, 0.62][environment.client]
        assert begun["head.w"].item() == pytest.approx(h, abs=1e-6)


def test_with_batch_norm_of_its_own_it_is_fedbn_for_a_client_to_the_bit(make: Make):
    """All clients take part, and moments begin again in every round, as those of shared layers do.

    A client's batch norm, all that is averaged of the rest, and its model are FedBN's. The average of the batch norms
    is there as well, and an unseen client is predicted for with it, which is FedBN's mean of them, to rounding.
    """
    changes = {"train.rounds": 3, **CNN_WITH_BN}
    ours = simulate(make({**changes, **FIX, "method.own": ["bn"]}))
    fedbn = simulate(make({**changes, "method.name": "fedbn"}))
    mine, theirs = ours.coordinator.state.shared, fedbn.coordinator.state.shared
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())
    kept = dict(states(fedbn))
    for client, state in states(ours):
        last = Tensors(state.tensors).of("last")
        assert set(last) - {"done"} == set(kept[client].tensors) == mine.keys() - theirs.keys()
        assert all(torch.equal(last[name], tensor) for name, tensor in kept[client].tensors.items())
    rows = [evaluated(each, each.coordinator.schedule[-1])["environments"] for each in (ours, fedbn)]
    for environment in ours.federated.environments[:2]:
        (own,), (other,) = (models_of(each, replace(environment, own=True)) for each in (ours, fedbn))
        begun = own | ours.experiment.method.begin(own, own)
        assert other
        assert all(torch.equal(begun[name], tensor) for name, tensor in other.items())
    for one, other in zip(*rows, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


@pytest.mark.parametrize(("own", "plain"), [([], "fedavg"), (["encoder", "head"], "single")])
def test_with_no_layer_of_its_own_it_is_fedavg_and_with_all_local_training(make: Make, own: list[str], plain: str):
    changes = {"train.rounds": 3, **CNN_WITH_BN}
    ours = simulate(make({**changes, **FIX, "method.own": own}))
    other = simulate(make({**changes, "method.name": plain}))
    for environment in ours.federated.environments[:2]:
        (mine,), (theirs,) = (models_of(each, replace(environment, own=True)) for each in (ours, other))
        model = mine | ours.experiment.method.begin(mine, mine)
        assert theirs
        assert all(torch.equal(model[name], tensor) for name, tensor in theirs.items())


def test_layers_can_be_named_and_a_wrong_name_is_an_error(make: Make):
    named = Simulation(make({**FIX, **CNN_WITH_BN, "method.own": ["encoder.0", "head"]}))
    own = {"encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias", "done"}
    assert set(named.site.initial) == {f"last.{name}" for name in own}
    with refuses("method.own", "'classifier'", "bn, encoder", "encoder.1"):
        Simulation(make({**FIX, "method.own": ["classifier"]}))


# Adaptive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "temperature", "risk", "gradient"),
    [(1.0, 1.0, 0.0181499, -0.0179862), (1.0, 0.5, 0.0181499, -0.0359724), (0.0, 1.0, 0.1269280, 0.0)],
)
def test_the_choice_by_hand(done: float, temperature: float, risk: float, gradient: float):
    """X = 1 of y = 0; w_t: z = x, the client's own: z = 3x; the head, logits (z, -z), is the same in both.

    Uniform noise of 1/2 is logistic noise of 0, so a = sigmoid(0) = 1/2 and z = 2: CE = log(1 + e^-4) = 0.0181499, with
    q = 0.0179862 the probability of the wrong class. dCE/dz = -2 q, dz/da = 3 - 1, da/ds = 1/4 / temperature: -q at
    temperature 1, -2 q at 1/2. The head's choice makes no difference. Without last values, whatever a is, w_t alone
    counts: CE = log(1 + e^-2) = 0.1269280 and no gradient. The model running, z = 9x, is not read.
    """
    last = {"encoder.weight": torch.tensor([[3.0]]), "head.weight": torch.tensor([[1.0], [-1.0]])}
    choice = nn.ParameterDict({"logit": nn.Parameter(torch.zeros(2))})
    kept = {"last": holder({**last, "done": torch.tensor(done)}), "choice": choice}
    net = Net({"encoder": linear(9.0), "head": linear(9.0, 9.0), **kept})
    phase, _ = PartialFedAdaptive(temperature=temperature).phases()
    (objective,) = phase.objectives
    assert objective.moves == ("choice",)
    received = {**last, "encoder.weight": torch.tensor([[1.0]])}
    context = at(received=received, noise={"uniform": torch.full((MOST_LAYERS,), 0.5)})
    terms = objective.evaluate(net, Batch(torch.tensor([[1.0]]), torch.tensor([0])), context)
    assert terms["choice"].item() == pytest.approx(risk, abs=1e-6)
    terms["choice"].backward()
    assert choice["logit"].grad.tolist() == pytest.approx([gradient, 0.0], abs=1e-6)


def test_layers_with_a_positive_logit_are_the_clients_own():
    """In the layers' sorted order, encoder then head: 0.1 and 0, and the client's own once it has any."""
    values = {"last.encoder.weight": 1.0, "last.head.weight": 2.0, "last.head.bias": 3.0}
    private = Tensors({name: torch.tensor([value]) for name, value in values.items()})
    private = private | {"last.done": torch.tensor(1.0), "choice.logit": torch.tensor([0.1, 0.0])}
    shared = Tensors({name.removeprefix("last."): torch.tensor([9.0]) for name in values})
    fresh = private | {"last.done": torch.tensor(0.0)}
    for own, encoder in ((private, 1.0), (fresh, 9.0)):
        begun = PartialFedAdaptive().begin(own, shared)
        expected = {"encoder.weight": encoder, "head.weight": 9.0, "head.bias": 9.0}
        assert {name: tensor.item() for name, tensor in begun.items()} == expected


def test_a_client_chooses_for_itself_once_it_has_layers_of_its_own(make: Make):
    """In the first round there is nothing to choose from; later choices differ."""
    simulation = Simulation(make({**ADAPTIVE, "train.rounds": 4, **CNN_WITH_BN}))
    go_on(simulation)
    assert all(not state.tensors["choice.logit"].any() for _, state in states(simulation))
    for _ in range(3):
        go_on(simulation)
    chosen = torch.stack([state.tensors["choice.logit"] for _, state in states(simulation)]) > 0
    assert chosen.any()
    assert not chosen.all()


@pytest.mark.parametrize(("done", "p"), [(1.0, 0.9975274), (0.0, 0.8807971)])
def test_a_client_predicts_with_the_model_it_would_start_from(done: float, p: float):
    """Encoders z = x and, its own, z = 3x; logits (z, -z) at x = 1: sigmoid(6), and sigmoid(2) without an own one."""
    last = holder({"encoder.weight": torch.tensor([[3.0]]), "done": torch.tensor(done)})
    net = Net({"encoder": linear(1.0), "head": linear(1.0, -1.0), "last": last})
    predicted = PartialFed(own=("encoder",)).predict(net, torch.tensor([[1.0]]), {}).exp()
    assert predicted[0, 0].item() == pytest.approx(p, abs=1e-6)
