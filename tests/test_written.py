"""Values as they are typed on a command line: text stays as typed, and every domain can be named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedshift
from conftest import TINY
from fedshift.cli import app as cli
from fedshift.cli import before
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.spec import setting
from fedshift.study.grid import expand, override, read
from fedshift.written import LARGEST_TOML, parse_assignments, parse_value, parse_words
from refusal import refuses

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
