"""The results pages: generated files are up to date, and a number that a page repeats is in a measured table."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import fedshift
from fedshift.content import module_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
INTERVAL = re.compile(r"[+-]?\d+\.\d \[[+-]?\d+\.\d, [+-]?\d+\.\d\]")


def test_generated_files_are_up_to_date():
    tool = module_of(ROOT / "tools" / "results.py")
    assert [*tool.outdated()] == [], "run python tools/results.py"
    empty = [path.name for path, text in tool.contents().items() if path.suffix == ".csv" and text.count("\n") < 2]
    assert empty == []


def test_the_table_by_hospital_is_that_of_the_numbers():
    page = module_of(RESULTS / "hospitals.py")
    with (RESULTS / "hospitals.csv").open(encoding="utf-8") as numbers:
        rows = page.less_alone([*csv.DictReader(numbers)])
    with (RESULTS / "hospitals-less-alone.csv").open(encoding="utf-8") as table:
        assert [*csv.DictReader(table)] == rows
    assert len(rows) > 50


@pytest.mark.parametrize("name", ["which-method.md", "results.md"])
def test_an_interval_that_a_page_repeats_is_on_a_page_of_results(name: str):
    """Written twice, a difference with its interval has the same digits."""
    files = [*RESULTS.glob("*.md"), *RESULTS.rglob("*.csv"), *(ROOT / "docs" / "benchmark").iterdir()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".csv"))
    known = {found.lstrip("+") for found in INTERVAL.findall(text)}
    repeated = {found.lstrip("+") for found in INTERVAL.findall((ROOT / "docs" / name).read_text(encoding="utf-8"))}
    assert repeated
    assert repeated <= known


def test_every_table_beside_the_pages_is_shown_or_linked():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    files = [*RESULTS.rglob("*.csv"), *(ROOT / "docs" / "benchmark").glob("*.csv")]
    assert [file.name for file in files if file.name not in text] == []


def test_the_plugin_with_a_fixed_projection_trains_all_but_it():
    plugin = module_of(RESULTS / "fixed_p.py")
    objective = fedshift.FedAvg().phases()[0].objectives[0]
    trained = set(fedshift.Client2Vec(local_training=True)._extend_objective(objective).moves)
    assert trained - set(plugin.FixedP(local_training=True)._extend_objective(objective).moves) == {"projector"}
