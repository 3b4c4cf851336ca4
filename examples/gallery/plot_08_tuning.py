"""
Tune every method with the same budget
======================================

A comparison is fair if every method gets the same number of trials, and if validation data choose the settings. You
learn how to search the learning rate and a method's weight, and how to pass the result to ``compare``.

The script takes about 9 seconds and needs the extras ``tune`` and ``sklearn``. Six trials and one seed find a usable
learning rate, not the best.
"""

# %%
# The search uses validation patients only. Six trials for each method; hopeless trials stop early.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedshift

options = {"method": ["fedavg", "ditto"], "seed": 0, "rounds": 12, "out": Path(mkdtemp())}
tuning = fedshift.tune("diabetes", trials=6, search={"train.lr": "0.001..0.3"}, **options)
print(tuning)

# %%
# Each mark is a trial, and a star is the chosen trial. A flat picture means that the choice hardly matters, or that the
# validation set is too small to show it.
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for number, (study, found) in enumerate(zip(tuning.studies, tuning.found, strict=True)):
    complete = [trial for trial in study.trials if trial.value is not None]
    rates = [trial.settings["train.lr"] for trial in complete]
    axis.plot(rates, [100 * trial.value for trial in complete], "o", color=f"C{number}", label=found.method)
    axis.plot(found.settings["train.lr"], 100 * found.value, "*", color=f"C{number}", markersize=16)
axis.set(xlabel="learning rate", ylabel="validation accuracy (%)", xscale="log")
axis.legend()
plt.show()

# %%
# ``tuned`` takes the chosen settings. The seed draws the split, so the search never saw the test patients of this seed.
comparison = fedshift.compare("diabetes", tuned=tuning.path, **options)
for method in options["method"]:
    print(f"{method}: test accuracy {100 * comparison.accuracy(method):.1f} %")
