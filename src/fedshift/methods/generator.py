"""Generators of representations on the server: the network, the labels that it reads, and the heads that train it."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from torch.func import functional_call, vmap

from fedshift.methods.classes import one_hot
from fedshift.page import *
from fedshift.spec import IN_MEMORY

BatchNormSize = Annotated[int, Ge(2), IN_MEMORY]  # batch norm needs two samples


class Conditional(nn.Module):
    """A network that reads a vector with a one-hot code of its class."""

    def __init__(self, classes: int, body: nn.Module) -> None:
        super().__init__()
        self.classes, self.body = classes, body

    def forward(self, x: Tensor, y: Tensor, code: float = 1.0) -> Tensor:
        """Map vectors x (B, k) with one-hot codes of y (B,), times ``code``, to (B, d)."""
        result: Tensor = self.body(torch.cat([x, code * one_hot(y, self.classes, x)], dim=1))
        return result


def make_generator(classes: int, noise: int, hidden: int, dim: int) -> Conditional:
    """G: noise (B, noise) and classes (B,) to representations (B, dim), with one hidden layer and batch norm."""
    return Conditional(
        classes,
        nn.Sequential(nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)),
    )


def client_logits(head: nn.Module, replies: Replies, z: Tensor) -> Tensor:
    """Logits (clients, B, classes) of z (B, d) by each client's uploaded head; only z gets a gradient.

    Args:
        head: the architecture; its tensors are not read.
        replies: contain a part ``head``.
        z: representations.
    """
    uploaded = [up.of("head") for up in replies.ups]
    heads = {name: torch.stack([head[name] for head in uploaded]) for name in uploaded[0]}

    def logits_of(tensors: dict[str, Tensor]) -> Tensor:
        logits: Tensor = functional_call(head, tensors, (z,))
        return logits

    logits: Tensor = vmap(logits_of)(heads)
    return logits


def log_mixture(head: nn.Module, replies: Replies, z: Tensor) -> Tensor:
    """Log-probabilities (B, classes) of sum_k p(k) softmax(h_k(z)) over the uploaded heads (FedCiR, Eq. 15).

    p(k) is the client's share of the samples if the replies carry counts, else 1/|K_t|. Only z gets a gradient.
    """
    weights, logits = z.new_tensor(replies.weights), client_logits(head, replies, z)
    log_p = (weights / weights.sum()).log().view(-1, 1, 1)
    return (logits.log_softmax(dim=-1) + log_p).logsumexp(dim=0)


def draw_labels(counts: Tensor, uniform: Tensor) -> Tensor:
    """Labels (B,) uniform over the classes with samples, or over all classes if there are no samples.

    Args:
        counts: samples of each class, (classes,).
        uniform: numbers (B,) in [0, 1), one for each label.
    """
    allowed = (counts > 0) | ~(counts > 0).any()
    place = (uniform * allowed.sum()).floor()  # below the number of classes: a float32 below 1 does not round up to it
    return (allowed.cumsum(dim=0) <= place.unsqueeze(1)).sum(dim=1)
