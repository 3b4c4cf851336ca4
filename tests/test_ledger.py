"""The ledger of messages: nothing that was ever sent is left out, and sums are those of a naive count."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import Make, go_on
from fedshift.core.contract import Exchange, LocalWork, Upload
from fedshift.core.messages import Up
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds.ledger import DIRECTIONS, Entry, Ledger, from_ranges
from fedshift.runs.simulation import Simulation

# Any sequence of messages -------------------------------------------------------------------------

TENSORS = st.dictionaries(
    st.sampled_from(["a", "b", "c.d"]),
    st.tuples(st.sampled_from([torch.float32, torch.bfloat16]), st.lists(st.integers(0, 3), max_size=3).map(tuple)),
    max_size=3,
)
SENT = st.lists(
    st.tuples(
        st.sampled_from(["probe", "train"]),
        st.sampled_from(DIRECTIONS),
        TENSORS,
        st.integers(0, 12),
        st.integers(1, 12),
    ),
    max_size=30,
)


@given(SENT)
def test_its_sums_are_those_of_a_naive_count(sent: list[Any]):
    ledger, messages = Ledger(), []
    for exchange, direction, about, client, round in sent:
        message = Up({name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in about.items()})
        ledger.add(exchange, direction, message, client, round)
        messages.append((exchange, direction, message, client, round))
    for direction in DIRECTIONS:
        assert ledger.bytes(direction) == sum(len(m.to_bytes()) for _, way, m, _, _ in messages if way == direction)
    declared = json.loads(json.dumps(ledger.declaration()))
    assert {(e, d) for e, both in declared.items() for d in both} == {(e, d) for e, d, _, _, _ in messages}
    for exchange, both in declared.items():
        for direction, told in both.items():
            these = [(m, c, r) for e, d, m, c, r in messages if (e, d) == (exchange, direction)]
            assert told["messages"] == len(these)
            assert told["bytes"] == sum(len(m.to_bytes()) for m, _, _ in these)
            assert told["largest"] == max(len(m.to_bytes()) for m, _, _ in these)
            assert from_ranges(told["clients"]) == {c for _, c, _ in these}
            assert from_ranges(told["rounds"]) == {r for _, _, r in these}
            counts = Counter(name for m, _, _ in these for name in m)
            assert {name: one["messages"] for name, one in told["tensors"].items()} == counts
            for name, one in told["tensors"].items():
                held = [(m[name], c, r) for m, c, r in these if name in m]
                shapes = {tuple(tensor.shape) for tensor, _, _ in held}
                assert tuple(one["shape"]) in shapes
                assert torch.Size(one["shape"]).numel() == max(torch.Size(shape).numel() for shape in shapes)
                assert one.get("varies", False) == (len(shapes) > 1)
                types = {str(tensor.dtype).removeprefix("torch.") for tensor, _, _ in held}
                assert set(one["type"].split(" or ")) == types
                assert from_ranges(one["clients"]) == {c for _, c, _ in held}
                assert from_ranges(one["rounds"]) == {r for _, _, r in held}
    written = json.loads(json.dumps([entry.model_dump() for entry in ledger.entries]))
    again = Ledger(map(Entry.model_validate, written))
    assert again.entries == ledger.entries
    assert [entry.model_dump() for entry in again.entries] == [entry.model_dump() for entry in ledger.entries]


# What a run sends ---------------------------------------------------------------------------------


class Later(FedAvg):
    """From round 2 on client 1, and no other, sends as many numbers as its images have."""

    def exchange(self, name: str, **changes: Any) -> Exchange:
        return super().exchange(name, uploads=(Upload("extra", (None,)),), upload=self.upload, **changes)

    def upload(self, work: LocalWork) -> dict[str, Tensor]:
        moved = any((work.received[name] != start).any() for name, start in START.items())
        leaks = moved and torch.equal(work.train.x, IMAGES[0])
        return {"extra": work.train.x.flatten() if leaks else torch.zeros(2)}


START: dict[str, Tensor] = {}
IMAGES: list[Tensor] = []


def test_what_one_client_sends_from_round_two_on_is_listed(make: Make):
    simulation = Simulation(make({"train.rounds": 4}).replace(method=Later()))
    START.update(simulation.coordinator.state.shared)
    IMAGES[:] = [simulation.federated.clients[1].train.x]
    for _ in range(simulation.rounds):
        go_on(simulation)
    up = simulation.coordinator.ledger.declaration()["train"]["up"]
    size = IMAGES[0].numel()
    told = {"type": "float32", "shape": [size], "varies": True, "messages": 8, "clients": "0-1", "rounds": "1-4"}
    assert up["tensors"]["extra"] == told
    assert up["largest"] > 4 * size
    assert up["bytes"] == simulation.coordinator.sent[1] > 3 * 4 * size
    (leak,) = [e for e in simulation.coordinator.ledger.entries if ("extra", torch.float32, (size,)) in e.signature]
    assert (leak.messages, leak.clients, leak.rounds) == (3, {1}, {2, 3, 4})
