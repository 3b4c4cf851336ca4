"""FedPIN's two objectives by hand, what each phase moves, what never leaves, and its variants."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import CNN_WITH_BN, Make, at, exchanged, linear, losses, models_of, net_of, resident, simulate, states
from fedshift.core.contract import Batch
from fedshift.core.net import Net
from fedshift.core.tensors import Tensors, part_of
from fedshift.methods import METHODS
from fedshift.methods.fedpin import Anchored, FedPIN, contrast
from fedshift.methods.fedpin_global import GlobalModel
from fedshift.runs.simulation import Simulation

PIN = {"method.name": "fedpin", "method.personal_steps": 2, "method.alpha": 0.001, "method.global_steps": 2}


ONE = Batch(torch.tensor([[1.0]]), torch.tensor([0]))


# The local objective --------------------------------------------------------------------------------


def test_contrast_by_hand():
    """B = 2, d = 2, tau = 1/2; lengths do not matter, only angles.

    Row 1, u = (3, 0): cosine 1 with its anchor (1, 0), 0 and -1 with the negatives (0, 5) and (-1, 0):
      -log(e^2 / (e^2 + e^0 + e^-2)) = log(1 + e^-2 + e^-4) = log 1.1536509 = 0.1429316.
    Row 2, u = (0, 2): 1/sqrt 2 with (1, 1), 1 and 0 with the negatives:
      log(e^1.4142136 + e^2 + 1) - 1.4142136 = log 12.5023065 - 1.4142136 = 1.1116996.
    Mean: 0.6273156. Where all are equal the positive is one of B + 1 equal terms: log(B + 1), Proposition 4.6's
    constant.
    """
    personal = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    anchor = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    shortcut = torch.tensor([[0.0, 5.0], [-1.0, 0.0]])
    assert contrast(personal, anchor, shortcut, 0.5).item() == pytest.approx(0.6273156, abs=1e-6)
    alike = torch.ones(4, 3)
    assert contrast(alike, 2 * alike, 3 * alike, 0.5).item() == pytest.approx(math.log(5))


def test_the_local_objective_reads_the_anchor_as_received_and_moves_only_the_personal_model():
    """One dimension, x = (1, 3), Phi_u(x) = 2x = (2, 6), labels 0: logits (z, -z).

    CE = (log(1 + e^-4) + log(1 + e^-12)) / 2 = (0.0181499 + 0.0000061) / 2 = 0.0090780.
    The anchor as received is x: cosine 1 (the net's own encoder, -x, would give -1); Psi_u(x) = -x: cosines -1. With
    tau = 1/2: log(1 + 2 e^-4) = log 1.0366313 = 0.0359763 for both; lam = 10: 0.359763.
    Var = ((2 - 4)^2 + (6 - 4)^2) / 2 = 4; gamma = 0.25: 1.
    """
    own = {"personal_encoder": linear(2.0), "personal_head": linear(1.0, -1.0)}
    net = Net({"encoder": linear(-1.0), "shortcut_encoder": linear(-1.0), **own})
    batch = Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    context = at(received={"encoder.weight": torch.tensor([[1.0]])})
    terms = losses(FedPIN(lam=10, gamma=0.25, anchor="features").personal_terms(), net, batch, context)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"personal": 0.0090780, "contrast": 0.359763, "variance": 1.0}, abs=1e-5
    )
    sum(terms.values()).backward()
    moved = {name for name, parameter in net.parameters() if parameter.grad is not None}
    assert moved == {"personal_encoder.weight", "personal_head.weight"}


def test_predictions_as_the_anchor_by_hand():
    """One dimension, x = 1, label 0, logits (z, 0): class probabilities (sigmoid z, 1 - sigmoid z).

    Phi_u = log 3 and omega_g's scale 1: u predicts (3/4, 1/4). The received anchor predicts (2/3, 1/3), z = log 2 (the
    net's one would predict 1/2); Psi_u predicts (1/2, 1/2), z = 0. Times 12, 3 and 2: (3, 1), (2, 1), (1, 1), whose
    cosines are 7 / sqrt 50 = 0.9899495 and 4 / sqrt 20 = 0.8944272. With tau = 1/2:
    log(1 + e^(2 (0.8944272 - 0.9899495))) = log 1.8260961 = 0.6021801; lam = 10: 6.021801.
    """
    net = Net(
        {
            **{"encoder": linear(0.0), "head": linear(5.0, 0.0)},
            **{"shortcut_encoder": linear(0.0), "shortcut_head": linear(1.0, 0.0)},
            **{"personal_encoder": linear(math.log(3)), "personal_head": linear(1.0, 0.0)},
        }
    )
    received = {"encoder.weight": torch.tensor([[math.log(2)]]), "head.weight": torch.tensor([[1.0], [0.0]])}
    terms = losses(FedPIN(lam=10, gamma=0, anchor="predictions").personal_terms(), net, ONE, at(received=received))
    assert terms["personal"].item() == pytest.approx(-math.log(3 / 4))
    assert terms["contrast"].item() == pytest.approx(6.021801, abs=1e-5)
    sum(terms.values()).backward()
    moved = {name for name, parameter in net.parameters() if parameter.grad is not None}
    assert moved == {"personal_encoder.weight", "personal_head.weight"}


def test_a_weight_of_0_leaves_out_its_term_and_what_only_it_needs(make: Make):
    """And the penalty begins after its warm-up."""
    spec = Simulation(make()).setup.model
    left_out = FedPIN(alpha=1).parts(spec).keys() - FedPIN(alpha=1, lam=0).parts(spec).keys()
    assert left_out == {"shortcut_encoder", "shortcut_head"}
    assert [phase.name for phase in FedPIN().phases()] == ["shortcut", "personal", "global"]
    (personal, game) = FedPIN(alpha=0, lam=0, gamma=0).phases()
    assert [objective.name for objective in game.objectives] == ["global"]
    net = Net({"personal_encoder": linear(2.0), "personal_head": linear(1.0, -1.0)})
    assert set(personal.objectives[0].evaluate(net, ONE, at())) == {"personal"}
    late = GlobalModel(alpha=8, alpha_warmup=25).terms()["invariance"]
    assert (late.weight, [late.first(rounds) for rounds in (3, 16, 80)]) == (8, [1, 5, 21])


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


@pytest.mark.parametrize("halves", [(1, 1), (2, 1)])
@pytest.mark.parametrize("scalar_weight", [0.0, 7.0])
def test_two_halves_estimate_the_squared_gradient_without_bias(scalar_weight: float, halves: tuple[int, int]):
    """The mean over all batches that can be drawn, with replacement, from a population of three is exact.

    Against automatic differentiation of the population's risk: for the head, and for s at 1 in R(s * logits).
    """
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(3, 2, dtype=torch.float64)
    z = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    y, net = torch.randint(2, (3,), generator=generator), Net({"encoder": nn.Identity(), "head": head})
    s = torch.ones((), dtype=torch.float64, requires_grad=True)
    *gradients, along = torch.autograd.grad(F.cross_entropy(s * head(z), y), [*head.parameters(), s])
    exact = sum(gradient.square().sum() for gradient in gradients) + scalar_weight * along**2
    method = GlobalModel(scalar_weight=scalar_weight)
    batches = [list(drawn) for drawn in product(range(3), repeat=sum(halves))]
    estimates = [method.gain(net, Batch(z[drawn], y[drawn], z[drawn]), at()).item() for drawn in batches]
    assert sum(estimates) / len(batches) == pytest.approx(exact.item(), rel=1e-9)


# A round ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_each_phase_moves_only_its_own_parts(make: Make, phase: int):
    """Batch-norm buffers count too."""

    class Only(FedPIN):
        """A single phase."""

        def phases(self):
            return (super().phases()[phase],)

    method = Only(alpha=0.001, personal_steps=2, global_steps=2, gamma=0.1)
    simulation = Simulation(make(CNN_WITH_BN).replace(method=method))
    before = {**simulation.coordinator.state.shared, **simulation.site.initial}
    when = simulation.coordinator.schedule[0]
    ups = exchanged(simulation, when.stage.training, when, simulation.federated.clients)
    after = {**ups[0], **simulation.site.store.get(0).tensors}
    moved = {part_of(name) for name in before if not torch.equal(before[name], after[name])}
    assert moved == {f"{('shortcut_', 'personal_', '')[phase]}{part}" for part in ("encoder", "head")}


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


def test_a_clients_own_encoders_start_as_the_global_one_or_from_their_own_draws(make: Make):
    spec = Simulation(make()).setup.model
    for start, equal in (("global", True), ("own", False)):
        parts = FedPIN(start=start).parts(spec)
        weights = [parts[name].module[1].weight for name in ("encoder", "personal_encoder", "shortcut_encoder")]
        assert torch.equal(weights[0], weights[1]) == torch.equal(weights[1], weights[2]) == equal


def test_a_client_is_predicted_for_with_its_personal_model(make: Make):
    simulation = simulate(make({**PIN, "protocol": {"name": "in-domain"}}))
    environment = next(e for e in simulation.federated.environments if e.client == 0)
    (model,) = models_of(simulation, environment)
    x = environment.samples.x[:5]
    resident(simulation).client.load([model])
    net, kept = net_of(simulation), Tensors(simulation.site.store.get(0).tensors)
    z = net.frozen("encoder", kept.of("personal_encoder"), x)
    logits = F.linear(z, kept["personal_head.weight"], kept["personal_head.bias"])
    torch.testing.assert_close(FedPIN().predict(net, x, {}), logits.log_softmax(dim=1))


# Variants ---------------------------------------------------------------------------------------------


def test_gm_l2_holds_the_personal_model_by_hand():
    """Theta_g as received: encoder 1, head (1, -1). Theta_u: encoder 3, head (2, -1).

    Distance squared: 2^2 + 1^2 + 0 = 5; mu = 0.5: 0.25 * 5 = 1.25. The encoder's gradient of it: 0.5 * 2 = 1.
    """
    net = Net({"personal_encoder": linear(3.0), "personal_head": linear(2.0, -1.0)})
    received = {"encoder.weight": torch.tensor([[1.0]]), "head.weight": torch.tensor([[1.0], [-1.0]])}
    anchor = losses(Anchored(mu=0.5).personal_terms(), net, ONE, at(received=received))["anchor"]
    assert anchor.item() == pytest.approx(1.25)
    anchor.backward()
    assert net.personal_encoder.weight.grad.item() == pytest.approx(1.0)
    assert set(losses(Anchored(mu=0).personal_terms(), net, ONE, at())) == {"personal"}
    assert [phase.name for phase in Anchored().phases()] == ["personal", "global"]


def test_the_named_variants_are_fedpin_with_a_weight_of_0():
    without_contrast, without_variance = METHODS.get("fedpin-lambda-0"), METHODS.get("fedpin-gamma-0")
    assert (without_contrast().lam, without_variance().gamma) == (0.0, 0.0)
    assert without_variance.published()["pacs"] == {"lam": 3.0}
    assert without_contrast.published()["pacs"] == {"gamma": 1e-5}
