"""The examples of the README and the pages run as they stand."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedshift
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
    "data.md": ["memory", "folder", "arrays", "table", "signals", "text", "medical", "check"],
    "models.md": ["class", "module", "transformers", "tokens"],
}
ADAPTERS = {"transformers", "tokens"}  # examples of models.md whose clients send adapters


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    for name in ("run", "compare"):
        quick(monkeypatch, name, {"run.engine": "sequential", "run.threads": 1, "train.steps": 2})
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.findall(r"<!-- (\w+) -->\n```python\n", text) == PAGES[page]
    for marker in PAGES[page]:
        if marker == "check":
            continue
        names = carried_out(page, marker)
        runs = [names["run"]] if "run" in names else names["table"].runs
        assert all(run.finished for run in runs)
        sent = {tensor for way in runs[0].messages.values() for tensor in way["up"]["tensors"]}
        assert any("lora_A" in tensor for tensor in sent) == (marker in ADAPTERS)


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
    found = carried_out("evaluation.md", "rare")["comparison"]
    plain, balanced = (f"fedavg (class_weights={which})" for which in ("none", "balanced"))
    assert found.score(plain, "sensitivity of ill") < 0.2
    assert found.score(balanced, "sensitivity of ill") > 0.5
    assert found.accuracy(plain) > found.accuracy(balanced)
    assert found.score(balanced) > found.score(plain) + 0.1
    assert found.score(plain, "auroc") > 0.85
    assert "(Rome) where a metric is undefined: AUROC" in str(found)


def test_the_check_of_data_finds_what_the_page_describes():
    names = carried_out("data.md", "check")
    kinds = [finding.kind for finding in names["report"].findings]
    assert kinds == ["duplicates", "duplicates", "conflicting labels", "value ranges", "feature drift"]
    assert names["report"].findings[3].sites == ("Oslo",)
    assert names["page"].is_file()


# docs/trained-models.md -------------------------------------------------------------------------------


def test_the_model_as_a_module(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    quick(monkeypatch, "run", SMALL, rounds=2)
    names = carried_out("trained-models.md", "module")
    assert names["selected"](names["images"]).shape == (2, 10)
    assert Path("selected.pt").is_file()


@pytest.mark.filterwarnings("ignore:.*Metadata:FutureWarning")
def test_the_classifier(capsys: pytest.CaptureFixture[str]):
    assert carried_out("trained-models.md", "sklearn")["model"][-1].sites_.tolist() == ["large", "small"]
    assert float(capsys.readouterr().out.split()[0]) > 0.9
    carried_out("trained-models.md", "sites")
    assert "[[0." in capsys.readouterr().out
