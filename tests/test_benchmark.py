"""The benchmark: its statistics by hand, its set and its scales, and a small one run and continued with."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from typer.testing import CliRunner

import fedshift
from conftest import Begun
from fedshift.cli.app import app
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.reporting.curves import Line, Panel
from fedshift.reporting.intervals import Interval, paired, t_quantile
from fedshift.reporting.results import MeanStd
from fedshift.runs.events import Progress
from fedshift.runs.locks import locked
from fedshift.runs.run import Run
from fedshift.study import benchmark_plan as benchmarking
from fedshift.study import execute
from fedshift.study.benchmark import Benchmark
from fedshift.study.benchmark_plan import BASE, contents, exhibit_of_methods, plan_benchmark, rows
from fedshift.study.execute import DIVERGED
from fedshift.study.figures import draw_curve, draw_panel
from fedshift.study.papers import ExhibitRow, published
from fedshift.study.quantities import ranks
from fedshift.study.records import Lacking, published_records, records_of
from fedshift.study.scenarios import Scale, Scenario, Size, scales, scenarios
from fedshift.study.study_plan import StudyPlan
from fedshift.study.tune import plan_studies
from fresh import ok
from refusal import refuses

# Statistics ---------------------------------------------------------------------------------------


def test_ranks_begin_with_the_highest_and_equal_values_share_the_mean_of_theirs():
    """0.9 is first; the two 0.8 would be second and third, so each is (2 + 3) / 2; 0.1 is fourth."""
    assert ranks({"a": 0.8, "b": 0.9, "c": 0.1, "d": 0.8}) == {"a": 2.5, "b": 1.0, "c": 4.0, "d": 2.5}
    assert ranks({"a": 0.5, "b": 0.5, "c": 0.5}) == dict.fromkeys("abc", 2.0)


def test_an_interval_is_students():
    """Of 1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14, so s² = 7 and s/√3 = √(7/3).

    With 2 degrees of freedom the distribution function of t is 1/2 + t / (2 √(2 + t²)), which is 0.975 where
    t² = 0.95² 2 / (1 - 0.95²): t = 4.3027.
    """
    t = sqrt(0.95**2 * 2 / (1 - 0.95**2))
    found = Interval.of([1.0, 2.0, 6.0])
    assert found is not None
    assert found.half is not None
    assert (found.mean, found.count) == (3.0, 3)
    assert found.half == pytest.approx(t * sqrt(7 / 3), rel=1e-9)
    assert t_quantile(2) == pytest.approx(4.302653, abs=1e-6)
    assert not found.clear
    assert paired({1: 0.7, 2: 0.9, 3: 0.8}, {2: 0.5, 3: 0.9, 4: 1.0}) == pytest.approx({2: 0.4, 3: -0.1})


# The set ------------------------------------------------------------------------------------------


def test_every_scale_has_scenarios_and_keeps_the_seeds_it_tunes_on_apart():
    assert {*scenarios("benchmark")} == {*contents()["federations"]}
    for name, scale in scales("benchmark").items():
        assert any(name in scenario.sizes for scenario in scenarios("benchmark").values())
        assert not {*scale.seeds} & {*scale.tuning_seeds}
        assert {*scale.methods} <= {*METHODS}


@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_every_method_has_its_experiments_on_every_scenario(scale: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedshift.datasets.image_sets.PACS.domain_names", lambda self: ("art", "photo", "sketch"))
    plan = plan_benchmark(scale, data={} if scale == "smoke" else {"heart": "heart.csv", "opt": "opt.csv"})
    for scenario in plan.scenarios:
        for cell in plan.cells_of(scenario):
            found = cell.make(plan.scale.seeds[:1])
            domains = {getattr(each.protocol, "hold_out", "") for each in found}
            assert len(found) == len(domains)
            assert {each.method_name for each in found} == {cell.key[1].partition(" ")[0]}
            assert cell.budget
            assert len(plan_studies(cell.make((100,)), cell.budget)[0][0].combinations) == cell.budget.trials


def test_rows_are_what_is_published_and_a_plugin_is_a_row_by_its_name():
    found = rows()
    assert {*contents()["left_out"]} <= {*METHODS}
    assert not {*found} & {*contents()["left_out"]}
    assert {"single", "centralised", BASE} <= {*found}
    assert "slow-fedsr" not in found  # of a plugin that the tests import
    assert rows(["all", "slow-fedsr"]) == [*found, "slow-fedsr"]
    assert rows(["fedsr", "fedl2r"]) == ["fedsr", "fedl2r"]
    with refuses("'fedsr'", "twice"):
        rows(["all", "fedsr"])
    with pytest.raises(UnknownNameError):
        rows(["fedsrr"])
    with refuses("No method", "'all'"):
        rows([])


def test_what_is_published_is_read_off_the_right_rows_and_columns():
    """Against the papers: FedSR Tables 1 and 2, FedPIN Tables 1 and 2."""
    by_column = {paper.column: paper for paper in published()}
    means = {name: paper.numbers(paper.mean) for name, paper in by_column.items()}
    assert means["rotated-mnist-0"]["fedsr"].text == "93.6 ± 0.3"
    assert by_column["rotated-mnist-0"].source == "Nguyen, Lim and Torr, FedSR, NeurIPS 2022, Table 1, 0"
    colored = by_column["colored-fashion-mnist"]
    worsts = colored.numbers(colored.worst)
    assert (means[colored.column]["fedsdr"].mean, worsts["fedsdr"].mean) == (61.9, 56.9)
    assert (means[colored.column]["fedpin-gm"].mean, worsts["fedpin-gm"].mean) == (50.1, 48.2)
    assert means["pacs-leave-one-out"]["fedavg"].mean == 80.3


def test_a_small_scale_searches_the_highest_rates():
    """Smoke has two of each column's five: with few rounds the lowest train nothing."""
    (cell,) = plan_benchmark("smoke", ["fedavg"], "rotated-mnist-0").cells
    assert cell.budget is not None
    assert cell.budget.search["train.lr"] == [0.05, 0.1]


def test_names_that_are_not_known_are_named():
    with refuses("scale 'tiny'", "smoke", error=UnknownNameError):
        plan_benchmark("tiny")
    with refuses("'heart'", "scale smoke", "--scale"):
        plan_benchmark("smoke", federations=["heart"])


def test_a_scenario_without_its_data_is_left_out_with_the_fix(tmp_path: Path):
    """Where no other is left, that is the error, of a dry run as well."""
    nowhere = {"pacs": tmp_path / "no.parquet"}
    plan = plan_benchmark("short", ["fedavg"], ["rotated-mnist-0", "pacs-leave-one-out"], data=nowhere)
    assert [cell.key[0] for cell in plan.available.cells] == ["rotated-mnist-0"]
    assert "no.parquet" in plan.excluded["pacs-leave-one-out"]
    assert "--data pacs=" in plan.excluded["pacs-leave-one-out"]
    words = ["benchmark", "--scale", "short", "--federation", "pacs-leave-one-out", "--dry-run"]
    dry = CliRunner().invoke(app, [*words, "--data", f"pacs={nowhere['pacs']}"])
    assert "no.parquet" in str(dry.exception)


# Tables of figures that are given -----------------------------------------------------------------

SEEDS = (1, 2, 3)
SCALE = Scale("small", "for a test", SEEDS, rates=2, choices=1, tuning_seeds=(0,))
SIZES = {"small": Size({"data": {"name": "tiny"}}, {})}
SCENARIOS = tuple(Scenario(name, name.upper(), SIZES, score="accuracy", worst=name == "b") for name in ("a", "b"))


def planned(scale: Scale, known: Sequence[Scenario], methods: Sequence[str], out: Path) -> StudyPlan:
    """The plan of a benchmark of these scenarios."""
    return StudyPlan.of(exhibit_of_methods(methods, (), known), scale, folder=out / "small", runs=out / "small")


@pytest.fixture
def small() -> Benchmark:
    """A benchmark with these accuracies in % by scenario and method, seed by seed."""
    accuracies = {
        ("a", "fedavg"): (50.0, 60.0, 70.0),
        ("b", "fedavg"): (50.0, 50.0, 50.0),
        ("a", "fedsr"): (60.0, 70.0, 80.0),
        ("b", "fedsr"): (50.0, 40.0, 60.0),
        ("a", "ditto"): (50.0, 60.0, 70.0),
    }
    lacking = {("b", "ditto"): Lacking("It needs two clients.", "refused")}
    lacking |= dict.fromkeys([("a", "fediir"), ("b", "fediir")], Lacking("Not finite.", "diverged"))
    numbers = {}
    for (scenario, method), values in accuracies.items():
        by_seed = dict(zip(SEEDS, values, strict=True))
        numbers[scenario, method, "accuracy"] = by_seed
        numbers[scenario, method, "worst"] = {seed: value / 2 for seed, value in by_seed.items()}
        numbers[scenario, method, "seconds"] = dict.fromkeys(SEEDS, 2.0)
        numbers[scenario, method, "megabytes"] = dict.fromkeys(SEEDS, 1.5)
    plan = planned(SCALE, SCENARIOS, ("fedavg", "fedsr", "ditto", "fediir"), Path("nowhere"))
    return Benchmark(plan, numbers, {(*key, ""): why for key, why in lacking.items()})


def test_mean_ranks_are_over_the_columns_on_which_a_method_can_run(small: Benchmark):
    """On a: FedSR 1, FedAvg and Ditto share 2.5, what diverged 4. On b FedAvg and FedSR have 50: 1.5 each, then 3.

    Ditto, which has no rank on b, stands behind those with two.
    """
    assert small.ranks("a") == {"fedsr": 1.0, "fedavg": 2.5, "ditto": 2.5, "fediir": 4.0}
    assert small.ranks("b") == {"fedsr": 1.5, "fedavg": 1.5, "fediir": 3.0}
    found = small.mean_ranks()
    assert [*found.items()] == [("fedsr", 1.25), ("fedavg", 2.0), ("fediir", 3.5), ("ditto", 2.5)]


def test_differences_are_paired_by_seed_within_a_column_and_over_all(small: Benchmark):
    """FedSR minus FedAvg is 10, 10, 10 on a and 0, -10, 10 on b: by seed 5, 0, 10, mean 5 and s 5.

    Without null rows intervals are widened by half a point: the half width is √(t² s² / 3 + 0.5²).
    """
    on_a, on_b, overall = small.difference("a", "fedsr"), small.difference("b", "fedsr"), small.overall("fedsr")
    assert on_a is not None
    assert on_b is not None
    assert overall is not None
    assert (on_a.mean, on_a.half) == pytest.approx((10, 0.5), abs=1e-9)
    assert (on_b.mean, on_b.half) == pytest.approx((0.0, sqrt(t_quantile(2) ** 2 * 100 / 3 + 0.25)))
    assert (overall.mean, overall.half) == pytest.approx((5, sqrt(t_quantile(2) ** 2 * 25 / 3 + 0.25)))
    assert small.overall("ditto") == Interval(0.0, 0.5, 3)  # of column a alone
    assert small.overall("fediir") is None


def test_tables_name_what_cannot_run_and_what_diverged(small: Benchmark):
    accuracy, differences, cost = small.tables()
    cells = {row[0]: row[2:] for row in accuracy.rows}
    assert accuracy.columns == ["method", "paper", "A", "B", "B worst", "mean rank"]
    assert cells["fedsr"] == ["70.0 ± 10.0 (1)", "50.0 ± 10.0 (1.5)", "25.0 ± 5.0", "1.2"]
    assert cells["ditto"] == ["60.0 ± 10.0 (2.5)", "-", "-", "2.5"]
    assert cells["fediir"] == ["diverged (4)", "diverged (3)", "-", "3.5"]
    assert {row[0]: row[1:] for row in differences.rows}["fedsr"] == [
        "+10.0 [+9.5, +10.5]*",
        "+0.0 [-24.8, +24.8]",
        "+5.0 [-7.4, +17.4]",
    ]
    assert cost.rows[0][1:] == ["2.0 s, 1.5 MB", "2.0 s, 1.5 MB"]
    said = small.notes()
    assert "B, ditto: cannot run. It needs two clients." in said
    assert "A, fediir: diverged. Not finite." in said


def test_a_picture_says_why_a_method_has_no_difference(small: Benchmark):
    """FedSR does not train on b; Ditto cannot run there; nobody run GroupDRO."""
    plan = planned(SCALE, SCENARIOS, (*small.methods, "groupdro"), Path("nowhere"))
    numbers = dict(small.numbers)
    numbers["b", "fedavg", "validation"] = dict.fromkeys(SEEDS, 80.0)
    numbers["b", "fedsr", "validation"] = dict.fromkeys(SEEDS, 65.0)
    cells = dict(replace(small, numbers=numbers, plan=plan).by_column())
    assert cells["fedavg"] == [Interval(0.0, 0.5, 3)] * 2
    assert cells["fedsr"] == [small.difference("a", "fedsr"), "did not train"]
    assert cells["ditto"] == [Interval(0.0, 0.5, 3), "-"]
    assert cells["fediir"] == ["diverged", "diverged"]
    assert cells["groupdro"] == ["", ""]


def test_what_did_not_train_has_no_rank_and_no_difference(small: Benchmark):
    """FedSR's validation accuracy is 65 on a and 66 on b, FedAvg's 80: 15 below is too far, 14 is not."""
    numbers = dict(small.numbers)
    for scenario, value in (("a", 65.0), ("b", 66.0)):
        numbers[scenario, "fedavg", "validation"] = dict.fromkeys(SEEDS, 80.0)
        numbers[scenario, "fedsr", "validation"] = dict.fromkeys(SEEDS, value)
    found = replace(small, numbers=numbers)
    assert found.ranks("a") == {"fedavg": 1.5, "ditto": 1.5, "fediir": 3.0}
    assert found.ranks("b") == small.ranks("b")
    assert found.difference("a", "fedsr") is None
    assert found.overall("fedsr") == found.difference("b", "fedsr")
    cells = {row[0]: row[2:] for row in found.tables()[0].rows}
    assert cells["fedsr"][0] == "70.0 ± 10.0 (did not train)"


def test_a_column_may_have_its_own_choices_of_a_method():
    """On Colored Fashion-MNIST IRM's penalty weighs from 1e4 on, not from 0.1; other methods have the rows' choices."""
    plan = plan_benchmark("short", ["irm", "ditto"])
    grids = {cell.key[:2]: cell.budget.search for cell in plan.cells if cell.budget}
    assert grids["colored-fashion-mnist", "irm"]["method.lam"] == [1e3, 1e4, 1e5]
    assert grids["rotated-mnist-0", "irm"]["method.lam"] != [1e3, 1e4, 1e5]
    ditto = {column: grid["method.lam"] for (column, row), grid in grids.items() if row == "ditto"}
    assert len(ditto) > 1
    assert all(values == ditto["heart"] for values in ditto.values())


def test_columns_lack_rows_that_they_cannot_judge(small: Benchmark):
    """Ditto's result is a model per client, which no held-out column scores; FedBN needs batch norm, as Digits has."""
    known = scenarios("benchmark")
    columns = {row: {key[0] for key in _keys([row])} for row in ("fedavg", "ditto", "fedbn")}
    assert columns["fedavg"] == {*contents()["federations"]}
    held_out = {name for name in columns["fedavg"] if known[name].sizes["short"].experiment["protocol"].get("hold_out")}
    assert columns["fedavg"] - columns["ditto"] == held_out
    assert columns["fedbn"] == {"digits", "pacs-leave-one-out"}
    assert published_records("short").cells <= {*_keys(["all"])}
    with refuses("'ditto' is no row of 'pacs-leave-one-out'", "client that never trained"):
        plan_benchmark("short", ["ditto"], ["pacs-leave-one-out"], data={"pacs": "pacs.parquet"})
    lacks = replace(small.plan.rows[1], without={SCENARIOS[0].name: "it cannot"})
    plan = replace(small.plan, rows=(small.plan.rows[0], lacks))
    assert f"{lacks.name}: no row of {SCENARIOS[0].title}: it cannot." in replace(small, plan=plan).notes()


def _keys(names: list[str]) -> list[tuple[str, str]]:
    return [cell.key[:2] for cell in plan_benchmark("short", names).cells]


def test_columns_of_the_same_data_count_as_one(small: Benchmark):
    """FedSR's ranks are 1 and 1.5; with a quarter of the weight on the second, (1 + 1.5 / 4) / (5 / 4) = 1.1."""
    light = replace(SCENARIOS[1], weight=0.25)
    plan = planned(SCALE, [SCENARIOS[0], light], small.methods, Path("nowhere"))
    assert replace(small, plan=plan).mean_ranks()["fedsr"] == pytest.approx(1.1)


def with_null_rows(small: Benchmark, first: float, second: float) -> Benchmark:
    """The same with two null rows that are this far from FedAvg in each seed."""
    rows = [
        ExhibitRow(name, name.partition(" ")[0]) for name in ("fedavg", "fedsr", "fedavg-again 1", "fedavg-again 2")
    ]
    numbers = dict(small.numbers)
    for scenario in ("a", "b"):
        for name, by in (("fedavg-again 1", first), ("fedavg-again 2", second)):
            base = small.by_seed(scenario, "fedavg", "accuracy")
            numbers[scenario, name, "accuracy"] = {seed: value + by for seed, value in base.items()}
    return replace(small, numbers=numbers, plan=replace(small.plan, rows=tuple(rows)))


def test_null_rows_calibrate_intervals(small: Benchmark):
    """Of two null rows 3 and -1 from FedAvg in each seed: s² = (9 + 1) / 2 = 5, with 2 degrees of freedom t √5 = 9.62.

    FedSR's own interval on a has no width, so that is all of it; on b √(half² + t² 5) with half = t 10 / √3. A row of
    the null can never be clear of 0: it is at most √2 s away, and t is above.
    """
    found = with_null_rows(small, 3.0, -1.0)
    t = t_quantile(2)
    on_a, on_b, null = (found.difference(*of) for of in (("a", "fedsr"), ("b", "fedsr"), ("a", "fedavg-again 1")))
    assert on_a and on_b and null
    assert on_a.half == pytest.approx(t * sqrt(5))
    assert on_b.half == pytest.approx(sqrt(t**2 * 100 / 3 + t**2 * 5))
    assert (null.mean, null.clear) == (pytest.approx(3.0), False)


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_intervals_cover_the_truth_although_differences_share_the_draw_of_fedavg(small: Benchmark, noise: float):
    """Rows that tuning moves by a normal draw each, FedAvg too, beside noise by seed: FedSR's true difference is 0.

    Differences of null rows share FedAvg's draw, so they are not independent. Yet a draw of FedAvg that is far off
    widens the interval as much as it moves the difference: of 95 % intervals at least 95 % must contain 0. Half a point
    is small beside the draws, of 50 points.
    """
    generator = np.random.default_rng(0)
    names = ["fedavg", "fedsr", *(f"fedavg-again {n}" for n in (1, 2, 3))]
    plan = replace(small.plan, rows=tuple(ExhibitRow(name, name.partition(" ")[0]) for name in names))

    def clear() -> bool:
        scores = 50 * (generator.normal(size=(5, 1)) + noise * generator.normal(size=(5, len(SEEDS))))
        by_row = {
            ("a", name, "accuracy"): dict(zip(SEEDS, row, strict=True))
            for name, row in zip(names, scores.tolist(), strict=True)
        }
        found = Benchmark(plan, by_row, {}).difference("a", "fedsr")
        assert found
        return found.clear

    assert 0 < sum(clear() for _ in range(4_000)) / 4_000 < 0.05


def test_the_mean_over_columns_is_calibrated_on_the_columns_of_its_row(small: Benchmark):
    """Null rows 3 and -1 from FedAvg on a alone, and FedAvg itself on b.

    Ditto has column a alone, where t √5 is its half width, over all columns as well; FedSR has both, over which the
    null rows are 1.5 and -0.5 away: s² = (2.25 + 0.25) / 2 = 1.25, beside 5 / √3 t over seeds.
    """
    found = with_null_rows(small, 3.0, -1.0)
    numbers = dict(found.numbers)
    for null in found.null_rows:
        numbers["b", null, "accuracy"] = found.by_seed("b", "fedavg", "accuracy")
    rows = (*found.plan.rows, ExhibitRow("ditto", "ditto"))
    found = replace(found, numbers=numbers, plan=replace(found.plan, rows=rows))
    ditto, both, t = found.overall("ditto"), found.overall("fedsr"), t_quantile(2)
    assert ditto is not None
    assert both is not None
    assert ditto == found.difference("a", "ditto")
    assert ditto.half == pytest.approx(t * sqrt(5))
    assert both.half == pytest.approx(sqrt(t**2 * 25 / 3 + t**2 * 1.25))


def test_no_published_null_row_differs_from_fedavg_by_more_than_the_other_null_rows_show():
    """Over seeds alone 5 of the 21 intervals exclude 0, as the page states; calibrated by the other two none does."""
    done = Benchmark.published()

    def without(row: str) -> Benchmark:
        return replace(done, plan=replace(done.plan, rows=tuple(each for each in done.plan.rows if each.name != row)))

    cells = [(column.name, row) for column in done.columns for row in done.null_rows]
    over_seeds = [Interval.of([*done.differences(*cell).values()]) for cell in cells]
    assert (len(cells), sum(found is not None and found.clear for found in over_seeds)) == (21, 5)
    calibrated = [without(row).difference(column, row) for column, row in cells]
    assert not any(found is None or found.clear for found in calibrated)


def test_notes_name_what_widens_intervals_and_scores_of_one_evaluation(small: Benchmark):
    assert any("without null rows (--method fedavg-again)" in note for note in small.notes())
    assert any("how far from 0 the null rows are" in note for note in with_null_rows(small, 3.0, -1.0).notes())
    assert not any("of one evaluation" in note for note in small.notes())
    rows = (*small.plan.rows, ExhibitRow("ftfa", "ftfa"))
    tuned = replace(small, plan=replace(small.plan, rows=rows))
    assert "ftfa: the last stage has one round, so the score is of one evaluation." in tuned.notes()


def test_a_method_in_our_form_is_marked_in_every_table():
    done = Benchmark.published()
    marked = [table for table in [*done.tables(), *done.more_tables()] if "fedsdr" in table.csv()]
    assert len(marked) >= 4
    assert all("fedsdr (our form)" in table.csv() and "\nfedsdr," not in table.csv() for table in marked)
    assert {"fedsdr (our form)", "fedsr"} <= {name for name, _ in done.by_column()}


def test_null_rows_that_equal_fedavg_leave_half_a_point_to_chance(small: Benchmark):
    """Where FedAvg follows a shortcut to the last digit, null rows show no chance: a difference of 0.4 is not clear.

    FedSR's interval on a has no width over seeds, so half a point on each side is all of it.
    """
    found = with_null_rows(small, 0.0, 0.0)
    close = dict(found.numbers)
    base = found.by_seed("a", "fedavg", "accuracy")
    close["a", "fedsr", "accuracy"] = {seed: value + 0.4 for seed, value in base.items()}
    its = replace(found, numbers=close).difference("a", "fedsr")
    assert its and (its.mean, its.half, its.clear) == (pytest.approx(0.4), pytest.approx(0.5), False)


def test_notes_name_the_rows_of_a_column_that_are_equal(small: Benchmark):
    equal = [note for note in with_null_rows(small, 0.0, 1.0).notes() if note.endswith("equal to the last digit.")]
    assert len(equal) == 2  # columns
    assert all(": fedavg, fedavg-again 1 are" in note for note in equal)
    published = Benchmark.published().equal_rows()
    assert published == [
        f"{column}: fedper, partialfed are equal to the last digit." for column in ("CFMNIST", "Heart", "OPT")
    ]


def test_null_rows_are_fedavg_with_other_batches():
    """They have the grid of FedAvg."""
    exhibit = exhibit_of_methods(["fedavg", "fedavg-again"], (), SCENARIOS)
    assert [row.name for row in exhibit.rows] == [
        "fedavg",
        *(f"fedavg-again {n}" for n in range(1, contents()["again"] + 1)),
    ]
    assert len({json.dumps(dict(row.settings)) for row in exhibit.rows}) == len(exhibit.rows)
    assert all(row.choices == {} for row in exhibit.rows)


def test_numbers_of_a_file_take_the_place_of_runs(on_tiny_data: StudyPlan):
    """What a benchmark wrote is read back whole, and only the row that it lacks is run."""
    before = Benchmark.run(with_rows(on_tiny_data, "fedavg"), Progress())
    (csv_file,) = (path for path in before.write() if path.suffix == ".csv")
    records, heard = records_of(csv_file.read_text()), Begun()
    assert records.numbers == before.numbers
    elsewhere = planned(
        on_tiny_data.scale, on_tiny_data.scenarios[:1], ["fedavg", "fedprox"], on_tiny_data.folder / "b"
    )
    done = Benchmark.run(replace(elsewhere, records=records), heard)
    assert {name.partition("-")[0] for name in heard.begun if name.startswith("fed")} == {"fedprox"}
    assert {key: its for key, its in done.numbers.items() if key[1] == "fedavg"} == before.numbers
    assert done.choices["tiny-sgd", "fedavg"] == before.choices["tiny-sgd", "fedavg"]
    lacking = replace(done, lacking={("tiny-sgd", "fedlc", ""): Lacking("It cannot.", "refused")})
    (again,) = (path for path in lacking.write() if path.suffix == ".csv")
    assert records_of(again.read_text()).lacking == lacking.lacking


def test_the_papers_rows_stand_beside_ours_with_a_caution(small: Benchmark):
    scenario = replace(SCENARIOS[0], name="rotated-mnist-0", title="RotatedMNIST 0")
    numbers = {(scenario.name, *key): by_seed for (name, *key), by_seed in small.numbers.items() if name == "a"}
    plan = planned(SCALE, [scenario], small.methods, Path("nowhere"))
    beside = Benchmark(plan, numbers).tables()[-1]
    assert beside.rows == [["fedsr", "70.0 ± 10.0", "93.6 ± 0.3"], ["fedavg", "60.0 ± 10.0", "85.9 ± 0.6"]]
    assert "Not comparable" in beside.title
    assert "Table 1" in beside.title


# Carried out --------------------------------------------------------------------------------------

TINY = """
[data]
name = "tiny"
[protocol]
name = "leave-one-domain-out"
hold_out = {held_out}
[model]
name = "mlp"
hidden = [8]
dim = 4
[train]
optimiser = "{optimiser}"
momentum = 0.0
[scenario]
title = "Tiny"
score = "accuracy"
worst = true
rates = [0.01, 0.05, 0.1]
[scenario.small.settings]
"train.rounds" = 2
"train.steps" = 2
"train.batch" = 4
"train.lr" = 0.1
"run.engine" = "sequential"
"run.threads" = 1
"run.device" = "cpu"
"""


@pytest.fixture
def on_tiny_data(tmp_path: Path) -> StudyPlan:
    """One held-out domain under SGD and two under Adam, two methods, two trials and two seeds: 3 x 2 x 4 = 24 runs."""
    held_out = {"sgd": '"dark"', "adam": '["dark", "gray"]'}
    found = tuple(
        Scenario.of(f"tiny-{name}", TINY.format(optimiser=name, held_out=domains)) for name, domains in held_out.items()
    )
    return planned(replace(SCALE, seeds=(1, 2)), found, ["fedavg", "fedprox"], tmp_path)


def with_rows(plan: StudyPlan, *methods: str) -> StudyPlan:
    """The plan with the first scenario and other rows."""
    return planned(plan.scale, plan.scenarios[:1], methods, plan.folder.parent)


def test_a_benchmark_is_carried_out_once(on_tiny_data: StudyPlan):
    first, second = Begun(), Begun()
    found = Benchmark.run(on_tiny_data, first)
    assert len(first.begun) == len({*first.begun}) == 24  # but for choices that a sampler repeats
    assert Benchmark.run(on_tiny_data, second).numbers == found.numbers
    assert second.begun == []
    assert found.lacking == {}
    assert {len(by_seed) for by_seed in found.numbers.values()} == {2}


def test_files_hold_what_the_tables_say_and_a_row_that_is_added_is_all_that_is_carried_out(on_tiny_data: StudyPlan):
    before, heard = Benchmark.run(with_rows(on_tiny_data, "fedavg"), Progress()), Begun()
    done = Benchmark.run(with_rows(on_tiny_data, "fedavg", "fedprox"), heard)
    assert {name.partition("-")[0] for name in heard.begun if name.startswith("fed")} == {"fedprox"}
    assert {key: its for key, its in done.numbers.items() if key[1] == "fedavg"} == before.numbers
    written = {path.name: path for path in done.write()}
    assert [*written] == [f"benchmark.{kind}" for kind in ("md", "csv", "json", "png", "html", "curves.png")]
    assert written["benchmark.md"].read_text() == done.table()
    lines = [*csv.DictReader(written["benchmark.csv"].read_text().splitlines())]
    accuracies = [line for line in lines if line["column"] == "accuracy"]
    assert [line["seed"] for line in accuracies] == ["1", "2", "1", "2"]
    assert float(accuracies[0]["value"]) == done.by_seed("tiny-sgd", "fedavg", "accuracy")[1]
    assert json.loads(written["benchmark.json"].read_text())["measurements"] == done.measurements()
    ((study,), (fedprox,)) = (done.chosen["tiny-sgd", method] for method in ("fedavg", "fedprox"))
    assert (study.trials, study.seeds) == (2, [0])
    assert {*fedprox.settings} == {*study.settings} == {"train.lr"}  # one choice of mu is none
    assert f"| fedavg | Tiny | dark | train.lr = {study.settings['train.lr']:.4g} |" in done.table()


def test_what_is_no_fault_of_a_method_ends_the_command_and_leaves_the_tables_alone(on_tiny_data: StudyPlan):
    """Another process busy with a study: the command ends, and resumes."""
    plan = replace(on_tiny_data, scenarios=on_tiny_data.scenarios[:1])
    cell = plan.cells[0]
    assert cell.budget
    ((study,), _) = plan_studies(cell.make((0,)), cell.budget)
    with locked(study.path), refuses("tiny-sgd, fedavg", "Another process", "same command"):
        Benchmark.run(plan, Progress())
    assert Benchmark.run(plan, Progress()).lacking == {}


def test_what_cannot_run_or_diverged_leaves_the_others_alone_and_is_not_tried_again(
    on_tiny_data: StudyPlan, monkeypatch: pytest.MonkeyPatch
):
    """A check of [train] refuses FedLC; FedProx blows up after its tuning, as a file in the run's folder records."""
    tuned = execute.PlanOutcome.tune

    def refuse(self, train):
        raise FedshiftError("It takes no batches of 4.")

    def blow_up(self, net, batch, context):
        return net.head(batch.z).sum() / 0

    def then_blow_up(*given):
        found = tuned(*given)
        monkeypatch.setattr(METHODS.get("fedprox"), "risk", blow_up)
        return found

    monkeypatch.setattr(METHODS.get("fedlc"), "check", refuse)
    monkeypatch.setattr(execute.PlanOutcome, "tune", then_blow_up)
    plan = planned(on_tiny_data.scale, on_tiny_data.scenarios[:1], ["fedlc", "fedprox"], on_tiny_data.folder.parent)
    first, second, third = Begun(), Begun(), Begun()
    done = Benchmark.run(plan, first)
    assert done.lacking["tiny-sgd", "fedlc", ""] == Lacking("It takes no batches of 4.", "refused")
    assert done.lacking["tiny-sgd", "fedprox", ""].kind == "diverged"
    assert done.chosen["tiny-sgd", "fedprox"]
    assert done.ranks("tiny-sgd") == {"fedprox": 1.0}
    (run,) = plan.folder.glob("tiny-sgd/fedprox-dark-seed*")
    assert run.name in first.begun
    assert Benchmark.run(plan, second).lacking == done.lacking
    assert second.begun == []
    (run / DIVERGED).unlink()
    Benchmark.run(plan, third)
    assert third.begun == [run.name]


def test_each_null_row_is_tuned_for_itself(on_tiny_data: StudyPlan):
    """Three rows of one method: each has its own study, and none replaces (with a warning) what another found."""
    done = Benchmark.run(with_rows(on_tiny_data, "fedavg", "fedavg-again"), Progress())
    found = [done.chosen["tiny-sgd", row][0] for row in done.null_rows]
    assert len({each.study for each in found}) == contents()["again"] == 3
    runs = {path.parent for path in on_tiny_data.folder.glob("tiny-sgd/fedavg-again-*/experiment.toml")}
    rates = Counter(Run(path).experiment.train.lr for path in runs)
    assert rates == Counter(each.settings["train.lr"] for each in found for _ in on_tiny_data.scale.seeds)


@pytest.fixture
def small_command(on_tiny_data: StudyPlan, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a benchmark on the first of those scenarios."""
    monkeypatch.setattr(benchmarking, "scale_of", lambda *given: on_tiny_data.scale)
    monkeypatch.setattr(benchmarking, "contents", lambda: {**contents(), "federations": ["tiny-sgd"]})
    monkeypatch.setattr(benchmarking, "scenarios", lambda *given: {each.name: each for each in on_tiny_data.scenarios})
    return ["benchmark", "--scale", "small", "--out", str(on_tiny_data.folder.parent)]


PLUGIN = """
import fedshift

@fedshift.METHODS.register("mine-here")
class Mine(fedshift.FedProx):
    def risk(self, net, batch, context):
        return net.nothing
"""


def test_a_plugin_that_fails_is_noted_and_the_others_go_on_to_exit_code_1(
    on_tiny_data: StudyPlan, small_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(METHODS, "_listed", dict(METHODS._listed))
    code = tmp_path / "mine.py"
    code.write_text(PLUGIN)
    done = CliRunner().invoke(app, [*small_command, "--method", "mine-here,fedavg", "--plugin", str(code)])
    assert done.exit_code == 1, done.output
    table = json.loads((on_tiny_data.folder / "benchmark.json").read_text())
    (lacking,) = table["lacking"]
    assert (lacking["cell"][1], lacking["kind"]) == ("mine-here", "failed")
    assert "AttributeError: " in lacking["reason"]
    assert {each["row"] for each in table["measurements"] if each["column"] == "accuracy"} == {"fedavg"}


def test_the_command_and_the_function_do_the_same(on_tiny_data: StudyPlan, small_command: list[str]):
    call = [*small_command, "--method", "fedavg,fedprox"]
    assert "8 runs planned" in ok(*call, "--dry-run")
    assert "Accuracy minus fedavg's" in ok(*call)
    out = on_tiny_data.folder.parent
    again = fedshift.benchmark("small", ["fedavg", "fedprox"], out=out, progress=Progress())
    assert (out / "small" / "benchmark.md").read_text() == again.table()


@pytest.mark.parametrize(
    ("federation", "of_fedavg", "of_fedprox"), [("rotated-mnist-0", 13, 23), ("pacs-leave-one-out", 116, 236)]
)
def test_the_display_knows_the_runs_of_a_row(federation: str, of_fedavg: int, of_fedprox: int, tmp_path: Path):
    """Every choice on one seed, the three best on another, and the test seeds.

    13 = 5 + 3 + 5; with three weights 23 = 15 + 3 + 5. PACS has 3 folds in tuning, and that at 4 held-out domains:
    116 = 4 (3 (5 + 3) + 5) and 236 = 4 (3 (15 + 3) + 5).
    """
    file = tmp_path / "pacs.parquet"
    file.touch()
    plan = plan_benchmark("short", ["fedavg", "fedprox"], federation, data={"pacs": file}, out=tmp_path)
    assert [execute.planned_runs(cell) for cell in plan.cells] == [of_fedavg, of_fedprox]


def test_a_row_that_refuses_its_settings_has_no_runs_and_does_not_end_the_display(tmp_path: Path):
    def refuse(seeds: object) -> list[Experiment]:
        raise FedshiftError("a method that refuses its settings")

    cell, *_ = plan_benchmark("smoke", ["fedavg"], "rotated-mnist-0", out=tmp_path).cells
    assert execute.planned_runs(cell) == 4  # 2 rates on a seed, 2 seeds
    assert execute.planned_runs(replace(cell, make=refuse)) == 0


def test_curves_fill_rows_of_four_and_a_flat_one_has_a_point_of_height():
    """Seven panels are as wide as four and twice as high; 49.88 and 49.93 are not drawn as a rise."""
    flat = Line("fedavg", {1.0: MeanStd(49.88, 0.0), 2.0: MeanStd(49.93, 0.0)})
    panel = Panel("CFMNIST", "round", "accuracy in %", [flat])
    heights, widths = zip(*(imread(BytesIO(draw_curve([panel] * n))).shape[:2] for n in (4, 7)), strict=True)
    assert (widths[1], heights[1]) == pytest.approx((widths[0], 2 * heights[0]), abs=2)
    axis = Figure().subplots()
    draw_panel(panel, axis)
    low, high = axis.get_ylim()
    assert (low + high) / 2 == pytest.approx(49.905)
    assert high - low == pytest.approx(1.0)
