"""A benchmark that is asked for: its rows, its scenarios, and the runs of each of their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.settings.experiment import Experiment, load_plugins
from fedshift.study.execute import forecast_cell
from fedshift.study.scenarios import Scenario, choose, scale_of, scenarios
from fedshift.study.statistics import t_quantile
from fedshift.study.study_plan import Forecast, StudyPlan, paths_by_name
from fedshift.study.tune import Budget

OUT = "runs/benchmark"
BASE = "fedavg"  # with which rows are compared
ALL = "all"
ORDER = (
    "rotated-mnist-0",
    "rotated-mnist-75",
    "colored-fashion-mnist",
    "pacs-in-domain",
    "pacs-leave-one-out",
    "shakespeare",
)
ABLATIONS = {
    "fedl2r": "FedSR without CMI",
    "fedcmi": "FedSR without the norm",
    "fedreg": "FedCiR without the alignment",
    "fedalign": "FedCiR without generated representations",
    "fraug-code": "FRAug as its public code has it",
    "head-retraining": "the study that motivates FRAug, no federation",
    "fedpin-lambda-0": "FedPIN with lambda 0",
    "fedpin-gamma-0": "FedPIN with gamma 0",
    "fedpin-gm": "FedPIN's global model",
    "fedpin-gm-ft": "FedPIN's global model, fine-tuned",
    "fedpin-gm-l2": "FedPIN's global model as an anchor",
}
SINCE = ("fedadagrad", "fedadam", "fedyogi")  # the tables were published; name them to have them as rows


def rows(names: Sequence[str] | None = None) -> list[str]:
    """The methods of the benchmark: the catalogue's, but no ablation and none that came later.

    "all" among the names, as no names at all, stands for these.

    Raises:
        FedshiftError: the names are none, or a method is not known, or named twice.
    """
    if names is not None and not names:
        raise FedshiftError(f"No method is named: give some, such as {BASE}, or '{ALL}' for the published ones.")
    left_out = {*ABLATIONS, *SINCE}
    published = [name for name in METHODS if name not in left_out and METHODS.get(name).built_in]
    found = [each for name in (names or [ALL]) for each in (published if name == ALL else [name])]
    for name in found:
        METHODS.get(name)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise FedshiftError(f"The method '{twice[0]}' is given twice; give each once ('{ALL}' has the published ones).")
    return found


@dataclass(frozen=True)
class BenchmarkPlan(StudyPlan):
    """A benchmark that is asked for.

    Attributes:
        methods: the rows, by name.
        plugins: Python files that register methods.
    """

    methods: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        scale: str,
        methods: str | Sequence[str] | None = None,
        federations: str | Sequence[str] | None = None,
        out: str | Path = OUT,
        data: Mapping[str, str | Path] | None = None,
        plugins: str | Path | Sequence[str | Path] = (),
    ) -> Self:
        """The plan of what a user names, one or several; None stands for all.

        Raises:
            FedshiftError: a name is not known, ``data`` has no names, a plugin cannot be imported, or SciPy is not
                installed.
        """
        t_quantile(1)  # so that what is not installed is named before anything runs
        given = [plugins] if isinstance(plugins, str | Path) else plugins
        code = tuple(str(Path(path).expanduser().absolute()) for path in given)
        load_plugins(code)
        size, every = scale_of("benchmark", scale), {name: scenarios("benchmark")[name] for name in ORDER}
        there = {name: scenario for name, scenario in every.items() if scale in scenario.sizes}
        elsewhere = dict.fromkeys(every, f"it is not of the scale {scale}: give another --scale.")
        chosen = tuple(choose("federation", there, federations, elsewhere))
        names = rows([methods] if isinstance(methods, str) else methods)
        plan = cls(size, chosen, Path(out), paths_by_name(data), tuple(names), code)
        plan.check_data()
        return plan

    @property
    def known(self) -> Sequence[Scenario]:
        """All scenarios that the scale has."""
        return [scenario for scenario in scenarios("benchmark").values() if self.scale.name in scenario.sizes]

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return self.out / self.scale.name

    runs = folder

    def row(self, scenario: Scenario, method: str, seeds: Sequence[int]) -> list[Experiment]:
        """A method's runs on a scenario; a user's plugins are a part of the runs of their own methods alone."""
        plugins = [] if METHODS.get(method).built_in else list(self.plugins)
        return self.experiments(scenario, method, seeds, {"plugins": plugins})

    def first(self, scenario: Scenario) -> Experiment:
        """A run on a scenario, which needs what all of them need."""
        return self.row(scenario, BASE, self.scale.seeds[:1])[0]

    def budget(self, scenario: Scenario, method: str) -> Budget:
        """By what settings are chosen, the same for all methods."""
        trials, fixed = self.scale.trials, frozenset(self.scale.settings_of(method))
        return Budget(trials=trials, parallel=min(4, trials), search=dict(scenario.search), fixed=fixed)

    @property
    def most_runs(self) -> int:
        """How many runs there are, where every method can run and a scenario holds out one domain."""
        each = self.scale.trials * len(self.scale.tuning_seeds) + len(self.scale.seeds)
        return each * len(self.scenarios) * len(self.methods)

    def forecasts(self, scenario: Scenario) -> list[Forecast]:
        """The cost of each method on a scenario, with the settings that it begins with."""
        return [
            forecast_cell(
                f"{self.title(scenario)}, {method}",
                partial(self.row, scenario, method, self.scale.seeds),
                self._count,
            )
            for method in self.methods
        ]

    def _count(self, experiments: Sequence[Experiment]) -> int:
        """How many runs a method has, the trials of its searches included, by the runs of its results."""
        seeds = len(self.scale.seeds)
        return len(experiments) // seeds * (self.scale.trials * len(self.scale.tuning_seeds) + seeds)
