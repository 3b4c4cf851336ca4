"""The probabilistic encoder p(z|x) = N(mu(x), sigma(x)^2) of FedSR and FedCiR: its samples and its prediction.

Nguyen, Lim and Torr (FedSR, NeurIPS 2022, Eq. 5) introduce the mechanism. Training draws one sample of z for each
input; prediction averages the softmax over ``test_samples`` samples, 20 as in FedSR's public code.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


def gaussian_kl(mean: Tensor, sigma: Tensor, to_mean: Tensor, to_sigma: Tensor) -> Tensor:
    """KL(N(mean, sigma^2) || N(to_mean, to_sigma^2)) of diagonal Gaussians (B, d), a scalar.

    Summed over dimensions, mean over the batch (FedSR Eq. 46, FedCiR Eq. 17).
    """
    kl = to_sigma.log() - sigma.log() + (sigma.square() + (mean - to_mean).square()) / (2 * to_sigma.square()) - 0.5
    return kl.sum(dim=1).mean()


class Probabilistic(FedAvg):
    """FedAvg whose encoder gives a distribution of z; methods add regularisers."""

    paper: ClassVar[str] = "Nguyen, Lim and Torr, NeurIPS 2022, Eq. 5"

    test_samples: Annotated[WholeNumber, Le(10_000)] = setting(
        20, help="samples of z over which prediction averages the softmax; 0 predicts with z = mu", source="FedSR Eq. 5"
    )

    @property
    def probabilistic(self) -> bool:
        """Whether the encoder gives a distribution of z; if not, the method is as FedAvg."""
        return True

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """A Gaussian encoder x -> (mu, sigma) and a linear head, both shared."""
        if not self.probabilistic:
            return super().parts(model)
        return {"encoder": Part(model.gaussian_encoder()), "head": Part(model.head())}

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """Standard normal eps (B, d)."""
        return {"eps": Draw((batch, model.dim))} if self.probabilistic else {}

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with a sample z = mu + sigma eps, its mean and its standard deviation, (B, d) each."""
        if not self.probabilistic:
            return super().encode(net, batch, noise)
        mu, sigma = net.encoder(batch.x)
        return batch._replace(z=mu + sigma * noise["eps"] if "eps" in noise else mu, mean=mu, sigma=sigma)

    def prediction_draws(self, model: ModelBuilder, batch: int) -> Draws:
        """Standard normal eps (``test_samples``, B, d)."""
        if not (self.probabilistic and self.test_samples):
            return {}
        return {"eps": Draw((self.test_samples, batch, model.dim))}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log of the mean softmax over samples of z (FedSR Eq. 5), (B, classes)."""
        if not self.probabilistic:
            return super().predict(net, x, noise)
        z = self.encode(net, Batch(x), noise).z
        samples = z if self.test_samples else z.unsqueeze(0)  # (S, B, d)
        return net.head(samples).log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(samples))
