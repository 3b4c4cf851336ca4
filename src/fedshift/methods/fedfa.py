r"""FedFA: augment features by channel statistics as other clients might have them.

Zhou and Konukoglu, FedFA: federated feature augmentation, ICLR 2023.

Behind a stage of the encoder a feature map X with C channels has, for each sample, channel means :math:`\mu` and
deviations :math:`\sigma`. With probability p both are redrawn, :math:`\mu` as follows and :math:`\sigma` likewise:

.. math::

    \hat\mu &\sim N(\mu, (1 + \gamma) S), \quad
    \gamma_c = \frac{C g_c}{\sum_{c'} g_{c'}}, \quad g_c = \frac{1}{1 + 1/S'_c} \\
    \hat X &= \hat\mu + \hat\sigma \frac{X - \mu}{\sigma}

:math:`S_c` is the variance of :math:`\mu_c` over the client's batch and :math:`S'_c` the variance over clients:
clients upload moving averages of their batches' statistics, and the server broadcasts :math:`S'`. So channels that
differ more between clients are varied more. Prediction uses the features as they are.

**When to choose it.** For feature shift of images (or signals) with a network that has feature maps. No gain over
FedAvg was measured (+0.4 points on a held-out angle of RotatedMNIST, +3.6 on Digits, not clear). It cannot run
on features.

**Unavailable clients.** An absent client is in neither the mean nor the variances, and its statistics do not change; a
late client has updated them.

**Choices.**

- Augmentation follows the stages of a backbone, and the activations and blocks of a sequential network (cnn,
  digits-cnn, resnet10, cnn1d) wherever a channel has more than one position. The paper augments after five blocks of
  AlexNet. A network without feature maps is refused.
- Augmentation is drawn for each batch and stage, and only then are the client's statistics updated (public code). They
  start at 0 and 1, and the variances :math:`S'` at 1.
- Variances are divided by n, so they are 0 for a single sample or client, and 1e-6 is added (public code). :math:`S'`
  is per channel, as in the paper; the public code has one number for all channels, where gamma is 1.
- The moving mu and sigma stay on the client; the public code averages and broadcasts them.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.models.staged import in_stages, widths_of_stages
from fedshift.page import *

EPS = 1e-6


class FedFA(FedAvg):
    """FedAvg with redrawn feature statistics; probability = 0 is FedAvg."""

    paper: ClassVar[str] = "Zhou and Konukoglu, ICLR 2023"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload.like("batches", "statistics", "statistic", reveals="statistics"),)

    probability: Probability = setting(
        0.5, help="probability that a stage is augmented", source="public code", search=(0.25, 0.5, 1.0)
    )
    momentum: Momentum = setting(0.99, help="momentum of the moving statistics", source="public code")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the client's mu and sigma, and the variances S' over clients."""
        spread = {name: torch.ones(width) for name, width in self.statistic_sizes(model).items()}
        statistics = {name: ones * name.startswith("sigma") for name, ones in spread.items()}
        added = {"statistics": Part.state(statistics, "client"), "spread": Part.state(spread, "down")}
        return {**super().parts(model), "encoder": Part(in_stages(model.encoder())), **added}

    def statistic_sizes(self, model: ModelBuilder) -> dict[str, int]:
        """The channels of the statistics mu and sigma of each stage, by name."""
        return {f"{name}{n}": width for name in ("mu", "sigma") for n, width in enumerate(widths_of_stages(model))}

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """A uniform number for each stage, and normal noise (B, C) for each mu and sigma."""
        sizes = self.statistic_sizes(model)
        return {"coins": Draw((len(sizes) // 2,), "uniform"), **{name: Draw((batch, n)) for name, n in sizes.items()}}

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with z (B, d), augmented in training."""
        return batch._replace(z=net.encoder(batch.x, partial(self.augment, net, noise) if "coins" in noise else None))

    def augment(self, net: Net, noise: Mapping[str, Tensor], stage: int, x: Tensor) -> Tensor:
        """Redraw the statistics of features x (B, C, ...) with probability p, and update the client's mu and sigma."""
        flat, now = x.flatten(2), noise["coins"][stage] < self.probability
        mu, sigma = flat.mean(dim=2), (flat.var(dim=2, correction=0) + EPS).sqrt()
        drawn = {f"mu{stage}": mu, f"sigma{stage}": sigma}
        for name, value in drawn.items():
            average, share = net.of("statistics")[name], 1 / (1 + 1 / (net.of("spread")[name] + EPS))
            moved = self.momentum * average + (1 - self.momentum) * value.detach().mean(dim=0)
            average.copy_(torch.where(now, moved, average))
            variance = (1 + len(share) * share / share.sum()) * (value.var(dim=0, correction=0) + EPS)
            drawn[name] = value + noise[name] * variance.sqrt()
        mu_, sigma_ = (value.unsqueeze(2) for value in drawn.values())
        return torch.where(now, (mu_ + sigma_ * (flat - mu.unsqueeze(2)) / sigma.unsqueeze(2)).view_as(x), x)

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """The client's moving mu and sigma, (C,) each."""
        return work.private.of("statistics").under("batches")

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The variances S' over the clients, (C,) each."""
        uploaded = [Tensors(up).of("batches") for up in replies.ups]
        return {
            f"spread.{name}": torch.stack([statistics[name] for statistics in uploaded]).var(dim=0, correction=0)
            for name in uploaded[0]
        }
