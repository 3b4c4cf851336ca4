"""Networks: an encoder x -> z for any method, the linear head that every method shares, and their catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.core.model import Model

MODELS: Catalogue[Model] = Catalogue(
    "MODELS",
    __name__,
    kind="model",
    base="fedshift.core.model:Model",
    entries={
        "cnn": ".small:CNN",
        "cnn1d": ".small:CNN1d",
        "mlp": ".small:MLP",
        "features": ".small:Features",
        "resnet10": ".small:ResNet10",
        "resnet18": ".backbones:ResNet18",
        "resnet50": ".backbones:ResNet50",
        "mobilenetv2": ".backbones:MobileNetV2",
        "efficientnet-lite0": ".backbones:EfficientNetLite0",
        "digits-cnn": ".small:DigitsCNN",
        "cct-7-3x1": ".cct:CCT7",
        "lstm": ".small:LSTM",
        "own": ".own:Own",
        "transformers": ".transformer:Transformer",
    },
)
