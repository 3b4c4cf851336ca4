"""The plan of the benchmark: every published method on its federations, tuned by one grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedshift.catalogue import built_in
from fedshift.errors import FedshiftError, needs
from fedshift.experiments import load_plugins
from fedshift.methods import METHODS
from fedshift.spec import Range
from fedshift.study.papers import Exhibit, ExhibitRow
from fedshift.study.records import published_records
from fedshift.study.scenarios import Scenario, scale_of, scenarios, text_of
from fedshift.study.study_plan import StudyPlan
from fedshift.written import parse_toml

OUT = "runs/benchmark"
BASE, AGAIN = "fedavg", "fedavg-again"  # with which rows are compared, and what differs from it by chance
ALL = "all"


@cache
def contents() -> dict[str, Any]:
    return parse_toml(text_of("benchmark/benchmark"), "the benchmark")


def rows(names: Sequence[str] | None = None) -> list[str]:
    """The methods of the benchmark: the catalogue's without those that its file excludes.

    "all", or no names, stands for them.

    Raises a FedshiftError if no name is left, or a method is unknown or named twice.
    """
    if names is not None and not names:
        raise FedshiftError(f"No method is named: give some, such as {BASE}, or '{ALL}' for the published methods.")
    left_out = contents()["left_out"]
    published = [name for name in METHODS if name not in left_out and built_in(METHODS.get(name))]
    found = [each for name in (names or [ALL]) for each in (published if name == ALL else [name])]
    for name in found:
        METHODS.get(name)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise FedshiftError(f"The method '{twice[0]}' is given twice; give each once ('{ALL}' has the published ones).")
    return found


def choices_of(method: str) -> dict[str, Sequence[Any]]:
    """The grid's values of a method's first setting, by its dotted name.

    They are from the benchmark's file, or from the first setting for which the method's page declares a search.
    """
    if method in contents()["choices"]:
        return {f"method.{name}": values for name, values in contents()["choices"][method].items()}
    for name, about in METHODS.get(method).settings().items():
        if about.search is not None:
            return {f"method.{name}": about.search.points if isinstance(about.search, Range) else about.search}
    return {}


def without(method: str) -> dict[str, str]:
    """Why a method is no row of a federation, by the federation's name."""
    reasons = [each for each in contents()["without"] if method in each["methods"]]
    return {name: each["why"] for each in reasons for name in each["columns"]}


def exhibit_of_methods(methods: Sequence[str], plugins: Sequence[str], known: Sequence[Scenario]) -> Exhibit:
    """The benchmark's table; a user's plugins affect only the runs of their methods."""
    found = []
    for method in methods:
        settings: dict[str, Any] = {"plugins": [] if built_in(METHODS.get(method)) else [*plugins]}
        draws = range(1, contents()["again"] + 1) if method == AGAIN else [0]
        for draw in draws:
            name, its = (f"{method} {draw}", settings | {"method.skipped": draw}) if draw else (method, settings)
            found.append(ExhibitRow(name, method, its, choices=choices_of(method), without=without(method)))
    return Exhibit(
        name="benchmark",
        paper="",
        title="Benchmark",
        what="Methods that are tuned the same on a set of federations.",
        kind="table",
        scenarios=tuple(known),
        rows=tuple(found),
        columns=contents()["columns"],
        panel="federation",
        plain=ExhibitRow(BASE, BASE, {"plugins": []}),
    )


def plan_benchmark(
    scale: str = "smoke",
    methods: str | Sequence[str] | None = None,
    federations: str | Sequence[str] | None = None,
    *,
    data: Mapping[str, str | Path] | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    out: str | Path | None = None,
    published: bool = False,
) -> StudyPlan:
    with needs("benchmark", "The benchmark"):  # before anything runs
        import optuna  # noqa: F401
    given = [plugins] if isinstance(plugins, str | Path) else plugins
    code = [str(Path(path).expanduser().absolute()) for path in given]
    load_plugins(code)
    names = rows([methods] if isinstance(methods, str) else methods)
    exhibit = exhibit_of_methods(names, code, [scenarios("benchmark")[name] for name in contents()["federations"]])
    size, folder = scale_of("benchmark", scale), Path(out or OUT) / scale
    plan = StudyPlan.of(exhibit, size, folder=folder, runs=folder, scenarios=federations, data=data)
    if not any(exhibit.includes_cell(scenario, row, "") for scenario in plan.scenarios for row in plan.rows):
        row, scenario = plan.rows[0], plan.scenarios[0]
        raise FedshiftError(
            f"'{row.name}' is no row of '{scenario.name}': {row.without[scenario.name]}. Choose another federation."
        )
    return replace(plan, records=published_records(scale)) if published else plan
