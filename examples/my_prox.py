import fedshift
from fedshift import FedAvg
from fedshift.page import *


@fedshift.METHODS.register("my-prox")
class MyProx(FedAvg):
    """FedAvg that stays near the global model (Li et al., MLSys 2020, Eq. 2)."""

    terms = (*FedAvg.terms, "proximal")
    mu: float = setting(0.1, help="weight of the proximal term", search=(0.1, 0.5, 0.9))

    def loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        drift = net.weights - context.received
        return super().loss(net, batch, context) | {"proximal": self.mu / 2 * drift.squared_norm()}
