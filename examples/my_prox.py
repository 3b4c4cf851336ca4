import fedshift
from fedshift import FedAvg
from fedshift.page import *


@fedshift.METHODS.register("my-prox")
class MyProx(FedAvg):
    """FedAvg that stays near the global model (Li et al., MLSys 2020, Eq. 2)."""

    mu: float = setting(0.1, help="weight of the proximal term", search=(0.1, 0.5, 0.9))

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"proximal": Term(self.proximal, self.mu / 2)}

    def proximal(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return (net.weights - context.received).squared_norm()
