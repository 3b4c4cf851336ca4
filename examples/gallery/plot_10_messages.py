"""
What leaves a client
====================

Every run folder has ``messages.json``, a list of every tensor that crosses the wire, by exchange and direction. You
learn to compare methods by what their clients upload, as an auditor or a network engineer does.

The script takes about 6 seconds. Four rounds are enough, since later rounds send the same tensors. The list shows what
leaves a client; it does not show what an attacker can infer from it.
"""

# %%
# ``run.audit`` also compares the content of every upload with the client's samples and private tensors.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift

experiment = {
    "name": "messages",
    "data": {"name": "rotated-mnist", "angles": [0, 45, 90], "images_per_class": 10},
    "protocol": {"name": "in-domain"},
    "model": {"name": "mlp", "hidden": [64], "dim": 32},
    "train": {"rounds": 4},
}
comparison = fedshift.compare(
    experiment,
    method=["fedavg", "lg-fedavg", "scaffold", "fedproto", "drfa"],
    out=Path(mkdtemp()),
    settings={"run.audit": True},
)

# %%
# LG-FedAvg uploads the head alone, FedProto sums and counts by class, SCAFFOLD twice what FedAvg uploads. DRFA has
# further exchanges in which clients report counts and losses: few bytes, but statistics of the local data.
sizes = {}
for row in comparison.rows():
    for exchange, directions in row.runs[0].messages.items():
        sent = directions["up"]
        sizes[f"{row.label}: {exchange}"] = sent["bytes"] / 1000
        print(f"{row.label}, {exchange}: {', '.join(sent['tensors'])}")
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
bars = axis.barh(list(sizes), list(sizes.values()))
axis.bar_label(bars, fmt="{:,.1f}", padding=3)
axis.set(xlabel="uploads of three clients in four rounds (kB)", xscale="log")
axis.margins(x=0.15)
axis.invert_yaxis()
plt.show()
