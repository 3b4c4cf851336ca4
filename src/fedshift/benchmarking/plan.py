"""What is carried out: the experiments of every column and method, and which columns have their data here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedshift.benchmarking.columns import Column, Scale, check_data, columns_of, scale_of
from fedshift.benchmarking.rows import BASE, rows
from fedshift.benchmarking.statistics import t_quantile
from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.runs.progress import Progress
from fedshift.settings.experiment import Experiment, load_plugins
from fedshift.settings.grid import expand, override
from fedshift.settings.spec import shown
from fedshift.simulation.simulation import Simulation
from fedshift.study.tune import Budget

OUT = "runs/benchmark"


@dataclass(frozen=True)
class Plan:
    """A benchmark that is asked for.

    Attributes:
        scale: how large.
        columns: the federations.
        methods: the rows, by name.
        out: the folder; what is made lies in a folder of it named by the scale.
        data: files that a user gives, by the name of the data set.
        plugins: Python files that register methods.
    """

    scale: Scale
    columns: tuple[Column, ...]
    methods: tuple[str, ...]
    out: Path
    data: Mapping[str, str] = field(default_factory=dict)
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
        given_plugins = [plugins] if isinstance(plugins, str | Path) else plugins
        files = tuple(str(Path(path).expanduser().absolute()) for path in given_plugins)
        load_plugins(files)
        size = scale_of(scale)
        columns = columns_of(size, _several(federations))
        if data is not None and not isinstance(data, Mapping):
            raise FedshiftError(f'data = {shown(data)}: give paths by data set, such as {{"pacs": "pacs.parquet"}}.')
        given = {name: str(path) for name, path in (data or {}).items()}
        check_data(size, given)
        return cls(size, tuple(columns), tuple(rows(_several(methods))), Path(out), given, files)

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return self.out / self.scale.name

    @property
    def most_runs(self) -> int:
        """How many runs there are, where every method can run and a column holds out one domain."""
        each = self.scale.trials * len(self.scale.tuning_seeds) + len(self.scale.seeds)
        return each * len(self.columns) * len(self.methods)

    def available(self, progress: Progress) -> tuple[list[Column], dict[str, str]]:
        """The columns whose data are here, which are loaded for that; and of the others why not, and the fix, by name.

        Images are embedded now if a column needs that.

        Raises:
            FedshiftError: no column has its data here.
        """
        there: list[Column] = []
        lacking: dict[str, str] = {}
        for column in self.columns:
            if column.brings and column.data not in self.data:
                lacking[column.name] = (
                    f"{column.title} is left out, as its data are not given: --data {column.data}=FILE "
                    f"({column.brings})."
                )
                continue
            try:
                Simulation(self.experiments(column, BASE, self.scale.seeds)[0], progress.embedded)
            except FedshiftError as error:
                give = f"Give them elsewhere: --data {column.data}=PATH."
                lacking[column.name] = f"{column.title} is left out, as its data cannot be read: {error} {give}"
            else:
                there.append(column)
        if not there:
            raise FedshiftError("\n".join(lacking.values()))
        return there, lacking

    def experiments(self, column: Column, method: str, seeds: Sequence[int]) -> list[Experiment]:
        """A method's runs on a column: for each domain that is held out, if any is, one for each seed.

        A user's plugins are a part of the runs of their own methods alone, so that they change no others.

        Raises:
            FedshiftError: the method cannot run there.
        """
        path = {"data.path": self.data[column.data]} if column.data in self.data else {}
        changes: dict[str, Any] = {
            "method.name": method,
            **self.scale.settings,
            **column.scales[self.scale.name],
            **self._own(method),
            **path,
            "name": column.name,
            "seed": list(seeds),
            "run.out": str(self.folder),
            "plugins": [] if METHODS.get(method).built_in else list(self.plugins),
        }
        return expand(override(column.experiment, changes))

    def budget(self, column: Column, method: str) -> Budget:
        """By what settings are chosen, the same for all methods; what the scale says of one is not searched."""
        trials, fixed = self.scale.trials, frozenset(self._own(method))
        return Budget(trials=trials, parallel=min(4, trials), search=dict(column.search), fixed=fixed)

    def _own(self, method: str) -> dict[str, Any]:
        """What the scale says of a method."""
        return {f"method.{key}": value for key, value in self.scale.methods.get(method, {}).items()}


def _several(names: str | Sequence[str] | None) -> Sequence[str] | None:
    """Names as a list, of which a single one may stand alone."""
    return [names] if isinstance(names, str) else names
