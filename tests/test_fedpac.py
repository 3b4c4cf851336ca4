"""FedPAC's statistics, quadratic programme, merge and alignment by hand; the programme against scipy and by KKT."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conftest import at, linear
from fedshift.clients.samples import Samples
from fedshift.core.contract import Batch, LocalWork, ServerState
from fedshift.core.messages import Down
from fedshift.core.net import Net
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedpac import FedPAC, combination, simplex_minimum

# The programme ------------------------------------------------------------------------------------


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
    slope = p @ a / p.diagonal().max().clamp(min=torch.finfo(p.dtype).tiny)
    assert (a @ slope - slope.min()).item() < 1e-9


def test_small_programmes_by_hand():
    """P = diag(1, 9): a ~ (1, 1/9). One client: 1. Equal clients share the same where variances make the minimum one.

    Of P = diag(1, 1, 1e4) the weights are (1, 1, 1e-4) / 2.0001; the last is below 1e-3 and becomes 0. Of 1,001 equal
    clients each keeps its 1/1001, although that is less: there would be no head.
    """
    assert simplex_minimum(torch.diag(torch.tensor([1.0, 3.0]))).tolist() == pytest.approx([0.9, 0.1])
    assert simplex_minimum(torch.zeros(1, 1)).tolist() == [1.0]
    assert simplex_minimum(torch.eye(4)).tolist() == pytest.approx([0.25] * 4)
    variances = torch.tensor([1.0, 1.0, 1e4]).double()
    assert combination(0, torch.zeros(3, 2).double(), variances).tolist() == pytest.approx([0.5, 0.5, 0.0])
    many = combination(0, torch.zeros(1001, 1).double(), torch.ones(1001).double())
    assert many.tolist() == pytest.approx([1 / 1001] * 1001)


# A round ------------------------------------------------------------------------------------------


def test_the_head_moves_first_and_then_the_encoder():
    """Between the measures; each for as many steps as its setting, and the head at a share of the rate."""
    before, head, encoder, after = FedPAC(head_steps=2, encoder_steps=3, unit="steps", head_factor=0.5).phases()
    assert (before.measure.__name__, after.measure.__name__) == ("sums_before", "sums_after")
    assert (head.steps, head.objectives[0].moves, head.objectives[0].optimiser.factor) == (2, ("head",), 0.5)
    assert (encoder.steps, encoder.objectives[0].moves) == (3, ("encoder",))


def reply(method: FedPAC, x: list[float], y: list[int], encoder: float, head: tuple[float, float]) -> Tensors:
    """What a client sends whose features are its inputs before training, and ``encoder`` times these after it."""
    batch, context = Batch(torch.tensor(x).float().unsqueeze(1), torch.tensor(y)), at(counts=[0, 0])
    counts = torch.bincount(batch.y, minlength=2)
    before = method.sums_before(Net({"encoder": linear(1.0)}), batch, context)
    after = method.sums_after(Net({"encoder": linear(encoder)}), batch, context)
    measured, nothing = Tensors({**before, **after}), Tensors()
    work = LocalWork(Down(), measured, counts, nothing, nothing, Samples(batch.x, batch.y), steps=1, lr=0.1)
    model = {"encoder.weight": torch.tensor([[encoder]]), "head.weight": torch.tensor(head).float().unsqueeze(1)}
    return Tensors(model) | method.upload(work) | {"samples": torch.tensor(len(y))}


def start(method: FedPAC, clients: int) -> ServerState:
    """The server of models w x -> (h_0, h_1), with class means of 7 that no client has measured."""
    heads = {"heads.combined": torch.zeros(clients), "heads.weight": torch.zeros(clients, 2, 1)}
    shared = {"encoder.weight": torch.ones(1, 1), "head.weight": torch.zeros(2, 1)}
    down = {"class_means.value": torch.full((3, 1), 7.0)[:2], "class_counts.value": torch.zeros(2, dtype=torch.int64)}
    return ServerState(Tensors(shared), Tensors(down), Tensors(heads), clients=clients)


def test_two_rounds_by_hand():
    """Client 0 has x = 1 of class 0 and x = 3 of class 1, client 2 x = 1 and 1, both of class 0.

    H_0 = (1/2, 3/2), v_0 = ((1 + 9)/2 - (1/4 + 9/4)) / 2 = 5/4; H_2 = (1, 0), v_2 = (1 - 1) / 2 = 0.
    |H_0 - H_2|^2 = 1/4 + 9/4 = 5/2. For client 0 P = diag(5/4, 5/2), so a = (2/3, 1/3); for client 2
    P = diag(5/4 + 5/2, 0), so a = (0, 1).
    Heads (3, 0) and (0, 6): client 0 is sent (2, 2), client 2 (0, 6), client 1, absent, the mean (1.5, 3).
    Encoders 2 and 4 by samples, 2 each: 3. Class means after training: (2*1 + 4*1 + 4*1)/3 = 10/3 and 2*3 = 6.
    Round 2: client 2 alone, x = 1 of class 0 thrice: encoder 5, class mean 5. Class 1 keeps mean and count, client 0
    its head, and client 2 is sent its own, (1, 1).
    """
    method = FedPAC()
    state = start(method, 3)
    one = [(0, reply(method, [1, 3], [0, 1], 2.0, (3, 0))), (2, reply(method, [1, 1], [0, 0], 4.0, (0, 6)))]
    two = [(2, reply(method, [1, 1, 1], [0, 0, 0], 5.0, (1, 1)))]
    for ups, encoder, means, heads in (
        (one, 3, [10 / 3, 6], {0: [2, 2], 1: [1.5, 3], 2: [0, 6]}),
        (two, 5, [5, 6], {0: [2, 2], 2: [1, 1]}),
    ):
        state = method.merge(state, Replies(ups))
        assert state.shared["encoder.weight"].item() == pytest.approx(encoder)
        assert state.down["class_means.value"].flatten().tolist() == pytest.approx(means)
        assert state.down["class_counts.value"].tolist() == [3, 1]
        for client, head in heads.items():
            sent = state.shared | method.send(state, client)
            assert sent["head.weight"].flatten().tolist() == pytest.approx(head)


def test_encoders_weigh_by_samples_and_class_means_by_class_counts():
    """One sample at encoder 2, three at encoder 6: (2 + 18) / 4 = 5; means of x = 1: (2 + 18) / 4."""
    method = FedPAC()
    ups = [(0, reply(method, [1], [0], 2.0, (0, 0))), (1, reply(method, [1, 1, 1], [0, 0, 0], 6.0, (0, 0)))]
    merged = method.merge(start(method, 2), Replies(ups))
    assert merged.shared["encoder.weight"].item() == 5
    assert merged.down["class_means.value"].flatten().tolist() == [5, 7]


def test_the_alignment_by_hand():
    """Features z = (1, 2), y = (0, 1), lam = 0.5; class 0 has the global mean 3, class 1 none, but the own 8/4 = 2.

    0.5 * ((1 - 3)^2 + (2 - 2)^2) / 2 = 1. In round 1 there is the cross-entropy alone. Logits are 0: log 2.
    """
    net = Net({"encoder": linear(1.0), "head": linear(0.0, 0.0)})
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
