"""From stored samples to what a network reads: scaling, augmentation and normalisation, by the batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedshift.errors import FedshiftError, need
from fedshift.streams import Key, Streams

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Inputs:
    """How a batch is prepared: uint8 images become float32 in 0..1, all else stays; the rest is optional.

    Attributes:
        augment: random-resized crop (scale 0.7-1), flip, colour jitter 0.3 and grayscale 10 % in training
            (FedSR, Sec. 4.2), drawn from the run's streams.
        normalise: subtract ImageNet's mean and divide by its standard deviation, by channel.
        vocabulary: for text, the character behind each token id 0, 1, ...
    """

    augment: bool = False
    normalise: bool = False
    vocabulary: tuple[str, ...] = ()

    def training(self, x: Tensor, streams: Streams, *key: Key) -> Tensor:
        """A training batch; ``key`` names the augmentation's draws."""
        x = _scaled(x)
        if self.augment:
            with streams.as_global("augmentation", *key):
                x = _augmentation(x.shape[-2], x.shape[-1])(x)
        return self._normalised(x)

    def evaluation(self, x: Tensor) -> Tensor:
        """A batch to predict for."""
        return self._normalised(_scaled(x))

    def text(self, x: Tensor) -> list[str]:
        """Token ids (B, length), int64, as B strings.

        Raises:
            FedshiftError: these samples are no text.
        """
        if not self.vocabulary:
            raise FedshiftError("These samples are no text; a data set of text is 'shakespeare'.")
        return ["".join(self.vocabulary[token] for token in row) for row in x.tolist()]

    def _normalised(self, x: Tensor) -> Tensor:
        if not self.normalise:
            return x
        mean, std = (torch.tensor(values, device=x.device).view(-1, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return (x - mean) / std


@cache
def _augmentation(height: int, width: int) -> Any:
    """Kornia's pipeline for one image size."""
    try:
        import kornia.augmentation as kornia
    except ImportError as error:
        raise need("images", "Augmentation", error) from error
    return kornia.AugmentationSequential(
        kornia.RandomResizedCrop((height, width), scale=(0.7, 1.0)),
        kornia.RandomHorizontalFlip(),
        kornia.ColorJitter(0.3, 0.3, 0.3, 0.3),
        kornia.RandomGrayscale(p=0.1),
        data_keys=["input"],
    )


def _scaled(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x
