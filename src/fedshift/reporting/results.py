"""Runs that differ only in seed and held-out domain: a row of a table, its numbers over seeds, its label."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedshift.core.metrics import ACCURACY, Metric
from fedshift.experiments import NAMED, OF_ONE_RUN, PLAIN
from fedshift.runs.run import Run
from fedshift.runs.selection import RULES, by_environment, spread

NOT_A_ROW = frozenset({"name", "plugins", *(".".join(names) for names in OF_ONE_RUN)})


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds with its sample standard deviation; the latter is None for one seed."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd | None:
        """The mean and standard deviation of values; None of none."""
        if not values:
            return None
        return cls(mean(values), stdev(values) if len(values) > 1 else None)

    def text(self, times: float = 1, decimals: int = 1) -> str:
        spread = f" ± {times * self.std:.{decimals}f}" if self.std is not None else ""
        return f"{times * self.mean:.{decimals}f}{spread}"


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed and held-out domain; ``metric`` is what is shown of them.

    ``common`` are the held-out domains that all rows have, over which means are; None: over all of these runs.
    """

    label: str
    runs: list[Run]
    metric: Metric = Metric(ACCURACY)
    common: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"Row({self.label!r}, runs: {len(self.runs)})"

    @property
    def title(self) -> str:
        """The label, and how many of the runs were given up: their numbers are of the rounds before that."""
        stopped = sum(not run.finished and bool(run.given_up) for run in self.runs)
        return f"{self.label} ({stopped} of {len(self.runs)} runs given up)" if stopped else self.label

    @property
    def compared(self) -> Row:
        """The row without the runs that means exclude, since other rows lack their held-out domains."""
        if self.common is None:
            return self
        return replace(self, runs=[run for run in self.runs if held_out(run) in self.common])

    def by_seed(
        self, value: Callable[[Run], Iterable[float]], of_seed: Callable[[Sequence[float]], float] = mean
    ) -> dict[int, float]:
        """For each seed one number (the mean) of all values of its runs; a seed without values has none."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            found.setdefault(run.table["seed"], []).extend(value(run))
        return {seed: of_seed(values) for seed, values in found.items() if values}

    def curve(self, points: Callable[[Run], Iterable[tuple[float, float]]]) -> dict[float, MeanStd]:
        """The numbers of runs along an axis, ascending: at each place mean and spread over seeds, as in score."""
        found: dict[float, dict[int, list[float]]] = {}
        for run in self.runs:
            for place, value in points(run):
                found.setdefault(place, {}).setdefault(run.table["seed"], []).append(value)
        means = {place: [mean(values) for values in found[place].values()] for place in sorted(found)}
        return {place: its for place, values in means.items() if (its := MeanStd.of(values))}

    def score(
        self,
        role: str,
        rule: str = "last",
        environment: str | None = None,
        metric: str | None = None,
        of_seed: Callable[[Sequence[float]], float] = mean,
    ) -> MeanStd | None:
        """A metric for one role at the round a rule selects, mean and spread over seeds.

        An environment counts once, however many clients are scored on it, and not where the metric is undefined. The
        environments of a seed are those of all its runs: with domains held out in turn, all of them. A mean over
        environments is over runs whose held-out domain all rows have.

        Args:
            role: "test" or "validation".
            rule: which round.
            environment: its name; None: all.
            metric: its name; None: the one that is shown.
            of_seed: makes one number of the environments of a seed.
        """

        def values(run: Run) -> list[float]:
            found = by_environment(RULES[rule](run.records), role, metric or self.metric.name)
            return [score for name, score in found.items() if environment in (None, name)]

        row = self.compared if environment is None else self
        return MeanStd.of([*row.by_seed(values, of_seed).values()])

    def worst(self, role: str = "test", rule: str = "last") -> MeanStd | None:
        """The metric on each seed's worst environment, of the means over clients, at the round a rule selects."""
        return self.score(role, rule, of_seed=self.metric.worst)

    def spread(self, role: str = "test") -> MeanStd | None:
        """How far the score moves between the evaluations of a run whose mean is the headline; None of single ones."""

        def values(run: Run) -> list[float]:
            found = spread(run.records, role, self.metric.name)
            return [] if found is None else [found]

        return MeanStd.of([*self.compared.by_seed(values).values()])


def held_out(run: Run) -> str:
    """The domain that a run holds out; empty where it holds out none."""
    return str(run.table["protocol"].get("hold_out", ""))


def common_targets(rows: Iterable[Sequence[Run]]) -> frozenset[str] | None:
    """The held-out domains that the runs of every row have; None where all rows have the same, or none in common."""
    targets = [frozenset(map(held_out, runs)) for runs in rows]
    common = frozenset.intersection(*targets)
    return common if common and any(own != common for own in targets) else None


def labels(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What rows are called that are :func:`described` like this, by their keys."""
    return {key: label(settings, [*rows.values()]) for key, settings in rows.items()}


def label(flat: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The method's name, and the settings by dotted name that distinguish it from rows of the same method."""
    method = flat["method.name"]
    same = [other for other in others if other["method.name"] == method]
    names = [name for name in flat if name not in NOT_A_ROW]
    differing = [name for name in names if any(other.get(name) != flat[name] for other in same)]
    # Another data set, base or index has other settings altogether, so its name is enough.
    others_of = {name.removesuffix("name") for name in differing if name.endswith(".name")}
    telling = [
        name for name in differing if name.endswith(".name") or not any(name.startswith(prefix) for prefix in others_of)
    ]
    words = [f"{_short(name)}={_shown(flat[name])}" for name in telling]
    return f"{method} ({', '.join(words)})" if words else str(method)


def _short(name: str) -> str:
    table, _, rest = name.removesuffix(".name").partition(".")
    return rest if table in (*NAMED, *PLAIN) else name


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of an experiment that decide its result, by dotted name."""
    return flat({key: value for key, value in table.items() if key != "run"})


def described(table: Mapping[str, Any], contents: Mapping[str, str]) -> dict[str, Any]:
    """Everything that distinguishes a row from others, by dotted name: settings, and digests of files and plugins.

    Args:
        table: an experiment's settings.
        contents: digests of what is no setting; a file counts by what it contains, whatever its path.
    """
    settings = flattened(table)
    digests = {
        what: f"{Path(settings[what]).name} {content[:8]}" if what in settings else content[:8]
        for what, content in contents.items()
        if what not in NOT_A_ROW
    }
    return settings | digests


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted name."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


@dataclass(frozen=True)
class Merged:
    """The values of nested tables by dotted name, as JSON."""

    common: dict[str, str]  # those that all tables have
    # the others, one text for each group, in which the values of its tables stand together
    differing: dict[str, list[str]]


def merged(groups: Sequence[Sequence[Mapping[str, Any]]]) -> Merged:
    """Merge groups of nested tables."""
    words = [
        [{name: json.dumps(value, ensure_ascii=False) for name, value in flat(table).items()} for table in group]
        for group in groups
    ]
    every = [table for group in words for table in group]
    found = Merged({}, {})
    for name in dict.fromkeys(name for table in every for name in table):
        values = {table.get(name, "") for table in every}
        if len(values) == 1:
            found.common[name] = values.pop()
        else:
            of_groups = [[table[name] for table in group if name in table] for group in words]
            found.differing[name] = [", ".join(dict.fromkeys(its)) for its in of_groups]
    return found
