"""What is random is named, what is sent survives bit for bit, and the ledger of messages leaves nothing out."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from conftest import Make, go_on
from fedshift.core.contract import Exchange, LocalWork, ServerState, Upload
from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, pack_in_pieces
from fedshift.core.tensors import Tensors
from fedshift.engines.parcels import Packed, Packing
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds.ledger import DIRECTIONS, Entry, Ledger, from_ranges
from fedshift.runs.checkpoint import pack_server, unpack_server
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = torch.empty(shape, dtype=dtype).nbytes
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        raw = bytearray(value % 2 for value in raw)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


NAMED = st.dictionaries(
    st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1).filter(
        lambda name: name != "__metadata__"
    ),
    tensors(),
    max_size=4,
)


@given(NAMED)
def test_a_message_survives_the_trip_through_bytes_exactly(content):
    message = Up(content)
    data = message.to_bytes()
    back = Up.from_bytes(data)
    assert list(back) == sorted(content)
    assert message.nbytes == len(data)
    for name, tensor in content.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        # Bytes, not values: a NaN keeps its payload and a zero its sign.
        assert back[name].contiguous().view(-1).view(torch.uint8).tolist() == tensor.view(-1).view(torch.uint8).tolist()


def test_a_message_takes_tensors_of_any_layout():
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    shared = torch.arange(6.0)
    message = Down({"image": image, "left": shared[:3], "all": shared})
    back = Down.from_bytes(message.to_bytes())
    assert all(torch.equal(back[name], message[name]) for name in message)
    assert message.nbytes == len(message.to_bytes())


def test_what_is_read_lies_where_torch_would_put_it():
    """A matrix product of the same numbers is rounded otherwise where they begin at another place within 64 bytes."""
    given = {f"w{size}": torch.randn(size) for size in range(1, 200, 7)}
    order = Order("run", "train", 1, "train", 0, Down(given))
    server = ServerState(Tensors({f"head.{name}": tensor for name, tensor in given.items()}))
    read = [Order.from_bytes(order.to_bytes()).down, unpack_server(pack_server(server), torch.device("cpu")).shared]
    assert {tensor.data_ptr() % 64 for tensors in read for tensor in tensors.values()} == {0}


def test_what_lies_elsewhere_in_a_parcel_is_copied():
    packing, given = Packing(), torch.randn(100)
    place = packing.put(given)
    moved = np.empty(packing.ends + 64, dtype=np.uint8)
    begins = -moved.ctypes.data % 64 + 16
    moved[begins : begins + packing.ends] = packing.packed()
    found = Packed(moved[begins : begins + packing.ends]).get(place)
    assert found.data_ptr() % 64 == 0
    assert torch.equal(found, given)


def test_a_cut_message_is_refused():
    with pytest.raises(SafetensorError):
        Up.from_bytes(Up({"w": torch.ones(100)}).to_bytes()[:-1])


def test_orders_and_answers_survive_the_wire_bit_for_bit():
    tensors = {"w": torch.tensor([float("nan"), -0.0, 1e-45]), "n": torch.tensor(3), "b": torch.tensor([True])}
    order = Order("r", "train", 3, "train", 7, Down(tensors))
    again = Order.from_bytes(order.to_bytes())
    assert again.to_bytes() == order.to_bytes()
    assert (again.run, again.stage, again.round, again.exchange, again.client) == ("r", "train", 3, "train", 7)
    telemetry = Telemetry.from_numbers({"cross_entropy": 0.1 + 0.2}, 5)
    answer = Answer("r", "train", 3, "train", 7, Up(tensors), telemetry)
    back = Answer.from_bytes(answer.to_bytes())
    assert back.to_bytes() == answer.to_bytes()
    assert back.telemetry.terms == {"cross_entropy": 0.1 + 0.2}
    assert int(back.telemetry["steps"]) == 5


def test_streams_are_equal_for_equal_keys_and_differ_otherwise():
    def draw(seed, *key):
        return tuple(torch.randn(4, generator=Streams(seed).generator(*key)).tolist())

    assert draw(0, "noise", 1, 2) == draw(0, "noise", 1, 2)
    others = [draw(1, "noise", 1, 2), draw(0, "batches", 1, 2), draw(0, "noise", 2, 1), draw(0, "noise", 12)]
    assert len({draw(0, "noise", 1, 2), *others}) == 5


def test_lending_a_stream_to_the_global_generator_leaves_it_as_it_was():
    before = torch.get_rng_state()
    with Streams(0).as_global("initialisation", "head"):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with Streams(0).as_global("initialisation", "head"):
        assert torch.equal(torch.rand(3), first)


@given(NAMED)
def test_a_file_in_pieces_reads_as_the_same_tensors(content):
    """By safetensors' own reader; with strides as well, since a transposed tensor is written row by row."""
    turned = {name: tensor.T if tensor.dim() == 2 else tensor for name, tensor in content.items()}
    back = load(b"".join(pack_in_pieces(turned, turned.values())))
    assert back.keys() == turned.keys()
    for name, tensor in turned.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert back[name].contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))


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
