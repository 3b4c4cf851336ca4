"""Every number has an upper limit with a reason, and what is no such number is refused in one readable message."""

from __future__ import annotations

from decimal import Decimal
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest
from annotated_types import Interval, Le, Lt
from hypothesis import given
from hypothesis import strategies as st

from fedshift.cli.catalogues import KINDS
from fedshift.errors import FedshiftError
from fedshift.settings.experiment import PLAIN, Experiment
from fedshift.settings.spec import AtMost, Spec, leaf_types, limits, setting_type
from refusal import refuses

CLASSES: dict[str, type[Spec]] = {
    "experiment": Experiment,
    **PLAIN,
    **{f"{kind}.{name}": catalogue.get(name).cls for kind, catalogue in KINDS.items() for name in catalogue},
}
NUMBERS = [
    pytest.param(cls, name, id=f"{where}.{name}")
    for where, cls in CLASSES.items()
    for name in cls.settings()
    if name not in cls.nested() and leaf_types(setting_type(cls, name)) & {int, float}
]
NUMBER = st.sampled_from([case.values for case in NUMBERS])


def upper(cls: type[Spec], name: str) -> float:
    """The smallest upper limit that the type of a setting states."""
    marks = list(limits(setting_type(cls, name)))
    stated = [mark.limit for mark in marks if isinstance(mark, AtMost)]
    stated += [mark.le for mark in marks if isinstance(mark, Le | Interval) and mark.le is not None]
    stated += [mark.lt for mark in marks if isinstance(mark, Lt | Interval) and mark.lt is not None]
    return min(stated)


def in_place(cls: type[Spec], name: str, value: Any) -> Any:
    """The value where the setting takes it: alone, or in a list as long as the default's."""
    hint = setting_type(cls, name)
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not any(get_origin(one) is tuple for one in alternatives):
        return value
    default = cls.settings()[name].default
    return [value] * (len(default) if isinstance(default, tuple) and default else 1)


def refused(cls: type[Spec], name: str, value: Any) -> str:
    with pytest.raises(FedshiftError) as caught:
        cls.checked(name, in_place(cls, name, value))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert message.startswith(f"{cls.section}.{name} = " if cls.section else f"{name} = ")
    return message


@pytest.mark.parametrize(("cls", "name"), NUMBERS)
def test_every_number_has_an_upper_limit_and_what_is_above_is_refused_with_the_reason(cls: type[Spec], name: str):
    limit = upper(cls, name)
    above = limit + 1 if limit < 2**53 else (limit * 1.01 if isinstance(limit, float) else limit + 1)
    message = refused(cls, name, above)
    assert f"{limit:g}" in message or str(limit) in message
    for mark in limits(setting_type(cls, name)):
        if isinstance(mark, AtMost) and mark.limit == limit:
            assert mark.reason in message


@pytest.mark.parametrize(("cls", "name"), NUMBERS)
def test_what_is_no_number_is_refused(cls: type[Spec], name: str):
    for value in (10**400, -(10**400), float("nan"), float("inf"), float("-inf"), True, "1", b"1", {}, object):
        refused(cls, name, value)


LONG = [10**5000, -(10**5000), [10**5000], "9" * 100_000, [["deep"]] * 10_000]


@pytest.mark.parametrize("value", LONG, ids=["large", "small", "list", "text", "lists"])
def test_a_value_of_any_length_is_named_briefly(value: Any):
    with pytest.raises(FedshiftError) as caught:
        PLAIN["train"](rounds=value)
    assert str(caught.value).startswith("train.rounds = ")
    assert len(str(caught.value)) < 300


def test_a_decimal_and_numpy_are_numbers():
    train = PLAIN["train"](lr=Decimal("0.5"), rounds=np.int64(3), momentum=np.float32(0.5))
    assert (train.lr, train.rounds, train.momentum) == (0.5, 3, 0.5)
    assert [type(value) for value in (train.lr, train.rounds, train.momentum)] == [float, int, float]
    assert CLASSES["models.mlp"](hidden=np.array([3, 4])).hidden == (3, 4)
    with refuses("train.rounds = Decimal('1')", "integer"):
        PLAIN["train"](rounds=Decimal(1))


@given(NUMBER, st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.none(), st.decimals()))
def test_a_value_is_kept_as_it_is_or_refused(where: tuple[type[Spec], str], value: Any):
    cls, name = where
    try:
        (checked,) = {cls.checked(name, in_place(cls, name, value))}
    except FedshiftError as error:
        assert "\n" not in str(error)
        return
    for one in checked if isinstance(checked, tuple) else [checked]:
        assert one == value or (isinstance(value, Decimal) and one == float(value))
        assert isinstance(one, bool) == isinstance(value, bool)
        if isinstance(one, float | int) and not isinstance(one, bool):
            assert one <= upper(cls, name)
