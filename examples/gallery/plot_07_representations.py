"""
Inspect representations: do domains still differ?
=================================================

Methods for feature shift try to make representations of different domains similar. The proxy A-distance measures how
well a linear classifier separates two domains by their representations (0: not at all, 2: perfectly). You learn to
analyse finished runs without training again.

The script takes about 8 seconds and needs the extra ``analyse``. A small distance alone is not a success: a model that
maps every image to the same point has the distance 0. Always read it beside the accuracy.
"""

# %%
# FedCiR aligns representations with a generator, FedSR limits what they contain about the input.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift

experiment = {
    "name": "representations",
    "data": {"name": "rotated-mnist", "angles": [0, 30, 60, 90], "images_per_class": 40},
    "protocol": {"name": "in-domain"},
    "model": {"name": "mlp", "hidden": [64], "dim": 16},
    "train": {"rounds": 20, "steps": 10, "lr": 0.1},
}
comparison = fedshift.compare(
    experiment,
    method=[fedshift.FedAvg(), fedshift.FedSR(l2r=0.01, cmi=0.001), fedshift.FedCiR()],
    out=Path(mkdtemp()),
)

# %%
# The analysis scores test images with the final models.
distances = comparison.analyse("a-distance")
print(distances)

# %%
# Each mark is a pair of angles. The accuracies below the names differ by less than a single run can show.
figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
labels = [row.label for row in comparison.rows()]
for number, label in enumerate(labels):
    pairs = [each for each in distances.measurements() if each["method"] == label and each["other"] != "the others"]
    axis.plot([number] * len(pairs), [each["distance"] for each in pairs], "o", alpha=0.7)
axis.set_xticks(range(len(labels)), [f"{label}\n{100 * comparison.accuracy(label):.1f} %" for label in labels])
axis.set(xlim=(-0.5, len(labels) - 0.5), ylim=(-0.05, 2.05), ylabel="A-distance of two angles")
plt.show()
