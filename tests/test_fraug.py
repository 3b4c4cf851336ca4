"""FRAug's three losses, prototypes and MMD against numbers derived by hand, who moves when, and FedBN as a limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import CNN_WITH_BN, Make, at, go_on, linear, losses, simulate, states, values
from fedshift.clients.samples import Samples
from fedshift.content import module_of
from fedshift.core.contract import Batch, Term
from fedshift.core.net import Net
from fedshift.methods.fedbn import FedBN
from fedshift.methods.fraug import FRAug
from fedshift.methods.fraug_code import FRAugCode
from fedshift.methods.fraug_networks import Prototypes, bandwidth, kernel, make_generator, make_rtnet, mmd, pairwise_mmd
from fedshift.methods.head_retraining import HeadRetraining, stratified_part
from fedshift.runs.simulation import Simulation


class Affine(nn.Module):
    """Stands for g or m: gain * x + shift * y."""

    def __init__(self, gain, shift):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.tensor(gain)), shift

    def forward(self, x, y):
        return self.gain * x + self.shift * y.unsqueeze(1)


def net_of_one_dimension(gain_of_m=1.0):
    """Made of u = x, logits (u, -u), g(z, y) = 2z + y, m(v, y) = gain * v; no prototype yet."""
    parts = {"generator": Affine(2.0, 1.0), "rtnet": Affine(gain_of_m, 0.0), "prototypes": Prototypes(2, 1)}
    return Net({"encoder": linear(1.0), "head": linear(1.0, -1.0), **parts})


def column(*values):
    return torch.tensor(values).unsqueeze(1)


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
    of_each = pairwise_mmd(column(1.0, 4.0), column(0.0, 4.0), bandwidth(x, y))
    assert of_each.tolist() == pytest.approx([MMD_OF_0_AND_1, 0.0], abs=2e-6)


def test_mmd_far_from_zero_loses_no_digits():
    """Distances are from norms and products: a mean of 1,000 in each dimension would leave none of seven digits."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 20, 8, generator=generator, dtype=torch.float64)
    gaps = [(a.unsqueeze(1) - b.unsqueeze(0)).square().sum(dim=2) for a, b in ((x, x), (y, y), (x, y))]
    within_x, within_y, across = (kernel(gap, bandwidth(x, y)).mean() for gap in gaps)
    far = mmd((x + 1000).float(), (y + 1000).float())
    assert far.item() == pytest.approx((within_x + within_y - 2 * across).item(), abs=1e-4)


def test_mmd_of_equal_sets_is_zero_and_has_a_finite_gradient():
    x = torch.ones(3, 2, requires_grad=True)
    distance = mmd(x, torch.ones(3, 2))
    distance.backward()
    assert distance.item() == 0
    assert x.grad.tolist() == [[0, 0]] * 3


# The generator's loss (Eq. 5) and RTNet's (Eq. 6) -------------------------------------------------------


def test_the_generators_loss_by_hand():
    """With u = (1, 2), y = (0, 1), z = (-0.5, -1): g = (-1, -1), m = g.

    u^ = (0, 1): CE = (log 2 + log(1 + e^2)) / 2 = (0.6931472 + 2.1269280) / 2; MMD({0, 1}, {1, 2}) is known.
    """
    net = net_of_one_dimension()
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]), column(1.0, 2.0))
    method = FRAug(alpha=10.0, smoothing=False, syn_weight=0.5)
    terms = losses(method.generator_terms(), net, batch, context(column(-0.5, -1.0), column(0.0, 0.0)))
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
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]), column(1.0, 2.0))
    terms = losses(FRAug(beta=0.1).rtnet_terms(), net, batch, context(column(-0.5, -1.0), column(0.5, 9.0)))
    assert values(terms) == pytest.approx(
        {
            "rtnet_entropy": -0.5292405,
            "rtnet_mmd": 0.1 * MMD_BY_HAND,
            "rtnet_entropy_classes": -0.3653338,
            "rtnet_mmd_classes": 0.1 * MMD_OF_0_AND_1,
        },
        abs=1e-6,
    )


# Networks ----------------------------------------------------------------------------------------------


def layers(module):
    return [(at.in_features, at.out_features) if isinstance(at, nn.Linear) else type(at).__name__ for at in module.body]


def test_the_networks_are_the_papers():
    """For d = 8, 3 classes: z of 4."""
    block = ["BatchNorm1d", "ReLU"]
    assert layers(make_generator(3, 8)) == [(4 + 3, 8), *block, (8, 8), *block]
    assert layers(make_rtnet(3, 8)) == [(8 + 3, 4), *block, (4, 8), "BatchNorm1d"]


def test_every_rtnet_starts_from_a_draw_of_its_own(make: Make):
    """By the seed and the client's number alone, so also on another machine and for one that comes late."""
    experiment = make(CNN_WITH_BN | {"method.name": "fraug"})
    simulation, late = Simulation(experiment), Simulation(experiment).site.state(1, {}).tensors
    one, other = (simulation.site.state(client, {}).tensors for client in (0, 1))
    differ = {name for name, tensor in one.items() if not torch.equal(tensor, other[name])}
    assert {"rtnet.body.0.weight", "rtnet.body.3.weight"} <= differ
    assert all(name.startswith("rtnet.") for name in differ)
    assert all(torch.equal(tensor, other[name]) for name, tensor in late.items())


def test_rtnets_batch_statistics_are_of_the_batch_and_the_classes_together():
    """Running mean = 0.1 * the mean over B + C = 4 + 3 rows of what its first layer gives."""
    generator, rtnet, prototypes = make_generator(3, 8).eval(), make_rtnet(3, 8), Prototypes(3, 8).eval()
    own = {"generator": generator, "rtnet": rtnet, "prototypes": prototypes}
    net = Net({"encoder": nn.Identity(), "head": nn.Linear(8, 3), **own})
    x, y, z = torch.randn(4, 8), torch.tensor([0, 2, 1, 0]), torch.randn(7, 4)
    losses(FRAug().rtnet_terms(), net, Batch(x, y, x), context(z[:4], z[4:]))
    every_y = torch.cat([y, torch.arange(3)])
    rows = rtnet.body[0](torch.cat([generator(z, every_y), F.one_hot(every_y, 3)], dim=1))
    torch.testing.assert_close(rtnet.body[1].running_mean, 0.1 * rows.mean(dim=0))


# What is ours: label smoothing, and controls ------------------------------------------------------------


def test_smoothing_gives_a_part_of_each_label_to_the_other_classes():
    """The first test's net and noise: the other class costs 2 |u| more where u is on the right side.

    CE((1 - s) y + s other) = CE(y) + s (CE(other) - CE(y)), and CE(other) - CE(y) is 2u for class 0 and -2u for 1:
      real: (2 + 2) / 2 = 2; u^ = (2.5, -0.25): (5 + 0.5) / 2 = 2.75; u^_c = (1.75, -1): 3.5 + 2 = 5.5. s = 0.1.
    """
    net, batch = net_of_one_dimension(gain_of_m=3.0), Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    method = FRAug(smoothing=False, syn_weight=0.5, label_smoothing=0.1)
    terms = method.objective("model").evaluate(net, batch, context(column(0.5, -0.25), column(0.25, -0.5)))
    expected = {"cross_entropy": 0.1269280 + 0.2, "synthetic": 0.2403962 + 0.275, "synthetic_classes": 0.1566783 + 0.55}
    assert values(terms) == pytest.approx(expected, abs=1e-6)


def test_noise_has_the_norm_of_each_residual_and_only_the_head_sees_it():
    """As above the residuals are 3, 1.5 and 1.5, 0, times l_syn = 0.5; the directions' signs are -, +, -, +.

    u^ = (1 - 1.5, -1 + 0.75) = (-0.5, -0.25), u^_c = (1 - 0.75, -1) = (0.25, -1). In m's step u^ is (1 + 3, -1 + 1.5).
    """
    net, batch = net_of_one_dimension(gain_of_m=3.0), Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    method = FRAug(smoothing=False, syn_weight=0.5, residual="noise")
    noise = {"z": column(0.5, -0.25), "z_classes": column(0.25, -0.5), "directions": column(-7.0, 0.1, -2.0, 5.0)}
    encoded = batch._replace(z=batch.x)
    seen = method.synthesise(net, encoded, at(noise=noise), False)
    assert seen.batch.flatten().tolist() == pytest.approx([-0.5, -0.25])
    assert seen.classes.flatten().tolist() == pytest.approx([0.25, -1.0])
    learned_from = method.synthesise(net, encoded, at(noise=noise), True)
    assert learned_from.batch.flatten().tolist() == pytest.approx([4.0, 0.5])


def test_the_plugin_records_how_large_residuals_are():
    """As above 0.5 * 3 and 0.5 * 1.5 beside |u| = 1: (1.5 + 0.75) / 2 = 1.125, of which nothing is a gradient."""
    plugin = module_of(Path(__file__).parent.parent / "docs" / "results" / "fraug_residuals.py")
    net, batch = net_of_one_dimension(gain_of_m=3.0), Batch(column(1.0, -1.0), torch.tensor([0, 1]))
    method = plugin.FRAugSizes(smoothing=False, syn_weight=0.5)
    terms = method.objective("model").evaluate(net, batch, context(column(0.5, -0.25), column(0.25, -0.5)))
    assert terms["residual_size"].item() == pytest.approx(1.125)
    assert not terms["residual_size"].requires_grad


def test_noise_is_seen_by_the_head_alone(make: Make):
    """After a step the encoder is where it would be, as no gradient goes through u^, and the head is not."""
    experiment = make(CNN_WITH_BN | {"train.rounds": 1, "train.steps": 1})
    first, noise = (simulate(experiment.replace(method=FRAug(residual=kind))) for kind in ("generated", "noise"))
    trained = [each.coordinator.state.shared for each in (first, noise)]
    head = [tensors["head.weight"] for tensors in trained]
    assert not torch.equal(*head)
    assert torch.equal(*(tensors["encoder.0.weight"] for tensors in trained))


@pytest.mark.parametrize("method", [FRAug, FRAugCode])
def test_without_synthetic_representations_it_is_fedbn(make: Make, method: type[FRAug]):
    experiment = make(CNN_WITH_BN | {"train.rounds": 2})
    ours = method(residual="none", weighting="uniform", optimiser_state="fresh", bn="local")
    fraug, fedbn = (simulate(experiment.replace(method=each)) for each in (ours, FedBN()))
    mine, theirs = (each.coordinator.state.shared for each in (fraug, fedbn))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in theirs.items())


# In a federation ---------------------------------------------------------------------------------------


def test_without_residual_and_prototypes_it_is_fedbn_with_the_heads_loss_twice(make: Make):
    class HeadTwice(FedBN):
        """CE(h(u), y) + CE(h(sg u), y)."""

        def terms(self):
            return super().terms() | {"again": Term(self.again)}

        def again(self, net, batch, context):
            return F.cross_entropy(net.head(batch.z.detach()), batch.y)

    experiment = make(CNN_WITH_BN | {"train.rounds": 3})
    fraug = simulate(experiment.replace(method=FRAug(syn_weight=0.0, ema_term=False)))
    fedbn = simulate(experiment.replace(method=HeadTwice()))
    smaller, larger = fedbn.coordinator.state.shared, fraug.coordinator.state.shared
    assert smaller.keys() < larger.keys()
    assert all(torch.equal(tensor, larger[name]) for name, tensor in smaller.items())
    own = dict(states(fraug))
    for client, state in states(fedbn):
        assert state.tensors
        assert all(torch.equal(tensor, own[client].tensors[name]) for name, tensor in state.tensors.items())


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
    batch = Batch(column(1.0, 2.0), torch.tensor([1, 1]), column(1.0, 2.0))
    noise = replace(context(column(-0.5, -1.0), column(0.0, 0.0)), counts=torch.tensor([0, 2]))
    squared = losses(FRAugCode(alpha=10.0, generator_distance="squared").generator_terms(), net, batch, noise)
    assert values(squared) == pytest.approx({"generator_cross_entropy": 1.1269280, "generator_mmd": -25.0}, abs=1e-5)
    distance = mmd(column(-1.0, -1.0), batch.x).item()
    terms = losses(FRAugCode(alpha=10.0).generator_terms(), net, batch, noise)
    assert terms["generator_mmd"].item() == pytest.approx(-10 * distance)


def test_the_public_codes_rtnet_has_half_of_both_halves():
    """As in Eq. 5's test, u = (1, 2), u^ = (0, 1): entropies 0.6931472 and 0.3653338, mean 0.5292405; MMD 2.1261156.

    Prototypes 0 and 0, z' = (0.5, -0.5), labels 0 and 1: g = (1, 0), so u^_c = (1, 0), and the mean entropy is the
    same. beta = 0.1; the mean squared residuals are ((0 - 1)^2 + (1 - 2)^2) / 2 = 1 and (1 + 0) / 2 = 0.5.
    """
    net = net_of_one_dimension()
    net.prototypes.eval()
    batch = Batch(column(1.0, 2.0), torch.tensor([0, 1]), column(1.0, 2.0))
    noise = context(column(-0.5, -1.0), column(0.5, -0.5))
    terms = losses(FRAugCode(beta=0.1, rtnet_distance="squared").rtnet_terms(), net, batch, noise)
    expected = {"rtnet_entropy": -0.2646203, "rtnet_mmd": 0.05, "rtnet_entropy_classes": -0.2646203}
    assert values(terms) == pytest.approx({**expected, "rtnet_mmd_classes": 0.025}, abs=1e-6)
    terms = losses(FRAugCode(beta=0.1).rtnet_terms(), net, batch, noise)
    assert terms["rtnet_mmd"].item() == pytest.approx(0.05 * MMD_BY_HAND, abs=1e-6)
    of_sets = mmd(column(1.0, 0.0), column(0.0, 0.0)).item()
    assert terms["rtnet_mmd_classes"].item() == pytest.approx(0.05 * of_sets, abs=1e-6)


# The motivating study ----------------------------------------------------------------------------------


def test_a_part_is_taken_of_each_class_in_the_order_given():
    """Class 0 at 0, 2, 3, 5 and class 1 at 1, 4, 6: ceil(0.4 * 4) = 2 and ceil(0.4 * 3) = 2 of them, from the end."""
    samples = Samples(torch.arange(7), torch.tensor([0, 1, 0, 0, 1, 0, 1]))
    order = torch.arange(6, -1, -1)
    assert stratified_part(samples, 0.4, order).x.tolist() == [6, 5, 4, 3]
    assert stratified_part(samples, 1.0, order).x.tolist() == order.tolist()
    assert stratified_part(samples, 0.01, order).x.tolist() == [6, 5]


def test_the_study_trains_everything_on_a_part_and_then_the_head_on_all(make: Make):
    """Of 27 samples, 9 of each of 3 classes, the part is 3 of each."""
    simulation = Simulation(make(CNN_WITH_BN).replace(method=HeadRetraining(part=0.3)))
    part, _, head, _ = simulation.coordinator.schedule
    clients = [simulation.site.view(when.stage).clients for when in (part, head)]
    assert [[len(client.train) for client in each] for each in clients] == [[9, 9], [27, 27]]
    for _ in range(2):
        go_on(simulation)
    before = dict(simulation.site.store.get(0).tensors)
    go_on(simulation)
    after = simulation.site.store.get(0).tensors
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert simulation.coordinator.sent[1] == 0
