"""The examples of the README and the pages run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedshift
import fresh
from fedshift.runs.events import Progress

DOCS = Path(__file__).parents[1] / "docs"
SMALL = {"data.images_per_class": 10, "train.batch": 16, "run.engine": "sequential", "run.threads": 1}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def block(page: str, marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def carried_out(page: str, marker: str) -> dict[str, Any]:
    """The names that an example leaves."""
    names: dict[str, Any] = {"__name__": "example"}
    with warnings.catch_warnings():
        exec(compile(block(page, marker), f"{marker} of {page}", "exec"), names)  # the point of the test
    return names


def quick(monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], **given: Any) -> None:
    """Have a function of fedshift do less than it is requested."""
    door: Callable[..., Any] = getattr(fedshift, name)

    def less(*source: str, settings: dict[str, Any] | None = None, **options: Any) -> Any:
        return door(*source, **{**options, **given}, settings={**(settings or {}), **changes}, progress=Progress())

    monkeypatch.setattr(fedshift, name, less)


PAGES = {  # with the examples that each has
    "data.md": ["arrays", "table"],
    "medical.md": ["medical"],
    "signals.md": ["signals"],
    "tables.md": ["missing", "shipped"],
    "text.md": ["hashing", "tokens"],
    "pretrained.md": ["transformers"],
    "your-data.md": ["vectors", "images", "signals", "tokens"],
    "your-model.md": ["class", "module"],
}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    for name in ("run", "compare"):
        quick(monkeypatch, name, {"run.engine": "sequential", "run.threads": 1, "train.steps": 2})
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.findall(r"<!-- (\w+) -->\n```python\n", text) == PAGES[page]
    for marker in PAGES[page]:
        names = carried_out(page, marker)
        runs = [names["run"]] if "run" in names else names["table"].runs
        assert all(run.finished for run in runs)
        if page in ("text.md", "pretrained.md"):
            sent = {each for way in runs[0].messages.values() for each in way["up"]["tensors"]}
            assert any("lora_A" in each for each in sent) == (marker != "hashing")


def test_the_readme(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    quick(monkeypatch, "compare", SMALL, rounds=1)
    names = carried_out("../README.md", "api")
    assert Path("report.html").is_file()
    assert "fedsr" in capsys.readouterr().out
    assert set(names["frame"]["method"]) == {"fedavg", "fedsr"}
    assert names["model"](torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape == (2, 10)


def test_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    quick(monkeypatch, "run", {"run.engine": "sequential"})  # nothing is measured for
    carried_out("training.md", "early")
    assert "no better validation score than" in capsys.readouterr().out


def test_tuning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """With fewer rounds and trials it prints what the page shows, but for the numbers."""
    quick(monkeypatch, "tune", SMALL, rounds=1, trials=2)
    quick(monkeypatch, "compare", SMALL, rounds=1)
    assert carried_out("tuning.md", "tune")["page"].is_file()
    assert "fedprox (75 held out): method.mu=" in capsys.readouterr().out


def test_metrics():
    """Weights find the rare class at the price of accuracy; AUROC knew of it before; Rome is named."""
    found = carried_out("metrics.md", "rare")["found"]
    plain, balanced = (f"fedavg (class_weights={which})" for which in ("none", "balanced"))
    assert found.score(plain, "sensitivity of ill") < 0.2
    assert found.score(balanced, "sensitivity of ill") > 0.5
    assert found.accuracy(plain) > found.accuracy(balanced)
    assert found.score(balanced) > found.score(plain) + 0.1
    assert found.score(plain, "auroc") > 0.85
    assert "(Rome) where a metric is undefined: AUROC" in str(found)


def test_the_check_of_data_finds_what_the_page_says(tmp_path: Path):
    names, found = carried_out("check-data.md", "check"), block("check-data.md", "found")
    text = str(names["report"]).replace(f"{tmp_path}/", "")
    accuracy = partial(re.sub, r"\d+ % of", "some % of")  # its last digit is that of a version of scikit-learn
    assert accuracy(text[text.index("Found: ") : text.index("Note: ")]) == accuracy(found)
    assert names["page"].is_file()


# docs/model-back.md -------------------------------------------------------------------------------


def test_the_model_as_a_module(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    quick(monkeypatch, "run", SMALL, rounds=2)
    names = carried_out("model-back.md", "module")
    assert names["selected"](names["images"]).shape == (2, 10)
    assert Path("selected.pt").is_file()


def test_the_commands():
    draw = np.random.default_rng(0)
    hospital = np.array(["north", "south"])[np.arange(80) % 2]
    sick = np.arange(80) // 2 % 2
    table = pd.DataFrame({"age": draw.normal(sick, 1), "pulse": draw.normal(sick, 1)})
    table.assign(label=np.array(["well", "ill"])[sick], hospital=hospital).to_csv("patients.csv", index=False)
    table.head(3).to_csv("new.csv", index=False)
    table.head(2).to_parquet("more.parquet")
    shown = r'set -euo pipefail; fedshift() { printf "%s\0" "$@"; }'
    said = ""
    for line in block("model-back.md", "shell").replace("\\\n", "").splitlines():
        told = subprocess.run(["bash", "-c", f"{shown}\n{line}"], capture_output=True, text=True, check=True).stdout
        done = fresh.command(*told.split("\0")[:-1])
        assert done.returncode == 0, done.stderr
        said += done.stderr
    assert Path("both.csv").read_text().splitlines()[0] == "file,row,predicted,p_ill,p_well"
    assert len(Path("both.csv").read_text().splitlines()) == 6
    assert len(Path("predictions.csv").read_text().splitlines()) == 4
    assert "predictions.csv (3 samples)" in said


# docs/validate.md ---------------------------------------------------------------------------------


def test_a_site_that_never_joined():
    draw = np.random.default_rng(0)
    Path("three").mkdir()
    for number, path in enumerate(["three/a.csv", "three/b.csv", "three/c.csv", "fourth.csv"]):
        age = draw.normal(55 + number, 9, 120).round(1)
        ill = np.where(age + draw.normal(0, 6, 120) > 56, "ill", "healthy")
        table = pd.DataFrame({"age": age, "sex": np.array(["f", "m"])[draw.integers(0, 2, 120)], "label": ill})
        table.assign(**{"diagnosis": ill} if path == "fourth.csv" else {}).to_csv(path, index=False)
    run, *lines = block("validate.md", "shell").replace("\\\n", "").splitlines()
    fresh.ok(*shlex.split(run)[1:], "--set", "run.engine=sequential", "--set", "train.steps=2")
    folder = str(next(Path("runs/hospitals").glob("fedavg-*")))
    said = [fresh.ok(*(folder if "*" in word else word for word in shlex.split(line)[1:])) for line in lines]
    assert all("on 120 samples" in each and "Youden" in each for each in said)
    assert "By sex" in said[0]
    assert "must stay" in said[1]
    assert Path("hand-on/validation.html").is_file()


@pytest.mark.filterwarnings("ignore:.*Metadata:FutureWarning")
def test_the_classifier(capsys: pytest.CaptureFixture[str]):
    assert carried_out("model-back.md", "sklearn")["model"][-1].sites_.tolist() == ["large", "small"]
    assert float(capsys.readouterr().out.split()[0]) > 0.9
    carried_out("model-back.md", "sites")
    assert "[[0." in capsys.readouterr().out
