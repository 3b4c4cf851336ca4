"""Changes of an experiment: naming another entry resets its table, and a line names the settings that are not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import fedshift
from conftest import TINY
from fedshift.cli.app import app
from fedshift.errors import FedshiftWarning
from fedshift.methods.fedsr import FedSR
from fedshift.study.grid import override, read
from refusal import refuses


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
