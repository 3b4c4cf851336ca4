import fedshift
from fedshift import FedAvg
from fedshift.page import *


@fedshift.METHODS.register("mean-alignment")
class MeanAlignment(FedAvg):
    """FedAvg that pulls each batch's mean representation to the mean over all clients' samples."""

    uploads = (Upload.like("mean", "center", "statistic"),)
    weight: float = setting(0.1, help="weight of the squared distance", search=(0.01, 0.1, 1.0))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        return super().parts(model) | {"center": Part.state(torch.zeros(model.dim), "down")}

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"distance": Term(self.distance, self.weight, since=2)}

    def distance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return (batch.z.mean(dim=0) - net.value("center")).square().sum()

    def phases(self) -> Phases:
        return (*super().phases(), Measure("statistic", self.sums))

    def sums(self, net: Net, batch: Batch, context: Context) -> dict[str, Tensor]:
        return {"z": self.encode(net, batch, {}).z.sum(dim=0)}

    def upload(self, work: LocalWork) -> Tensors:
        return Tensors({"mean.value": work.means["z"]})

    def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
        return Tensors({"center.value": replies.mean()["mean.value"]})
