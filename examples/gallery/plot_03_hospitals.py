"""
Your own tables: alone, one model for all, or a model for each site
===================================================================

Three hospitals have a CSV file each. At one hospital a marker has the opposite meaning, so a single model cannot suit
all. You learn how to read your own tables, and how to compare local training, a global model and personalised models
site by site.

The script takes about 10 seconds and needs the extras ``pandas`` and ``sklearn``. The files are generated, so we know
why the methods differ; with real files you do not.
"""

# %%
# Each file in a folder is a site. Replace this cell with your files.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedshift

folder = Path(mkdtemp())
(folder / "hospitals").mkdir()
draw = np.random.default_rng(0)
for hospital, patients, meaning in [("north", 1200, 1.0), ("east", 400, -1.0), ("west", 160, 1.0)]:
    table = pd.DataFrame(draw.normal(size=(patients, 15)), columns=[*"abcdefghijklmn", "marker"])
    risk = table[[*"abcdefg"]].sum(axis=1) - table[[*"hijklmn"]].sum(axis=1)
    logit = 0.45 * risk + meaning * table["marker"] - 3
    table["infected"] = np.where(draw.random(patients) < 1 / (1 + np.exp(-logit)), "yes", "no")
    table.to_csv(folder / "hospitals" / f"{hospital}.csv", index=False)

# %%
# Every hospital is tested on 40 % of its patients (``in-domain``). Columns are standardised with pooled statistics of
# the training rows.
comparison = fedshift.compare(
    method=["single", "fedavg", "ditto"],
    data={"name": "table", "path": str(folder / "hospitals"), "label": "infected", "statistics": "pooled"},
    protocol={"name": "in-domain", "test": 0.4},
    model={"name": "mlp", "hidden": [16], "dim": 8},
    seed=[0, 1, 2, 3, 4],
    rounds=10,
    out=folder / "runs",
    settings={
        "train.lr": 0.1,
        "train.class_weights": "balanced",
        "evaluate.metrics": ["auroc"],
        "evaluate.select": "auroc",
        "evaluate.every": 5,
    },
)
for site in comparison.environments("test"):
    for row in comparison.rows():
        print(f"{site:6} {row.label:7} AUROC {row.score('test', environment=site).text(100)} %")

# %%
# Compare within a site, never by the mean alone: the mean hides which site gains and which loses by joining.
plt.figure(comparison.plot(metric="auroc"))  # pyplot shows it (matplotlib 3.11)
plt.show()
