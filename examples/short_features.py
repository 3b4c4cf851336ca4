import fedshift
from fedshift import FedAvg
from fedshift.page import *


@fedshift.METHODS.register("short-features")
class ShortFeatures(FedAvg):
    """FedAvg with a penalty on the squared length of the representation."""

    weight: float = setting(0.01, help="weight of the penalty", search=(0.001, 0.01, 0.1))

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"length": Term(self.length, self.weight)}

    def length(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return batch.z.square().sum(1).mean()
