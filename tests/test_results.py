"""Tables, curves and reports agree with the records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, Make, a_folder, a_record, a_row
from fedshift.reporting.results import MeanStd
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.selection import spread, summary
from fedshift.study.api import Comparison, compare
from refusal import refuses


def record(position: int, test: float, *validation: float, stage: str = "train") -> dict[str, Any]:
    rows = [{"environment": "t", "role": "test", "accuracy": test, "models": 1}]
    rows += [
        {"environment": f"v{i}", "role": "validation", "accuracy": value, "models": 1}
        for i, value in enumerate(validation)
    ]
    return {"position": position, "stage": stage, "environments": rows}


def test_selection_rules_by_hand():
    """Mean validation: 0.5, 0.8, 0.8, 0.7; test: 0.1, 0.2, 0.9, 0.3.

    last is round 4; source_validation is round 2, the earliest of equals; the oracle is round 3.
    """
    records = [record(1, 0.1, 0.4, 0.6), record(2, 0.2, 0.7, 0.9), record(3, 0.9, 0.8, 0.8), record(4, 0.3, 0.7, 0.7)]
    chosen = summary(records)
    assert {name: rule["position"] for name, rule in chosen.items()} == {
        "last": 4,
        "source_validation": 2,
        "target_best": 3,
    }
    assert chosen["last"]["test"] == 0.3
    assert [name for name, rule in chosen.items() if rule["oracle"]] == ["target_best"]


def test_the_mean_of_the_last_evaluations_by_hand():
    """Four evaluations, the mean of three requested: the second is another stage's, so (0.3 + 0.9) / 2 = 0.6 remain.

    Their standard deviation is 0.3 sqrt(2). Validation of these two: 0.5 and 0.7. A third whose environment has other
    samples (n) leaves 0.9 alone.
    """
    rows = [
        [a_row("t", "test", test), a_row("v", "validation", value)]
        for test, value in ((0.1, 0.2), (0.3, 0.5), (0.9, 0.7))
    ]
    first, second, third = ({**a_record(at, its), "last": 3} for at, its in enumerate(rows, 1))
    chosen = summary([first, {**first, "stage": "other"}, second, third])["last"]
    assert (chosen["position"], chosen["test"], chosen["validation"]) == (3, pytest.approx(0.6), pytest.approx(0.6))
    of_two = [first, {**first, "stage": "other"}, second, third]
    assert spread(of_two, "test") == pytest.approx(0.3 * 2**0.5)
    assert spread([{**each, "last": 1} for each in of_two], "test") is None
    second["environments"][0]["n"] += 1
    assert summary([second, third])["last"]["test"] == 0.9


def test_mean_and_sample_standard_deviation_over_seeds():
    """0.80, 0.84, 0.88: mean 0.84, deviations -0.04, 0, 0.04, so std = sqrt(0.0032 / 2) = 0.04."""
    measured = MeanStd.of([0.80, 0.84, 0.88])
    assert measured is not None
    assert measured.text(100) == "84.0 ± 4.0"
    assert MeanStd.of([0.5]).text(100) == "50.0"
    assert MeanStd.of([]) is None


def written(root: Path, method: str, seed: int, hold_out: str, accuracy: float, make: Make) -> Run:
    """A run folder with made-up records."""
    experiment = make({"method.name": method, "seed": seed, "protocol.hold_out": hold_out})
    rows = [a_row(hold_out, "test", accuracy)]
    rows += [a_row(name, "validation", 0.9) for name in ("dark", "gray", "light") if name != hold_out]
    return a_folder(root / experiment.run_name, experiment, [a_record(2, rows)])


def test_the_headline_table_by_hand(make: Make, tmp_path: Path):
    """Two held-out domains, two seeds: 0.6 and 0.7 on dark, 0.8 and 1.0 on light.

    dark: mean 65, std 7.1; light: mean 90, std 14.1; each seed's mean: 0.70 and 0.85, so 77.5 with std 10.6.
    """
    cells = {("dark", 0): 0.6, ("dark", 1): 0.7, ("light", 0): 0.8, ("light", 1): 1.0}
    folders = [written(tmp_path, "fedavg", seed, domain, value, make) for (domain, seed), value in cells.items()]
    results = Comparison.read(folders)
    headline, by_domain = results.tables()
    assert headline.columns[:6] == [
        "method",
        "target worst",
        "target mean",
        "target dark",
        "target light",
        "source mean",
    ]
    assert headline.rows == [
        ["fedavg", "65.0 ± 7.1", "77.5 ± 10.6", "65.0 ± 7.1", "90.0 ± 14.1", "90.0 ± 0.0", "77.5 ± 10.6", "77.5 ± 10.6"]
    ]
    assert by_domain.columns == ["method", "gray", "light", "dark"]
    assert "seeds 0, 1" in headline.title


def test_how_far_evaluations_differ_stands_beside_their_mean_and_the_best(make: Make, tmp_path: Path):
    """The last two of 90, 50 and 70: mean 60, standard deviation 20 / sqrt(2) = 14.1; the best of all is 90."""
    experiment = make({"protocol.hold_out": "dark", "evaluate.last": 2})
    rows = [[a_row("dark", "test", score), a_row("gray", "validation", 0.9)] for score in (0.9, 0.5, 0.7)]
    records = [a_record(at, its, last=2) for at, its in enumerate(rows, 1)]
    (headline,) = Comparison.read([a_folder(tmp_path / experiment.run_name, experiment, records)]).tables()
    assert headline.columns[-2:] == ["target best (oracle)", "target sd over evaluations"]
    assert [headline.rows[0][at] for at in (1, -2, -1)] == ["60.0", "90.0", "14.1"]


def test_the_worst_domain_is_found_in_each_seed_first(make: Make, tmp_path: Path):
    """Seed 0: dark 0.6, light 0.8; seed 1: dark 0.9, light 0.7. Worst 0.6 and 0.7: 65 with std 7.1.

    The seeds' means are 0.7 and 0.8. Over seeds both domains have 75, so the worst of means would be another number.
    """
    cells = {("dark", 0): 0.6, ("dark", 1): 0.9, ("light", 0): 0.8, ("light", 1): 0.7}
    results = Comparison.read([written(tmp_path, "fedavg", s, d, value, make) for (d, s), value in cells.items()])
    ((_, worst, middle, dark, light, *_),) = results.tables()[0].rows
    assert (worst, middle) == ("65.0 ± 7.1", "75.0 ± 7.1")
    assert (dark[:4], light[:4]) == ("75.0", "75.0")
    assert results.worst("fedavg") == pytest.approx(0.65)
    with refuses("'fedsr'", "rows: fedavg"):
        results.worst("fedsr")


def recorded(
    root: Path, make: Make, protocol: str, seed: int, tests: dict[str, list[float]], method: str = "fedavg"
) -> Run:
    """A run folder whose clients have made-up accuracies on each test environment."""
    experiment = make({"method.name": method, "seed": seed, "protocol": {"name": protocol}})
    rows = [a_row(name, "test", value, model="own") for name, values in tests.items() for value in values]
    rows.append({**rows[0], "role": "validation"})
    return a_folder(root / experiment.run_name, experiment, [a_record(2, rows)])


SEEDS = (
    {"p=0": [0.2, 0.4], "p=0.5": [0.6, 0.8], "p=1": [1.0, 0.8]},
    {"p=0": [0.5, 0.7], "p=0.5": [0.4, 0.6], "p=1": [0.7, 0.7]},
)


def test_worst_and_mean_under_shift_by_hand(make: Make, tmp_path: Path):
    """Means over clients: seed 0: 0.3, 0.7, 0.9; seed 1: 0.6, 0.5, 0.7.

    Worst: 0.3 and 0.5, so 40 with std 0.2 / sqrt 2 = 14.1 (the worst mean over seeds would be 45, the worst client 20).
    Mean: 0.6333 and 0.6, so 61.7 with std 2.4. By environment: 45 ± 21.2, 60 ± 14.1, 80 ± 14.1.
    """
    folders = [recorded(tmp_path, make, "personal-under-shift", seed, tests) for seed, tests in enumerate(SEEDS)]
    results = Comparison.read(folders)
    (headline,) = results.tables()  # the single validation environment needs no table of its own
    assert headline.columns[:6] == ["method", "test worst", "test mean", "test p=0", "test p=0.5", "test p=1"]
    assert headline.rows[0][:6] == ["fedavg", "40.0 ± 14.1", "61.7 ± 2.4", "45.0 ± 21.2", "60.0 ± 14.1", "80.0 ± 14.1"]


UNEVEN = {"a": [0.4], "b": [0.6, 0.8, 1.0]}


def test_a_domain_counts_once_however_many_clients_it_has(make: Make, tmp_path: Path):
    """a: 0.4; b: (0.6 + 0.8 + 1.0) / 3 = 0.8; so 60, and 70 over the four clients where all count equally."""
    inside = Comparison.read([recorded(tmp_path, make, "in-domain", 0, UNEVEN)])
    assert inside.tables()[0].rows[0][:5] == ["fedavg", "40.0", "60.0", "40.0", "80.0"]
    together = {"all clients": [value for values in UNEVEN.values() for value in values]}
    everyone = Comparison.read([recorded(tmp_path, make, "all-clients", 0, together)])
    assert everyone.tables()[0].columns[:2] == ["method", "all clients"]
    assert everyone.tables()[0].rows[0][:2] == ["fedavg", "70.0"]


def test_what_part_of_the_loss_each_term_makes_up_by_hand(make: Make, tmp_path: Path):
    """Round 2: dark 3 and -1, light 1 and 0, so 4 and 1 of 5; round 4: 1 and 1; round 6: 0.9997 and 0.0003.

    The server's 9 is no part of it. The other seed has 1 and 1 in round 2: (80 + 50) / 2 = 65. A method with a single
    term has no row.
    """
    rows = [a_row("dark", "test", 0.5), a_row("dark", "validation", 0.5)]
    even = {"dark": {"ce": 1.0, "align": 1.0}}
    first = {"dark": {"ce": 3.0, "align": -1.0}, "light": {"ce": 1.0, "align": 0.0}, "server": {"consensus": 9.0}}
    late = {"dark": {"ce": 0.9997, "align": 0.0003}}
    told = {
        ("fedcir", 0): (first, even, late),
        ("fedcir", 1): (even, even, late),
        ("fedavg", 0): ({"dark": {"ce": 1.0}}, {}, {"dark": {"ce": 0.0}}),
    }
    folders = []
    for (method, seed), rounds in told.items():
        experiment = make({"method.name": method, "seed": seed, "protocol": {"name": "in-domain"}})
        records = [a_record(2 * number, rows, terms=terms) for number, terms in enumerate(rounds, 1)]
        folders.append(a_folder(tmp_path / experiment.run_name, experiment, records))
    results = Comparison.read(folders)
    *_, terms = results.tables()
    assert terms.columns == ["method: term", "first scored round", "half-way", "last"]
    assert terms.rows == [["fedcir: ce", "65.0", "50.0", "100.0"], ["fedcir: align", "35.0", "50.0", "<0.1"]]


def test_rows_are_told_apart_by_what_differs(tiny_document: dict[str, Any]):
    comparison = compare(
        tiny_document, method=["fedavg", "fedprox"], settings={"train.lr": [0.1, 0.01]}, progress=Progress()
    )
    labels = [row.label for row in comparison.rows()]
    assert labels == ["fedavg (lr=0.1)", "fedavg (lr=0.01)", "fedprox (lr=0.1)", "fedprox (lr=0.01)"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = str(tmp_path_factory.mktemp("runs"))
    return compare(TINY, out=out, method=["fedavg", "single"], seed=[0, 1], progress=Progress())


def test_the_report_stands_alone_and_holds_the_tables(comparison: Comparison, tmp_path: Path):
    page = comparison.report(tmp_path / "report.html").read_text()
    assert not re.search(r'(src|href)="http', page)
    for table in comparison.tables():
        assert all(f">{cell}</t" in page for row in table.rows for cell in row)
    assert "encoder.1.weight" in page  # what crosses the wire
    assert ">term.cross_entropy</th><td>telemetry from clients</td>" in page
    assert "scored with each client&#39;s own model" in page  # single on an unseen domain


def test_a_comparison_as_markdown_has_the_cells_of_its_tables(comparison: Comparison):
    headline = comparison.tables()[0]
    lines = comparison.table().split("\n")
    assert lines[0] == f"**{headline.title}**"
    assert lines[2] == f"| {' | '.join(headline.columns)} |"
    assert [f"| {' | '.join(row)} |" for row in headline.rows] == lines[4 : 4 + len(headline.rows)]
    assert all(f"- {note}" in lines for note in comparison.notes())


def test_a_method_in_our_form_is_noted_once(make: Make, tmp_path: Path):
    folders = [written(tmp_path, method, seed, "dark", 0.5, make) for method in ("fedsr", "fedsdr") for seed in (0, 1)]
    assert [note.split()[0] for note in Comparison.read(folders).notes() if "our form" in note] == ["fedsdr"]
