"""Specs and catalogues: names, variants, what is written to TOML and read back, and the messages of errors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from conftest import Make
from fedshift.catalogue import Catalogue, Entry, Variant
from fedshift.clients import PARTITIONS, PROTOCOLS
from fedshift.core.servers import SERVERS
from fedshift.core.training import Train
from fedshift.datasets import DATASETS
from fedshift.errors import UnknownNameError
from fedshift.experiments import NAMED, PLAIN, Experiment
from fedshift.methods import METHODS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.methods.client2vec.client2vec import Client2Vec
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedcir import FedCiR
from fedshift.methods.fedsr import FedSR
from fedshift.models import MODELS
from fedshift.reporting.results import flattened, label
from fedshift.spec import setting
from fedshift.study.grid import expand, override
from refusal import refuses

CATALOGUES: list[Catalogue[Any]] = [METHODS, DATASETS, MODELS, PARTITIONS, PROTOCOLS, INDICES, ENCODERS, SERVERS]
ENTRIES = [pytest.param(catalogue, name, id=name) for catalogue in CATALOGUES for name in catalogue]
VARIANTS = [name for name in METHODS if METHODS.get(name).variant]
REQUIRED = {
    "path": "there",
    "window": 4,
    "hold_out": "dark",
    "repository": "a/b",
    "groups": [["a"], ["b"]],
    "partitioner": "ShardPartitioner",
    "arguments": {"num_partitions": 3},
    "clients": 2,
    "masks": "masks",
    "backgrounds": "backgrounds",
}
numbers = st.floats(0, 1e6, allow_nan=False)


def made(entry: Entry[Any]) -> Any:
    return entry(**{name: REQUIRED[name] for name, about in entry.settings().items() if about.required})


def through_toml(table: dict[str, Any]) -> dict[str, Any]:
    return tomllib.loads(tomli_w.dumps(table))


# Every entry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("catalogue", "name"), ENTRIES)
def test_every_entry_is_written_by_its_name_and_read_back(catalogue: Catalogue[Any], name: str):
    spec = made(catalogue.get(name))
    table = catalogue.table_of(spec)
    assert table["name"] == catalogue.name_of(spec) == name
    again = catalogue.build(through_toml(table))
    assert again == spec
    assert repr(again) == repr(spec)


@pytest.mark.parametrize(("catalogue", "name"), ENTRIES)
def test_every_entry_says_what_it_is(catalogue: Catalogue[Any], name: str):
    entry = catalogue.get(name)
    assert issubclass(entry.cls, catalogue.base())
    assert entry.help.splitlines()[0].endswith(".")
    assert all(about.help for about in entry.settings().values())
    if catalogue is METHODS and entry.built_in:
        assert entry.paper or name in {"centralised", "single", "fedavg", "head-retraining"}


def test_the_paper_of_a_users_method_is_its_own_and_none_that_it_inherits():
    class Theirs(FedSR):
        pass

    class Published(FedSR):
        paper = "A title, 2026"

    assert Entry(FedSR).paper == FedSR.paper != ""
    assert Entry(Theirs).paper == ""
    assert Entry(Published).paper == "A title, 2026"


def test_an_unknown_name_or_setting_is_named_with_the_nearest():
    with refuses("method 'fedregg'", "'fedreg'", error=UnknownNameError):
        METHODS.get("fedregg")
    with refuses("[method]", "'mue'", "'mu'", error=UnknownNameError):
        METHODS.get("fedprox")(mue=1.0)


def test_what_lies_inside_a_spec_is_written_with_its_name():
    method = Client2Vec(base="fedreg", index={"encoder": {"name": "clip", "path": "x"}, "epochs": 3})
    table = METHODS.table_of(method)
    assert table["base"]["name"] == "fedreg"
    assert table["index"]["name"] == "dsa-ign"
    assert table["index"]["encoder"] == {"name": "clip", "path": "x", "unit_norm": True}
    assert METHODS.build(through_toml(table)) == method


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Client2Vec(index=3), ("method.index = 3", "dsa-ign")),
        (lambda: Client2Vec(index={"encodr": "clip"}), ("[method.index]", "'encodr'", "'encoder'")),
        (lambda: Client2Vec(index={"name": "file"}), ("'file'", "--set method.index.path=")),
        (lambda: Client2Vec(index={"encoder": {"name": "offline", "size": 0}}), ("method.index.encoder.size = 0",)),
        (lambda: Client2Vec(base="moonn"), ("'moonn'", "'moon'")),
        (lambda: Train(lr="fast"), ("train.lr = 'fast'", "number")),
    ],
)
def test_an_error_names_the_table_the_setting_and_the_value(make_it: Any, message: tuple[str, ...]):
    with refuses(*message):
        make_it()


def test_an_error_says_how_a_class_gets_a_name():
    class Nameless(FedAvg):
        """No method of the catalogue."""

        mu: float = setting(0.1, help="anything")

    with refuses("Nameless", "@fedshift.methods.METHODS.register('name')"):
        METHODS.name_of(Nameless())


def test_a_name_is_given_once_and_to_the_right_kind_only():
    with refuses("FedSR", "Model"):
        MODELS.register("mine")(FedSR)
    with refuses("'fedavg'", "taken", "fedshift.methods.fedavg:FedAvg"):
        METHODS.register("fedavg")(FedSR)
    with refuses("'fedreg'", "taken", "'fedcir'"):
        METHODS.register("fedreg")(FedCiR)
    assert METHODS.register("fedsr")(FedSR) is FedSR


# Variants ---------------------------------------------------------------------------------------------


def test_the_variants_are_these():
    assert set(VARIANTS) == {"fedl2r", "fedcmi", "fedreg", "fedalign", "fedpin-lambda-0", "fedpin-gamma-0"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_its_class_with_settings_that_cannot_be_set(name: str):
    entry = METHODS.get(name)
    assert entry.variant is not None
    plain = METHODS.get(entry.variant.of)
    method = entry()
    assert type(method) is plain.cls
    assert method.replace(listed_as="") == plain(**entry.fixed())
    assert entry.fixed().keys() | entry.settings().keys() == plain.settings().keys()
    assert not entry.fixed().keys() & entry.settings().keys()
    for setting_name in entry.fixed():
        with refuses("[method]", f"'{setting_name}'", error=UnknownNameError):
            METHODS.build({"name": name, setting_name: 0})
        with refuses("[method]", f"'{setting_name}'", error=UnknownNameError):
            entry(**{setting_name: 0})


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_of_a_variant_keeps_its_name(make: Make, name: str, tmp_path: Path):
    experiment = make({"method.name": name})
    table = through_toml(experiment.table())
    assert experiment.method_name == table["method"]["name"] == name
    assert not METHODS.get(name).fixed().keys() & table["method"].keys()
    assert experiment.run_name.startswith(f"{name}-light-seed0-")
    again = Experiment.from_table(table)
    assert again == experiment
    assert again.run_name == experiment.run_name
    assert experiment.with_absolute_paths().method_name == name
    assert experiment.replace(seed=3).method_name == name


def test_a_variant_and_its_class_with_the_same_values_are_two_rows(tiny_document: dict[str, Any]):
    names = {"method": {"name": ["fedcir", "fedreg"], "fedcir": {"l_align": 0.0}}}
    plain, variant = expand(override(tiny_document, names))
    assert plain.method_name == "fedcir"
    assert variant.method_name == "fedreg"
    assert plain.fingerprint != variant.fingerprint
    flat = [flattened(experiment.table()) for experiment in (plain, variant)]
    assert [label(row, flat) for row in flat] == ["fedcir", "fedreg"]


def test_a_fixed_setting_in_an_experiment_is_an_unknown_field(tiny_document: dict[str, Any]):
    with refuses("[method]", "fedreg", "'l_align'"):
        expand(override(tiny_document, {"method.name": "fedreg", "method.l_align": 0.1}))
    with refuses("[method.fedreg]", "'l_align'"):
        expand(override(tiny_document, {"method": {"name": "fedreg", "fedreg": {"l_align": 0.1}}}))
    both = {"method": {"name": ["fedcir", "fedreg"], "l_align": 0.1}}
    assert [e.method.l_align for e in expand(override(tiny_document, both))] == [0.1, 0.0]


def test_a_variant_whose_fixed_setting_is_changed_goes_by_its_classs_name():
    variant = METHODS.get("fedreg")(l_reg=0.3)
    changed = variant.replace(l_align=0.1)
    assert METHODS.name_of(variant) == METHODS.name_of(variant.replace(l_reg=0.4)) == "fedreg"
    assert METHODS.name_of(changed) == "fedcir"
    assert METHODS.table_of(changed)["l_align"] == 0.1


def test_presets_of_a_variant_are_its_classs_less_what_is_fixed_or_its_own():
    assert METHODS.get("fedreg").presets == {data: {"l_reg": 0.5} for data in FedCiR.presets}
    assert METHODS.get("fedl2r").presets["pacs"] == {"l2r": 0.01, "l2r_form": "norm"}
    assert METHODS.get("fedcmi").presets["pacs"] == {"cmi": 0.01}
    assert METHODS.get("fedsr").presets == FedSR.presets


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS.get(name).presets])
def test_every_preset_can_be_set(name: str):
    entry = METHODS.get(name)
    for preset in entry.presets.values():
        assert METHODS.build({"name": name, **preset}) == entry(**preset)


@given(l_reg=numbers, steps=st.integers(1, 1000), weighting=st.sampled_from(["uniform", "samples"]))
def test_any_settings_of_a_variant_survive_toml(l_reg: float, steps: int, weighting: str):
    method = METHODS.get("fedreg")(l_reg=l_reg, generator_steps=steps, weighting=weighting)
    again = METHODS.build(through_toml(METHODS.table_of(method)))
    assert again == method
    assert METHODS.table_of(again) == METHODS.table_of(method)


@given(st.dictionaries(st.sampled_from(["l2r", "cmi"]), numbers), st.sampled_from(["fedsr", "fedl2r", "fedcmi"]))
def test_a_table_is_read_or_refused_by_the_settings_it_names(values: dict[str, float], name: str):
    entry = METHODS.get(name)
    if values.keys() <= entry.settings().keys():
        method = METHODS.build({"name": name, **values})
        assert {key: getattr(method, key) for key in values} == values
        assert METHODS.name_of(method) == name
    else:
        with pytest.raises(UnknownNameError):
            METHODS.build({"name": name, **values})


def test_a_user_may_list_a_variant_in_a_catalogue_of_a_class():
    catalogue: Catalogue[Any] = Catalogue(
        "MINE",
        "fedshift.methods",
        kind="method",
        base="fedshift.core.contract:Method",
        entries={"fedprox": ".fedprox:FedProx", "mild": Variant(of="fedprox", fixed={"mu": 0.001}, help="Little mu.")},
    )
    assert list(catalogue) == ["fedprox", "mild"]
    assert catalogue.get("mild")().mu == 0.001
    assert catalogue.get("mild").help == "Little mu."
    assert catalogue.get("mild").paper == ""
    assert catalogue.table_of(catalogue.get("mild")()).keys().isdisjoint({"mu", "listed_as"})


# An experiment ----------------------------------------------------------------------------------------


def test_an_experiments_tables_are_its_fields():
    assert NAMED == {
        "data": DATASETS,
        "partition": PARTITIONS,
        "protocol": PROTOCOLS,
        "model": MODELS,
        "method": METHODS,
    }
    assert list(PLAIN) == ["train", "evaluate", "run"]
    assert [catalogue.table for catalogue in NAMED.values()] == list(NAMED)
    assert [cls.section for cls in PLAIN.values()] == list(PLAIN)
    assert INDICES.table == "method.index"
    assert SERVERS.table == "method.server"
    assert ENCODERS.table == "method.index.encoder"


def test_a_plain_table_is_checked_like_any():
    with refuses("[train]", "'learning_rate'"):
        Experiment.nested()["train"].build({"learning_rate": 1}, None, "train")
    with refuses("train = 5", "[train]"):
        Experiment.nested()["train"].build(5, None, "train")
