"""An encoder that needs no download, and is not CLIP.

It knows nothing of the world: images pass through fixed random convolutions, of which the mean and the spread in
four quarters are kept (colour, texture, contrast); sentences are counted by their words and letters. Samples that
look alike and sentences that share words come out alike, which is all that an index of clients needs; what CLIP adds,
that a picture of a dog lies near the word "dog", is missing. Every number comes from this file's own fixed seed.

Random features: Rahimi and Recht, NIPS 2007. Feature hashing: Weinberger et al., ICML 2009.

Choices: images are resized to 32x32; 64 filters of 5x5 with stride 2 and a fixed random bias over pixels in -1..1,
then ReLU; what an even grey image gives is subtracted. Vectors pass
through a random projection. Words and runs of three letters count once each, hashed with blake2b into ``dim`` signed
bins. Token ids are read as their text.
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
    """Fixed random features of samples and hashed words of sentences: no download, and not CLIP."""

    size: Width = setting(512, help="dimensions of the embeddings")

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return self.size

    def samples(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Random features of images or vectors (N, ...), or hashed words of texts (of a tokenizer: its ids): (N, d)."""
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
        # All images would otherwise lie in one narrow cone, as rectified features are never negative.
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
        """Signed counts of hashed words and runs of three letters: (N, d)."""
        rows = torch.zeros(len(sentences), self.size)
        for row, sentence in zip(rows, sentences, strict=True):
            for piece in _pieces(sentence):
                place = int.from_bytes(blake2b(piece.encode(), digest_size=8).digest(), "little")
                row[(place >> 1) % self.size] += 1 if place & 1 else -1
        return rows

    def _fixed(self, purpose: str, rows: int, columns: int) -> Tensor:
        """A random matrix that never changes, with columns of expected norm 1."""
        generator = Streams(0).generator("offline encoder", purpose, rows, columns)
        return torch.randn(rows, columns, generator=generator).div_(rows**0.5)


def _pieces(sentence: str) -> list[str]:
    words = re.findall(r"\S+", sentence)
    runs = [sentence[start : start + 3] for start in range(len(sentence) - 2)]
    return [f"word {word}" for word in words] + [f"run {run}" for run in runs]
