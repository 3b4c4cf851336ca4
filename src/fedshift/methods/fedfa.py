"""FedFA: features of a client are augmented by statistics as other clients might have them.

Zhou and Konukoglu, FedFA: federated feature augmentation, ICLR 2023. Behind a stage of the encoder a feature map (C
channels) has the mean mu and the deviation sigma of each channel, by sample. Both are redrawn with probability p:

    mu^ ~ N(mu, (1 + gamma) S),   gamma_c = C g_c / sum_c' g_c',   g_c = 1 / (1 + 1/S'_c),

where S_c is the variance of mu_c over the client's batch and S'_c that over the clients, and sigma^ likewise; the map
is then mu^ + sigma^ (map - mu) / sigma. Clients follow mu and sigma of their batches with a momentum and upload them;
the server sends S' back. So channels that differ between clients are moved more. Prediction moves nothing.

Choices:

- *Where*: behind the stages of a backbone, and behind the activations and blocks of a network that is a sequence of
  layers (cnn, digits-cnn, resnet10, cnn1d): behind each where a channel has more than one place. The paper's layers
  are behind five blocks of AlexNet, behind the pools. A network without feature maps is refused.
- Whether a stage is augmented is drawn for each batch and stage, as in the public code. Only then do mu and sigma of
  the client move, as there; they start at 0 and 1, and the variances S' at 1.
- Variances are over n and not n - 1, so that they are 0 where there is one sample, or one client that answers. S' is of
  each channel, as in the paper; ports of the public code have one number for all channels, which leaves gamma = 1.
- 1e-6 is added to variances, as in the public code.
- A client's mu and sigma go on from round to round; S' is over those who answered. An absent client's stand still.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.models.staged import in_stages, widths_of_stages
from fedshift.page import *

EPS = 1e-6


class FedFA(FedAvg):
    """FedAvg on features whose statistics are redrawn; with a probability of 0 it is FedAvg."""

    paper: ClassVar[str] = "Zhou and Konukoglu, ICLR 2023"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload.like("batches", "statistics", "statistic", reveals="statistics"),)

    probability: Probability = setting(
        0.5, help="how likely a stage is augmented", source="public code", search=(0.25, 0.5, 1.0)
    )
    momentum: Momentum = setting(0.99, help="of the statistics of a client's batches", source="public code")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the client's mu and sigma, and their variances S' over the clients."""
        shared = {name: torch.ones(width) for name, width in self.names(model).items()}
        own = {name: one * name.startswith("sigma") for name, one in shared.items()}
        statistics = {"statistics": Part.state(own, "client"), "spread": Part.state(shared, "down")}
        return {**super().parts(model), "encoder": Part(in_stages(model.encoder())), **statistics}

    def names(self, model: ModelBuilder) -> dict[str, int]:
        """The statistics of each stage, and how many channels they are of."""
        return {f"{name}{n}": width for name in ("mu", "sigma") for n, width in enumerate(widths_of_stages(model))}

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """A number in 0..1 for each stage, and standard normal noise for each mu and sigma."""
        names = self.names(model)
        noise = {name: Draw((batch, width)) for name, width in names.items()}
        return {"coins": Draw((len(names) // 2,), "uniform"), **noise}

    def encode(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with z, augmented where there is noise."""
        return batch._replace(z=net.encoder(batch.x, partial(self.augmented, net, noise) if "coins" in noise else None))

    def augmented(self, net: Net, noise: Mapping[str, Tensor], stage: int, x: Tensor) -> Tensor:
        """The features x (B, C, ...) with redrawn statistics, or as they are; the client's mu and sigma move."""
        flat, now = x.flatten(2), noise["coins"][stage] < self.probability
        mu, sigma = flat.mean(dim=2), (flat.var(dim=2, correction=0) + EPS).sqrt()
        drawn = {f"mu{stage}": mu, f"sigma{stage}": sigma}
        for name, value in drawn.items():
            own, share = net.of("statistics")[name], 1 / (1 + 1 / (net.of("spread")[name] + EPS))
            moved = self.momentum * own + (1 - self.momentum) * value.detach().mean(dim=0)
            own.copy_(torch.where(now, moved, own))
            variance = (1 + len(share) * share / share.sum()) * (value.var(dim=0, correction=0) + EPS)
            drawn[name] = value + noise[name] * variance.sqrt()
        mu_, sigma_ = (value.unsqueeze(2) for value in drawn.values())
        return torch.where(now, (mu_ + sigma_ * (flat - mu.unsqueeze(2)) / sigma.unsqueeze(2)).view_as(x), x)

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """Mu and sigma of the client's batches."""
        return work.private.of("statistics").under("batches")

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """Their variances over the clients."""
        every = [Tensors(up).of("batches") for up in replies.ups]
        return {
            f"spread.{name}": torch.stack([own[name] for own in every]).var(dim=0, correction=0) for name in every[0]
        }
