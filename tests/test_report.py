"""The page is right whatever is compared: any number of environments, rows and seeds, whatever they are called."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fresh
from conftest import TINY, a_record, a_row
from fedshift.cli.app import app
from fedshift.errors import FedshiftError
from fedshift.reporting.cautions import cautions, class_counts
from fedshift.reporting.comparison import Comparison
from fedshift.reporting.curves import MOST_PANELS, by_round, by_term
from fedshift.reporting.page import differences, page, scored
from fedshift.reporting.results import MeanStd, flat, merged
from fedshift.reporting.table import Table
from fedshift.reporting.table import text as plain_text
from fedshift.runs.events import Progress
from fedshift.runs.origin import environment
from fedshift.runs.run import Run, Times
from fedshift.runs.schema import Identity, Record
from fedshift.study.api import compare
from fedshift.written import printable

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
AWKWARD = (
    *(r"a$\frac$", "$", "_hidden", "<script>alert(1)</script>", "&amp;", '"', "'", "a\nb", "\x1b[31mred", "角度"),
    *("زاوية", "हिन्दी", "🙂", "\udcff", "\x00", "{{ 7 * 7 }}", "]]>", "p=0.5", "\u2028", "x" * 60, "y " * 30),
    *("%", "  ", "-->"),
)


# Runs in memory ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made(Run):
    """A run folder without files."""

    done: bool = True

    @property
    def finished(self) -> bool:
        return self.done

    def check(self) -> None:
        """It has no files."""


def made(table: Mapping[str, Any], records: list[Record], done: bool = True, **facts: Any) -> Run:
    name = f"{table['method']['name']}-{table['protocol'].get('hold_out', '')}-seed{table['seed']}"
    run = Made(Path(name), done=done)
    decides = {**table, "seed": 0, "protocol": {**table["protocol"], "hold_out": ""}}
    identity = Identity.model_construct(fingerprint=name, series=repr(decides), contents={})
    vars(identity).update(environment=environment())
    final = SimpleNamespace(notes=[])
    vars(run).update(identity=identity, final=final, times=Times(0.0, 0.0, ()))
    vars(run).update(table=dict(table), records=records, messages={}, data_facts=facts)
    return run


def table_of(method: str, seed: int = 0, hold_out: str | None = None, lr: float = 0.1) -> dict[str, Any]:
    protocol = {"name": "in-domain"} if hold_out is None else {"name": "leave-one-domain-out", "hold_out": hold_out}
    return {
        "name": "made",
        "seed": seed,
        "data": {"name": "folder", "path": "photos"},
        "protocol": protocol,
        "model": {"name": "mlp"},
        "method": {"name": method},
        "train": {"rounds": 4, "lr": lr},
    }


def record(
    position: int, stage: str, round: int, tests: Mapping[str, float], validations: Mapping[str, float]
) -> Record:
    both = (("test", tests), ("validation", validations))
    rows = [a_row(name, role, value, loss=float("nan")) for role, its in both for name, value in its.items()]
    return a_record(position, rows, stage=stage, round=round)


PLANS = {  # the stages of a method, and whether they are scored
    "fedavg": [("train", 4, True)],
    "client2vec": [("index", 2, False), ("train", 4, True)],
    "fedpin-gm-ft": [("train", 4, True), ("finetune", 1, True)],
    "head-retraining": [("part", 4, True), ("head", 4, True)],
}


def positions(method: str) -> Iterator[tuple[int, str, int]]:
    """Position, stage and round of every evaluation of a method that is scored each round."""
    position = 0
    for stage, rounds, evaluated in PLANS[method]:
        for round in range(1, rounds + 1):
            position += 1
            if evaluated:
                yield position, stage, round


def compared(environments: list[str], methods: list[str], seeds: int, in_turn: bool, number: int) -> Comparison:
    """Made-up results, 0 and 1 among them, of runs of which some are not finished; by seed of its draws."""
    chance = random.Random(number)
    evaluations = chance.randint(1, 4)

    def accuracies(of: list[str]) -> dict[str, float]:
        return {name: chance.choice([0.0, 1.0, 1 / 3, chance.random()]) for name in of}

    runs = []
    for place, method, seed in [(place, method, seed) for place, method in enumerate(methods) for seed in range(seeds)]:
        for held_out in environments if in_turn else [None]:
            tests = environments if held_out is None else [held_out]
            validations = [name for name in environments if name != held_out] or ["other"]
            done = chance.random() < 0.8
            every = [*positions(method)][-evaluations:]
            kept = every if done else every[: chance.randint(1, len(every))]
            records = [record(*where, accuracies(tests), accuracies(validations)) for where in kept]
            runs.append(made(table_of(method, seed, held_out, lr=0.1 + place), records, done))
    return Comparison(runs)


# Every awkward name: those that get panels of their own, and those that are many.
COMPARISONS = {
    "few": compared([*AWKWARD[:MOST_PANELS]], ["fedavg", "client2vec"], 2, False, 0),
    "other": compared([*AWKWARD[MOST_PANELS:]], ["fedavg", "head-retraining", "fedpin-gm-ft"], 3, False, 1),
    "many": compared([*AWKWARD], ["fedavg", "client2vec"], 2, False, 2),
    "in turn": compared([*AWKWARD[:4]], [*PLANS], 2, True, 3),
    "one": compared(["a"], ["fedavg"], 1, False, 4),
}


class Strict(HTMLParser):
    """Reads a page, and fails where an element is not closed, or not open, where it should be."""

    VOID = frozenset({"meta", "img", "br", "input"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data


def one_line(text: str) -> str:
    """A text as a page shows it."""
    return " ".join("\n".join(printable(line) for line in text.split("\n")).split())


# Whatever is compared ----------------------------------------------------------------------------


@pytest.mark.parametrize("results", COMPARISONS.values(), ids=COMPARISONS)
def test_every_page_is_well_formed_and_shows_names_as_they_are(results: Comparison):
    text = page(results, NOW)
    read = Strict(text)
    assert len(read.texts["script"]) == 1  # nothing that is named there is one
    text.encode()
    assert not {letter for letter in text if ord(letter) < 32} - {"\n"}
    assert {tag for tag, _ in read.seen}.isdisjoint({"img", "link", "iframe"})
    links = [attributes.get("href") or "" for _, attributes in read.seen]
    assert all(link == "" or link[0] == "#" or link.startswith("data:") for link in links)
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len({*ids}) == len(ids)
    for figure in re.findall("<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(figure)
    environments = results.environments("test")
    captions = [" ".join(caption.split()) for caption in read.texts["figcaption"]]
    if len(environments) <= MOST_PANELS:
        assert [captions.count(one_line(results.heading("test", name))) for name in environments] >= [1] * len(
            environments
        )
    keys = [item.strip() for tag in ("li", "label") for item in read.texts.get(tag, [])]
    assert {row.label for row in results.rows()} == set(keys)
    Strict(results._repr_html_())
    lines = plain_text(results.tables(), results.notes(), 10_000).split("\n")
    shown = [column for table in results.tables() for column in table.columns]
    assert all(any(printable(column).strip() in line for line in lines) for column in shown)


# By hand -----------------------------------------------------------------------------------------


def one_run(method: str, seed: int = 0, accuracy: float = 0.5) -> Run:
    records = [record(*where, {"t": accuracy}, {"v": accuracy}) for where in positions(method)]
    return made(table_of(method, seed), records)


def test_methods_are_compared_by_training_round():
    """After two rounds of an index the first accuracy is that of round 1; what comes after training follows it."""
    results = Comparison([one_run(method) for method in ("fedavg", "client2vec", "fedpin-gm-ft")])
    (panel,) = by_round(results)
    places = {line.label: [*line.points] for line in panel.lines if not line.dashed}
    assert places == {
        "fedavg, test": [1, 2, 3, 4],
        "client2vec, test": [1, 2, 3, 4],
        "fedpin-gm-ft, test": [1, 2, 3, 4, 5],
    }
    assert panel.across == "training round"


def test_a_band_is_over_seeds_where_many_domains_are_held_out_in_turn():
    """Seed 0: 0 and 1 in turn, mean 0.5; seed 1: 0.5 throughout. Seeds do not differ, so there is no band."""
    domains = [f"d{number}" for number in range(MOST_PANELS + 2)]
    runs = [
        made(table_of("fedavg", seed, domain), [record(1, "train", 1, {domain: (n % 2, 0.5)[seed]}, {})])
        for seed in (0, 1)
        for n, domain in enumerate(domains)
    ]
    (panel,) = by_round(Comparison(runs))
    (line,) = panel.lines
    assert line.points == {1: MeanStd(50.0, 0.0)}
    assert panel.title == "target, mean over 14 environments"


def test_the_head_of_the_page_says_what_was_run():
    data_facts = {
        "classes": ["x", "y", "z"],
        "clients": {"0": "a/0", "1": "a/1", "2": "b"},
        "domains": {"0": "a", "1": "a", "2": "b"},
        "samples": {"0": 10, "1": 20, "2": 1000},
    }
    runs = [
        made(table, [record(4, "train", 4, {"c": 0.5}, {"a": 0.5, "b": 0.5})], done, **data_facts)
        for table, done in [(table_of("fedavg", 0, "c"), True), (table_of("fedsr", 3, "c"), False)]
    ]
    read = Strict(page(Comparison(runs), NOW))
    assert read.texts["h1"] == ["fedavg and fedsr on folder"]
    about = dict(zip(read.texts["dt"], read.texts["dd"], strict=True))
    expected = {
        "Data": "folder (photos)",
        "Held out": "c",
        "Clients": "3",
        "Training samples": "1,030",
        "Samples of a client": "10 to 1,000",
        "Scored on": "target: 9 samples a run, 1 environment; source: 18 samples a run, 2 environments",
        "Seeds": "0 and 3",
        "Runs": "2, of which 1 not finished",
    }
    assert about.items() >= expected.items()


values = st.one_of(
    st.booleans(), st.integers(-2, 2), st.sampled_from([0.5, 1.0, "1", "a"]), st.lists(st.integers(0, 1))
)
nested = st.dictionaries(st.sampled_from("abc"), values | st.dictionaries(st.sampled_from("xyz"), values), max_size=3)


@given(st.lists(st.lists(nested, min_size=1, max_size=3), min_size=1, max_size=4))
def test_no_setting_is_lost_when_settings_are_merged(groups: list[list[dict[str, Any]]]):
    found = merged(groups)
    for number, group in enumerate(groups):
        for table in group:
            values = {name: json.dumps(value) for name, value in flat(table).items()}
            assert values.items() >= found.common.items()
            assert values.keys() <= found.common.keys() | found.differing.keys()
        for name, texts in found.differing.items():
            assert (texts[number] == "") == all(name not in flat(table) for table in group)
    assert not found.common.keys() & found.differing.keys()


# Where it is written -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    compare(TINY, out=out, progress=Progress())
    return out


def test_where_no_report_can_be_the_error_says_so_and_the_tables_are_printed(runs: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["report", str(runs), "--to", str(tmp_path / "file" / "x.html")])
    assert "Accuracy in %" in result.output
    assert isinstance(result.exception, FedshiftError)
    assert "its folder would be a file" in str(result.exception)


def into_no_reader(*words: str) -> None:
    """The command line in a fresh process whose standard output is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for as long as the process lasts
    fresh.fedshift(*words)


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly_after_the_report_is_written(runs: Path, tmp_path: Path):
    words = ["report", str(runs), "--to", str(tmp_path / "report.html")]
    done = fresh.start(into_no_reader, *words).completed()
    assert done.returncode != 0
    assert done.stderr == ""
    Strict((tmp_path / "report.html").read_text())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_standard_output_is_one_line_and_exit_code_1():
    command = [sys.executable, "-m", "fedshift", "list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


# What is beside the tables -------------------------------------------------------------------------


def test_differences_are_paired_by_seed_with_an_interval_by_hand():
    """By seed FedSR leads by 10, 20 and 30 points: mean 20, standard deviation 10, t of 2 degrees 4.302653.

    Half the interval is 4.302653 * 10 / sqrt(3) = 24.8, so 0 is inside. A fourth seed of FedSR alone does not count.
    """
    runs = [one_run("fedavg", seed, 0.5) for seed in range(3)]
    runs += [one_run("client2vec", seed, accuracy) for seed, accuracy in enumerate((0.6, 0.7, 0.8, 0.1))]
    table = differences(Comparison(runs))
    assert table is not None
    assert table.rows == [["client2vec", "+20.0", "-4.8 to +44.8", "3", "not clear"]]
    alone = differences(Comparison([one_run("fedavg"), one_run("client2vec", 0, 0.6)]))
    assert alone is not None
    assert alone.rows == [["client2vec", "+10.0", "", "1", "one seed: unknown"]]
    assert differences(Comparison([one_run("fedavg")])) is None


def test_what_makes_a_number_doubtful_is_said():
    """Ten classes: 11 % is guessing. From 0.9 to 0.5 a row falls by 40 points. 3 of class b is few."""
    support = [{"role": "test", "environment": "t", "client": None, "counts": [50, 3]}]
    facts = {"classes": ["a", "b"], "support": support}
    falling = [record(1, "train", 1, {"t": 0.9}, {"v": 0.9}), record(2, "train", 2, {"t": 0.5}, {"v": 0.5})]
    found = " ".join(cautions(Comparison([made(table_of("fedavg"), falling, **facts)])))
    assert "fedavg did not learn: its accuracy of 50.0 % is about that of guessing among 2 classes" in found
    assert "single seed, 0" in found
    assert "fedavg ends 40.0 points below its best round" in found
    assert "3 of class 'b' in t" in found
    assert "fewer than 100 samples" in found
    sound = [made(table_of("fedavg", seed), [record(1, "train", 1, {"t": 0.9}, {"v": 0.9})]) for seed in range(3)]
    assert [text for text in cautions(Comparison(sound)) if "fewer than 100" not in text] == []


def test_samples_of_each_class_and_whose_model_stand_beside_an_environment(runs: Path):
    table = scored(Comparison.at(runs))
    assert table.columns == ["environment", "n", "of a class", "scored with"]
    assert all(row[1] and row[2] != "not recorded" and row[3] for row in table.rows)
    counts = {(role, name): sum(its) for role, name, its in class_counts(Comparison.at(runs).runs[0])}
    assert {f"{n:,}" for n in counts.values()} >= {row[1] for row in table.rows}


def test_a_table_as_latex_and_csv():
    table = Table("50 % & more", ["method", "a_b"], [["x{1}", "1.0 ± 0.5"], ["y\\z", "<0.1, ~2"]])
    assert table.latex() == (
        "\\begin{table}\n\\caption{50 \\% \\& more}\n\\begin{tabular}{lr}\n\\toprule\n"
        "method & a\\_b \\\\\n\\midrule\n"
        "x\\{1\\} & 1.0 $\\pm$ 0.5 \\\\\ny\\textbackslash{}z & \\textless{}0.1, \\textasciitilde{}2 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )
    assert table.csv() == 'method,a_b\nx{1},1.0 ± 0.5\ny\\z,"<0.1, ~2"\n'


def test_loss_terms_are_means_over_clients():
    """Clients a and b minimise 1 and 3: their mean is 2; the server's term has a panel of its own."""
    one = record(1, "train", 1, {"t": 0.5}, {"v": 0.5})
    one["terms"] = {"a": {"risk": 1.0}, "b": {"risk": 3.0}, "server": {"risk": 5.0}}
    panels = {panel.title: panel for panel in by_term(Comparison([made(table_of("fedavg"), [one])]))}
    assert {name: panel.lines[0].edge(0) for name, panel in panels.items()} == {"risk": [2.0], "server: risk": [5.0]}
