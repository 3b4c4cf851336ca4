"""Partitions: every sample has one holder, and the division is what its page says."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.clients.domains import DomainData
from fedshift.clients.partitions import IID, ByClass, Dirichlet, Domains, FlowerPartitioner, Partition
from fedshift.clients.protocols import divide
from fedshift.streams import Streams
from refusal import refuses


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
    parts = partition.assign(data, Streams(0))
    assert parts.shape == data.y.shape
    assert int(parts.min()) >= 0
    for d, g in {(d, g) for _, d, g in rows}:
        assert len(parts[(data.domain == d) & (data.group == g)].unique()) == 1


@given(samples)
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_iid_sizes_differ_by_one_at_most_in_total_and_in_each_class(clients: int, rows: list[tuple[int, int, int]]):
    y, domain, _ = zip(*rows, strict=True)
    data = made(y, domain)
    parts = IID(clients=clients).assign(data, Streams(0))
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
    parts = ByClass(groups=(("c0", "c1"), ("c1",))).assign(data, Streams(0))
    assert [int(((parts == p) & (data.y == c)).sum()) for p in (0, 1) for c in (0, 1)] == [10, 5, 0, 5]
    assert bool((parts[data.y == 2] == -1).all())
    assert bool((parts[data.y != 2] >= 0).all())


def test_a_division_names_clients_and_skips_pairs_without_samples():
    """d0 has only class c0, so one part of two: its client bears the domain's name; d1 has two."""
    data = made([0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1])
    division = divide(data, ByClass(groups=(("c0",), ("c1",))), Streams(0))
    assert division.names == ("d0", "d1/0", "d1/1")
    assert division.holder.tolist() == [0, 0, 1, 2, 2, 1]
    others = division.without(0)
    assert (others.names, others.domains) == (("d1/0", "d1/1"), (1, 1))
    assert others.holder.tolist() == [-1, -1, 0, 1, 1, 0]


def test_dirichlet_is_flowers_own_assignment_for_the_same_seed():
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    data, streams = square(40, 3, 2), Streams(5)
    parts = Dirichlet(clients=4, beta=0.3, min_samples=3).assign(data, streams)
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
    parts = FlowerPartitioner(partitioner="PathologicalPartitioner", arguments=one).assign(data, Streams(0))
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
            "partition.arguments.seed: leave it out",
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
