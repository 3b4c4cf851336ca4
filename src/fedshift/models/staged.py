"""Networks in stages, of which the first ones can be frozen: a run then trains the others only.

What the frozen stages make of a sample never changes, so it is computed once and kept on the disk
(:mod:`fedshift.core.frozen`), and the federation works on it in the place of images. The encoder is the stages after
them and a linear layer to z, and no other tensor is sent, averaged or kept at home.

*Choices*: frozen stages are in evaluation mode, batch norm too; the others follow the method's ``bn``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD, Inputs
from fedshift.core.frozen import Colour, FrozenNetwork, checksum
from fedshift.core.model import Model, ModelBuilder, Shape
from fedshift.errors import FedshiftError
from fedshift.models import MODELS
from fedshift.spec import WholeNumber, setting
from fedshift.streams import Streams

Stages = Mapping[str, nn.Module]


def numbered(groups: Iterable[Sequence[nn.Module]]) -> dict[str, nn.Module]:
    """Stages by name, stage1 etc., each of some layers."""
    return {f"stage{number}": nn.Sequential(*layers) for number, layers in enumerate(groups, 1)}


class WithProjection(nn.Module):
    """Stages one after the other, flattened, and a linear layer."""

    def __init__(self, stages: Stages, features: int, out: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(OrderedDict(stages))
        self.projection = nn.Linear(features, out)

    def forward(self, x: Tensor) -> Tensor:
        """Images, or what frozen stages made of them, (B, channels, height, width), to (B, out)."""
        projected: Tensor = self.projection(self.stages(x).flatten(1))
        return projected


Change = Callable[[int, Tensor], Tensor]


class InStages(nn.Sequential):
    """An encoder as a sequence of layers, behind whose stages features can be changed.

    A stage ends behind a ReLU, or a layer that is made of layers, that gives channels of more than one place each.
    """

    def forward(self, x: Tensor, change: Change | None = None) -> Tensor:
        """Inputs (B, ...) to z (B, d); ``change`` makes other features of a stage's number, from 0, and its own."""
        stage = 0
        for layer in self:
            x = layer(x)
            if change and x.ndim > 2 and x[0, 0].numel() > 1 and (isinstance(layer, nn.ReLU) or [*layer.children()]):
                x, stage = change(stage, x), stage + 1
        return x


def in_stages(encoder: nn.Module) -> InStages:
    """The layers of an encoder as a sequence of stages; there are none of one that is no sequence."""
    layers = [*encoder.stages, nn.Flatten(), encoder.projection] if isinstance(encoder, WithProjection) else encoder
    return InStages(*(layers if isinstance(layers, list | nn.Sequential) else ()))


@lru_cache(maxsize=8)
def widths_of_stages(model: ModelBuilder) -> tuple[int, ...]:
    """How many channels the features have behind each stage of an encoder.

    Raises:
        FedshiftError: it has no stages.
    """
    widths: list[int] = []

    def note(stage: int, x: Tensor) -> Tensor:
        widths.append(x.shape[1])
        return x

    with torch.no_grad():
        in_stages(model.encoder()).eval()(torch.zeros(1, *model.shape), note)
    if not widths:
        raise FedshiftError(
            f"The model '{MODELS.name_of(model.model)}' has no feature maps in stages, which the method works on: "
            "--set model.name=cnn for images, cnn1d for signals, or resnet10"
        )
    return tuple(widths)


class Freezing(Model):
    """A network whose first stages can be frozen."""

    freeze_until: WholeNumber = setting(
        0,
        help="the last stage that is frozen, counted from 1 at the inputs: what it gives is computed once, and the "
        "stages after it are trained; 0: all are; the last one: the layer to z alone is",
    )

    @property
    def freezes(self) -> bool:
        """Whether a stage is frozen."""
        return self.freeze_until > 0

    def check(self, inputs: Inputs) -> None:
        """Refuse what works on images where stages that read them are frozen."""
        for name in ("augment", "normalise"):
            if self.freezes and getattr(inputs, name):
                raise FedshiftError(
                    f"data.{name} works on images, but model.freeze_until = {self.freeze_until} computes the first "
                    f"stages once, on images normalised for their weights: --set data.{name}=false"
                )

    def unknown_stage(self, names: Sequence[str]) -> FedshiftError:
        """The error for a stage beyond the last."""
        named = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        return FedshiftError(
            f"model.freeze_until = {self.freeze_until}: the network has {len(names)} stages ({named}); 0 trains all, "
            f"{len(names)} the layer to z alone."
        )


class Staged(Freezing):
    """A network in stages, from images to pooled features."""

    axes: ClassVar[int | None] = 3
    mean: ClassVar[Colour] = IMAGENET_MEAN  # what frozen stages get instead of data.normalise
    std: ClassVar[Colour] = IMAGENET_STD

    def stages(self, channels: int) -> dict[str, nn.Module]:
        """All stages by name, in order, from images (B, channels, height, width) to pooled features.

        Raises:
            FedshiftError: the weights cannot be had, or take another number of channels.
        """
        raise NotImplementedError

    def frozen_network(self) -> FrozenNetwork | None:
        """The stages up to ``freeze_until``; None where all are trained."""
        if not self.freezes:
            return None
        with Streams(0).as_global("initial values that weights replace"):
            stages, _ = self._cut(3)
        front = nn.Sequential(OrderedDict(stages))
        weights = [checksum(tensor, name) for name, tensor in front.state_dict().items()]
        name = f"{MODELS.name_of(self)}, stages 1 to {self.freeze_until}"
        return FrozenNetwork(name, checksum(torch.empty(0), weights), lambda: front, self.mean, self.std)

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs ``(B, *shape)``, images or what the frozen stages give, to (B, out)."""
        _, trained = self._cut(3 if self.freezes else shape[0])
        return WithProjection(trained, _features(trained, shape), out)

    def _cut(self, channels: int) -> tuple[Stages, Stages]:
        """The frozen stages, and those that are trained."""
        stages = list(self.stages(channels).items())
        if self.freeze_until > len(stages):
            raise self.unknown_stage([name for name, _ in stages])
        return dict(stages[: self.freeze_until]), dict(stages[self.freeze_until :])


def _features(stages: Stages, shape: Shape) -> int:
    """How many features the stages give, found by running them once.

    Raises:
        FedshiftError: inputs of that shape do not fit them.
    """
    whole = nn.Sequential(*stages.values())
    try:
        with torch.no_grad():
            given: Tensor = whole.eval()(torch.zeros(1, *shape)).flatten(1)
    except (RuntimeError, ValueError) as error:
        raise FedshiftError(
            f"Inputs of the shape {shape} do not fit '{next(iter(stages))}', the first stage that is trained: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return given.shape[1]


def check_untied(encoder: nn.Module, trained: set[str]) -> None:
    """Raise an error if a tensor that is trained has two names."""
    names: dict[int, str] = {}
    for name, parameter in encoder.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name and trained & {first, name}:
            raise FedshiftError(
                f"The network's '{first}' and '{name}' are one tensor, which cannot be trained under two names: "
                "train adapters (model.adapter_rank), freeze the stages that have it (model.freeze_until), or use one "
                "part (model.part)."
            )
