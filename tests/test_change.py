"""Naming another entry keeps what it takes as well, and says what is left out: nothing given is lost in silence."""

from __future__ import annotations

import warnings
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make
from fedshift.cli.app import app
from fedshift.cli.catalogues import KINDS
from fedshift.datasets.own_images import ImageFolder
from fedshift.errors import FedshiftWarning
from fedshift.methods.fedsr import FedSR
from fedshift.models.mlp import MLP
from fedshift.settings.catalogue import From
from fedshift.settings.change import Changed, changed
from fedshift.settings.grid import expand, read
from fedshift.settings.spec import leaf_types, setting_type
from refusal import refuses
from test_limits import in_place, upper

PLACES = {  # where an entry of each catalogue stands in an experiment
    "methods": "method",
    "datasets": "data",
    "partitions": "partition",
    "models": "model",
    "protocols": "protocol",
    "indices": "method.index",
    "encoders": "method.index.encoder",
}
PAIRS = [(kind, old, new) for kind in PLACES for old in KINDS[kind] for new in KINDS[kind] if old != new]


def document_with(kind: str, table: dict[str, Any]) -> dict[str, Any]:
    """An experiment with a table of one kind."""
    if kind == "indices":
        return {"method": {"name": "client2vec", "index": table}}
    if kind == "encoders":
        return {"method": {"name": "client2vec", "index": {"name": "dsa-ign", "encoder": table}}}
    return {PLACES[kind]: table}


def table_at(document: dict[str, Any], place: str) -> dict[str, Any]:
    for name in place.split("."):
        document = document[name]
    return document


def value_of(cls: Any, name: str) -> st.SearchStrategy[Any]:
    """Values of a setting as a document holds them, most of them right."""
    hint = setting_type(cls, name)
    mark = cls.nested().get(name)
    if isinstance(mark, From):
        return st.sampled_from([*mark.catalogue])
    kinds = leaf_types(hint)
    literal = [kind for kind in kinds if get_origin(kind) is Literal]
    if literal:
        values = st.sampled_from([choice for kind in literal for choice in get_args(kind)])
    elif bool in kinds:
        values = st.booleans()
    elif int in kinds:
        values = st.integers(1, int(min(upper(cls, name), 5000)) + 1)
    elif float in kinds:
        values = st.floats(0.01, min(upper(cls, name), 5.0) * 1.5)
    elif str in kinds:
        values = st.sampled_from(["hub", "shipped", "none", "/photos", "a"])
    else:
        return st.just({"num_partitions": 3})
    return values.map(lambda value: in_place(cls, name, value))


@st.composite
def a_table(draw: st.DrawFn, kind: str, name: str) -> dict[str, Any]:
    entry = KINDS[kind].get(name)
    chosen = draw(st.sets(st.sampled_from([*entry.settings()]))) if entry.settings() else set()
    return {"name": name, **{field: draw(value_of(entry.cls, field)) for field in sorted(chosen)}}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(PAIRS))
def test_what_is_kept_and_what_is_left_out_is_what_was_given(data: st.DataObject, pair: tuple[str, str, str]):
    kind, old, new = pair
    table = data.draw(a_table(kind, old))
    place = PLACES[kind]
    change = changed(document_with(kind, table), {f"{place}.name": new})
    result = table_at(change.document, place)
    assert result["name"] == new
    kept = {field: value for field, value in result.items() if field != "name"}
    said = {note.partition(" = ")[0].removeprefix(f"{place}.") for note in change.left_out if " is left out: " in note}
    assert said | kept.keys() == table.keys() - {"name"}
    assert not said & kept.keys()
    assert all(value == table[field] for field, value in kept.items())

    entry = KINDS[kind].get(new)
    assert kept.keys() <= entry.settings().keys()
    for field, value in kept.items():
        about = entry.settings()[field].metadata
        assert not about["path"] or about["portable"] or value in about["words"]
        if field not in entry.cls.nested():
            entry.cls.checked(field, value)
    required = {field for field, about in entry.settings().items() if about.default is MISSING}
    if required <= kept.keys():
        entry(**kept)


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("how", ["name", "whole"])
def test_every_ordered_pair_of_entries_can_follow_each_other(kind: str, how: str):
    place = PLACES[kind]
    key = f"{place}.name" if how == "name" or "." not in place else place
    for old in KINDS[kind]:
        for new in KINDS[kind]:
            change = changed(document_with(kind, {"name": old}), {key: new})
            assert table_at(change.document, place)["name"] == new
            assert change.left_out == ()


def left_out(document: dict[str, Any], changes: dict[str, Any]) -> str:
    return "\n".join(changed(document, changes).left_out)


def test_other_data_keep_frozen_features_and_size():
    """The case that made FedAvg fall: images in the place of features, since the whole table was dropped."""
    document = read("pacs-features-in-domain")
    change = changed(document, {"data.name": "office-home" if "office-home" in KINDS["datasets"] else "officehome"})
    assert change.document["data"]["frozen"] == "efficientnet-lite0"
    assert change.document["data"]["size"] == 128
    assert not [note for note in change.left_out if note.startswith("data.")]


def test_paths_of_another_data_set_are_never_kept():
    document = {"data": {"name": "pacs", "path": "/pacs", "size": 64}}
    change = changed(document, {"data.name": "folder"})
    assert change.document["data"] == {"name": "folder", "size": 64}
    assert change.left_out == ("data.path = \"/pacs\" is left out: it names files of the data set 'pacs'.",)
    own = changed(document, {"data.name": "folder", "data.path": "/mine"})
    assert own == Changed({"data": {"name": "folder", "path": "/mine", "size": 64}}, ())


def test_what_the_new_one_refuses_is_said_with_the_reason():
    document = {"data": {"name": "folder", "path": "x", "frozen": "none", "augment": True}}
    notes = left_out(document, {"data.name": "parquet", "data.path": "y", "data.frozen": "efficientnet-lite0"})
    assert "data.augment = true is left out: the data set 'parquet' refuses it" in notes
    assert "data.augment works on images" in notes


def test_a_table_without_a_name_is_of_the_default():
    document = {"data": {"images_per_class": 7}}
    assert changed(document, {"data.name": "rotated-mnist"}).document["data"]["images_per_class"] == 7
    assert "data.images_per_class = 7" in left_out(document, {"data.name": "pacs"})


def test_methods_keep_the_settings_that_they_share():
    document = {"method": {"name": ["fedprox", "ditto"], "mu": 0.7, "weighting": "samples", "lam": [0.1, 2.0]}}
    change = changed(document, {"method.name": ["fedavg", "moon"]})
    assert change.document["method"] == {"name": ["fedavg", "moon"], "mu": 0.7, "weighting": "samples"}
    assert change.left_out == ("method.lam = [0.1, 2.0] is left out: 'fedavg' and 'moon' have no such setting.",)
    bn = {"method": {"name": "fedavg", "bn": "reestimate"}}
    change = changed(bn, {"method.name": ["fedavg", "fedbn"]})
    assert change.document["method"] == {"name": ["fedavg", "fedbn"], "fedavg": {"bn": "reestimate"}}
    assert "'fedbn' refuses it" in change.left_out[0]


def test_a_wrong_value_of_a_method_that_stays_is_an_error():
    document = {**TINY, "method": {"name": ["fedavg", "fedprox"], "mu": -1.0}}
    change = changed(document, {"method.name": "fedprox"})
    assert change.left_out == ()
    with refuses("method.mu = -1.0", "equal to 0"):
        expand(change.document)


def test_a_preset_that_no_method_has_is_left_out():
    document = {"method": {"name": ["fedavg", "fedsr"], "preset": "pacs"}}
    assert changed(document, {"method.name": "fedsr"}).left_out == ()
    change = changed(document, {"method.name": "fedavg"})
    assert change.document["method"] == {"name": "fedavg"}
    assert change.left_out == ('method.preset = "pacs" is left out: nothing is published for it by fedavg.',)


def test_published_settings_go_with_the_data_set_and_that_is_said():
    document = {"data": {"name": "pacs"}, "method": {"name": "fedsr"}}
    (note,) = changed(document, {"data.name": "digits"}).left_out
    assert "published for pacs" in note
    assert 'method.preset = "pacs" keeps them' in note
    assert not left_out({**document, "method": {"name": "fedsr", "preset": "pacs"}}, {"data.name": "digits"})


def test_what_is_given_now_wins_over_a_methods_own_table():
    document = {"method": {"name": ["fedsr", "fedl2r"], "fedsr": {"l2r": 0.4}}}
    assert [e.method.l2r for e in expand({**TINY, **changed(document, {"method.l2r": 0.1}).document})] == [0.1, 0.1]
    text = read("shakespeare")
    change = changed(text, {"method.index.encoder": "clip"})
    index = change.document["method"]["client2vec"]["index"]
    assert index["encoder"] == {"name": "clip"}
    assert index["epochs"] == 100
    assert change.left_out == (
        "method.client2vec.index.encoder.size = 256 is left out: the encoder 'clip' has no such setting.",
    )


def test_a_setting_of_a_method_that_is_not_run_has_no_effect():
    assert left_out({"method": {"name": "fedavg"}}, {"method.fedsr.l2r": 0.1}) == (
        "method.fedsr.l2r = 0.1 has no effect: the method 'fedsr' is not run."
    )
    assert not left_out({"method": {"name": "fedavg", "fedsr": {"l2r": 0.1}}}, {"method.name": ["fedavg", "fedbn"]})


def test_a_list_of_values_is_kept_if_every_one_is_right():
    document = {"model": {"name": "mlp", "dim": [4, 8], "batch_norm": [True, False], "hidden": [[8], [4, 4]]}}
    change = changed(document, {"model.name": "cnn"})
    assert change.document["model"] == {"name": "cnn", "dim": [4, 8], "batch_norm": [True, False]}
    assert change.left_out == ("model.hidden = [[8], [4, 4]] is left out: the model 'cnn' has no such setting.",)


def test_python_warns_once_for_each_setting_left_out(make: Make, tmp_path: Path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fedshift.grid(TINY, method=["fedavg", FedSR(), FedSR(l2r=0.3)], model="cnn", seed=[0, 1])
    assert [str(one.message) for one in caught] == [
        "model.hidden = [8] is left out: the model 'cnn' has no such setting."
    ]
    assert {one.category for one in caught} == {FedshiftWarning}
    assert caught[0].filename == __file__
    with pytest.warns(FedshiftWarning, match=r"model\.dim = 4 is left out"):
        fedshift.grid(TINY, model=MLP(hidden=(8,)))
    with pytest.warns(FedshiftWarning, match=r"data\.per_class = 5 is left out"):
        (tmp_path / "light" / "x").mkdir(parents=True)
        fedshift.grid({**TINY, "data": {"name": "tiny", "per_class": 5}}, data=ImageFolder(path=str(tmp_path)))


def test_an_experiment_that_is_changed_keeps_what_it_states_and_not_its_defaults(make: Make):
    one = make({"model": {"name": "resnet18"}, "data.name": "tiny"})
    assert one.model.dim == 512
    assert fedshift.experiment(one, model="resnet50").model.dim == 2048
    narrow = replace(one, model=replace(one.model, dim=7))
    assert fedshift.experiment(narrow, model="resnet50").model.dim == 7


def test_an_option_and_a_setting_cannot_say_the_same_twice():
    with refuses("train.rounds", "twice"):
        fedshift.grid(TINY, rounds=3, settings={"train.rounds": 4})


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_command_line_says_it_before_anything_runs(command: str, tmp_path: Path):
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps({**TINY, "run": {**TINY["run"], "out": str(tmp_path / "runs")}}))
    words = [command, str(file), "--model", "cnn", "--set", "model.dim=5", "--dry-run"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stderr == "Note: model.hidden = [8] is left out: the model 'cnn' has no such setting.\n"
    assert "left out" not in done.stdout
