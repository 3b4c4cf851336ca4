"""Values as they are typed on a command line: text stays as typed, and every domain can be named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedshift
from conftest import TINY
from fedshift.cli import app as cli
from fedshift.cli import estimates
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.runs.folder import RunFolder
from fedshift.settings.grid import expand, override, parse_assignments, read
from fedshift.settings.spec import Fraction, NonNegative, Seed, setting
from fedshift.settings.written import LARGEST_TOML, Written, parse_toml
from fedshift.study.tuned import TunedSettings
from refusal import refuses

AS_TYPED = [
    *("1e3", "007", "true", "2024-01-01", "nan", "inf", "1_000", "0x10", "-3", "1.", ".5", "07:30:00", "+1", "0"),
    *("{}", "{ a = 1 }", "O'Brien", "'tis", 'x"y"', '"open', "[half", "a=b", "#5", "$HOME", "a\\b", "ÅÄÖ", "all2"),
]


@DATASETS.register("named")
@dataclass(frozen=True, kw_only=True)
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
        patch.setattr(estimates, "print_estimates", seen.append)
        done = CliRunner().invoke(
            cli.app, ["compare", *words, "--method", "fedavg", "--dry-run"], catch_exceptions=False
        )
    assert done.exit_code == 0, done.output
    return [experiment.protocol.hold_out for experiment in seen[0]]


@pytest.mark.parametrize("text", AS_TYPED)
@pytest.mark.parametrize("option", ["--hold-out", "--set"])
def test_text_is_taken_as_typed(text: str, option: str):
    assert held_out(option, text if option == "--hold-out" else f"protocol.hold_out={text}") == [text]


@pytest.mark.parametrize("text", AS_TYPED)
def test_every_text_setting_takes_text_as_typed(text: str):
    changes = parse_assignments(["data.name=folder", f"data.path={text}", "protocol.hold_out=x", f"data.frozen={text}"])
    (experiment,) = expand(override(TINY, changes))
    assert (experiment.data.path, experiment.data.frozen) == (text, text)
    if text not in (".5", "a\\b"):  # no names of folders
        (experiment,) = expand(override(TINY, parse_assignments([f"name={text}"])))
        assert experiment.name == text
    changes = parse_assignments(
        ["method.name=client2vec", "method.index.encoder=clip", f"method.index.encoder.path={text}"]
    )
    (experiment,) = expand(override(TINY, changes))
    assert experiment.method.index.encoder.path == text


NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)


@given(NAMES | st.sampled_from([*AS_TYPED, "all", "Berlin, Mitte", '["all"]', ",", " ", '"', "\\", '\\"', "[]", "'"]))
def test_every_domain_can_be_held_out(name: str):
    """The spellings that the help names: TOML's quotes, for `all` in a list; a list of one from Python."""
    quoted = json.dumps(name, ensure_ascii=False)

    def chosen(value: Any) -> list[str]:
        return [one.protocol.hold_out for one in fedshift.grid("rotated-mnist", method="fedavg", hold_out=value)]

    assert chosen([name]) == [name]
    assert chosen(Written(f"[{quoted}]")) == [name]
    if name != "all":
        assert chosen(name) == chosen(Written(quoted)) == [name]
        assert chosen(Written(f"{quoted},{quoted[:-1]}'s other\"")) == [name, name + "'s other"]


def test_the_domain_called_all_is_named_in_a_list_and_every_domain_without():
    assert held_out("--hold-out", "all") == ["0", "15", "30", "45", "60", "75"]
    assert held_out("--hold-out", '["all"]') == ["all"]
    document = {**TINY, "data": {"name": "named", "domains": ["all", "b"]}}
    with refuses('hold_out = ["all"]'):
        fedshift.grid(document, hold_out="all")
    one = fedshift.experiment(document, hold_out=["all"])
    assert fedshift.experiment(one, rounds=1).protocol.hold_out == "all"
    assert fedshift.experiment(one, protocol={"name": "leave-one-domain-out", "hold_out": ["all"]}) == one


def test_help_says_how_a_domain_is_quoted():
    help_ = " ".join(CliRunner().invoke(cli.app, ["compare", "--help"], env={"COLUMNS": "300"}).output.split())
    assert """'"Berlin, Mitte"'""" in help_
    assert """'["all"]'""" in help_


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("0.05", NonNegative, 0.05),
        ("3", Seed, 3),
        ("0,1,2", Seed, [0, 1, 2]),
        ("[0, 1]", Seed, [0, 1]),
        ("true", bool, True),
        ("False", bool, False),
        ("true,false", bool, [True, False]),
        ("all", Literal["all"] | Fraction, "all"),
        ("0.5", Literal["all"] | Fraction, 0.5),
        ("a,b", str, ["a", "b"]),
        ('"a,b"', str, "a,b"),
        ('"a,b", c', str, ["a,b", "c"]),
        ("'a,b',c", str, ["a,b", "c"]),
        (" a , b ", str, ["a", "b"]),
        ('["a", "b"]', str, ["a", "b"]),
        ('[["a"], ["b"]]', tuple[tuple[str, ...], ...], [["a"], ["b"]]),
        ("1e3,2", Annotated[str, "folder name"], ["1e3", "2"]),
        ("8,4", tuple[int, ...], [8, 4]),
        ("3", Any, 3),
        ("text", Any, "text"),
        ("", str, ""),
    ],
)
def test_a_type_reads_what_was_written(text: str, hint: Any, value: Any):
    assert Written(text).read(hint) == value


@given(st.text(), st.sampled_from([str, int, float, bool, Any, tuple[str, ...], Literal["a"]]))
def test_anything_can_be_written(text: str, hint: Any):
    Written(text).read(hint)


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["method.l2r"], ("--set method.l2r=0.05",)),
        (["=3"], ("no assignment",)),
        (["train.lr=0.1", "train.lr=0.2"], ("train.lr", "twice", "0.1 and 0.2")),
        (["train.lr=" + "9" * 5000], ("train.lr = '999", "number")),
        (["train.lr=" + "[" * 5000], ("train.lr = '[[", "number")),
        (["train..lr=1"], ("field",)),
        (["train.lr.x=1"], ("'lr'", "a value")),
        (["name.x=1"], ("'name'", "a value")),
        (["=".join(["x", "1"])], ("[experiment]", "'x'")),
        (["method.name=[[1]]"], ("method", "'[1]'")),
        (["data.name=pacs,folder"], ("data.name", "one name")),
        (["method.name=client2vec", "method.index.name=dsa-ign,file"], ("method.index.name", "one name")),
        (["plugins=5"], ("plugin", "5'", "does not exist")),
    ],
)
def test_what_cannot_be_is_one_error(assignments: list[str], words: tuple[str, ...]):
    with refuses(*words) as caught:
        expand(override(TINY, parse_assignments(assignments)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nlr = 0.1\nlr = 0.2", "not TOML"),
        ("[train]\n[train]", "not TOML"),
        ("x = " + "[" * 20_000, "depth"),
        ("[train]\nrounds = " + "9" * 6000, "thousands of digits"),
        ("trian = 1", "[experiment]"),
        ("[train]\nrounds = 9223372036854775808", "rounds = 9223372036854775808"),
        ("[protocol]\nhold_out = 1e3", "protocol.hold_out = 1000.0"),
        ("[protocol]\nhold_out = 2024-01-01", "protocol.hold_out = datetime.date(2024, 1, 1)"),
        ("[[method.name]]\nx = 1", "Unknown method"),
        ("plugins = 5", "list of paths"),
        ("seed = { a = 1 }", "seed"),
    ],
)
def test_a_file_that_cannot_be_is_one_error(tmp_path: Path, text: str, words: str):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with refuses(words) as caught:
        expand({**TINY, **read(file)})
    assert len(str(caught.value)) < 1500


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PATHS = st.sampled_from(
    [
        *("name", "seed", "plugins", "data", "data.name", "data.size", "partition", "method", "method.name"),
        *("method.preset", "method.fedsr", "method.fedsr.l2r", "method.index", "method.index.encoder"),
        *("method.index.encoder.size", "train", "train.lr", "train.steps", "protocol.hold_out", "protocol.name"),
        *("model.hidden", "model.dim.x", "run", ".", "train."),
    ]
)


@given(st.dictionaries(PATHS, VALUES | st.text(max_size=6).map(Written), max_size=3))
def test_any_changes_make_experiments_or_one_error(changes: dict[str, Any]):
    try:
        expand(override({**TINY, "method": {"name": "client2vec"}}, changes))
    except FedshiftError as error:
        assert str(error)


@given(st.dictionaries(PATHS, VALUES, max_size=3))
def test_any_document_makes_experiments_or_one_error(entries: dict[str, Any]):
    document: dict[str, Any] = {}
    for path, value in entries.items():
        table = document
        for name in path.split(".")[:-1]:
            table = table.setdefault(name, {}) if isinstance(table.get(name, {}), dict) else {}
        table[path.split(".")[-1]] = value
    try:
        expand(document)
    except FedshiftError as error:
        assert str(error)


def test_a_file_and_the_command_line_say_the_same(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(tomli_w.dumps({**TINY, "protocol": {"name": "leave-one-domain-out", "hold_out": ["all", "b, c"]}}))
    assert held_out(str(file)) == held_out(str(file), "--hold-out", 'all,"b, c"') == ["all", "b, c"]


def test_a_toml_file_that_is_too_large_is_refused_unread(tmp_path: Path):
    """Wherever one is read: an experiment, tuned settings, the experiment of a run from elsewhere."""
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * (LARGEST_TOML + 1))
    size = f"{LARGEST_TOML + 1:,}"
    with refuses("large.toml", size, f"{LARGEST_TOML:,}"):
        read(file)
    with refuses("large.toml", size, f"{LARGEST_TOML:,}"):
        TunedSettings.read(file)
    with refuses("the text", size, f"{LARGEST_TOML:,}"):
        parse_toml(file.read_text(), "the text")
    (experiment,) = expand(override(TINY, {"run.out": str(tmp_path)}))
    folder = RunFolder.create(experiment, tmp_path / "run")
    file.replace(folder.experiment_file)
    with refuses("experiment.toml", size, f"{LARGEST_TOML:,}"):
        folder.table()
