"""The helper with which tests look at errors fails where the error is not the one."""

from __future__ import annotations

import pytest

from fedshift.errors import DivergedError, FedshiftError
from refusal import refuses


def test_every_token_is_there_in_any_order():
    with refuses("greater than 0", "train.lr = -1") as caught:
        raise FedshiftError("train.lr = -1: it should be greater than 0.")
    assert str(caught.value) == "train.lr = -1: it should be greater than 0."


def test_the_class_of_the_error_counts():
    with refuses("train.lr"):
        raise DivergedError("Not finite.", "Lower train.lr.")
    with pytest.raises(FedshiftError), refuses("train.lr", error=DivergedError):
        raise FedshiftError("other: train.lr")
    with pytest.raises(ValueError, match="no error"), refuses("train.lr"):
        raise ValueError("train.lr: no error of ours")


def test_no_error_fails():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), refuses("train.lr"):
        pass


@pytest.mark.parametrize("missing", ["Train.lr", "-2", "--set"])
def test_a_missing_token_fails_and_is_named_beside_the_message(missing: str):
    with pytest.raises(pytest.fail.Exception) as failure, refuses("train.lr", missing):
        raise FedshiftError("train.lr = -1: it should be greater than 0.")
    assert str(failure.value).splitlines() == [
        f"The FedshiftError does not mention '{missing}':",
        "train.lr = -1: it should be greater than 0.",
    ]


def test_an_empty_token_fails():
    """It stands in every message."""
    with pytest.raises(AssertionError, match="empty token"), refuses("train.lr", ""):
        raise FedshiftError("train.lr = -1")
