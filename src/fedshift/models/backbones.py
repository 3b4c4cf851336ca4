"""Backbones of the transformers library: random, or pretrained from the hub or a local folder.

Choices: the classifier is replaced by a linear layer from the pooled features to z (FedSR, Sec. 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedshift.core.model import Model, Shape
from fedshift.errors import FedshiftError, need
from fedshift.hub import answers, hub
from fedshift.settings.spec import Width, setting


class Pooled(nn.Module):
    """A backbone, its pooled features flattened, and a linear layer."""

    def __init__(self, backbone: nn.Module, features: int, out: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = nn.Linear(features, out)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, channels, height, width) to (B, out)."""
        pooled: Tensor = self.backbone(x).pooler_output.flatten(1)
        projected: Tensor = self.projection(pooled)
        return projected


@dataclass(frozen=True, kw_only=True)
class Backbone(Model):
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
            self._read(_transformers())

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Inputs (B, channels, height, width) to (B, out); pretrained weights need 3 channels."""
        if len(shape) != 3:
            raise FedshiftError(f"Backbones take images (channels, height, width), not {shape}; try 'mlp'.")
        transformers = _transformers()
        backbone = self._random(transformers, shape[0]) if self.weights == "random" else self._read(transformers)
        channels = backbone.config.num_channels
        if channels != shape[0]:
            raise FedshiftError(
                f"These weights take {channels} channels, not {shape[0]}: --set data.channels={channels}"
            )
        return Pooled(backbone, _pooled_features(backbone, channels), out)

    def _random(self, transformers: Any, channels: int) -> Any:
        """The backbone with random weights."""
        raise NotImplementedError

    def _read(self, transformers: Any) -> Any:
        source = self.hub_id if self.weights == "pretrained" else self.weights
        try:
            with hub(source):
                backbone = transformers.AutoModel.from_pretrained(source)
        except (OSError, ValueError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FedshiftError(
                f"model.weights = '{self.weights}': no weights of '{source}' could be read ({reason}). "
                "Give a folder on this machine, or download it once where the hub can be reached."
            ) from error
        if type(backbone).__name__ != self.architecture:
            raise FedshiftError(
                f"model.weights = '{self.weights}' is a {type(backbone).__name__}, not a {self.architecture}."
            )
        return backbone


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise need("images", "A backbone", error) from error
    return transformers


def _pooled_features(backbone: nn.Module, channels: int) -> int:
    """How many features the backbone pools, found by running it once."""
    was_training = backbone.training
    with torch.no_grad():
        features: int = backbone.eval()(torch.zeros(1, channels, 64, 64)).pooler_output.flatten(1).shape[1]
    backbone.train(was_training)
    return features


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class ResNet50(Backbone):
    """ResNet-50 (He et al., CVPR 2016)."""

    hub_id: ClassVar[str] = "microsoft/resnet-50"
    dim: Width = setting(2048, help="dimension d of the representation z")

    def _random(self, transformers: Any, channels: int) -> Any:
        return transformers.ResNetModel(transformers.ResNetConfig(num_channels=channels))


@dataclass(frozen=True, kw_only=True)
class MobileNetV2(Backbone):
    """MobileNetV2 (Sandler et al., CVPR 2018)."""

    hub_id: ClassVar[str] = "google/mobilenet_v2_1.0_224"
    architecture: ClassVar[str] = "MobileNetV2Model"
    dim: Width = setting(1280, help="dimension d of the representation z")

    def _random(self, transformers: Any, channels: int) -> Any:
        return transformers.MobileNetV2Model(transformers.MobileNetV2Config(num_channels=channels))
