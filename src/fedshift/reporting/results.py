"""The records of several runs, grouped into the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedshift.clients import PROTOCOLS
from fedshift.core.metrics import ACCURACY, Metric
from fedshift.errors import FedshiftError
from fedshift.experiments import NAMED, OF_ONE_RUN, PLAIN
from fedshift.runs.folder import RunFolder, find
from fedshift.runs.grid_file import grid_files, read_grid
from fedshift.runs.run import Run
from fedshift.runs.selection import RULES, by_environment, endings, mean_score, selects, value_of
from fedshift.runs.trials import check_no_study

NOT_A_ROW = frozenset({"name", "plugins", *(".".join(names) for names in OF_ONE_RUN)})
REFUSED = "refused.txt"  # in the folder of a run that could not begin: why
MOST_NAMED = 4  # environments, or metrics, that a note names
MOST_ENVIRONMENTS = 48  # environments of a role that are shown one by one


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
        """Both, multiplied by a number, with so many decimals."""
        spread = f" ± {times * self.std:.{decimals}f}" if self.std is not None else ""
        return f"{times * self.mean:.{decimals}f}{spread}"

    def percent(self) -> str:
        """As a percentage with one decimal."""
        return self.text(100)


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed and held-out domain; ``metric`` is what is shown of them."""

    label: str
    runs: list[Run]
    metric: Metric = Metric(ACCURACY)

    def __repr__(self) -> str:
        return f"Row({self.label!r}, runs: {len(self.runs)})"

    def over_seeds(
        self, value: Callable[[Run], Iterable[float]], of_seed: Callable[[Sequence[float]], float] = mean
    ) -> MeanStd | None:
        """For each seed one number (the mean) of all values of its runs; then mean and spread over seeds."""
        return MeanStd.of([*self.by_seed(value, of_seed).values()])

    def by_seed(
        self, value: Callable[[Run], Iterable[float]], of_seed: Callable[[Sequence[float]], float] = mean
    ) -> dict[int, float]:
        """For each seed one number (the mean) of all values of its runs; a seed without values has none."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            found.setdefault(run.table["seed"], []).extend(value(run))
        return {seed: of_seed(values) for seed, values in found.items() if values}

    def score(
        self, role: str, rule: str = "last", environment: str | None = None, metric: str | None = None
    ) -> MeanStd | None:
        """A metric for one role at the round a rule selects; on one environment, or the mean over all.

        An environment counts once, however many clients are scored on it, and not where the metric is undefined.

        Args:
            role: "test" or "validation".
            rule: which round.
            environment: its name; None: all.
            metric: its name; None: the one that is shown.
        """
        name = metric or self.metric.name
        return self.over_seeds(
            lambda run: [
                score
                for place, score in by_environment(RULES[rule](run.records), role, name).items()
                if environment in (None, place)
            ]
        )

    def worst(self, role: str = "test", rule: str = "last") -> MeanStd | None:
        """The metric on each seed's worst environment, of the means over clients, at the round a rule selects.

        The environments of a seed are those of all its runs: with domains held out in turn, all of them.
        """
        name = self.metric.name
        return self.over_seeds(
            lambda run: by_environment(RULES[rule](run.records), role, name).values(), self.metric.worst
        )


@dataclass(frozen=True)
class Refused:
    """A row that was asked for and has no run with a record.

    Attributes:
        settings: all that tells it from others; see :func:`described`.
        reason: why it has none.
    """

    settings: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class Results:
    """All runs of a comparison.

    Attributes:
        runs: those that can be read and have records.
        missing: which runs are not among them, and why, a note each.
        refused: rows of which no run is among them.
    """

    runs: list[Run]
    missing: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()

    def __repr__(self) -> str:
        rows = ", ".join(row.label for row in self.rows())
        return f"Results(runs: {len(self.runs)}, rows: {rows}, seeds: {', '.join(map(str, self.seeds))})"

    @classmethod
    def read(cls, folders: Sequence[RunFolder], trust: bool = False) -> Results:
        """Read the runs that have records; those without any are left out, and those that are damaged are named.

        Raises:
            FedshiftError: none has a record.
        """
        runs, damaged = [], []
        for run in (Run(folder, trust) for folder in folders):
            try:
                run.check()
                if run.records:
                    runs.append(run)
            except FedshiftError as error:
                damaged.append(str(error))
        if not runs and damaged:
            raise FedshiftError(damaged[0])
        if not runs:
            raise FedshiftError("None of these runs has a record yet; `fedshift resume` carries them on.")
        return cls(runs, tuple(f"A run is left out: {problem}" for problem in damaged))

    @classmethod
    def at(cls, path: Path, trust: bool = False) -> Results:
        """Every run at or below a path, sorted by method and then by settings.

        Raises:
            FedshiftError: there is none with a record, or the path is a study's or a trial's.
        """
        check_no_study(path)
        results = cls.read(find(path), trust)
        return cls(sorted(results.runs, key=_order), (*results.missing, *_not_begun(path)))

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({run.table["seed"] for run in self.runs})

    @property
    def notes(self) -> list[str]:
        """What a reader must know, once each; unfinished runs among it."""
        notes = dict.fromkeys([*(f"{name}: {reason}" for name, reason in self.lacking.items()), *self.missing])
        notes |= dict.fromkeys(note for run in self.runs for note in run.notes)
        for run in self.runs:
            if not run.folder.finished:
                last, rounds = run.records[-1], run.table["train"]["rounds"]
                notes[
                    f"{run.folder.path.name} is not finished: it was last scored after round {last['round']} of its "
                    f"stage '{last['stage']}' (train.rounds = {rounds})."
                ] = None
        for row in self.rows():
            lacking = sorted(self._cases(self.runs) - self._cases(row.runs))
            if lacking:
                words = ", ".join(
                    f"seed {seed}" + (f" with {domain} held out" if domain else "") for seed, domain in lacking
                )
                notes[f"{row.label} has no run for {words}; its means are over fewer runs than others."] = None
        early = [run for run in self.runs if endings(run.records)]
        if early and len(self.runs) == 1:
            notes |= {
                f"The stage '{stage}' ended early {why}.": None for stage, why in endings(early[0].records).items()
            }
        elif early:
            notes[
                f"{len(early)} of {len(self.runs)} runs ended a stage early, as train.patience asks; their records say "
                "where and why."
            ] = None
        missing = sum(len(record.get("missing", ())) for run in self.runs for record in run.records)
        if missing:
            notes[f"{missing} answers of clients are missing from rounds; records.jsonl says whose, and why."] = None
        if any(record.get("only_in_simulation") for run in self.runs for record in run.records):
            notes[
                "The model of a client that never trained is made from what other clients keep, which only a "
                "simulation can see."
            ] = None
        if any(row["models"] > 1 for run in self.runs for row in run.records[-1]["environments"]):
            notes["A domain that no client has seen is scored with each client's own model; the mean is shown."] = None
        notes |= dict.fromkeys(self._of_metrics())
        for role in ("test", "validation"):
            count = len(self.environments(role))
            if count > MOST_ENVIRONMENTS:
                notes[f"The {count} {role} environments are not shown one by one; records.jsonl holds them."] = None
        return list(notes)

    def _of_metrics(self) -> Iterator[str]:
        """By what runs select where that is not the same, and which means leave environments out."""
        selecting = dict.fromkeys(selects(run.records[-1]).title for run in self.runs)
        if len(selecting) > 1:
            yield f"The runs select by different metrics ({', '.join(selecting)}); {self.metric.title} is shown."
        blind = dict.fromkeys(selects(run.records[-1]) for run in self.runs if _chooses_nothing(run))
        for metric in blind:
            yield (
                f"{metric.heading} is undefined on every validation environment ({metric.lacks}), so no round is "
                "chosen by it: the last one stands in its place."
            )
        for role in ("test", "validation"):
            lacking: dict[tuple[str, ...], list[Metric]] = {}
            for metric in self.metrics:
                lacking.setdefault(self._without(role, metric), []).append(metric)
            lacking.pop((), None)
            for places, metrics in lacking.items():
                named = ", ".join(places[:MOST_NAMED]) + ", ..." * (len(places) > MOST_NAMED)
                why = [f"{metric.title} ({metric.lacks})" for metric in metrics]
                more = f" and {len(why) - MOST_NAMED} more" if len(why) > MOST_NAMED else ""
                yield (
                    f"Means leave out {len(places)} of {len(self.environments(role))} {role} environments ({named}) "
                    f"where a metric is undefined: {', '.join(why[:MOST_NAMED])}{more}."
                )

    def _without(self, role: str, metric: Metric) -> tuple[str, ...]:
        """The environments of a role on which a metric is undefined for some model or all, at the last round."""
        rows = (row for run in self.runs for row in run.records[-1]["environments"] if row["role"] == role)
        return tuple(dict.fromkeys(row["environment"] for row in rows if value_of(row, metric.name) is None))

    def _cases(self, runs: Sequence[Run]) -> set[tuple[int, str]]:
        """Which seeds and held-out domains were run."""
        return {(run.table["seed"], str(run.table["protocol"].get("hold_out", ""))) for run in runs}

    def rows(self) -> list[Row]:
        """Runs grouped by all that decides their results but seed and held-out domain, in the order they come."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.folder.identity.series, []).append(run)
        flat = [described(runs[0].table, runs[0].folder.identity.contents) for runs in groups.values()]
        others, metric = [*flat, *(each.settings for each in self.refused)], self.metric
        return [Row(label(entry, others), runs, metric) for entry, runs in zip(flat, groups.values(), strict=True)]

    @property
    def lacking(self) -> dict[str, str]:
        """Why rows that were asked for have no run, by their labels."""
        if not self.refused:
            return {}
        others = [described(run.table, run.folder.identity.contents) for run in self.runs]
        others += [each.settings for each in self.refused]
        return {label(each.settings, others): each.reason for each in self.refused}

    @cached_property
    def metric(self) -> Metric:
        """What is shown first: the metric by which the runs select, or accuracy where they select by several."""
        selecting = dict.fromkeys(selects(run.records[-1]) for run in self.runs)
        return next(iter(selecting)) if len(selecting) == 1 else Metric(ACCURACY)

    @cached_property
    def metrics(self) -> list[Metric]:
        """Every metric that all runs have, the one that is shown first before the others."""
        every = [run.records[-1]["environments"][0].get("metrics", {}) for run in self.runs]
        common = [ACCURACY, *(name for name in every[0] if all(name in names for names in every))]
        return [self.metric, *(Metric(name) for name in common if name != self.metric.name)]

    def environments(self, role: str) -> list[str]:
        """Names of the environments of one role, in the order they come."""
        names = (
            row["environment"] for run in self.runs for row in run.records[-1]["environments"] if row["role"] == role
        )
        return list(dict.fromkeys(names))

    def heading(self, role: str, environment: str) -> str:
        """What a column or panel is called: the role, and the environment where its name says more."""
        label = self.label(role)
        return label if environment == label else f"{label} {environment}"

    def label(self, role: str) -> str:
        """What the protocol calls the score on environments of one role."""
        name = self.runs[0].table["protocol"]["name"]
        if name not in PROTOCOLS:  # a plugin's, which is not imported for a report
            return role
        protocol = PROTOCOLS.get(name).cls
        return protocol.test_label if role == "test" else protocol.validation_label


def _chooses_nothing(run: Run) -> bool:
    """Whether a run has validation environments, and what selects is defined on none of them in the last stage."""
    of_stage = [record for record in run.records if record["stage"] == run.records[-1]["stage"]]
    validated = any(row["role"] == "validation" for record in of_stage for row in record["environments"])
    return validated and all(mean_score(record, "validation") is None for record in of_stage)


def _not_begun(path: Path) -> Iterator[str]:
    """The runs of comparisons at or below a path that have no folder yet."""
    for file in grid_files(path):
        try:
            runs = read_grid(file).runs
        except FedshiftError as error:
            yield str(error)
            continue
        waiting = [file.parent / run.folder for run in runs if not RunFolder(file.parent / run.folder).begun]
        refused = [folder for folder in waiting if (folder / REFUSED).is_file()]
        for folder in refused:
            reason = (folder / REFUSED).read_text(encoding="utf-8")
            yield f"{folder.name} could not run: {reason} `fedshift resume {path}` tries again."
        if names := [folder.name for folder in waiting if folder not in refused]:
            yield (
                f"{len(names)} of the {len(runs)} runs of a comparison have not begun ({', '.join(names[:4])}"
                f"{', ...' if len(names) > 4 else ''}); `fedshift resume {path}` begins them."
            )


def _order(run: Run) -> list[tuple[int, float, str]]:
    """Sorts methods by name, and numbers by size."""
    values = [run.table["method"]["name"], *flattened(run.table).values()]
    return [(0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in values]


def label(flat: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The method's name, and whatever else tells it from rows of the same method; settings are by dotted name."""
    method = flat["method.name"]
    same = [other for other in others if other["method.name"] == method]
    names = [name for name in flat if name not in NOT_A_ROW]
    differing = [name for name in names if any(other.get(name) != flat[name] for other in same)]
    # Another data set, base or index has other settings altogether, so its name says enough.
    others_of = {name.removesuffix("name") for name in differing if name.endswith(".name")}
    telling = [
        name for name in differing if name.endswith(".name") or not any(name.startswith(prefix) for prefix in others_of)
    ]
    words = [f"{_short(name)}={_shown(flat[name])}" for name in telling]
    return f"{method} ({', '.join(words)})" if words else str(method)


def _short(name: str) -> str:
    """A setting's name without its table: "mu" of "method.mu", "base.mu" of "method.base.mu", "base" of its name.

    A plugin's file keeps its name.
    """
    table, _, rest = name.removesuffix(".name").partition(".")
    return rest if table in (*NAMED, *PLAIN) else name


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of an experiment that decide its result, by dotted name."""
    return flat({key: value for key, value in table.items() if key != "run"})


def described(table: Mapping[str, Any], contents: Mapping[str, str]) -> dict[str, Any]:
    """All that tells a row from others, by dotted name: settings, and digests of files and plugins.

    Args:
        table: an experiment's settings.
        contents: digests of what is no setting; a file counts by what it holds, whatever its path.
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
