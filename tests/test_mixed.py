"""The partition that mixes domains by lambda: whole, in its limits, by hand, and what protocols make of it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import Make, simulate
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.clients.mixed import Mixed
from fedshift.clients.protocols import AllClients, Division, InDomain, LeaveOneDomainOut, divide
from fedshift.streams import Streams
from refusal import refuses


def made(*sizes: int, copies: int = 1) -> DomainData:
    """A domain for each number of originals, of which each has that many samples in a row; x is a sample's number."""
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes) * copies)
    x, names = torch.arange(len(domain)).float().view(-1, 1), tuple("abcd"[: len(sizes)])
    return DomainData(x, torch.zeros_like(domain), domain, names, ("c0",), torch.arange(len(domain)) // copies)


def held(division: Division) -> list[list[int]]:
    """How many samples of each domain every client contains."""
    data = division.data
    return [
        torch.bincount(data.domain[division.holder == n], minlength=len(data.domains)).tolist()
        for n in range(len(division))
    ]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 9), st.floats(0, 1), st.integers(1, 3))
def test_no_sample_is_lost_and_originals_stay_whole(sizes: list[int], more: int, lam: float, copies: int):
    """And a client has its part of each domain, up to the originals that rounding gives and takes."""
    data = made(*sizes, copies=copies)
    home, parts = Mixed(clients=len(sizes) + more, lam=lam).assign(data, Streams(0))
    pairs = list(zip(home.tolist(), parts.tolist(), strict=True))
    assert min(map(min, pairs)) >= 0
    assert len(set(zip(data.group.tolist(), pairs, strict=True))) == sum(sizes)
    counts, clients = Counter(home for home, _ in {*pairs}), len(sizes) + more
    if len({*pairs}) < clients:  # one that came out empty is no client
        return
    for pair in {*pairs}:
        for domain, size in enumerate(sizes):
            part = lam / clients + (1 - lam) * (pair[0] == domain) / counts[domain]
            own = sum(mine == pair and of == domain for mine, of in zip(pairs, data.domain.tolist(), strict=True))
            assert abs(own / copies - part * size) <= 1 + 1e-6


def test_with_lambda_0_a_client_has_one_domain():
    """100, 50, 30 in six clients: the most a client are 100, 50 (the first of two), then 50, so three, two and one."""
    division = divide(made(100, 50, 30), Mixed(clients=6, lam=0.0), Streams(0))
    assert division.names == ("a/0", "a/1", "a/2", "b/0", "b/1", "c")
    assert held(division) == [[33, 0, 0], [34, 0, 0], [33, 0, 0], [0, 25, 0], [0, 25, 0], [0, 0, 30]]


def test_with_lambda_1_all_clients_have_the_same():
    division = divide(made(100, 50, 30), Mixed(clients=5, lam=1.0), Streams(0))
    assert held(division) == [[20, 10, 6]] * 5


def test_in_between_by_hand():
    """Two domains, three clients, lambda 0.3: 0.1 of each domain, and 0.7 / 2 of a (60), which has two, or 0.7 of b."""
    division = divide(made(60, 40), Mixed(clients=3, lam=0.3), Streams(0))
    assert held(division) == [[27, 4], [27, 4], [6, 32]]
    assert division.trained_in[0].tolist() == division.data.domain.tolist()  # whatever client contains a sample


def test_what_is_held_out_is_not_mixed():
    """Domain b trains nobody: the others are mixed, and each client validates on each of its domains separately."""
    federation = LeaveOneDomainOut(hold_out="b", validation=0.2).federate(
        made(60, 40, 20), Mixed(clients=2, lam=0.5), Inputs(), Streams(0)
    )
    assert [(client.name, client.domain, len(client.train)) for client in federation.clients] == [
        ("a", "a", 40),  # 0.8 of 45 and of 5
        ("c", "c", 24),  # 0.8 of 15 and of 15
    ]
    assert [(e.name, e.role, e.client, len(e.samples)) for e in federation.environments] == [
        ("a", "validation", 0, 9),
        ("c", "validation", 0, 1),
        ("b", "test", None, 40),
        ("a", "validation", 1, 3),
        ("c", "validation", 1, 3),
    ]
    inside = {int(x) for client in federation.clients for x in client.train.x.flatten()}
    assert not inside & {*range(60, 100)}
    assert federation.train_environments == ("a", "c")
    assert [client.train.environment.bincount().tolist() for client in federation.clients] == [[36, 4], [12, 12]]


def test_in_domain_scores_each_domain_and_all_clients_each_client():
    data, partition = made(60, 20), Mixed(clients=2, lam=0.5)
    apart = InDomain(test=0.2, validation=0.2).federate(data, partition, Inputs(), Streams(0))
    tests = [(e.name, e.client, len(e.samples)) for e in apart.environments if e.role == "test"]
    assert tests == [("a", 0, 9), ("b", 0, 1), ("a", 1, 3), ("b", 1, 3)]
    together = AllClients(test=0.2, validation=0.2).federate(data, partition, Inputs(), Streams(0))
    tests = [(e.name, e.client, len(e.samples)) for e in together.environments if e.role == "test"]
    assert tests == [("all clients", 0, 10), ("all clients", 1, 6)]


def test_a_run(make: Make):
    """Its records have a row of each client and domain."""
    mixed = {"partition": {"name": "mixed", "clients": 4, "lam": 0.5}, "protocol": {"name": "in-domain"}}
    simulation = simulate(make({**mixed, "data.per_class": 40, "train.rounds": 1}))
    assert [client.name for client in simulation.federated.clients] == ["dark/0", "dark/1", "gray", "light"]
    tests = Counter(each.name for each in simulation.federated.environments if each.role == "test")
    assert tests == {"dark": 4, "gray": 4, "light": 4}


def test_fewer_clients_than_domains_are_refused():
    with refuses("partition.clients = 2", "3 domains", "partition.clients=3"):
        Mixed(clients=2).assign(made(5, 5, 5), Streams(0))
    assert Mixed(clients=2, lam=0.0).assign(made(5, 5, 5), Streams(0), untrained=(2,))[1].tolist() == [0] * 15


@pytest.mark.parametrize("lam", [-0.1, 1.1])
def test_lambda_is_from_0_to_1(lam: float):
    with refuses("partition.lam"):
        Mixed(clients=2, lam=lam)
