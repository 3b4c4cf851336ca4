"""kNN-Per: the global model, corrected on each client by the nearest of the samples that the client remembers.

Marfoq, Neglia, Kameni and Vidal, Personalized federated learning through local memorization, ICML 2022. After FedAvg
each client keeps z_i and y_i of its training samples, and predicts, with the k of them that are nearest to z,

    lam p_kNN(y) + (1 - lam) p_w(y),    p_kNN(y) ~ sum_{i: y_i = y} exp(-||z - z_i||^2 / (d sigma)).

Choices:

- ``lam`` is the same on all clients (the paper: each client's own, by its validation data, which clients of ours do not
  see). With 0 it is FedAvg.
- The kernel is the public code's: squared distances over the dimension d times ``sigma`` (the paper: the distance over
  sigma).
- ``capacity``: a client remembers that many samples at most, drawn at random, without augmentation (the paper: all, and
  parts of them). A client with fewer remembers all.
- The memory is made in a last stage, ``memory``, in which everyone takes one batch of all it remembers and nothing is
  sent back. Until then, and where a client has missed it, the global model predicts, as it does for an unseen client.
- An absent client is not in the mean, as in FedAvg.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import one_hot
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class KNNPer(FedAvg):
    """FedAvg, and a memory of each client's own samples as the final model sees them."""

    paper: ClassVar[str] = "Marfoq et al., ICML 2022"

    lam: Probability = setting(0.5, help="weight of the memory's prediction", source="Eq. 5", search=(0.25, 0.5, 0.75))
    neighbours: Count = setting(10, help="k: how many of the nearest count", source="Sec. 4", search=(5, 10, 20))
    sigma: Positive = setting(1.0, help="scale of the distances", source="Sec. 4")
    capacity: BatchSize = setting(1000, help="samples that a client remembers at most")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's, and the place of the memory: z of each sample, and its class as one-hot code, zeros if none."""
        memory = {"z": torch.zeros(self.capacity, model.dim), "y": torch.zeros(self.capacity, model.classes)}
        return {**super().parts(model), "memory": Part.state(memory, "client", unseen="initial")}

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """FedAvg's, then one round in which everyone remembers."""
        measure = Measure("memory", self.remembered, steps=1, batch=self.capacity)
        remember = self.exchange("memory", phases=(measure,), keep=self.remember, returns=(), merge=leave)
        return (*super().stages(rounds), Stage("memory", 1, (remember,), participation=1.0))

    def remembered(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """A batch's z and y, with zeros for what the memory has room for beyond."""
        rows = {"z": self.encode(net, batch, {}).z, "y": one_hot(batch.y, len(context.counts), net.of("memory")["y"])}
        return {name: F.pad(tensor, (0, 0, 0, self.capacity - len(batch.y))) for name, tensor in rows.items()}

    def remember(self, work: LocalWork) -> Tensors:
        """What was measured, in the memory's place."""
        return work.measured.only(("z", "y")).under("memory")

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """The logarithm of lam p_kNN + (1 - lam) p_w; of p_w without a memory."""
        z, memory = self.encode(net, Batch(x), {}).z, net.of("memory")
        squares = z.square().sum(dim=1, keepdim=True) + memory["z"].square().sum(dim=1) - 2 * z @ memory["z"].T
        kernel = -squares / (z.shape[1] * self.sigma)
        kernel = kernel.masked_fill(memory["y"].sum(dim=1) == 0, torch.finfo(kernel.dtype).min)
        near, which = kernel.topk(min(self.neighbours, self.capacity), dim=1)
        p = (near.softmax(dim=1).unsqueeze(2) * memory["y"][which]).sum(dim=1)
        lam = self.lam * memory["y"].amax()
        return (lam * p + (1 - lam) * net.head(z).softmax(dim=1)).clamp(min=torch.finfo(p.dtype).tiny).log()
