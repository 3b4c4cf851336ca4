"""A study: the trials of one method on one federation, chosen and kept by Optuna in a journal in the study's folder.

Trials are asked for in batches, and a batch is over before the next one is chosen. The sampler of each trial has a seed
of its own, so a search that was interrupted goes on to the trials that it would have had.

*Choices.* The first trial is the experiment as it stands; where that is outside of the space, the sampler does not see
it. A trial that failed is to Optuna a pruned one without a value, so samplers count it as the worst. A trial's first
seed decides whether it is pruned, by Optuna's median rule against complete trials of earlier batches: its best
validation score so far is worse than the median of theirs after the same round, once five are complete and a quarter of
the rounds is done.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from fedshift import files
from fedshift.core.metrics import Metric
from fedshift.errors import FedshiftError, needs
from fedshift.experiments import Experiment
from fedshift.runs.origin import STUDY
from fedshift.spec import Range
from fedshift.study.space import Space, labelled

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "random"]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
COMPLETE_FIRST = 5  # trials, before any is pruned
WARM_UP = 4  # a quarter of the rounds, before which no trial is pruned
Curve = Sequence[tuple[int, float]]  # validation scores by rounds done, ascending
Pruner = Callable[[Curve, int], int | None]


@dataclass(frozen=True)
class Trial:
    """One choice of the searched settings, and its outcome.

    Attributes:
        settings: by dotted name.
        state: "asked" until it is over.
        value: the validation score, in 0..1, of a complete trial: the mean over its seeds at the last round.
        curve: the validation scores of its first seed by rounds done; of a pruned trial up to where it ended.
        runs: the names of its run folders.
        repeats: the number of the earlier trial with the same settings, if there is one, whose outcome it has.
        reason: why it failed.
    """

    settings: dict[str, Any]
    state: Literal["asked", "complete", "pruned", "failed"] = "asked"
    value: float | None = None
    curve: Curve = ()
    runs: Sequence[str] = ()
    repeats: int | None = None
    reason: str = ""


@dataclass(eq=False)
class Study:
    """A search over the settings of one method on one federation.

    Attributes:
        path: its folder.
        experiments: what is tuned, one for each seed.
        space: what is searched.
        sampler: "tpe" or "random".
        parallel: trials of a batch.
        digest: of all that decides its trials.
        trials: those that were asked for so far.
    """

    path: Path
    experiments: Sequence[Experiment]
    space: Space
    sampler: Sampler
    parallel: int
    digest: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.experiments[0].method_name

    @property
    def hold_out(self) -> str:
        """The domain that is held out; empty where none is."""
        return str(getattr(self.experiments[0].protocol, "hold_out", ""))

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.method} ({self.hold_out} held out)" if self.hold_out else self.method

    @property
    def metric(self) -> Metric:
        """What trials are scored by: the metric that selects."""
        return Metric(self.experiments[0].evaluate.select)

    def best(self, trials: int) -> int | None:
        """The number of the best complete trial among the first ones; the earliest of equals."""
        complete = [
            (self.metric.merit(trial.value), -number)
            for number, trial in enumerate(self.trials[:trials])
            if trial.value is not None
        ]
        return -max(complete)[1] if complete else None

    @cached_property
    def optuna_study(self) -> optuna.Study:
        """Optuna's own study, read from its journal; the caller holds the folder's lock.

        Raises:
            FedshiftError: the journal is damaged.
        """
        module = import_optuna()
        journal = self.path / STUDY
        files.make_folder(self.path)
        _drop_torn_end(journal)
        try:
            with quiet():
                backend = module.storages.journal.JournalFileBackend(str(journal))
                storage = module.storages.JournalStorage(backend)
                found: optuna.Study = module.create_study(
                    storage=storage, study_name=self.digest, direction=self._direction, load_if_exists=True
                )
        except (KeyError, TypeError, ValueError) as error:
            raise FedshiftError(
                f"'{journal}' is damaged ({error}). Remove it: the study begins again, and its finished runs are not "
                "repeated."
            ) from error
        return found

    def read(self) -> None:
        """Read the trials of the journal."""
        self.trials = []
        for trial in self.optuna_study.get_trials(deepcopy=False):
            self.trials.append(self._read(trial))

    @property
    def _direction(self) -> str:
        return "minimize" if self.metric.smaller else "maximize"

    def _read(self, trial: optuna.trial.FrozenTrial) -> Trial:
        chosen = self.trials and trial.params.keys() == self.space.searched.keys()
        settings = self.space.settings(trial.params) if chosen else self.space.own(self.experiments[0])
        before = [each.settings for each in self.trials]
        about, state = trial.user_attrs, trial.state.name.lower()
        states = {"running": "asked", "pruned": "failed" if "reason" in about else "pruned"}
        return Trial(
            settings,
            cast(Any, states.get(state, state)),
            trial.value if state == "complete" else None,
            sorted(trial.intermediate_values.items()),
            about.get("runs", ()),
            before.index(settings) if settings in before else None,
            about.get("reason", ""),
        )

    # Asking and telling ------------------------------------------------------------------------------

    def start_of(self, number: int) -> int:
        """The first trial of the batch that a trial is in."""
        return number - number % self.parallel

    def ask(self, trials: int) -> list[int]:
        """The numbers of the trials of the next batch, or what is left of one; none once ``trials`` are over."""
        waiting = [number for number, trial in enumerate(self.trials) if trial.state == "asked"]
        number = waiting[0] if waiting else len(self.trials)
        if number >= trials:
            return []
        with quiet():
            for half in waiting:  # a kill may have come between its parameters
                self._suggest(half)
            for new in range(len(self.trials), min(self.start_of(number) + self.parallel, trials)):
                self.optuna_study.sampler = self._sampler(new)
                self.optuna_study.ask()
                self._suggest(new)
        self.read()
        return [number for number, trial in enumerate(self.trials) if trial.state == "asked"]

    def _suggest(self, number: int) -> None:
        """Choose what a trial lacks of its parameters."""
        if number == 0 and not self.space.holds(self.space.own(self.experiments[0])):
            return
        self.optuna_study.sampler = self._sampler(number)
        trial = self._trial(number)
        for key, search in self.space.searched.items():
            self.optuna_study.sampler = self._sampler(number, key)
            if not isinstance(search, Range):
                trial.suggest_categorical(key, [labelled(choice) for choice in search])
            elif key in self.space.whole:
                trial.suggest_int(key, int(search.low), int(search.high), log=search.log)
            else:
                trial.suggest_float(key, search.low, search.high, log=search.log)

    def _sampler(self, number: int, key: str = "") -> optuna.samplers.BaseSampler:
        """The sampler of a trial, or of a parameter that is sampled alone; each has a seed of its own."""
        samplers = import_optuna().samplers
        seed = int(files.digest_of(f"{self.digest} {number} {key}".encode())[:8], 16)
        sampler: optuna.samplers.BaseSampler = (
            samplers.RandomSampler(seed)
            if self.sampler == "random"
            else samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        )
        if number == 0:
            own = self.space.parameters(self.space.own(self.experiments[0]))
            sampler = samplers.PartialFixedSampler(own, sampler)
        return sampler

    def _trial(self, number: int) -> optuna.Trial:
        known = self.optuna_study.get_trials(deepcopy=False)[number]
        trial: optuna.Trial = import_optuna().Trial(self.optuna_study, known._trial_id)
        return trial

    def tell(self, number: int, outcome: Trial) -> None:
        """Write down the outcome of a trial."""
        states = import_optuna().trial.TrialState
        with quiet():
            trial = self._trial(number)
            written = self.optuna_study.get_trials(deepcopy=False)[number].intermediate_values
            for position, value in outcome.curve:
                if position not in written:
                    trial.report(value, position)
            trial.set_user_attr("runs", list(outcome.runs))
            if outcome.state == "failed":
                trial.set_user_attr("reason", outcome.reason)
            self.optuna_study.tell(trial, outcome.value, states.PRUNED if outcome.value is None else states.COMPLETE)
        self.read()

    def pruner(self, number: int) -> Pruner:
        """A function that returns after how many of all rounds a trial of a batch is pruned, or None.

        It returns the same for a curve whatever is added to its end.
        """
        optuna = import_optuna()
        with quiet():
            earlier = optuna.create_study(direction=self._direction)
            for trial in self.trials[: self.start_of(number)]:
                if trial.value is not None:
                    known = dict(trial.curve)
                    earlier.add_trial(optuna.create_trial(value=trial.value, intermediate_values=known))

        def pruned_at(curve: Curve, rounds: int) -> int | None:
            rule = optuna.pruners.MedianPruner(COMPLETE_FIRST, n_warmup_steps=-(-rounds // WARM_UP))
            running = optuna.trial.TrialState.RUNNING
            for length, (position, _) in enumerate(curve, start=1):
                if position >= rounds:
                    return None
                now = optuna.create_trial(state=running, intermediate_values=dict(curve[:length]))
                if rule.prune(earlier, now):
                    return position
            return None

        return pruned_at


def _drop_torn_end(journal: Path) -> None:
    """Remove what a kill left of Optuna's last line, and of its lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        content = journal.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            files.write(journal, whole)


def import_optuna() -> Any:
    """Optuna, which the extra ``tune`` brings."""
    with needs("tune", "Searching settings"):
        import optuna
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Without what Optuna logs of studies, and its warnings about experimental options and few trials."""
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
