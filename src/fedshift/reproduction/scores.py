"""What the columns of the papers' tables are, read off the records of runs, in the units that are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

from fedshift.core.metrics import ACCURACY
from fedshift.errors import FedshiftError
from fedshift.runs.records import Record
from fedshift.runs.run import Run
from fedshift.runs.selection import by_environment, last, mean_score, target_best

PERCENT = 100.0
A_MEGABYTE = 1e6
Values = Callable[[Run, Sequence[Record]], Iterable[float]]
Count = Callable[[Run, Record], float]


@dataclass(frozen=True)
class Score:
    """A number for each seed of a cell.

    Attributes:
        unit: of it.
        values: of a run and its records; of a seed all values of its runs count, one run a held-out domain.
        of_seed: makes one number of a seed's values.
    """

    unit: str
    values: Values
    of_seed: Callable[[Sequence[float]], float] = mean


def _accuracies(run: Run, records: Sequence[Record]) -> list[float]:
    return [PERCENT * value for value in by_environment(last(records), "test", ACCURACY).values()]


def _on(environment: str, run: Run, records: Sequence[Record]) -> list[float]:
    found = by_environment(last(records), "test", ACCURACY)
    return [PERCENT * found[environment]] if environment in found else []


def _mean(record: Record) -> list[float]:
    """The mean accuracy over test environments, in %; nothing where there are none."""
    score = mean_score(record, "test", ACCURACY)
    return [] if score is None else [PERCENT * score]


def _best(run: Run, records: Sequence[Record]) -> list[float]:
    return _mean(target_best(records))


def _risks(run: Run, records: Sequence[Record]) -> list[float]:
    return [*by_environment(last(records), "test", "loss").values()]


def _seconds(run: Run, records: Sequence[Record]) -> list[float]:
    return [run.folder.times().training]


def _reached(accuracy: float, count: Count, run: Run, records: Sequence[Record]) -> list[float]:
    """What had been counted when the mean accuracy was first reached; nothing if it never was."""
    there = (count(run, record) for record in records if max(_mean(record), default=0.0) >= accuracy)
    return [*there][:1]


def _position(run: Run, record: Record) -> float:
    return float(record["position"])


def _megabytes(run: Run, record: Record) -> float:
    return float(record["bytes_down"] + record["bytes_up"]) / A_MEGABYTE / len(run.federation["clients"])


SCORES: Mapping[str, Score] = {
    "mean": Score("%", _accuracies),
    "worst": Score("%", _accuracies, min),
    "best round": Score("%", _best),
    "risk": Score("nats", _risks),
    "seconds": Score("s", _seconds),
}
WITH_ARGUMENT: Mapping[str, Callable[[str], Score]] = {
    "on": lambda name: Score("%", partial(_on, name)),
    "rounds to": lambda accuracy: Score("rounds", partial(_reached, float(accuracy), _position)),
    "megabytes a client to": lambda accuracy: Score("MB", partial(_reached, float(accuracy), _megabytes)),
}


def score(text: str) -> Score:
    """The score of a column.

    Args:
        text: "mean" and "worst": accuracy over test environments at the last round; "on: NAME": on one of them; "best
            round": the mean at the round that is best on the test; "risk": the mean loss over test environments;
            "seconds" of training; "rounds to: A" and "megabytes a client to: A" (in both directions): when the mean
            accuracy was first A %.

    Raises:
        FedshiftError: it is none of these.
    """
    name, _, argument = map(str.strip, text.partition(":"))
    if name in SCORES and not argument:
        return SCORES[name]
    if name in WITH_ARGUMENT and argument:
        return WITH_ARGUMENT[name](argument)
    known = [*SCORES, *(f"{each}: ..." for each in WITH_ARGUMENT)]
    raise FedshiftError(f"'{text}' is no score; give one of {', '.join(known)}.")
