"""Paths and NumPy's values are accepted wherever settings are given, and are Python's before anything sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshift
from conftest import TINY
from fedshift.core.servers import SERVERS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.settings.catalogue import Entry
from fedshift.settings.experiment import NAMED, PLAIN, Experiment
from fedshift.settings.grid import override
from fedshift.settings.spec import Spec, plain
from refusal import refuses

INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.intp)
FLOATS = (np.float16, np.float32, np.float64, np.longdouble)
CATALOGUES = {**NAMED, "method.index": INDICES, "method.index.encoder": ENCODERS, "method.server": SERVERS}
SPECS = [entry for kind in CATALOGUES.values() for name in kind if (entry := kind.get(name))]
SPECS += [Entry(cls) for cls in PLAIN.values()]


def exactly(value: float, kind: Any) -> bool:
    """Whether a NumPy type holds a number without rounding it."""
    with np.errstate(over="ignore"):
        return float(kind(value)) == value


@st.composite
def disguised(draw: st.DrawFn, value: Any) -> Any:
    """A value as somebody with NumPy and pathlib may give it."""
    ways: list[Any] = [value]
    match value:
        case bool():
            ways += [np.bool_(value), np.array(value), torch.tensor(value)]
        case int():
            fits = [kind(value) for kind in INTEGERS if np.iinfo(kind).min <= value <= np.iinfo(kind).max]
            ways += [*fits, *map(np.array, fits)]
        case float():
            ways += [kind(value) for kind in FLOATS if exactly(value, kind)]
        case str():
            ways += [np.str_(value)]
            ways += [PurePosixPath(value), Path(value)] if str(PurePosixPath(value)) == value else []
        case Mapping():
            ways = [{draw(st.sampled_from([key, np.str_(key)])): draw(disguised(item)) for key, item in value.items()}]
        case list():
            items = [draw(disguised(item)) for item in value]
            flat = len({type(item) for item in value}) == 1 and isinstance(value[0], bool | int | float | str)
            ways = [items, tuple(items), *([np.array(value)] if flat else [])]
    return draw(st.sampled_from(ways))


def python_only(value: Any) -> bool:
    """Whether a value is of the very types that TOML has, all the way down."""
    if type(value) is dict:
        return all(type(key) is str and python_only(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(python_only, value))
    return type(value) in (bool, int, float, str)


text = st.text(st.characters(exclude_characters="\0"))  # which NumPy's texts lose at their end
values = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@given(st.data(), values)
def test_any_disguise_comes_off(data: st.DataObject, value: Any):
    found = plain(data.draw(disguised(value)))
    assert python_only(found)
    assert found == value


@pytest.mark.parametrize("entry", SPECS, ids=lambda entry: entry.name or entry.cls.__name__)
@given(data=st.data())
@settings(max_examples=4)  # of each entry
def test_every_setting_of_every_spec_takes_them(entry: Entry[Any], data: st.DataObject):
    """Instances of NumPy's values are equal to those of Python's, and so are their tables."""
    if any(about.default is not None and "MISSING" in repr(about.default) for about in entry.settings().values()):
        return  # it cannot be made without being told a name
    given_plainly = entry().table()
    known = {name: value for name, value in given_plainly.items() if name in entry.settings()}
    made = entry(**data.draw(disguised(known)))
    assert made == entry(**known)
    assert python_only(made.table())
    assert made.table() == given_plainly
    assert all(not hasattr(getattr(made, name), "tolist") for name in made.settings())


fields = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**40),
        "train.rounds": st.integers(1, 10**6),
        "train.lr": st.floats(1e-6, 10) | st.floats(2**-20, 8, width=32),
        "train.weight_decay": st.sampled_from([0, 0.5, 1]),
        "train.min_answers": st.sampled_from(["all", 0.5, 1.0]),
        "evaluate.telemetry": st.booleans(),
        "model.hidden": st.lists(st.integers(1, 9), min_size=1, max_size=3),
        "method": st.fixed_dictionaries({"name": st.just("fedsr"), "l2r": st.floats(0, 1), "cmi": st.just(0.25)}),
        "name": st.sampled_from(["mine", "42"]),
        "run.out": st.sampled_from(["runs", "some/where"]),
        "protocol.hold_out": st.sampled_from(["dark", "light"]),
    },
)


@given(data=st.data(), changes=fields)
def test_fingerprints_and_files_are_those_of_pythons_values(data: st.DataObject, changes: dict[str, Any]):
    """By whichever way they come: a table, dotted settings, options, or an Experiment that is changed."""
    expected = fedshift.experiment(TINY, settings=changes)
    given_changes = data.draw(disguised(changes))
    options = {name: given_changes[name] for name in ("seed", "name", "method") if name in given_changes}
    rest = {name: value for name, value in given_changes.items() if name not in options}
    for way in (
        lambda: fedshift.experiment(TINY, settings=given_changes),
        lambda: fedshift.experiment(data.draw(disguised(override(TINY, changes)))),
        lambda: fedshift.experiment(TINY, settings=rest, **options),
        lambda: fedshift.experiment(fedshift.experiment(TINY), settings=given_changes),
        lambda: Experiment.from_table(data.draw(disguised(expected.table()))),
    ):
        made = way()
        assert python_only(made.table())
        assert tomli_w.dumps(made.table()) == tomli_w.dumps(expected.table())
        assert json.dumps(made.table()) == json.dumps(expected.table())
        assert made.fingerprint == expected.fingerprint


def test_arrays_are_lists_that_make_a_grid():
    seeds = fedshift.grid(TINY, seed=np.arange(3), settings={"train.lr": np.array([0.5, 0.25], dtype=np.float32)})
    assert [(one.seed, one.train.lr) for one in seeds] == [(s, lr) for lr in (0.5, 0.25) for s in range(3)]
    named = fedshift.grid(TINY, method=np.array(["fedavg", "fedsr"]), hold_out=np.array(["dark", "light"]))
    assert len(named) == 4
    listed = fedshift.grid([np.str_("rotated-mnist")], method=("fedavg", np.str_("fedsr")))
    assert [one.method_name for one in listed] == ["fedavg", "fedsr"]


def test_paths_are_accepted_everywhere(tmp_path: Path):
    plugin = Path(__file__).parents[1] / "examples" / "my_prox.py"
    data = tmp_path / "photos"
    made = fedshift.experiment(
        TINY,
        plugins=[plugin],
        out=tmp_path,
        settings={"data": {"name": "folder", "path": data}, "protocol.hold_out": "a"},
    )
    assert (made.plugins, made.run.out, made.data.path) == ((str(plugin),), str(tmp_path), str(data))  # type: ignore[attr-defined]  # a folder has a path
    assert fedshift.DATASETS.get("folder")(path=data).path == str(data)  # type: ignore[attr-defined]  # a folder has a path


@pytest.mark.parametrize(
    "value",
    [np.array([[1, 2], [3, 4]]), np.datetime64("2020-01-01"), np.complex64(1j), np.clongdouble(1j), np.float32, b"0.1"],
    ids=str,
)
def test_what_is_no_setting_is_one_error(value: Any):
    with refuses("train.lr = "):
        fedshift.experiment(TINY, settings={"train.lr": value})


def test_a_spec_of_ones_own_takes_them_too():
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Mine(Spec):
        """Settings of one's own."""

        rate: float = fedshift.setting(0.1, help="a rate")

    assert type(Mine(rate=np.float64(0.25)).rate) is float
