"""Federations: samples are views of one pool, and clients and environments are made when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Make, go_on
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import IID
from fedshift.clients.protocols import InDomain, LeaveOneDomainOut, PersonalUnderShift, Protocol
from fedshift.clients.samples import Lazy, Samples, joined
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams

META = torch.device("meta")
X, Y = torch.arange(20.0).view(10, 2), torch.arange(10) % 3


def whole() -> Samples:
    return Samples(X, Y)


def data(environments: tuple[str, ...] = ()) -> DomainData:
    """40 samples of 2 classes in each of 3 domains, in turn of each environment."""
    n = 120
    y, domain = torch.arange(n) % 2, torch.arange(n) // 40
    environment = torch.arange(n) // 2 % len(environments) if environments else None
    x = torch.arange(n).float().view(n, 1)
    return DomainData(x, y, domain, ("a", "b", "c"), ("c0", "c1"), torch.arange(n), environment, environments)


def federate(protocol: Protocol | None = None, of: DomainData | None = None) -> FederatedData:
    return (protocol or InDomain()).federate(of or data(), IID(clients=2), Inputs(), Streams(0))


def every(federation: FederatedData) -> list[Samples]:
    return [client.train for client in federation.clients] + [e.samples for e in federation.environments]


# Samples -----------------------------------------------------------------------------------------


rows_and_places = st.lists(st.integers(0, 9), min_size=1, max_size=10).flatmap(
    lambda rows: st.tuples(st.just(rows), st.lists(st.integers(0, len(rows) - 1), max_size=8))
)


@given(rows_and_places)
@settings(deadline=None)
def test_a_view_is_indexing_and_its_batches_are_indexing_twice(case: tuple[list[int], list[int]]):
    rows, places = (torch.tensor(values, dtype=torch.int64) for values in case)
    view = whole().subset(rows)
    assert len(view) == len(rows)
    assert torch.equal(view.x, X[rows])
    assert torch.equal(view.y, Y[rows])
    for samples in (view, whole()):
        x, y = samples.batch(places)
        assert torch.equal(x, samples.x[places])
        assert torch.equal(y, samples.y[places])
    again = view.subset(places)
    assert torch.equal(again.x, X[rows][places])
    assert again.pool.x.data_ptr() == X.data_ptr()
    assert again.shares_pool(whole())
    assert again == whole().subset(rows[places])


# Sequences ---------------------------------------------------------------------------------------


maybe = st.none() | st.integers(-9, 9)


@given(st.integers(0, 7), st.tuples(maybe, maybe, st.sampled_from([None, 1, 2, 3, -1, -2])))
def test_a_lazy_sequence_behaves_as_a_tuple(length: int, part: tuple[int | None, int | None, int | None]):
    lazy: Sequence[int] = Lazy(lambda number: number**2, range(length))
    held = tuple(number**2 for number in range(length))[slice(*part)]
    lazy = lazy[slice(*part)]
    assert len(lazy) == len(held)
    assert tuple(lazy) == held
    assert [lazy[place] for place in range(-len(held), len(held))] == [*held, *held]
    with pytest.raises(IndexError):
        lazy[len(held)]


# Federations -------------------------------------------------------------------------------------

SHIFTS = ("train", "p=0", "p=0.1")
PROTOCOLS = [
    (InDomain(), ()),
    (LeaveOneDomainOut(hold_out="b", scored="clients"), ()),
    (PersonalUnderShift(validation="held-out"), SHIFTS),
]
each_protocol = pytest.mark.parametrize(
    ("protocol", "environments"), PROTOCOLS, ids=lambda value: type(value).__name__ if value else "none"
)


@each_protocol
def test_all_samples_are_views_of_the_data_set_and_move_as_a_whole(protocol: Protocol, environments: tuple[str, ...]):
    loaded = data(environments)
    federation = federate(protocol, loaded)
    assert all(samples.pool.x is loaded.x and samples.pool.y is loaded.y for samples in every(federation))
    assert all(samples.pool.x is loaded.x for samples in every(federation.pooled()))
    moved = every(federation.to(META))
    assert [len(samples) for samples in moved] == [len(samples) for samples in every(federation)]
    assert all(samples.pool.x is moved[0].pool.x and samples.pool.y is moved[0].pool.y for samples in moved)
    assert all(tensor.device == META for samples in moved for tensor in (*samples.pool, samples.rows, samples.x))


# Data on the disk --------------------------------------------------------------------------------


def mapped_pages() -> int:
    """Bytes of files that this process has touched through maps."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssFile:\s+(\d+) kB", status)[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_of_mapped_inputs_only_the_sampled_clients_are_read(make: Make, tmp_path: Path, monkeypatch):
    """64 MiB of inputs in a file, 400 clients, two of them in each of three rounds: below 4 MiB are read.

    Six clients have 60 rows, 960 KiB; the kernel maps up to 64 KiB around a page that is touched.
    """
    n, width = 4_000, 4_096
    path = tmp_path / "inputs"
    with path.open("wb") as file:
        file.truncate(4 * n * width)
    x = torch.from_file(str(path), size=n * width, dtype=torch.float32).view(n, width)
    number = torch.arange(n)
    made = DomainData(x, number % 3, torch.zeros_like(number), ("a",), ("0", "1", "2"), number)
    monkeypatch.setattr("fedshift.runs.simulation.load_data", lambda *_: made)
    changes = {"partition": {"name": "iid", "clients": 400}, "train.participation": 0.005, "train.batch": 2}
    protocol = {"name": "in-domain", "test": 0.3, "validation": 0.3}
    simulation = Simulation(make({**changes, "protocol": protocol, "train.rounds": 3, "model.hidden": []}))
    go_on(simulation)  # what the libraries map
    before = mapped_pages()
    for _ in range(2):
        go_on(simulation)
    assert len(simulation.site.store.ids()) >= 4
    assert mapped_pages() - before < 4 * 2**20
    simulation.federated.clients[0].train.pool.x.sum()  # and this is what reading all of it looks like
    assert mapped_pages() - before > 60 * 2**20


# Training environments ----------------------------------------------------------------------------


def test_views_know_the_environments_of_their_samples():
    """As x and y do: whole, in part, joined across clients, and on another device."""
    pool = Samples(X, Y, environment=torch.arange(len(Y)) % 3)
    assert torch.equal(pool.environment, torch.arange(len(Y)) % 3)
    odd, even = pool.subset(torch.tensor([1, 3])), pool.subset(torch.tensor([0, 2]))
    assert (odd.environment.tolist(), even.environment.tolist()) == ([1, 0], [0, 2])
    assert joined([odd, even]).environment.tolist() == [1, 0, 0, 2]
    assert odd.subset(torch.tensor([False, True])).environment.tolist() == [0]
    assert odd.to(META).environment.device == META
    elsewhere = Samples(X.clone(), Y.clone(), environment=torch.full((len(Y),), 2))
    assert joined([odd, elsewhere.subset(torch.tensor([1]))]).environment.tolist() == [1, 0, 2]


@pytest.mark.parametrize("protocol", ["in-domain", "leave-one-domain-out"])
def test_domains_are_environments_but_for_the_one_held_out(make: Make, protocol: str):
    """Held out is the second of three, so that the third moves up; without one, nothing is copied."""
    held_out = {"hold_out": "gray"} if protocol == "leave-one-domain-out" else {}
    simulation = Simulation(make({"protocol": {"name": protocol, **held_out}}))
    federation = simulation.federated
    assert federation.train_environments == (("dark", "light") if held_out else ("dark", "gray", "light"))
    assert simulation.setup.model.environments == len(federation.train_environments)
    for client in federation.clients:
        assert {federation.train_environments[each] for each in client.train.environment.tolist()} == {client.domain}
