"""FRAug's three losses, prototypes and MMD against numbers derived by hand, who moves when, and FedBN as a limit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import CNN_WITH_BN, Make, at, exchanged, go_on, models_of, net_of, simulate, states
from fedshift.clients.samples import Samples
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.core.state import ClientState
from fedshift.core.tensors import Replies
from fedshift.methods import METHODS
from fedshift.methods.fedbn import FedBN
from fedshift.methods.fraug import FRAug
from fedshift.methods.fraug_code import FRAugCode
from fedshift.methods.fraug_networks import Prototypes, bandwidth, entropy, make_generator, make_rtnet, mmd, mmd_of_each
from fedshift.methods.head_retraining import HeadRetraining, part_of
from fedshift.runs.simulation import Simulation
from refusal import refuses

FRAUG = {"method.name": "fraug"} | CNN_WITH_BN


class Affine(nn.Module):
    """Stands for g or m: gain * x + shift * y."""

    def __init__(self, gain, shift):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.tensor(gain)), shift

    def forward(self, x, y):
        return self.gain * x + self.shift * y.unsqueeze(1)


def net_of_one_dimension(gain_of_m=1.0):
    """Made of u = x, logits (u, -u), g(z, y) = 2z + y, m(v, y) = gain * v; no prototype yet."""
    encoder, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
    encoder.weight.data = torch.tensor([[1.0]])
    head.weight.data = torch.tensor([[1.0], [-1.0]])
    return Net(
        {
            "encoder": encoder,
            "head": head,
            "generator": Affine(2.0, 1.0),
            "rtnet": Affine(gain_of_m, 0.0),
            "prototypes": Prototypes(2, 1),
        }
    )


def column(*values):
    return torch.tensor(values).unsqueeze(1)


def values(terms):
    return {name: term.item() for name, term in terms.items()}


def context(z, z_classes, round=1, rounds=1):
    return at(round=round, rounds=rounds, noise={"z": z, "z_classes": z_classes})


# The head's loss (Eq. 1-3) ----------------------------------------------------------------------------


def test_the_models_loss_and_gradients_by_hand():
    """With d = 1, two classes, u = (1, -1), y = (0, 1), m(v) = 3v, l_syn = 0.5.

    CE(h(u), 0) = log(1 + e^(-2u)), CE(h(u), 1) = log(1 + e^(2u)): both log(1 + e^-2) = 0.1269280.
    z = (0.5, -0.25): g = (1, 0.5), m = (3, 1.5), u^ = (1 + 1.5, -1 + 0.75) = (2.5, -0.25);
      CE = (log(1 + e^-5) + log(1 + e^-0.5)) / 2 = (0.0067153 + 0.4740770) / 2 = 0.2403962.
    The first batch sets u_0 = 1, u_1 = -1. z' = (0.25, -0.5): g = (0.5, 0), m = (1.5, 0), u^_c = (1.75, -1);
      the sum over classes is log(1 + e^-3.5) + log(1 + e^-2) = 0.0297503 + 0.1269280 = 0.1566783.
    d/dw_0 of the head, with the probability p of the wrong class, is -p u for y = 0 and p u for y = 1:
      real: (-0.1192029 * 1 + 0.1192029 * -1) / 2 = -0.1192029;
      u^: (-0.0066929 * 2.5 + 0.3775407 * -0.25) / 2 = -0.0555587;
      u^_c: -0.0293122 * 1.75 + 0.1192029 * -1 = -0.1704993; together -0.3452609.
    d/dw of the encoder is that of the real term only: (-2 * 0.1192029 * 1 + 2 * 0.1192029 * -1) / 2 = -0.2384058.
    """
    net = net_of_one_dimension(gain_of_m=3.0)
    method = FRAug(smoothing=False, syn_weight=0.5)
    batch = Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    terms = method.objective("model").evaluate(net, batch, context(column(0.5, -0.25), column(0.25, -0.5)))
    assert values(terms) == pytest.approx(
        {"cross_entropy": 0.1269280, "synthetic": 0.2403962, "synthetic_classes": 0.1566783}, abs=1e-6
    )
    sum(terms.values()).backward()
    assert net.encoder.weight.grad.item() == pytest.approx(-0.2384058, abs=1e-6)
    assert net.head.weight.grad[0].item() == pytest.approx(-0.3452609, abs=1e-6)


def test_synthetic_terms_alone_reach_the_head_and_not_the_encoder():
    net = net_of_one_dimension()
    batch = Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    terms = FRAug().objective("model").evaluate(net, batch, context(column(0.5, 0.5), column(0.5, 0.5)))
    (terms["synthetic"] + terms["synthetic_classes"]).backward()
    assert net.encoder.weight.grad is None
    assert net.head.weight.grad.abs().sum() > 0


def test_a_class_never_seen_takes_no_part():
    """Only class 0 is in the batch: u_0 = (1 + 3) / 2 = 2, z' = 0, m = 0: the sum is log(1 + e^-4) = 0.0181499."""
    net = net_of_one_dimension()
    batch = Batch(column(1.0, 3.0), torch.tensor([0, 0]))
    terms = FRAug().objective("model").evaluate(net, batch, context(column(0.0, 0.0), column(0.0, 0.0)))
    assert terms["synthetic_classes"].item() == pytest.approx(0.0181499, abs=1e-6)
    assert net.prototypes.seen.tolist() == [True, False]


def test_without_rtnet_the_residual_is_the_generators_own():
    """Here g = (1, 0.5) as above, l_syn = 1, u^ = (2, -0.5): CE = (log(1 + e^-4) + log(1 + e^-1)) / 2 = 0.1657058."""
    parts = net_of_one_dimension().parts
    del parts["rtnet"]
    batch = Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    noise = context(column(0.5, -0.25), column(0.0, 0.0))
    terms = FRAug(rtnet=False).objective("model").evaluate(Net(parts), batch, noise)
    assert terms["synthetic"].item() == pytest.approx((0.0181499 + 0.3132617) / 2, abs=1e-6)


# Ramps and prototypes (Eq. 4) -------------------------------------------------------------------------


def test_the_residuals_weight_rises_throughout_training():
    """With gamma = 0.01 and T = 300: e^-3, e^-1.5, 1 in rounds 0, 150 and 300, times syn_weight."""
    rounds = [at(round=t, rounds=300) for t in (0, 150, 300)]
    method = FRAug(gamma=0.01, syn_weight=2.0)
    assert [method.l_syn(each) for each in rounds] == pytest.approx([0.09957414, 0.4462603, 2.0])
    assert [FRAug(syn_weight=2.0, smoothing=False).l_syn(each) for each in rounds] == [2.0] * 3


def test_the_prototypes_rate_has_a_ramp_up_of_its_own_length():
    """R = 80: e^(-5/4) in round 40, then the full rate from round 80 on, whatever T is; R = 0: at once."""
    method = FRAug(prototype_ramp=80, prototype_rate=0.5)
    rates = [[method.l_c(at(round=t, rounds=rounds)) for t in (40, 80, 300)] for rounds in (80, 1000)]
    assert rates[0] == rates[1] == pytest.approx([0.5 * 0.2865048, 0.5, 0.5])
    assert FRAug(prototype_ramp=0, prototype_rate=0.3).l_c(at(round=1)) == 0.3
    assert FRAug(prototype_ramp=1).l_c(at(round=1)) == 1.0


def test_prototypes_by_hand():
    """First batch: class 0 has (1, 2) and (3, 4), mean (2, 3); class 2 has (5, 6); class 1 is absent.

    Second: class 0 has (4, 3), so 0.7 * (2, 3) + 0.3 * (4, 3) = (2.6, 3); class 1 has (-1, 8) for the first time.
    """
    prototypes = Prototypes(3, 2)
    prototypes(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([0, 0, 2]), 0.3)
    assert prototypes.mean.tolist() == [[2, 3], [0, 0], [5, 6]]
    assert prototypes.seen.tolist() == [True, False, True]
    mean, seen = prototypes(torch.tensor([[4.0, 3.0], [-1.0, 8.0]]), torch.tensor([0, 1]), 0.3)
    torch.testing.assert_close(mean, torch.tensor([[2.6, 3.0], [-1.0, 8.0], [5.0, 6.0]]))
    assert seen.all()
    before = mean.clone()
    prototypes.eval()
    assert torch.equal(prototypes(torch.ones(1, 2), torch.tensor([0]), 0.3)[0], before)


def test_the_head_meets_the_prototype_that_its_batch_has_moved():
    """l_c = 0.3 and u_0 = 2, batch mean 12: u_0 becomes 5, and with m = 0 the term is log(1 + e^-10) = 0.0000454."""
    net = net_of_one_dimension()
    net.prototypes.mean.copy_(column(2.0, 0.0))
    net.prototypes.seen.copy_(torch.tensor([True, False]))
    batch = Batch(column(12.0, 12.0), torch.tensor([0, 0]))
    method = FRAug(prototype_rate=0.3, prototype_ramp=0)
    terms = method.objective("model").evaluate(net, batch, context(column(0.0, 0.0), column(0.0, 0.0)))
    assert net.prototypes.mean[0].item() == pytest.approx(5.0)
    assert terms["synthetic_classes"].item() == pytest.approx(math.log1p(math.exp(-10)), rel=1e-3)


# MMD and entropy ---------------------------------------------------------------------------------------

MMD_BY_HAND = 2.1261156
MMD_OF_0_AND_1 = 5.4767954


def test_mmd_of_small_sets_by_hand():
    """Sets x = {0, 1}, y = {1, 2}. Unordered squared distances of 0, 1, 1, 2: four of 1, one of 4, one of 0: 8 in all.

    b = 2 * 8 / (16 - 4) = 4/3. With w in (1/4, 1/2, 1, 2, 4):
      k(1) = sum exp(-0.75 / w) = 0.0497871 + 0.2231302 + 0.4723666 + 0.6872893 + 0.8290291 = 2.2616023,
      k(4) = sum exp(-3 / w) = 0.0000061 + 0.0024788 + 0.0497871 + 0.2231302 + 0.4723666 = 0.7477688, k(0) = 5.
    Means: within x and within y (10 + 2 k(1)) / 4 = 3.6308012; across (2 k(1) + k(4) + 5) / 4 = 2.5677434.
    MMD = 2 * 3.6308012 - 2 * 2.5677434 = 2.1261156. Of the single vectors 0 and 1: 10 - 2 k(1) = 5.4767954.
    """
    x, y = column(0.0, 1.0), column(1.0, 2.0)
    assert bandwidth(x, y).item() == pytest.approx(4 / 3)
    assert mmd(x, y).item() == pytest.approx(MMD_BY_HAND, abs=2e-6)
    of_each = mmd_of_each(column(1.0, 4.0), column(0.0, 4.0), bandwidth(x, y))
    assert of_each.tolist() == pytest.approx([MMD_OF_0_AND_1, 0.0], abs=2e-6)


def test_mmd_and_its_gradient_agree_with_loops_in_float64():
    """The bandwidth is a number: the gradient is that of the kernels alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    rows = [*x, *y]
    total = sum(((a - b) ** 2).sum() for a in rows for b in rows)
    b = (total / (len(rows) ** 2 - len(rows))).detach()

    def mean_kernel(one, other):
        return (
            sum(torch.exp(-((p - q) ** 2).sum() / (b * 2.0**i)) for p in one for q in other for i in range(-2, 3)) / 16
        )

    theirs = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    ours = mmd(x, y)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    (mine,), (other,) = torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x)
    torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-13)


def test_mmd_of_equal_sets_is_zero_and_has_a_finite_gradient():
    x = torch.ones(3, 2, requires_grad=True)
    distance = mmd(x, torch.ones(3, 2))
    distance.backward()
    assert distance.item() == 0
    assert x.grad.tolist() == [[0, 0]] * 3


def test_entropy_by_hand():
    """Uniform over 4: log 4. Logits (1, -1): p = 0.8807971: 0.8807971 * 0.1269280 + 0.1192029 * 2.1269280."""
    assert entropy(torch.zeros(1, 4)).item() == pytest.approx(math.log(4))
    assert entropy(torch.tensor([[1.0, -1.0]])).item() == pytest.approx(0.3653338, abs=1e-6)


# The generator's loss (Eq. 5) and RTNet's (Eq. 6) -------------------------------------------------------


def test_the_generators_loss_by_hand():
    """With u = (1, 2), y = (0, 1), z = (-0.5, -1): g = (-1, -1), m = g.

    u^ = (0, 1): CE = (log 2 + log(1 + e^2)) / 2 = (0.6931472 + 2.1269280) / 2; MMD({0, 1}, {1, 2}) is known.
    """
    net = net_of_one_dimension()
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]))
    method = FRAug(alpha=10.0, smoothing=False, syn_weight=0.5)
    terms = method.generator_loss(net, batch, context(column(-0.5, -1.0), column(0.0, 0.0)))
    distance = mmd(column(0.0, 1.0), batch.x).item()
    assert values(terms) == pytest.approx(
        {"generator_cross_entropy": 1.4100376, "generator_mmd": -10 * distance}, abs=1e-5
    )
    assert terms["generator_mmd"].item() == pytest.approx(-10 * MMD_BY_HAND, abs=2e-5)


def test_rtnets_loss_by_hand():
    """With u = (1, 2) and u^ = (0, 1) as above; u_0 = 0, z'_0 = 0.5: g = 1, u^_0 = 1; class 1 was never seen.

    Entropies of u^: log 2 = 0.6931472 and 0.3653338 (logits (1, -1)), mean 0.5292405; of u^_0: 0.3653338.
    beta = 0.1: MMD of the batch 2.1261156, of the single vectors 1 and 0 with the batch's b = 4/3: 5.4767954.
    """
    net = net_of_one_dimension()
    net.prototypes.eval().seen.copy_(torch.tensor([True, False]))
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]))
    terms = FRAug(beta=0.1).rtnet_loss(net, batch, context(column(-0.5, -1.0), column(0.5, 9.0)))
    assert values(terms) == pytest.approx(
        {
            "rtnet_entropy": -0.5292405,
            "rtnet_mmd": 0.1 * MMD_BY_HAND,
            "rtnet_entropy_classes": -0.3653338,
            "rtnet_mmd_classes": 0.1 * MMD_OF_0_AND_1,
        },
        abs=1e-6,
    )


def test_an_ablated_term_leaves_both_losses():
    net, method = net_of_one_dimension(), FRAug(ema_term=False)
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]))
    noise = context(column(-0.5, -1.0), column(0.5, 0.0))
    assert set(method.objective("model").evaluate(net, batch, noise)) == {"cross_entropy", "synthetic"}
    assert set(method.rtnet_loss(net, batch, noise)) == {"rtnet_entropy", "rtnet_mmd"}


# Networks ----------------------------------------------------------------------------------------------


def layers(module):
    return [
        (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else type(layer).__name__
        for layer in module.body
    ]


def test_the_networks_are_the_papers():
    """For d = 8, 3 classes: z of 4."""
    block = ["BatchNorm1d", "ReLU"]
    assert layers(make_generator(3, 8)) == [(4 + 3, 8), *block, (8, 8), *block]
    assert layers(make_rtnet(3, 8)) == [(8 + 3, 4), *block, (4, 8), "BatchNorm1d"]


def test_a_network_reads_the_class():
    generator = make_generator(3, 8).eval()
    made = generator(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    first = generator.body[0].weight  # its last three columns belong to the classes
    expected = generator.body[1:](first[:, 4:].T)
    torch.testing.assert_close(made, expected)


def test_rtnets_batch_statistics_are_of_the_batch_and_the_classes_together():
    """Running mean = 0.1 * the mean over B + C = 4 + 3 rows of what its first layer gives."""
    torch_generator = torch.Generator().manual_seed(0)
    net = Net(
        {
            "encoder": nn.Identity(),
            "head": nn.Linear(8, 3),
            "generator": make_generator(3, 8).eval(),
            "rtnet": make_rtnet(3, 8),
            "prototypes": Prototypes(3, 8).eval(),
        }
    )
    x, y = torch.randn(4, 8, generator=torch_generator), torch.tensor([0, 2, 1, 0])
    z = torch.randn(7, 4, generator=torch_generator)
    FRAug().rtnet_loss(net, Batch(x, y), context(z[:4], z[4:]))
    every_y = torch.cat([y, torch.arange(3)])
    made = net.generator(z, every_y)
    rows = net.rtnet.body[0](torch.cat([made, F.one_hot(every_y, 3)], dim=1))
    torch.testing.assert_close(net.rtnet.body[1].running_mean, 0.1 * rows.mean(dim=0))
    assert net.rtnet.body[1].num_batches_tracked == 1


# In a federation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [FRAug, FRAugCode])
def test_each_step_moves_its_own_parts_only(make: Make, base: type[FRAug]):
    """What changed between the losses of one step and the next, parameters and buffers, and who was in train mode."""
    seen = []

    class Watched(base):
        """FRAug that remembers every part before each of its objectives; the model's begins as it encodes."""

        def watch(self, name, net):
            held = {part: [t.clone() for t in module.state_dict().values()] for part, module in net.parts.items()}
            seen.append((name, held, {part for part, module in net.parts.items() if module.training}))

        def encode(self, net, batch, context):
            self.watch("model", net)
            return super().encode(net, batch, context)

        def generator_loss(self, net, batch, context):
            self.watch("generator", net)
            return super().generator_loss(net, batch, context)

        def rtnet_loss(self, net, batch, context):
            self.watch("rtnet", net)
            return super().rtnet_loss(net, batch, context)

    experiment = make(CNN_WITH_BN | {"train.rounds": 1, "train.steps": 3})
    simulation = Simulation(experiment.replace(method=Watched()))
    when = simulation.coordinator.schedule[0]
    exchanged(simulation, when.stage.exchanges[0], when, simulation.federated.clients[:1])
    moves = {"model": {"encoder", "head", "prototypes"}, "generator": {"generator"}, "rtnet": {"rtnet"}}
    assert [name for name, _, _ in seen] == ["model", "generator", "rtnet"] * 3
    for (name, before, training), (_, after, _) in pairwise(seen):
        changed = {
            part
            for part in before
            if not all(torch.equal(a, b) for a, b in zip(before[part], after[part], strict=True))
        }
        assert changed == training == moves[name]


def test_learning_rates_of_generator_and_rtnet_are_their_own(make: Make):
    """From equal starts, one step without momentum: twice the rate is twice the way."""

    def moved(name, **changes):
        experiment = make(FRAUG | {"train.rounds": 1, "train.steps": 1, "train.momentum": 0.0} | changes)
        simulation = Simulation(experiment)
        start = {**simulation.coordinator.state.shared, **simulation.site.state(0).tensors}[name]
        when = simulation.coordinator.schedule[0]
        ups = exchanged(simulation, when.stage.exchanges[0], when, simulation.federated.clients[:1])
        return {**ups[0], **simulation.site.store.get(0).tensors}[name] - start

    weight = "generator.body.0.weight"
    slow, fast = (moved(weight, **{"method.lr_generator": lr}) for lr in (0.1, 0.2))
    torch.testing.assert_close(fast, 2 * slow, rtol=1e-3, atol=1e-6)
    assert slow.abs().max() > 1e-4
    weight = "rtnet.body.0.weight"
    slow, fast = (moved(weight, **{"method.lr_rtnet": lr}) for lr in (0.1, 0.2))
    torch.testing.assert_close(fast, 2 * slow, rtol=1e-3, atol=1e-6)
    assert slow.abs().max() > 1e-4


def test_what_is_shared_and_what_stays(make: Make):
    """The generator is averaged with its batch norm; the encoder's batch norm, RTNet and prototypes never leave."""
    simulation = Simulation(make(FRAUG))
    when = simulation.coordinator.schedule[0]
    canary = 0.7654321
    for client in simulation.federated.clients:
        own = {
            name: torch.full_like(t, canary) if name == "prototypes.mean" else t.clone()
            for name, t in simulation.site.initial.items()
        }
        simulation.site.store.put(client.id, ClientState(own))
    ups = exchanged(simulation, when.stage.exchanges[0], when, simulation.federated.clients)
    for client, up in ups.items():
        assert {name.partition(".")[0] for name in up} == {"encoder", "head", "generator"}
        assert not any(name.startswith("encoder.1.") for name in up)
        mean = simulation.site.store.get(client).tensors["prototypes.mean"]
        assert not any(torch.isin(sent, mean).any() or (sent == canary).any() for sent in up.values())
    one, other = (state.tensors for _, state in states(simulation))
    for name in ("encoder.1.running_mean", "rtnet.body.0.weight", "prototypes.mean"):
        assert not torch.equal(one[name], other[name])
    name = "generator.body.1.running_mean"
    assert not torch.equal(ups[0][name], ups[1][name])


def test_every_rtnet_starts_from_a_draw_of_its_own(make: Make):
    """By the seed and the client's number alone, so also on another machine and for one that comes late."""
    simulation, again = Simulation(make(FRAUG)), Simulation(make(FRAUG))
    one, other = (simulation.site.state(client).tensors for client in (0, 1))
    for name in ("rtnet.body.0.weight", "rtnet.body.3.weight"):
        assert not torch.equal(one[name], other[name])
        assert not torch.equal(one[name], simulation.site.initial[name])
    assert all(torch.equal(one[name], other[name]) for name in one if not name.startswith("rtnet."))
    go_on(again)
    late = Simulation(make(FRAUG)).site.state(1).tensors
    assert all(torch.equal(tensor, other[name]) for name, tensor in late.items())
    elsewhere = Simulation(make(FRAUG | {"seed": 1})).site.state(0).tensors
    assert not torch.equal(elsewhere["rtnet.body.0.weight"], one["rtnet.body.0.weight"])


def test_the_generators_batch_norm_is_the_mean_of_the_clients(make: Make):
    simulation = Simulation(make(FRAUG))
    when = simulation.coordinator.schedule[0]
    exchange = when.stage.exchanges[0]
    ups = exchanged(simulation, exchange, when, simulation.federated.clients)
    merged = exchange.merge(simulation.coordinator.state, Replies(sorted(ups.items())))
    for name in ("generator.body.1.running_var", "generator.body.4.weight"):
        torch.testing.assert_close(merged.shared[name], (ups[0][name] + ups[1][name]) / 2)


def test_prototypes_are_the_mean_of_the_first_batch(make: Make):
    """After one step from the initial encoder, recomputed: each class's mean over the batch in training mode."""
    experiment = make(FRAUG | {"train.steps": 1, "train.batch": 27, "train.rounds": 1})
    initial = Simulation(experiment)
    samples = initial.federated.clients[0].train
    encoder = net_of(initial).encoder.train()
    with torch.no_grad():
        u = encoder(initial.federated.inputs.evaluation(samples.x))
    expected = torch.stack([u[samples.y == c].mean(dim=0) for c in range(3)])
    trained = simulate(experiment, rounds=1).site.store.get(0)
    torch.testing.assert_close(trained.tensors["prototypes.mean"], expected, rtol=1e-4, atol=1e-5)


def test_without_residual_and_prototypes_it_is_fedbn_with_the_heads_loss_twice(make: Make):
    class HeadTwice(FedBN):
        """CE(h(u), y) + CE(h(sg u), y)."""

        terms = (*FedBN.terms, "again")

        def loss(self, net, batch, context):
            return {
                "cross_entropy": F.cross_entropy(net.head(batch.z), batch.y),
                "again": F.cross_entropy(net.head(batch.z.detach()), batch.y),
            }

    experiment = make(CNN_WITH_BN | {"train.rounds": 3})
    fraug = simulate(experiment.replace(method=FRAug(syn_weight=0.0, ema_term=False)))
    fedbn = simulate(experiment.replace(method=HeadTwice()))
    smaller, larger = fedbn.coordinator.state.shared, fraug.coordinator.state.shared
    assert smaller.keys() < larger.keys()
    assert all(torch.equal(tensor, larger[name]) for name, tensor in smaller.items())
    for client, state in states(fedbn):
        own = fraug.site.store.get(client).tensors
        assert state.tensors
        assert all(torch.equal(tensor, own[name]) for name, tensor in state.tensors.items())
    once = simulate(experiment.replace(method=FedBN()))
    assert not torch.equal(once.coordinator.state.shared["head.weight"], smaller["head.weight"])


def test_parts_that_are_not_used_are_not_made(make: Make):
    simulation = simulate(make(FRAUG | {"method.rtnet": False, "method.ema_term": False}), rounds=1)
    assert set(net_of(simulation).parts) == {"encoder", "head", "generator"}
    assert set(net_of(simulate(make(FRAUG), rounds=1)).parts) >= {"rtnet", "prototypes"}


def test_an_unseen_client_gets_the_mean_of_the_clients_batch_norms(make: Make):
    simulation = simulate(make(FRAUG), rounds=1)
    (unseen,) = [e for e in simulation.federated.environments if e.client is None]
    (model,) = models_of(simulation, unseen)
    one, other = (state.tensors["encoder.1.running_mean"] for _, state in states(simulation))
    torch.testing.assert_close(model["encoder.1.running_mean"], (one + other) / 2)


def test_prediction_uses_encoder_and_head_only():
    """At u = 1, logits (1, -1): p_0 = 0.8807971."""
    parts = net_of_one_dimension().parts
    net = Net({"encoder": parts["encoder"], "head": parts["head"]})
    assert FRAug().predict(net, column(1.0), {}).exp()[0, 0].item() == pytest.approx(0.8807971)


@pytest.mark.parametrize("name", ["fraug", "fraug-code"])
def test_presets_are_what_was_published(name: str):
    """The fixed numbers of the public code, or one of its grid; round by round, l_syn and the head's mixture follow."""
    method = METHODS.get(name)
    made = {data: method(**preset) for data, preset in method.presets.items()}
    assert {data: (m.lr_generator, m.lr_rtnet, m.gamma) for data, m in made.items()} == {
        "pacs": (0.05, 0.05, 0.01),
        "office-home": (0.05, 0.025, 0.01),
        "digits": (0.05, 0.05, 0.002),
    }
    assert (made["pacs"].alpha, made["pacs"].beta) == (10, 1)
    assert {made["office-home"].alpha, made["office-home"].beta} < {0, 0.75, 1.25, 1.5}
    assert made["digits"].alpha == 1
    assert made["digits"].beta in (0.1, 1, 10)


def test_the_public_code_weighs_by_samples_and_keeps_momentum_and_statistics():
    """Of the public code alone: the paper's page weighs clients alike, begins optimisers afresh and keeps all of bn."""
    paper, code = (METHODS.get(name)() for name in ("fraug", "fraug-code"))
    assert (paper.weighting, paper.optimiser_state, paper.bn) == ("uniform", "fresh", "local")
    assert (code.weighting, code.optimiser_state, code.bn) == ("samples", "kept", "statistics")


def test_the_search_covers_the_published_grids():
    grids = {name: set(FRAug.settings()[name].search) for name in ("alpha", "beta")}
    assert {0, 0.75, 1.25, 1.5, 1, 10} <= grids["alpha"]
    assert {0, 0.75, 1.25, 1.5, 0.1, 1, 10} <= grids["beta"]


# The public code ---------------------------------------------------------------------------------------


def test_the_public_codes_head_has_a_mixture_of_losses():
    """The net, u, y and noise of the first test, where the three terms are 0.1269280, 0.2403962 and 0.1566783 / 2.

    exp(gamma (t - T)) = e^(-0.5 * 2) = 0.3678794 in round 1 of 3, so r is that; in round 3 it would be 1 and is 1/2.
    With r = 0.3678794 and l_syn = 0.5: 0.6321206 * 0.1269280, 0.1839397 * 0.2403962, 0.1839397 * 0.0783391.
    """
    batch = Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    method = FRAugCode(gamma=0.5, smoothing=False, syn_weight=0.5)

    def terms(t: int) -> dict[str, float]:
        net, noise = net_of_one_dimension(gain_of_m=3.0), {"z": column(0.5, -0.25), "z_classes": column(0.25, -0.5)}
        return values(method.objective("model").evaluate(net, batch, at(round=t, rounds=3, noise=noise)))

    expected = {"cross_entropy": 0.0802338, "synthetic": 0.0442184, "synthetic_classes": 0.0144097}
    assert terms(1) == pytest.approx(expected, abs=1e-6)
    expected = {"cross_entropy": 0.0634640, "synthetic": 0.0600991, "synthetic_classes": 0.0195848}
    assert terms(3) == pytest.approx(expected, abs=1e-6)


def test_the_public_codes_generator_is_judged_by_its_own_output():
    """With u = (1, 2), z = (-0.5, -1) and labels 0, 1 in turn, whatever y is: v = (-1, -1).

    CE = (log(1 + e^2) + log(1 + e^-2)) / 2 = (2.1269280 + 0.1269280) / 2 = 1.1269280. From the prototypes (1, -2):
    ((-1 - 1)^2 + (-1 + 2)^2) / 2 = 2.5.
    """
    net = net_of_one_dimension()
    net.prototypes.eval().mean.copy_(column(1.0, -2.0))
    batch = Batch(column(1.0, 2.0), torch.tensor([1, 1]))
    noise = replace(context(column(-0.5, -1.0), column(0.0, 0.0)), counts=torch.tensor([0, 2]))
    squared = FRAugCode(alpha=10.0, generator_distance="squared").generator_loss(net, batch, noise)
    assert values(squared) == pytest.approx({"generator_cross_entropy": 1.1269280, "generator_mmd": -25.0}, abs=1e-5)
    distance = mmd(column(-1.0, -1.0), batch.x).item()
    terms = FRAugCode(alpha=10.0).generator_loss(net, batch, noise)
    assert terms["generator_mmd"].item() == pytest.approx(-10 * distance)


def test_the_public_codes_rtnet_has_half_of_both_halves():
    """As in Eq. 5's test, u = (1, 2), u^ = (0, 1): entropies 0.6931472 and 0.3653338, mean 0.5292405; MMD 2.1261156.

    Prototypes 0 and 0, z' = (0.5, -0.5), labels 0 and 1: g = (1, 0), so u^_c = (1, 0), and the mean entropy is the
    same. beta = 0.1; the mean squared residuals are ((0 - 1)^2 + (1 - 2)^2) / 2 = 1 and (1 + 0) / 2 = 0.5.
    """
    net = net_of_one_dimension()
    net.prototypes.eval()
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]))
    noise = context(column(-0.5, -1.0), column(0.5, -0.5))
    terms = FRAugCode(beta=0.1, rtnet_distance="squared").rtnet_loss(net, batch, noise)
    expected = {"rtnet_entropy": -0.2646203, "rtnet_mmd": 0.05, "rtnet_entropy_classes": -0.2646203}
    assert values(terms) == pytest.approx({**expected, "rtnet_mmd_classes": 0.025}, abs=1e-6)
    terms = FRAugCode(beta=0.1).rtnet_loss(net, batch, noise)
    assert terms["rtnet_mmd"].item() == pytest.approx(0.05 * MMD_BY_HAND, abs=1e-6)
    of_sets = mmd(column(1.0, 0.0), column(0.0, 0.0)).item()
    assert terms["rtnet_mmd_classes"].item() == pytest.approx(0.05 * of_sets, abs=1e-6)


def test_without_one_kind_of_synthetic_rows_the_public_code_gives_the_other_all_their_weight():
    """As in the first of these tests, round 3: r = 1/2 of 0.2403962 alone."""
    batch = Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    noise = context(column(0.5, -0.25), column(0.25, -0.5))
    method = FRAugCode(smoothing=False, syn_weight=0.5, ema_term=False)
    terms = method.objective("model").evaluate(net_of_one_dimension(gain_of_m=3.0), batch, noise)
    assert values(terms) == pytest.approx({"cross_entropy": 0.0634640, "synthetic": 0.1201981}, abs=1e-6)
    assert set(method.rtnet_loss(net_of_one_dimension(), batch, noise)) == {"rtnet_entropy", "rtnet_mmd"}


def test_the_public_code_averages_scale_and_shift_and_keeps_statistics(make: Make):
    simulation = Simulation(make(FRAUG | {"method.name": "fraug-code"}))
    kept = {name for name in simulation.site.initial if name.startswith("encoder.")}
    assert {name.rpartition(".")[2] for name in kept} == {"running_mean", "running_var", "num_batches_tracked"}
    shared = simulation.coordinator.state.shared
    assert {"encoder.1.weight", "encoder.1.bias", "generator.body.1.running_mean"} <= set(shared)
    draws = FRAugCode().draws(simulation.setup.model, 5)
    assert {draw.kind for draw in draws.values()} == {"uniform"}
    assert draws["z_classes"].shape == draws["z"].shape == (5, simulation.setup.model.dim // 2)


def test_a_distance_from_prototypes_needs_prototypes():
    with refuses("method.generator_distance = 'squared'", "method.ema_term = False", "'mmd'"):
        FRAugCode(ema_term=False, generator_distance="squared")


# The motivating study ----------------------------------------------------------------------------------


def test_a_part_is_taken_of_each_class_in_the_order_given():
    """Class 0 at 0, 2, 3, 5 and class 1 at 1, 4, 6: ceil(0.4 * 4) = 2 and ceil(0.4 * 3) = 2 of them, from the end."""
    samples = Samples(torch.arange(7), torch.tensor([0, 1, 0, 0, 1, 0, 1]))
    order = torch.arange(6, -1, -1)
    assert part_of(samples, 0.4, order).x.tolist() == [6, 5, 4, 3]
    assert part_of(samples, 1.0, order).x.tolist() == order.tolist()
    assert part_of(samples, 0.01, order).x.tolist() == [6, 5]


def test_the_study_trains_everything_on_a_part_and_then_the_head_on_all(make: Make):
    simulation = Simulation(make(CNN_WITH_BN).replace(method=HeadRetraining(part=0.3)))
    part, _, head, _ = simulation.coordinator.schedule
    assert (part.stage.name, head.stage.name) == ("part", "head")
    (clients, whole) = (simulation.site.view(when.stage).clients for when in (part, head))
    assert [len(client.train) for client in clients] == [9, 9]  # 27 samples, 9 of each of 3 classes: 3 of each
    assert [len(client.train) for client in whole] == [27, 27]
    for _ in range(2):
        go_on(simulation)
    before = dict(simulation.site.store.get(0).tensors)
    go_on(simulation)
    after = simulation.site.store.get(0).tensors
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    assert simulation.coordinator.bytes_up == 0
