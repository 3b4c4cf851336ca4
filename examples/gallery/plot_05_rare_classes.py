"""
Rare classes: accuracy against AUROC, and class weights
=======================================================

Three clinics look for a rare disease, and one clinic has no patient with it. A model that calls everyone well has a
high accuracy and no use. You learn to choose metrics for rare classes, and what class weights change.

The script takes about 5 seconds and needs the extra ``sklearn``. The data are generated.
"""

# %%
# Data in memory: a mapping from sites to ``(x, y)``.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import fedshift

draw = np.random.default_rng(0)
sites = {}
for site, prevalence in {"Berlin": 0.08, "Oslo": 0.04, "Rome": 0.0}.items():
    y = (draw.random(1000) < prevalence).astype(int)
    x = draw.normal(size=(1000, 8))
    x[:, 0] += 2 * y
    sites[site] = (x, y)

# %%
# A list where a setting expects one value makes a run for each value.
folder = Path(mkdtemp())
comparison = fedshift.compare(
    method="fedavg",
    data=fedshift.in_memory(sites, classes=["well", "ill"], folder=folder / "data"),
    model={"name": "mlp", "hidden": [16], "dim": 8},
    protocol={"name": "in-domain", "test": 0.3},
    rounds=20,
    out=folder,
    settings={
        "train.lr": 0.1,
        "train.class_weights": ["none", "balanced"],
        "evaluate.metrics": ["auroc", "balanced-accuracy", "class-sensitivity"],
        "evaluate.select": "balanced-accuracy",
        "evaluate.every": 5,
    },
)

# %%
# AUROC is high without weights: the model ranks patients well, but its threshold is wrong. Class weights move the
# threshold, at the price of false alarms. Rome has no patient with the disease; its AUROC is undefined and does not
# enter the mean.
metrics = ["accuracy", "balanced-accuracy", "auroc", "sensitivity of ill", "sensitivity of well"]
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
for number, row in enumerate(comparison.rows()):
    scores = [100 * comparison.score(row.label, metric) for metric in metrics]
    bars = axis.bar(np.arange(len(metrics)) + 0.4 * number, scores, width=0.38, label=row.label)
    axis.bar_label(bars, fmt="%.0f")
axis.set_xticks(np.arange(len(metrics)) + 0.2, [name.replace(" of ", "\nof ") for name in metrics])
axis.set(ylabel="%", ylim=(0, 120))
axis.legend(ncols=2)
plt.show()
