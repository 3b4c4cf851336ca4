"""An encoder without downloads: fixed random features of images, and hashed words of sentences.

It replaces CLIP where similarity of samples is enough: similar images and sentences with common words have similar
embeddings, but images do not match their labels' words. Random features: Rahimi and Recht, NIPS 2007; feature hashing:
Weinberger et al., ICML 2009.

Choices: images are resized to 32x32 and scaled to -1..1; 64 filters of 5x5 with stride 2 and a fixed random bias, then
ReLU; mean and deviation in four quarters; the features of a grey image are subtracted. Vectors pass through a random
projection. Words and runs of three letters are hashed by blake2b into ``dim`` signed bins; token ids are read as text.
All random numbers have a fixed seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.clients.inputs import Inputs
from fedshift.methods.client2vec.encoder import Encoder
from fedshift.spec import Width, setting
from fedshift.streams import Streams

SIDE, FILTERS, KERNEL = 32, 64, 5


class Offline(Encoder):
    """Fixed random features of samples and hashed words of sentences, without a download."""

    size: Width = setting(512, help="dimension of the embeddings")

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        return self.size

    def samples(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Embed images or vectors (N, ...) by random features, texts or token ids by hashed words: (N, d)."""
        if inputs.vocabulary:
            return self.texts([f"The next character of {text}" for text in inputs.text(x)])
        if inputs.tokens:
            rows = [[token for token in row if token != inputs.pad] for row in x.tolist()]
            return self.texts([" ".join(map(str, row)) for row in rows])
        if x.ndim != 4:
            vectors = x.flatten(1).float()
            return vectors @ self._fixed("projection", vectors.shape[1], self.size)
        return torch.cat([self._images(chunk) for chunk in torch.split(x, 512)])

    def _images(self, x: Tensor) -> Tensor:
        pixels = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        pixels = F.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True) * 2 - 1
        grey = torch.zeros(1, *pixels.shape[1:])
        # without this, rectified features, which are not negative, lie in one narrow cone
        return self._features(pixels) - self._features(grey)

    def _features(self, pixels: Tensor) -> Tensor:
        """Mean and spread of rectified random convolutions in four quarters, for pixels in -1..1: (N, d)."""
        channels = pixels.shape[1]
        filters = self._fixed("filters", channels * KERNEL**2, FILTERS).T.reshape(FILTERS, channels, KERNEL, KERNEL)
        bias = self._fixed("bias", 1, FILTERS)[0]
        maps = F.conv2d(pixels, filters, bias, stride=2).relu()
        mean = F.adaptive_avg_pool2d(maps, 2)
        spread = (F.adaptive_avg_pool2d(maps.square(), 2) - mean.square()).clamp_min(0).sqrt()
        features = torch.cat([mean, spread], dim=1).flatten(1)
        if features.shape[1] != self.size:
            features = features @ self._fixed("projection", features.shape[1], self.size)
        return features

    def texts(self, sentences: Sequence[str]) -> Tensor:
        """Embed sentences by signed counts of hashed words and runs of three letters: (N, d)."""
        rows = torch.zeros(len(sentences), self.size)
        for row, sentence in zip(rows, sentences, strict=True):
            for piece in _pieces(sentence):
                place = int.from_bytes(blake2b(piece.encode(), digest_size=8).digest(), "little")
                row[(place >> 1) % self.size] += 1 if place & 1 else -1
        return rows

    def _fixed(self, purpose: str, rows: int, columns: int) -> Tensor:

        generator = Streams(0).generator("offline encoder", purpose, rows, columns)
        return torch.randn(rows, columns, generator=generator).div_(rows**0.5)


def _pieces(sentence: str) -> list[str]:
    words = re.findall(r"\S+", sentence)
    runs = [sentence[start : start + 3] for start in range(len(sentence) - 2)]
    return [f"word {word}" for word in words] + [f"run {run}" for run in runs]
