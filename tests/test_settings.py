"""Settings: values and their limits, as they are typed on a command line, and the schema of an experiment."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make
from fedshift.cli import app as cli
from fedshift.cli import before
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
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.experiments import PLAIN, Experiment
from fedshift.spec import Spec, setting
from fedshift.study.grid import expand, override, read, shipped, shipped_text, takes
from fedshift.written import LARGEST_TOML, parse_assignments, parse_value, parse_words
from refusal import refuses

CLASSES: dict[str, type[Spec]] = {
    "experiment": Experiment,
    **PLAIN,
    **{f"{kind}.{name}": catalogue.get(name) for kind, catalogue in catalogues().items() for name in catalogue},
}
SCALARS = [(where, cls, name) for where, cls in CLASSES.items() for name in cls.settings() if name not in cls.nested()]


def numbers(schema: Any) -> list[dict[str, Any]]:
    """What a schema contains about numbers, also in lists and alternatives."""
    if isinstance(schema, list):
        return [found for item in schema for found in numbers(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") in ("integer", "number") and "enum" not in schema else []
    return own + [found for key in ("anyOf", "items", "prefixItems") for found in numbers(schema.get(key))]


def test_every_number_has_limits_and_wrong_values_are_one_line():
    for _, cls, name in SCALARS:
        found = numbers(described(cls, name))
        for limits in found:
            assert {"maximum", "exclusiveMaximum"} & limits.keys()
        for value in (10**400, float("nan"), float("-inf"), True, {}, object) if found else ():
            with pytest.raises(FedshiftError) as caught:
                cls.checked(name, value)
            message = str(caught.value)
            assert "\n" not in message
            assert len(message) < 500
            assert message.startswith(f"{cls.section}.{name} = " if cls.section else f"{name} = ")


def test_numpys_values_and_paths_are_pythons(tmp_path: Path):
    train = PLAIN["train"](rounds=np.int64(3), momentum=np.float32(0.5), lr=np.float64(0.25))
    assert train == PLAIN["train"](rounds=3, momentum=0.5, lr=0.25)
    assert [type(value) for value in (train.rounds, train.momentum, train.lr)] == [int, float, float]
    assert CLASSES["models.mlp"](hidden=np.array([3, 4])).hidden == (3, 4)
    assert CLASSES["datasets.folder"](path=tmp_path).path == str(tmp_path)
    given = {"train.lr": np.array([0.5, 0.25]), "data": {"name": "folder", "path": tmp_path}, "protocol.hold_out": "a"}
    made = fedshift.grid(TINY, seed=np.arange(3), out=tmp_path, settings=given)
    assert [(one.seed, one.train.lr) for one in made] == [(s, lr) for lr in (0.5, 0.25) for s in range(3)]
    for one in made:
        assert fedshift.experiment(one.table()).fingerprint == one.fingerprint
        tomli_w.dumps(one.table())


@given(st.sampled_from(SCALARS), st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.none()))
def test_a_value_is_kept_as_it_is_or_refused(where: tuple[str, type[Spec], str], value: Any):
    try:
        kept = where[1].checked(where[2], value)
    except FedshiftError as error:
        assert "\n" not in str(error)
        return
    for one in kept if isinstance(kept, tuple) else [kept]:
        assert one in (value, str(value))
        assert isinstance(one, bool) == isinstance(value, bool)


AS_TYPED = ["1e3", "007", "true", "2024-01-01", "nan", ".5", "O'Brien", 'x"y"', "[half", "a=b", "#5", "a\\b", "ÅÄÖ"]


@DATASETS.register("named")
class Named(Dataset):
    """Domains of any name; never loaded."""

    domains: tuple[str, ...] = setting(("a", "b"), help="the names")

    def domain_names(self) -> tuple[str, ...]:
        return self.domains

    def load(self, streams: Any) -> Any:
        raise NotImplementedError


def held_out(*words: str) -> list[str]:
    """What the command line holds out."""
    seen: list[list[Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(before, "print_estimates", seen.append)
        done = CliRunner().invoke(
            cli.app, ["compare", *words, "--method", "fedavg", "--dry-run"], catch_exceptions=False
        )
    assert done.exit_code == 0, done.output
    return [experiment.protocol.hold_out for experiment in seen[0]]


def test_a_held_out_domain_is_taken_as_typed():
    for text in AS_TYPED:
        assert held_out("--hold-out", text) == [text]
    assert held_out("--hold-out", 'all,"b, c"') == ["all", "b, c"]


NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)


@given(NAMES | st.sampled_from([*AS_TYPED, "all", "Berlin, Mitte", '["all"]', ",", " ", '"', "\\", '\\"', "[]", "'"]))
def test_every_domain_can_be_held_out(name: str):
    """The spellings that the help names: TOML's quotes, for `all` in a list; a list of one from Python."""
    quoted = json.dumps(name, ensure_ascii=False)
    assert parse_words(f"[{quoted}]") == parse_value(f"[{quoted}]") == [name]
    assert parse_words(quoted) == parse_value(quoted) == name
    assert parse_words(f"{quoted},{quoted[:-1]}'s other\"") == [name, name + "'s other"]
    (one,) = fedshift.grid("rotated-mnist", method="fedavg", hold_out=[name])
    assert one.protocol.hold_out == name


def test_the_domain_called_all_is_named_in_a_list_and_every_domain_without():
    assert held_out("--hold-out", "all") == ["0", "15", "30", "45", "60", "75"]
    assert held_out("--hold-out", '["all"]') == ["all"]
    document = {**TINY, "data": {"name": "named", "domains": ["all", "b"]}}
    assert [one.protocol.hold_out for one in fedshift.grid(document, hold_out="all")] == ["all", "b"]
    assert fedshift.experiment(document, hold_out=["all"]).protocol.hold_out == "all"


def test_a_value_is_toml_or_words():
    for text, value in (
        ("0.05", 0.05),
        ("0,1,2", [0, 1, 2]),
        ("[0, 1]", [0, 1]),
        ("all,0.5", ["all", 0.5]),
        ('"a,b", c', ["a,b", "c"]),
        (" a , b ", ["a", "b"]),
        ('{ name = "clip" }', {"name": "clip"}),
        ("", ""),
    ):
        assert parse_value(text) == value


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["method.l2r"], ("--set method.l2r=0.05",)),
        (["train.lr=0.1", "train.lr=0.2"], ("train.lr", "twice")),
        (["train.lr.x=1"], ("'lr'", "a value")),
        (["plugins=5"], ("plugins = 5", "list of paths")),
    ],
)
def test_what_cannot_be_is_one_error(assignments: list[str], words: tuple[str, ...]):
    with refuses(*words) as caught:
        expand(override(TINY, parse_assignments(assignments)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_toml_file_that_is_too_large_is_refused_unread(tmp_path: Path):
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * (LARGEST_TOML + 1))
    with refuses("large.toml", f"{LARGEST_TOML:,}"):
        read(file)


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
    assert "> 0, <= 1,000" in page
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
    assert "finetune_lr = (not set)" in " ".join(page.split())  # TOML has no word for None


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
