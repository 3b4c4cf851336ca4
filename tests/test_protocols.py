"""Protocols: who trains on what, what is scored, and that no sample is on two sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import IID, ByClass, Domains, Partition
from fedshift.clients.protocols import AllClients, InDomain, LeaveOneDomainOut, PersonalUnderShift, Protocol, split
from fedshift.clients.samples import Client, Environment, Samples
from fedshift.streams import Streams
from refusal import refuses

SHIFTS = ("train", "p=0", "p=0.1", "p=1")
DOMAINS = ("a", "b", "c")


def plain(per_class: int = 20, classes: int = 4) -> DomainData:
    """Three domains; a sample's input is its number."""
    y = torch.arange(classes).repeat(len(DOMAINS) * per_class)
    domain = torch.arange(len(DOMAINS)).repeat_interleave(classes * per_class)
    x = torch.arange(len(y)).float().view(-1, 1)
    return DomainData(x, y, domain, DOMAINS, tuple(f"c{c}" for c in range(classes)), torch.arange(len(y)))


def shifted(per_class: int = 10) -> DomainData:
    """The same with four environments: of each class in a domain ``per_class`` samples in each."""
    data = plain(per_class * len(SHIFTS), 2)
    environment = (torch.arange(len(data.y)) // 2) % len(SHIFTS)
    return replace(data, environment=environment, environments=SHIFTS)


def federate(protocol: Protocol, partition: Partition | None = None, data: DomainData | None = None) -> FederatedData:
    return protocol.federate(data or plain(), partition or Domains(), Inputs(), Streams(0))


def numbers(samples: Samples) -> set[int]:
    return {int(x) for x in samples.x.flatten()}


def of(federation: FederatedData, role: str, client: int | None = None) -> list[Environment]:
    return [e for e in federation.environments if e.role == role and client in (None, e.client)]


# Parts to train on --------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [InDomain(), LeaveOneDomainOut(hold_out="b")])
def test_a_part_of_each_domain_is_of_those_that_all_would_train_on(protocol: InDomain | LeaveOneDomainOut):
    """20 of each class: 14 are left in-domain, and 18 if one is out; half is 7 and 9, a fourth round(3.5), round(4.5).

    Whom a table does not name has all. What is held out is the same.
    """
    whole = federate(protocol)
    part = federate(protocol.replace(fraction={"a": 0.25, "b": 0.5}))
    most = federate(protocol.replace(fraction={"a": 0.25, "b": 0.5}, per_class=4))
    in_domain = isinstance(protocol, InDomain)
    assert [len(client.train) / 4 for client in part.clients] == ([4, 7, 14] if in_domain else [4, 18])
    assert [len(client.train) / 4 for client in most.clients] == [4] * len(most.clients)
    for one, other, fewest in zip(whole.clients, part.clients, most.clients, strict=True):
        assert numbers(fewest.train) <= numbers(other.train) <= numbers(one.train)
        assert set(Counter(fewest.train.y.tolist()).values()) == {4}
    for one, other in zip(whole.environments, most.environments, strict=True):
        assert torch.equal(one.samples.x, other.samples.x)


def test_a_part_of_a_domain_that_there_is_not():
    with refuses("domain in protocol.fraction 'usp'", "a, b, c"):
        federate(InDomain(fraction={"usp": 0.5}))
    with refuses("protocol.fraction", "less than or equal to 1"):
        InDomain(fraction={"a": 73.0})


# Leave one domain out ----------------------------------------------------------------------------


def test_the_target_belongs_to_nobody_and_sources_keep_a_tenth():
    """20 of each of 4 classes: round(0.1 x 20) = 2 of each held out, so 72 to train and 8 to inspect."""
    federation = federate(LeaveOneDomainOut(hold_out="b"))
    assert [(e.name, e.role, e.client, len(e.samples)) for e in federation.environments] == [
        ("a", "validation", 0, 8),
        ("b", "test", None, 80),
        ("c", "validation", 1, 8),
    ]
    assert [(client.name, len(client.train)) for client in federation.clients] == [("a", 72), ("c", 72)]


def test_another_domain_validates():
    """The client that is left trains on what it trains on if no domain validates; its environments count from 0."""
    protocol = LeaveOneDomainOut(hold_out="c", validate_on="a")
    federation = federate(protocol)
    assert [(e.name, e.role, e.client, len(e.samples)) for e in federation.environments] == [
        ("a", "validation", None, 80),
        ("c", "test", None, 80),
    ]
    (client,) = federation.clients
    assert (client.name, federation.train_environments) == ("b", ("b",))
    assert numbers(client.train) == numbers(federate(protocol.replace(validate_on="")).clients[1].train)
    assert client.train.environment.tolist() == [0] * 72
    assert [fold.validate_on for fold in protocol.folds(DOMAINS)] == ["a", "b"]
    with refuses("needs two domains that train"):
        protocol.folds(("b", "c"))


def test_another_domain_validates_the_models_of_clients():
    """Of groups c0 and c1 to c3 in domain a, each on 20 and 60 samples of b and of c."""
    groups = ByClass(groups=(("c0",), ("c1", "c2", "c3")))
    federation = federate(LeaveOneDomainOut(hold_out="b", validate_on="c", scored="clients"), groups)
    assert [(e.name, e.role, e.client, len(e.samples)) for e in federation.environments] == [
        ("b", "test", 0, 20),
        ("c", "validation", 0, 20),
        ("b", "test", 1, 60),
        ("c", "validation", 1, 60),
    ]


def test_fedpins_clients_are_scored_on_the_target_with_their_own_classes_and_models():
    """Target b has 20 of each class: the clients of c0 on 20 samples, those of c1 to c3 on 60."""
    groups = ByClass(groups=(("c0",), ("c1", "c2", "c3")))
    federation = federate(LeaveOneDomainOut(hold_out="b", scored="clients"), groups)
    tests = of(federation, "test")
    assert [(e.name, e.client, sorted(set(e.samples.y.tolist()))) for e in tests] == [
        ("b", 0, [0]),
        ("b", 1, [1, 2, 3]),
        ("b", 2, [0]),
        ("b", 3, [1, 2, 3]),
    ]
    assert [len(e.samples) for e in tests] == [20, 60, 20, 60]
    assert all(80 <= n < 160 for e in tests for n in numbers(e.samples))


# In domain ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=9, max_size=80),
    st.integers(1, 4),
    st.sampled_from([0.5, 1.0]),
)
def test_in_domain_nobody_shares_a_sample(rows: list[tuple[int, int]], clients: int, fraction: float):
    y, domain = (torch.tensor(values) for values in zip(*rows, strict=True))
    x = torch.arange(len(y)).float().view(-1, 1)
    data = DomainData(x, y, domain, DOMAINS, ("c0", "c1", "c2"), torch.arange(len(y)))
    federation = federate(InDomain(fraction=fraction), IID(clients=clients), data)
    held = Counter(n for samples in everything(federation) for n in numbers(samples))
    assert set(held.values()) <= {1}
    if fraction == 1:
        assert set(held) == set(range(len(y)))


def everything(federation: FederatedData) -> list[Samples]:
    return [client.train for client in federation.clients] + [e.samples for e in federation.environments]


def test_in_domain_every_client_is_split_inside_and_named_by_its_domain():
    """2 clients a domain: 10 of each class each; 2 to test, 1 to validate, 7 to train."""
    federation = federate(InDomain(), IID(clients=2))
    assert [client.name for client in federation.clients] == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]
    for client in federation.clients:
        (tested,), (validated,) = of(federation, "test", client.id), of(federation, "validation", client.id)
        sizes = [Counter(s.y.tolist()) for s in (client.train, tested.samples, validated.samples)]
        assert sizes == [dict.fromkeys(range(4), count) for count in (7, 2, 1)]


def test_all_clients_is_in_domain_under_one_name():
    partition = IID(clients=2)
    inside, everyone = (federate(protocol, partition) for protocol in (InDomain(), AllClients()))
    assert {e.name for e in everyone.environments} == {"all clients"}
    for one, other in zip(everything(inside), everything(everyone), strict=True):
        assert torch.equal(one.x, other.x)


# Splits ------------------------------------------------------------------------------------------


def test_a_split_takes_each_strata_share_in_turn():
    """Of 7: round(1.4) = 1 and round(3.5) = 4. Of 2: one, as one is left, and round(1) = 1. Of 1: none and none."""
    holder = torch.tensor([0] * 7 + [1] * 2 + [2])
    n = len(holder)
    data = DomainData(torch.zeros(n, 1), torch.zeros_like(holder), holder, DOMAINS, ("c0",), torch.arange(n))
    first, second = split(data, (0.2, 0.5), Streams(0))
    assert [int(first[holder == h].sum()) for h in range(3)] == [1, 1, 0]
    assert [int(second[holder == h].sum()) for h in range(3)] == [4, 1, 0]
    assert not bool((first & second).any())
    order = Streams(0).permutation(7, "split", 0)
    assert first[:7].nonzero().flatten().tolist() == [int(order[0])]


# Personal under shift ----------------------------------------------------------------------------


def test_each_client_is_scored_on_every_shift_and_trains_on_none():
    """10 of each of 2 classes in every environment; the validation environment is the test environment p=0.1."""
    federation, data = federate(PersonalUnderShift(), data=shifted()), shifted()
    assert data.environment is not None
    for client in federation.clients:
        tests = of(federation, "test", client.id)
        assert [(e.name, len(e.samples)) for e in tests] == [("p=0", 20), ("p=0.1", 20), ("p=1", 20)]
        for number, samples in enumerate([client.train, *(e.samples for e in tests)]):
            assert {int(data.environment[n]) for n in numbers(samples)} == {number}
            assert {int(data.domain[n]) for n in numbers(samples)} == {client.id}
        (validation,) = of(federation, "validation", client.id)
        assert (validation.name, numbers(validation.samples)) == ("p=0.1", numbers(tests[1].samples))
    (note,) = federation.notes
    assert "'p=0.1', which is a test environment as well" in note


def test_a_held_out_validation_looks_at_no_shift():
    """0.2 of 10 of each class: 4 to inspect, 16 to train."""
    federation, data = federate(PersonalUnderShift(validation="held-out", held_out=0.2), data=shifted()), shifted()
    assert data.environment is not None
    for client in federation.clients:
        (validation,) = of(federation, "validation", client.id)
        assert (validation.name, len(validation.samples), len(client.train)) == ("held-out", 4, 16)
        assert {int(data.environment[n]) for n in numbers(validation.samples)} == {0}


def copies(per_class: int = 10) -> DomainData:
    """Three domains and two classes; each original once in every environment but training, whose originals differ."""
    data = shifted(per_class)
    assert data.environment is not None
    original = torch.empty_like(data.group)
    for domain in range(len(DOMAINS)):
        for y in range(2):
            for e in range(len(SHIFTS)):
                which = ((data.domain == domain) & (data.y == y) & (data.environment == e)).nonzero().flatten()
                original[which] = 1000 * (e == 0) + 100 * domain + 50 * y + torch.arange(len(which))
    return replace(data, group=original)


def test_an_excluded_validation_shares_neither_environment_nor_originals_with_the_test():
    """0.2 of 10 originals of each of 2 classes: 4 to inspect, in p=0.1, and 16 to test in p=0 and p=1 each."""
    protocol, data = PersonalUnderShift(exclude_validation=True, held_out=0.2), copies()
    protocol.check_choosing()
    federation = federate(protocol, data=data)
    assert data.environment is not None
    assert not federation.notes
    for client in federation.clients:
        tests = of(federation, "test", client.id)
        (validation,) = of(federation, "validation", client.id)
        assert [(e.name, len(e.samples)) for e in tests] == [("p=0", 16), ("p=1", 16)]
        assert (validation.name, len(validation.samples), len(client.train)) == ("p=0.1", 4, 20)
        assert {int(data.environment[n]) for n in numbers(validation.samples)} == {SHIFTS.index("p=0.1")}
        looked_at = {int(data.group[n]) for n in numbers(validation.samples)}
        for test in tests:
            assert looked_at.isdisjoint(int(data.group[n]) for n in numbers(test.samples))


def test_an_only_test_environment_cannot_be_excluded():
    data = shifted()
    assert data.environment is not None
    one = replace(data, environment=data.environment.clamp(max=1), environments=("train", "p=0"))
    with refuses("leaves nothing to test"):
        federate(PersonalUnderShift(validation="p=0", exclude_validation=True), data=one)


@pytest.mark.parametrize(
    ("protocol", "data", "words"),
    [
        (PersonalUnderShift(), plain(), "(colored-mnist"),
        (PersonalUnderShift(validation="p=0.2"), shifted(), "Did you mean 'p=0.1'?"),
        (PersonalUnderShift(validation="train"), shifted(), "protocol.validation 'train'"),
        (LeaveOneDomainOut(hold_out="a"), shifted(), "protocol.name=personal-under-shift"),
        (InDomain(test=0.5, validation=0.5), plain(), "samples to train"),
        (LeaveOneDomainOut(hold_out="z"), plain(), "hold out 'z'"),
        (LeaveOneDomainOut(hold_out="a", validate_on="z"), plain(), "hold out 'z'"),
        (LeaveOneDomainOut(hold_out="a", validate_on="a"), plain(), "protocol.validate_on = 'a'"),
        (LeaveOneDomainOut(hold_out="a"), replace(plain(), domains=("a",), domain=torch.zeros(240).long()), "to train"),
    ],
)
def test_what_does_not_fit_says_so(protocol: Protocol, data: DomainData, words: str):
    with refuses(words):
        federate(protocol, data=data)


# What a run makes of it --------------------------------------------------------------------------


def samples(count: int) -> Samples:
    return Samples(torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64))


def test_a_small_client_that_has_nothing_to_score_is_left_out_and_told_of():
    clients = (Client(0, "a/0", "a", samples(3)), Client(1, "a/1", "a", samples(1)))
    environments = (Environment("a", "test", 0, samples(2)), Environment("a", "test", 1, samples(0)))
    federation = FederatedData(clients, environments, ("c0",), Inputs()).checked()
    assert [e.client for e in federation.environments] == [0]
    (note,) = federation.notes
    assert note.startswith("1 of 2 environments of single clients contain no image")


def test_a_domain_that_nobody_can_score_and_a_client_that_cannot_train_are_refused():
    one = Client(0, "a", "a", samples(3))
    environments = (Environment("a", "test", 0, samples(2)), Environment("b", "test", 0, samples(0)))
    with refuses("test sample", "'b'", "protocol.test"):
        FederatedData((one,), environments, ("c0",), Inputs()).checked()
    with refuses("training sample", "'b'", "partition.clients"):
        FederatedData((one, Client(1, "b", "b", samples(0))), environments[:1], ("c0",), Inputs()).checked()
