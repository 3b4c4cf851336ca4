"""The whole schema of an experiment: on one page, and as JSON Schema that says what the checks say."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

from conftest import TINY, Make
from fedshift.cli.app import app
from fedshift.cli.catalogues import (
    catalogues,
    described,
    json_schema,
    print_list,
    print_named,
    print_schema,
    shown_names,
)
from fedshift.spec import Spec
from fedshift.study.grid import shipped, shipped_text, takes
from test_settings import SCALARS

ROOT = Path(__file__).parents[1]
SCHEMA = json_schema()
CHECK = jsonschema.Draft202012Validator(SCHEMA)
MARKS = re.compile(r"``|:\w+:`|:class:| at 0x|…|\*Choices|Choices\*|Choices\.\*|\bA [aeiou]|3e\+38|= None")


def problems(document: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in CHECK.iter_errors(document)]


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    return done.stdout


def toml_examples() -> list[str]:
    own = "federation.md"  # whose files are a site's; test_readme reads them
    pages = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != own)]
    blocks = [block for page in pages for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)]
    return [block for block in blocks if "[" in block]


def test_every_shipped_experiment_and_every_example_of_the_documentation_is_valid():
    jsonschema.Draft202012Validator.check_schema(json.loads(printed("schema", "--json")))
    assert toml_examples()
    for text in (*map(shipped_text, shipped()), *toml_examples()):
        assert problems(tomllib.loads(text)) == [], text


def test_a_resolved_experiment_is_valid(make: Make):
    for changes in ({}, {"method": {"name": "client2vec"}}, {"method.name": "fedreg"}, {"partition.name": "domains"}):
        table = make(changes).table()
        del table["data"]  # a plugin's, which was registered after the schema was made
        assert problems(tomllib.loads(tomli_w.dumps(table))) == []


def test_what_is_refused_is_no_valid_file():
    for text in (
        "trian = 1",
        "[train]\nround = 3",
        "[train]\nlr = 'fast'",
        "[model]\nname = 'cnn'\nhidden = 3",
        "[model]\nname = ['cnn', 'mlp']",
        "[method]\nname = 'fedreg'\nl_align = 0.1",
        "[method]\nname = ['fedavg', 'fedsrr']",
        "[method]\nname = 'client2vec'\nindex = { name = 'dsa-ign', encoder = { name = 'clip', size = 3 } }",
        "[method]\nname = 'fedsr'\npreset = 'pasc'",
        "data = 'foldr'",
    ):
        assert problems(tomllib.loads(text)), text


NUMBERS = st.integers(-5, 5) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = NUMBERS | st.booleans() | st.sampled_from(["all", "steps", "x", "error", "unseen", "local", "hub"])
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.lists(st.lists(LEAVES, max_size=2), max_size=2)


@settings(max_examples=800)  # an example is one of some hundred settings
@given(st.sampled_from(SCALARS), VALUES)
def test_the_schema_takes_what_the_checks_take(where: tuple[str, type[Spec], str], value: Any):
    checked = takes(where[1], where[2], value)
    if checked:
        described_here = {**described(where[1], where[2]), "$defs": SCHEMA["$defs"]}
        either = {"anyOf": [described_here, {"type": "array"}]} if isinstance(value, list) else described_here
        listed = {"type": "array", "items": described_here}  # a single value may stand for a list
        one = jsonschema.Draft202012Validator(either)
        assert one.is_valid(value) or one.is_valid([value]) or jsonschema.Draft202012Validator(listed).is_valid(value)


def test_what_is_printed_fits_the_terminal_with_every_entry_and_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """At 80 columns no line is longer, and nothing is cut or shown as it stands in the source."""
    monkeypatch.setenv("COLUMNS", "80")
    print_schema(as_json=False)
    page = capsys.readouterr().out
    print_list("all")
    texts = [page, capsys.readouterr().out]
    assert "> 0, <= 1000" in page
    for name in shown_names():
        print_named(name, {})
        texts.append(capsys.readouterr().out)
        assert name in texts[-1]
        for catalogue in (catalogue for catalogue in catalogues().values() if name in catalogue):
            assert name in texts[1]
            assert all(setting in page and setting in texts[-1] for setting in catalogue.get(name).settings()), name
    for text in texts:
        assert [line for line in text.splitlines() if cell_len(line.rstrip()) > 80] == []
        assert MARKS.findall(text) == []
    assert "head_lr = (not set)" in " ".join(page.split())  # TOML has no word for None


# What an experiment would run -------------------------------------------------------------------------


def shown(*arguments: str) -> dict[str, list[str]]:
    """The rows that `show` prints, by the setting: value and origin of each."""
    rows: dict[str, list[str]] = {}
    for line in printed("show", *arguments).splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == 3 and cells[0] != "setting":
            rows[cells[0]] = cells[1:]
    return rows


def test_show_resolves_an_experiment_and_says_where_values_are_from():
    rows = shown("rotated-mnist", "--set", "train.lr=0.5", "--set", "seed=0,1")
    assert rows["train.lr"] == ["0.5", "command line"]
    assert rows["seed"] == ["0, 1", "command line"]
    assert rows["train.rounds"] == ["300", "file"]
    assert rows["method.l2r"] == ["0.1", "published for rotated-mnist"]
    assert rows["run.engine"] == ['"auto"', "default"]


def test_show_of_a_file_shows_what_each_method_has(tmp_path: Path):
    file = tmp_path / "mine.toml"
    method = {"name": ["fedavg", "client2vec"], "client2vec": {"index": {"epochs": [3, 4], "encoder": "offline"}}}
    file.write_text(tomli_w.dumps({**TINY, "method": method}))
    rows = shown(str(file), "--set", "method.client2vec.index.heads=4")
    assert rows["method.index.epochs"] == ["3, 4", "file"]
    assert rows["method.index.heads"] == ["4", "command line"]
    assert rows["method.index.encoder.size"] == ["512", "default"]
    file.write_text(tomli_w.dumps({**TINY, "model": {"name": "mlp", "dim": 0}}))
    assert "it cannot run: model.dim = 0" in printed("show", str(file))
