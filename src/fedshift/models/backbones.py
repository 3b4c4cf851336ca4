"""Backbones of the transformers library: random, or pretrained from the hub or a local folder.

Choices: the classifier is replaced by a linear layer from the pooled features to z (FedSR, Sec. 4.2). Stages are
those of the papers' tables: conv1 to conv5_x of a ResNet.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, ClassVar

from torch import nn

from fedshift.errors import FedshiftError, needs
from fedshift.hub import answers, pretrained
from fedshift.models.staged import Staged, numbered
from fedshift.spec import Width, setting

BLOCKS = (2, 3, 4, 3, 3, 1)  # of MobileNetV2's stages 2 to 7


class Backbone(Staged):
    """A backbone whose weights are random, or those of a hub id or local folder."""

    hub_id: ClassVar[str]
    architecture: ClassVar[str] = "ResNetModel"

    weights: str = setting(
        "random",
        help="'random'; 'pretrained' (ImageNet, from the Hugging Face hub); a hub id; or a local folder that "
        "save_pretrained wrote",
        path=True,
        words=("random", "pretrained"),
    )

    def check_here(self) -> None:
        """Whether there are the weights, or the hub that has them."""
        if self.weights != "random" and not answers():
            self._read()

    def stages(self, channels: int) -> dict[str, nn.Module]:
        """The stages of the backbone, whose last one pools."""
        with needs("images", "A backbone"):
            import transformers
        if self.freezes and self.weights == "random":
            raise FedshiftError(
                f"model.freeze_until = {self.freeze_until} would freeze random weights: --set model.weights=pretrained"
            )
        backbone = self._random(transformers, channels) if self.weights == "random" else self._read()
        if backbone.config.num_channels != channels:
            raise FedshiftError(
                f"These weights take {backbone.config.num_channels} channels, not {channels}: "
                f"--set data.channels={backbone.config.num_channels}"
            )
        return self._stages(backbone)

    def _stages(self, backbone: Any) -> dict[str, nn.Module]:
        """What a ResNet is made of: its first convolution and pooling, and groups of residual blocks."""
        groups = [[backbone.embedder], *([stage] for stage in backbone.encoder.stages)]
        groups[-1].append(backbone.pooler)
        return numbered(groups)

    def _random(self, transformers: Any, channels: int) -> Any:
        """The backbone with random weights."""
        raise NotImplementedError

    def _read(self) -> Any:
        source = self.hub_id if self.weights == "pretrained" else self.weights
        backbone = pretrained(source, "model.weights")
        if type(backbone).__name__ != self.architecture:
            raise FedshiftError(
                f"model.weights = '{self.weights}' is a {type(backbone).__name__}, not a {self.architecture}."
            )
        return backbone


class ResNet18(Backbone):
    """ResNet-18 (He et al., CVPR 2016)."""

    hub_id: ClassVar[str] = "microsoft/resnet-18"
    dim: Width = setting(512, help="dimension d of the representation z")

    def _random(self, transformers: Any, channels: int) -> Any:
        config = transformers.ResNetConfig(
            num_channels=channels,
            embedding_size=64,
            hidden_sizes=[64, 128, 256, 512],
            depths=[2, 2, 2, 2],
            layer_type="basic",
        )
        return transformers.ResNetModel(config)


class ResNet50(Backbone):
    """ResNet-50 (He et al., CVPR 2016)."""

    hub_id: ClassVar[str] = "microsoft/resnet-50"
    dim: Width = setting(2048, help="dimension d of the representation z")

    def _random(self, transformers: Any, channels: int) -> Any:
        return transformers.ResNetModel(transformers.ResNetConfig(num_channels=channels))


class MobileNetV2(Backbone):
    """MobileNetV2 (Sandler et al., CVPR 2018)."""

    hub_id: ClassVar[str] = "google/mobilenet_v2_1.0_224"
    architecture: ClassVar[str] = "MobileNetV2Model"
    dim: Width = setting(1280, help="dimension d of the representation z")

    def _random(self, transformers: Any, channels: int) -> Any:
        return transformers.MobileNetV2Model(transformers.MobileNetV2Config(num_channels=channels))

    def _stages(self, backbone: Any) -> dict[str, nn.Module]:
        """The rows of the paper's Table 2; the first two are one module in the library, so stage 1 is both."""
        groups = [[backbone.conv_stem]]
        blocks = iter(backbone.layer)
        groups += [list(islice(blocks, count)) for count in BLOCKS]
        groups.append([backbone.conv_1x1, backbone.pooler])
        return numbered(groups)
