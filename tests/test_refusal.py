"""The helper with which tests look at errors fails where the error is not the one."""

from __future__ import annotations

import pytest

from fedshift.errors import DivergedError, FedshiftError
from refusal import refuses


def test_every_token_is_there_in_any_order_and_the_class_counts():
    with refuses("greater than 0", "train.lr = -1"):
        raise DivergedError("train.lr = -1:", "it should be greater than 0.")
    with pytest.raises(FedshiftError), refuses("train.lr", error=DivergedError):
        raise FedshiftError("other: train.lr")


def test_no_error_or_a_missing_token_fails():
    with pytest.raises(pytest.fail.Exception, match=r"not mention 'Train\.lr'"), refuses("-1", "Train.lr"):
        raise FedshiftError("train.lr = -1: it should be greater than 0.")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), refuses("train.lr"):
        pass
