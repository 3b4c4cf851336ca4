"""FedAvgM, FedAdagrad, FedAdam and FedYogi: FedAvg with an optimiser on the server.

FedAvgM: Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual
classification, 2019. The others: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, Adaptive
federated optimization, ICLR 2021, Algorithm 2. What clients do is FedAvg's; the step is a server optimiser
(``momentum``, ``adagrad``, ``adam``, ``yogi``), which any method whose merge is a mean takes as
``method.server = "adam"``, say: ``--method fedsr --set method.server=adam`` is FedAdam on FedSR. The server
optimiser's page has the equations and choices.

Choices: a client's own optimiser is that of ``[train]`` (the paper: SGD without momentum). Clients weigh the same, as
in Algorithm 2; the paper's experiments weigh them by samples.

The step follows the mean over the clients that answered; where nobody did, velocities and moments stand still.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from fedshift.core.servers import SERVERS
from fedshift.core.servers.server import ServerOptimiser
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class FedOpt(FedAvg):
    """FedAvg that goes by the name of its server optimiser, and takes no other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own, given = self.settings()["server"].default, SERVERS.name_of(self.server)
        if given != own:
            raise FedshiftError(
                f"method.server = '{given}': {self.label} is FedAvg with '{own}'. For another server optimiser set "
                f"method.name = 'fedavg' and method.server = '{given}'."
            )


class FedAvgM(FedOpt):
    """FedAvg whose server goes on in the direction of past rounds; beta = 0 is FedAvg."""

    paper: ClassVar[str] = "Hsu, Qi and Brown, arXiv:1909.06335, 2019"

    server: Annotated[ServerOptimiser, From(SERVERS)] = setting("momentum", help="the server's momentum")


class FedAdagrad(FedOpt):
    """FedAvg whose server steps by Adagrad: by less and less, the more a parameter has moved."""

    paper: ClassVar[str] = "Reddi et al., ICLR 2021, Algorithm 2"

    server: Annotated[ServerOptimiser, From(SERVERS)] = setting("adagrad", help="the server's Adagrad")


class FedAdam(FedOpt):
    """FedAvg whose server steps by Adam: by the mean step over the root of the mean square."""

    paper: ClassVar[str] = "Reddi et al., ICLR 2021, Algorithm 2"

    server: Annotated[ServerOptimiser, From(SERVERS)] = setting("adam", help="the server's Adam")


class FedYogi(FedOpt):
    """FedAvg whose server steps by Yogi: as Adam, with a mean square that changes slowly."""

    paper: ClassVar[str] = "Reddi et al., ICLR 2021, Algorithm 2"

    server: Annotated[ServerOptimiser, From(SERVERS)] = setting("yogi", help="the server's Yogi")
