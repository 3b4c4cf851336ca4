"""From stored samples to a network's inputs: scaling, augmentation and normalisation, by the batch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedshift.clients.preparation import Column, Preparation, Statistics
from fedshift.errors import FedshiftError, needs
from fedshift.streams import Key, Streams

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Inputs:
    """How a batch is prepared: uint8 images become float32 in 0..1, other types stay; the rest is optional.

    Attributes:
        augment: random-resized crop (scale 0.7-1), flip, colour jitter 0.3 and grayscale 10 % in training (FedSR,
            Sec. 4.2), drawn from the run's streams.
        normalise: subtract ImageNet's mean and divide by its standard deviation, by channel.
        vocabulary: for text by characters, the character of each token id.
        tokens: for text by a tokenizer, its number of ids; 0: samples are no such text.
        pad: the id that fills such a text up to its length; -1: no padding.
        preparation: for rows of a table, the treatment of missing cells, numbers and categories.
        flip: whether augmentation flips half of the images left to right.
    """

    augment: bool = False
    normalise: bool = False
    vocabulary: tuple[str, ...] = ()
    tokens: int = 0
    pad: int = 0
    preparation: Preparation | None = None
    flip: bool = False

    @property
    def ids(self) -> int:
        """Number of token ids, of characters or of a tokenizer; 0: samples are no token ids."""
        return len(self.vocabulary) or self.tokens

    def counting(self, x: Tensor) -> Inputs:
        """The same for samples (N, ...): whole numbers without a description become token ids without padding."""
        unsaid = x.dtype == torch.int64 and not self.ids
        return replace(self, tokens=int(x.max()) + 1, pad=-1) if unsaid else self

    def like(self, shape: tuple[int, ...]) -> Tensor:
        """A batch of one zero sample of that shape, in the type that samples have in a batch."""
        return torch.zeros(1, *shape, dtype=torch.int64 if self.ids else torch.float32)

    def of_columns(self, columns: tuple[Column, ...]) -> Inputs:
        """The same for rows of these columns, if rows are prepared; UnknownNameError if a setting names others."""
        return self if self.preparation is None else replace(self, preparation=self.preparation.of_columns(columns))

    def fitted(self, statistics: Statistics) -> Inputs:
        """The same with statistics of training rows, if rows are prepared."""
        if self.preparation is None:
            return self
        settings = {each.name: getattr(self, each.name) for each in fields(Inputs)}
        return _Fitted(**settings, statistics=statistics)

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the input that a stored sample becomes."""
        return stored if self.preparation is None else (self.preparation.width,)

    @property
    def _statistics(self) -> Statistics:
        return {} if self.preparation is None else self.preparation.empty_statistics()

    def training(self, x: Tensor, streams: Streams, *key: Key) -> Tensor:
        """A training batch; ``key`` keys the augmentation's draws."""
        x = self._scaled(x)
        if self.augment:
            with streams.as_global("augmentation", *key):
                x = _augmentation(x.shape[-2], x.shape[-1], self.flip)(x)
        return self._normalised(x)

    def evaluation(self, x: Tensor) -> Tensor:
        return self._normalised(self._scaled(x))

    def text(self, x: Tensor) -> list[str]:
        """B strings from token ids (B, length), int64, of characters; a FedshiftError for other samples."""
        if not self.vocabulary:
            raise FedshiftError("These samples are not text by characters; such a data set is 'shakespeare'.")
        return ["".join(self.vocabulary[token] for token in row) for row in x.tolist()]

    def _normalised(self, x: Tensor) -> Tensor:
        if not self.normalise:
            return x
        mean, std = (torch.tensor(values, device=x.device).view(-1, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return (x - mean) / std

    def _scaled(self, x: Tensor) -> Tensor:
        if self.preparation is not None:
            return self.preparation.inputs(x, self._statistics)
        return x.float().div_(255) if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class _Fitted(Inputs):
    """Inputs with statistics for rows."""

    statistics: Statistics = field(default_factory=dict, compare=False, repr=False)

    @property
    def _statistics(self) -> Statistics:
        return self.statistics


@cache
def _augmentation(height: int, width: int, flip: bool) -> Any:
    """Kornia's pipeline for one image size."""
    with needs("images", "Augmentation"):
        import kornia.augmentation as kornia
    return kornia.AugmentationSequential(
        kornia.RandomResizedCrop((height, width), scale=(0.7, 1.0)),
        *([kornia.RandomHorizontalFlip()] if flip else []),
        kornia.ColorJitter(0.3, 0.3, 0.3, 0.3),
        kornia.RandomGrayscale(p=0.1),
        data_keys=["input"],
    )
