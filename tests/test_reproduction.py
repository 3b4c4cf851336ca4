"""The papers' tables and curves: their files, their plans at every scale, and small ones carried out and resumed."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedshift
from fedshift.cli.app import app
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.reporting.results import MeanStd
from fedshift.reproduction.carry_out import RUNS_FILE
from fedshift.reproduction.exhibits import PAPERS, Printed, exhibit_of, exhibits, printed
from fedshift.reproduction.panels import panels, scales
from fedshift.reproduction.plan import Plan
from fedshift.reproduction.reproduction import Beside
from fedshift.reproduction.scores import score
from fedshift.runs.folder import find
from fedshift.runs.progress import Progress

SIZES = ("smoke", "short", "paper")
CARRIED_OUT = [name for name, exhibit in exhibits().items() if not exhibit.why]


# The files ----------------------------------------------------------------------------------------


def test_every_file_is_read_and_says_what_it_is():
    assert [*scales()] == [*SIZES]
    for panel in panels().values():
        assert {*panel.sizes} <= {*SIZES}
        assert panel.columns
        for text in panel.columns.values():
            score(text)
    used = {panel.name for exhibit in exhibits().values() for panel in exhibit.panels}
    assert used == {*panels()}
    for name, exhibit in exhibits().items():
        assert exhibit.paper in PAPERS.values()
        assert exhibit.what.endswith(".")
        assert exhibit.kind in ("table", "curve", "picture")
        assert bool(exhibit.why) == (exhibit.kind == "picture") == (not exhibit.carried_out), name
        assert exhibit.kind != "curve" or exhibit.along
        assert len({row.name for row in exhibit.rows}) == len(exhibit.rows)
        assert all(bool(row.method) != bool(row.why) for row in exhibit.rows), name
        assert any("short" in panel.sizes or "paper" in panel.sizes for panel in exhibit.panels) != bool(exhibit.why)


@pytest.mark.parametrize("name", [*exhibits()])
def test_printed_numbers_stand_under_columns(name: str):
    """A row has as many as its panel has columns, and percentages are between 0 and 100."""
    exhibit = exhibit_of(name)
    its = {panel.name: panel for panel in exhibit.panels}
    for row in exhibit.rows:
        assert {*row.published} <= {*its}
        assert {*row.at} <= {*its}
        for panel, numbers in row.published.items():
            points = [*exhibit.points("paper")]
            heads = [*exhibit.scores(its[panel])] if points == [""] else points
            assert len(numbers) == len(heads), (row.name, panel)
            assert all(number is None or number.mean >= 0 for number in numbers)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CARRIED_OUT)
def test_every_row_has_its_experiments_at_every_scale(name: str, size: str, tmp_path: Path):
    """Runs of a cell differ in seed and held-out domain alone, and nobody needs the data for that."""
    if not any(size in panel.sizes for panel in exhibit_of(name).panels):
        with pytest.raises(FedshiftError, match="give another --scale"):
            Plan.of(name, size)
        return
    plan = Plan.of(name, size, out=tmp_path)
    keys = [cell.key for cell in plan.cells]
    assert len({*keys}) == len(keys) > 0
    for cell in plan.cells:
        assert len({each.series for each in cell.experiments}) == 1, cell.key
        assert {each.seed for each in cell.experiments} == {*plan.scale.seeds}
        assert {each.method_name for each in cell.experiments} == {cell.row.method}


def quoted(table: str, row: str, panel: str) -> list[float | None]:
    """The printed means of a row."""
    (found,) = (each for each in exhibit_of(table).rows if each.name == row)
    return [number and number.mean for number in found.published[panel]]


def test_published_numbers_are_the_papers():
    """Figures as the papers print them."""
    assert quoted("fedsr-table1", "FedSR", "fedsr-rotated-mnist") == [93.6, 99.3, 99.3, 99.2, 99.3, 93.5, 97.4]
    assert quoted("fedsr-table2", "FedSR", "fedsr-pacs") == [83.2, 76.0, 93.8, 81.9, 83.7]
    assert quoted("fedsr-table4", "FedSR", "fedsr-domainnet") == [None] * 6 + [41.3]
    assert quoted("fedcir-table1", "FedCiR", "fedcir-iwildcam") == [86.23]
    assert quoted("fedcir-table1", "FedAvg", "fedcir-pacs") == [52.61]
    assert quoted("fedcir-table2", "reg 0.1, align 5e-06", "fedcir-pacs") == [67.73]
    assert quoted("fraug-table2", "FRAug", "fraug-digits") == [97.81, 81.65, 81.24, 97.67, 89.59]
    assert quoted("fraug-table2", "Single", "fraug-pacs") == [82.37, 86.08, 92.01, 87.52, 87.0]
    assert quoted("fraug-table3", "All", "fraug-office-home")[-1] == 66.6
    assert quoted("client2vec-table1", "FedAvg", "client2vec-cifar10") == [42.24]
    assert quoted("client2vec-table1", "FedAvg + i + ii + iii (Federated)", "client2vec-cifar10") == [59.29]
    assert quoted("client2vec-table1", "FedIIR + i (Global)", "client2vec-domainnet") == [57.05]
    assert quoted("client2vec-table6", "FedDyn (Global)", "client2vec-cifar10") == [78.01, 70.59]
    assert quoted("fedpin-table1", "FedSDR", "fedpin-pacs-60") == [48.1, 51.6]
    assert quoted("fedpin-table1", "FedPIN", "fedpin-cfmnist") == [59.8, 63.1]
    assert quoted("fedpin-table2", "GM", "fedpin-cfmnist") == [48.2, 50.1]
    assert quoted("fedpin-table2", "PM", "fedpin-cfmnist") == [59.8, 63.1]


def test_a_published_number_is_read_with_its_deviation():
    assert printed("85.9±0.6 - 94.50") == [Printed(85.9, 0.6, "85.9 ± 0.6"), None, Printed(94.5, None, "94.50")]


# Beside the paper ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("std", "paper", "difference", "outside"),
    [(0.5, 61.0, -1.0, False), (0.5, 61.1, -1.1, True), (None, 70.0, -10.0, False), (0.1, None, None, False)],
)
def test_a_number_outside_of_two_deviations_is_marked(
    std: float | None, paper: float | None, difference: float | None, outside: bool
):
    """60 ± 0.5 reaches 61 and no further; of one seed there is no deviation, so nothing is said."""
    found = Beside(MeanStd(60.0, std), None if paper is None else Printed(paper, None, ""))
    assert found.difference == (None if difference is None else pytest.approx(difference))
    assert found.outside is outside


def test_a_score_that_is_none_is_named():
    with pytest.raises(FedshiftError, match="'median' is no score; give one of mean, worst"):
        score("median")


# Asked for ----------------------------------------------------------------------------------------


def test_names_that_are_not_known_are_named():
    with pytest.raises(UnknownNameError, match=r"Unknown table 'fedsr-tabel1'. Did you mean 'fedsr-table1'"):
        Plan.of("fedsr-tabel1", "smoke")
    with pytest.raises(UnknownNameError, match="Unknown scale 'tiny'"):
        Plan.of("fedsr-table1", "tiny")
    with pytest.raises(UnknownNameError, match="Unknown row 'FedSRR'"):
        Plan.of("fedsr-table1", "smoke", rows="FedSRR")
    with pytest.raises(UnknownNameError, match="Unknown panel 'x'"):
        Plan.of("fedsr-table1", "smoke", panels=["x"])
    with pytest.raises(UnknownNameError, match="Unknown data set 'pacs'"):
        Plan.of("fedsr-table1", "smoke", data={"pacs": "x"})
    with pytest.raises(FedshiftError, match=r"train\.lr = 0\.1: a table's settings are what is reproduced"):
        Plan.of("fedsr-table1", "smoke", run={"train.lr": 0.1})


TWO = {"run.threads": 2}


def test_the_command_says_how_it_was_made():
    plan = Plan.of("fedpin-table2", "short", "fedpin-cfmnist", data={"colored-fashion-mnist": "a folder"}, run=TWO)
    assert plan.command == (
        "fedshift reproduce fedpin-table2 --scale short --data 'colored-fashion-mnist=a folder' --set run.threads=2"
    )
    assert {each.data.path for cell in plan.cells for each in cell.experiments} == {"a folder"}  # type: ignore[attr-defined]


# Carried out --------------------------------------------------------------------------------------


class Heard(Progress):
    """The names of the runs that begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, outlook):
        self.begun.append(outlook.name)
        return super().begin(outlook)


def test_a_table_is_carried_out_once_and_stands_beside_the_papers(tmp_path: Path):
    first, second = Heard(), Heard()
    part = fedshift.reproduce("fedpin-table2", out=tmp_path, progress=first, rows=["GM"])
    assert (part.outcome.finished, part.outcome.runs, part.complete) == (1, 6, False)
    done = fedshift.reproduce("fedpin-table2", out=tmp_path, progress=second)
    assert len(first.begun) == 1
    assert len(second.begun) == 5
    assert done.complete
    folder = tmp_path / "fedpin-table2-smoke"
    names = {path.name for path in folder.iterdir()}
    assert names == {RUNS_FILE, *(f"fedpin-table2.{kind}" for kind in ("md", "csv", "json"))}
    text = (folder / "fedpin-table2.md").read_text()
    assert text == done.table()
    assert "|   the paper | 53.6 | 55.4 |" in text
    assert "6 of 6 runs are finished" in text
    lines = [*csv.DictReader((folder / "fedpin-table2.csv").read_text().splitlines())]
    assert len(lines) == 6 * 2
    whole = json.loads((folder / "fedpin-table2.json").read_text())
    (cell,) = (each for each in whole["cells"] if (each["row"], each["column"]) == ("PM", "Worst"))
    (line,) = (each for each in lines if (each["row"], each["column"]) == ("PM", "Worst"))
    assert cell["ours"]["mean"] == float(line["value"])
    assert cell["difference"] == pytest.approx(float(line["value"]) - 53.6)
    assert whole["command"] == f"fedshift reproduce fedpin-table2 --scale smoke --out {tmp_path}"
    assert "PM (gamma = 0)" in str(done)
    assert "<table" in done._repr_html_()


def test_a_command_that_is_killed_goes_on_and_repeats_nothing(tmp_path: Path):
    """SIGKILL of a child process once two runs are finished; the same command then carries out the other four."""
    words = ["reproduce", "fedpin-table2", "--out", str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-c", "from fedshift.cli.app import main; main()", *words],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    while sum(folder.finished for folder in find(tmp_path, least=0)) < 2:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    written = [folder.path / "summary.json" for folder in find(tmp_path) if folder.finished]
    before = {path: path.stat().st_mtime_ns for path in written}
    listed = CliRunner().invoke(app, ["reproduce", "fedpin-table2", "--list", "--out", str(tmp_path)])
    assert f"{len(before)} of 6 runs" in listed.output
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert "6 of 6 runs are finished" in result.output
    listed = CliRunner().invoke(app, ["reproduce", "fedpin-table2", "--list", "--out", str(tmp_path)])
    assert "done, 0:0" in listed.output


def test_a_dry_run_measures_and_writes_nothing(tmp_path: Path):
    words = ["reproduce", "fedpin-table2", "--row", "GM,PM", "--out", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "2 runs of 2 rows would be" in result.output
    assert "Nothing was written." in result.output
    assert not (tmp_path / "out").exists()


def test_what_is_needed_is_said_with_the_fix(tmp_path: Path):
    """By the data set itself, in a list, a dry run and a run."""
    given = {"colored-fashion-mnist": tmp_path / "nowhere"}
    (state,) = fedshift.reproductions(["fedpin-table2"], "short", data=given, out=tmp_path).states
    assert str(state).startswith("needs ")
    assert "colored-fashion-mnist" in str(state)
    what, why = state.needs["fedpin-cfmnist"]
    assert what == "colored-fashion-mnist"
    assert f"data.path = '{tmp_path / 'nowhere'}' is no folder; give 'debian', 'hub', or a folder of idx files" in why
    assert "--data colored-fashion-mnist=PATH" in why
    nowhere = f"colored-fashion-mnist={tmp_path / 'nowhere'}"
    words = ["reproduce", "fedpin-table2", "--scale", "short", "--panel", "fedpin-cfmnist", "--data", nowhere]
    for more in ([], ["--dry-run"]):
        with pytest.raises(FedshiftError, match="is no folder"):
            CliRunner().invoke(app, [*words, *more, "--out", str(tmp_path)], catch_exceptions=False)


def test_a_list_without_data_or_runs(tmp_path: Path):
    found = fedshift.reproductions(scale="smoke", out=tmp_path)
    assert {each.table for each in found.states} == {*exhibits()}
    assert {str(each) for each in found.states} <= {"not run", "-", "not reproduced"}
    with pytest.raises(UnknownNameError, match="Unknown data set 'foo'"):
        fedshift.reproductions(data={"foo": "x"})
    assert "No table is named" in str(CliRunner().invoke(app, ["reproduce"]).exception)


# The page -----------------------------------------------------------------------------------------


def listed() -> str:
    """The list of tables and figures in docs/reproduce.md; printed by `python tests/test_reproduction.py`."""
    lines = ["| table | what it shows | data, or why it is not reproduced |", "|---|---|---|"]
    for name, exhibit in exhibits().items():
        beside = "; ".join(panel.title for panel in exhibit.panels) or f"not reproduced: {exhibit.why}"
        lines.append(f"| `{name}` | {exhibit.what} | {beside} |")
    return "\n".join(lines) + "\n"


def test_the_page_lists_every_table():
    page = Path(__file__).parents[1] / "docs" / "reproduce.md"
    assert listed() in page.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(listed(), end="")  # noqa: T201
