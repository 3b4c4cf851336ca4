"""The examples of the pages on data and models run as they stand."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedshift
from fedshift.runs.events import Progress

DOCS = Path(__file__).parents[1] / "docs"
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
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    monkeypatch.chdir(tmp_path)

    def quick(door: Callable[..., Any]) -> Callable[..., Any]:
        def run(*source: str, settings: dict[str, Any] | None = None, **options: Any) -> Any:
            here = {**(settings or {}), "run.engine": "sequential", "run.threads": 1, "train.steps": 2}
            return door(*source, settings=here, progress=Progress(), **options)

        return run

    for name in ("run", "compare"):
        monkeypatch.setattr(fedshift, name, quick(getattr(fedshift, name)))
    examples = re.findall(r"<!-- (\w+) -->\n```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in examples] == PAGES[page]
    for marker, code in examples:
        names: dict[str, Any] = {"__name__": "example"}
        with warnings.catch_warnings():
            exec(compile(code, page, "exec"), names)  # the point of the test
        runs = [names["run"]] if "run" in names else names["table"].runs
        assert all(run.finished for run in runs)
        if page in ("text.md", "pretrained.md"):
            sent = {each for way in runs[0].messages.values() for each in way["up"]["tensors"]}
            assert any("lora_A" in each for each in sent) == (marker != "hashing")
