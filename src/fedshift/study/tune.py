"""Carrying out studies: batches of trials, whose runs advance together, until the budget is spent."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import mean
from typing import Any, cast

from fedshift import files
from fedshift.core.metrics import Metric
from fedshift.errors import DamagedError, DiskError, DivergedError, FedshiftError, FedshiftWarning, LockedError
from fedshift.experiments import Experiment
from fedshift.runs.events import AnyEvent, EvaluatedEvent, Progress
from fedshift.runs.locks import TURN, locked
from fedshift.runs.run import Run
from fedshift.runs.runner import attempt
from fedshift.runs.scheduling import PlannedRun, run_path
from fedshift.runs.selection import last, mean_score
from fedshift.runs.shard import Shard
from fedshift.runs.together import Judge, to_the_end
from fedshift.study.search import Budget, Curve, Study, Trial
from fedshift.study.space import Space, unused_ranges, with_settings
from fedshift.study.tuned import Found, TunedSettings, Tuning

ROLE = "validation"  # of the environments on which settings are chosen
NO_TRIALS_FAULT = (DiskError, LockedError, DamagedError)


def plan_studies(experiments: Sequence[Experiment], budget: Budget) -> tuple[list[Study], list[FedshiftError]]:
    """The studies of experiments, one for each method and held-out domain over all seeds; nothing is written.

    Returns:
        The studies, and why methods have none that refuse their settings.

    Warns:
        FedshiftWarning: a setting that is to be searched belongs to no method that is tuned.

    Raises:
        FedshiftError: a setting has several values, a range does not fit, nothing is searched, the protocol's
            validation is a test, or every method refuses its settings.
    """
    for key in unused_ranges(budget.search, experiments):
        words = f"{key} is a setting of no method that is tuned, so it is not searched."
        warnings.warn(words, FedshiftWarning, stacklevel=2)
    groups: dict[tuple[str, str], list[Experiment]] = {}
    refused: dict[str, FedshiftError] = {}
    for each in experiments:
        each.protocol.check_choosing()
        try:
            each.check()
            groups.setdefault(each.case, []).append(each)
        except FedshiftError as error:
            refused.setdefault(each.method_name, FedshiftError(f"{each.method_name}: {error}"))
    if not groups:
        raise next(iter(refused.values()))
    studies = [_study(group, budget) for group in groups.values()]
    if not any(study.space.searched for study in studies):
        raise FedshiftError("There is nothing to search: give ranges (--search train.lr=0.001..0.1), or fix less.")
    return studies, [*refused.values()]


def _study(experiments: Sequence[Experiment], budget: Budget) -> Study:
    first = experiments[0]
    if len({each.series for each in experiments}) > 1 or len({each.seed for each in experiments}) < len(experiments):
        raise FedshiftError(
            f"{first.method_name}: a setting has a list of values, which make a grid; to search among them write "
            "--search train.lr=0.1,0.01 in the place of --set train.lr=0.1,0.01."
        )
    space = Space.of(first, budget.search, budget.fixed, budget.declared)
    decides = [
        [each.fingerprint for each in experiments],
        space.table(),
        budget.sampler,
        budget.parallel,
        budget.finalists,
    ]
    digest = files.digest_of(json.dumps(decides, sort_keys=True).encode())
    words = first.run_name.rsplit("-seed", 1)[0]
    path = run_path(first).parent / f"tune-{words}-{digest[:8]}"
    return Study(path, experiments, space, budget, digest)


def search_all(
    experiments: Sequence[Experiment], budget: Budget, progress: Progress, shard: Shard | None = None
) -> Tuning:
    """Run the studies of experiments, and write the best settings down; what is there already is not repeated.

    A study that fails does not keep the others from theirs. Processes that share the work run the runs of each
    batch together.

    Warns:
        FedshiftWarning: as :func:`plan_studies`; or the file of the best settings had other entries for these methods.

    Raises:
        FedshiftError: as :func:`plan_studies`; no study has a trial that was carried to its end; or runs cannot be
            run for a reason that is not their method's, such as a full disk.
    """
    studies, failed = plan_studies(experiments, budget)
    folder = run_path(experiments[0]).parent
    files.check_folder(folder)
    done: list[Study] = []
    for study in studies:
        try:
            _carry_out(study, cast(Progress, _ValidationProgress(progress)), shard)
        except NO_TRIALS_FAULT:
            raise
        except FedshiftError as error:
            failed.append(FedshiftError(f"{study.label}: {error}"))
            continue
        if study.best() is None:
            reason = next((trial.reason for trial in study.trials if trial.reason), "")
            failed.append(DivergedError(f"No trial of {study.label} was carried to its end. {reason}"))
        else:
            done.append(study)
    if not done:
        raise failed[0]
    searched = {key for study in studies for key in study.space.searched}
    entries = map(Found.of, done)
    path = TunedSettings.of(experiments[0], chosen_on(experiments[0]), searched, entries).write(folder)
    return Tuning(path, TunedSettings.read(path), tuple(done), tuple(map(str, failed)))


def chosen_on(experiment: Experiment) -> str:
    """On what data settings are chosen, for a reader."""
    label = experiment.protocol.validation_label
    words = ROLE if label == ROLE else f"{label} {ROLE}"
    return (
        f"{words} {Metric(experiment.evaluate.select).title} at the end, the mean over environments and "
        "seeds; no test environment is inspected"
    )


# One study ---------------------------------------------------------------------------------------


def _carry_out(study: Study, progress: Progress, shard: Shard | None) -> None:
    """Run the trials of a study, of which it may have some already.

    Raises:
        FedshiftError: another process is busy with it that shares nothing, or its runs cannot run.
    """
    with nullcontext() if shard else locked(study.path):
        while numbers := _asked(study, shard):
            outcomes = _Batch(study, numbers, progress, shard).outcomes()
            with _turn(study, shard):
                study.read()
                for number, outcome in outcomes.items():
                    if study.trials[number].state == "asked":  # no other process was before us
                        study.tell(number, outcome)
            for number, outcome in outcomes.items():
                pruned = f"pruned after round {outcome.curve[-1][0]}" if outcome.state == "pruned" else ""
                top = study.best(number + 1)
                so_far = f"; best so far {study.trials[top].percent} %, trial {top + 1}" if top is not None else ""
                progress.note(
                    f"{study.label}: trial {number + 1} of {study.count}: {pruned or outcome.percent} "
                    f"({outcome.words}){so_far}"
                )


def _asked(study: Study, shard: Shard | None) -> list[int]:
    """The numbers of the trials that are next."""
    with _turn(study, shard):
        study.read()
        return study.ask()


def _turn(study: Study, shard: Shard | None) -> AbstractContextManager[None]:
    """Where processes share a study, one at a time reads and writes its journal."""
    return locked(study.path, TURN) if shard else nullcontext()


class _Batch:
    """Trials of a study that are run side by side."""

    def __init__(self, study: Study, numbers: Sequence[int], progress: Progress, shard: Shard | None = None) -> None:
        self._study, self._numbers, self._progress, self._shard = study, numbers, progress, shard
        self._runs: dict[int, list[Experiment]] = {}  # one for each seed, of trials whose outcome is not known
        self._rounds: dict[str, int] = {}  # all rounds of these runs, by the folder's name
        self._outcomes: dict[int, Trial] = {}

    def outcomes(self) -> dict[int, Trial]:
        """Carry them out; returns the outcome of each.

        The first seed of all goes before the others, as it decides which trials are pruned: so that does not depend on
        which runs an engine runs together.
        """
        trials, metric = self._study.trials, self._study.metric
        for number in self._numbers:
            if trials[number].repeats is None:
                self._prepare(number)
        self._carry_out([runs[0] for runs in self._runs.values()], self._why_pruned)
        for number, runs in list(self._runs.items()):
            if (end := self._pruned_at(folder := self._folder(runs[0]))) is not None:
                self._end(number, state="pruned", curve=[scored for scored in _curve(folder) if scored[0] <= end])
        for number in self._behind():
            self._end(number, state="pruned", curve=_curve(self._folder(self._runs[number][0])))
        self._carry_out([run for runs in self._runs.values() for run in runs[1:]], to_the_end)
        for number, runs in list(self._runs.items()):
            values = [mean_score(last(self._folder(run).records), ROLE) for run in runs]
            there = [value for value in values if value is not None]
            if len(there) < len(values):
                reason = f"{metric.heading} is undefined on every {ROLE} environment: {metric.lacks}."
                self._end(number, state="failed", reason=reason)
            else:
                self._end(number, state="complete", curve=_curve(self._folder(runs[0])), value=mean(there))
        for number in self._numbers:
            if (earlier := trials[number].repeats) is not None:
                self._outcomes[number] = self._outcomes.get(earlier) or trials[earlier]
        return dict(sorted(self._outcomes.items()))

    def _behind(self) -> list[int]:
        """The trials that are no finalists: the first seed of others has a better score, or an equal one earlier."""
        finalists, merit = self._study.budget.finalists, self._study.metric.merit
        if finalists is None or len(self._study.experiments) == 1:
            return []
        first = {number: trial.runs[0] for number, trial in self._study.beside(self._numbers[0]).items() if trial.runs}
        first |= {number: runs[0].run_name for number, runs in self._runs.items()}
        folders = {number: Run(self._study.path / name) for number, name in first.items()}
        scores = {number: mean_score(last(run.records), ROLE) for number, run in folders.items() if run.finished}
        known = {number: merit(score) for number, score in scores.items() if score is not None}
        best = sorted(known, key=lambda number: (-known[number], number))[:finalists]
        return [number for number in known if number in self._runs and number not in best]

    def _prepare(self, number: int) -> None:
        """Make a trial's experiments."""
        settings = self._study.trials[number].settings
        try:
            runs = [with_settings(each, settings) for each in self._study.experiments]
            for run in runs:
                run.check()
        except FedshiftError as error:  # these settings do not go together
            self._end(number, state="failed", reason=str(error))
            return
        self._runs[number] = runs
        rounds = sum(stage.rounds for stage in runs[0].method.stages(runs[0].train.rounds))
        self._rounds |= dict.fromkeys((run.run_name for run in runs), rounds)

    def _carry_out(self, runs: Sequence[Experiment], judge: Judge) -> None:
        """Run runs, but for those that are known to be given up; a trial fails with any of its runs."""
        requested = [PlannedRun.of(run, folder.path) for run in runs if not judge(folder := self._folder(run))]
        failed = attempt(requested, self._progress, judge, self._shard) if requested else {}
        for number, of_trial in list(self._runs.items()):
            errors = [failed[path] for run in of_trial if (path := self._folder(run).path) in failed]
            if other := next((error for error in errors if isinstance(error, NO_TRIALS_FAULT)), None):
                raise other
            if errors:
                self._end(number, state="failed", reason=str(errors[0]))

    def _pruned_at(self, folder: Run) -> int | None:
        """After which round a run is given up, as far as it has come."""
        return self._study.pruned_at(self._numbers[0], _curve(folder), self._rounds[folder.path.name])

    def _why_pruned(self, folder: Run) -> str:
        """Why a run is given up; empty if it continues."""
        try:
            end = self._pruned_at(folder) if folder.begun else None
        except DamagedError:  # it is set aside and made again
            return ""
        return "" if end is None else f"pruned, as after round {end} it is worse than the median of earlier trials"

    def _folder(self, run: Experiment) -> Run:
        return Run(self._study.path / run.run_name)

    def _end(self, number: int, **outcome: Any) -> None:
        """Note the outcome of a trial, which has no more to do."""
        runs = [run.run_name for run in self._runs.pop(number, ())]
        self._outcomes[number] = replace(self._study.trials[number], runs=runs, **outcome)


def _curve(folder: Run) -> Curve:
    """A run's validation scores so far, by rounds done; none of rounds where the metric is undefined."""
    scores = ((record["position"], mean_score(record, ROLE)) for record in folder.records)
    return [(position, score) for position, score in scores if score is not None]


class _ValidationProgress:
    """Passes on the progress of trials without their test scores, which nobody should see while settings are chosen."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def handle(self, run: str, event: AnyEvent) -> None:
        if isinstance(event, EvaluatedEvent):
            rows = [row for row in event.environments if row.role == ROLE]
            event = event.model_copy(update={"environments": rows})
        self._progress.handle(run, event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)
