"""Samples as pictures, which several analyses draw."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedshift.errors import FedshiftError
from fedshift.runs.run import Run

CHANNELS = (1, 2, 3)  # gray; red and green, as of Colored MNIST; red, green and blue


def check_images(run: Run) -> None:
    """Raise an error unless the run's samples are images that can be drawn."""
    shape = run.data_facts["shape"]
    if len(shape) != 3 or shape[0] not in CHANNELS:  # channels, height, width
        raise FedshiftError(f"'{run.path}': samples of shape {tuple(shape)} are no images, so none can be drawn.")


def as_png(sample: Tensor) -> str:
    """An image (C, H, W), uint8, or numbers that are stretched to 0..1, as a PNG file in base64."""
    x = sample.cpu()
    if len(x) == 2:  # no blue
        x = torch.cat([x, torch.zeros_like(x[:1])])
    if x.dtype != torch.uint8:
        low, high = float(x.min()), float(x.max())
        x = ((x - low) / max(high - low, 1e-12) * 255).to(torch.uint8)
    pixels = x.permute(1, 2, 0).numpy()
    buffer = BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG", optimize=True)
    return b64encode(buffer.getvalue()).decode()


def pixels_of(png: str) -> NDArray[np.uint8]:
    """A PNG file in base64 as colours (H, W, 3)."""
    return np.asarray(Image.open(BytesIO(b64decode(png))).convert("RGB"))


def draw_grid(axes: NDArray[np.object_], pictures: Sequence[Sequence[NDArray[np.uint8] | None]]) -> None:
    """Draw rows of pictures into axes (rows, columns); where there is none, nothing is drawn."""
    for row, its in zip(axes, pictures, strict=True):
        for axis, pixels in zip(row, its, strict=True):
            clear(axis)
            if pixels is not None:
                axis.imshow(pixels, interpolation="nearest")


def clear(axis: Axes) -> None:
    """Leave a picture alone in its axis: no ticks, no frame."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
