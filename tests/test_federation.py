"""Federations: samples are views of one pool, made when they are requested; every sample has one holder."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Make, go_on
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import IID, ByClass, Dirichlet, Domains, FlowerPartitioner, Partition
from fedshift.clients.protocols import InDomain, LeaveOneDomainOut, PersonalUnderShift, Protocol, divide
from fedshift.clients.samples import Lazy, Samples, joined
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams
from refusal import refuses

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


def made(y: Any, domain: Any, group: Any = None) -> DomainData:
    """Data whose samples are their own numbers."""
    y, domain = torch.tensor(y), torch.tensor(domain)
    n = len(y)
    group = torch.arange(n) if group is None else torch.tensor(group)
    names, domains = (tuple(f"{kind}{i}" for i in range(int(of.max()) + 1)) for kind, of in (("c", y), ("d", domain)))
    return DomainData(torch.arange(n).float().view(n, 1), y, domain, domains, names, group)


def square(per_class: int, classes: int, domains: int) -> DomainData:
    """``per_class`` samples of every class in every domain."""
    domain = [d for d in range(domains) for _ in range(per_class * classes)]
    return made(list(range(classes)) * per_class * domains, domain)


ALL: list[Partition] = [
    Domains(),
    IID(clients=3),
    Dirichlet(clients=3, beta=0.5, min_samples=0),
    ByClass(groups=(("c0", "c1"), ("c1", "c2")), clients=2),
    FlowerPartitioner(partitioner="LinearPartitioner", arguments={"num_partitions": 3}),
]
samples = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 15)), min_size=12, max_size=60
)  # (class, domain, group)


@given(samples)
@pytest.mark.parametrize("partition", [*ALL[:2], ALL[3]], ids=lambda p: type(p).__name__)
def test_every_sample_has_one_part_and_groups_stay_whole_in_a_domain(
    partition: Partition, rows: list[tuple[int, int, int]]
):
    rows = [*rows, *((c, d, 100 + c) for c in range(3) for d in range(2))]
    y, domain, group = zip(*rows, strict=True)
    data = made(y, domain, group)
    _, parts = partition.assign(data, Streams(0))
    assert parts.shape == data.y.shape
    assert int(parts.min()) >= 0
    for d, g in {(d, g) for _, d, g in rows}:
        assert len(parts[(data.domain == d) & (data.group == g)].unique()) == 1


@given(samples)
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_iid_sizes_differ_by_one_at_most_in_total_and_in_each_class(clients: int, rows: list[tuple[int, int, int]]):
    y, domain, _ = zip(*rows, strict=True)
    data = made(y, domain)
    _, parts = IID(clients=clients).assign(data, Streams(0))
    for d in data.domain.unique():
        for inside in [data.domain == d] + [(data.domain == d) & (data.y == c) for c in data.y.unique()]:
            sizes = torch.bincount(parts[inside], minlength=clients)
            assert int(sizes.max() - sizes.min()) <= 1


def test_fedpins_pacs_in_60_clients():
    """Three source domains by two groups of classes by ten; 20 images of each class in a domain.

    A client of the first group has 3 x 20 / 10 images, of the second 4 x 20 / 10, each class equally often.
    """
    data = square(20, 7, 3)
    groups = (("c0", "c1", "c2"), ("c3", "c4", "c5", "c6"))
    division = divide(data, ByClass(groups=groups, clients=10), Streams(0))
    assert len(division.names) == 60
    assert division.names[:2] == ("d0/0", "d0/1")
    assert division.domains == tuple(d for d in range(3) for _ in range(20))
    for number in range(60):
        held = Counter(data.y[division.holder == number].tolist())
        assert held == dict.fromkeys(range(3, 7) if number % 20 >= 10 else range(3), 2)


def test_a_class_in_two_groups_is_shared_out_and_one_in_none_is_nobodys():
    """c1 (10 samples) lies in both groups: 5 each. c2 lies in none."""
    data = square(10, 3, 1)
    _, parts = ByClass(groups=(("c0", "c1"), ("c1",))).assign(data, Streams(0))
    assert [int(((parts == p) & (data.y == c)).sum()) for p in (0, 1) for c in (0, 1)] == [10, 5, 0, 5]
    assert bool((parts[data.y == 2] == -1).all())
    assert bool((parts[data.y != 2] >= 0).all())


def test_a_division_names_clients_and_skips_pairs_without_samples():
    """d0 has only class c0, so one part of two: its client bears the domain's name; d1 has two."""
    data = made([0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1])
    division = divide(data, ByClass(groups=(("c0",), ("c1",))), Streams(0))
    assert division.names == ("d0", "d1/0", "d1/1")
    assert division.holder.tolist() == [0, 0, 1, 2, 2, 1]
    others = division.without([0])
    assert (others.names, others.domains) == (("d1/0", "d1/1"), (1, 1))
    assert others.holder.tolist() == [-1, -1, 0, 1, 1, 0]


def test_dirichlet_is_flowers_own_assignment_for_the_same_seed():
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    data, streams = square(40, 3, 2), Streams(5)
    _, parts = Dirichlet(clients=4, beta=0.3, min_samples=3).assign(data, streams)
    for domain in range(2):
        inside = (data.domain == domain).nonzero().flatten()
        rows = inside[streams.permutation(len(inside), "partition rows", domain)]
        seed = int(torch.randint(2**31, (), generator=streams.generator("partition seed", domain)))
        flower = DirichletPartitioner(
            num_partitions=4, partition_by="label", alpha=0.3, min_partition_size=3, seed=seed
        )
        flower.dataset = Dataset.from_dict({"sample": rows.tolist(), "label": data.y[rows].tolist()})
        for part in range(4):
            held = inside[parts[inside] == part]
            assert sorted(flower.load_partition(part)["sample"]) == held.tolist()
            assert len(held) >= 3


def test_flowers_partitioners_by_name():
    """Pathological with one class each: a part has one label."""
    data = square(10, 3, 2)
    one = {"num_partitions": 3, "num_classes_per_partition": 1, "class_assignment_mode": "deterministic"}
    _, parts = FlowerPartitioner(partitioner="PathologicalPartitioner", arguments=one).assign(data, Streams(0))
    assert all(len(data.y[(parts == p) & (data.domain == d)].unique()) == 1 for p in range(3) for d in range(2))


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (ByClass(groups=(("c0", "cat"),)), "partition.groups 'cat'"),
        (ByClass(groups=(("c0",), ())), "partition.groups is empty"),
        (Dirichlet(clients=10, beta=0.1, min_samples=5), "30 originals"),
        (FlowerPartitioner(partitioner="Shard", arguments={}), "'Shard'"),
        (FlowerPartitioner(partitioner="IidPartitioner", arguments={}), "IidPartitioner with no arguments"),
        (
            FlowerPartitioner(partitioner="ShardPartitioner", arguments={"seed": 3}),
            "partition.arguments.seed: omit it",
        ),
    ],
)
def test_what_cannot_be_divided_says_why(partition: Partition, words: str):
    with refuses(words):
        partition.assign(square(10, 3, 2), Streams(0))


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with refuses("pip install 'fedshift[partition]'"):
        Dirichlet(clients=2).assign(square(10, 2, 1), Streams(0))
