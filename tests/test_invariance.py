"""IRM, V-REx, GroupDRO, CORAL and Mixup by hand, federated and pooled: both forms are one equation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import Make, at, linear, local_work, net_of, simulate
from fedshift.core.contract import Batch, ServerState
from fedshift.core.method import Averaging
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods import METHODS
from fedshift.methods.coral import CORAL, PooledCORAL
from fedshift.methods.groupdro import Ascent, GroupDRO, PooledGroupDRO
from fedshift.methods.irm import IRM, PooledIRM, scale_gradients
from fedshift.methods.mixup import Mixup, draw_beta
from fedshift.methods.vrex import PooledVREx, VREx
from fedshift.runs.simulation import Simulation
from refusal import refuses

X = torch.tensor([[2.0], [1.0], [1.0], [2.0]])
Y = torch.tensor([0, 0, 1, 1])
POOLED = ("pooled-irm", "pooled-vrex", "pooled-groupdro", "pooled-coral")


def one_dimensional_net(**parts: nn.Module) -> Net:
    """Z = x and the logits (z, -z), so that the cross-entropy of class 0 is log(1 + e^-2z), and 2z more of class 1."""
    return Net({"encoder": linear(1.0), "head": linear(1.0, -1.0), **parts})


def state_of(tensors: Mapping[str, Tensor]) -> nn.Module:
    """What the server sends beside the model."""
    return holder(tensors)


def batch_of(x: list[float], y: list[int], environments: list[int]) -> Batch:
    """Samples of three environments."""
    of_each = F.one_hot(torch.tensor(environments), 3).float()
    return Batch(torch.tensor(x).float().unsqueeze(1), torch.tensor(y), environment=of_each)


def term(method: Averaging, name: str, net: Net, batch: Batch) -> float:
    """A weighted term in a late round."""
    return method.objective("train").evaluate(net, batch, at(round=9, rounds=9))[name].item()


# IRM ----------------------------------------------------------------------------------------------


def test_the_gradient_for_a_scale_of_the_logits():
    """Of class 0 it is -2z / (1 + e^2z), of class 1 2z more: at z = 2 -0.0719448 and 3.9280552, at 1 -0.2384058."""
    batch, logits = Batch(X, Y), torch.cat([X, -X], dim=1)
    found = scale_gradients(batch, logits)
    assert found.tolist() == pytest.approx([-0.0719448, -0.2384058, 1.7615942, 3.9280552], abs=1e-6)
    w = torch.ones((), requires_grad=True)
    (by_torch,) = torch.autograd.grad(F.cross_entropy(w * logits, Y), [w])
    assert found.mean().item() == pytest.approx(by_torch.item(), abs=1e-6)
    weight = torch.tensor([2.0, 0.0, 1.0, 1.0])
    assert scale_gradients(batch._replace(weight=weight), logits).tolist() == pytest.approx((weight * found).tolist())


def test_irms_penalty_by_hand():
    """Samples 0 and 2: (-0.0719448 + 1.7615942) / 2 = 0.8448247; 1 and 3: 1.8448247; times 10: 15.585536."""
    net, batch = one_dimensional_net(), Batch(X, Y)
    assert term(IRM(lam=10.0), "invariance", net, batch) == pytest.approx(15.585536, abs=1e-4)
    assert "invariance" not in IRM(warmup=25).objective("train").evaluate(net, batch, at(round=2, rounds=8))
    assert "invariance" in IRM(warmup=25).objective("train").evaluate(net, batch, at(round=3, rounds=8))


def test_irms_pooled_penalty_is_the_mean_over_the_environments_in_both_halves():
    """Environment 0: 1.5585536, as above; 1: -0.2384058 * 1.7615942 = -0.4199742; 2 is in one half only."""
    batch = batch_of([2, 1, 1, 2, 1, 1, 5], [0, 0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 1, 1, 2])
    assert term(PooledIRM(lam=1.0), "invariance", one_dimensional_net(), batch) == pytest.approx(0.5692897, abs=1e-5)
    nobody = batch_of([2, 1], [0, 1], [0, 1])
    assert term(PooledIRM(lam=1.0), "invariance", one_dimensional_net(), nobody) == 0


# V-REx --------------------------------------------------------------------------------------------


def test_the_variance_of_risks_by_hand():
    """The risk is (0.0181499 + 0.1269280 + 2.1269280 + 4.0181499) / 4 = 1.5725390: against a mean of 1 0.3278009.

    Pooled, with samples of environment 1 whose risks are 0.1269280 and 2.1269280, the deviations are +-0.2228055.
    """
    net = one_dimensional_net(mean_risk=state_of({"value": torch.tensor(1.0)}))
    assert term(VREx(beta=1.0), "variance", net, Batch(X, Y)) == pytest.approx(0.3278009, abs=1e-6)
    batch = batch_of([2, 1, 1, 2, 1, 1], [0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 1, 1])
    assert term(PooledVREx(beta=1.0), "variance", net, batch) == pytest.approx(0.2228055**2, abs=1e-6)
    assert "variance" not in VREx(warmup=0).objective("train").evaluate(net, Batch(X, Y), at())  # no risk is known


@pytest.mark.parametrize("form", [VREx, PooledVREx])
def test_the_variance_waits_for_the_warm_up(form: type[VREx | PooledVREx]):
    """A quarter of eight rounds."""
    net = one_dimensional_net(mean_risk=state_of({"value": torch.tensor(1.0)}))
    batch = batch_of([2, 1, 1, 2], [0, 0, 1, 1], [0, 0, 1, 1])
    objective = form(warmup=25).objective("train")
    there = ["variance" in objective.evaluate(net, batch, at(round=round, rounds=8)) for round in range(1, 9)]
    assert there == [False] * 2 + [True] * 6


@pytest.mark.parametrize("name", [*POOLED, "pooled-mixup"])
def test_a_pooled_form_cites_the_paper_of_its_method(name: str):
    assert METHODS.get(name).cited() == METHODS.get(name.removeprefix("pooled-")).cited() != ""


def test_the_pooled_weights_of_groupdro_move(make: Make):
    run = simulate(make({"method": {"name": "pooled-groupdro", "eta": 0.5}, "train.rounds": 1}))
    assert run.coordinator.state.shared["mixture.log_q"].any()


@pytest.mark.parametrize("name", [*POOLED, "pooled-mixup"])
def test_a_pooled_form_trains_a_single_client(make: Make, name: str):
    assert len(simulate(make({"method.name": name, "train.rounds": 1})).federated.clients) == 1


def test_the_mean_risk_is_that_of_the_models_that_clients_received(make: Make):
    """After one round: the risks of the initial model over each client's samples, measured again by hand."""
    experiment = make({"method": {"name": "vrex", "weighting": "samples"}, "train.rounds": 1})
    found = simulate(experiment).coordinator.state.down["mean_risk"]
    fresh = Simulation(experiment)
    net, clients = net_of(fresh), [client.train for client in fresh.federated.clients]
    risks = [F.cross_entropy(net.head(net.encoder(train.x)), train.y).item() for train in clients]
    sizes = [len(train) for train in clients]
    expected = sum(size * risk for size, risk in zip(sizes, risks, strict=True)) / sum(sizes)
    assert found.item() == pytest.approx(expected, rel=1e-5)


# GroupDRO -----------------------------------------------------------------------------------------


def test_clients_weigh_by_their_risks():
    """Clients 0 and 2 of 3, risks 1 and 3, eta 1/2: ln q moves by -0.5 and 0.5, and client 1 keeps its own.

    softmax(-0.5, 0.5) = (0.2689414, 0.7310586): of models 1 and 5 the mean is 3.9242343. With 3 samples and 1 the
    weights are 0.8068243 and 0.7310586: (0.8068243 + 3.6552929) / 1.5378828 = 2.9014676.
    """
    shared, server = Tensors({"head.w": torch.zeros(())}), Tensors({"log_q.value": torch.zeros(3)})
    state = ServerState(shared, server=server, clients=3)
    ups = [Tensors({"head.w": torch.tensor(w), "risk": torch.tensor(risk)}) for w, risk in ((1.0, 1.0), (5.0, 3.0))]
    merged = GroupDRO(eta=0.5).merge(state, Replies(zip((0, 2), ups, strict=True)))
    assert merged.server["log_q"].tolist() == [-0.5, 0, 0.5]
    assert merged.shared["head.w"].item() == pytest.approx(3.9242343, abs=1e-6)
    counted = [up | {"samples": torch.tensor(n)} for up, n in zip(ups, (3, 1), strict=True)]
    weighed = GroupDRO(eta=0.5).merge(state, Replies(zip((0, 2), counted, strict=True)))
    assert weighed.shared["head.w"].item() == pytest.approx(2.9014676, abs=1e-5)


def test_environments_of_a_batch_weigh_by_their_risks():
    """Risks 0.0181499 and 4.0181499, eta 1/2: ln q moves by -1 and 1, q = (0.1192029, 0.8807971), loss 3.5413384.

    Environment 2 is not in the batch and keeps its weight; where nothing trains, q stands still.
    """
    mixture = Ascent(3)
    net, method = one_dimensional_net(mixture=mixture), PooledGroupDRO(eta=0.5)
    batch = batch_of([2, 2], [0, 1], [0, 1])
    assert term(method, "cross_entropy", net, batch) == pytest.approx(3.5413384, abs=1e-5)
    assert mixture.log_q.tolist() == pytest.approx([-1, 1, 0], abs=1e-6)
    mixture.eval()
    term(method, "cross_entropy", net, batch)
    assert mixture.log_q.tolist() == pytest.approx([-1, 1, 0], abs=1e-6)


# CORAL --------------------------------------------------------------------------------------------


def test_the_distance_of_moments_by_hand():
    """Z = 1, 3 has the mean 2 and the covariance 2; against 1 and 1 the distance is 1 + 1.

    Pooled with z = 0, 0 of another environment, 1 and 1 are the means, and both are at that distance. A sample that is
    alone in its environment is excluded. In two dimensions z = (1, 3), (3, 3) has the covariance ((2, 0), (0, 0)):
    against zeros (4 + 9) / 2 + 4 / 4 = 7.5.
    """
    one = {"mean": torch.ones(1), "covariance": torch.ones(1, 1)}
    net = one_dimensional_net(moments=state_of(one))
    client = Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]))
    assert term(CORAL(gamma=1.0), "alignment", net, client) == pytest.approx(2)
    batch = batch_of([1, 3, 0, 0, 9], [0, 1, 0, 1, 0], [0, 0, 1, 1, 2])
    assert term(PooledCORAL(gamma=1.0), "alignment", net, batch) == pytest.approx(2)
    zeros = {"mean": torch.zeros(2), "covariance": torch.zeros(2, 2)}
    plane = Net({"encoder": nn.Identity(), "head": linear([1.0, 0.0], [0.0, 1.0]), "moments": state_of(zeros)})
    assert term(CORAL(gamma=1.0), "alignment", plane, Batch(torch.tensor([[1.0, 3.0], [3.0, 3.0]]), Y[1:3])) == 7.5
    assert "alignment" not in CORAL().objective("train").evaluate(net, client, at())


def test_the_moments_of_a_client_by_hand():
    """Z = 1, 3: the sums 4 and 10 make the mean 2 and the covariance 5 - 4 = 1; the server takes the clients' mean."""
    sums = CORAL().sums(one_dimensional_net(), Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])), at())
    nothing = Tensors()
    work = local_work(nothing, nothing, nothing, measured=Tensors(sums), seen=dict.fromkeys(sums, 2))
    sent = CORAL().upload(work)
    assert {name: tensor.item() for name, tensor in sent.items()} == {"moments.mean": 2, "moments.covariance": 1}
    both = Replies(enumerate([sent, 3 * sent]))
    assert {name: tensor.item() for name, tensor in CORAL().after_mean(ServerState(), both).items()} == {
        "moments.mean": 4,
        "moments.covariance": 2,
    }


# Mixup --------------------------------------------------------------------------------------------


def test_a_mixture_by_hand():
    """Alpha = 1: of 0.9, 0.5 the sum is above 1, of 0.2, 0.6 it is not, so lam = 0.2 / 0.8; alpha = 1/2: 0.04 / 0.4.

    x = 1, 2 become 1.75 and 1.25, whose risks are 0.0297501 or 3.5 more, and 0.0788898 or 2.5 more:
    (0.0297501 + 3/4 * 3.5 + 0.0788898 + 1/4 * 2.5) / 2 = 1.6793200.
    """
    uniform = torch.tensor([[0.9, 0.5], [0.2, 0.6], [0.1, 0.1]])
    assert draw_beta(uniform, 1.0).item() == pytest.approx(0.25)
    assert draw_beta(uniform, 0.5).item() == pytest.approx(0.1)
    batch, context = Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])), at(noise={"mixture": uniform})
    objective, net = Mixup(alpha=1.0).objective("train"), one_dimensional_net()
    assert objective.loss(net, batch, context).item() == pytest.approx(1.67932, abs=1e-5)
    weighed = batch._replace(weight=torch.tensor([2.0, 0.0]))  # of class 0 alone: 1/4 * 0.0297501 + 3/4 * 0.0788898
    assert objective.loss(net, weighed, context).item() == pytest.approx(0.0666049, abs=1e-5)
    assert Mixup().encode(net, batch, {}).z.tolist() == batch.x.tolist()
    with refuses("Mixup", "tokens"):
        objective.loss(net, batch._replace(x=torch.tensor([[1], [2]])), context)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0])
def test_mixtures_are_of_the_beta_distribution(alpha: float):
    """Its mean is 1/2 and its variance 1 / (4 (2 alpha + 1)); clients side by side, as they are stacked."""
    uniform = torch.rand((20_000, 32, 2), generator=torch.Generator().manual_seed(0))
    drawn = torch.vmap(draw_beta, in_dims=(0, None))(uniform, alpha)
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.015)
    assert drawn.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), abs=0.005)


# Both forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["irm", "vrex", "coral"])
def test_the_mean_of_the_clients_gradients_is_the_pooled_gradient(name: str):
    """Three clients of four samples, whose means the server knows: the model moves as on the pooled batch.

    For V-REx and CORAL that is the claim that what is sent may stand still.
    """
    drawn = torch.Generator().manual_seed(0)
    x, y = torch.randn((12, 2), generator=drawn), torch.randint(3, (12,), generator=drawn)
    environments = torch.arange(3).repeat_interleave(4)
    parts: dict[str, nn.Module] = {"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 3)}
    for module in parts.values():
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, generator=drawn)
    clients = [Batch(x[environments == e], y[environments == e]) for e in range(3)]
    with torch.no_grad():
        z = [parts["encoder"](client.x) for client in clients]
        risks = [F.cross_entropy(parts["head"](each), client.y) for each, client in zip(z, clients, strict=True)]
    moments = {
        "mean": torch.stack([each.mean(dim=0) for each in z]).mean(dim=0),
        "covariance": torch.stack([each.T.cov() for each in z]).mean(dim=0),
    }
    sent = {"mean_risk": state_of({"value": torch.stack(risks).mean()}), "moments": state_of(moments)}
    net = Net(parts | sent)

    def gradient(method: str, batch: Batch) -> Tensor:
        losses = METHODS.get(method)().core.objective("train").loss(net, batch, at(round=9, rounds=9))
        weights = [*parts["encoder"].parameters(), *parts["head"].parameters()]
        return torch.cat([each.flatten() for each in torch.autograd.grad(losses, weights)])

    federated = torch.stack([gradient(name, client) for client in clients]).mean(dim=0)
    pooled = gradient(f"pooled-{name}", Batch(x, y, environment=F.one_hot(environments, 3).float()))
    torch.testing.assert_close(federated, pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "weight"), [("pooled-irm", "lam"), ("pooled-vrex", "beta"), ("pooled-coral", "gamma")]
)
def test_without_its_term_a_pooled_method_is_centralised_to_the_bit(make: Make, name: str, weight: str):
    plain = simulate(make({"method.name": "centralised"})).coordinator.state.shared
    ours = simulate(make({"method": {"name": name, weight: 0.0}})).coordinator.state.shared
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


def test_mixtures_of_one_sample_alone_are_nearly_fedavg(make: Make):
    """Alpha -> 0: lam is 0 or 1, and a batch in another order has the same mean."""
    plain = simulate(make()).coordinator.state.shared
    ours = simulate(make({"method": {"name": "mixup", "alpha": 1e-6}})).coordinator.state.shared
    for name, tensor in plain.items():
        torch.testing.assert_close(tensor, ours[name], rtol=1e-4, atol=1e-6)


def test_pooled_batches_say_of_which_domain_each_sample_is(make: Make):
    """Both training domains, 0 and 1, in the columns of what the data set numbers; whose samples they are is in y."""
    seen: list[Tensor] = []

    class Watched(PooledVREx):
        """Notes the environments of its batches."""

        def variance(self, net: Any, batch: Batch, context: Any) -> Tensor:
            seen.append(batch.environment)
            return super().variance(net, batch, context)

    simulation = simulate(make({"method.name": "pooled-vrex", "train.rounds": 4}).replace(method=Watched(warmup=0)))
    names, together = simulation.federated.train_environments, torch.cat(seen)
    assert together.shape[1] == len(names) == simulation.setup.model.environments
    assert together.sum(dim=1).eq(1).all()
    assert sorted(together.argmax(dim=1).unique().tolist()) == sorted(
        simulation.federated.clients[0].train.environment.unique().tolist()
    )


@pytest.mark.parametrize("name", POOLED)
def test_a_single_environment_is_refused_with_the_fix(make: Make, name: str):
    model = replace(Simulation(make()).setup.model, environments=1)
    with refuses("train in a single", "data.train_p", "'centralised'"):
        METHODS.get(name)().parts(model)


@pytest.mark.parametrize("name", ["vrex", "groupdro", "coral"])
def test_what_leaves_a_client_is_a_statistic(make: Make, name: str):
    ((exchange,),) = (stage.exchanges for stage in Simulation(make({"method.name": name})).setup.stages)
    assert [upload.category for upload in exchange.uploads] == ["statistic"]
