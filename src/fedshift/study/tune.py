"""Running studies: batches of trials, whose runs advance together, until the budget is spent."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import mean
from typing import Any, cast

from fedshift import files
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

    Returns the studies, and why some methods refuse their settings. Warns if no tuned method has a setting to be
    searched. Raises a FedshiftError if a setting has several values, a range does not fit, nothing is searched, the
    protocol's validation is a test, or every method refuses its settings.
    """
    for key in unused_ranges(budget.search, experiments):
        words = f"{key} is not a setting of any tuned method, so it is not searched."
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
            "--search train.lr=0.1,0.01 instead of --set train.lr=0.1,0.01."
        )
    space = Space.of(first, budget.search, budget.fixed, budget.declared)
    runs = [fold for each in experiments for fold in budget.folds(each)]
    decides = [
        [each.fingerprint for each in runs],
        space.table(),
        budget.sampler,
        budget.parallel,
        budget.finalists,
    ]
    digest = files.digest_of(json.dumps(decides, sort_keys=True).encode())
    words = first.run_name.rsplit("-seed", 1)[0]
    path = run_path(first).parent / f"tune-{words}-{digest[:8]}"
    return Study(path, runs, space, budget, digest)


def search_all(
    experiments: Sequence[Experiment], budget: Budget, progress: Progress, shard: Shard | None = None
) -> Tuning:
    """Run the studies of experiments, and write the best settings; finished work is not repeated.

    Warns and raises as :func:`search`; also warns if the file of the best settings had other entries for these methods,
    and raises a FedshiftError if it cannot be written.
    """
    studies, failed = search(experiments, budget, progress, shard)
    path = best_settings(experiments[0], studies).write(run_path(experiments[0]).parent)
    return Tuning(path, TunedSettings.read(path), tuple(studies), tuple(map(str, failed)))


def search(
    experiments: Sequence[Experiment], budget: Budget, progress: Progress, shard: Shard | None = None
) -> tuple[list[Study], list[FedshiftError]]:
    """Run the studies of experiments; returns those with a complete trial, and errors of others, which stop none.

    Processes that share the work run the runs of each batch together. Warns and raises as :func:`plan_studies`; also
    raises a FedshiftError if no study has a complete trial, or runs cannot run for a reason other than their method,
    such as a full disk.
    """
    studies, failed = plan_studies(experiments, budget)
    files.check_folder(run_path(experiments[0]).parent)
    done: list[Study] = []
    for study in studies:
        try:
            _run(study, cast(Progress, _ValidationProgress(progress)), shard)
        except NO_TRIALS_FAULT:
            raise
        except FedshiftError as error:
            failed.append(FedshiftError(f"{study.label}: {error}"))
            continue
        if study.best() is None:
            reason = next((trial.reason for trial in study.trials if trial.reason), "")
            failed.append(DivergedError(f"No trial of {study.label} completed. {reason}"))
        else:
            done.append(study)
    if not done:
        raise failed[0]
    return done, failed


def best_settings(experiment: Experiment, studies: Sequence[Study]) -> TunedSettings:
    """The settings of the best trial of each study, on an experiment (any of those that are tuned)."""
    searched = {key for study in studies for key in study.space.searched}
    return TunedSettings.of(experiment, chosen_on(studies[0]), searched, map(Found.of, studies))


def chosen_on(study: Study) -> str:
    """The data on which settings are chosen, for a reader."""
    label = study.experiments[0].protocol.validation_label
    words = ROLE if label == ROLE or study.budget.cross_validate else f"{label} {ROLE}"
    over = "domains that train, each held out in turn," if study.budget.cross_validate else "environments"
    return f"{words} {study.metric.title} at the end, the mean over {over} and seeds; test environments are not used"


# One study ---------------------------------------------------------------------------------------


def _run(study: Study, progress: Progress, shard: Shard | None) -> None:
    with nullcontext() if shard else locked(study.path):
        while numbers := _next_batch(study, shard):
            outcomes = _Batch(study, numbers, progress, shard).outcomes()
            with _turn(study, shard):
                study.read()
                for number, outcome in outcomes.items():
                    if study.trials[number].state == "requested":  # no other process was before us
                        study.tell(number, outcome)
            for number, outcome in outcomes.items():
                pruned = f"pruned after round {outcome.curve[-1][0]}" if outcome.state == "pruned" else ""
                top = study.best(number + 1)
                so_far = f"; best so far {study.trials[top].percent} %, trial {top + 1}" if top is not None else ""
                progress.note(
                    f"{study.label}: trial {number + 1} of {study.count}: {pruned or outcome.percent} "
                    f"({outcome.words}){so_far}"
                )


def _next_batch(study: Study, shard: Shard | None) -> list[int]:
    with _turn(study, shard):
        study.read()
        return study.ask()


def _turn(study: Study, shard: Shard | None) -> AbstractContextManager[None]:
    return locked(study.path, TURN) if shard else nullcontext()


class _Batch:
    """Trials of a study that run side by side."""

    def __init__(self, study: Study, numbers: Sequence[int], progress: Progress, shard: Shard | None = None) -> None:
        self._study, self._numbers, self._progress, self._shard = study, numbers, progress, shard
        self._runs: dict[int, list[Experiment]] = {}  # an experiment per seed and fold, of trials without an outcome
        self._rounds: dict[str, int] = {}  # all rounds of these runs, by the folder's name
        self._outcomes: dict[int, Trial] = {}

    def outcomes(self) -> dict[int, Trial]:
        """Run them; returns the outcome of each.

        The first seed of all runs before the others, as it decides which trials are pruned: so that does not depend on
        which runs an engine stacks.
        """
        trials, metric, folds = self._study.trials, self._study.metric, self._study.folds
        for number in self._numbers:
            if trials[number].repeats is None:
                self._prepare(number)
        self._run([run for runs in self._runs.values() for run in runs[:folds]], self._pruning_reason)
        for number, runs in list(self._runs.items()):
            if (end := self._pruned_at(folder := self._folder(runs[0]))) is not None:
                self._end(number, state="pruned", curve=[scored for scored in _curve(folder) if scored[0] <= end])
        for number in self._behind():
            self._end(number, state="pruned", curve=self._curve_of(number))
        self._run([run for runs in self._runs.values() for run in runs[folds:]], to_the_end)
        for number, runs in list(self._runs.items()):
            values = [mean_score(last(self._folder(run).records), ROLE) for run in runs]
            there = [value for value in values if value is not None]
            if len(there) < len(values):
                reason = f"{metric.heading} is undefined on every {ROLE} environment: {metric.lacks}."
                self._end(number, state="failed", reason=reason)
            else:
                self._end(number, state="complete", curve=self._curve_of(number), value=mean(there))
        for number in self._numbers:
            if (earlier := trials[number].repeats) is not None:
                self._outcomes[number] = self._outcomes.get(earlier) or trials[earlier]
        return dict(sorted(self._outcomes.items()))

    def _behind(self) -> list[int]:
        """The trials that are no finalists: the first seed of others has a better score, or an equal score earlier."""
        finalists, folds, merit = self._study.budget.finalists, self._study.folds, self._study.metric.merit
        if finalists is None or len(self._study.experiments) == folds:
            return []
        there = {number: trial.runs for number, trial in self._study.batch_trials(self._numbers[0]).items()}
        there |= {number: [run.run_name for run in runs] for number, runs in self._runs.items()}
        known: dict[int, float] = {}
        for number, names in there.items():
            folders = [Run(self._study.path / name) for name in names[:folds]]
            scores = [mean_score(last(run.records), ROLE) for run in folders if run.finished]
            defined = [score for score in scores if score is not None]
            if len(defined) == folds:
                known[number] = merit(mean(defined))
        best = sorted(known, key=lambda number: (-known[number], number))[:finalists]
        return [number for number in known if number in self._runs and number not in best]

    def _prepare(self, number: int) -> None:
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

    def _run(self, runs: Sequence[Experiment], judge: Judge) -> None:
        """Run runs, except those known to be stopped early; a trial fails with any of its runs."""
        requested = [PlannedRun.of(run, folder.path) for run in runs if not judge(folder := self._folder(run))]
        failed = attempt(requested, self._progress, judge, self._shard) if requested else {}
        for number, of_trial in list(self._runs.items()):
            errors = [failed[path] for run in of_trial if (path := self._folder(run).path) in failed]
            if other := next((error for error in errors if isinstance(error, NO_TRIALS_FAULT)), None):
                raise other
            if errors:
                self._end(number, state="failed", reason=str(errors[0]))

    def _pruned_at(self, folder: Run) -> int | None:
        return self._study.pruned_at(self._numbers[0], _curve(folder), self._rounds[folder.path.name])

    def _pruning_reason(self, folder: Run) -> str:
        try:
            end = self._pruned_at(folder) if folder.has_started else None
        except DamagedError:  # it is set aside and repeated
            return ""
        return "" if end is None else f"pruned, as after round {end} it is worse than the median of earlier trials"

    def _curve_of(self, number: int) -> Curve:
        """The mean over folds of the curves of the first seed."""
        curves = [dict(_curve(self._folder(run))) for run in self._runs[number][: self._study.folds]]
        shared = [position for position in curves[0] if all(position in curve for curve in curves)]
        return [(position, mean(curve[position] for curve in curves)) for position in shared]

    def _folder(self, run: Experiment) -> Run:
        return Run(self._study.path / run.run_name)

    def _end(self, number: int, **outcome: Any) -> None:
        runs = [run.run_name for run in self._runs.pop(number, ())]
        self._outcomes[number] = replace(self._study.trials[number], runs=runs, **outcome)


def _curve(folder: Run) -> Curve:
    scores = ((record["position"], mean_score(record, ROLE)) for record in folder.records)
    return [(position, score) for position, score in scores if score is not None]


class _ValidationProgress:
    """Passes on the progress of trials without their test scores, which must stay unseen while settings are chosen."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def handle(self, run: str, event: AnyEvent) -> None:
        if isinstance(event, EvaluatedEvent):
            rows = [row for row in event.environments if row.role == ROLE]
            event = event.model_copy(update={"environments": rows})
        self._progress.handle(run, event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)
