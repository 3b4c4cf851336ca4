"""Carrying out a benchmark: every method is tuned on a column, then run with seeds that nothing was chosen on.

Runs lie in folders that are not repeated, so the same plan, asked for again, goes on where it was. A column's runs are
ordered by seed, for which the data are loaded once. Where a run of the results diverged, its cell's other seeds are
left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedshift import files
from fedshift.benchmarking.columns import Column
from fedshift.benchmarking.plan import Plan
from fedshift.core.metrics import ACCURACY
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, FedshiftWarning, LockedError
from fedshift.methods import METHODS
from fedshift.reporting.results import Row
from fedshift.runs.cells import Lacking, carried_out
from fedshift.runs.progress import Progress
from fedshift.runs.run import Run
from fedshift.runs.selection import by_environment, last
from fedshift.settings.experiment import Experiment
from fedshift.simulation.simulation import Simulation
from fedshift.study.tune import search_all
from fedshift.study.tuned import Found
from fedshift.study.tuning import Tuning

A_MEGABYTE = 1e6


@dataclass(frozen=True)
class Measured:
    """What one seed of a method came to on a column, at the last round; means over its runs, one a held-out domain.

    Attributes:
        column: the column's name.
        method: the row's name.
        seed: the seed.
        accuracy: the mean over test environments, in 0..1.
        worst: that of the worst of them, in 0..1.
        validation: the mean over validation environments, in 0..1.
        seconds: of training, without evaluation, of one run.
        megabytes: sent in both directions, of one run.
    """

    column: str
    method: str
    seed: int
    accuracy: float
    worst: float
    validation: float
    seconds: float
    megabytes: float


Cell = tuple[str, str]  # a column's name and a method's


@dataclass
class Outcome:
    """What came of a plan so far.

    Attributes:
        measured: of every seed of every cell that has all of its seeds.
        lacking: why others have none.
        chosen: what was found by tuning, one for each held-out domain.
        left_out: columns whose data are not here, and the fix.
    """

    measured: list[Measured] = field(default_factory=list)
    lacking: dict[Cell, Lacking] = field(default_factory=dict)
    chosen: dict[Cell, list[Found]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def carry_out(plan: Plan, progress: Progress) -> Outcome:
    """Carry out all that a plan asks for; finished runs are not repeated.

    Raises:
        FedshiftError: no column has its data here; or runs cannot be carried out for a reason that is not their
            method's, such as a full disk, or another process that is at work on them.
    """
    files.check_folder(plan.folder)
    columns, left_out = plan.available(progress)
    for note in left_out.values():
        progress.note(note)
    outcome = Outcome(left_out=left_out)
    for column in columns:
        _column(plan, column, outcome, progress)
    return outcome


def _column(plan: Plan, column: Column, outcome: Outcome, progress: Progress) -> None:
    """All methods on one column."""
    chosen: dict[str, list[Experiment]] = {}
    for method in plan.methods:
        with _noting(plan, column, method, outcome):
            chosen[method] = _tuned(plan, column, method, outcome, progress)
    runs: dict[str, list[Run]] = {method: [] for method in chosen}
    for seed in plan.scale.seeds:
        for method, experiments in chosen.items():
            if (column.name, method) in outcome.lacking:
                continue
            with _noting(plan, column, method, outcome):
                runs[method] += carried_out([each for each in experiments if each.seed == seed], progress)
    for method, carried in runs.items():
        if (column.name, method) not in outcome.lacking:
            outcome.measured += measured(column.name, method, carried)


def _tuned(plan: Plan, column: Column, method: str, outcome: Outcome, progress: Progress) -> list[Experiment]:
    """A method's runs with the settings that were chosen on validation data, which are put on record."""
    experiments = plan.experiments(column, method, plan.scale.seeds)
    tuning = search_all(
        plan.experiments(column, method, plan.scale.tuning_seeds), plan.budget(column, method), progress
    )
    outcome.chosen[column.name, method] = _found(tuning)
    if tuning.failed:  # of one held-out domain among several
        raise DivergedError(tuning.failed[0])
    with warnings.catch_warnings():  # methods are tuned one by one, so the file has some with other searched settings
        warnings.simplefilter("ignore", FedshiftWarning)
        return tuning.tuned.apply(experiments, where=str(tuning.path))


def _found(tuning: Tuning) -> list[Found]:
    """What these studies found; the file has what others did as well."""
    names = {study.path.name for study in tuning.studies}
    return [found for found in tuning.tuned.tuned if found.study in names]


@contextmanager
def _noting(plan: Plan, column: Column, method: str, outcome: Outcome) -> Iterator[None]:
    """Note why a cell has no figure, and let the others go on, unless nothing can."""
    try:
        yield
    except Exception as error:
        why = lacking(plan, column, method, error)
        if why is not None:
            outcome.lacking[column.name, method] = why
        elif isinstance(error, FedshiftError):
            raise FedshiftError(
                f"{column.title}, {method}: {error} What is finished is kept. The same command carries on."
            ) from error
        else:
            raise


def lacking(plan: Plan, column: Column, method: str, error: Exception) -> Lacking | None:
    """Why an error leaves a cell without a figure; None where it is not the method that is at fault."""
    if isinstance(error, DivergedError):
        return Lacking(str(error), "diverged")
    if isinstance(error, DiskError | LockedError | DamagedError):
        return None
    if isinstance(error, FedshiftError) and (reason := _refusal(plan, column, method)):
        return Lacking(reason, "refused")
    if METHODS.get(method).built_in:
        return None
    name = "" if isinstance(error, FedshiftError) else f"{type(error).__name__}: "
    return Lacking(f"{name}{error}", "failed")


def _refusal(plan: Plan, column: Column, method: str) -> str:
    """Why a method refuses a federation; empty if it takes it."""
    try:
        for each in plan.experiments(column, method, (*plan.scale.tuning_seeds, *plan.scale.seeds)):
            Simulation(each)
    except FedshiftError as error:
        return str(error)
    return ""


def measured(column: str, method: str, runs: Sequence[Run]) -> list[Measured]:
    """What the runs of a cell came to, by seed."""
    row = Row(method, list(runs))

    def environments(role: str, run: Run) -> list[float]:
        return list(by_environment(last(run.records), role, ACCURACY).values())

    accuracy = row.by_seed(lambda run: environments("test", run))
    worst = row.by_seed(lambda run: environments("test", run), min)
    validation = row.by_seed(lambda run: environments("validation", run))
    seconds = row.by_seed(lambda run: [run.folder.times().training])
    megabytes = row.by_seed(lambda run: [_bytes(run) / A_MEGABYTE])
    return [
        Measured(column, method, seed, accuracy[seed], worst[seed], validation[seed], seconds[seed], megabytes[seed])
        for seed in sorted(accuracy)
    ]


def _bytes(run: Run) -> int:
    record = last(run.records)
    return int(record["bytes_down"]) + int(record["bytes_up"])
