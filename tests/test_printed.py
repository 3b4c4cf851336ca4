"""What list, show and schema print fits the terminal, is not cut, and has no marks of a documentation tool."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from fedshift.cli.app import app
from fedshift.cli.catalogues import print_list, print_named, print_schema, shown_names
from fedshift.cli.json_schema import catalogues
from fedshift.experiments import PLAIN
from fedshift.study.shipped import shipped

MARKS = re.compile(r"``|:\w+:`|:class:| at 0x|…|\*Choices|Choices\*|Choices\.\*|\bA [aeiou]|3e\+38|= None")


ENTRIES = {**catalogues(), "tables": PLAIN, "experiments": shipped()}


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def assert_fits(text: str) -> None:
    """At 80 columns no line is longer, and nothing is cut or shown as it stands in the source."""
    assert [line for line in text.splitlines() if cell_len(line.rstrip()) > 80] == []
    assert MARKS.findall(text) == []


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kind", ENTRIES)
def test_all_that_can_be_shown_fits_the_terminal_with_every_setting(kind: str, capsys: pytest.CaptureFixture[str]):
    for name in ENTRIES[kind]:
        print_named(name, {})
        text = capsys.readouterr().out
        assert name in text
        assert_fits(text)
        if kind in catalogues():
            assert all(setting in text for setting in catalogues()[kind].get(name).settings()), name


@pytest.mark.usefixtures("narrow")
def test_the_list_names_every_entry_and_fits_the_terminal(capsys: pytest.CaptureFixture[str]):
    print_list("all")
    text = capsys.readouterr().out
    assert_fits(text)
    first_words = {line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")}
    assert {*shown_names()} - {*PLAIN} <= first_words


@pytest.mark.usefixtures("narrow")
def test_the_reference_fits_the_terminal(capsys: pytest.CaptureFixture[str]):
    print_schema(as_json=False)
    assert_fits(capsys.readouterr().out)


def test_what_can_only_be_left_out_is_no_value():
    """TOML has no word for None, so none is offered."""
    for arguments in (["show", "fedpac"], ["schema"]):
        text = " ".join(printed(*arguments).split())
        start = text.index("head_lr")
        assert "(not set)" in text[start : start + 40]
        assert "none" not in text[start : start + 160].lower()
