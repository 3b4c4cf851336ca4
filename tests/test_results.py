"""Tables, curves and reports say what the records say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conftest import TINY, Make
from fedshift.api import Comparison, compare, load, resume
from fedshift.content import digest
from fedshift.errors import FedshiftError
from fedshift.grid import override
from fedshift.reporting.results import Measured, Results
from fedshift.reporting.table import as_text, tables
from fedshift.reporting.units import bytes_text, clock
from fedshift.runs.folder import RunFolder
from fedshift.runs.progress import Progress
from fedshift.runs.selection import summary


def record(position: int, test: float, *validation: float) -> dict[str, Any]:
    rows = [{"environment": "t", "role": "test", "accuracy": test, "models": 1}]
    rows += [
        {"environment": f"v{i}", "role": "validation", "accuracy": value, "models": 1}
        for i, value in enumerate(validation)
    ]
    return {"position": position, "environments": rows}


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


def test_mean_and_sample_standard_deviation_over_seeds():
    """0.80, 0.84, 0.88: mean 0.84, deviations -0.04, 0, 0.04, so std = sqrt(0.0032 / 2) = 0.04."""
    measured = Measured.of([0.80, 0.84, 0.88])
    assert measured is not None
    assert measured.percent() == "84.0 ± 4.0"
    assert Measured.of([0.5]).percent() == "50.0"
    assert Measured.of([]) is None


def written(root: Path, method: str, seed: int, hold_out: str, accuracy: float, make: Make) -> RunFolder:
    """A run folder with made-up records."""
    experiment = make({"method.name": method, "seed": seed, "protocol.hold_out": hold_out})
    folder = RunFolder.create(experiment, root / experiment.run_name)
    sources = [name for name in ("dark", "gray", "light") if name != hold_out]
    environments = [{"environment": hold_out, "role": "test", "accuracy": accuracy, "models": 1, "n": 9}]
    environments += [{"environment": s, "role": "validation", "accuracy": 0.9, "models": 1, "n": 9} for s in sources]
    folder.record({"position": 2, "environments": environments, "bytes_down": 1, "bytes_up": 1})
    folder.write_json("summary.json", {"notes": [], "experiment": digest(folder.experiment_file)})
    return folder


def test_the_headline_table_by_hand(make: Make, tmp_path: Path):
    """Two held-out domains, two seeds: 0.6 and 0.7 on dark, 0.8 and 1.0 on light.

    dark: mean 65, std 7.1; light: mean 90, std 14.1; each seed's mean: 0.70 and 0.85, so 77.5 with std 10.6.
    """
    cells = {("dark", 0): 0.6, ("dark", 1): 0.7, ("light", 0): 0.8, ("light", 1): 1.0}
    folders = [written(tmp_path, "fedavg", seed, domain, value, make) for (domain, seed), value in cells.items()]
    results = Results.read(folders)
    headline, by_domain = tables(results)
    assert headline.columns[:5] == ["method", "target dark", "target light", "target mean", "source mean"]
    assert headline.rows == [
        ["fedavg", "65.0 ± 7.1", "90.0 ± 14.1", "77.5 ± 10.6", "90.0 ± 0.0", "77.5 ± 10.6", "77.5 ± 10.6"]
    ]
    assert by_domain.columns == ["method", "gray", "light", "dark"]
    assert "seeds 0, 1" in headline.title


def test_a_row_that_lacks_runs_says_so(make: Make, tmp_path: Path):
    """Means over different domains must not stand side by side without a word."""
    cells = [("fedavg", "dark"), ("fedavg", "light"), ("fedprox", "light")]
    results = Results.read([written(tmp_path, method, 0, domain, 0.5, make) for method, domain in cells])
    assert (
        "fedprox has no run for seed 0 with dark held out; its means are over fewer runs than others." in results.notes
    )


def test_a_run_that_diverges_does_not_keep_the_others_from_theirs(tiny_document: dict[str, Any]):
    changes = {"train.lr": [900.0, 0.1], "train.rounds": 6, "train.momentum": 0.99}
    comparison = compare(tiny_document, changes, Progress())
    (message,) = comparison.diverged
    assert "not finite" in message
    assert [run.folder.finished for run in comparison.results.runs].count(True) == 1


def test_rows_are_told_apart_by_what_differs(tiny_document: dict[str, Any]):
    comparison = compare(tiny_document, {"train.lr": [0.1, 0.01], "method.name": ["fedavg", "fedprox"]}, Progress())
    labels = [row.label for row in comparison.results.rows()]
    assert labels == ["fedavg (lr=0.1)", "fedavg (lr=0.01)", "fedprox (lr=0.1)", "fedprox (lr=0.01)"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = str(tmp_path_factory.mktemp("runs"))
    return compare(TINY, {"run.out": out, "method.name": ["fedavg", "single"], "seed": [0, 1]}, Progress())


def test_records_hold_no_time_and_count_bytes(comparison: Comparison):
    for run in comparison.results.runs:
        assert [r["position"] for r in run.records] == [1, 2]
        assert not re.search("time|second", json.dumps(run.records))
        sent = run.folder.read_json("messages.json")["train"]["up"]["bytes"]
        assert run.records[-1]["bytes_up"] == 2 * 2 * sent  # two rounds, two clients


def test_finished_runs_are_not_repeated(comparison: Comparison):
    class Watch(Progress):
        began, again = 0, 0

        def begin(self, outlook: object) -> None:
            self.began += 1

        def reused(self, name: str) -> None:
            self.again += 1

    watch = Watch()
    out = str(comparison.folders[0].parents[1])
    compare(TINY, {"run.out": out, "method.name": ["fedavg", "single"], "seed": [0, 1, 2]}, watch)
    assert (watch.began, watch.again) == (2, 4)


def test_the_report_stands_alone_and_holds_the_tables(comparison: Comparison, tmp_path: Path):
    page = comparison.report(tmp_path / "report.html").read_text()
    assert not re.search(r'(src|href)="http', page)
    assert "<script" not in page
    for table in tables(comparison.results):
        assert all(f"<td>{cell}</td>" in page for row in table.rows for cell in row)
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    ElementTree.fromstring(svg)
    assert "encoder.1.weight" in page  # what crosses the wire
    assert "scored with each client&#39;s own model" in page  # single on an unseen domain


def test_a_page_escapes_what_users_write(tiny_document: dict[str, Any], tmp_path: Path):
    comparison = compare(override(tiny_document, {"name": "<b>bold"}), progress=Progress())
    page = comparison.report(tmp_path / "report.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;bold" in page


def test_the_comparison_prints_and_answers(comparison: Comparison):
    text = str(comparison)
    assert "fedavg" in text
    assert "single" in text
    assert 0 <= comparison.accuracy("fedavg") <= 1
    with pytest.raises(FedshiftError, match="rows: fedavg, single"):
        comparison.accuracy("fedsr")
    assert "<table>" in comparison._repr_html_()


def test_runs_are_loaded_and_resumed_by_path(comparison: Comparison, tmp_path: Path):
    root = comparison.folders[0].parent
    assert len(load(root).folders) >= 4
    assert resume(comparison.folders[0], Progress()).folders == [comparison.folders[0]]
    with pytest.raises(FedshiftError, match="no run folder at or below"):
        load(tmp_path)


def test_an_unfinished_run_is_shown_as_such(make: Make, tmp_path: Path):
    folder = written(tmp_path, "fedavg", 0, "dark", 0.5, make)
    (folder.path / "summary.json").unlink()
    assert "is not finished: round 2 of 2" in as_text(Results.read([folder]))


def test_units():
    assert [bytes_text(n) for n in (0, 999, 1000, 2_442_000, 3 * 10**12)] == [
        "0 B",
        "999 B",
        "1 kB",
        "2.442 MB",
        "3 TB",
    ]
    assert [clock(s) for s in (0, 61, 3600 + 62)] == ["0:00", "1:01", "1:01:02"]
