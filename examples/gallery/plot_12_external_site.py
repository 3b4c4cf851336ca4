"""
Validate a model at a hospital that never joined
================================================

Two hospitals train a model. Before a third hospital uses it, it scores the model on local patients: discrimination,
calibration, and thresholds that were chosen elsewhere. You learn to run ``validate`` and to read a reliability diagram.

The script takes about 5 seconds and needs the extras ``pandas`` and ``sklearn``. The patients are generated: at the
third hospital the disease is rarer, so the predicted probabilities are too high there.
"""

# %%
# Two files to train on, and a file of the external site.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedshift

folder = Path(mkdtemp())
(folder / "joined").mkdir()
draw = np.random.default_rng(0)
for file, patients, base in [("joined/north.csv", 600, 0.0), ("joined/east.csv", 400, 0.3), ("south.csv", 600, -1.5)]:
    table = pd.DataFrame(draw.normal(size=(patients, 6)), columns=[*"abcdef"])
    logit = base + table[[*"abc"]].sum(axis=1)
    table["outcome"] = np.where(draw.random(patients) < 1 / (1 + np.exp(-logit)), "yes", "no")
    table.to_csv(folder / file, index=False)

# %%
run = fedshift.run(
    method="fedavg",
    data={"name": "table", "path": str(folder / "joined"), "label": "outcome", "statistics": "pooled"},
    model={"name": "mlp", "hidden": [16], "dim": 8},
    rounds=15,
    out=folder / "runs",
    settings={"train.lr": 0.1},
)

# %%
# Validation patients of the first two hospitals choose the thresholds; ``south`` only scores them. The report contains
# aggregates only, so ``south`` can send it to the others.
report = fedshift.validate(run.path, folder / "south.csv")
print(report)

# %%
# Below the diagonal, predicted probabilities are too high. The AUROC can be good at the same time: it depends on the
# order of patients alone.
plt.figure(report.charts()[0].figure)  # pyplot shows it (matplotlib 3.11)
plt.show()
