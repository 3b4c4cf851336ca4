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
from pydantic import ValidationError
from typer.testing import CliRunner

import fresh
from conftest import TINY, a_record, a_row
from fedshift.cli.app import app
from fedshift.clients.protocols import PersonalUnderShift
from fedshift.errors import FedshiftError
from fedshift.reporting.charts import Chart, row_id
from fedshift.reporting.comparison import Comparison
from fedshift.reporting.comparison_tables import class_counts, differences, environments
from fedshift.reporting.curves import MOST_PANELS, by_round, by_term, charts
from fedshift.reporting.report_page import page
from fedshift.reporting.results import MeanStd, flat, merged
from fedshift.reporting.sent_parts import parts_sent
from fedshift.reporting.table import Table
from fedshift.reporting.table import text as plain_text
from fedshift.runs.events import FailedEvent, Progress
from fedshift.runs.origin import environment
from fedshift.runs.run import Run, Times
from fedshift.runs.schema import Identity, MessageTable, Record
from fedshift.study.api import compare
from fedshift.written import printable
from refusal import refuses

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
    for stage, rounds, scored in PLANS[method]:
        for round in range(1, rounds + 1):
            position += 1
            if scored:
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


# Every awkward name: those that get separate panels, and those that are many.
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
    assert [tag for tag, _ in read.seen].count("script") == 1
    text.encode()
    assert not {letter for letter in text if ord(letter) < 32} - {"\n"}
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len(set(ids)) == len(ids)
    addresses = [attributes[name] for _, attributes in read.seen for name in ("src", "href") if name in attributes]
    assert all(address.startswith(("data:text/", "#")) for address in addresses)
    assert {address[1:] for address in addresses if address.startswith("#")} <= {*ids}
    drawings = re.findall("<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == [tag for tag, _ in read.seen].count("svg") >= 1
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    environments = results.environments("test")
    captions = [" ".join(caption.split()) for caption in read.texts["figcaption"]]
    if len(environments) <= MOST_PANELS:
        assert [captions.count(one_line(results.heading("test", name))) for name in environments] >= [1] * len(
            environments
        )
    buttons = {button.strip() for button in read.texts["button"]} - {"SVG"}
    assert buttons == {row.label for row in results.rows()}
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


# What stands beside the tables -------------------------------------------------------------------


def test_differences_are_paired_by_seed_with_an_interval_by_hand():
    """By seed client2vec leads by 10, 20 and 30 points: mean 20, standard deviation 10, t of 2 degrees 4.302653.

    Half the interval is 4.302653 * 10 / sqrt(3) = 24.8, so 0 is inside. Its fourth seed has no partner and does not
    count. By 19, 20 and 21 points: half of it is 2.5, and 0 is outside.
    """
    base = [one_run("fedavg", seed, 0.5) for seed in range(3)]
    runs = [*base, *(one_run("client2vec", seed, leads) for seed, leads in enumerate((0.6, 0.7, 0.8, 0.1)))]
    (table,) = differences(Comparison(runs))
    assert table.rows == [["client2vec", "+20.0", "-4.8 to +44.8", "3", "not clear"]]
    runs = [*base, *(one_run("client2vec", seed, leads) for seed, leads in enumerate((0.69, 0.7, 0.71)))]
    assert differences(Comparison(runs))[0].rows == [["client2vec", "+20.0", "+17.5 to +22.5", "3", "better"]]
    (alone,) = differences(Comparison([one_run("client2vec", 0, 0.3), one_run("fedavg")]))
    assert alone.rows == [["client2vec", "-20.0", "none of one seed", "1", "not clear"]]
    assert differences(Comparison([one_run("fedavg")])) == []


def test_a_difference_counts_the_environments_that_both_rows_have():
    """Of seed 0 fedavg lacks b: only a counts, 0.7 - 0.4 = 30 points; over both it would be 0.5 - 0.4 = 10."""
    runs = [
        made(table_of(method, 0, domain), [record(1, "train", 1, {domain: score}, {"v": 0.5})])
        for method, domain, score in (("fedavg", "a", 0.4), ("client2vec", "a", 0.7), ("client2vec", "b", 0.3))
    ]
    assert [table.rows[0][1] for table in differences(Comparison(runs))] == ["+30.0", "+30.0"]


def targets(**scores: str) -> Comparison:
    """Rows of one seed whose scores on held-out domains, in %, are given as "a 10, b 20"."""
    cells = [(method, *cell.split()) for method, its in scores.items() for cell in its.split(", ")]
    return Comparison(
        [
            made(
                table_of(method, 0, domain),
                [record(1, "train", 1, {domain: int(score) / 100}, {"v": int(score) / 200})],
            )
            for method, domain, score in cells
        ]
    )


def test_means_of_rows_with_other_targets_are_over_those_that_all_have():
    """Of fedavg a and b count: their mean is 15, the worst 10, and the mean of their validation scores 7.5."""
    results = targets(fedavg="a 10, b 20, c 90, d 95", client2vec="b 40, a 30")
    headline = results.tables()[0]
    assert headline.columns[1:3] == ["target worst", "target mean"]
    rows = {row[0]: row[1:8] for row in headline.rows}
    assert rows["fedavg"] == ["10.0", "15.0", "10.0", "20.0", "90.0", "95.0", "7.5"]
    assert rows["client2vec"] == ["30.0", "35.0", "30.0", "40.0", "", "", "17.5"]
    assert (results.accuracy("fedavg"), results.worst("fedavg")) == pytest.approx((0.15, 0.1))
    (note,) = [note for note in results.notes() if "targets" in note]
    assert "that all rows have: a, b;" in note
    assert "others of fedavg (c, d)" in note
    assert "uneven seeds" not in kinds(results)


def test_means_are_over_all_targets_where_rows_have_the_same_or_none_in_common():
    same, none = targets(fedavg="a 10, b 20", client2vec="a 30, b 40"), targets(fedavg="a 10, b 20", client2vec="c 30")
    assert [row[2] for row in same.tables()[0].rows] == ["15.0", "35.0"]
    assert [row[2] for row in none.tables()[0].rows] == ["15.0", "30.0"]
    assert not [note for note in same.notes() if "target" in note]
    assert [note for note in none.notes() if note.startswith("Rows have no target in common")]


FACTS = {"classes": ["a", "b"], "scored_classes": {"test": {"t": [50, 3]}, "validation": {"v": [9, 0]}}}


def kinds(results: Comparison) -> list[str]:
    return [caution.kind for caution in results.cautions()]


def test_each_reason_to_doubt_a_number_is_a_warning_that_names_the_value():
    """Two classes: 50 % is guessing. From 0.9 to 0.5 on validation a row falls by 40 points. 3 of class b is few."""
    falling = [record(n, "train", n, {"t": 0.5}, {"v": score}) for n, score in ((1, 0.9), (2, 0.5))]
    falling[0]["missing"] = [{"client": 1, "why": "absent"}] * 3
    results = Comparison([made(table_of("fedavg"), falling, done=False, **FACTS)], missing=("A run is excluded: x",))
    assert kinds(results) == [
        *("excluded", "not finished", "absent clients", "one seed", "did not train", "past its best"),
        *("few samples", "few samples"),
    ]
    text = " ".join(caution.text for caution in results.cautions())
    for words in ("50.0 %, and guessing one of 2", "seed 0", "by up to 40.0 points", "as few as 3 samples on test t"):
        assert words in text
    assert "3 answers of clients are missing" in text
    page_text = " ".join(Strict(page(results, NOW)).texts["li"])
    assert all(caution.text in page_text and caution.remedy in page_text for caution in results.cautions())
    sound = [one_run("fedavg", seed, 0.9) for seed in range(3)]
    assert kinds(Comparison(sound)) == []


def test_a_row_whose_runs_were_given_up_is_marked(tmp_path: Path):
    """Of two seeds one stopped at a loss that is not finite: its numbers, of an earlier round, stay in the mean."""
    scored = [[record(1, "train", 1, {"t": score}, {"v": score})] for score in (0.9, 0.8, 0.6)]
    runs = [made(table_of(method), its) for method, its in zip(("fedavg", "scaffold"), scored, strict=False)]
    given_up = made(table_of("scaffold", 1), scored[2], done=False)
    vars(given_up).update(path=tmp_path)
    failed = FailedEvent(when="2026-11-27T10:00:00Z", who="scaffold", why="The loss is not finite")
    (tmp_path / "events.jsonl").write_text(failed.model_dump_json() + "\n")
    results = Comparison([*runs, given_up])
    tables = [table for table in [*results.tables(), *results.more_tables()] if "scaffold" in table.csv()]
    assert [row[0] for row in tables[0].rows] == ["fedavg", "scaffold (1 of 2 runs given up)"]
    assert any("minus fedavg" in table.title and "given up" in table.csv() for table in tables)
    assert results.accuracy("scaffold") == pytest.approx(0.7)


def test_a_validation_that_looks_at_the_test_is_a_warning_once():
    table = table_of("fedavg") | {"protocol": {"name": "personal-under-shift", "validation": "p=0.1"}}
    run = made(table, [record(1, "train", 1, {"p=0.1": 0.9}, {"p=0.1": 0.9})])
    vars(run)["final"].notes = ["The feature index does not separate the clients.", PersonalUnderShift().caution]
    assert kinds(Comparison([run])) == ["selected on the test", "noted by a run", "one seed"]


def test_samples_and_classes_stand_beside_each_score(runs: Path):
    """Three domains of 2 classes; what data.json contains about an environment adds up to the n of its score."""
    results = Comparison.at(runs)
    test, validation = environments(results)
    assert test.columns == ["environment", "n", "n of a class", "fedavg"]
    assert (len(test.rows), len(validation.rows)) == (1, 2)
    for role, table in (("test", test), ("validation", validation)):
        counted = class_counts(results, role)
        assert counted is not None
        assert {row[0]: str(sum(map(int, row[1:]))) for row in counted.rows} == {row[0]: row[1] for row in table.rows}
    facts = results.runs[0].data_facts
    assert {id: sum(counts) for id, counts in facts["trained_classes"].items()} == facts["samples"]


def test_terms_of_the_loss_are_means_over_clients():
    """Clients a and b minimise 1 and 3: their mean is 2; the server's term has a separate panel."""
    one = record(1, "train", 1, {"t": 0.5}, {"v": 0.5})
    one["terms"] = {"a": {"risk": 1.0}, "b": {"risk": 3.0}, "server": {"risk": 5.0}}
    panels = {panel.title: panel for panel in by_term(Comparison([made(table_of("fedavg"), [one])]))}
    assert {name: panel.lines[0].edge(0) for name, panel in panels.items()} == {
        "risk": [2.0],
        "risk (on the server)": [5.0],
    }


def test_a_figure_on_the_page_has_the_classes_of_its_rows_and_ids_of_its_own():
    results = COMPARISONS["few"]
    one, other, *_ = charts(by_round(results), "by-round", "")
    drawn = one.inline("one") + other.inline("other")
    assert {f'class="{row_id(number)}"' in drawn for number in range(len(results.rows()))} == {True}
    ids = re.findall(' id="([^"]*)"', drawn)
    assert len(ids) == len(set(ids)) > 0
    assert {*re.findall(r'(?:url\(|href=")#([\w-]+)', drawn)} <= {*ids}
    assert not re.search(r'(?<= d=")[^"]*\.\d{3}', drawn)


def test_a_figure_as_a_file_has_a_legend_and_is_the_same_each_time():
    (chart, *_) = charts(by_round(COMPARISONS["one"]), "by-round", "")
    first = chart.svg()
    assert b"fedavg" in first
    assert chart.svg() == first
    assert "fedavg" not in re.sub("<desc.*?</desc>", "", chart.inline("x"))
    assert isinstance(chart, Chart)
    assert [*chart.data[0]] == ["line", "training round", "mean", "std"]


def test_a_plot_has_the_mean_and_the_t_interval_of_every_row_and_environment(tmp_path: Path):
    """50, 60 and 70 % have the mean 60 and the deviation 10; t of two degrees is 4.3027, so the half is 24.84.

    The mean over t and u, at 80 % each time, is 65, 70 and 75 %, with half of that.
    """
    runs = [
        made(table_of("fedavg", seed), [record(1, "train", 1, {"t": value, "u": 0.8}, {"v": 0.5})])
        for seed, value in enumerate((0.5, 0.6, 0.7))
    ]
    runs.append(made(table_of("$fedsr$"), [record(1, "train", 1, {"t": 0.9, "u": 0.7}, {"v": 0.4})]))
    results = Comparison(runs)
    (axis,) = results.plot().axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["t", "u", "mean"]
    marks = {}
    for bars in axis.containers:
        ends = [segment[:, 1].tolist() for segment in bars[2][0].get_segments()]
        marks[bars.get_label()] = bars[0].get_ydata().tolist(), [(high - low) / 2 for low, high in ends]
    assert marks["fedavg"][0] == pytest.approx([60, 80, 70])
    assert marks["fedavg"][1] == pytest.approx([24.84, 0, 12.42], abs=0.005)
    assert marks["$fedsr$"] == (pytest.approx([90, 70, 80]), pytest.approx([0, 0, 0]))
    results.plot().savefig(tmp_path / "scores.png")
    (axis,) = results.plot("validation").axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["v"]
    many = {str(number): number / 20 for number in range(20)}
    (axis,) = Comparison([made(table_of("fedavg"), [record(1, "train", 1, many, {"v": 0.5})])]).plot().axes
    assert axis.containers[0][0].get_ydata().tolist() == pytest.approx([47.5])
    with refuses("'auroc'", "accuracy"):
        results.plot(metric="auroc")
    with refuses("role = 'tests'", "'validation'"):
        results.plot("tests")  # type: ignore[arg-type]  # that is the point


def test_a_table_as_latex_and_csv():
    table = Table("50 % & more", ["method", "a_b"], [["x{1}", "1.0 ± 0.5"], ["y\\z", "<0.1, [2"]])
    assert table.latex() == (
        "\\begin{table}\n  \\caption{50 \\% \\& more}\n  \\begin{tabular}{lr}\n    \\toprule\n"
        "    method & a\\_b \\\\\n    \\midrule\n"
        "    x\\{1\\} & 1.0 $\\pm$ 0.5 \\\\\n    y\\textbackslash{}z & $<$0.1, {[}2 \\\\\n"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )
    assert table.csv() == 'method,a_b\nx{1},1.0 ± 0.5\ny\\z,"<0.1, [2"\n'


def test_every_table_and_figure_of_the_report_is_written_as_files(runs: Path, tmp_path: Path):
    written = Comparison.at(runs).write(tmp_path / "files")
    names = {path.name for path in written}
    assert {"results.tex", "results.md", "results.csv", "models.csv", "environments-1.tex"} <= names
    assert {"by-round-1-target-light.svg", "by-round-1-target-light.png", "by-round-1-target-light.csv"} <= names
    assert {path.name for path in (tmp_path / "files").iterdir()} == names


def test_what_is_damaged_or_has_no_record_is_a_warning_and_the_rest_is_shown(tmp_path: Path):
    compare(TINY, out=tmp_path, seed=[0, 1, 2], progress=Progress())
    first, second, third = sorted(path.parent for path in tmp_path.rglob("records.jsonl"))
    (first / "records.jsonl").write_text("{}\n")
    for name in ("summary.json", "records.jsonl", *(path.name for path in second.glob("manifest-*"))):
        (second / name).unlink()
    failed = {"when": "2026-01-01T00:00:00Z", "kind": "failed", "who": "x", "why": "The loss is not finite."}
    (second / "events.jsonl").write_text(json.dumps(failed) + "\n")
    results = Comparison.at(tmp_path)
    assert [run.path.name for run in results.runs] == [third.name]
    texts = [caution.text for caution in results.cautions() if caution.kind == "excluded"]
    assert first.name in texts[0]
    assert "records.jsonl" in texts[0]
    assert f"{second.name} has no record yet. The loss is not finite." in texts[1]
    assert page(results, NOW, "no run is finished").count("Sample images are not shown: no run is finished") == 1


def test_what_clients_sent_is_counted_by_part():
    """By hand: a weight of 3 x 2 and a bias of 3 in float32 are 36 bytes of the encoder; down does not count."""
    tensor = {"clients": "0-1", "rounds": "1-2"}
    up = {
        "encoder.weight": {"type": "float32", "shape": [3, 2], "messages": 4, **tensor},
        "encoder.bias": {"type": "float32", "shape": [3], "messages": 4, **tensor},
        "head.weight": {"type": "float32", "shape": [2, 3], "messages": 4, **tensor},
    }
    loss = {"term.loss": {"type": "float64", "shape": [], "messages": 2, **tensor}}
    messages = {
        "train": {"down": {"tensors": up}, "up": {"tensors": up}, "telemetry": {"tensors": loss}},
        "vectors": {"up": {"tensors": {"head.weight": {"type": "float32", "shape": [1, 3], "messages": 2, **tensor}}}},
    }
    assert parts_sent(messages) == [
        ("encoder", "result", ["train"], 2, 36, 4),
        ("head", "result", ["train", "vectors"], 1, 24, 6),
        ("term", "telemetry", ["train"], 1, 8, 2),
    ]


def test_a_type_that_no_message_has_is_refused():
    """A table sizes what left a client by its type, so a forged one must not reach it."""
    tensor = {"type": "load", "shape": [1], "messages": 1, "clients": "0", "rounds": "1"}
    counted = {"messages": 1, "clients": "0", "rounds": "1", "bytes": 4, "largest": 4, "tensors": {"head.bias": tensor}}
    with pytest.raises(ValidationError, match="float32"):
        MessageTable.model_validate({"train": {"up": counted}})
    tensor["type"] = "float32"
    MessageTable.model_validate({"train": {"up": counted}})
