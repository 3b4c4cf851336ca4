"""Named tensors and replies: what pages write their equations with, as properties and by hand."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedshift.core.tensors import Replies, Tensors, part_of, weighted_mean

PARTS = ("enc", "encoder", "head", "dual")  # one name begins as another does
OWN = ("w", "bias", "layer.w", "encoder.w")
NUMBERS = st.floats(-100, 100, width=32)
VALUES = st.lists(NUMBERS, min_size=2, max_size=2).map(torch.tensor)
NAMES = st.builds("{}.{}".format, st.sampled_from(PARTS), st.sampled_from(OWN))
TENSORS = st.dictionaries(NAMES, VALUES, max_size=8).map(Tensors)


def same(one: Tensors, other: Tensors) -> bool:
    """Whether two have the same names in the same order, and the very same tensors."""
    return list(one) == list(other) and all(tensor is other[name] for name, tensor in one.items())


def equal(one: Tensors, other: dict[str, Tensor]) -> bool:
    """Whether two have the same names in the same order, and equal tensors."""
    return list(one) == list(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# Names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"), [("dual", "known: enc, head"), ("head.v", "known: w, bias"), ("enc", "known: w")]
)
def test_an_unknown_tensor_is_an_error_that_names_the_known_ones(name: str, known: str):
    mine = Tensors(dict.fromkeys(("enc.w", "head.w", "head.bias"), torch.zeros(2)))
    with pytest.raises(KeyError, match=rf"no tensor '{name}'; {known}"):
        mine[name]
    assert name not in mine
    assert mine.get(name) is None


def test_a_part_of_a_single_tensor_is_in_the_mapping_by_either_name():
    mine = Tensors({"dual.value": torch.zeros(2)})
    assert "dual" in mine
    assert "dual.value" in mine
    assert mine["dual"] is mine["dual.value"]


@settings(deadline=None)
@given(TENSORS, st.sampled_from(PARTS))
def test_what_is_of_a_part_under_that_part_is_the_part(a: Tensors, part: str):
    mine = a.of(part).under(part)
    assert same(mine, Tensors({name: tensor for name, tensor in a.items() if part_of(name) == part}))
    assert same(mine, a.of_parts([part]))


# One beside the other -------------------------------------------------------------------------------


@settings(deadline=None)
@given(TENSORS, TENSORS)
def test_a_or_b_has_the_names_of_both_and_bs_tensors(a: Tensors, b: Tensors):
    """In the order of a, then what only b has; a dictionary on either side will do."""
    expected = Tensors({**a, **b})
    assert same(a | b, expected)
    assert same(dict(a) | b, expected)


# Arithmetic -----------------------------------------------------------------------------------------

OPERATIONS = st.sampled_from([operator.add, operator.sub, operator.mul])


@settings(deadline=None)
@given(OPERATIONS, TENSORS, TENSORS)
def test_arithmetic_is_over_the_names_that_both_have_in_the_order_of_the_left(operation, a: Tensors, b: Tensors):
    expected = {name: operation(tensor, b[name]) for name, tensor in a.items() if name in b}
    assert equal(operation(a, b), expected)
    assert equal(operation(a, dict(b)), expected)


@settings(deadline=None)
@given(OPERATIONS, TENSORS, NUMBERS)
def test_a_number_or_a_tensor_meets_every_tensor(operation, a: Tensors, number: float):
    expected = {name: operation(tensor, number) for name, tensor in a.items()}
    assert equal(operation(a, number), expected)
    assert equal(operation(a, torch.tensor(number)), expected)
    assert equal(number * a, dict(a * number))


def test_division_by_hand():
    a, b = Tensors({"w": torch.tensor([1.0, 6.0]), "v": torch.ones(1)}), {"w": torch.tensor([4.0, 3.0])}
    assert (a / b)["w"].tolist() == [0.25, 2.0]
    assert list(a / b) == ["w"]
    assert (a / 4)["w"].tolist() == [0.25, 1.5]


def test_sums_and_squares_by_hand():
    """1 - 2 + 3 = 2 and 1 + 4 + 9 = 14; the sum of nothing is 0."""
    a = Tensors({"w": torch.tensor([1.0, -2.0]), "v": torch.tensor([[3.0]])})
    assert a.sum().item() == 2
    assert a.squared_norm().item() == 14
    assert Tensors().sum().item() == 0


# Means ----------------------------------------------------------------------------------------------


def test_a_weighted_mean_by_hand():
    """Weights 1 and 3: (1 * 2 + 3 * 6) / 4 = 5, and plain 4. A name that is not requested is excluded."""
    messages = [{"w": torch.tensor([2.0]), "v": torch.zeros(1)}, {"w": torch.tensor([6.0]), "v": torch.zeros(1)}]
    weighted = weighted_mean(messages, ["w"], [1, 3])
    assert list(weighted) == ["w"]
    assert weighted["w"].item() == 5
    assert weighted_mean(messages, ["w"])["w"].item() == 4


@pytest.mark.parametrize(
    ("numbers", "weights", "expected"),
    [
        ((1, 4), (1, 3), 3),  # 13 / 4 = 3.25
        ((1, 2), (1, 1), 2),  # 1.5: halves to the even number
        ((2, 3), (1, 1), 2),  # 2.5
        ((2**24 + 1, 2**24 + 1), (1, 1), 2**24 + 1),  # beyond what 32 bits of floating point count
    ],
)
def test_a_whole_number_buffer_takes_the_rounded_mean(
    numbers: tuple[int, int], weights: tuple[int, int], expected: int
):
    mean = weighted_mean([{"n": torch.tensor(number)} for number in numbers], ["n"], weights)["n"]
    assert (mean.dtype, mean.item()) == (torch.int64, expected)


@settings(deadline=None)
@given(
    st.lists(st.tuples(VALUES, st.integers(1, 50)), min_size=1, max_size=5),
    st.sampled_from([0.25, 1.0, 4.0]),  # powers of two, which change no bit
)
def test_only_the_proportion_of_weights_counts_and_equal_tensors_have_themselves_as_mean(sent, factor: float):
    messages, weights = [{"w": tensor.double()} for tensor, _ in sent], [weight for _, weight in sent]
    mean = weighted_mean(messages, ["w"], weights)["w"]
    assert torch.equal(weighted_mean(messages, ["w"], [factor * weight for weight in weights])["w"], mean)
    expected = sum(weight * message["w"] for message, weight in zip(messages, weights, strict=True)) / sum(weights)
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)
    alike = weighted_mean([messages[0]] * len(weights), ["w"], weights)["w"]
    torch.testing.assert_close(alike, messages[0]["w"], rtol=1e-12, atol=1e-12)


# Replies --------------------------------------------------------------------------------------------


def replies(*samples: int) -> Replies:
    """Clients 0, 10, ... that send w = 1, 2, ... and how many samples they have, if any are given."""
    counts = [{"samples": torch.tensor(count)} for count in samples] or [{}, {}]
    ups = [Tensors({"w": torch.tensor([place + 1.0])} | count) for place, count in enumerate(counts)]
    return Replies((10 * place, up) for place, up in enumerate(ups))


def test_replies_weigh_by_their_samples_where_they_tell_them():
    """(3 * 1 + 1 * 2) / 4 = 1.25, and plain 1.5; how many samples there are is no tensor of the model."""
    assert replies(3, 1).weights == [3, 1]
    assert replies().weights == [1, 1]
    assert replies(3, 1).mean()["w"].item() == 1.25
    assert replies().mean()["w"].item() == 1.5
    assert list(replies(3, 1).mean()) == ["w"]


def test_weights_of_ones_own():
    """(1 * 1 + 3 * 2) / 4 = 1.75, whatever the counts are; the replies themselves stay as they are."""
    sent = replies(3, 1)
    assert sent.weighted([1, 3]).mean()["w"].item() == 1.75
    assert sent.weights == [3, 1]
