"""What methods with a generator of representations share: the network, the labels it is asked for, and its teachers.

A generator G gives representations of a class, from noise and the class's code. It learns from the heads that clients
sent back, each as it is: :func:`logits_of_each`.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from torch.func import functional_call, vmap

from fedshift.methods.classes import one_hot
from fedshift.page import *
from fedshift.spec import IN_MEMORY

BatchNormSize = Annotated[int, Ge(2), IN_MEMORY]  # one sample has no variance


class Conditional(nn.Module):
    """A network that reads a vector beside the one-hot code of its class."""

    def __init__(self, classes: int, body: nn.Module) -> None:
        super().__init__()
        self.classes, self.body = classes, body

    def forward(self, x: Tensor, y: Tensor, code: float = 1.0) -> Tensor:
        """Vectors x (B, k) of the classes y (B,), for each of which its code has that number, to the body's (B, d)."""
        result: Tensor = self.body(torch.cat([x, code * one_hot(y, self.classes, x)], dim=1))
        return result


def make_generator(classes: int, noise: int, hidden: int, dim: int) -> Conditional:
    """G: noise (B, noise) and classes (B,) to representations (B, dim), by one hidden layer with batch norm."""
    return Conditional(
        classes,
        nn.Sequential(nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)),
    )


def logits_of_each(head: nn.Module, replies: Replies, z: Tensor) -> Tensor:
    """Logits (clients, B, classes) of z (B, d) by the head that each client sent; only z receives a gradient.

    Args:
        head: what a head is like; its own tensors play no part.
        replies: have the tensors of a part ``head``.
        z: representations.
    """
    given = [up.of("head") for up in replies.ups]
    heads = {name: torch.stack([own[name] for own in given]) for name in given[0]}

    def logits_of(tensors: dict[str, Tensor]) -> Tensor:
        logits: Tensor = functional_call(head, tensors, (z,))
        return logits

    logits: Tensor = vmap(logits_of)(heads)
    return logits


def log_mixture(head: nn.Module, replies: Replies, z: Tensor) -> Tensor:
    """Log-probabilities (B, classes) of the mixture sum_k p(k) softmax(h_k(z)) of the replies' heads (FedCiR, Eq. 15).

    p(k) is a client's share of the samples where the replies carry them, else 1/|K_t|. Nothing but z
    receives a gradient.
    """
    weights, logits = z.new_tensor(replies.weights), logits_of_each(head, replies, z)
    log_p = (weights / weights.sum()).log().view(-1, 1, 1)
    return (logits.log_softmax(dim=-1) + log_p).logsumexp(dim=0)


def labels_among(counts: Tensor, uniform: Tensor) -> Tensor:
    """Labels (B,), uniform over the classes that anybody has; over all, as long as nobody said.

    Args:
        counts: samples of each class, (classes,).
        uniform: numbers from [0, 1), (B,), of which each makes a label.
    """
    among = (counts > 0) | ~(counts > 0).any()
    place = (uniform * among.sum()).floor()  # below the number of those classes: a float32 below 1 does not round to it
    return (among.cumsum(dim=0) <= place.unsqueeze(1)).sum(dim=1)
