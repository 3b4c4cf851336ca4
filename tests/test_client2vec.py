"""Client2Vec: the four losses of DSA-IGN, Eq. 1, 3 and 4 by hand, and clients whose grouping is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import pytest
import tomli_w
import torch
from PIL import Image
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from torch import nn
from torch.nn import functional as F

import fedshift
from conftest import CNN_WITH_BN, Make, at, evaluated, go_on, losses, names_sent, states, values
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.content import module_of
from fedshift.core.contract import Batch, ServerState
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors, part_of
from fedshift.datasets.dataset import Dataset
from fedshift.heat_maps import by_domain
from fedshift.methods.client2vec import ENCODERS
from fedshift.methods.client2vec.client2vec import HISTORY, LAST, SINCE, Client2Vec
from fedshift.methods.client2vec.dsa_ign import DSAIGN, diversity_loss, orthogonality_loss, similarity_loss
from fedshift.methods.client2vec.index import COUNTS, FEATURE, LABEL
from fedshift.methods.client2vec.vectors import separation_notes, similarity
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.events import Progress
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams
from fedshift.study.api import index
from fedshift.study.grid import override
from fresh import ok
from refusal import refuses

PROJECTION = ("projector.weight", "projector_head.weight", "projector_head.bias")
SMALL = {"name": "dsa-ign", "epochs": 2, "feedforward": 16, "encoder": {"name": "offline", "size": 64}}


def wrapped(make: Make, changes=None, **settings) -> Simulation:
    method = Client2Vec(**{"index": SMALL, **settings})
    return Simulation(make(changes).replace(method=method))


def run(simulation: Simulation, rounds: int | None = None) -> Simulation:
    for _ in simulation.coordinator.schedule[simulation.coordinator.position : rounds]:
        go_on(simulation)
    return simulation


def assert_same_shared(ours: Simulation, base: Simulation) -> None:
    """What the base shares is the same bit for bit; ours may share more."""
    mine = ours.coordinator.state.shared
    assert all(torch.equal(mine[name], tensor) for name, tensor in base.coordinator.state.shared.items())


# The losses of DSA-IGN --------------------------------------------------------------------------


def test_similarity_loss_by_hand():
    """The cosines cos((3, 4), (1, 0)) = 0.6 and cos((0, 2), (0, -1)) = -1: 1 - (0.6 - 1) / 2 = 1.2."""
    z, label = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    assert similarity_loss(z, label).item() == pytest.approx(1.2)


def test_orthogonality_loss_by_hand():
    """Z = [[1, 2], [0, 1]], U = [[1, -1], [4, 4]]: Z U^T = [[-1, 12], [-1, 4]].

    Norms: sqrt(5), 1 and sqrt(2), 4 sqrt(2), so the cosines are -1 and 3 over sqrt(10), -1 and 1 over sqrt(2): in the
    mean (4 / sqrt(10) + 2 / sqrt(2)) / 4 = 0.6697813.
    """
    z, u = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, -1.0], [4.0, 4.0]])
    assert orthogonality_loss(z, u).item() == pytest.approx(0.6697813)


def test_diversity_loss_by_hand():
    """U = (1, 0), (0, 2), (-3, 0): cosines 0, -1; 0, 0; -1, 0.

    log(1 + e^-1) for the first and third, log 2 for the second: (2 * 0.3132617 + 0.6931472) / 3 = 0.4398902.
    """
    u = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    assert diversity_loss(u).item() == pytest.approx(0.4398902, abs=1e-6)
    assert diversity_loss(u[:1]).item() == 0


class Split(nn.Module):
    """Z = D, U = 2 D, reconstruction = D + 1."""

    def forward(self, data):
        return data, 2 * data, data + 1


@pytest.mark.parametrize("off", ["sim", "orth", "recon", "div", None])
def test_the_loss_is_the_sum_of_what_is_switched_on(off: str | None):
    """D = (1, 0), (0, 1), L = (1, 0), (1, 0), Z = D, U = 2 D, D~ = D + 1.

    sim = 1 - (1 + 0) / 2 = 0.5; orth: cos(Z, U) = I, mean 0.5; recon = 1; div: cosine 0, log 1 = 0.
    """
    data, label = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    index = DSAIGN(**({off: False} if off else {}))
    batch = Batch(torch.stack([data, label], dim=1), torch.zeros(2, dtype=torch.int64))
    terms = values(losses(index.terms(), Net({"index_network": Split()}), batch, at()))
    expected = {"sim": 0.5, "orth": 0.5, "recon": 1.0, "div": 0.0}
    expected.pop(off or "", None)
    assert terms == pytest.approx(expected)


# Eq. 1 and 3 ------------------------------------------------------------------------------------


def state_of(feature, label, samples, last=None, since=None) -> ServerState:
    zeros = torch.zeros(len(samples))
    held = {FEATURE: feature, LABEL: label, COUNTS: samples, HISTORY: zeros, LAST: last, SINCE: since}
    tensors = {name: zeros if value is None else torch.as_tensor(value) for name, value in held.items()}
    return ServerState(server=Tensors(tensors), clients=len(samples))


THREE = {
    "feature": [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]],
    "label": [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
    "samples": [10.0, 20.0, 30.0],
}


@pytest.mark.parametrize(
    ("compared", "expected"),
    [("both", [0.625, 0.125, 0.875]), ("feature", [1.0, 0.0, 1.0]), ("label", [0.25, 0.25, 0.75])],
)
def test_similarity_to_a_cohort_by_hand(compared: str, expected: list[float]):
    """Cohort {0, 2} with N = 10 and 30.

    Feature cosines to (0, 2): client 0: (1, 1); 1: (0, 0); 2: (1, 1). Label cosines: 0: (1, 0); 1: (1, 0); 2: (0, 1).
    Both: half the sums weighed by 1/4 and 3/4: 0: (2/4 + 1 * 3/4) / 2 = 0.625; 1: 1/4 / 2 = 0.125; 2: (1/4 + 6/4) / 2.
    """
    found = Client2Vec(compared=compared).cohort_similarity(state_of(**THREE), [0, 2])
    assert found.tolist() == pytest.approx(expected)


def test_sampling_follows_eq_1():
    """S = (log 1, log 2, log 5) and tau = 1: p = 1/8, 2/8, 5/8; tau = 0.5 squares them: 1/30, 4/30, 25/30."""
    state, generator = state_of(**THREE, last=[0.0, math.log(2), math.log(5)]), torch.Generator().manual_seed(0)
    for tau, expected in ((1.0, [1 / 8, 2 / 8, 5 / 8]), (0.5, [1 / 30, 4 / 30, 25 / 30])):
        method = Client2Vec(tau=tau)
        drawn = torch.tensor([method.select(state, [0, 1, 2], 1, generator)[0] for _ in range(8000)])
        shares = torch.bincount(drawn, minlength=3) / 8000
        assert shares.tolist() == pytest.approx(expected, abs=0.02)  # three standard deviations are 0.017


def test_clients_of_recent_rounds_are_not_sampled():
    """12 clients, cohorts of 2: those of the last 12 / (2 * 2) = 3 rounds rest."""
    since = [1.0, 1, 2, 2, 3, 3, 4, 4, 0, 0, 0, 0]
    state = state_of([[1.0, 0.0]] * 12, [[1.0, 0.0]] * 12, [1.0] * 12, since=since)
    method, generator = Client2Vec(), torch.Generator().manual_seed(0)
    assert {i for _ in range(200) for i in method.select(state, list(range(12)), 2, generator)} == set(range(6, 12))


def test_aggregation_follows_eq_3():
    """Cohort {0, 1}, history 0, lambda_1 = 2, N = 10, 20, so q = 1/3, 2/3.

    Cosines of features: 1, 0 and 0, 1; of labels: 1, 1 and 1, 1.
    S_0 = (1/3 * 2 + 2/3 * 1) / 2 = 2/3; S_1 = (1/3 + 2/3 * 2) / 2 = 5/6.
    p_1 / p_0 = 2 exp((5/6 - 2/3) / 2) = 2 e^(1/12).
    """
    replies = Replies((client, Tensors({"w": torch.tensor(1.0)})) for client in (0, 1))
    one, other = Client2Vec(heat=2.0).reweight(state_of(**THREE), replies).weights
    assert other / one == pytest.approx(2 * math.exp(1 / 12))
    assert one + other == pytest.approx(1)


def test_adam_on_the_server_steps_along_the_mean_that_eq_3_weighs():
    """Two rounds of cohort {0, 1}, whose replies lie 0.2 and 0.5 beyond w, with lambda_1 = 2 and gamma = 1/2.

    S_0 = 2/3 and S_1 = 5/6, as above, so r = p_1 / p_0 is 2 e^(1/12) in round 1. In round 2 the history is
    S / 2 + S = 3/2 S, so r = 2 exp(3/2 * 1/6 / 2) = 2 e^(1/8). Delta = (0.2 + 0.5 r) / (1 + r), and from m = 0 and
    v = tau^2: m <- 0.9 m + 0.1 Delta, v <- 0.99 v + 0.01 Delta^2, w <- w + 0.1 m / (sqrt(v) + 0.001). A buffer, of
    which there are no moments, is the weighed mean: (4 + 7 r) / (1 + r).
    """

    def tensors(w: float, mean: float) -> Tensors:
        return Tensors({"encoder.w": torch.tensor(w).double(), "encoder.mean": torch.tensor(mean).double()})

    method = Client2Vec(base=FedAvg(server={"name": "adam", "lr": 0.1}), heat=2.0, gamma=0.5, local_training=False)
    merge, state = method.stages(2)[-1].exchanges[-1].merge, state_of(**THREE)
    moments = {f"{name}.encoder.w": torch.tensor(at).double() for name, at in method.base.server.starts().items()}
    state = replace(state, shared=tensors(1.0, 5.0), server=state.server.map(torch.Tensor.double) | Tensors(moments))
    w, m, v = 1.0, 0.0, 1e-6
    for r in (2 * math.exp(1 / 12), 2 * math.exp(1 / 8)):
        state = merge(state, Replies([(0, tensors(w + 0.2, 4.0)), (1, tensors(w + 0.5, 7.0))]))
        delta = (0.2 + 0.5 * r) / (1 + r)
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        w += 0.1 * m / (math.sqrt(v) + 0.001)
        assert state.shared["encoder.w"].item() == pytest.approx(w, abs=1e-9)
        assert state.shared["encoder.mean"].item() == pytest.approx((4 + 7 * r) / (1 + r))


def test_memory_of_cohorts():
    """Gamma = 0.5: history is S(C^1) after one round and 0.5 S(C^1) + S(C^2) after two; `since` counts from 1."""
    method = Client2Vec(gamma=0.5)
    first = method.remember(state_of(**THREE), [0])
    second = method.remember(first, [1])
    s1, s2 = (method.cohort_similarity(first, [client]) for client in (0, 1))
    torch.testing.assert_close(second.server[HISTORY], 0.5 * s1 + s2)
    torch.testing.assert_close(second.server[LAST], s2)
    assert second.server[SINCE].tolist() == [2, 1, 0]


def test_with_a_large_heat_only_it_is_the_base_weighted_by_samples(make: Make):
    """Sampling and local training off, lambda_1 to infinity: the base method with weighting = "samples"."""
    ours = run(wrapped(make, sampling=False, local_training=False, heat=1e12)).coordinator.state.shared
    base = run(Simulation(make({"method.weighting": "samples"}))).coordinator.state.shared
    for name, tensor in base.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-7)


# Eq. 4 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local_loss", "form", "expected"),
    [
        ("both", "mean", {"index_orth": 7.5, "index_dist": 0.6540602}),
        ("orth", "sum", {"index_orth": 35.0}),
        ("dist", "mean", {"index_dist": 0.6540602}),
    ],
)
def test_local_terms_by_hand(local_loss: Any, form: Literal["mean", "sum"], expected: dict[str, float]):
    """Z = x = (1, 0); P maps to (2, 1); B_f = (3, 0), (0, 1), of norm 1: (1, 0), (0, 1); |z_P B^T| = 2, 1: mean 1.5.

    As they are: |z_P B^T| = 6, 1: sum 7.
    h(z) = (log 3, 0): p = (3/4, 1/4); h_P(z_P) = (0, 0): q = (1/2, 1/2).
    KL(p || q) = 3/4 log(3/2) + 1/4 log(1/2) = 0.1308120. With weight 5: 7.5 or 35, and 0.6540602.
    """
    head, projector, projector_head = (nn.Linear(2, 2, bias=False) for _ in range(3))
    head.weight.data = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    projector.weight.data = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    nn.init.zeros_(projector_head.weight)
    parts = {"encoder": nn.Identity(), "head": head, "projector": projector, "projector_head": projector_head}
    net = Net({**parts, "feature_index": holder({"value": torch.tensor([[3.0, 0.0], [0.0, 1.0]])})})
    method = Client2Vec(local_form=form, local_loss=local_loss)
    batch = method.base.encode(net, Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([0])), {})
    terms = losses(method.local_terms(), net, batch, at())
    assert values(terms) == pytest.approx(expected, abs=1e-6)


def test_use_3_knows_of_the_index_only_the_angles_between_its_vectors():
    """B Q, Q^T P and h_P Q for any rotation Q leave z_P B^T, h_P(z_P) and what moves the encoder as they were."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator)).Q
    head, projector, projector_head = (nn.Linear(inputs, 3, bias=False) for inputs in (2, 2, 3))
    indices, x = torch.randn(4, 3, generator=generator), torch.randn(5, 2, generator=generator)
    found = []
    for q in (torch.eye(3), turn):
        parts = {"encoder": nn.Linear(2, 2, bias=False), "head": head, "projector": nn.Linear(2, 3, bias=False)}
        parts |= {"projector_head": nn.Linear(3, 3, bias=False), "feature_index": holder({"value": indices @ q})}
        parts["encoder"].weight.data = torch.eye(2)
        parts["projector"].weight.data = q.T @ projector.weight.data
        parts["projector_head"].weight.data = projector_head.weight.data @ q
        method, net = Client2Vec(local_form="sum"), Net(parts)
        terms = losses(method.local_terms(), net, method.base.encode(net, Batch(x, torch.arange(5) % 3), {}), at())
        (gradient,) = torch.autograd.grad(Tensors(terms).sum(), [parts["encoder"].weight])
        found.append((gradient, torch.stack(list(terms.values()))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("base", ["fedavgm", "feddyn", "moon", "fediir", "fedsr", "fedcir", "fedbn", "fraug"])
def test_with_all_uses_off_every_base_is_itself(make: Make, base: str):
    ours = run(wrapped(make, CNN_WITH_BN, base=base, sampling=False, aggregation=False, local_training=False))
    plain = run(Simulation(make(CNN_WITH_BN | {"method.name": base})))
    assert_same_shared(ours, plain)
    kept = dict(states(ours))
    for client, state in states(plain):
        assert all(torch.equal(kept[client].tensors[name], tensor) for name, tensor in state.tensors.items())


@pytest.mark.parametrize("base", ["fedavg", "fedavgm", "feddyn", "moon", "fediir", "fedlc", "fedsr", "fedcir"])
def test_a_base_with_a_state_of_its_own_trains_under_all_three_uses(make: Make, base: str):
    """A second pass through the encoder would count a batch twice: there are two rounds of two steps."""
    simulation = run(wrapped(make, CNN_WITH_BN, base=base))
    terms = evaluated(simulation, simulation.coordinator.schedule[-1])["terms"]["dark"]
    assert {"cross_entropy", "index_orth", "index_dist"} <= terms.keys()
    (counts,) = [t for name, t in simulation.coordinator.state.shared.items() if name.endswith("1.num_batches_tracked")]
    assert counts.item() == 4


def test_a_projection_that_stays_on_the_client_is_never_sent(make: Make):
    """P and h_P are each client's own, and no name or value of theirs crosses; the audit compares every message."""
    mine = wrapped(make, {**CNN_WITH_BN, "run.audit": True}, index=SMALL, projection_scope="client")
    simulation, shared = run(mine), run(wrapped(make, CNN_WITH_BN))
    for direction in ("down", "up"):
        sent, theirs = (names_sent(each, "train", direction) for each in (simulation, shared))
        assert theirs - sent == set(PROJECTION)
    own = dict(states(simulation))
    assert {name for state in own.values() for name in state.tensors} == set(PROJECTION)
    for name in PROJECTION:
        initial = simulation.site.initial[name]
        kept = [state.tensors[name] for state in own.values()]
        assert len(kept) == 2
        assert not torch.equal(*kept)
        assert not any(torch.equal(each, initial) for each in kept)


def test_without_weight_it_does_not_matter_where_the_projection_is(make: Make):
    """Use 3 of weight 0 is the base, which P does not touch: neither average nor own P moves."""
    plain = run(Simulation(make({"method.weighting": "samples"})))
    base = {"name": "fedavg", "weighting": "samples"}
    for scope in ("shared", "client"):
        settings = {"sampling": False, "aggregation": False, "local_weight": 0.0, "projection_scope": scope}
        assert_same_shared(run(wrapped(make, base=base, **settings)), plain)


def test_the_stages_of_the_index_leave_clients_as_they_were(make: Make):
    """Local models trained for an index of weights are not kept, nor their optimiser state."""
    base = {"name": "fedsr", "reference_scope": "client"}
    simulation = run(wrapped(make, base=base, index="model-weights"), rounds=1)
    assert len(states(simulation)) == 2
    for _, state in states(simulation):
        assert not state.optimisers
        assert not state.trained
        assert all(torch.equal(state.tensors[name], t) for name, t in simulation.site.initial.items())


# The index --------------------------------------------------------------------------------------


@fedshift.DATASETS.register("known-means")
class KnownMeans(Dataset):
    """Twelve clients: three domain means (a, b, c), two skews of labels (x, y), two clients of each."""

    def domain_names(self) -> tuple[str, ...]:
        return tuple(f"{domain}{skew}{number}" for domain in "abc" for skew in "xy" for number in "12")

    def load(self, streams: Streams) -> DomainData:
        generator = streams.generator("known means")
        domains, classes = (torch.randn(count, 32, generator=generator) for count in (3, 4))
        x, y = [], []
        for domain, skew, _ in self.domain_names():
            shares = torch.tensor([0.4, 0.4, 0.1, 0.1] if skew == "x" else [0.1, 0.1, 0.4, 0.4])
            y.append(torch.multinomial(shares, 60, replacement=True, generator=generator))
            y[-1][:4] = torch.arange(4)
            noise = 0.3 * torch.randn(60, 32, generator=generator)
            x.append(domains["abc".index(domain)] + classes[y[-1]] + noise)
        client, names = torch.arange(12).repeat_interleave(60), ("dog", "cat", "house", "guitar")
        return DomainData(torch.cat(x), torch.cat(y), client, self.domain_names(), names, torch.arange(720))


def known(make: Make, **index: Any) -> Simulation:
    """The twelve clients, whose index is made."""
    changes = {"data.name": "known-means", "protocol": {"name": "in-domain"}}
    simulation = wrapped(make, changes, index={**SMALL, "feedforward": 64, "batch": 32, "epochs": 20, **index})
    return run(simulation, rounds=len(simulation.coordinator.schedule) - 2)


@pytest.mark.parametrize(
    "index",
    [
        {"strategy": "global", "upload": 40},
        {"strategy": "federated", "local_epochs": 5, "participation": 0.5},
    ],
    ids=["global", "federated"],
)
def test_the_feature_index_groups_clients_by_domain_and_the_label_index_by_skew(make: Make, index: dict):
    simulation = known(make, **index)
    names = [client.name for client in simulation.federated.clients]
    for vectors, place in ((FEATURE, 0), (LABEL, 1)):
        truth = [name[place] for name in names]
        clusters = AgglomerativeClustering(len(set(truth)), metric="cosine", linkage="average")
        found = clusters.fit_predict(simulation.coordinator.state.tensors[vectors].numpy())
        assert adjusted_rand_score(truth, found) == 1.0


def test_domains_separate_if_orthogonality_knows_no_length(make: Make):
    """After equal training: the mean entry of Z U^T leaves all clients nearly one vector, the cosines do not."""
    module_of(Path(__file__).parent.parent / "docs" / "results" / "dsa_ign_entries.py")
    between = {}
    for form in ("dsa-ign-entries", "dsa-ign"):
        cosines = similarity(known(make, name=form, upload=40).coordinator.state.tensors[FEATURE], None)
        between[form] = by_domain(cosines, tuple("aaaabbbbcccc"))[~torch.eye(3, dtype=torch.bool)]
    assert between["dsa-ign-entries"].min() > 0.85
    assert between["dsa-ign"].max() < 0


def test_an_index_separates_if_two_clients_are_not_alike():
    """Cosines of (1, 0), (3, 0.3): 1 / sqrt(1.01) = 0.99504; (1, 0), (1, 1): 0.707; an absent client has zeros."""
    close, far = torch.tensor([[1.0, 0.0], [3.0, 0.3]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    (note,) = separation_notes(torch.cat([close, torch.zeros(1, 2)]))
    assert "does not separate the clients: the least cosine between two of them is 0.995, above 0.99" in note
    assert separation_notes(far) == ()


@pytest.mark.parametrize("index", ["feature-average", "class-prototypes", "model-weights"])
def test_other_indices(make: Make, index: str):
    simulation = run(wrapped(make, index=index))
    vectors = simulation.coordinator.state.tensors[FEATURE]
    assert LABEL not in simulation.coordinator.state.server
    method, model = simulation.setup.method, simulation.setup.model
    if index == "model-weights":
        assert vectors.shape[1] == method.index.feature_dim(model, method.base.parts(model))
        assert not torch.equal(vectors[0], vectors[1])
        return
    for client in simulation.federated.clients:
        embedded = F.normalize(method.index.encoder.samples(client.train.x, simulation.federated.inputs), dim=1)
        means = [embedded[client.train.y == c].mean(dim=0) for c in range(3)]
        expected = embedded.mean(dim=0) if index == "feature-average" else torch.cat(means)
        torch.testing.assert_close(vectors[client.id], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("rank", "expected"), [(None, 0.0), (1, 4.0)])
def test_random_directions_say_nothing_of_clients(make: Make, rank: int | None, expected: float):
    """Two clients, norm 2: V V^T is 4 I for a direction each, and 4 everywhere for one; nothing but counts leaves."""
    index = {"name": "random", "size": 16, "rank": rank, "norm": 2.0}
    simulation = run(wrapped(make, index=index))
    vectors = simulation.coordinator.state.tensors[FEATURE]
    torch.testing.assert_close(vectors @ vectors.T, torch.tensor([[4.0, expected], [expected, 4.0]]))
    assert simulation.coordinator.state.server[COUNTS].tolist() == [27, 27]
    assert (names_sent(simulation, "counts", "down"), names_sent(simulation, "counts", "up")) == (set(), {"samples"})


def test_more_random_directions_than_clients_are_refused(make: Make):
    with refuses("index.rank = 3", "at most 2"):
        wrapped(make, index={"name": "random", "size": 16, "rank": 3})


@pytest.mark.parametrize(("local", "scope"), [(True, "down"), (False, "server")])
def test_label_vectors_never_leave_the_server_and_feature_vectors_for_local_training_alone(
    make: Make, local: bool, scope: str
):
    """A client's label vector is the mean of its samples' label embeddings."""
    simulation = run(wrapped(make, local_training=local), rounds=2)
    scopes = {part: about.scope for part, about in simulation.setup.parts.items()}
    assert (scopes[part_of(FEATURE)], scopes[part_of(LABEL)]) == (scope, "server")
    texts = simulation.setup.method.index.encoder.texts([f"A photo of a class {c}" for c in range(3)])
    for client in simulation.federated.clients:
        expected = F.normalize(texts, dim=1)[client.train.y].mean(dim=0)
        torch.testing.assert_close(simulation.coordinator.state.server[LABEL][client.id], expected)


def test_a_base_without_an_encoder_or_a_name_that_is_none(make: Make):
    with refuses("method.base = 'client2vec'", "FedAvg"):
        Client2Vec(base="client2vec")
    with refuses("method.base = 'single'", "share", "'fedavg'"):
        wrapped(make, base="single")
    with refuses("method.compared = 'label'", "method.compared = 'feature'"):
        Client2Vec(index="feature-average", compared="label")
    with refuses("sim, orth, recon", "div"):
        wrapped(make, index={**SMALL, "sim": False, "orth": False, "recon": False, "div": False})
    with refuses("'fedavg'", "method.name=client2vec"):
        index(make(), progress=Progress())


# The offline encoder ----------------------------------------------------------------------------


def test_the_offline_encoder_is_fixed():
    """Token ids are read as text."""
    encoder = ENCODERS.get("offline")(size=64)
    images = torch.randint(256, (4, 3, 20, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    one, again = (made.samples(images, Inputs()) for made in (encoder, ENCODERS.get("offline")(size=64)))
    assert torch.equal(one, again)
    texts = F.normalize(encoder.texts(["A photo of a dog", "A photo of a dog", "A photo of a cat", "xyz"]), dim=1)
    same, near, far = (texts @ texts[0])[1:].tolist()
    assert same == pytest.approx(1)
    assert 1 > near > far
    embedded = encoder.samples(torch.tensor([[0, 1, 2, 0]]), Inputs(vocabulary=("a", "b", " ")))
    assert torch.equal(embedded, encoder.texts(["The next character of ab a"]))


# The index as a separate thing ----------------------------------------------------------------


def test_the_index_command_writes_vectors_and_a_heat_map(make: Make, tmp_path, tiny_document):
    """With which a run continues as one that makes its index itself."""
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(override(tiny_document, {"method": {"name": "client2vec", "index": SMALL}})))
    assert "2 clients of 2 domains" in ok("index", str(file))
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    table = pyarrow.parquet.read_table(folder / "index.parquet").to_pydict()
    assert table["client"] == table["domain"] == ["dark", "gray"]
    assert table["samples"] == [27, 27]
    simulation = run(wrapped(make))
    assert torch.equal(torch.tensor(table["feature"]), simulation.coordinator.state.tensors[FEATURE])
    with Image.open(folder / "similarity.png") as image:
        assert image.width > 500
    again = run(wrapped(make, index={"name": "file", "path": str(folder / "index.parquet")}))
    assert [stage.name for stage in again.setup.stages] == ["train"]
    assert_same_shared(simulation, again)


def test_an_index_of_other_clients_is_refused(make: Make, tmp_path):
    path, index = tmp_path / "index.parquet", {"name": "file", "path": str(tmp_path / "index.parquet")}
    table = {"client": ["dark"], "samples": [27.0], "feature": [[1.0, 0.0]]}
    for held, said in (
        (table, ("1 clients", "has 2")),
        ({name: column * 2 for name, column in table.items()}, ("'dark' with 27", "'gray' with 27")),
        ({"samples": [1.0]}, ("client, feature", "fedshift index")),
    ):
        pyarrow.parquet.write_table(pyarrow.table(held), path)
        with refuses(*said):
            wrapped(make, index=index)


def test_similarity_between_domains_by_hand():
    """Clients a, a, b, cosines a-a 0.8, a-b 0.1 and 0.3: a to a is 0.8, a to b 0.2; b has itself alone: 1."""
    cosines = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
    torch.testing.assert_close(by_domain(cosines, ("a", "a", "b")), torch.tensor([[0.8, 0.2], [0.2, 1.0]]))
