"""Streams and messages: what is random is named, and what is sent survives bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load

from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, pack_in_pieces
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
