"""FedAvgM: momentum on the server.

Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual
classification, 2019. The update is the server optimiser ``momentum``, which other methods take as
``method.server = "momentum"``; its page has the equations and choices.

The mean that the velocity follows is over the clients that answered.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from fedshift.core.servers import SERVERS
from fedshift.core.servers.server import ServerOptimiser
from fedshift.methods.fedopt import FedOpt
from fedshift.page import *


class FedAvgM(FedOpt):
    """FedAvg whose server goes on in the direction of past rounds; beta = 0 is FedAvg."""

    paper: ClassVar[str] = "Hsu, Qi and Brown, arXiv:1909.06335, 2019"

    server: Annotated[ServerOptimiser, From(SERVERS)] = setting("momentum", help="the server's momentum")
