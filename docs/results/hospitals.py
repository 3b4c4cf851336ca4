"""Should this hospital join? Every method of the benchmark by site, with intervals; see docs/results/hospitals.md.

    python docs/results/hospitals.py --heart heart.csv --opt opt.csv

runs everything (settings as the benchmark's grid chose them, seeds 0 to 4; about an hour on a core; finished runs are
not repeated), and writes hospitals.csv, hospitals-minus-alone.csv, hospitals-more.csv and hospitals.png beside it.

The uncertainty of a mean over seeds has two sources, whose half widths are added as squares: seeds (Student's t), and
the site's few test patients. For the latter each patient has an influence on the accuracy, and on the AUROC (DeLong,
DeLong and Clarke-Pearson, Biometrics 1988), averaged over the final models of all seeds; for a difference to local
training the influences are subtracted patient by patient.
"""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedshift.core.uncertainty import ScoreEstimate, Z, auroc, auroc_bounds, share, share_bounds
from fedshift.datasets import DATASETS
from fedshift.reporting.intervals import Interval, paired, t_quantile
from fedshift.runs.events import Progress
from fedshift.runs.observed import TrainedSimulation
from fedshift.runs.run import Run
from fedshift.runs.runner import run_all
from fedshift.runs.selection import by_environment, last
from fedshift.streams import Streams
from fedshift.study.benchmark_plan import plan_benchmark
from fedshift.study.records import published_records

Array = np.ndarray[Any, Any]
HERE = Path(__file__).parent
SEEDS = range(5)
LEAST = 5  # patients of a class, as evaluate.min_support
SPLITS = range(1, 11)  # other divisions into training, validation and test
METRICS = {"accuracy": "accuracy", "auroc": "AUROC"}
ALONE = "single"
TITLES = {"heart": "Heart", "opt": "OPT"}
MORE = [
    *("evidence", "data", "model", "metric", "site", "n", "mean", "sd", "low", "high"),
    *("minus alone", "half"),
]
SHOWN = ["fedavg", "centralised", "fedsr", "ditto", "fedper", "fedrep", "fedpac", "fedbabu", "knn-per", "pfedme"]
SPREAD = ["minus alone", "half", "half over seeds of that"]
SPLIT = [ALONE, "fedavg", "ditto", "fedpac", "fedbabu", "knn-per"]


@dataclass(frozen=True)
class Site:
    """A method at a site.

    Attributes:
        y: labels of its test patients (n,).
        p: the probability of the second class under the final model of each seed, (seeds, n).
        scores: by metric and seed, in %: the mean of the run's last evaluations, as in the benchmark; without an AUROC
            where the test has too few patients of a class.
        whose: "own", or "global".
    """

    y: Array
    p: Array
    scores: Mapping[str, Mapping[int, float]]
    whose: str

    @classmethod
    def of(cls, its: Mapping[str, Any]) -> Site:
        """From what JSON holds."""
        scores = {
            metric: {int(seed): value for seed, value in its[metric].items()} for metric in METRICS if metric in its
        }
        return cls(np.array(its["y"]), np.array(its["p"]), scores, its["whose"])

    def estimate(self, metric: str) -> ScoreEstimate:
        """The metric of the final models, and how much each patient moves it in the mean over seeds."""
        each = [found for p in self.p if (found := _measured(metric, self.y, p)) is not None]
        return ScoreEstimate(fmean(one.value for one in each), np.mean([one.influence for one in each], axis=0))

    def minus(self, other: Site, metric: str) -> Interval:
        """The difference to another method, in points, paired by seed and by patient."""
        by_seed = Interval.of([*paired(self.scores[metric], other.scores[metric]).values()])
        assert by_seed is not None
        return by_seed.widened(self._of_patients(self.estimate(metric) - other.estimate(metric)))

    def mean(self, metric: str) -> Interval:
        """The mean over seeds, with an interval over seeds alone."""
        found = Interval.of([*self.scores[metric].values()])
        assert found is not None
        return found

    def among_patients(self, metric: str) -> tuple[float, float]:
        """The interval that a single model of this site has by its few patients, the mean over seeds, in %."""
        group = np.arange(len(self.y))
        bounds = [_bounds(metric, self.y, p, group) for p in self.p]
        return 100 * fmean(b[0] for b in bounds), 100 * fmean(b[1] for b in bounds)

    def _of_patients(self, difference: ScoreEstimate) -> float:
        """Half the width of an interval for a difference, in points, over patients."""
        return 100 * Z * sqrt(difference.variance(np.arange(len(self.y))))


def _measured(metric: str, y: Array, p: Array) -> ScoreEstimate | None:
    return share((p > 0.5) == (y == 1)) if metric == "accuracy" else auroc(y == 1, p)


def _bounds(metric: str, y: Array, p: Array, group: Array) -> tuple[float, float]:
    found = share_bounds((p > 0.5) == (y == 1), group) if metric == "accuracy" else auroc_bounds(y == 1, p, group)
    assert found is not None
    return found[0], found[1]


# Runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """A column of the benchmark with its file."""

    name: str
    file: Path
    out: Path

    @cached_property
    def chosen(self) -> dict[str, dict[str, Any]]:
        """By row, the settings that the benchmark's grid chose."""
        known = published_records("short").chosen
        return {row: _settings(its[0].settings) for (column, row), its in known.items() if column == self.name}

    @cached_property
    def validation(self) -> dict[str, float]:
        """By row, the validation accuracy of the chosen settings in %."""
        known = published_records("short").chosen
        return {row: its[0].validation for (column, row), its in known.items() if column == self.name}

    @property
    def rows(self) -> list[str]:
        """Training alone, then all that were carried out, the best validation accuracy first."""
        return sorted(self.chosen, key=lambda row: (row != ALONE, -self.validation[row]))

    def runs(self, row: str, folder: str, seeds: Iterable[int], **changes: Any) -> list[Run]:
        """The runs of a row with the chosen settings, and changes to them; what is finished is not repeated."""
        plan = plan_benchmark("short", None, [self.name], data={self.name: self.file}, out=self.out / folder)
        plan = replace(plan, settings=self.chosen[row] | changes)
        (its,) = (each for each in plan.rows if each.name == row)
        requested = plan.experiments(plan.scenarios[0], its, "", list(seeds))
        done, failed = run_all(requested, Progress())
        assert len(done) == len(requested), failed
        return sorted(done, key=lambda run: run.experiment.seed)

    def sites(self, row: str) -> dict[str, Site]:
        """A method at every site, from its runs; kept in a file."""
        kept = self.out / "observed" / f"{self.name}--{row}.json"
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(_observed(self.runs(row, "five-seeds", SEEDS))), encoding="utf-8")
        return {site: Site.of(its) for site, its in json.loads(kept.read_text(encoding="utf-8")).items()}


def _settings(text: str) -> dict[str, Any]:
    """The settings that a line of the benchmark has, such as "method.mu = 0.1, train.lr = 0.2"."""
    return {
        name: tomllib.loads(f"value = {value}")["value"]
        for name, value in (part.split(" = ") for part in text.split(", "))
    }


def _observed(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By site, labels, predictions and scores, as JSON can hold them."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for each in TrainedSimulation(run).observe("test"):
            its = found.setdefault(each.environment.name, {"y": each.y.tolist(), "p": [], "whose": each.whose})
            its["p"].append(each.log_probabilities.double().exp()[:, 1].tolist())
    for metric in METRICS:
        for site, scores in _scores(runs, metric).items():
            found[site][metric] = scores
    return found


def _scores(runs: Sequence[Run], metric: str) -> dict[str, dict[int, float]]:
    """By site and seed, in %, at the end; an AUROC only where the test has five patients of either class."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        support = run.data_facts["scored_classes"]["test"]
        for site, value in by_environment(last(run.records), "test", metric).items():
            if metric == "accuracy" or min(support[site]) >= LEAST:
                found.setdefault(site, {})[run.experiment.seed] = 100 * value
    return found


# Tables ----------------------------------------------------------------------------------------------


def difference(found: Interval) -> dict[str, str]:
    """A difference to local training with the half width of its interval, in points."""
    return {"minus alone": f"{found.mean:.1f}", "half": f"{found.half:.1f}"}


def minus_alone(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A row for each method: its accuracy minus local training's at every site, in points, * where 0 is excluded."""
    rows: dict[str, dict[str, str]] = {}
    sites = [*dict.fromkeys(line["site"] for line in lines)]
    for line in lines:
        if line["metric"] != "accuracy" or line["method"] == ALONE:
            continue
        row = rows.setdefault(line["method"], {"method": line["method"], **dict.fromkeys(sites, "-")})
        mean, half = float(line["minus alone"]), float(line["half"])
        row[line["site"]] = f"{mean:+.2f} ± {half:.2f}{'*' if abs(mean) > half else ''}"
    return [*rows.values()]


def lines_of_csv(federation: Federation, rows: Mapping[str, Mapping[str, Site]]) -> Iterator[dict[str, Any]]:
    """A line for each method, site and metric."""
    for row, sites in rows.items():
        for site, its in sites.items():
            for metric in its.scores:
                mean, gain = its.mean(metric), its.minus(rows[ALONE][site], metric)
                numbers = {
                    "mean": mean.mean,
                    "half over seeds": mean.half,
                    **dict(zip(("low by patients", "high by patients"), its.among_patients(metric), strict=True)),
                    "minus alone": gain.mean,
                    "half": gain.half,
                    "half over seeds of that": _over_seeds(its, rows[ALONE][site], metric),
                }
                yield {
                    **{"data": federation.name, "method": row, "model": its.whose, "site": site, "metric": metric},
                    **{"n": len(its.y), "positive": int(its.y.sum())},
                    "validation": f"{federation.validation[row]:.1f}",
                    **{name: f"{value:.2f}" for name, value in numbers.items()},
                }


def _over_seeds(its: Site, alone: Site, metric: str) -> float:
    found = Interval.of([*paired(its.scores[metric], alone.scores[metric]).values()])
    assert found is not None
    return found.half or 0.0


# The figure ------------------------------------------------------------------------------------------


def draw(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """A forest plot: by site, some methods minus training alone, with the whole interval and that over seeds."""
    drawn = Figure(figsize=(12.5, 11), layout="constrained")
    axes = drawn.subplots(4, 4, sharex="col")
    found = {(line["data"], line["site"], line["metric"], line["method"]): line for line in lines}
    for place, (data, metric) in enumerate(product(TITLES, METRICS)):
        sites = dict.fromkeys(line["site"] for line in lines if line["data"] == data)
        for axis, site in zip(axes[:, place], sites, strict=True):
            for height, method in enumerate(reversed(SHOWN)):
                if line := found.get((data, site, metric, method)):
                    mean, half, seeds = (float(line[name]) for name in SPREAD)
                    colour = "#555555" if abs(mean) <= half else "#1b7837" if mean > 0 else "#b2182b"
                    axis.errorbar(mean, height, xerr=half, color=colour, lw=1, capsize=2)
                    axis.errorbar(mean, height, xerr=seeds, color=colour, lw=3.5, fmt="o", ms=5)
            alone = found[data, site, "accuracy", ALONE]
            if (data, site, metric, ALONE) not in found:
                axis.text(0, 5, "too few of a class", ha="center", va="center", fontsize=8, backgroundcolor="white")
            axis.axvline(0, color="black", lw=0.8)
            axis.set_yticks(range(len(SHOWN)), reversed(SHOWN) if place == 0 else [], fontsize=8)
            axis.set_title(f"{TITLES[data]}: {site}, n = {alone['n']} ({alone['positive']})", fontsize=9)
            axis.grid(alpha=0.25, axis="x")
            axis.spines[["top", "right"]].set_visible(False)
        axes[-1][place].set_xlabel(f"{METRICS[metric]} minus training alone (points)", fontsize=9)
    return drawn


# Other parts -----------------------------------------------------------------------------------------


def divisions(federation: Federation) -> Iterator[dict[str, Any]]:
    """Other divisions of the patients, one run each: means, and intervals by Nadeau and Bengio (2003)."""
    about = {"evidence": f"{len(SPLITS)} other divisions", "data": federation.name}
    by_row = {}
    for row in SPLIT:
        runs = [run for n in SPLITS for run in federation.runs(row, "splits", [n], data_seed=n)]
        by_row[row] = {metric: _scores(runs, metric) for metric in METRICS}
    for metric in METRICS:
        alone = by_row[ALONE][metric]
        for row, scores in by_row.items():
            for site, its in scores[metric].items():
                beside = {} if row == ALONE else difference(resampled(paired(its, alone[site])))
                line = {**about, "model": row, "metric": metric, "site": site, "mean": f"{fmean(its.values()):.1f}"}
                yield line | beside


def resampled(by_split: Mapping[int, float]) -> Interval:
    """A mean over divisions of the same patients, whose interval counts that these overlap.

    Nadeau and Bengio, Inference for the generalization error, Machine Learning 2003: the variance of the mean is
    (1 / J + n_test / n_train) times that of the values; 30 % of the patients are the test, 50 % train.
    """
    values = [*by_split.values()]
    half = t_quantile(len(values) - 1) * stdev(values) * sqrt(1 / len(values) + 0.3 / 0.5)
    return Interval(fmean(values), half, len(values))


def without(federation: Federation) -> Iterator[dict[str, Any]]:
    """FedAvg trained without a site, scored on all of its patients: mean and standard deviation over seeds."""
    about = {"evidence": "trained without the site", "data": federation.name, "model": "fedavg", "metric": "auroc"}
    found: dict[str, list[float]] = {}
    for site in federation.sites(ALONE):
        changes = {"protocol.name": "leave-one-domain-out", "protocol.hold_out": site}
        for run in federation.runs("fedavg", "without", SEEDS, **changes):
            for name, value in by_environment(last(run.records), "test", "auroc").items():
                found.setdefault(name, []).append(100 * value)
    for site, its in found.items():
        yield {**about, "site": site, "mean": f"{fmean(its):.1f}", "sd": f"{stdev(its):.1f}"}


def logistic(federation: Federation) -> Iterator[dict[str, Any]]:
    """AUROC of scikit-learn's logistic regression on all patients of a site: without it, alone, and joined.

    Differences to training alone are patient by patient, with DeLong's interval. Alone and joined, a patient is
    predicted for by cross-validation of ten folds (or as many as the site has patients of a class), which train on the
    others of the site, and joined on all patients of other sites as well.
    """
    data = DATASETS.build({"name": federation.name, "path": str(federation.file)}).load(Streams(0))
    x, y, domain = data.x.numpy(), data.y.numpy(), data.domain.numpy()
    model = _regression([column.categories is not None for column in data.columns])
    about = {"evidence": "logistic regression, all patients", "data": federation.name, "metric": "auroc"}
    for site, name_of_site in enumerate(data.domains):
        own, others = np.flatnonzero(domain == site), np.flatnonzero(domain != site)
        p = {"trained without it": model.fit(x[others], y[others]).predict_proba(x[own])[:, 1]}
        for name, beside in (("alone", others[:0]), ("joined", others)):
            p[name] = np.zeros(len(own))
            folds = StratifiedKFold(min(10, *np.bincount(y[own])), shuffle=True, random_state=0)
            for train, test in folds.split(x[own], y[own]):
                rows = np.concatenate([own[train], beside])
                p[name][test] = model.fit(x[rows], y[rows]).predict_proba(x[own[test]])[:, 1]
        areas = {name: _area(y[own] == 1, its) for name, its in p.items()}
        for name, its in p.items():
            bounds, gain = auroc_bounds(y[own] == 1, its, own), areas[name] - areas["alone"]
            assert bounds is not None
            numbers = {"mean": areas[name].value, "low": bounds.low, "high": bounds.high}
            half = 100 * Z * sqrt(gain.variance(own))
            to_alone = {} if name == "alone" else difference(Interval(100 * gain.value, half, len(own)))
            line = {**about, "model": name, "site": name_of_site, "n": len(own)}
            yield line | {key: f"{100 * value:.1f}" for key, value in numbers.items()} | to_alone


def _area(own: Array, p: Array) -> ScoreEstimate:
    found = auroc(own, p)
    assert found is not None
    return found


def _regression(of_categories: Sequence[bool]) -> Pipeline:
    """Logistic regression behind what prepares rows; says of each column whether it holds categories."""
    codes = [place for place, its in enumerate(of_categories) if its]
    numbers = [place for place, its in enumerate(of_categories) if not its]
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()), numbers),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")), codes),
    )
    return make_pipeline(prepare, LogisticRegression(max_iter=5000))


def write(name: str, lines: Sequence[Mapping[str, Any]], heads: Sequence[str] | None = None) -> None:
    """Write a CSV file beside this file."""
    with (HERE / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, heads or [*lines[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main() -> None:
    """Run everything, and write the four files."""
    parser = argparse.ArgumentParser(description="Should this hospital join?")
    for name in TITLES:
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"the file of the data set '{name}'")
    parser.add_argument("--out", type=Path, default=Path("runs/hospitals"), help="the folder of the runs")
    given = parser.parse_args()
    federations = [Federation(name, getattr(given, name), given.out) for name in TITLES]
    everything = {each.name: {row: each.sites(row) for row in each.rows} for each in federations}
    measured = [line for each in federations for line in lines_of_csv(each, everything[each.name])]
    write("hospitals.csv", measured)
    write("hospitals-minus-alone.csv", minus_alone(measured))
    more = [line for each in federations for line in (*divisions(each), *without(each), *logistic(each))]
    write("hospitals-more.csv", more, MORE)
    draw(measured).savefig(HERE / "hospitals.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
