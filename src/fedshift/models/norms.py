"""Normalisation of a network's features: batch norm, group norm (Wu and He, ECCV 2018), or nothing.

Group norm takes mean and variance over a group of a single sample's channels, so it has no running statistics: training
and prediction are the same function, and all its tensors are averaged. The method's ``bn`` concerns batch norm alone.

*Choices*: two groups a layer, as in federated learning (Reddi et al., ICLR 2021); Wu and He have 32. A layer keeps the
place and the epsilon of the batch norm. A network of the transformers library without its batch norms has no bias in
their place. Pretrained weights were trained behind batch norms and accept nothing else.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedshift.core.model import Model
from fedshift.core.net import batch_norms
from fedshift.errors import FedshiftError
from fedshift.spec import Width, setting

Norm = Literal["batch", "group", "none"]
LAYERS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)  # by the axes of a channel


class Normed(Model):
    """A network with a choice of normalisation."""

    norm: Norm = setting("none", help="what normalises features: batch norm, group norm, or nothing")
    groups: Width = setting(2, help="groups of channels of a group norm", source="Reddi et al., ICLR 2021, Appendix C")

    def normalisation(self, channels: int, axes: int) -> list[nn.Module]:
        """The layers (none or one) that normalise features (B, channels, ...) with ``axes`` axes per channel."""
        if self.norm == "none":
            return []
        if self.norm == "batch":
            return [LAYERS[axes](channels)]
        if channels % self.groups or (channels == self.groups and not axes):
            raise FedshiftError(
                f"model.groups = {self.groups} does not divide a layer of {channels} "
                f"{'channels' if axes else 'numbers into groups of two or more'}: --set model.groups=1, or "
                "model.norm=batch"
            )
        return [nn.GroupNorm(self.groups, channels)]

    def replace_batch_norms(self, network: nn.Module) -> None:
        """Replace every batch norm of a new network for images."""
        if self.norm != "batch":
            for name, layer in list(batch_norms(network)):
                (made,) = self.normalisation(layer.num_features, 2) or [nn.Identity()]
                if isinstance(made, nn.GroupNorm):
                    made.eps = layer.eps
                network.set_submodule(name, made)
