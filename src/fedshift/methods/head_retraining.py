"""FRAug's motivating study: is it the encoder or the head that few images spoil?

Chen, Frikha, Krompass and Tresp, ICCV 2023, Sec. 3.2 and Table 1.

Choices: the part is the same of each class, rounded up; the head goes on from where the first stage left it, with the
encoder in evaluation mode. Both stages have all the rounds.

Nothing is sent, so an absent client only misses its own steps of that round.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.references import Single
from fedshift.page import *


class HeadRetraining(Single):
    """Every client trains alone on a part of its data, then its head alone on all of it (FRAug's study).

    The last round of the stage ``part`` is Table 1's "w/o finetune", that of the stage ``head`` is "w. finetune".
    """

    paper: ClassVar[str] = "Chen et al., ICCV 2023, Sec. 3.2 and Table 1"

    part: Fraction = setting(0.1, help="the part of each client's samples that trains the encoder", source="Sec. 3.2")

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The whole model on a part of the samples, then the head on all."""
        head = Phase("head", (self.objective("head", moves=("head",)),))  # the encoder is fixed
        return (
            Stage("part", rounds, (self.exchange("train"),), view=self.view),
            Stage("head", rounds, (self.exchange("train", phases=(head,)),)),
        )

    def view(self, federated: FederatedData, streams: Streams) -> FederatedData:
        """The federation with a random part of every client's training samples."""
        clients = tuple(
            replace(
                client,
                train=part_of(client.train, self.part, streams.permutation(len(client.train), "part", client.id)),
            )
            for client in federated.clients
        )
        return replace(federated, clients=clients)


def part_of(samples: Samples, part: float, order: Tensor) -> Samples:
    """A part, in (0, 1], of the samples of each class, rounded up: those that come first in ``order`` (N,)."""
    order = order.to(samples.y.device)
    member = F.one_hot(samples.y[order])
    place = (member.cumsum(dim=0) * member).sum(dim=1) - 1  # from 0, among those of its class
    allowed = (member.sum(dim=0) * part).ceil()[samples.y[order]]
    kept = order[place < allowed]
    return Samples(samples.x[kept], samples.y[kept])
