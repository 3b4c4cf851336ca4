"""Specs and catalogues: names, variants, what is written to TOML and read back, and the messages of errors."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import tomli_w

from conftest import Make
from fedshift.catalogue import Catalogue, built_in
from fedshift.clients import PARTITIONS, PROTOCOLS
from fedshift.core.servers import SERVERS
from fedshift.datasets import DATASETS
from fedshift.errors import UnknownNameError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.methods.client2vec import ENCODERS, INDICES
from fedshift.methods.client2vec.client2vec import Client2Vec
from fedshift.methods.fedcir import FedCiR
from fedshift.methods.fedsr import FedSR
from fedshift.models import MODELS
from fedshift.reporting.results import flattened, label
from fedshift.study.grid import expand, override
from reference import VARIANTS
from refusal import refuses

CATALOGUES: list[Catalogue[Any]] = [METHODS, DATASETS, MODELS, PARTITIONS, PROTOCOLS, INDICES, ENCODERS, SERVERS]
ENTRIES = [(catalogue, name) for catalogue in CATALOGUES for name in catalogue]
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


def through_toml(table: dict[str, Any]) -> dict[str, Any]:
    return tomllib.loads(tomli_w.dumps(table))


# Every entry ------------------------------------------------------------------------------------------


def test_every_entry_is_written_by_its_name_and_read_back():
    for catalogue, name in ENTRIES:
        cls = catalogue.get(name)
        spec = cls(**{key: REQUIRED[key] for key, about in cls.settings().items() if about.required})
        table = catalogue.table_of(spec)
        assert table["name"] == catalogue.name_of(spec) == name
        again = catalogue.build(through_toml(table))
        assert again == spec
        assert repr(again) == repr(spec)


def test_every_entry_says_what_it_is():
    for catalogue, name in ENTRIES:
        cls = catalogue.get(name)
        assert issubclass(cls, catalogue.base())
        assert cls.help().splitlines()[0].endswith(".")
        assert all(about.help for about in cls.settings().values())
        if catalogue is METHODS and built_in(cls):
            assert cls.cited() or name in {"centralised", "single", "fedavg", "head-retraining"}


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
        (lambda: METHODS.get("fedregg"), ("method 'fedregg'", "'fedreg'")),
        (lambda: METHODS.get("fedprox")(mue=1.0), ("[method]", "'mue'", "'mu'")),
        (lambda: Client2Vec(index={"encodr": "clip"}), ("[method.index]", "'encodr'", "'encoder'")),
        (lambda: Client2Vec(index={"encoder": {"name": "offline", "size": 0}}), ("method.index.encoder.size = 0",)),
        (lambda: MODELS.register("mine")(FedSR), ("FedSR", "Model")),
        (lambda: METHODS.register("fedavg")(FedSR), ("'fedavg'", "taken", "fedshift.methods.fedavg:FedAvg")),
    ],
)
def test_an_error_names_the_table_the_setting_and_the_value(make_it: Any, message: tuple[str, ...]):
    with refuses(*message):
        make_it()


# Variants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_its_base_with_settings_that_cannot_be_set(make: Make, name: str):
    cls = METHODS.get(name)
    (base, *_) = cls.__bases__
    fixed = base.settings().keys() - cls.settings().keys()
    assert [getattr(cls(), key) for key in fixed if getattr(cls(), key) != getattr(base(), key)] == [0.0]
    for key in fixed:
        with refuses("[method]", f"'{key}'", error=UnknownNameError):
            METHODS.build({"name": name, key: 0})
        with refuses(f"[method.{name}]", f"'{key}'"):
            make({"method": {"name": name, name: {key: 0.1}}})
    table = through_toml(make({"method.name": name}).table())
    assert table["method"]["name"] == name
    assert not fixed & table["method"].keys()
    assert Experiment.from_table(table).run_name.startswith(f"{name}-light-seed0-")


def test_a_variant_and_its_base_with_the_same_values_are_two_rows(tiny_document: dict[str, Any]):
    names = {"method": {"name": ["fedcir", "fedreg"], "fedcir": {"l_align": 0.0}}}
    plain, variant = expand(override(tiny_document, names))
    assert (plain.method_name, variant.method_name) == ("fedcir", "fedreg")
    assert plain.fingerprint != variant.fingerprint
    flat = [flattened(experiment.table()) for experiment in (plain, variant)]
    assert [label(row, flat) for row in flat] == ["fedcir", "fedreg"]


def test_presets_of_a_variant_are_its_bases_less_what_is_fixed_or_its_own():
    assert METHODS.get("fedreg").published() == {data: {"l_reg": 0.5} for data in FedCiR.presets}
    assert METHODS.get("fedl2r").published()["pacs"] == {"l2r": 0.01, "l2r_form": "norm"}
    for cls in map(METHODS.get, METHODS):
        for preset in cls.published().values():
            cls(**preset)


def test_defaults_are_those_that_measurements_chose():
    """Each of these once had a value under which its method trained nothing or collapsed; pages of results show it."""
    chosen = {
        "pfedme": {"share": 0.9},  # of 1 / lam, whatever the optimiser
        "scaffold": {"variate": "gradient"},
        "moon": {"projection": "none"},
        "fedproc": {"projection": "none"},
        "fedpac": {"head_factor": 5.0},
        "fedsr": {"l2r": 0.01, "cmi": 0.001},
        "fedpin-gm": {"alpha": 0.01, "alpha_warmup": 25, "scalar_weight": 1000.0},
        "fedpin": {"alpha": 0.01, "alpha_warmup": 25, "scalar_weight": 1000.0},
    }
    for name, settings in chosen.items():
        made = METHODS.get(name)()
        assert {key: getattr(made, key) for key in settings} == settings, name


def test_presets_are_the_numbers_that_were_published():
    """FedCiR, Appendix E and Table 1 (weights of FedGen's KL and generator); FRAug's public code; FedPIN, E.3.

    FedCiR's weight of L_align is a dimension's: 512 times the published one of ResNet-18's z.
    """
    presets = {name: METHODS.get(name).presets for name in METHODS}
    small, large = dict.fromkeys(("pacs", "office-caltech-10", "camelyon17"), 2.56e-4), {"domainnet": 5.12e-4}
    assert {data: each["l_align"] for data, each in presets["fedcir"].items()} == pytest.approx(
        {**small, **large, "iwildcam": 5.12e-4}
    )
    fedgen = {data: (each["beta"], each["alpha"], each["generator_steps"]) for data, each in presets["fedgen"].items()}
    alike = dict.fromkeys(("domainnet", "pacs"), (1.0, 0.5, 5)) | dict.fromkeys(("camelyon17", "iwildcam"), (1, 1, 5))
    assert fedgen == alike | {"office-caltech-10": (0.5, 1.0, 5)}
    for name in ("fraug", "fraug-code"):
        made = {data: METHODS.get(name)(**each) for data, each in presets[name].items()}
        assert {data: (m.lr_generator, m.lr_rtnet, m.gamma) for data, m in made.items()} == {
            "pacs": (0.05, 0.05, 0.01),
            "office-home": (0.05, 0.025, 0.01),
            "digits": (0.05, 0.05, 0.002),
        }
        assert (made["pacs"].alpha, made["pacs"].beta, made["digits"].alpha) == (10, 1, 1)
    for name in ("fedpin", "fedpin-gm", "fedpin-gm-ft", "fedpin-gm-l2"):  # alpha only where it works in its own unit
        alpha = {data: each["alpha"] for data, each in presets[name].items() if "alpha" in each}
        assert alpha == dict.fromkeys(("colored-mnist", "colored-fashion-mnist"), 1e5)
    assert presets["fedpin"]["pacs"] == {"lam": 3.0, "gamma": 1e-5}
    epochs = {"classification_steps": 5, "adversarial_steps": 10}
    assert presets["fedadg"]["vlcs"] == epochs | {"adversarial_lr": 7e-4, "smoothing": 0.2, "code": 0.6}
