"""Helpers for methods that work class by class: label codes, smoothed labels, sums and means by class, prototypes.

A client uploads its class counts as :data:`COUNTS`; the server keeps the totals of the round in a part of that name. A
class that no client of the round has keeps its previous row, and zeros if no client ever had it.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

COUNTS = "class_counts"  # training samples of each class, of a client or of all clients of a round
SUMS = "class_sums"  # in an update: the sum of the client's representations of each class
CLASS_COUNTS = Upload.like(COUNTS, COUNTS, "count", bound="total")


def check_unbalanced(train: Train, why: str) -> None:
    """Raise an error if ``[train]`` weights or balances classes for a method whose loss does so itself."""
    train.need(f"{why}, which would count rare classes twice", class_weights="none", batches="shuffled")


def empty_counts(model: ModelBuilder) -> Part:
    """Class counts (classes,) of zero, kept and broadcast by the server."""
    return Part.state(torch.zeros(model.classes, dtype=torch.int64), "down")


def one_hot(y: Tensor, classes: int, like: Tensor) -> Tensor:
    """Labels (B,) as one-hot codes (B, classes) with the type and device of ``like``."""
    return (y.unsqueeze(1) == torch.arange(classes, device=y.device)).to(like)


def smoothed_cross_entropy(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    """Cross-entropies (B,) of logits (B, classes): weight 1 - s on the label y (B,), s shared by the other classes."""
    log_probabilities = logits.log_softmax(dim=1)
    true = log_probabilities.gather(1, y.unsqueeze(1)).squeeze(1)
    others = (log_probabilities.sum(dim=1) - true) / max(1, logits.shape[1] - 1)
    return -((1 - smoothing) * true + smoothing * others)


def stack_replies(replies: Replies, name: str) -> Tensor:
    """One tensor of every reply, stacked: (clients, ...)."""
    return torch.stack([up[name] for up in replies.ups])


def sum_by_class(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """Sum the features z (B, d) by label y (B,): (classes, d)."""
    return one_hot(y, classes, z).T @ z


def update_counts(replies: Replies, previous: Tensor) -> Tensor:
    """Total class counts (classes,) of a round's replies; a class without samples keeps its ``previous`` count."""
    total = stack_replies(replies, COUNTS).sum(dim=0)
    return torch.where(total > 0, total, previous)


def update_means(replies: Replies, sums: str, previous: Tensor) -> Tensor:
    """Class means (classes, d) over all samples of a round; a class without samples keeps its ``previous`` mean.

    Args:
        replies: contain the class counts and the class sums.
        sums: the name of the class sums.
        previous: the means of the last round, (classes, d).
    """
    total, of_class = (stack_replies(replies, name).sum(dim=0) for name in (COUNTS, sums))
    return torch.where(total.unsqueeze(1) > 0, of_class / total.clamp(min=1).unsqueeze(1), previous)


class Prototypical(FedAvg):
    """FedAvg with a prototype for each class: the mean representation, aggregated by class count and broadcast.

    A client computes its class sums with the model that it has just trained, in evaluation mode, over all its samples
    without augmentation.
    """

    uploads: ClassVar[tuple[Upload, ...]] = (Upload.like(SUMS, "prototypes", "statistic"), CLASS_COUNTS)

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the prototypes (classes, d) and the class counts (classes,)."""
        prototypes = Part.state(torch.zeros(model.classes, self.width(model)), "down")
        return {**super().parts(model), "prototypes": prototypes, COUNTS: empty_counts(model)}

    def phases(self) -> Phases:
        """Local training, then the class sums of the trained model."""
        return (*super().phases(), Measure("prototypes", self.sums))

    def sums(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Class sums of the representations, (classes, d)."""
        return {SUMS: sum_by_class(self.encode(net, batch, {}).z, batch.y, len(context.counts))}

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """Class sums (classes, d) and class counts (classes,)."""
        return {SUMS: work.measured[SUMS], COUNTS: work.counts}

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The new prototypes (classes, d) and class counts (classes,)."""
        prototypes = update_means(replies, SUMS, state.down["prototypes"])
        return {"prototypes": prototypes, COUNTS: update_counts(replies, state.down[COUNTS])}
