"""From TOML to runs: overrides, presets, axes and fingerprints; naming another entry resets its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from PIL import Image
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make
from fedshift.cli.app import app
from fedshift.errors import FedshiftWarning
from fedshift.methods.fedsr import FedSR
from fedshift.study.grid import expand, override, read
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
    with refuses("[method, for fedavg]", "fedavg", "'mu'"):
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


def overridden(document: dict[str, Any], changes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    return override(document, changes, lines.append), lines


def test_a_setting_is_replaced_and_tables_are_made():
    document = {"train": {"lr": 0.1}, "method": "fedsr"}
    changes = {"train.lr": 0.2, "evaluate.every": 5, "method.l2r": 0.3, "method.server.lr": 1.0}
    method = {"name": "fedsr", "l2r": 0.3, "server": {"lr": 1.0}}
    changed = {"train": {"lr": 0.2}, "evaluate": {"every": 5}, "method": method}
    assert overridden(document, changes) == (changed, [])
    assert document == {"train": {"lr": 0.1}, "method": "fedsr"}


@pytest.mark.parametrize("key", ["method", "method.name"])
def test_naming_another_entry_resets_its_table(key: str):
    document, lines = overridden({"method": {"name": "fediir", "weighting": "samples", "lam": 0.1}}, {key: "fedsr"})
    assert document == {"method": {"name": "fedsr", "weighting": "samples"}}  # which every method has
    assert lines == [f"{key} = 'fedsr' resets the table [method]: these settings of the file are not used: lam"]


def test_a_nested_entry_is_reset_by_the_same_rule():
    index = {"name": "dsa-ign", "epochs": 3, "encoder": "clip"}
    for key in ("method.index", "method.index.name"):
        method = {"name": "client2vec", "tau": 2.0, "index": index}
        document, lines = overridden({"method": method}, {key: "feature-average"})
        assert document["method"]["tau"] == 2.0
        assert document["method"]["index"] == {"name": "feature-average", "encoder": "clip"}
        assert lines[0].endswith("[method.index]: these settings of the file are not used: epochs")
        assert overridden({"method": method}, {key: "file"})[1][0].endswith("not used: epochs, encoder")


def test_what_is_named_again_keeps_its_settings():
    method = {"name": ["fedavg", "fedsr"], "weighting": "samples", "fedsr": {"l2r": 0.1}}
    assert overridden({"method": method}, {"method.name": "fedsr"}) == ({"method": {**method, "name": "fedsr"}}, [])
    digits, lines = overridden({"data": {"angles": [0, 15]}}, {"data.name": "rotated-mnist"})  # which is the default
    assert (digits, lines) == ({"data": {"angles": [0, 15], "name": "rotated-mnist"}}, [])


def test_python_warns_once_of_what_is_not_used():
    with pytest.warns(FedshiftWarning, match="not used: hidden") as caught:
        fedshift.grid(TINY, method=["fedavg", FedSR(), FedSR(l2r=0.3)], model="cnn", seed=[0, 1])
    assert len(caught) == 1


def test_an_option_and_a_setting_cannot_say_the_same_twice():
    with refuses("train.rounds", "twice"):
        fedshift.grid(TINY, rounds=3, settings={"train.rounds": 4})
    with refuses("method.name", "twice"):
        fedshift.grid(TINY, method="fedsr", settings={"method.name": "fedavg"})


def test_the_command_line_says_it_before_anything_runs(tmp_path: Path):
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps({**TINY, "run": {**TINY["run"], "out": str(tmp_path / "runs")}}))
    words = ["run", str(file), "--model", "cnn", "--set", "model.dim=5", "--dry-run"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Note: model = 'cnn' resets the table [model]" in done.stderr
    assert "not used" not in done.stdout


def test_a_path_in_a_file_is_of_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "mine.py").write_text("")
    file = tmp_path / "mine.toml"
    file.write_text('plugins = ["mine.py"]\n[data]\nname = "folder"\npath = "photos"\nfrozen = "photos"\n')
    document = read(file)
    assert document["plugins"] == [str(tmp_path / "mine.py")]
    assert document["data"] == {"name": "folder", "path": str(tmp_path / "photos"), "frozen": str(tmp_path / "photos")}
    file.write_text('[data]\nname = "folder"\npath = "elsewhere"\n')
    assert read(file)["data"]["path"] == "elsewhere"
    with refuses("elsewhere.toml", "does not exist"):
        read(tmp_path / "elsewhere.toml")
