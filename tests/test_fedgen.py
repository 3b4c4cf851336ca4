"""FedGen's losses of server and clients by hand: every local head teaches, by its class counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from conftest import Make, at, names_sent, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors, part_of
from fedshift.methods.fedgen import FedGen, likeness, taught
from fedshift.methods.generator import log_mixture, logits_of_each
from fedshift.runs.simulation import Simulation

LOG9 = torch.log(torch.tensor(9.0)).item()


class Shifted(nn.Module):
    """A generator by hand: noise plus ``shift`` for label 0, minus it for label 1."""

    def __init__(self, shift: float):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, noise, y):
        return noise + self.shift * (1 - 2 * y.unsqueeze(1))


def head(*weights: float) -> nn.Linear:
    layer = nn.Linear(1, len(weights), bias=False)
    layer.weight.data = torch.tensor(weights).unsqueeze(1)
    return layer


def replies(*heads: tuple[float, float], counts: list[list[int]]) -> Replies:
    """Clients whose heads have the logits weights * z."""
    return Replies(
        (k, Up({"head.weight": torch.tensor(weights).unsqueeze(1), "class_counts.value": torch.tensor(count)}))
        for k, (weights, count) in enumerate(zip(heads, counts, strict=True))
    )


COUNTS = [[3, 1], [1, 0]]


def server_loss(method: FedGen, came: Replies) -> tuple[dict[str, torch.Tensor], Net]:
    """G(0, y) is 1 for label 0 and -1 for label 1, each asked for once; the server's own head plays no part."""
    net = Net({"head": head(5.0, 0.0), "generator": Shifted(1.0)})
    noise = {"labels": torch.tensor([0.2, 0.7]), "noise": torch.zeros(2, 1)}
    return method.generator_loss(net, Batch(*torch.empty(2, 0)), at(noise=noise, replies=came)), net


def test_the_loss_of_the_server_by_hand():
    """Client 0 has 3 of class 0 and 1 of class 1, client 1 has 1 and 0. Heads: (log 9 z, 0) and (0, 0).

    Label 0, z = 1: head 0 has -log 0.9 = 0.1053605, head 1 log 2 = 0.6931472, shares 3/4 and 1/4: 0.2523072.
    Label 1, z = -1: head 0 has -log 0.9 again and the whole share: 0.1053605. Mean: 0.1788338.
    Noise is the same for both, so the diversity term is exp(0) = 1.
    d/dz of -log softmax_0 of head 0 at z = 1 is -log 9 * 0.1, and the shift moves z by +1 and -1, with the same effect:
    gradient (3/4 + 1) / 2 * -0.2197225 = -0.1922572.
    """
    terms, net = server_loss(FedGen(), replies((LOG9, 0.0), (0.0, 0.0), counts=COUNTS))
    assert terms["taught"].item() == pytest.approx(0.1788338, abs=1e-6)
    assert terms["diversity"].item() == 1.0
    sum(terms.values()).backward()
    assert net.generator.shift.grad.item() == pytest.approx(-0.1922572, abs=1e-6)
    assert net.head.weight.grad is None


def test_labels_are_those_of_classes_that_the_rounds_clients_have():
    """Nobody has class 1, so both labels are 0 with z = 1, and 0.2523072, as above, is the mean; else half of it."""
    terms, _ = server_loss(FedGen(), replies((LOG9, 0.0), (0.0, 0.0), counts=[[3, 0], [1, 0]]))
    assert terms["taught"].item() == pytest.approx(0.2523072, abs=1e-6)


def test_every_local_head_teaches_what_it_saw():
    """Head 1 becomes (-log 9 z, 0): its loss of label 0 at z = 1 is -log 0.1 = 2.3025851 in the place of 0.6931472.

    The loss rises by (1/4) (2.3025851 - 0.6931472) / 2 = 0.2011797; for label 1 it has no say. Head 0 becomes
    (0, 0): 0.6931472 for both labels. Neither is what the mixture or the mean of the heads would give.
    """
    before, _ = server_loss(FedGen(), replies((LOG9, 0.0), (0.0, 0.0), counts=COUNTS))
    after, _ = server_loss(FedGen(), replies((LOG9, 0.0), (-LOG9, 0.0), counts=COUNTS))
    assert (after["taught"] - before["taught"]).item() == pytest.approx(0.2011797, abs=1e-6)
    other, _ = server_loss(FedGen(), replies((0.0, 0.0), (0.0, 0.0), counts=COUNTS))
    assert other["taught"].item() == pytest.approx(0.6931472, abs=1e-6)
    z, came = torch.ones(1, 1), replies((LOG9, 0.0), (-LOG9, 0.0), counts=COUNTS)
    ours = taught(logits_of_each(head(0.0, 0.0), came, z), torch.tensor([0]), torch.tensor(COUNTS)).item()
    assert ours == pytest.approx(0.75 * 0.1053605 + 0.25 * 2.3025851, abs=1e-6)
    mixture = -log_mixture(head(0.0, 0.0), came.weighted([3, 1]), z)[0, 0].item()
    assert mixture == pytest.approx(0.3566749, abs=1e-6)  # -log(0.75 * 0.9 + 0.25 * 0.1)
    assert abs(ours - mixture) > 0.2


def test_the_ensemble_agrees_with_a_loop_in_float64():
    generator = torch.Generator().manual_seed(1)
    heads = [nn.Linear(3, 4).double() for _ in range(5)]
    for each in heads:
        for parameter in each.parameters():
            parameter.data.normal_(generator=generator)
    came = Replies((k, Tensors(each.state_dict()).under("head")) for k, each in enumerate(heads))
    counts = torch.randint(5, (5, 4), generator=generator)
    counts[:, 2] = 0  # a class that nobody has
    z, y = torch.randn(6, 3, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 3, 0])
    expected = 0.0
    for row, label in zip(z, y.tolist(), strict=True):
        for k, each in enumerate(heads):
            if counts[:, label].sum() > 0:
                share = (counts[k, label] / counts[:, label].sum()).item()
                expected -= share * each(row).log_softmax(dim=0)[label].item() / len(y)
    ours = taught(logits_of_each(nn.Linear(3, 4).double(), came, z), y, counts)
    assert ours.item() == pytest.approx(expected, rel=1e-6)


def test_the_diversity_by_hand():
    """Noise (0, 0) and (1, 1), made to (0, 0) and (2, 4).

    Squared distances have the mean 1 over dimensions, absolute ones 3. Two of the four pairs are apart:
    exp(-1 * 3 * 2 / 4) = e^-1.5 = 0.2231302.
    """
    noise, z = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [2.0, 4.0]], requires_grad=True)
    ours = likeness(noise, z)
    assert ours.item() == pytest.approx(0.2231302, abs=1e-6)
    ours.backward()
    assert (z.grad[1] < 0).all()  # descent drives them apart


def test_eta_weighs_the_diversity():
    terms, _ = server_loss(FedGen(eta=0.3), replies((LOG9, 0.0), (0.0, 0.0), counts=COUNTS))
    assert terms["diversity"].item() == pytest.approx(0.3)


# The client's objective ---------------------------------------------------------------------------


def client_net(counts: list[int]) -> Net:
    """Z = x; logits (z, -z); G(e, y) = e +- 1."""
    held = holder({"value": torch.tensor(counts)})
    return Net({"encoder": nn.Identity(), "head": head(1.0, -1.0), "generator": Shifted(1.0), "class_counts": held})


BATCH = Batch(torch.tensor([[2.0]]), torch.tensor([0]))
NOISE = {
    "noise_of_batch": torch.tensor([[0.0]]),
    "labels": torch.tensor([0.1]),
    "noise": torch.tensor([[0.25]]),
}


def test_the_loss_of_a_client_by_hand():
    """One image x = 2 of class 0 in round 2; only class 1 was ever counted, so y~ = 1 although the draw is low.

    CE = log(1 + e^-4) = 0.0181499. a = b = 10 * 0.98^2 = 9.604.
    G(0.25, 1) = -0.75 has the logits (-0.75, 0.75): log(1 + e^-1.5) = 0.2014133, times a: 1.9343733.
    G(0, 0) = 1 has the logits (1, -1): q = (0.8807971, 0.1192029); the image p = (0.9820138, 0.0179862).
    KL(q || p) = 0.8807971 log(q_0/p_0) + 0.1192029 log(q_1/p_1) = 0.1296278, times b: 1.2449450.
    Gradient of the head's w_0 (w_1 opposite), each p - onehot times z, with sg on q:
    CE: (0.9820138 - 1) * 2 = -0.0359724; generated: a * 0.1824255 * -0.75 = -1.3140111;
    distilled: b * (0.9820138 - 0.8807971) * 2 = 1.9441702.
    """
    net = client_net([0, 5])
    terms = FedGen().objective("train").evaluate(net, BATCH, at(round=2, noise=NOISE))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.0181499, "generated": 1.9343733, "distilled": 1.2449450}, abs=1e-6
    )
    for term, gradient in zip(terms.values(), (-0.0359724, -1.3140111, 1.9441702), strict=True):
        (found,) = torch.autograd.grad(term, net.head.weight, retain_graph=True)
        assert found.flatten().tolist() == pytest.approx([gradient, -gradient], abs=1e-5)
    sum(terms.values()).backward()
    assert net.generator.shift.grad is None


def test_the_first_round_is_cross_entropy_alone():
    terms = FedGen().objective("train").evaluate(client_net([0, 0]), BATCH, at(round=1, noise=NOISE))
    assert terms.keys() == {"cross_entropy"}


def test_both_weights_fade_by_a_fiftieth_a_round():
    objective = FedGen().objective("train")
    early, late = (objective.evaluate(client_net([1, 1]), BATCH, at(round=t, noise=NOISE)) for t in (7, 8))
    for name in ("generated", "distilled"):
        assert (late[name] / early[name]).item() == pytest.approx(0.98, rel=1e-5)


# In a federation ----------------------------------------------------------------------------------


def test_the_rate_of_the_generator_falls_by_a_fiftieth_a_round(make: Make):
    """Adam with its first moments moves by the rate at most; with the rates of later rounds near 0 it stands still."""
    (phase,) = FedGen().server_phases()
    (objective,) = phase.objectives
    assert (objective.optimiser.lr, objective.optimiser.decay) == (3e-4, 0.98)
    assert (phase.steps, objective.optimiser.weight_decay) == (50, 1e-2)
    still = {"method": {"name": "fedgen", "generator_decay": 1e-9}}
    one, two = (simulate(make(still), rounds=rounds).coordinator.state.down.of("generator") for rounds in (1, 2))
    weights = [name for name in one if name.endswith("weight")]
    assert all(torch.allclose(one[name], two[name], atol=1e-7) for name in weights)
    start = Simulation(make(still)).coordinator.state.down.of("generator")
    assert not any(torch.allclose(one[name], start[name], atol=1e-5) for name in weights)


def test_counts_are_merged_and_a_class_that_was_seen_stays_seen():
    """3 + 1 of class 0, nothing of class 1, of which there were 5 before, and of class 2 never."""
    counts = [[3, 0, 0], [1, 0, 0]]
    came = replies((0.0, 0.0), (0.0, 0.0), counts=counts)
    state = ServerState(
        Tensors({"head.weight": torch.ones(2, 1)}), Tensors({"class_counts.value": torch.tensor([9, 5, 0])})
    )
    merged = FedGen().merge(state, came)
    assert merged.down["class_counts.value"].tolist() == [4, 5, 0]
    assert merged.shared["head.weight"].flatten().tolist() == [0.0, 0.0]


def test_without_both_terms_it_is_fedavg(make: Make):
    changes: dict[str, Any] = {"train.rounds": 3}
    plain = simulate(make(changes)).coordinator.state.shared
    ours = simulate(make({**changes, "method": {"name": "fedgen", "alpha": 0, "beta": 0, "generator_steps": 2}}))
    assert all(torch.equal(tensor, plain[name]) for name, tensor in ours.coordinator.state.shared.items())


def test_what_crosses(make: Make):
    """Label counts leave, and say that they are counts; the generator goes down and nothing of it comes back."""
    simulation = simulate(make({"method": {"name": "fedgen", "generator_steps": 1}}))
    down, up = (names_sent(simulation, "train", direction) for direction in ("down", "up"))
    assert {part_of(name) for name in down} == {"encoder", "head", "generator", "class_counts"}
    assert {part_of(name) for name in up} == {"encoder", "head", "class_counts"}
    setup = simulation.setup
    ((exchange,),) = (stage.exchanges for stage in setup.stages)
    assert setup.declaration(exchange).categories["class_counts.value"] == "count"
    assert simulation.coordinator.state.down["class_counts.value"].tolist() == [
        18,
        18,
        18,
    ]  # 9 of each class, 2 clients
    assert {part_of(name) for name in simulation.coordinator.state.optimisers["generator.ensemble"]} == {"generator"}


def test_presets_are_those_of_fedcirs_baselines():
    """(KL weight, generator weight): Table 1 of FedCiR."""
    assert {name: (preset["beta"], preset["alpha"]) for name, preset in FedGen.presets.items()} == {
        "domainnet": (1.0, 0.5),
        "pacs": (1.0, 0.5),
        "office-caltech-10": (0.5, 1.0),
        "camelyon17": (1.0, 1.0),
        "iwildcam": (1.0, 1.0),
    }
    assert all(preset["generator_steps"] == 5 for preset in FedGen.presets.values())
