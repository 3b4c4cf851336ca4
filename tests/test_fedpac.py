"""FedPAC's statistics, quadratic programme, merge and alignment by hand; the programme against scipy and by KKT."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from torch import Tensor, nn

from conftest import Make, at, evaluated, models_of, names_sent, simulate, states
from fedshift.clients.samples import Samples
from fedshift.core.contract import Batch, LocalWork, ServerState
from fedshift.core.messages import Down
from fedshift.core.net import Net
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedpac import FedPAC, combination
from fedshift.methods.simplex import simplex_minimum
from test_methods import small


def head_of(*weights: float) -> nn.Linear:
    layer = nn.Linear(1, len(weights), bias=False)
    layer.weight.data = torch.tensor(weights).unsqueeze(1)
    return layer


# The programme ------------------------------------------------------------------------------------


def kkt(p: Tensor, a: Tensor) -> float:
    """How far a is from a minimum of a'Pa on the simplex, relative to P: 0 if nothing lowers it to first order."""
    scale = p.diagonal().max().clamp(min=torch.finfo(p.dtype).tiny)
    slope = p @ a / scale
    return float((a @ slope - slope.min()).clamp(min=0))


def instance(seed: int, clients: int, rank: int, variances: bool) -> Tensor:
    """R of a random diag(v) + D = R'R, where D is of some rank."""
    generator = np.random.default_rng(seed)
    away = generator.normal(size=(clients, rank))
    v = generator.uniform(size=clients) if variances else np.zeros(clients)
    return torch.from_numpy(np.concatenate([np.diag(np.sqrt(v)), away.T]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("rank", "variances"), [(12, True), (3, True), (3, False), (1, False)])
def test_the_programme_against_scipy(seed: int, rank: int, variances: bool):
    """Nine clients; with rank 3 or 1 and no variances P is singular, so minima may be many but have one value."""
    root = instance(seed, 9, rank, variances)
    p, a = root.T @ root, simplex_minimum(root)
    assert a.min() >= 0
    assert a.sum().item() == pytest.approx(1)
    reference = minimize(
        lambda x: x @ p.numpy() @ x,
        np.full(9, 1 / 9),
        jac=lambda x: 2 * p.numpy() @ x,
        bounds=[(0, 1)] * 9,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(9)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert (a @ p @ a).item() == pytest.approx(reference.fun, abs=1e-7)
    if variances:
        assert a.tolist() == pytest.approx(reference.x.tolist(), abs=1e-4)


@given(
    arrays(np.float64, (5, 3), elements=st.floats(-10, 10)),
    arrays(np.float64, 5, elements=st.floats(0, 10)),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_the_solution_meets_the_kkt_conditions(away: np.ndarray, v: np.ndarray, unit: float):
    """(Pa)_j = a'Pa where a_j > 0 and no less elsewhere, in any unit, with ties, zeros and singular P."""
    root = unit * torch.from_numpy(np.concatenate([np.diag(np.sqrt(v)), away.T]))
    p, a = root.T @ root, simplex_minimum(root)
    assert a.min() >= 0
    assert a.sum().item() == pytest.approx(1)
    assert kkt(p, a) < 1e-9


def test_small_programmes_by_hand():
    """P = diag(1, 9): a ~ (1, 1/9). One client: 1. Equal clients share alike where variances make the minimum one."""
    assert simplex_minimum(torch.diag(torch.tensor([1.0, 3.0]))).tolist() == pytest.approx([0.9, 0.1])
    assert simplex_minimum(torch.tensor([[5.0]])).tolist() == [1.0]
    assert simplex_minimum(torch.zeros(1, 1)).tolist() == [1.0]
    assert simplex_minimum(torch.eye(4)).tolist() == pytest.approx([0.25] * 4)


def test_small_weights_are_left_out():
    """Of P = diag(1, 1, 1e4) the weights are (1, 1, 1e-4) / 2.0001; the last is below 1e-3 and becomes 0."""
    shares, variances = torch.zeros(3, 2).double(), torch.tensor([1.0, 1.0, 1e4]).double()
    assert combination(0, shares, variances).tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_of_very_many_equal_clients_each_has_its_small_weight():
    """Of 1,001 with equal v and H each has 1/1001, below 1e-3; without any there would be no head."""
    shares, variances = torch.zeros(1001, 1).double(), torch.ones(1001).double()
    assert combination(0, shares, variances).tolist() == pytest.approx([1 / 1001] * 1001)


# A round ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_the_head_moves_first_and_then_the_encoder(unit: Literal["epochs", "steps"]):
    """Between the measures; each for as long as its setting says, and the head at a rate of its own."""
    method = FedPAC(head_steps=2, encoder_steps=3, unit=unit, head_lr=0.5)
    before, head, encoder, after = method.phases()
    assert (before.measure, after.measure) == (method.measured_before, method.measured_after)
    for phase, part, count, lr in ((head, "head", 2, 0.5), (encoder, "encoder", 3, None)):
        (objective,) = phase.objectives
        assert objective.moves == (part,)
        assert (phase.epochs, phase.steps) == ((count, None) if unit == "epochs" else (None, count))
        assert objective.optimiser.lr == lr
    assert [phase.objectives[0].loss for phase in (head, encoder)] == [method.plain_loss, method.loss]


def reply(method: FedPAC, x: list[float], y: list[int], encoder: float, head: tuple[float, float]) -> Tensors:
    """What a client sends whose features are its inputs before training, and ``encoder`` times these after it."""
    batch, context = Batch(torch.tensor(x).float().unsqueeze(1), torch.tensor(y)), at(counts=[0, 0])
    counts = torch.bincount(batch.y, minlength=2)
    before = method.measured_before(Net({"encoder": head_of(1.0)}), batch, context)
    after = method.measured_after(Net({"encoder": head_of(encoder)}), batch, context)
    measured, nothing = Tensors({**before, **after}), Tensors()
    work = LocalWork(nothing, nothing, Down(), measured, nothing, Samples(batch.x, batch.y), counts, steps=1, lr=0.1)
    model = {"encoder.weight": torch.tensor([[encoder]]), "head.weight": torch.tensor(head).float().unsqueeze(1)}
    return Tensors(model) | method.upload(work) | {"samples": torch.tensor(len(y))}


def start(method: FedPAC, clients: int) -> ServerState:
    """The server of models w x -> (h_0, h_1), with class means of 7 that nobody has measured."""
    heads = {"heads.combined": torch.zeros(clients), "heads.weight": torch.zeros(clients, 2, 1)}
    shared = {"encoder.weight": torch.ones(1, 1), "head.weight": torch.zeros(2, 1)}
    down = {"class_means.value": torch.full((3, 1), 7.0)[:2], "class_counts.value": torch.zeros(2, dtype=torch.int64)}
    return ServerState(Tensors(shared), Tensors(down), Tensors(heads), clients=clients)


def test_a_round_by_hand():
    """Client 0 has x = 1 of class 0 and x = 3 of class 1, client 2 x = 1 and 1, both of class 0.

    H_0 = (1/2, 3/2), v_0 = ((1 + 9)/2 - (1/4 + 9/4)) / 2 = 5/4; H_2 = (1, 0), v_2 = (1 - 1) / 2 = 0.
    |H_0 - H_2|^2 = 1/4 + 9/4 = 5/2. For client 0 P = diag(5/4, 5/2), so a = (2/3, 1/3); for client 2
    P = diag(5/4 + 5/2, 0), so a = (0, 1).
    Heads (3, 0) and (0, 6): client 0 is sent (2, 2), client 2 (0, 6), client 1, absent, the mean (1.5, 3).
    Encoders 2 and 4 by samples, 2 each: 3. Class means after training: (2*1 + 4*1 + 4*1)/3 = 10/3 and 2*3 = 6.
    """
    method = FedPAC()
    ups = [(0, reply(method, [1, 3], [0, 1], 2.0, (3, 0))), (2, reply(method, [1, 1], [0, 0], 4.0, (0, 6)))]
    merged = method.merge(start(method, 3), Replies(ups))
    assert merged.shared["encoder.weight"].item() == pytest.approx(3)
    assert merged.down["class_means.value"].flatten().tolist() == pytest.approx([10 / 3, 6])
    assert merged.down["class_counts.value"].tolist() == [3, 1]
    sent = [(merged.shared | method.send(merged, client))["head.weight"].flatten() for client in range(3)]
    assert [head.tolist() for head in sent] == [pytest.approx(head) for head in ([2, 2], [1.5, 3], [0, 6])]


def test_the_next_round_by_hand():
    """Client 2 alone, x = 1 of class 0 thrice: encoder 5, class mean 5.

    Class 1 keeps mean and count, client 0 its head, and client 2 is sent its own.
    """
    method = FedPAC()
    first = [(0, reply(method, [1, 3], [0, 1], 2.0, (3, 0))), (2, reply(method, [1, 1], [0, 0], 4.0, (0, 6)))]
    state = method.merge(start(method, 3), Replies(first))
    merged = method.merge(state, Replies([(2, reply(method, [1, 1, 1], [0, 0, 0], 5.0, (1, 1)))]))
    assert merged.shared["encoder.weight"].item() == 5
    assert merged.down["class_means.value"].flatten().tolist() == pytest.approx([5, 6])
    assert merged.down["class_counts.value"].tolist() == [3, 1]
    assert method.send(merged, 0)["head.weight"].flatten().tolist() == pytest.approx([2, 2])
    assert method.send(merged, 2)["head.weight"].flatten().tolist() == pytest.approx([1, 1])


def test_encoders_weigh_by_samples_and_class_means_by_class_counts():
    """One sample at encoder 2, three at encoder 6: (2 + 18)/4 = 5; means of x = 1: (2 + 18)/4."""
    method = FedPAC()
    ups = [(0, reply(method, [1], [0], 2.0, (0, 0))), (1, reply(method, [1, 1, 1], [0, 0, 0], 6.0, (0, 0)))]
    merged = method.merge(start(method, 2), Replies(ups))
    assert merged.shared["encoder.weight"].item() == 5
    assert merged.down["class_means.value"].flatten().tolist() == [5, 7]


def test_the_alignment_by_hand():
    """Features z = (1, 2), y = (0, 1), lam = 0.5; class 0 has the global mean 3, class 1 none, but the own 8/4 = 2.

    0.5 * ((1 - 3)^2 + (2 - 2)^2) / 2 = 1. In round 1 there is the cross-entropy alone. Logits are 0: log 2.
    """
    net = Net({"encoder": head_of(1.0), "head": head_of(0.0, 0.0)})
    batch = Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    received = {"class_means.value": torch.tensor([[3.0], [0.0]]), "class_counts.value": torch.tensor([9, 0])}
    context = at(round=2, rounds=2, received=received, counts=[5, 4])
    context.measured._tensors["before"] = torch.tensor([[100.0], [8.0]])
    objective = FedPAC(lam=0.5).objective("encoder")
    terms = objective.evaluate(net, batch, context)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.6931472, "alignment": 1.0}
    )
    assert objective.evaluate(net, batch, at(received=received, counts=[5, 4])).keys() == {"cross_entropy"}


def test_a_round_is_one_epoch_of_the_head_and_five_of_the_encoder(make: Make):
    """27 samples in batches of 4 are 6 whole ones: 6 + 30 steps, in every one of which the rest stands still."""
    simulation = simulate(make({"method.name": "fedpac", "train.rounds": 1}))
    assert all(state.drawn["train"] == 36 for _, state in states(simulation))


def test_what_leaves_and_what_is_kept(make: Make):
    simulation = simulate(make(small("fedpac")))
    model = {name for name, scope in simulation.setup.scopes.items() if scope == "shared"}
    statistics = {"before.value", "squares", "after.value", "class_counts.value", "samples"}
    assert names_sent(simulation, "train", "up") == model | statistics
    categories = simulation.setup.declaration(simulation.setup.stages[0].exchanges[0]).categories
    assert {name: categories[name] for name in statistics} == {
        **dict.fromkeys(("before.value", "squares", "after.value"), "statistic"),
        **dict.fromkeys(("class_counts.value", "samples"), "count"),
    }
    assert not any(state.tensors for _, state in states(simulation))


def test_each_client_is_scored_with_its_own_head_and_the_unseen_with_the_mean(make: Make):
    simulation = simulate(make(small("fedpac") | {"data.domains": 4}))
    record = evaluated(simulation, simulation.coordinator.schedule[-1])
    assert {row["model"] for row in record["environments"] if row["role"] == "validation"} == {"own"}
    assert {row["model"] for row in record["environments"] if row["role"] == "test"} == {"global"}
    heads = [models_of(simulation, each)[0]["head.weight"] for each in simulation.federated.environments]
    server = simulation.coordinator.state
    for environment, head in zip(simulation.federated.environments, heads, strict=True):
        own = server.shared["head.weight"] if environment.client is None else server.server["heads.weight"]
        assert torch.equal(head, own if environment.client is None else own[environment.client])


def test_an_absent_client_keeps_the_head_that_it_was_given(make: Make):
    """With half the clients a round, rows of those who were not sampled do not change."""
    experiment = make(small("fedpac") | {"train.participation": 0.5, "train.rounds": 4})
    before = torch.zeros(2, 3, 4)
    for rounds in range(1, 5):
        now = simulate(experiment, rounds).coordinator.state.server["heads.weight"]
        assert sum(not torch.equal(one, other) for one, other in zip(now, before, strict=True)) == 1
        before = now
