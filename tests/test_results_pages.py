"""The results pages: generated files are up to date, and a number that a page repeats is in a measured table."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer

import fedshift
from fedshift.cli import before, main, studies
from fedshift.content import module_of
from fedshift.study import api

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
INTERVAL = re.compile(r"[+-]?\d+\.\d \[[+-]?\d+\.\d, [+-]?\d+\.\d\]")


def test_generated_files_are_up_to_date():
    tool = module_of(ROOT / "tools" / "results.py")
    assert [*tool.outdated()] == [], "run python tools/results.py"
    empty = [path.name for path, text in tool.contents().items() if path.suffix == ".csv" and text.count("\n") < 2]
    assert empty == []


def test_cells_are_added_to_the_published_ones():
    """A cell replaces that of its federation and row; one outside the benchmark, or without a seed, is refused."""
    tool = module_of(ROOT / "tools" / "results.py")
    known = tool.PUBLISHED.read_text(encoding="utf-8")
    assert tool.merged(known, known) == known
    head, *lines = known.splitlines(keepends=True)
    heart = [line for line in lines if line.startswith("heart,fedprox,")]
    cell = head + "".join(heart)
    assert tool.merged(head + "".join(line for line in lines if line not in heart), cell) == known
    moved = re.sub(r"(?m)^heart,fedprox,accuracy,0,[^,]*", "heart,fedprox,accuracy,0,12.5", cell)
    assert "heart,fedprox,accuracy,0,12.5," in tool.merged(known, moved)
    for wrong in (cell.replace("fedprox", "mine"), re.sub(r"(?m)^heart,fedprox,accuracy,4,.*\n", "", cell)):
        with pytest.raises(ValueError, match=r"heart, (mine: no cell|fedprox: seeds)"):
            tool.merged(known, wrong)


def test_the_table_by_hospital_is_that_of_the_numbers():
    page = module_of(RESULTS / "hospitals.py")
    with (RESULTS / "hospitals.csv").open(encoding="utf-8") as numbers:
        rows = page.minus_alone([*csv.DictReader(numbers)])
    with (RESULTS / "hospitals-minus-alone.csv").open(encoding="utf-8") as table:
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


def commands(page: Path) -> list[str]:
    """The commands of a page that run something, one per line."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in re.findall(r"^    (fedshift .*)$", text, re.MULTILINE) if "--list" not in line]


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_every_command_of_a_page_is_accepted(page: Path, monkeypatch: pytest.MonkeyPatch):
    """Its names, settings and files are read, and the runs are planned; nothing is trained."""
    monkeypatch.chdir(ROOT)
    begin = Mock(side_effect=typer.Exit)
    for name in ("compare", "run", "tune", "analyse"):
        monkeypatch.setattr(api, name, begin)
    monkeypatch.setattr(before, "print_indices", begin)
    monkeypatch.setattr(studies, "_run_or_estimate", begin)
    for line in commands(page):
        main.app(shlex.split(line, comments=True)[1:], standalone_mode=False)
    assert begin.call_count == len(commands(page))


def test_every_table_beside_the_pages_is_shown_or_linked():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    files = [*RESULTS.rglob("*.csv"), *(ROOT / "docs" / "benchmark").glob("*.csv")]
    assert [file.name for file in files if file.name not in text] == []


def test_the_plugin_with_a_fixed_projection_trains_all_but_it():
    plugin = module_of(RESULTS / "fixed_p.py")
    objective = fedshift.FedAvg().phases()[0].objectives[0]
    trained = set(fedshift.Client2Vec(local_training=True)._extend_objective(objective).moves)
    assert trained - set(plugin.FixedP(local_training=True)._extend_objective(objective).moves) == {"projector"}
