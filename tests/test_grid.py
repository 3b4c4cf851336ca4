"""From TOML to runs: overrides, presets, axes and fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from conftest import Make
from fedshift.methods.fedsr import FedSR
from fedshift.study.grid import expand, override
from refusal import refuses


def test_lists_make_a_grid_with_seeds_fastest(tiny_document: dict[str, Any]):
    changes = {"seed": [0, 1], "protocol.hold_out": ["dark", "light"], "method.name": ["fedavg", "fedsr"]}
    experiments = expand(override(tiny_document, changes))
    assert [(e.method_name, e.protocol.hold_out, e.seed) for e in experiments] == [
        (method, domain, seed) for method in ("fedavg", "fedsr") for domain in ("dark", "light") for seed in (0, 1)
    ]
    assert len({e.run_name for e in experiments}) == 8


def test_any_field_can_be_an_axis_but_list_fields_are_values(tiny_document: dict[str, Any]):
    experiments = expand(override(tiny_document, {"train.lr": [0.1, 0.01], "model.hidden": [8, 4]}))
    assert [(e.train.lr, e.model.hidden) for e in experiments] == [(0.1, (8, 4)), (0.01, (8, 4))]
    experiments = expand(override(tiny_document, {"model.hidden": [[8], [4, 4]]}))
    assert [e.model.hidden for e in experiments] == [(8,), (4, 4)]


def test_a_common_field_reaches_the_methods_that_have_it(tiny_document: dict[str, Any]):
    document = override(tiny_document, {"method": {"name": ["fedavg", "fedprox"], "mu": 0.7, "weighting": "samples"}})
    plain, prox = expand(document)
    assert plain.method.weighting == prox.method.weighting == "samples"
    assert prox.method.mu == 0.7
    alone = {**document, "method": {"name": "fedavg", "mu": 0.7}}
    with refuses("[method]", "fedavg", "'mu'"):
        expand(alone)


def test_a_methods_own_table_wins_over_common_fields_and_presets(tiny_document: dict[str, Any]):
    names = ["fedsr", "fedl2r"]
    method = {"name": names, "l2r": 0.2, "fedsr": {"l2r": 0.4, "cmi": 0.1}, "fedprox": {"mu": 1.0}}
    sr, l2r = expand(override(tiny_document, {"method": method}))
    assert (sr.method.l2r, sr.method.cmi, l2r.method.l2r) == (0.4, 0.1, 0.2)
    with refuses("[method.fedsr]", "'l3r'", "'l2r'"):
        expand(override(tiny_document, {"method": {"name": "fedsr", "fedsr": {"l3r": 0.4}}}))


def test_published_settings_apply_by_data_set_or_by_name(tiny_document: dict[str, Any]):
    document = override(tiny_document, {"method.name": "fedsr"})
    (default,) = expand(document)
    (pacs,) = expand(override(document, {"method.preset": "pacs"}))
    assert default.method == FedSR()
    assert pacs.method == FedSR(l2r=0.01, cmi=0.001, l2r_form="norm")
    (own,) = expand(override(document, {"method.preset": "pacs", "method.l2r": 0.5}))
    assert (own.method.l2r, own.method.cmi) == (0.5, 0.001)


def test_the_fingerprint_covers_what_decides_the_result(make: Make, tmp_path: Path):
    base = make().fingerprint
    assert make({"name": "other", "run.out": "elsewhere", "run.checkpoint_every": 7}).fingerprint == base
    for change in ({"seed": 1}, {"train.lr": 0.2}, {"method.weighting": "samples"}, {"model.dim": 5}):
        assert make(change).fingerprint != base
    plugin = tmp_path / "mine.py"
    plugin.write_text("# first")
    first = make({"plugins": [str(plugin)]}).fingerprint
    plugin.write_text("# second")
    assert first != make({"plugins": [str(plugin)]}).fingerprint != base


def test_the_fingerprint_covers_what_files_hold_not_where_they_lie(make: Make, tmp_path: Path):
    def fingerprint(root: Path, colour: int) -> str:
        for folder in (root / "a" / "x", root / "b" / "x"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), colour).save(folder / "1.png")
        return make({"data": {"name": "folder", "path": str(root)}, "protocol.hold_out": "a"}).fingerprint

    first = fingerprint(tmp_path / "one", 5)
    assert fingerprint(tmp_path / "two", 5) == first
    assert fingerprint(tmp_path / "one", 200) != first


def test_an_edited_plugin_is_loaded_anew(make: Make, tmp_path: Path):
    plugin = tmp_path / "mine.py"
    text = """
from typing import ClassVar
import fedshift

@fedshift.METHODS.register("edited")
class Edited(fedshift.FedAvg):
    # A method of one line.

    answer: ClassVar[int] = {}
"""
    for answer in (1, 2):
        plugin.write_text(text.format(answer))
        assert make({"plugins": [str(plugin)], "method.name": "edited"}).method.answer == answer
