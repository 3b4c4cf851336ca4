"""The papers' tables and curves: their files, their plans at every scale, and small ones run and resumed."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedshift
import fresh
from conftest import Begun
from fedshift.cli.app import app
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.reporting.analyses import ANALYSES
from fedshift.reporting.results import MeanStd
from fedshift.runs import scheduling
from fedshift.runs.events import Progress
from fedshift.runs.find import find
from fedshift.runs.run import Run
from fedshift.study import study_plan as planning
from fedshift.study.execute import DIVERGED, PlanOutcome
from fedshift.study.grid import Document, expand
from fedshift.study.papers import PAPERS, exhibit_of, exhibits
from fedshift.study.quantities import quantity
from fedshift.study.reproduction import Reproduction, differences_from_paper, minus, plan_table
from fedshift.study.scenarios import scales, scenarios
from fedshift.study.study_tables import RUNS_FILE, Count, run_folders
from fresh import ok

SIZES = ("smoke", "short", "paper")
CARRIED_OUT = [name for name, exhibit in exhibits().items() if not exhibit.why]


# The files ----------------------------------------------------------------------------------------


def test_every_file_is_read_and_says_what_it_is():
    assert [*scales("papers")] == [*SIZES]
    for scenario in scenarios("papers").values():
        assert {*scenario.sizes} <= {*SIZES}
        assert scenario.columns
        for text in scenario.columns.values():
            quantity(text)
    used = {scenario.name for exhibit in exhibits().values() for scenario in exhibit.scenarios}
    assert used == {*scenarios("papers")}
    for name, exhibit in exhibits().items():
        assert exhibit.paper in PAPERS.values()
        assert bool(exhibit.why) == (exhibit.kind == "omitted") == (not exhibit.reproduced), name
        assert exhibit.kind != "curve" or exhibit.across
        assert (exhibit.kind == "analysis") == bool(exhibit.analysis)
        if exhibit.analysis:
            ANALYSES.build(exhibit.analysis)
            assert exhibit.statement, name  # what the paper's figure shows
        assert len({row.name for row in exhibit.rows}) == len(exhibit.rows)
        assert all(bool(row.method) != bool(row.why) for row in exhibit.rows), name


NUMBERED = {"fedsr": (4, 1), "fedcir": (3, 12), "fraug": (3, 2), "client2vec": (7, 9), "fedpin": (4, 3)}


def test_every_table_and_figure_of_the_papers_is_known():
    """How many tables and figures each paper has, its appendix included, counted in its text."""
    names = {f"{paper}-table{n}" for paper, (tables, _) in NUMBERED.items() for n in range(1, tables + 1)}
    names |= {f"{paper}-fig{n}" for paper, (_, figures) in NUMBERED.items() for n in range(1, figures + 1)}
    assert {*exhibits()} == names
    drawings = {name for name, exhibit in exhibits().items() if exhibit.why}
    assert drawings == {"fedcir-fig1", "fedcir-fig2", "fraug-fig1", "fedpin-fig1"} | {
        f"client2vec-fig{n}" for n in (1, 4, 7)
    }


@pytest.mark.parametrize("name", [*exhibits()])
def test_printed_numbers_stand_under_columns(name: str):
    """A row has as many as its scenario has columns."""
    exhibit = exhibit_of(name)
    its = {scenario.name: scenario for scenario in exhibit.scenarios}
    for row in exhibit.rows:
        assert {*row.published} <= {*its}
        assert {*row.at} <= {*its}
        for panel, numbers in row.published.items():
            points = [*exhibit.points("paper")]
            heads = [*exhibit.quantities(its[panel])] if points == [""] else points
            assert len(numbers) == len(heads), (row.name, panel)
            assert all(number is None or number.mean >= 0 for number in numbers)


@pytest.mark.parametrize("size", SIZES)
def test_every_cell_has_experiments_at_every_scale(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Settings of a cell go together, and nobody needs the data for that. What tables have in common is built once."""
    built: dict[str, list[Experiment]] = {}

    def once(document: Document) -> list[Experiment]:
        key = json.dumps(document, sort_keys=True)
        if key not in built:
            built[key] = expand(document)
        return built[key]

    monkeypatch.setattr(planning, "expand", once)
    for name in CARRIED_OUT:
        if not any(size in scenario.sizes for scenario in exhibit_of(name).scenarios):
            with pytest.raises(FedshiftError, match="give another --scale"):
                plan_table(name, size)
            continue
        plan = plan_table(name, size, out=tmp_path)
        first = replace(plan, scale=replace(plan.scale, seeds=plan.scale.seeds[:1]))  # seeds are of every cell the same
        keys = [cell.key for cell in first.cells]
        assert len({*keys}) == len(keys) > 0, name
        for cell in first.cells:
            assert len({each.method_name for each in cell.experiments}) == 1, cell.key


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
    assert quoted("fedcir-table2", "reg 0.1, align 5e-06", "fedcir-pacs") == [67.73]
    assert quoted("fraug-table2", "FRAug", "fraug-digits") == [97.81, 81.65, 81.24, 97.67, 89.59]
    assert quoted("fraug-table3", "All", "fraug-office-home")[-1] == 66.6
    assert quoted("client2vec-table1", "FedAvg + i + ii + iii (Federated)", "client2vec-cifar10") == [59.29]
    assert quoted("client2vec-table6", "FedDyn (Global)", "client2vec-cifar10") == [78.01, 70.59]
    assert quoted("fedpin-table1", "FedSDR (our form)", "fedpin-pacs-60") == [48.1, 51.6]
    assert quoted("fedpin-table2", "PM", "fedpin-cfmnist") == [59.8, 63.1]


# Beside the paper ---------------------------------------------------------------------------------


def test_a_number_outside_of_two_deviations_is_marked():
    """60 ± 0.5 reaches 61 and no further; of one seed there is no deviation, so nothing is claimed."""
    assert minus(MeanStd(60.0, 0.5), 61.0) == "(-1.0)"
    assert minus(MeanStd(60.0, 0.5), 61.1) == "(-1.1*)"
    assert minus(MeanStd(60.0, None), 70.0) == "(-10.0)"


# Asked for ----------------------------------------------------------------------------------------


def test_cells_that_are_printed_in_several_tables_are_the_same_runs(tmp_path: Path):
    """Client2Vec's Tables 1, 2 and 5 have cells in common; so have Figure 5's plain rows."""

    def runs(table: str, row: str, point: str = "") -> list[str]:
        plan = plan_table(table, "paper", panels="client2vec-cifar10", rows=row, out=tmp_path)
        (cell,) = (cell for cell in plan.cells if cell.key[2] == point)
        return [each.fingerprint for each in cell.experiments]

    alone = runs("client2vec-table1", "FedAvg + i (Global)")
    assert alone == runs("client2vec-table2", "Client2Vec", "i")
    assert alone == runs("client2vec-table5", "FedAvg (Global)", "tau = 1")
    assert runs("client2vec-table1", "Moon") == runs("client2vec-fig5", "Moon")
    drawn = "Moon (Federated)"
    assert runs("client2vec-table7", drawn, "5") == runs("client2vec-fig6", drawn, "weight = 5")
    assert runs("client2vec-table5", drawn, "tau = 2") == runs("client2vec-fig6", drawn, "tau = 2")


def test_settings_of_methods_that_a_scale_changes_are_said(tmp_path: Path):
    """Client2Vec's encoder and epochs at short, of all its rows."""
    plan = plan_table("client2vec-table1", "short", out=tmp_path)
    panel = next(each for each in plan.scenarios if each.name == "client2vec-cifar10")
    of_method = differences_from_paper(plan, panel)["rows of client2vec"]
    assert {"method.index.epochs 100 (500)", "method.index.encoder.name 'offline' ('clip')"} <= {*of_method}
    text = "\n".join(Reproduction(plan).notes())
    assert "CIFAR-10, small network, rows of client2vec, other than in the paper: " in text
    assert "CIFAR-10, small network, other than in the paper: data.size 16 (32)" in text


def test_other_data_are_named_and_not_compared(tmp_path: Path):
    """PACS at short instead of DomainNet."""
    plan = plan_table("client2vec-table3", "short", out=tmp_path)
    (panel,) = plan.scenarios
    assert plan.title(panel) == "PACS in 60 clients, frozen features, instead of DomainNet, MobileNetV2"
    done = Reproduction(plan, {(panel.name, "FedAvg", "Index and training"): {0: 30000.0, 1: 30000.0}})
    assert "| 30000.0 ± 0.0 |" in done.table()
    assert "the paper, DomainNet, MobileNetV2 | 26224 |" in done.table()


# Carried out --------------------------------------------------------------------------------------


def test_a_table_is_carried_out_once_and_stands_beside_the_papers(tmp_path: Path):
    first, second = Begun(), Begun()
    part = fedshift.reproduce("fedpin-table2", out=tmp_path, progress=first, rows=["GM"])
    assert (part.count.finished, part.count.runs) == (1, 7)
    done = fedshift.reproduce("fedpin-table2", out=tmp_path, progress=second)
    assert (len(first.begun), len(second.begun)) == (1, 6)
    assert done.count.complete
    folder = tmp_path / "fedpin-table2-smoke"
    text = (folder / "fedpin-table2.md").read_text()
    assert text == done.table()
    assert "|   the paper | 53.6 | 55.4 |" in text
    lines = [*csv.DictReader((folder / "fedpin-table2.csv").read_text().splitlines())]
    assert len(lines) == 7 * 2
    assert [each["paper"] for each in lines if each["row"] == "PM"] == ["53.6", "55.4"]
    whole = json.loads((folder / "fedpin-table2.json").read_text())
    assert whole["measurements"] == done.measurements()
    assert any("train.rounds 2 (600)" in note for note in whole["notes"])


def test_an_exhibit_with_an_analysis_shows_it_beside_what_the_paper_says(tmp_path: Path):
    """Similarity of the index: a row and a point of it are a row of the analysis, with its charts beside the page."""
    done = fedshift.reproduce("client2vec-fig8", rows=["Without it"], out=tmp_path, progress=Progress())
    folder = tmp_path / "client2vec-fig8-smoke"
    assert [row[0] for row in done.tables()[0].rows][::2] == ["Without it, 1 epoch", "Without it, 2 epochs"]
    chart = "client2vec-fig8.similarity-without-it-2-epochs"
    assert {f"{chart}.{kind}" for kind in ("png", "svg", "csv")} <= {file.name for file in folder.iterdir()}
    page = (folder / "client2vec-fig8.md").read_text()
    assert f"]({chart}.png)" in page
    assert "The paper: without the loss the feature index becomes nearly the same" in page
    lines = [*csv.DictReader((folder / "client2vec-fig8.csv").read_text().splitlines())]
    assert {line["method"] for line in lines} == {"Without it, 1 epoch", "Without it, 2 epochs"}
    assert all(-1 <= float(line["cosine"]) <= 1.001 for line in lines)


def test_points_of_two_settings_are_drawn_apart(tmp_path: Path):
    """Figure 6: the weight on the left and tau on the right."""
    plan = plan_table("client2vec-fig6", out=tmp_path)
    numbers = {
        ("client2vec-cifar10", "Moon (Global)", f"{name} = {n}"): {0: n} for name in ("weight", "tau") for n in (1, 5)
    }
    weight, tau = Reproduction(plan, numbers).panels(plan.known[0])
    assert (weight.across, tau.across) == ("weight", "tau")
    assert [*weight.ticks.values()] == ["1", "5", "10"]
    assert [*tau.ticks.values()] == ["0.1", "0.5", "1", "2"]


def test_a_command_that_is_killed_goes_on_and_repeats_nothing(tmp_path: Path):
    words = ["reproduce", "fedpin-table2", "--out", str(tmp_path)]
    child = fresh.start(fresh.fedshift, *words)
    fresh.until(lambda: sum(folder.finished for folder in find(tmp_path, least=0)) >= 2, child)
    child.kill()
    written = [folder.path / "summary.json" for folder in find(tmp_path) if folder.finished]
    before = {path: path.stat().st_mtime_ns for path in written}
    assert "7 of 7 runs finished" in ok(*words)
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    listed = CliRunner().invoke(app, ["reproduce", "fedpin-table2", "--list", "--out", str(tmp_path)])
    assert "they took 0:" in listed.output


def test_a_table_whose_runs_are_damaged_is_told_apart(tmp_path: Path):
    """--list marks that table; a reproduction names what to delete, and then repeats it."""
    fedshift.reproduce("fedpin-table2", out=tmp_path, rows=["GM", "PM"], progress=Progress())
    damaged = next(folder for folder in find(tmp_path) if "fedpin-gm-" in folder.path.name)
    (damaged.path / "records.jsonl").write_text("{}\n")
    (damaged.path / "run.json").write_text("{}")
    with pytest.raises(FedshiftError, match="Or delete the run's folder: the same command repeats it"):
        fedshift.reproduce("fedpin-table2", out=tmp_path, rows=["PM"], progress=Progress())
    shutil.rmtree(damaged.path)
    done = fedshift.reproduce("fedpin-table2", out=tmp_path, rows=["GM"], progress=Progress())
    assert str(done.count) == "2 of 7 runs finished"
    (tmp_path / "fedpin-table2-smoke" / RUNS_FILE).write_text('["x"]')
    (state,) = fedshift.reproductions(["fedpin-table2"], "smoke", out=tmp_path).states
    assert str(state) == "damaged"
    assert RUNS_FILE in state.damaged


def test_a_cell_that_diverged_is_counted_alike_everywhere(tmp_path: Path):
    """Seed 0 of FedAvg diverged: its three seeds are over, whether they ran or not. No advice that is refused here."""
    plan = plan_table("fedsr-table1", "short", rows="FedAVG", out=tmp_path)
    folders = [[Run(tmp_path / name) for name in names] for names in run_folders(plan)]
    first = plan.cells[0].experiments[0]
    folder = Run.create(first, scheduling.run_path(first))
    (folder.path / DIVERGED).write_text("The loss is not finite.")
    runs, over = sum(map(len, folders)), len(plan.cells[0].experiments)
    assert str(Count.of(folders)) == f"0 of {runs} runs finished, {over} diverged"
    done = Reproduction.read(plan, plan.whole.cells, PlanOutcome())
    assert str(done.count) == str(Count.of(folders))
    assert f"{done.count}; they took" in done.table()
    assert "RotatedMNIST, FedAVG: diverged. The loss is not finite." in done.table()


def test_a_dry_run_writes_nothing(tmp_path: Path):
    words = ["reproduce", "fedpin-table2", "--row", "GM", "--row", "PM", "--out", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "2 runs planned" in result.output
    assert "Nothing was written." in result.output
    assert not (tmp_path / "out").exists()


def test_a_list_without_data_or_runs(tmp_path: Path):
    found = fedshift.reproductions(scale="smoke", out=tmp_path)
    assert {each.table for each in found.states} == {*exhibits()}
    assert {str(each) for each in found.states} <= {"not run", "-", "drawing"}
    of_paper = fedshift.reproductions(["fedcir"], out=tmp_path)
    assert {each.table for each in of_paper.states} == {name for name in exhibits() if name.startswith("fedcir-")}
    assert {(each["table"], each["scale"]) for each in json.loads(of_paper.json())} == {
        (each.table, each.scale) for each in of_paper.states
    }


@pytest.mark.parametrize("size", SIZES)
def test_the_cost_of_every_table_is_known_without_its_data(size: str, tmp_path: Path):
    """Its network and its data are not read; at smoke, a minute, nothing is estimated."""
    found = fedshift.reproductions(scale=size, out=tmp_path, costs=True).states
    with_cost = {each.table for each in found if each.cost}
    assert with_cost == (
        set() if size == "smoke" else {each.table for each in found if not each.why and each.scenarios}
    )


def test_a_cost_is_counted_by_hand(tmp_path: Path):
    """FedSR Fig. 1 on RotatedMNIST: two methods, seeds 0, 1, 2, one angle of six held out, 1500 rounds of 5 steps.

    Each run has 5 clients x 1500 rounds x 5 steps = 37,500 steps; 2 x 3 runs have 225,000, at 8 ms 1,800 s.
    """
    (state,) = fedshift.reproductions(["fedsr-fig1"], "paper", out=tmp_path, costs=True).states
    assert state.cost is not None
    assert (state.cost.runs, state.cost.steps) == (6, 225_000)
    assert state.cost.seconds == pytest.approx(1800)
    assert str(state.cost) == "30 min"


def test_the_list_of_a_table_has_its_command_and_cost(tmp_path: Path):
    listed = CliRunner().invoke(
        app, ["reproduce", "fedsr-table3", "--list", "--out", str(tmp_path)], env={"COLUMNS": "200"}
    )
    assert "fedshift reproduce fedsr-table3 --scale paper --data office-home=PATH" in listed.output
    assert "days (GPU)" in listed.output


def test_a_data_set_of_several_files_is_named_with_the_one_that_lacks(tmp_path: Path):
    given = {"digits.usps": tmp_path / "nowhere"}
    (state,) = fedshift.reproductions(["fraug-table2"], "short", data=given, out=tmp_path).states
    assert "--data digits.usps=PATH" in state.needs["fraug-digits"].why


def test_what_is_needed_is_said_with_the_fix(tmp_path: Path):
    """By the data set itself, in a list, a dry run and a run."""
    given = {"colored-fashion-mnist": tmp_path / "nowhere"}
    (state,) = fedshift.reproductions(["fedpin-table2"], "short", data=given, out=tmp_path).states
    assert str(state).startswith("needs ")
    assert "--data colored-fashion-mnist=PATH" in state.needs["fedpin-cfmnist"][1]
    nowhere = f"colored-fashion-mnist={tmp_path / 'nowhere'}"
    words = ["reproduce", "fedpin-table2", "--scale", "short", "--panel", "fedpin-cfmnist", "--data", nowhere]
    for more in ([], ["--dry-run"]):
        with pytest.raises(FedshiftError, match="nowhere"):
            CliRunner().invoke(app, [*words, *more, "--out", str(tmp_path)], catch_exceptions=False)
