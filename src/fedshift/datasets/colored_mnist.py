"""Colored MNIST and Colored Fashion-MNIST: the colour of an image is a shortcut to its label.

Arjovsky et al., 2019; Ahuja et al., 2020; federated as in FedPIN (Tang et al., ICML 2024, Sec. 5.1 and E.1). Classes
0-4 make label 0, classes 5-9 label 1. An image of label 0 is green with probability p, else red; one of label 1 is red
with probability p, else green. Clients hold four classes each: 0, 1, 5, 6, then 1, 2, 6, 7, and so on; the fifth client
holds those of the first again.

Choices:
- Channel 0 is red, channel 1 green; there is no blue. The oracle's images fill both, so colour says nothing.
- Labels are flipped before colouring, once an original, in training and tests alike, and accuracy is against the
  flipped label. FedPIN does not mention this, but with clean labels p = 0 could not be as hard as it reports.
- Images stay at 28 x 28, or are averaged over squares (``size``; Arjovsky et al. keep every second pixel, 14 x 14);
  training and test files are used together.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.clients.domains import DomainData
from fedshift.datasets.images import check_fits
from fedshift.datasets.mnist import FASHION, MNIST, MNIST_HELP, MNIST_WORDS, check_mnist_here, read_mnist
from fedshift.datasets.shortcuts import ShortcutDataset
from fedshift.spec import Probability, setting
from fedshift.streams import Streams

WINDOWS = ((0, 1, 5, 6), (1, 2, 6, 7), (2, 3, 7, 8), (3, 4, 8, 9))  # FedPIN, E.1
RED, GREEN = 0, 1


def averaged(images: Tensor, size: int) -> Tensor:
    """Square images (N, H, H), uint8, as means over squares: (N, size, size), uint8, rounded."""
    if size == images.shape[1]:
        return images
    return F.avg_pool2d(images.float(), images.shape[1] // size).round().to(torch.uint8)


class ColoredMNIST(ShortcutDataset):
    """Digits below 5 against the others, in two colours."""

    hub_id: ClassVar[str] = MNIST

    path: str = setting("shipped", help=MNIST_HELP, path=True, words=MNIST_WORDS)
    label_noise: Probability = setting(
        0.25, help="probability that a label is flipped before colouring", source="Arjovsky et al., Sec. 5.1"
    )

    size: Literal[28, 14, 7] = setting(28, help="height and width in pixels, each the mean of a square of the original")

    def check_here(self) -> None:
        """Whether there are the images."""
        check_mnist_here(self.path, self.hub_id)

    def load(self, streams: Streams) -> DomainData:
        """Deal the images to the clients and colour them, for each environment anew.

        ``x`` is uint8 (N, 2, size, size); all copies of an original share a group.
        """
        images, digits = read_mnist(self.path, self.hub_id, "all")
        kind = torch.from_numpy(digits)
        plan = self.plan(kind, WINDOWS, streams)
        flipped = torch.rand(len(kind), generator=streams.generator("label noise")) < self.label_noise
        y = ((kind >= 5) ^ flipped).long()[plan.original]
        check_fits(len(y), self.size, 3, "Give fewer data.test_p or data.originals.")  # gray, red and green
        gray = averaged(torch.from_numpy(images), self.size)[plan.original]
        x = gray.new_zeros(len(gray), 2, *gray.shape[1:])
        green = plan.agrees == (y == 0)
        for channel, filled in ((RED, ~green), (GREEN, green)):
            x[:, channel] = gray * (filled | self.oracle).view(-1, 1, 1)
        return DomainData(
            x=x,
            y=y,
            domain=plan.client,
            domains=self.domain_names(),
            classes=("0-4", "5-9"),
            group=plan.original,
            environment=plan.environment,
            environments=self.environment_names(),
            train_environment=plan.trained_with,
            train_environments=plan.train_environments,
        )


class ColoredFashionMNIST(ColoredMNIST):
    """Garments of classes 0 to 4 (tops, trousers, dresses, coats) against 5 to 9, in two colours."""

    hub_id: ClassVar[str] = FASHION

    path: str = setting(
        "debian",
        help="'debian' (apt install dataset-fashion-mnist), a folder with the set's idx or idx.gz files, or 'hub'",
        path=True,
        words=("debian", "hub"),
    )
