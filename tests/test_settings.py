"""Values of settings: every number has a limit, nothing is converted but NumPy's values, and errors are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import fedshift
from conftest import TINY
from fedshift.cli.catalogues import catalogues, described
from fedshift.errors import FedshiftError
from fedshift.experiments import PLAIN, Experiment
from fedshift.spec import Spec

CLASSES: dict[str, type[Spec]] = {
    "experiment": Experiment,
    **PLAIN,
    **{f"{kind}.{name}": catalogue.get(name) for kind, catalogue in catalogues().items() for name in catalogue},
}
SCALARS = [(where, cls, name) for where, cls in CLASSES.items() for name in cls.settings() if name not in cls.nested()]


def numbers(schema: Any) -> list[dict[str, Any]]:
    """What a schema says of numbers, in lists and alternatives as well."""
    if isinstance(schema, list):
        return [found for item in schema for found in numbers(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") in ("integer", "number") and "enum" not in schema else []
    return own + [found for key in ("anyOf", "items", "prefixItems") for found in numbers(schema.get(key))]


def test_every_number_has_limits_and_wrong_values_are_one_line():
    for _, cls, name in SCALARS:
        found = numbers(described(cls, name))
        for limits in found:
            assert {"maximum", "exclusiveMaximum"} & limits.keys()
        for value in (10**400, float("nan"), float("-inf"), True, {}, object) if found else ():
            with pytest.raises(FedshiftError) as caught:
                cls.checked(name, value)
            message = str(caught.value)
            assert "\n" not in message
            assert len(message) < 500
            assert message.startswith(f"{cls.section}.{name} = " if cls.section else f"{name} = ")


def test_numpys_values_and_paths_are_pythons(tmp_path: Path):
    train = PLAIN["train"](rounds=np.int64(3), momentum=np.float32(0.5), lr=np.float64(0.25))
    assert train == PLAIN["train"](rounds=3, momentum=0.5, lr=0.25)
    assert [type(value) for value in (train.rounds, train.momentum, train.lr)] == [int, float, float]
    assert CLASSES["models.mlp"](hidden=np.array([3, 4])).hidden == (3, 4)
    assert CLASSES["datasets.folder"](path=tmp_path).path == str(tmp_path)
    given = {"train.lr": np.array([0.5, 0.25]), "data": {"name": "folder", "path": tmp_path}, "protocol.hold_out": "a"}
    made = fedshift.grid(TINY, seed=np.arange(3), out=tmp_path, settings=given)
    assert [(one.seed, one.train.lr) for one in made] == [(s, lr) for lr in (0.5, 0.25) for s in range(3)]
    for one in made:
        assert fedshift.experiment(one.table()).fingerprint == one.fingerprint
        tomli_w.dumps(one.table())


@given(st.sampled_from(SCALARS), st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.none()))
def test_a_value_is_kept_as_it_is_or_refused(where: tuple[str, type[Spec], str], value: Any):
    try:
        kept = where[1].checked(where[2], value)
    except FedshiftError as error:
        assert "\n" not in str(error)
        return
    for one in kept if isinstance(kept, tuple) else [kept]:
        assert one in (value, str(value))
        assert isinstance(one, bool) == isinstance(value, bool)
