"""The tables [train], [evaluate] and [run] of an experiment, common to all methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Interval, Le, MinLen

from fedshift.core.metrics import ACCURACY, DECLARED, PER_CLASS, check_metrics
from fedshift.errors import FedshiftError
from fedshift.spec import (
    BatchSize,
    Clients,
    Fraction,
    LearningRate,
    Momentum,
    NonNegative,
    Positive,
    Probability,
    Processors,
    Range,
    Rounds,
    Spec,
    Steps,
    WholeNumber,
    setting,
)
from fedshift.written import FolderPath

WeightsByClass = Annotated[dict[str, NonNegative], MinLen(1)]
MOST_EVALUATIONS = 30  # of a stage, with evaluate.every = "auto"
FEW_OF_TWO = 5  # samples of a class, below which a metric of two classes is uninformative


class Train(Spec):
    """Local training, common to all methods."""

    section: ClassVar[str] = "train"

    rounds: Rounds = setting(300, help="communication rounds T")
    steps: Steps = setting(5, help="local steps E a round (or epochs, see unit)")
    unit: Literal["steps", "epochs"] = setting("steps", help="what 'steps' counts")
    batch: BatchSize = setting(64, help="samples in a batch; an epoch's incomplete last batch is excluded")
    optimiser: Literal["sgd", "adam"] = setting("sgd", help="the local optimiser")
    lr: LearningRate = setting(0.01, help="learning rate", search=Range(1e-3, 0.3, log=True))
    schedule: Literal["constant", "cosine", "step"] = setting(
        "constant",
        help="lr by round: the same in all, falling from it towards 0 along half a cosine, or in steps; in each stage "
        "again; rates of a method's own stay as they are",
    )
    warmup: WholeNumber = setting(
        0, help="rounds in which lr rises in equal steps before the schedule begins; a stage of no more rounds has none"
    )
    step_every: Rounds = setting(100, help="with schedule = 'step', rounds after which lr is multiplied, repeatedly")
    step_at: tuple[Rounds, ...] = setting(
        (), help="with schedule = 'step', the rounds after which lr is multiplied instead, from the warm-up's end"
    )
    step_factor: Fraction = setting(0.1, help="with schedule = 'step', by what lr is multiplied")
    clip: Literal["off"] | Positive = setting(
        "off",
        help="largest norm of the gradient in a step, over all that an objective moves; where a method has a limit of "
        "its own, both apply",
    )
    batches: Literal["shuffled", "balanced"] = setting(
        "shuffled",
        help="a client's batches: all its samples in a new order each epoch, or as many of each class that it has; an "
        "epoch has as many batches either way",
    )
    class_weights: Literal["none", "balanced"] | tuple[NonNegative, ...] | WeightsByClass = setting(
        "none",
        help="what a class counts in the cross-entropy, scaled to a mean of 1 over each client's samples: none; "
        "balanced, n / (C n_c) for a class with n_c of the client's n samples of C classes; a table by name, 1 for a "
        "class that it does not name; or a list, one a class",
    )
    momentum: Momentum = setting(0.9, help="momentum of sgd (unused by adam)")
    weight_decay: NonNegative = setting(0.0, help="weight decay")
    participation: Fraction = setting(1.0, help="part of the clients sampled in a round, at least one")
    patience: Literal["off"] | Rounds = setting(
        "off",
        help="evaluations in a row without a better validation score after which a stage ends before its last round",
    )
    min_delta: NonNegative = setting(0.0, help="a score is better if it is above the best one by more than this, of 1")
    absent: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.0, help="simulated: how likely a sampled client is not to take part in an exchange, and then in its round"
    )
    late: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.0, help="simulated: how likely a client is to work and to answer after the round is closed"
    )
    min_answers: Literal["all"] | Fraction = setting(
        "all",
        help="answers that an exchange merges at least, as a part of its cohort, whose errors are then their clients' "
        "alone; all: an error ends the run, and clients that are absent or late are not waited for",
    )
    precision: Literal["float32", "bfloat16", "float64"] = setting(
        "float32", help="bfloat16: networks run in it, all else stays float32; float64: everything, to check a result"
    )

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: one is wrong, the schedule is not what they describe, or rare classes would count more in
                two ways at once.
        """
        super().__post_init__()
        if self.warmup >= self.rounds:
            raise FedshiftError(
                f"train.warmup = {self.warmup} leaves no round of train.rounds = {self.rounds} at the learning rate "
                "itself: lower it, or train longer."
            )
        if self.step_at and self.schedule != "step":
            raise FedshiftError(
                f"train.step_at = {list(self.step_at)} has no effect with train.schedule = '{self.schedule}': set "
                "train.schedule = 'step', or leave it out."
            )
        if twice := next((at for at in self.step_at if self.step_at.count(at) > 1), None):
            raise FedshiftError(f"train.step_at = {list(self.step_at)} names round {twice} twice: name it once.")
        if self.min_delta and self.patience == "off":
            raise FedshiftError(
                f"train.min_delta = {self.min_delta:g} has no effect with train.patience = 'off': set train.patience, "
                "or leave it out."
            )
        if isinstance(self.class_weights, tuple) and not any(self.class_weights):
            raise FedshiftError(
                f"train.class_weights = {list(self.class_weights)}: give a weight for each class, some above 0."
            )
        if self.batches == "balanced" and self.class_weights != "none":
            raise FedshiftError(
                "train.batches = 'balanced' draws classes evenly, so train.class_weights would count rare ones twice: "
                "choose one of the two."
            )

    def need(self, why: str, **needed: object) -> None:
        """Raise an error that gives the reason, unless settings are what a method needs."""
        given = [f"train.{name} = {getattr(self, name)!r}" for name in needed if getattr(self, name) != needed[name]]
        if given:
            fix = ", ".join(f"train.{name} = {value!r}" for name, value in needed.items())
            raise FedshiftError(f"{', '.join(given)}: {why}: set {fix}, or choose another method.")

    def steps_on(self, samples: int | None, batch: int | None = None) -> int:
        """The local steps of a round on that many samples, in batches of another size if one is given."""
        return self.steps * (self.per_epoch(samples, batch) if self.unit == "epochs" else 1)

    def per_epoch(self, samples: int | None, batch: int | None = None) -> int:
        """The steps of an epoch on that many samples; where there are none, as on a server, 1."""
        return samples // min(batch or self.batch, samples) if samples else 1

    def pooling(self, samples: Sequence[int]) -> Self:
        """Training of one client with the pooled samples of several: it takes all steps of their cohort.

        With a participation below 1 that is the mean over all cohorts.
        """
        if not samples:
            return self
        cohort = max(1, round(self.participation * len(samples)))
        steps = cohort * sum(map(self.steps_on, samples)) / len(samples)
        return self.replace(unit="steps", steps=max(1, round(steps)))

    def lr_in(self, round: int, rounds: int) -> float:
        """The learning rate in a round, from 1, of a stage of that many.

        With a warm-up of W rounds it is r lr / (W + 1) in round r of these; the schedule's first round is the next.
        """
        warmup = self.warmup if self.warmup < rounds else 0
        if round <= warmup:
            return self.lr * round / (warmup + 1)
        done, rounds = round - 1 - warmup, rounds - warmup
        match self.schedule:
            case "constant":
                return self.lr
            case "cosine":
                return self.lr * (1 + math.cos(math.pi * done / rounds)) / 2
            case "step":
                falls = sum(at <= done for at in self.step_at) if self.step_at else done // self.step_every
                return float(self.lr * self.step_factor**falls)

    def notes(self, rounds: int) -> tuple[str, ...]:
        """What a reader must know of the schedule in stages of that many rounds at most: falls that never come."""
        last = rounds - 1 - (self.warmup if self.warmup < rounds else 0)  # rounds that are done in the last one
        falls = self.step_at or (self.step_every,)
        never = [at for at in falls if at > last]
        if self.schedule != "step" or not never:
            return ()
        given = f"step_at = {list(self.step_at)}" if self.step_at else f"step_every = {self.step_every}"
        which = "never falls" if len(never) == len(falls) else f"does not fall after {', '.join(map(str, never))}"
        fix = f"name rounds up to {last}, or train longer" if last > 0 else "train longer"
        return (
            f"The learning rate {which}: train.{given}, and the longest stage has {last + 1} rounds of the schedule "
            f"'step'; {fix}.",
        )


class Evaluate(Spec):
    """When models are scored."""

    section: ClassVar[str] = "evaluate"

    every: Literal["auto"] | Rounds = setting(
        "auto",
        help="rounds between evaluations; auto: the smallest of 1, 2, 5, 10, 20, ... with which a stage has at most 30 "
        "evaluations; the last round is always scored",
    )
    last: Rounds = setting(
        1,
        help="evaluations at the end of the last stage whose mean is the result, which one round alone would give by "
        "chance; a stage with fewer has those that it has",
    )
    batch: BatchSize = setting(512, help="samples predicted at a time")
    clients: Clients = setting(10_000, help="clients that are scored at most; of more, that many are drawn by the seed")
    metrics: tuple[str, ...] = setting(
        (),
        help="metrics beside accuracy and loss: balanced-accuracy, macro-f1, auroc, average-precision, "
        "sensitivity-at-specificity-0.9 (or another), calibration-error-15 (or that many bins), and of each class "
        "class-sensitivity, class-precision, class-auroc",
        examples=DECLARED,
    )
    min_support: Literal["auto"] | Rounds = setting(
        "auto",
        help="samples of a class that an environment needs for metrics of the class: with fewer they are undefined, "
        "and the environment is in none of their means; auto: 5 of two classes, 1 of more",
    )
    select: str = setting(
        "accuracy",
        help="what selects rounds and settings, and what tables show first: accuracy, one of the metrics, or that of "
        "a class, as 'auroc of cat' where class-auroc is among them",
        examples=(ACCURACY, *(name for name in DECLARED if not name.startswith(PER_CLASS))),
    )
    telemetry: bool = setting(
        True, help="clients send, beside their replies, the mean of each loss term and how many steps they took"
    )

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: a metric is unknown, or what selects is none of them.
        """
        super().__post_init__()
        check_metrics(self.metrics, self.select)

    def support_of(self, classes: int) -> int:
        """How many samples of a class its metrics need, where there are that many classes."""
        if self.min_support != "auto":
            return self.min_support
        return FEW_OF_TWO if classes == 2 else 1

    def every_in(self, rounds: int) -> int:
        """How many rounds lie between evaluations in a stage of that many rounds."""
        if self.every != "auto":
            return self.every
        steps = (digit * int(10**zeros) for zeros in count() for digit in (1, 2, 5))
        return next(step for step in steps if rounds <= step * MOST_EVALUATIONS)


class RunOptions(Spec):
    """Where and how a run is run; none of it is part of what the experiment is."""

    section: ClassVar[str] = "run"

    device: str = setting("auto", help="'auto' (an accelerator if there is one), 'cpu', 'cuda', 'cuda:1', 'mps'")
    out: FolderPath = setting("runs", help="the folder that contains run folders")
    checkpoint_every: Rounds = setting(10, help="rounds between checkpoints")
    engine: Literal["auto", "sequential", "vectorised", "workers", "ray"] = setting(
        "auto",
        help="what runs clients: 'auto' measures briefly and picks; one after the other; stacked; in processes; or on "
        "a Ray cluster",
    )
    workers: Processors = setting(
        0,
        help="processes of the engine 'workers', or actors of 'ray'; 0: one for each core, at most OMP_NUM_THREADS, or "
        "for each processor of the cluster",
    )
    spread: Literal["clients", "runs"] = setting(
        "clients",
        help="what the engine 'ray' shares out: the clients of a cohort, or the runs of a table, each on one processor",
    )
    gpus: Probability = setting(
        0.0, help="the part of a GPU that an actor of the engine 'ray' takes; 0: it works on a CPU"
    )
    address: str = setting(
        "auto",
        help="the Ray cluster: 'auto' takes one that runs here or that RAY_ADDRESS names, or else starts one of this "
        "machine; 'local' starts one",
    )
    threads: Processors = setting(
        0,
        help="threads of the engines without processes; 0: one for each core, at most OMP_NUM_THREADS, or one where "
        "the sequential engine trains a small model",
    )
    together: Annotated[WholeNumber, Le(10_000)] = setting(
        0, help="runs of a table that advance together; 0: as many as the engine gains from (sequential: 1)"
    )
    audit: bool = setting(
        False, help="compare the content of all that clients send with their samples and private tensors; slower"
    )
