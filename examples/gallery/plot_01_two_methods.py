"""
Compare two methods on a held-out domain
========================================

FedAvg and FedSR train on MNIST digits that are rotated by 30 and 60 degrees, one client per angle. The upright digits
are the held-out domain: no client trains on them. You learn how to run a comparison, how to read its table, and how
to draw a learning curve from the records.

The script takes about 6 seconds. A run this short shows how to compare; it does not rank the methods.
"""

# %%
# ``compare`` runs the experiment once per method. A small network and few images keep it short.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift

comparison = fedshift.compare(
    "rotated-mnist",
    method=[fedshift.FedAvg(), fedshift.FedSR(l2r=0.01, cmi=0.001)],
    hold_out="0",
    rounds=40,
    model={"name": "cnn", "channels": [8, 16], "dim": 32},
    out=Path(mkdtemp()),
    settings={
        "data.angles": [0, 30, 60],
        "data.images_per_class": 40,
        "train.batch": 32,
        "train.lr": 0.03,
        "evaluate.every": 4,
    },
)
print(comparison)

# %%
# The headline is the last round. The round with the best target accuracy is an oracle: to choose it, you need the
# labels of the target, so the table marks it.
#
# Each run records every evaluation. The gap between the solid and the dotted line is the cost of the new angle.
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for number, row in enumerate(comparison.rows()):
    for role, style in (("test", "-"), ("validation", ":")):
        positions, accuracies = [], []
        for record in row.runs[0].records:
            scores = [scored["accuracy"] for scored in record["environments"] if scored["role"] == role]
            positions.append(record["position"])
            accuracies.append(100 * sum(scores) / len(scores))
        domain = "held-out 0°" if role == "test" else "mean of 30° and 60°"
        axis.plot(positions, accuracies, style, color=f"C{number}", label=f"{row.label}, {domain}")
axis.set(xlabel="round", ylabel="accuracy (%)", ylim=(0, 100))
axis.legend(loc="upper left")
plt.show()
