"""What list, show and schema print fits the terminal, is not cut, and has no marks of a documentation tool."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

import fedshift
from fedshift import FedshiftError
from fedshift.cli.app import app
from fedshift.cli.catalogues import fitted, plain, shown_names
from fedshift.experiments import shipped, shipped_text

MARKS = re.compile(r"``|:\w+:`|…|\*Choices|Choices\*|Choices\.\*|\bA [aeiou]|3e\+38|= None")


def printed(width: int, *arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": str(width)})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("arguments", [["list"], ["schema"], *(["show", name] for name in shown_names())], ids=" ".join)
def test_it_fits_the_terminal(width: int, arguments: list[str]):
    text = printed(width, *arguments)
    assert [line for line in text.splitlines() if cell_len(line.rstrip()) > width] == []
    assert MARKS.findall(text) == []


def test_a_file_gets_a_line_for_an_entry(monkeypatch: pytest.MonkeyPatch):
    """So that `fedshift list | grep` finds it."""
    monkeypatch.delenv("COLUMNS", raising=False)
    text = CliRunner().invoke(app, ["list", "datasets"], catch_exceptions=False).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("camelyon17")]
    assert "Bandi et al., 2019" in line


@pytest.mark.parametrize("name", shipped())
def test_an_experiment_begins_with_what_it_is(name: str):
    first, *_ = shipped_text(name).splitlines()
    assert first.startswith("# ")
    assert first.endswith(".")


words = st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12), min_size=1, max_size=30)


@given(words, st.sampled_from(["", "- ", "2. ", "  - "]), st.integers(20, 60))
def test_wrapping_again_keeps_every_word(words: list[str], mark: str, width: int):
    text = mark + " ".join(words)
    assert fitted(text, width).split() == text.split()
    assert all(len(line) <= width for line in fitted(text, width).splitlines())


def test_items_stay_items():
    text = "Choices:\n\n- one two three four\n  five six\n- seven\n\nThe\nend"
    assert fitted(text, 12) == "Choices:\n\n- one two\n  three four\n  five six\n- seven\n\nThe\nend"
    assert plain("*Choices.* ``x``") == "Choices. x"


def test_what_can_only_be_left_out_is_no_value():
    """TOML has no word for None, so none is offered."""
    for arguments in (["show", "fedpin-gm"], ["schema"], ["schema", "--format", "markdown"]):
        text = " ".join(printed(200, *arguments).split())
        start = text.index("auxiliary_lr")
        assert "(not set)" in text[start : start + 40]
        assert "none" not in text[start : start + 160].lower()


def test_bench_takes_methods_in_their_order():
    text = printed(100, "bench", "--method", "fedprox,fedavg,moon", "--seed", "0,1", "--dry-run")
    assert [line.split(",")[0] for line in text.splitlines()[:-1]] == ["fedprox", "fedavg", "moon"]


@pytest.mark.parametrize("seeds", [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]])
def test_a_list_of_runs_ends_where_it_does(seeds: list[int]):
    with pytest.raises(FedshiftError) as caught:
        fedshift.experiment("rotated-mnist", method="fedavg", seed=seeds)
    names = str(caught.value).partition("(")[2].partition(")")[0].split(", ")
    assert ("..." in names) == (len(seeds) > 4)
    assert len(names) == min(len(seeds), 5)
