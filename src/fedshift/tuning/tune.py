"""Carrying out studies: generations of trials, whose runs advance together, until the budget is spent."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from fedshift import files
from fedshift.core.metrics import Metric
from fedshift.errors import DamagedError, DivergedError, FedshiftError, FedshiftWarning, UnknownNameError
from fedshift.runs.folder import RunFolder
from fedshift.runs.lock import locked
from fedshift.runs.progress import Progress
from fedshift.runs.runner import Asked, attempt, run_path
from fedshift.runs.selection import last, mean_score
from fedshift.runs.together import Judge, to_the_end
from fedshift.settings.experiment import Experiment
from fedshift.tuning.outcome import Outcome
from fedshift.tuning.progress import TrialProgress
from fedshift.tuning.space import Space, check_ranges, with_settings
from fedshift.tuning.study import Curve, Sampler, Study, Trial
from fedshift.tuning.tuned import Found, Tuned

ROLE = "validation"  # of the environments on which settings are chosen
MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Plan:
    """The budget and the ranges of studies, the same for all methods.

    Attributes:
        trials: of each study.
        sampler: "tpe" or "random".
        parallel: trials that are chosen, and carried out, side by side.
        search: where to look, by the dotted names of settings, beside what pages declare: a
            :class:`~fedshift.settings.spec.Range`, choices, or "0.001..0.1".
        fixed: dotted names of settings that are not searched.
        asked: names in ``search`` that somebody asks for now, and expects to be searched; the others may be of methods
            that are not tuned.
    """

    trials: int = 20
    sampler: Sampler = "tpe"
    parallel: int = 4
    search: Mapping[str, Any] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.sampler not in get_args(Sampler):
            raise UnknownNameError("sampler", self.sampler, get_args(Sampler))
        for name in ("trials", "parallel"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_TRIALS:
                raise FedshiftError(f"{name} = {count!r}: give a whole number from 1 to {MOST_TRIALS:,}.")


@dataclass(frozen=True, repr=False)
class Tuning(Outcome):
    """What studies found; prints as a table."""

    def report(self, path: str | Path | None = None) -> Path:
        """Write an HTML page with tables and plots, and the plots as PNG files into the studies' folders.

        Args:
            path: the page; None: beside the TOML file.

        Returns:
            The page.

        Raises:
            FedshiftError: a file cannot be written.
        """
        from fedshift.tuning.page import write_page  # with matplotlib

        return write_page(self, Path(path) if path is not None else self.path.with_suffix(".html"))

    def __str__(self) -> str:
        from fedshift.tuning.page import as_text

        return as_text(self)

    __repr__ = __str__


def studies(experiments: Sequence[Experiment], plan: Plan) -> list[Study]:
    """The studies of experiments: one for each method and held-out domain, over all seeds; nothing is written.

    Warns:
        FedshiftWarning: a setting that was asked to be searched is of no method that is tuned.

    Raises:
        FedshiftError: a setting has several values, a range does not fit, nothing is searched, the method cannot
            work with the training, or the protocol's validation looks at the test.
    """
    for key in check_ranges(plan.search, experiments):
        if key in plan.asked:
            warnings.warn(
                f"{key} is a setting of no method that is tuned, so it is not searched.", FedshiftWarning, stacklevel=2
            )
    groups: dict[tuple[str, str], list[Experiment]] = {}
    for each in experiments:
        each.check()
        each.protocol.check_choosing()
        groups.setdefault((each.method_name, str(getattr(each.protocol, "hold_out", ""))), []).append(each)
    found = [_study(group, plan) for group in groups.values()]
    if not any(study.space.searched for study in found):
        raise FedshiftError("There is nothing to search: give ranges (--search train.lr=0.001..0.1), or fix less.")
    return found


def _study(experiments: Sequence[Experiment], plan: Plan) -> Study:
    first = experiments[0]
    if len({each.series for each in experiments}) > 1 or len({each.seed for each in experiments}) < len(experiments):
        raise FedshiftError(
            f"{first.method_name}: a setting has a list of values, which make a grid; to search among them write "
            "--search train.lr=0.1,0.01 in the place of --set train.lr=0.1,0.01."
        )
    space = Space.of(first, plan.search, plan.fixed)
    decides = [[each.fingerprint for each in experiments], space.table(), plan.sampler, plan.parallel]
    digest = files.digest_of(json.dumps(decides, sort_keys=True).encode())
    words = first.run_name.rsplit("-seed", 1)[0]
    path = run_path(first).parent / f"tune-{words}-{digest[:8]}"
    return Study(path, experiments, space, plan.sampler, plan.parallel, digest)


def tune(experiments: Sequence[Experiment], plan: Plan, progress: Progress) -> Tuning:
    """Carry out the studies of experiments, and write the best settings down; what is there already is not repeated.

    Args:
        experiments: what is tuned; see :func:`studies`.
        plan: the budget and the ranges.
        progress: hears of runs, and of trials by its notes.

    Warns:
        FedshiftWarning: see :func:`studies`; or the file of the best settings had other entries for these methods.

    Raises:
        DivergedError: no study has a trial that was carried to its end.
        FedshiftError: see :func:`studies`; or a run cannot be carried out.
    """
    found, heard = studies(experiments, plan), TrialProgress(progress, ROLE)
    files.check_folder(run_path(experiments[0]).parent)
    failed = []
    for study in found:
        carry_out(study, plan.trials, heard)
        if study.best(plan.trials) is None:
            failed.append(_failure(study, plan.trials))
    if len(failed) == len(found):
        raise DivergedError(failed[0])
    entries = [_found(study, plan.trials) for study in found if study.best(plan.trials) is not None]
    tuned = Tuned.of(
        experiments[0], chosen_on(experiments[0]), {key for study in found for key in study.space.searched}, entries
    )
    path = tuned.written(run_path(experiments[0]).parent)
    return Tuning(path, Tuned.read(path), tuple(found), plan.trials, tuple(failed))


def chosen_on(experiment: Experiment) -> str:
    """On what data settings are chosen, for a reader."""
    label = experiment.protocol.validation_label
    words = ROLE if label == ROLE else f"{label} {ROLE}"
    return (
        f"{words} {Metric(experiment.evaluate.select).title} after the last round, the mean over environments and "
        "seeds; no test environment is looked at"
    )


def _found(study: Study, trials: int) -> Found:
    """What is put on record of a study."""
    there = study.trials[:trials]
    number = study.best(trials)
    assert number is not None
    first, chosen = study.experiments[0], there[number]
    count = {state: sum(trial.state == state for trial in there) for state in ("pruned", "failed")}
    assert chosen.value is not None
    return Found(
        method=study.method,
        hold_out=study.hold_out or None,
        settings={key: value for key, value in chosen.settings.items() if value is not None},  # TOML has no None
        value=chosen.value,
        trial=number,
        trials=trials,
        **count,
        repeated=sum(trial.repeats is not None for trial in there),
        sampler=study.sampler,
        parallel=study.parallel,
        rounds=first.train.rounds,
        steps=first.train.steps,
        unit=first.train.unit,
        seeds=[each.seed for each in study.experiments],
        search=study.space.table(),
        study=study.path.name,
    )


def _failure(study: Study, trials: int) -> str:
    reason = next((trial.reason for trial in study.trials[:trials] if trial.reason), "")
    return f"No trial of {study.label} was carried to its end. {reason}"


# One study ---------------------------------------------------------------------------------------


def carry_out(study: Study, trials: int, progress: Progress) -> None:
    """Carry out the first so many trials of a study, of which it may have some already.

    Raises:
        FedshiftError: another process is at work on it, or a run cannot be carried out and has not merely diverged.
    """
    with locked(study.path):
        study.read()
        while not all(trial.told for trial in study.trials[:trials]) or len(study.trials) < trials:
            open_ = (number for number, trial in enumerate(study.trials) if not trial.told)
            numbers = study.generation(next(open_, len(study.trials)))
            while len(study.trials) < min(numbers.stop, trials):
                study.trials.append(study.ask())
            study.write()
            under_way = [n for n in numbers if n < len(study.trials) and not study.trials[n].told]
            outcomes = _Generation(study, under_way, progress).outcomes()
            study.trials = [outcomes.get(number, trial) for number, trial in enumerate(study.trials)]
            study.write()
            for number in under_way:
                progress.note(_line(study, number, trials))


def _line(study: Study, number: int, trials: int) -> str:
    """What a trial came to, and the best so far."""
    trial, top = study.trials[number], study.best(number + 1)
    came = f"{100 * trial.value:.1f} %" if trial.value is not None else trial.state
    if trial.state == "pruned":
        came = f"pruned after round {trial.rounds[-1]}"
    settings = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
    so_far = f"; best so far {100 * (study.trials[top].value or 0):.1f} %, trial {top + 1}" if top is not None else ""
    return f"{study.label}: trial {number + 1} of {trials}: {came} ({settings}){so_far}"


class _Generation:
    """Trials of a study that are carried out side by side."""

    def __init__(self, study: Study, numbers: Sequence[int], progress: Progress) -> None:
        self._study, self._progress = study, progress
        self._trials = {number: study.trials[number] for number in numbers}
        self._runs: dict[int, list[Experiment]] = {}  # one for each seed, of trials whose outcome is not known
        self._rounds: dict[str, int] = {}  # all rounds of these runs, by the folder's name
        self._pruned_at = study.pruner(numbers[0])
        self._outcomes: dict[int, Trial] = {}

    def outcomes(self) -> dict[int, Trial]:
        """Carry them out, and say what came of each.

        The first seed of all goes before the others, as it decides which trials are pruned: so that does not depend on
        which runs an engine carries out together.
        """
        for number, trial in self._trials.items():
            if trial.repeats is None:
                self._prepare(number, trial)
        self._carry_out([runs[0] for runs in self._runs.values()], self._why_pruned)
        for number, runs in list(self._runs.items()):
            curve = self._curve(runs[0])
            if (end := self._pruned_at(curve, self._rounds[runs[0].run_name])) is not None:
                self._tell(number, state="pruned", curve=[scored for scored in curve if scored[0] <= end])
        self._carry_out([run for runs in self._runs.values() for run in runs[1:]], to_the_end)
        for number, runs in list(self._runs.items()):
            values = [mean_score(last(self._folder(run).records()), ROLE) for run in runs]
            there = [value for value in values if value is not None]
            if len(there) < len(values):
                metric = self._study.metric
                reason = f"{metric.heading} is undefined on every {ROLE} environment: {metric.lacks}."
                self._tell(number, state="failed", reason=reason)
                continue
            self._tell(number, state="complete", curve=self._curve(runs[0]), value=mean(there))
        for number, trial in self._trials.items():
            if trial.repeats is not None:
                earlier = self._outcomes.get(trial.repeats) or self._study.trials[trial.repeats]
                self._outcomes[number] = earlier.model_copy(update={"repeats": trial.repeats})
        return self._outcomes

    def _prepare(self, number: int, trial: Trial) -> None:
        """Make a trial's experiments."""
        try:
            runs = [with_settings(each, trial.settings) for each in self._study.experiments]
            for run in runs:
                run.check()
        except FedshiftError as error:  # these settings do not go together
            self._tell(number, state="failed", reason=str(error))
            return
        self._runs[number] = runs
        rounds = sum(stage.rounds for stage in runs[0].method.stages(runs[0].train.rounds))
        self._rounds |= dict.fromkeys((run.run_name for run in runs), rounds)

    def _carry_out(self, runs: Sequence[Experiment], judge: Judge) -> None:
        """Carry out runs, but for those that are known to be given up; trials whose run diverged have failed."""
        folders = {run: self._folder(run) for run in runs}
        asked = [
            Asked(folder, partial(_given, run), run.fingerprint) for run, folder in folders.items() if not judge(folder)
        ]
        failed = attempt(asked, self._progress, judge) if asked else {}
        for number, of_trial in list(self._runs.items()):
            errors = [failed[path] for run in of_trial if (path := self._folder(run).path) in failed]
            if other := next((error for error in errors if not isinstance(error, DivergedError)), None):
                raise other
            if errors:
                self._tell(number, state="failed", reason=str(errors[0]))

    def _why_pruned(self, folder: RunFolder) -> str:
        """Why a run is given up; empty if it goes on."""
        try:
            curve = _curve(folder) if folder.begun else []
        except DamagedError:  # it is set aside and made again
            return ""
        end = self._pruned_at(curve, self._rounds[folder.path.name])
        return "" if end is None else f"pruned, as after round {end} it is worse than the median of earlier trials"

    def _folder(self, run: Experiment) -> RunFolder:
        return RunFolder(self._study.path / run.run_name)

    def _curve(self, run: Experiment) -> Curve:
        return _curve(self._folder(run))

    def _tell(self, number: int, curve: Curve = (), **outcome: Any) -> None:
        """Note what came of a trial, which has no more to do."""
        runs = [run.run_name for run in self._runs.pop(number, ())]
        scored = {"rounds": [position for position, _ in curve], "values": [value for _, value in curve]}
        self._outcomes[number] = self._trials[number].model_copy(update={"runs": runs, **scored, **outcome})


def _curve(folder: RunFolder) -> Curve:
    """A run's validation scores so far, by rounds done; none of rounds where the metric is undefined."""
    scores = ((record["position"], mean_score(record, ROLE)) for record in folder.records())
    return [(position, score) for position, score in scores if score is not None]


def _given(experiment: Experiment) -> Experiment:
    return experiment
