"""
Write a method in ten lines
===========================

A method names its parts, its loss terms and what it sends; the library trains, aggregates, resumes and reports. You
learn how to write FedProx as a subclass of FedAvg, how to run it by its name, and how to check what it sends.

The script takes about 7 seconds.
"""

# %%
# A term is a weight times a pure function of the network, the batch and the context. ``net.weights`` are the current
# weights, ``context.received`` the weights that the client received.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift
from fedshift.page import *


@fedshift.METHODS.register("my-prox")
class MyProx(fedshift.FedAvg):
    """FedAvg that stays near the global model (Li et al., MLSys 2020, Eq. 2)."""

    mu: float = setting(0.1, help="weight of the proximal term", search=(0.1, 0.5, 0.9))

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"proximal": Term(self.proximal, self.mu / 2)}

    def proximal(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return (net.weights - context.received).squared_norm()


# %%
# It runs beside the built-in methods. With the same ``mu`` it must equal the built-in FedProx. An experiment is a table
# of the settings that differ from the defaults.
experiment = {
    "name": "my-method",
    "data": {"name": "rotated-mnist", "angles": [0, 45, 90], "images_per_class": 30},
    "protocol": {"name": "in-domain"},
    "model": {"name": "mlp", "hidden": [32], "dim": 16},
    "train": {"rounds": 15, "steps": 20, "lr": 0.1},
}
comparison = fedshift.compare(
    experiment,
    method=[fedshift.FedAvg(), MyProx(mu=0.1), MyProx(mu=1.0), fedshift.FedProx(mu=1.0)],
    out=Path(mkdtemp()),
)
for row in comparison.rows():
    run = row.runs[0]
    sent = sorted({name for kinds in run.messages.values() for name in kinds["up"]["tensors"]})
    print(f"{row.label:18} test {100 * comparison.accuracy(row.label):.1f} %, uploads {', '.join(sent)}")

# %%
# The means of the loss terms are telemetry: every run records them. The share of the proximal term depends on
# ``mu`` and on how far the clients move from the global model. A single run of this size does not show which ``mu`` is
# best; tune it.
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for row in comparison.rows():
    if "mu" in row.label:
        shares = row.runs[0].shares
        axis.plot(list(shares), [100 * share.get("proximal", 0.0) for share in shares.values()], label=row.label)
axis.set(xlabel="round", ylabel="share of the proximal term in the loss (%)")
axis.legend()
plt.show()
