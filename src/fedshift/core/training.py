"""Local training and scoring, common to all methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from fedshift.settings.spec import (
    BatchSize,
    Fraction,
    LearningRate,
    Momentum,
    NonNegative,
    Range,
    Rounds,
    Spec,
    Steps,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class Train(Spec):
    """Local training, common to all methods."""

    section: ClassVar[str] = "train"

    rounds: Rounds = setting(300, help="communication rounds T")
    steps: Steps = setting(5, help="local steps E a round (or epochs, see unit)")
    unit: Literal["steps", "epochs"] = setting("steps", help="what 'steps' counts")
    batch: BatchSize = setting(64, help="samples in a batch; an epoch's incomplete last batch is left out")
    optimiser: Literal["sgd", "adam"] = setting("sgd", help="the local optimiser")
    lr: LearningRate = setting(0.01, help="learning rate", search=Range(1e-3, 0.3, log=True))
    schedule: Literal["constant", "cosine"] = setting(
        "constant",
        help="lr by round: the same in all, or falling from it towards 0 along half a cosine, in each stage anew; "
        "rates of a method's own stay as they are",
    )
    momentum: Momentum = setting(0.9, help="momentum of sgd (unused by adam)")
    weight_decay: NonNegative = setting(0.0, help="weight decay")
    participation: Fraction = setting(1.0, help="part of the clients sampled in a round, at least one")
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

    def lr_in(self, round: int, rounds: int) -> float:
        """The learning rate in a round, from 1, of so many."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2


@dataclass(frozen=True, kw_only=True)
class Evaluate(Spec):
    """When models are scored."""

    section: ClassVar[str] = "evaluate"

    every: Rounds = setting(10, help="rounds between evaluations; the last round is always scored")
    batch: BatchSize = setting(512, help="samples predicted at a time")
    telemetry: bool = setting(
        True, help="clients send, beside their replies, the mean of each loss term and how many steps they took"
    )
