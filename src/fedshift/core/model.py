"""What a model of the catalogue provides to a method: encoders of any width, and linear heads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import memory
from fedshift.clients.inputs import Inputs
from fedshift.core.dropout import from_streams
from fedshift.core.frozen import FrozenNetwork
from fedshift.errors import FedshiftError
from fedshift.spec import Spec, Width, setting
from fedshift.streams import Streams

Shape = tuple[int, ...]
COPIES = 4  # copies of a model's tensors that a run stores at once, at least
SAMPLES = {1: "tokens (length,)", 2: "signals (channels, time)", 3: "images (channels, height, width)"}  # by axes
FITTING = {1: "'mlp' (vectors) or 'lstm' (tokens)", 2: "'cnn1d' (signals)", 3: "'cnn' (images)"}


class Model(Spec):
    """A representation network; ``dim`` is the size of z, ``axes`` a sample's number of axes (None: any)."""

    section: ClassVar[str] = "model"
    axes: ClassVar[int | None] = None

    dim: Width = setting(64, help="dimension d of the representation z")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """A network from inputs ``(B, *shape)`` to (B, out); a FedshiftError if such inputs do not fit."""
        raise NotImplementedError

    def dim_for(self, shape: Shape) -> int:
        """The dimension d of z for inputs ``(B, *shape)``; a FedshiftError if such inputs do not fit."""
        return self.dim

    @property
    def freezes(self) -> bool:
        """Whether there is a :meth:`frozen_network`, without building it."""
        return False

    def frozen_network(self) -> FrozenNetwork | None:
        """The stages that are never trained, whose output for images is the encoder's input; None: all are trained."""
        return None

    def check(self, inputs: Inputs) -> None:
        """Raise an error if samples become inputs that the network cannot process."""


class GaussianEncoder(nn.Module):
    """Two outputs per dimension: mu, and sigma = softplus(s)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, each (B, d)."""
        mu, s = self.body(x).chunk(2, dim=1)
        return mu, F.softplus(s)


@dataclass(frozen=True)
class ModelBuilder:
    """Builds the modules of a federation's model, with initial values from the run's streams.

    Attributes:
        shape: the inputs' shape, without the batch.
        streams: the run's random streams; a part's initial values depend on the seed and its role only.
        clients: number of clients.
        environments: number of environments that clients train in; see :attr:`Samples.environment`.
        client: number of the client for which initial values are drawn; None: they are common to all.
    """

    model: Model
    shape: Shape
    classes: int
    streams: Streams
    clients: int
    environments: int = 1
    client: int | None = None

    @cached_property
    def dim(self) -> int:
        return self.model.dim_for(self.shape)

    def encoder(self, role: str = "encoder") -> nn.Module:
        """A deterministic encoder x -> z (B, d); another role has other initial values."""
        return self.initialised(role, lambda: self._encoder(self.dim))

    def gaussian_encoder(self) -> GaussianEncoder:
        """A probabilistic encoder x -> (mu, sigma), each (B, d)."""
        return GaussianEncoder(self.initialised("encoder", lambda: self._encoder(2 * self.dim)))

    def head(self, role: str = "head", features: int | None = None) -> nn.Module:
        """A linear classifier z (B, d) -> logits (B, classes); or from another number of features."""
        return self.initialised(role, lambda: nn.Linear(features or self.dim, self.classes))

    def initialised(self, role: str, build: Callable[[], nn.Module]) -> nn.Module:
        """Build a module with initial values from the seed and a role; a FedshiftError if it exceeds the memory."""
        self._check_fits(role, build)
        with self._drawing(role):
            module = build()
        return from_streams(module, role)

    def _encoder(self, out: int) -> nn.Module:
        axes, shape = self.model.axes, self.shape
        if axes is not None and axes != len(shape):
            fitting = FITTING.get(len(shape), "'mlp'")
            raise FedshiftError(
                f"The model {type(self.model).__name__} takes {SAMPLES[axes]}, but a sample has the shape "
                f"{list(shape)}; try {fitting}."
            )
        return self.model.encoder(shape, out)

    def _drawing(self, role: str) -> AbstractContextManager[None]:
        return self.streams.as_global("initialisation", role, *(() if self.client is None else (self.client,)))

    def _check_fits(self, role: str, build: Callable[[], nn.Module]) -> None:
        """Refuse a module whose tensors exceed the memory, after a build on the meta device."""
        with self._drawing(role), torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights are read into such a module
            try:
                module = build()
            except Exception:  # for example, it reads its values; real errors recur when it is built in memory
                return
        nbytes = sum(tensor.nbytes for tensor in module.state_dict().values() if tensor.is_meta)
        # Each engine stores at least the initial values, the server's tensors, a client's tensors in use, and their
        # gradients.
        memory.check(
            COPIES * nbytes,
            f"The {role} of the model {type(self.model).__name__} (dim = {self.dim}, {nbytes // 4:,} numbers)",
            "Lower model.dim, or the widths of the model's layers.",
        )
