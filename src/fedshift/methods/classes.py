"""What methods that work class by class share: codes, smoothed labels, sums and means over classes, and prototypes.

The counts of a client's samples of each class leave it under :data:`COUNTS`, and the server keeps those of all clients
of a round in a part of that name. A class that none of a round's clients has keeps the row it had, and one that no
client ever had keeps zeros.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

COUNTS = "class_counts"  # how many training samples of each class the client has, or all of a round's have
SUMS = "class_sums"  # in a reply: the sum of its representations of each class
CLASS_COUNTS = Upload.like(COUNTS, COUNTS, "count", bound="total")


def check_unbalanced(train: Train, why: str) -> None:
    """Raise an error if classes are weighed or balanced for a method whose loss does that itself."""
    train.need(f"{why}, which would count rare classes twice", class_weights="none", batches="shuffled")


def no_counts(model: ModelBuilder) -> Part:
    """The counts of no samples, which the server keeps and sends."""
    return Part.state(torch.zeros(model.classes, dtype=torch.int64), "down")


def one_hot(y: Tensor, classes: int, like: Tensor) -> Tensor:
    """Labels (B,) as (B, classes), of the type and on the device of ``like``."""
    return (y.unsqueeze(1) == torch.arange(classes, device=y.device)).to(like)


def smoothed_cross_entropy(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    """The cross-entropies (B,) of logits (B, classes) with 1 - s on the labels y (B,) and s shared by the others."""
    log_probabilities = logits.log_softmax(dim=1)
    own = log_probabilities.gather(1, y.unsqueeze(1)).squeeze(1)
    others = (log_probabilities.sum(dim=1) - own) / max(1, logits.shape[1] - 1)
    return -((1 - smoothing) * own + smoothing * others)


def of_each(replies: Replies, name: str) -> Tensor:
    """A tensor of every reply, side by side: (clients, ...)."""
    return torch.stack([up[name] for up in replies.ups])


def class_sums(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """The sum of the features z (B, d) of each class by the labels y (B,), (classes, d)."""
    return one_hot(y, classes, z).T @ z


def newest_counts(replies: Replies, known: Tensor) -> Tensor:
    """How many samples of each class (classes,) there were when somebody had it: in this round, or else before.

    Args:
        replies: with the clients' counts.
        known: what was known before, (classes,).
    """
    total = of_each(replies, COUNTS).sum(dim=0)
    return torch.where(total > 0, total, known)


def newest_means(replies: Replies, sums: str, known: Tensor) -> Tensor:
    """The mean of each class (classes, d) over all samples of those who had it: in this round, or else before.

    Args:
        replies: with the clients' counts, and the sums of each class.
        sums: the name of the latter.
        known: what was known before, (classes, d).
    """
    total, of_class = (of_each(replies, name).sum(dim=0) for name in (COUNTS, sums))
    return torch.where(total.unsqueeze(1) > 0, of_class / total.clamp(min=1).unsqueeze(1), known)


class Prototypical(FedAvg):
    """FedAvg whose server has a prototype of each class, which clients read: the mean of their representations.

    They are of the model as the client has trained it, in evaluation mode, over all its samples without augmentation,
    and merged by class count.
    """

    uploads: ClassVar[tuple[Upload, ...]] = (Upload.like(SUMS, "prototypes", "statistic"), CLASS_COUNTS)

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Also the prototypes, and how many samples each stands for."""
        prototypes = Part.state(torch.zeros(model.classes, self.width(model)), "down")
        return {**super().parts(model), "prototypes": prototypes, COUNTS: no_counts(model)}

    def phases(self) -> Phases:
        """Local training, then the sums of the trained model's representations."""
        return (*super().phases(), Measure("prototypes", self.sums))

    def sums(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The sum of the representations of each class, (classes, d)."""
        return {SUMS: class_sums(self.encode(net, batch, {}).z, batch.y, len(context.counts))}

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """Sums and counts of each class."""
        return {SUMS: work.measured[SUMS], COUNTS: work.counts}

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The prototype of a class: the mean over the samples of all clients, and how many there are."""
        prototypes = newest_means(replies, SUMS, state.down["prototypes"])
        return {"prototypes": prototypes, COUNTS: newest_counts(replies, state.down[COUNTS])}
