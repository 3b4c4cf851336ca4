"""The quantities in tables' columns, read off the records of runs; and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from fedshift.core.metrics import ACCURACY
from fedshift.errors import FedshiftError
from fedshift.reporting.results import Row
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.selection import by_environment, last, mean_score, spread, target_best

PERCENT = 100.0
A_MEGABYTE = 1e6
Values = Callable[[Run, Sequence[Record]], Iterable[float]]


class Quantity(NamedTuple):
    """A number for each seed of a cell."""

    unit: str
    read: Values  # values of a run and its records; a seed has the values of all its runs, a run per held-out domain
    of_seed: Callable[[Sequence[float]], float] = mean  # reduces a seed's values to a number

    def by_seed(self, runs: Sequence[Run], place: int | None = None) -> dict[int, float]:
        """Each seed's number, in order: at the end, or after ``place`` rounds; a seed without values is omitted."""

        def values(run: Run) -> Iterable[float]:
            records = [record for record in run.records if place in (None, record["position"])]
            return self.read(run, records) if records else []

        return dict(sorted(Row("", [*runs]).by_seed(values, self.of_seed).items()))


def _accuracies(role: str, environment: str = "") -> Values:
    def read(run: Run, records: Sequence[Record]) -> list[float]:
        found = by_environment(last(records), role, ACCURACY)
        return [PERCENT * value for name, value in found.items() if environment in ("", name)]

    return read


def _mean(record: Record) -> list[float]:
    score = mean_score(record, "test", ACCURACY)
    return [] if score is None else [PERCENT * score]


def _late_gain(run: Run, records: Sequence[Record]) -> list[float]:
    early = records[: -(-2 * len(records) // 3)]
    return [late - before for late, before in zip(_mean(last(records)), _mean(last(early)), strict=True)]


def _reached(accuracy: float, count: Callable[[Run, Record], float]) -> Values:
    def read(run: Run, records: Sequence[Record]) -> list[float]:
        return [count(run, record) for record in records if max(_mean(record), default=0.0) >= accuracy][:1]

    return read


def _spread(run: Run, records: Sequence[Record]) -> list[float]:
    found = spread(records, "test", ACCURACY)
    return [] if found is None else [PERCENT * found]


def _megabytes(record: Record) -> float:
    return float(record["bytes_down"] + record["bytes_up"]) / A_MEGABYTE


QUANTITIES: Mapping[str, Quantity] = {
    "mean": Quantity("%", _accuracies("test")),
    "worst": Quantity("%", _accuracies("test"), min),
    "validation": Quantity("%", _accuracies("validation")),
    "spread": Quantity("points", _spread),
    "best round": Quantity("%", lambda run, records: _mean(target_best(records))),
    "late gain": Quantity("points", _late_gain),
    "risk": Quantity("nats", lambda run, records: by_environment(last(records), "test", "loss").values()),
    "seconds": Quantity("s", lambda run, records: [run.times.training]),
    "megabytes": Quantity("MB", lambda run, records: [_megabytes(last(records))]),
}
WITH_ARGUMENT: Mapping[str, Callable[[str], Quantity]] = {
    "on": lambda name: Quantity("%", _accuracies("test", name)),
    "rounds to": lambda text: Quantity("rounds", _reached(float(text), lambda run, record: float(record["position"]))),
    "megabytes a client to": lambda text: Quantity(
        "MB", _reached(float(text), lambda run, record: _megabytes(record) / len(run.data_facts["clients"]))
    ),
}


def quantity(text: str) -> Quantity:
    """The quantity of a column, from its text; raises a FedshiftError for an unknown text.

    "mean" and "worst": accuracy over test environments at the end; "on: NAME": on a single environment; "validation":
    over validation environments; "best round": the mean at the round that is best on the test; "late gain": the mean
    minus that at two thirds of the evaluations; "spread": the standard deviation of the mean over the evaluations that
    `evaluate.last` averages; "risk": the mean loss over test environments; "seconds" of training; "megabytes" in both
    directions; "rounds to: A" and "megabytes a client to: A": when the mean accuracy was first A %.
    """
    name, _, argument = map(str.strip, text.partition(":"))
    if name in QUANTITIES and not argument:
        return QUANTITIES[name]
    if name in WITH_ARGUMENT and argument:
        return WITH_ARGUMENT[name](argument)
    known = [*QUANTITIES, *(f"{each}: ..." for each in WITH_ARGUMENT)]
    raise FedshiftError(f"'{text}' is not a score; give one of {', '.join(known)}.")


# Over seeds ------------------------------------------------------------------------------------------


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """The rank of each name by its value, 1 for the highest; equal values share the mean of their ranks."""
    return {
        name: sum(other > value for other in values.values()) + (1 + sum(v == value for v in values.values())) / 2
        for name, value in values.items()
    }
