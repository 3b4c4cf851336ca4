"""
Seeds, intervals and what a difference is worth
===============================================

Two kinds of chance affect a score: the seed, which draws the split and the batches, and the patients in the test set.
``comparison.plot()`` shows both. You learn to read it, and to compute a paired difference with its interval.

The script takes about 8 seconds and needs the extra ``sklearn``, which ships the table of 442 diabetes patients. Five
seeds on one table show the size of chance; they do not rank the methods.
"""

# %%
# The sites are three age bands. ``single`` trains each site alone, ``fedavg`` trains one model for all.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
from scipy.stats import ttest_1samp

import fedshift

comparison = fedshift.compare(
    "diabetes", method=["single", "fedavg"], seed=[0, 1, 2, 3, 4], rounds=15, out=Path(mkdtemp())
)

# %%
# The dark bars are 95 % intervals over seeds (Student's t). The pale bars behind them are the 95 % intervals for the
# 40 to 60 test patients of a site (Wilson). A ranking that ignores the pale bars ranks patients, not methods.
plt.figure(comparison.plot())  # pyplot shows it (matplotlib 3.11)
plt.show()

# %%
# Both methods use the same split for the same seed. Therefore, take the difference seed by seed.
accuracy = {
    (row["method"], row["environment"], row["seed"]): 100 * row["accuracy"]
    for row in comparison.measurements()
    if row["role"] == "test" and row["rule"] == "last"
}
for site in comparison.environments("test"):
    gains = [accuracy["fedavg", site, seed] - accuracy["single", site, seed] for seed in comparison.seeds]
    low, high = ttest_1samp(gains, 0).confidence_interval()
    verdict = "clear" if low > 0 or high < 0 else "not clear"
    print(f"{site:11} FedAvg - alone: {sum(gains) / len(gains):+.1f} points [{low:+.1f}, {high:+.1f}], {verdict}")
