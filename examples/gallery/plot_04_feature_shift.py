"""
Make feature shift between sites visible
========================================

Before you choose a method, check whether features differ between sites. ``inspect_data`` trains a classifier for each
pair of sites that guesses the site of a sample (a classifier two-sample test). 50 % means that the test finds
no difference, 100 % that every sample reveals its site.

The script takes about 5 seconds and needs the extra ``sklearn``. The test finds differences in brightness, contrast,
position and scale. It can miss others, and it does not show whether a difference hurts a model.
"""

# %%
# Five sites hold different digits, rotated by 0 to 60 degrees. Nothing is trained or written.
import matplotlib.pyplot as plt
import numpy as np

import fedshift

report = fedshift.inspect_data(
    "rotated-mnist-in-domain",
    settings={"data.angles": [0, 3, 10, 25, 60], "data.draw": "each", "data.images_per_class": 60},
)
for finding in report.findings:
    print(f"- {finding}\n")

# %%
# Sites with nearly the same angle are hard to separate. A star marks pairs that differ significantly (binomial test,
# corrected for the number of pairs).
sites = [site.name for site in report.sites]
accuracy = np.full((len(sites), len(sites)), np.nan)
figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
for pair in report.features or ():
    row, column = sorted((sites.index(pair.one), sites.index(pair.other)), reverse=True)
    accuracy[row, column] = 100 * pair.accuracy
    axis.text(column, row, f"{100 * pair.accuracy:.0f}{'*' if pair.significant else ''}", ha="center", va="center")
image = axis.imshow(accuracy, vmin=50, vmax=100, cmap="YlOrRd")
axis.set_xticks(range(len(sites)), [f"{site}°" for site in sites])
axis.set_yticks(range(len(sites)), [f"{site}°" for site in sites])
figure.colorbar(image, label="accuracy of guessing the site (%)")
plt.show()
