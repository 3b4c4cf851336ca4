"""The trials of one study, in a file of ours, from which each next choice and each pruning follows.

A trial's settings are written before its runs begin and its outcome when it is over. What a trial tries is a function
of the study, the trial's number and the outcomes of earlier *generations*: the trials of its own generation are
carried out beside it, so they count as running. So a kill loses no trial and changes none, and trials asked for later
are those that a larger budget would have had from the beginning.

*Choices.* The first trial is the experiment as it stands; where that is outside of the space, the sampler does not
see it. A trial that failed counts as
the worst for the sampler. A trial's first seed decides whether it is pruned, by Optuna's median rule against complete
trials of earlier generations: its best validation score so far is worse than the median of theirs after the same round,
once five are complete and a quarter of the rounds is done.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, FiniteFloat

from fedshift import files
from fedshift.core.metrics import Metric
from fedshift.errors import DamagedError, FedshiftError, needs
from fedshift.manifest import digested_json, read_json
from fedshift.runs.schema import File
from fedshift.runs.studies import STUDY
from fedshift.settings.experiment import Experiment
from fedshift.settings.spec import Range
from fedshift.tuning.space import Space

if TYPE_CHECKING:
    from optuna import Study as Sampled
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Sampler = Literal["tpe", "random"]
SAMPLERS: tuple[Sampler, ...] = ("tpe", "random")
COMPLETE_FIRST = 5  # trials, before any is pruned
WARM_UP = 4  # a quarter of the rounds, before which no trial is pruned
Curve = Sequence[tuple[int, float]]  # validation scores by rounds done, ascending
Pruner = Callable[[Curve, int], int | None]


class Trial(File):
    """One choice of the searched settings, and what came of it.

    Attributes:
        settings: by dotted name.
        state: "asked" until it is over.
        value: its validation score, in 0..1, of a complete trial: the mean over its seeds at the last round.
        rounds: after which its first seed was scored.
        values: the validation scores of these rounds, in 0..1; of a pruned trial up to where it ended.
        runs: the names of its run folders.
        repeats: the number of the earlier trial with the same settings, if there is one, whose outcome it has.
        reason: why it failed.
    """

    settings: dict[str, Any]
    state: Literal["asked", "complete", "pruned", "failed"] = "asked"
    value: FiniteFloat | None = None
    rounds: list[int] = Field(default_factory=list)
    values: list[FiniteFloat] = Field(default_factory=list)
    runs: list[str] = Field(default_factory=list)
    repeats: int | None = None
    reason: str = ""

    @property
    def told(self) -> bool:
        """Whether it is over."""
        return self.state != "asked"


class Trials(File):
    """study.json: what a study is, and its trials in order."""

    format: Literal[1] = 1
    digest: str
    space: dict[str, Any]
    trials: list[Trial]


@dataclass(eq=False)
class Study:
    """A search over the settings of one method on one federation.

    Attributes:
        path: its folder.
        experiments: what is tuned, one for each seed.
        space: what is searched.
        sampler: "tpe" or "random".
        parallel: trials of a generation.
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
        """What messages call it."""
        return f"{self.method} ({self.hold_out} held out)" if self.hold_out else self.method

    @property
    def metric(self) -> Metric:
        """What trials are scored by: the metric that selects."""
        return Metric(self.experiments[0].evaluate.select)

    @property
    def _direction(self) -> str:
        return "minimize" if self.metric.smaller else "maximize"

    def best(self, trials: int) -> int | None:
        """The number of the best complete trial among the first ones; the earliest of equals."""
        complete = [
            (self.metric.merit(trial.value), -number)
            for number, trial in enumerate(self.trials[:trials])
            if trial.value is not None
        ]
        return -max(complete)[1] if complete else None

    def read(self) -> None:
        """Read the trials that are there.

        Raises:
            FedshiftError: the file is damaged, or of another study.
        """
        file = self.path / STUDY
        if not file.exists():
            return
        try:
            held = read_json(file, Trials)
        except DamagedError as error:
            raise FedshiftError(
                f"{error} Remove it: the study begins again, and its finished runs are not repeated."
            ) from error
        if held.digest != self.digest:
            raise FedshiftError(f"'{file}' is of another study; choose another --name.")
        self.trials = list(held.trials)

    def write(self) -> None:
        """Write all trials, at once."""
        files.make_folder(self.path)
        held = Trials(digest=self.digest, space=self.space.table(), trials=self.trials)
        files.remove_abandoned(self.path / STUDY)
        files.write(self.path / STUDY, digested_json(held.model_dump()))

    # Choosing ---------------------------------------------------------------------------------------

    def generation(self, number: int) -> range:
        """The numbers of the trials that are carried out beside one."""
        start = number - number % self.parallel
        return range(start, start + self.parallel)

    def ask(self) -> Trial:
        """The next trial, of which nothing is written yet; outcomes of earlier generations are known."""
        number = len(self.trials)
        if number == 0:
            return Trial(settings=self.space.own(self.experiments[0]))
        optuna = _optuna()
        start = self.generation(number).start
        seed = int(files.digest_of(f"{self.digest} {number}".encode())[:8], 16)
        with _quiet():
            sampler = (
                optuna.samplers.RandomSampler(seed)
                if self.sampler == "random"
                else optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
            )
            sampled = optuna.create_study(direction=self._direction, sampler=sampler)
            for place, trial in enumerate(self.trials):
                if self.space.holds(trial.settings):
                    sampled.add_trial(self._seen(trial) if place < start else self._frozen("RUNNING", trial.settings))
            parameters = sampled.ask(self._distributions).params
        settings = self.space.outer(parameters)
        before = [trial.settings for trial in self.trials]
        return Trial(settings=settings, repeats=before.index(settings) if settings in before else None)

    # Pruning ----------------------------------------------------------------------------------------

    def pruner(self, number: int) -> Pruner:
        """What says after how many of all rounds a trial of the generation of ``number`` is pruned, if at all.

        It says the same of a curve whatever is added to its end.
        """
        optuna = _optuna()
        earlier = self.trials[: self.generation(number).start]
        with _quiet():
            sampled = optuna.create_study(direction=self._direction)
            for trial in earlier:
                if trial.state == "complete":
                    scored = list(zip(trial.rounds, trial.values, strict=True))
                    sampled.add_trial(self._frozen("COMPLETE", None, scored, trial.value))

        def pruned_at(curve: Curve, rounds: int) -> int | None:
            rule = optuna.pruners.MedianPruner(COMPLETE_FIRST, n_warmup_steps=-(-rounds // WARM_UP))
            for length, (position, _) in enumerate(curve, start=1):
                if position >= rounds:
                    return None
                if rule.prune(sampled, self._frozen("RUNNING", None, curve[:length])):
                    return position
            return None

        return pruned_at

    # As Optuna has it -------------------------------------------------------------------------------

    def completed(self, trials: Sequence[Trial]) -> Sampled:
        """Optuna's study of those trials that are complete."""
        with _quiet():
            sampled: Sampled = _optuna().create_study(direction=self._direction)
            for trial in trials:
                if trial.state == "complete" and self.space.holds(trial.settings):
                    sampled.add_trial(self._seen(trial))
        return sampled

    def _seen(self, trial: Trial) -> FrozenTrial:
        """A trial that is over, as samplers and pruners see it."""
        if trial.state == "failed":  # the worst of all: a pruned one without a value
            return self._frozen("PRUNED", trial.settings)
        curve = list(zip(trial.rounds, trial.values, strict=True))
        return self._frozen("COMPLETE" if trial.state == "complete" else "PRUNED", trial.settings, curve, trial.value)

    def _frozen(
        self, state: str, settings: Mapping[str, Any] | None, curve: Curve = (), value: float | None = None
    ) -> FrozenTrial:
        """A trial as Optuna has it; without settings, which a pruner does not look at."""
        trial = _optuna().trial
        frozen: FrozenTrial = trial.create_trial(
            state=trial.TrialState[state],
            value=value,
            params={} if settings is None else self.space.inner(settings),
            distributions={} if settings is None else self._distributions,
            intermediate_values=dict(curve),
        )
        return frozen

    @cached_property
    def _distributions(self) -> Mapping[str, BaseDistribution]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        found: dict[str, BaseDistribution] = {}
        for key, search in self.space.searched.items():
            if not isinstance(search, Range):
                found[key] = CategoricalDistribution(tuple(range(len(search))))
            elif key in self.space.whole:
                found[key] = IntDistribution(int(search.low), int(search.high), log=search.log)
            else:
                found[key] = FloatDistribution(search.low, search.high, log=search.log)
        return found


def _optuna() -> Any:
    with needs("tune", "Searching settings"):
        import optuna
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Optuna logs of studies in memory, and its remarks on options that were experimental once."""
    logging = _optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", _optuna().exceptions.ExperimentalWarning)
            yield
    finally:
        logging.set_verbosity(before)
