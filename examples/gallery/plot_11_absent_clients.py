"""
Clients that are unavailable or late
====================================

In a real federation, sites miss rounds. ``train.absent`` is the probability that a sampled client does not take part,
``train.late`` the probability that its update arrives after the deadline. You learn to simulate both and to read which
clients a round lacked.

The script takes about 6 seconds. Which rounds a client misses is drawn from the seed; use several seeds before you
conclude anything about a method.
"""

# %%
# A list of probabilities gives a run for each. The coordinator aggregates the updates that arrive.
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift

experiment = {
    "name": "absent",
    "data": {"name": "rotated-mnist", "images_per_class": 30},
    "protocol": {"name": "in-domain"},
    "model": {"name": "mlp", "hidden": [32], "dim": 16},
    "train": {"rounds": 30, "lr": 0.1},
}
comparison = fedshift.compare(
    experiment,
    method="fedavg",
    out=Path(mkdtemp()),
    settings={"train.absent": [0, 0.3, 0.7], "train.late": 0.1, "evaluate.every": 1},
)

# %%
# Each record names the clients that did not answer, and why.
figure, (above, below) = plt.subplots(2, sharex=True, figsize=(6, 5), layout="constrained", height_ratios=(2, 1))
for row in comparison.rows():
    records = row.runs[0].records
    positions = [record["position"] for record in records]
    tests = [[each["accuracy"] for each in record["environments"] if each["role"] == "test"] for record in records]
    above.plot(positions, [100 * sum(scores) / len(scores) for scores in tests], label=row.label)
    below.step(positions, [len(record.get("missing", ())) for record in records], where="mid")
    reasons = Counter(missed["why"] for record in records for missed in record.get("missing", ()))
    print(f"{row.label}: {dict(reasons)}")
above.set(ylabel="mean test accuracy (%)")
above.legend()
below.set(xlabel="round", ylabel="clients missing of 6")
plt.show()
