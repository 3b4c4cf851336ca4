"""A study: the trials of a method on a federation, chosen and kept by Optuna in a journal in the study's folder.

Trials are requested in batches, and a batch is over before the next is chosen. The sampler of each trial has a separate
seed, so an interrupted search continues to the same trials.

*Choices.* The first trial is the experiment as it stands; the sampler ignores it if it is outside of the space. A
failed trial is to Optuna a pruned trial without a value, so samplers count it as the worst. A trial's first seed
decides whether it is pruned, by the median rule against complete trials of earlier batches: its best validation score
so far is worse than the median of theirs after the same round, once five are complete and a quarter of the rounds is
done. Cross-validated trials are not pruned. Of several seeds, the others may be kept for the finalists, the best of a
batch by the first. A grid tries every combination of choices (of an interval its ends and its middle) in order, and
prunes nothing if its batch has all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import Field

from fedshift import files
from fedshift.core.metrics import Metric
from fedshift.errors import FedshiftError, needs
from fedshift.experiments import Experiment
from fedshift.reporting.table import Table
from fedshift.runs.origin import STUDY
from fedshift.runs.run import Run
from fedshift.runs.selection import shares
from fedshift.spec import Range, Search, Spec
from fedshift.study.space import Space, describe_range, labelled

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "random", "grid"]
COMPLETE_FIRST = 5  # trials, before any is pruned
WARM_UP = 4  # a quarter of the rounds, before which no trial is pruned
Trials = Annotated[int, Ge(1), Le(10_000)]
Curve = Sequence[tuple[int, float]]  # validation scores by rounds done, ascending


class Budget(Spec):
    """The budget and the ranges of studies, the same for all methods."""

    trials: Trials = 20  # of each study
    sampler: Sampler = "tpe"  # "tpe", "random" or "grid"
    parallel: Trials = 4  # trials that are chosen, and run, side by side
    # ranges by the dotted names of settings, in addition to the pages': a :class:`~fedshift.spec.Range`, choices, or
    # "0.001..0.1"
    search: dict[str, Any] = Field(default={})
    fixed: tuple[str, ...] = ()  # dotted names of settings that are not searched
    declared: bool = True  # whether the ranges that pages declare are searched too
    # how many trials of a batch run with more seeds than the first; None: all that are not pruned
    finalists: Trials | None = None
    # whether a trial trains once for each training domain, without that domain, on which it is validated
    cross_validate: bool = False

    def runs(self, seeds: int) -> int:
        """The runs of a study that prunes nothing; cross-validated, of each fold."""
        batches = -(-self.trials // self.parallel)
        return self.trials + (seeds - 1) * min(self.trials, batches * (self.finalists or self.parallel))

    def folds(self, experiment: Experiment) -> list[Experiment]:
        """The runs of a trial for one seed."""
        if not self.cross_validate:
            return [experiment]
        folds = experiment.protocol.folds(experiment.data.domain_names())
        return [experiment.replace(protocol=fold) for fold in folds]


@dataclass(frozen=True)
class Trial:
    """A choice of the searched settings, and its outcome."""

    settings: dict[str, Any]  # by dotted name
    state: Literal["requested", "complete", "pruned", "failed"] = "requested"  # "requested" until it is over
    value: float | None = None  # the validation score, in 0..1, of a complete trial: the mean over its seeds at the end
    # the validation scores of its first seed by rounds done, the mean over folds; of a pruned trial up to its end
    curve: Curve = ()
    runs: Sequence[str] = ()  # the names of its run folders
    repeats: int | None = None  # the number of an earlier trial with the same settings, whose outcome it shares
    reason: str = ""  # why it failed

    @property
    def percent(self) -> str:
        return self.state if self.value is None else f"{100 * self.value:.1f}"

    @property
    def words(self) -> str:
        return ", ".join(f"{key}={describe_range((value,))}" for key, value in self.settings.items()) or "as it stands"


@dataclass(eq=False)
class Study:
    """A search over the settings of a method on a federation."""

    path: Path
    experiments: Sequence[Experiment]  # what is tuned, an experiment per seed and fold, seed by seed
    space: Space
    budget: Budget
    digest: str  # of all that decides its trials
    trials: list[Trial] = field(default_factory=list)  # requested so far, without those beyond the budget

    @property
    def case(self) -> tuple[str, str]:
        return self.experiments[0].case

    @property
    def label(self) -> str:
        method, held_out = self.case
        return f"{method} ({held_out} held out)" if held_out else method

    @property
    def folds(self) -> int:
        """How many runs a trial has for each seed."""
        return sum(each.seed == self.experiments[0].seed for each in self.experiments)

    @property
    def metric(self) -> Metric:
        return Metric(self.experiments[0].evaluate.select)

    def best(self, trials: int | None = None) -> int | None:
        """The number of the best complete trial, of all or of the first ``trials``; the earliest of equals."""
        known = {number: trial.value for number, trial in enumerate(self.trials[:trials])}
        merits = {number: self.metric.merit(value) for number, value in known.items() if value is not None}
        return max(merits, key=merits.__getitem__, default=None)

    @cached_property
    def combinations(self) -> list[dict[str, Any]]:
        """The parameters of each trial of a grid; the last setting varies fastest."""
        axes = [self._points(key, search) for key, search in self.space.searched.items()]
        if (size := prod(map(len, axes))) > self.budget.trials:
            raise FedshiftError(
                f"{self.label}: the grid has {size} combinations, more than {self.budget.trials} trials: --trials "
                f"{size}, or fix a setting by --set."
            )
        return [dict(zip(self.space.searched, choice, strict=True)) for choice in product(*axes)]

    def _points(self, key: str, search: Search) -> Sequence[Any]:
        if not isinstance(search, Range):
            return [*map(labelled, search)]
        return [*dict.fromkeys(map(round, search.points))] if key in self.space.whole else search.points

    @property
    def count(self) -> int:
        return len(self.combinations) if self.budget.sampler == "grid" else self.budget.trials

    @cached_property
    def optuna_study(self) -> optuna.Study:
        """Optuna's study, read from its journal; the caller has the folder's lock."""
        module, journal = import_optuna(), self.path / STUDY
        files.make_folder(self.path)
        journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)  # a kill may leave it, or part of a line
        content = journal.read_bytes() if journal.exists() else b""
        if not content.endswith(b"\n") and content:
            files.write(journal, content[: content.rfind(b"\n") + 1])
        try:
            with quiet():
                backend = module.storages.journal.JournalFileBackend(str(journal))
                found: optuna.Study = module.create_study(
                    storage=module.storages.JournalStorage(backend),
                    study_name=self.digest,
                    direction="minimize" if self.metric.smaller else "maximize",
                    load_if_exists=True,
                )
        except (KeyError, TypeError, ValueError) as error:
            raise FedshiftError(
                f"'{journal}' is damaged ({error}). Remove it: the study restarts, and its finished runs are not "
                "repeated."
            ) from error
        return found

    def read(self) -> None:
        self.trials = []
        for known in self.optuna_study.get_trials(deepcopy=False)[: self.budget.trials]:
            stands = not self.trials and self.budget.sampler != "grid"
            settings = dict(self.space.own) if stands else self.space.settings(known.params)
            earlier = [trial.settings for trial in self.trials]
            reason: str = known.user_attrs.get("reason", "")
            states = {"RUNNING": "requested", "COMPLETE": "complete", "PRUNED": "failed" if reason else "pruned"}
            state: Any = states[known.state.name]
            self.trials.append(
                Trial(
                    settings,
                    state,
                    known.value if state == "complete" else None,
                    sorted(known.intermediate_values.items()),
                    known.user_attrs.get("runs", ()),
                    earlier.index(settings) if settings in earlier else None,
                    reason,
                )
            )

    # Batches and outcomes ----------------------------------------------------------------------------

    def ask(self) -> list[int]:
        """The numbers of the trials of the next batch, or the rest of an unfinished batch; empty once all are over."""
        waiting = (number for number, trial in enumerate(self.trials) if trial.state == "requested")
        end = self._batch_of(next(waiting, len(self.trials))) + self.budget.parallel
        with quiet():
            for number in range(len(self.trials), min(end, self.count)):
                self.optuna_study.add_trial(self._choose(number))
        self.read()
        return [number for number, trial in enumerate(self.trials) if trial.state == "requested"]

    def _batch_of(self, number: int) -> int:
        return number - number % self.budget.parallel

    def batch_trials(self, number: int) -> Mapping[int, Trial]:
        first = self._batch_of(number)
        return dict(enumerate(self.trials[first : first + self.budget.parallel], first))

    def _choose(self, number: int) -> Any:
        """A trial with all its parameters, in one line of the journal: an interruption leaves no partial trial."""
        module, spaces = import_optuna(), self._distributions()
        create, running = module.trial.create_trial, module.trial.TrialState.RUNNING
        if self.budget.sampler == "grid":
            return create(state=running, params=self.combinations[number], distributions=spaces)
        if number == 0:
            own = {key: labelled(value) for key, value in self.space.own.items()}
            try:
                return create(state=running, params=own, distributions=spaces)
            except ValueError:  # outside of the space
                return create(state=running)
        draft = module.create_study(direction=self.optuna_study.direction, sampler=self._sampler(number))
        draft.add_trials(self.optuna_study.get_trials(deepcopy=False))
        requested = draft.ask()
        for key, where in spaces.items():
            draft.sampler = self._sampler(number, key)
            requested._suggest(key, where)
        return create(state=running, params=requested.params, distributions=spaces)

    def _distributions(self) -> dict[str, Any]:
        kinds = import_optuna().distributions
        found: dict[str, Any] = {}
        for key, search in self.space.searched.items():
            if isinstance(search, Range):
                kind = kinds.IntDistribution if key in self.space.whole else kinds.FloatDistribution
                found[key] = kind(search.low, search.high, log=search.log)
            else:
                found[key] = kinds.CategoricalDistribution([labelled(choice) for choice in search])
        return found

    def _sampler(self, number: int, key: str = "") -> Any:
        samplers = import_optuna().samplers
        seed = int(files.digest_of(f"{self.digest} {number} {key}".encode())[:8], 16)
        if self.budget.sampler == "random":
            return samplers.RandomSampler(seed)
        return samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)

    def tell(self, number: int, outcome: Trial) -> None:
        module = import_optuna()
        with quiet():
            known = self.optuna_study.get_trials(deepcopy=False)[number]
            trial = module.Trial(self.optuna_study, known._trial_id)
            for position, value in outcome.curve:  # what a kill left here counts already
                trial.report(value, position)
            trial.set_user_attr("runs", list(outcome.runs))
            if outcome.state == "failed":
                trial.set_user_attr("reason", outcome.reason)
            state = module.trial.TrialState.PRUNED if outcome.value is None else module.trial.TrialState.COMPLETE
            self.optuna_study.tell(trial, outcome.value, state)
        self.read()

    def pruned_at(self, number: int, curve: Curve, rounds: int) -> int | None:
        """After how many of all rounds a trial with this curve is pruned; None if it is not.

        A longer curve with the same beginning gives the same result.
        """
        if self.budget.cross_validate:
            return None
        merit = self.metric.merit
        earlier = [dict(trial.curve) for trial in self.trials[: self._batch_of(number)] if trial.value is not None]
        best = float("-inf")
        for position, score in curve if len(earlier) >= COMPLETE_FIRST else ():
            best = max(best, merit(score))
            theirs = [merit(known[position]) for known in earlier if position in known]
            if rounds <= WARM_UP * position < WARM_UP * rounds and theirs and best < median(theirs):
                return position
        return None


def import_optuna() -> Any:
    with needs("tune", "Searching settings"):
        import optuna
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's log, and its warnings about experimental options and few trials."""
    logging = import_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for kind in (UserWarning, import_optuna().exceptions.ExperimentalWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        logging.set_verbosity(before)


def all_trials(study: Study) -> Table:
    keys = [*study.space.searched]
    rows = [
        [
            str(number),
            trial.state + (f" (as trial {trial.repeats + 1})" if trial.repeats is not None else ""),
            trial.percent if trial.value is not None else "",
            str(trial.curve[-1][0]) if trial.curve else "",
            *(describe_range((trial.settings[key],)) for key in keys),
            _shares(study, trial),
            trial.reason,
        ]
        for number, trial in enumerate(study.trials, 1)
    ]
    columns = ["trial", "state", "value in %", "after round", *keys, "loss terms, in % of the loss", "why it failed"]
    return Table("All trials", columns, rows)


def _shares(study: Study, trial: Trial) -> str:
    records = Run(study.path / trial.runs[0]).records if trial.curve else []
    return ", ".join(f"{name} {100 * share:.3g}" for name, share in shares(records[-1]).items()) if records else ""
