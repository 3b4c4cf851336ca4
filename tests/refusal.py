"""What the tests ask of an error: its type, the value that is wrong, and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.runs.simulation import load_data


@contextmanager
def refuses(
    token: str, *tokens: str, error: type[Exception] = FedshiftError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error whose message has every token; which words stand between them is free.

    Args:
        token: the value or name that is wrong, as the message spells it, such as "train.lr = -1".
        *tokens: what else must be there, above all the fix: an option, setting, command, path or allowed value.
        error: the class of the error; one below it is right as well.

    Yields:
        pytest's information, which contains the error after the block.
    """
    __tracebackhide__ = True
    expected = (token, *tokens)
    assert all(expected), "an empty token is in every message"
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    missing = [part for part in expected if part not in message]
    if missing:
        pytest.fail(f"The {type(caught.value).__name__} does not mention {', '.join(map(repr, missing))}:\n{message}")


def refusal(dataset: Dataset) -> str:
    """The error of a run on a data set; anything but the one error fails the test, so do warnings."""
    with pytest.raises(FedshiftError) as caught:
        load_data.__wrapped__(dataset, None, 0, "")
    message = str(caught.value)
    message.encode()
    assert not any(ord(character) < 32 and character != "\n" for character in message)
    return message
