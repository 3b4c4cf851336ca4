"""The examples of docs/model-back.md run as they stand there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedshift
import fresh
from fedshift.datasets.dataset import Dataset
from fedshift.runs.events import Progress
from fedshift.runs.run import Run

PAGE = (Path(__file__).parents[1] / "docs" / "model-back.md").read_text(encoding="utf-8")
MOST_LINES = 12


def block(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found
    assert found.group(1).count("\n") <= MOST_LINES
    return found.group(1)


def carried_out(marker: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block(marker), f"{marker} of model-back.md", "exec"), names)  # the point of the test
    return names


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def test_the_model_as_a_module(monkeypatch: pytest.MonkeyPatch):
    original = fedshift.run

    def short(experiment: str, **options: Any) -> Run:
        fewer = {"data.images_per_class": 10, "train.batch": 16}
        return original(experiment, **(options | {"rounds": 2}), settings=fewer, progress=Progress())

    monkeypatch.setattr(fedshift, "run", short)
    names = carried_out("module")
    assert names["selected"](names["images"]).shape == (2, 10)
    assert Path("selected.pt").is_file()


def test_the_commands(tmp_path: Path):
    draw = np.random.default_rng(0)
    hospital = np.array(["north", "south"])[np.arange(80) % 2]
    sick = np.arange(80) // 2 % 2
    table = pd.DataFrame({"age": draw.normal(sick, 1), "pulse": draw.normal(sick, 1)})
    table.assign(label=np.array(["well", "ill"])[sick], hospital=hospital).to_csv("patients.csv", index=False)
    table.head(3).to_csv("new.csv", index=False)
    table.head(2).to_parquet("more.parquet")
    shown = r'set -euo pipefail; fedshift() { printf "%s\0" "$@"; }'
    said = ""
    for line in block("shell").replace("\\\n", "").splitlines():
        told = subprocess.run(["bash", "-c", f"{shown}\n{line}"], capture_output=True, text=True, check=True).stdout
        done = fresh.command(*told.split("\0")[:-1])
        assert done.returncode == 0, done.stderr
        said += done.stderr
    assert Path("both.csv").read_text().splitlines()[0] == "file,row,predicted,p_ill,p_well"
    assert len(Path("both.csv").read_text().splitlines()) == 6
    assert len(Path("predictions.csv").read_text().splitlines()) == 4
    assert "predictions.csv (3 samples)" in said


@pytest.mark.filterwarnings("ignore:.*Metadata:FutureWarning")
def test_the_classifier(capsys: pytest.CaptureFixture[str]):
    assert carried_out("sklearn")["model"][-1].sites_.tolist() == ["large", "small"]
    assert float(capsys.readouterr().out.split()[0]) > 0.9
    carried_out("sites")
    assert "[[0." in capsys.readouterr().out


def test_the_page_names_what_there_is():
    assert {"suffixes", "samples"} <= set(vars(Dataset))
    unlabelled = fedshift.Unlabelled(torch.zeros(2, 3), range(2))
    assert len(unlabelled.x) == len(unlabelled.rows)
