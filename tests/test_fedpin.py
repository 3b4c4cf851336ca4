"""FedPIN's two objectives by hand, what each phase moves, what never leaves, and its variants."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import (
    CNN_WITH_BN,
    Make,
    at,
    exchanged,
    go_on,
    models_of,
    names_sent,
    net_of,
    resident,
    scored,
    simulate,
    states,
)
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.core.tensors import Tensors, part_of
from fedshift.engines.lane import BatchOrder
from fedshift.methods import METHODS
from fedshift.methods.fedpin import Anchored, FedPIN, contrast, total_variance
from fedshift.methods.fedpin_global import FineTuned, GlobalModel
from fedshift.runs.simulation import Simulation

MILD = {"method.alpha": 0.001, "method.global_steps": 2}  # plain SGD diverges under the paper's alpha
PIN = {"method.name": "fedpin", "method.personal_steps": 2, **MILD}


ONE = Batch(torch.tensor([[1.0]]), torch.tensor([0]))


def linear(*rows: float) -> nn.Linear:
    """A linear layer of one input, with these weights and no bias."""
    layer = nn.Linear(1, len(rows), bias=False)
    layer.weight.data = torch.tensor([[row] for row in rows])
    return layer


# The local objective --------------------------------------------------------------------------------


def test_contrast_by_hand():
    """B = 2, d = 2, tau = 1/2; lengths do not matter, only angles.

    Row 1, u = (3, 0): cosine 1 with its anchor (1, 0), 0 and -1 with the negatives (0, 5) and (-1, 0):
      -log(e^2 / (e^2 + e^0 + e^-2)) = log(1 + e^-2 + e^-4) = log 1.1536509 = 0.1429316.
    Row 2, u = (0, 2): 1/sqrt 2 with (1, 1), 1 and 0 with the negatives:
      log(e^1.4142136 + e^2 + 1) - 1.4142136 = log 12.5023065 - 1.4142136 = 1.1116996.
    Mean: 0.6273156.
    """
    personal = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    anchor = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    shortcut = torch.tensor([[0.0, 5.0], [-1.0, 0.0]])
    assert contrast(personal, anchor, shortcut, 0.5).item() == pytest.approx(0.6273156, abs=1e-6)


def test_contrast_of_three_equal_representations_counts_the_batch():
    """All cosines are 1, so the positive is one of B + 1 equal terms: log(B + 1), Proposition 4.6's constant."""
    z = torch.ones(4, 3)
    assert contrast(z, 2 * z, 3 * z, 0.5).item() == pytest.approx(math.log(5))


def test_contrast_and_its_gradient_agree_with_the_printed_formula():
    """In 64 bits, sample by sample, as Proposition 4.6 prints it."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(5, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    z, anchor, shortcut = drawn[0].requires_grad_(), drawn[1], drawn[2]
    printed = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        positive = (F.cosine_similarity(z[i], anchor[i], dim=0) / 0.3).exp()
        negatives = [(F.cosine_similarity(z[i], other, dim=0) / 0.3).exp() for other in shortcut]
        printed = printed - (positive / (positive + sum(negatives))).log() / 5
    ours = contrast(z, anchor, shortcut, 0.3)
    assert ours.item() == pytest.approx(printed.item(), rel=1e-12)
    (one,), (other,) = torch.autograd.grad(ours, z), torch.autograd.grad(printed, z)
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_variance_by_hand():
    """Dimension 1 is (1, 3): variance 1; dimension 2 is (0, 4): variance 4. One sample has none."""
    assert total_variance(torch.tensor([[1.0, 0.0], [3.0, 4.0]])).item() == pytest.approx(5.0)
    assert total_variance(torch.tensor([[1.0, 2.0]])).item() == 0


def test_the_local_objective_reads_the_anchor_as_received_and_moves_only_the_personal_model():
    """One dimension, x = (1, 3), Phi_u(x) = 2x = (2, 6), labels 0: logits (z, -z).

    CE = (log(1 + e^-4) + log(1 + e^-12)) / 2 = (0.0181499 + 0.0000061) / 2 = 0.0090780.
    The anchor as received is x: cosine 1 (the net's own encoder, -x, would give -1); Psi_u(x) = -x: cosines -1. With
    tau = 1/2: log(1 + 2 e^-4) = log 1.0366313 = 0.0359763 for both; lam = 10: 0.359763.
    Var = ((2 - 4)^2 + (6 - 4)^2) / 2 = 4; gamma = 0.25: 1.
    """
    net = Net(
        {
            "encoder": linear(-1.0),
            "shortcut_encoder": linear(-1.0),
            "personal_encoder": linear(2.0),
            "personal_head": linear(1.0, -1.0),
        }
    )
    batch = Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    received = {"encoder.weight": torch.tensor([[1.0]])}
    terms = FedPIN(lam=10, gamma=0.25, anchor="features").personal_loss(net, batch, at(received=received))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"personal": 0.0090780, "contrast": 0.359763, "variance": 1.0}, abs=1e-5
    )
    sum(terms.values()).backward()
    assert {name for name, p in net.parameters() if p.grad is not None} == {
        "personal_encoder.weight",
        "personal_head.weight",
    }


def test_predictions_as_the_anchor_by_hand():
    """One dimension, x = 1, label 0, logits (z, 0): class probabilities (sigmoid z, 1 - sigmoid z).

    Phi_u = log 3 and omega_g's scale 1: u says (3/4, 1/4). The anchor as received says (2/3, 1/3), z = log 2 (as the
    net's own would say 1/2); Psi_u says (1/2, 1/2), z = 0. Times 12, 3 and 2: (3, 1), (2, 1), (1, 1), whose cosines
    are 7 / sqrt 50 = 0.9899495 and 4 / sqrt 20 = 0.8944272. With tau = 1/2:
    log(1 + e^(2 (0.8944272 - 0.9899495))) = log 1.8260961 = 0.6021801; lam = 10: 6.021801.
    """
    net = Net(
        {
            "encoder": linear(0.0),
            "head": linear(5.0, 0.0),
            "shortcut_encoder": linear(0.0),
            "shortcut_head": linear(1.0, 0.0),
            "personal_encoder": linear(math.log(3)),
            "personal_head": linear(1.0, 0.0),
        }
    )
    received = {"encoder.weight": torch.tensor([[math.log(2)]]), "head.weight": torch.tensor([[1.0], [0.0]])}
    terms = FedPIN(lam=10, gamma=0, anchor="predictions").personal_loss(net, ONE, at(received=received))
    assert terms["personal"].item() == pytest.approx(-math.log(3 / 4))
    assert terms["contrast"].item() == pytest.approx(6.021801, abs=1e-5)
    sum(terms.values()).backward()
    moved = {name for name, parameter in net.parameters() if parameter.grad is not None}
    assert moved == {"personal_encoder.weight", "personal_head.weight"}


def test_a_shortcut_hides_in_a_small_angle_of_the_features_but_not_in_the_predictions():
    """Beside the anchor (1, 0) Phi_u says (1, 0.1) and Psi_u (0, 1); a head makes 100 of the second feature.

    Features: cosines 1 / sqrt 1.01 = 0.9950372 and 0.1 / sqrt 1.01 = 0.0995037, so with tau = 1/2
    log(1 + e^(2 (0.0995037 - 0.9950372))) = log 1.1667820 = 0.1542495, near the least there is.
    Predictions: (1, 0) from u and Psi_u, (1/2, 1/2) from the anchor: cosines 1 / sqrt 2 and 1, so
    log(1 + e^(2 (1 - 0.7071068))) = log 2.7964090 = 1.0283361.
    """

    def scaled(second: float, first: float = 1.0) -> nn.Linear:
        layer = nn.Linear(2, 2, bias=False)
        layer.weight.data = torch.diag(torch.tensor([first, second]))
        return layer

    head = nn.Linear(2, 2, bias=False)
    head.weight.data = torch.tensor([[0.0, 100.0], [0.0, -100.0]])
    encoders = {"encoder": scaled(0.0), "shortcut_encoder": scaled(1.0, first=0.0), "personal_encoder": scaled(0.1)}
    net = Net({**encoders, "head": head, "shortcut_head": head, "personal_head": head})
    batch = Batch(torch.ones(1, 2), torch.tensor([0]))
    for anchor, expected in (("features", 0.1542495), ("predictions", 1.0283361)):
        terms = FedPIN(lam=1, anchor=anchor).personal_loss(net, batch, at())
        assert terms["contrast"].item() == pytest.approx(expected, abs=1e-5)


def test_a_weight_of_0_leaves_out_its_term_and_what_only_it_needs(make: Make):
    parts = FedPIN(alpha=1).parts(Simulation(make()).setup.model)
    assert set(parts) - set(FedPIN(alpha=1, lam=0).parts(Simulation(make()).setup.model)) == {
        "shortcut_encoder",
        "shortcut_head",
    }
    names = [phase.name for phase in FedPIN().phases()]
    assert names == ["shortcut", "personal", "global"]
    (personal, game) = FedPIN(alpha=0, lam=0, gamma=0).phases()
    assert [objective.name for objective in game.objectives] == ["global"]
    net = Net({"personal_encoder": linear(2.0), "personal_head": linear(1.0, -1.0)})
    batch = Batch(torch.tensor([[1.0]]), torch.tensor([0]))
    assert set(personal.objectives[0].evaluate(net, batch, at())) == {"personal"}


def test_alpha_weighs_after_its_warmup():
    method = GlobalModel(alpha=8, alpha_warmup=4)
    assert [method.alpha_at(round) for round in range(1, 7)] == [0, 0, 0, 0, 8, 8]
    assert [GlobalModel(alpha=8).alpha_at(round) for round in (1, 2)] == [8, 8]


def test_iterations_and_epochs_have_a_unit_each():
    """K epochs and R iterations, as in E.3."""
    phases = FedPIN(personal_unit="epochs", personal_steps=3, global_unit="steps", global_steps=4).phases()
    assert [(phase.name, phase.epochs, phase.steps) for phase in phases] == [
        ("shortcut", 3, None),
        ("personal", 3, None),
        ("global", None, 4),
    ]
    (alone,) = GlobalModel(global_unit="epochs", global_steps=4).phases()
    assert (alone.epochs, alone.steps) == (4, None)


def test_a_clients_own_models_have_their_own_rate():
    for method in (FedPIN(personal_lr=0.3), Anchored(personal_lr=0.3)):
        *own, shared = method.phases()
        assert [phase.objectives[0].optimiser.lr for phase in own] == [0.3] * len(own)
        assert shared.objectives[0].optimiser.lr is None


# The gain to first order ------------------------------------------------------------------------------


def test_a_step_down_the_first_order_gain_by_hand():
    """Two images x = 1 of y = 0, z = w x with w = 1, logits (z, -z), alpha = 3, scalar_weight = 1/2, rate 0.1.

    q = sigmoid(-2 z) is the probability of the wrong class; each half has one image, with the gradient (-q z, q z) for
    the head, which along the head (1, -1) is -2 q z. So the gain is 2 q^2 z^2 + 1/2 * 4 q^2 z^2 = (2 q z)^2.
    At z = 1: q = 0.1192029, gain 0.0568374, times alpha 0.1705122.
    d/dw: dq/dz = -2 q (1 - q) = -0.2099872, so 2 * 2q * (2q + 2 dq/dz) = 0.4768117 * -0.1815686 = -0.0865740.
    d/dh of the head's first row h: dq/dh = -q (1 - q) = -0.1049936. The first term is 2 q^2 z^2, with derivative
      4 q dq/dh = -0.0500623; the second 1/2 (h + 1)^2 q^2, with (h + 1) q^2 + (h + 1)^2 q dq/dh
      = 0.0284187 - 0.0500623 = -0.0216436. Together -0.0717059.
    With R's own -2 q = -0.2384058 and -q = -0.1192029: w becomes 1 + 0.1 * (0.2384058 + 3 * 0.0865740) = 1.0498128,
    h becomes 1 + 0.1 * (0.1192029 + 3 * 0.0717059) = 1.0334321.
    """
    net = Net({"encoder": linear(1.0), "head": linear(1.0, -1.0)})
    method = GlobalModel(alpha=3, scalar_weight=0.5)
    (objective,) = method.game()
    terms = objective.evaluate(net, Batch(torch.ones(2, 1), torch.tensor([0, 0])), at())
    assert terms["invariance"].item() == pytest.approx(0.1705122, abs=1e-6)
    sum(terms.values()).backward()
    stepped = {name: (p - 0.1 * p.grad).flatten().tolist() for name, p in net.parameters()}
    assert stepped["encoder.weight"] == pytest.approx([1.0498128], abs=1e-6)
    assert stepped["head.weight"] == pytest.approx([1.0334321, -1.0334321], abs=1e-6)


def drawn_head(samples: int) -> tuple[Net, Batch]:
    """A linear head of three features for two classes, and a batch, in 64 bits."""
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(3, 2, dtype=torch.float64)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    z = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    return Net({"encoder": nn.Identity(), "head": head}), Batch(z, torch.randint(2, (samples,), generator=generator), z)


def gain(net: Net, batch: Batch, samples: list[int], scalar_weight: float) -> float:
    """The estimate from these samples of a batch, in this order."""
    chosen = Batch(batch.x[samples], batch.y[samples], batch.z[samples])
    return GlobalModel(scalar_weight=scalar_weight).first_order_gain(net, chosen).item()


@pytest.mark.parametrize("halves", [(1, 1), (2, 1)])
@pytest.mark.parametrize("scalar_weight", [0.0, 7.0])
def test_two_halves_estimate_the_squared_gradient_without_bias(scalar_weight: float, halves: tuple[int, int]):
    """The mean over all batches that can be drawn, with replacement, from a population of three is exact.

    Against automatic differentiation of the population's risk: for the head, and for s at 1 in R(s * logits).
    """
    net, population = drawn_head(3)
    s = torch.ones((), dtype=torch.float64, requires_grad=True)
    risk = F.cross_entropy(s * net.head(population.z), population.y)
    *gradients, along = torch.autograd.grad(risk, [*net.head.parameters(), s])
    exact = sum(gradient.square().sum() for gradient in gradients) + scalar_weight * along**2
    batches = list(product(range(3), repeat=sum(halves)))
    estimates = [gain(net, population, list(batch), scalar_weight) for batch in batches]
    assert sum(estimates) / len(batches) == pytest.approx(exact.item(), rel=1e-9)


def test_the_squared_gradient_of_one_batch_would_be_biased():
    """A mean over one half's squares counts the noise as well: two halves that are equal give more than is true."""
    net, population = drawn_head(3)
    batches = list(product(range(3), repeat=2))
    fair = sum(gain(net, population, list(batch), 0.0) for batch in batches) / len(batches)
    same = sum(gain(net, population, [one, one], 0.0) for one in range(3)) / 3
    assert same > 1.1 * fair > 0


def test_it_is_what_a_head_gains_by_one_step_to_first_order():
    """(R(omega_g) - R(omega_g - eta grad R)) / eta, which Proposition 4.2's difference is for a small step eta."""
    net, batch = drawn_head(4)
    risk = F.cross_entropy(net.head(batch.z), batch.y)
    gradients = torch.autograd.grad(risk, list(net.head.parameters()))
    weight, bias = (p - 1e-6 * g for p, g in zip(net.head.parameters(), gradients, strict=True))
    gained = (risk - F.cross_entropy(F.linear(batch.z, weight, bias), batch.y)) / 1e-6
    twice = [sample for sample in range(4) for _ in range(2)]  # both halves are the batch
    assert gain(net, batch, twice, 0.0) == pytest.approx(gained.item(), rel=1e-4)


def test_halves_of_a_batch_that_is_odd_or_a_single_sample():
    """Of three samples the first half has the first and last; of one, the second has none, and there is no penalty."""
    net, batch = drawn_head(3)
    of_pairs = [gain(net, batch, pair, 7.0) for pair in ([0, 1], [2, 1])]
    assert gain(net, batch, [0, 1, 2], 7.0) == pytest.approx(sum(of_pairs) / 2)
    assert gain(net, batch, [0], 7.0) == 0


def test_the_gain_stacks():
    """Side by side as one by one."""
    net, batch = drawn_head(12)
    z, y = batch.z.view(3, 4, 3), batch.y.view(3, 4)
    method = GlobalModel()
    stacked = torch.func.vmap(lambda z, y: method.first_order_gain(net, Batch(z, y, z)))(z, y)
    alone = [gain(net, batch, list(range(4 * k, 4 * k + 4)), method.scalar_weight) for k in range(3)]
    assert stacked.tolist() == pytest.approx(alone)


# A round ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "moves"),
    [
        (0, {"shortcut_encoder", "shortcut_head"}),
        (1, {"personal_encoder", "personal_head"}),
        (2, {"encoder", "head"}),
    ],
)
def test_each_phase_moves_its_own_parts_only(make: Make, phase: int, moves: set[str]):
    """Batch-norm buffers count too."""

    class Only(FedPIN):
        """A single phase."""

        def phases(self):
            return (super().phases()[phase],)

    method = Only(alpha=0.001, personal_steps=2, global_steps=2, gamma=0.1)
    simulation = Simulation(make(CNN_WITH_BN).replace(method=method))
    before = {**simulation.coordinator.state.shared, **simulation.site.initial}
    when = simulation.coordinator.schedule[0]
    ups = exchanged(simulation, when.stage.exchanges[0], when, simulation.federated.clients)
    after = {**ups[0], **simulation.site.store.get(0).tensors}
    assert {part_of(name) for name in before if not torch.equal(before[name], after[name])} == moves
    assert all(name in after for name in before)


def test_without_its_terms_it_is_fedavg_beside_local_training(make: Make):
    """Batches of all 27 samples, so that which batch a phase draws only changes the order of a sum."""
    whole = {"train.batch": 27, "train.rounds": 3, "train.steps": 2}
    weightless = {"method.alpha": 0.0, "method.lam": 0.0, "method.gamma": 0.0}
    both = simulate(make({**PIN, **weightless, **whole}))
    federated, alone = simulate(make(whole)), simulate(make({"method.name": "single", **whole}))
    mine, theirs = both.coordinator.state.shared, federated.coordinator.state.shared
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(tensor, both.site.store.get(0).tensors[f"personal_{name}"], rtol=1e-2)
    for client, state in states(alone):
        for name, tensor in state.tensors.items():
            own = both.site.store.get(client).tensors[f"personal_{name}"]
            torch.testing.assert_close(own, tensor, rtol=1e-4, atol=1e-6)


def test_the_personal_model_of_one_round_is_singles_to_the_bit(make: Make):
    weightless = {"method.alpha": 0.0, "method.lam": 0.0, "method.gamma": 0.0}
    both = simulate(make({**PIN, **weightless}), rounds=1)
    alone = simulate(make({"method.name": "single"}), rounds=1)
    for client, state in states(alone):
        mine = both.site.store.get(client).tensors
        assert all(torch.equal(mine[f"personal_{name}"], tensor) for name, tensor in state.tensors.items())


def test_a_clients_own_encoders_start_as_the_global_one_or_from_their_own_draws(make: Make):
    spec = Simulation(make()).setup.model
    for start, equal in (("global", True), ("own", False)):
        parts = FedPIN(start=start).parts(spec)
        weights = [parts[name].module[1].weight for name in ("encoder", "personal_encoder", "shortcut_encoder")]
        assert torch.equal(weights[0], weights[1]) == torch.equal(weights[1], weights[2]) == equal
        again = FedPIN(start=start).parts(spec)["shortcut_encoder"].module[1].weight
        assert torch.equal(again, weights[2])


def test_an_unsampled_clients_personal_parts_stand_still(make: Make):
    simulation = Simulation(make({**PIN, "train.participation": 0.5, "train.rounds": 4}))
    for _ in simulation.coordinator.schedule:
        before = {client: state.tensors for client, state in states(simulation)}
        go_on(simulation)
        after = {client: state.tensors for client, state in states(simulation)}
        still = [client for client in before if after[client] is before[client]]
        assert len(after) - len(still) == 1


@pytest.mark.parametrize("bn", ["shared", "local"])
@pytest.mark.parametrize("name", ["fedpin", "fedpin-gm-l2"])
def test_an_unseen_client_is_predicted_for_with_the_global_model(make: Make, bn: str, name: str):
    simulation = simulate(make({**PIN, "method.name": name, "method.bn": bn} | CNN_WITH_BN))
    target = next(e for e in simulation.federated.environments if e.client is None)
    (model,) = models_of(simulation, target)
    when = simulation.coordinator.schedule[-1]
    mine = scored(simulation, model, target, when)
    assert scored(simulation, model, target, when, GlobalModel(alpha=1)) == mine
    assert torch.equal(model["personal_head.weight"], simulation.coordinator.state.shared["head.weight"])
    if bn == "local":
        both = [state.tensors["encoder.1.weight"] for _, state in states(simulation)]
        torch.testing.assert_close(model["personal_encoder.1.weight"], (both[0] + both[1]) / 2)


def test_a_client_is_predicted_for_with_its_personal_model(make: Make):
    simulation = simulate(make(PIN))
    environment = next(e for e in simulation.federated.environments if e.client == 0)
    (model,) = models_of(simulation, environment)
    x = environment.samples.x[:5]
    resident(simulation).client.load(0, model)
    net, kept = net_of(simulation), Tensors(simulation.site.store.get(0).tensors)
    z = net.frozen("encoder", kept.of("personal_encoder"), x)
    logits = F.linear(z, kept["personal_head.weight"], kept["personal_head.bias"])
    torch.testing.assert_close(FedPIN().predict(net, x, {}), logits.log_softmax(dim=1))


def test_every_preset_can_be_made():
    for cls in (FedPIN, GlobalModel, FineTuned, Anchored):
        for name, preset in cls.presets.items():
            method = cls(**preset)
            assert method.alpha == {"waterbird": 3e4, "pacs": 1e4}.get(name, 1e5)


# Variants ---------------------------------------------------------------------------------------------


def test_gm_l2_holds_the_personal_model_by_hand():
    """Theta_g as received: encoder 1, head (1, -1). Theta_u: encoder 3, head (2, -1).

    Distance squared: 2^2 + 1^2 + 0 = 5; mu = 0.5: 0.25 * 5 = 1.25. The encoder's gradient of it: 0.5 * 2 = 1.
    """
    net = Net({"personal_encoder": linear(3.0), "personal_head": linear(2.0, -1.0)})
    received = {"encoder.weight": torch.tensor([[1.0]]), "head.weight": torch.tensor([[1.0], [-1.0]])}
    anchor = Anchored(mu=0.5).personal_loss(net, ONE, at(received=received))["anchor"]
    assert anchor.item() == pytest.approx(1.25)
    anchor.backward()
    assert net.personal_encoder.weight.grad.item() == pytest.approx(1.0)
    assert set(Anchored(mu=0).personal_loss(net, ONE, at())) == {"personal"}
    assert [phase.name for phase in Anchored().phases()] == ["personal", "global"]


FT = {"method.name": "fedpin-gm-ft", "method.finetune_steps": 3, "method.finetune_lr": 0.05, **MILD}


@pytest.mark.parametrize("bn", ["shared", "local"])
def test_fine_tuning_keeps_each_clients_copy_and_sends_nothing(make: Make, bn: str):
    simulation = Simulation(make({**FT, "method.bn": bn, "train.participation": 0.5} | CNN_WITH_BN))
    *training, _tuning = simulation.coordinator.schedule
    for _ in training:
        go_on(simulation)
    shared, bytes_up = dict(simulation.coordinator.state.shared), simulation.coordinator.bytes_up
    go_on(simulation)
    assert simulation.coordinator.bytes_up == bytes_up
    assert not names_sent(simulation, "finetune", "up")
    assert all(torch.equal(simulation.coordinator.state.shared[name], tensor) for name, tensor in shared.items())
    kept = [state.tensors for _, state in states(simulation)]
    assert len(kept) == 2  # everyone, though half take part in training
    assert all(tensors["tuned.done"] == 1 for tensors in kept)
    assert not torch.equal(kept[0]["tuned.encoder.0.weight"], kept[1]["tuned.encoder.0.weight"])
    begun = simulation.site.initial["tuned.encoder.1.num_batches_tracked"]
    assert all(tensors["tuned.encoder.1.num_batches_tracked"] > begun for tensors in kept)  # buffers as well


def test_the_copy_is_plain_sgd_from_the_global_model(make: Make):
    """Three steps at 0.05 on the first three batches of the stage's own sequence, by a loop of its own."""
    simulation = simulate(make({**FT, "train.momentum": 0.0}))
    (client, *_) = simulation.federated.clients
    w = {name: tensor.clone().requires_grad_() for name, tensor in simulation.coordinator.state.shared.items()}
    order = BatchOrder(simulation.setup.streams, client.id, len(client.train), 4).from_number(0)
    for _ in range(3):
        indices = next(order)
        z = torch.func.functional_call(
            net_of(simulation).encoder,
            dict(Tensors(w).of("encoder")),
            (client.train.x[indices],),
        )
        loss = F.cross_entropy(F.linear(z, w["head.weight"], w["head.bias"]), client.train.y[indices])
        gradients = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for tensor, gradient in zip(w.values(), gradients, strict=True):
                tensor.sub_(0.05 * gradient)
    kept = simulation.site.store.get(client.id).tensors
    for name, tensor in w.items():
        torch.testing.assert_close(kept[f"tuned.{name}"], tensor.detach(), rtol=1e-5, atol=1e-6)


def test_gm_ft_predicts_with_the_global_model_until_it_is_tuned(make: Make):
    simulation = Simulation(make(FT))
    own = next(e for e in simulation.federated.environments if e.client == 0)
    target = next(e for e in simulation.federated.environments if e.client is None)

    def scores(environment):
        """As GM-FT scores it, and as the global model does."""
        (model,) = models_of(simulation, environment)
        when = simulation.coordinator.schedule[-1]
        found = scored(simulation, model, environment, when)
        plain = scored(simulation, model, environment, when, GlobalModel(alpha=1))
        return found.loss, plain.loss

    *training, _tuning = simulation.coordinator.schedule
    for _ in training:
        go_on(simulation)
        assert len(set(scores(own))) == 1
    go_on(simulation)
    assert len(set(scores(own))) == 2
    assert len(set(scores(target))) == 1


def test_a_run_goes_on_from_any_checkpoint_across_stages(make: Make, tmp_path: Path):
    experiment = make({**FT, "method.optimiser_state": "kept", "train.participation": 0.5})
    whole = simulate(experiment)
    for stop in range(1, whole.rounds):
        simulate(experiment, rounds=stop, folder=tmp_path / str(stop))
        resumed = simulate(experiment, folder=tmp_path / str(stop))
        for client, state in states(whole):
            mine, theirs = resumed.site.store.get(client).flat(), state.flat()
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert all(
            torch.equal(resumed.coordinator.state.shared[name], t) for name, t in whole.coordinator.state.shared.items()
        )


@pytest.mark.parametrize("name", ["fedpin", "fedpin-gm", "fedpin-gm-ft", "fedpin-gm-l2"])
def test_every_variant_runs_with_the_papers_optimiser_and_alpha(make: Make, name: str):
    """Adam at 1e-4 stays finite under alpha = 1e5, where plain SGD would not."""
    simulation = simulate(make({"method.name": name, "train.optimiser": "adam", "train.lr": 1e-4}))
    assert all(tensor.isfinite().all() for tensor in simulation.coordinator.state.shared.values())


def test_the_named_variants_are_fedpin_with_a_weight_of_0():
    without_contrast, without_variance = METHODS.get("fedpin-lambda-0"), METHODS.get("fedpin-gamma-0")
    assert (without_contrast().lam, without_variance().gamma) == (0.0, 0.0)
    assert without_variance.published()["pacs"] == {"alpha": 1e4, "lam": 3.0}
    assert without_contrast.published()["pacs"] == {"alpha": 1e4, "gamma": 1e-5}
