"""
Shortcuts: score a model where the shortcut breaks
==================================================

In Colored MNIST the colour of a digit predicts its label in training, but a quarter of the labels is wrong, so colour
is the better predictor. In the tests the agreement p of colour and label ranges from 0 to 1. A model that relies on
colour fails at p = 0. You learn how to train under a protocol with shifted test environments, and why the worst
environment matters.

The script takes about 8 seconds. Images of 7 x 7 pixels and few rounds keep every method far below published numbers.
What the script shows is the shape of the curves, not the rank of the methods.
"""

# %%
# ``oracle`` removes the colour from all images: the best that a model without the shortcut can do here.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift

options = {
    "data": "colored-mnist",
    "protocol": "personal-under-shift",
    "model": {"name": "mlp", "hidden": [32], "dim": 16},
    "rounds": 20,
    "out": Path(mkdtemp()),
}
settings = {
    "data.size": 7,
    "data.clients": 4,
    "data.originals": 200,
    "data.test_p": [0, 0.1, 0.25, 0.5, 0.75, 1],
    "train.lr": 0.1,
    "train.steps": 10,
    "evaluate.every": 20,
}
methods = [fedshift.FedAvg(), fedshift.IRM(lam=1), fedshift.FedPIN(lam=0.1)]
shortcut = fedshift.compare(method=methods, settings=settings, **options)
oracle = fedshift.compare(method="fedavg", settings={**settings, "data.oracle": True}, **options)

# %%
# The mean over environments hides the failure; the worst environment shows it.
for row in shortcut.rows():
    mean, worst = 100 * shortcut.accuracy(row.label), 100 * shortcut.worst(row.label)
    print(f"{row.label:8} mean {mean:.1f} %, worst {worst:.1f} %")

# %%
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for comparison, name in ((shortcut, "{}"), (oracle, "{} without colour")):
    for row in comparison.rows():
        environments = comparison.environments("test")  # p=0, p=0.1, ...
        p = [float(each.removeprefix("p=")) for each in environments]
        accuracies = [100 * row.score("test", environment=each).mean for each in environments]
        axis.plot(p, accuracies, "o-", label=name.format(row.label))
axis.set(xlabel="p: how often colour and label agree in the test", ylabel="accuracy (%)", ylim=(0, 100))
axis.legend()
plt.show()
