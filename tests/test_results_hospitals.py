"""The statistics of docs/results/hospitals.py, by hand."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedshift.content import module_of

SCRIPT = Path(__file__).parent.parent / "docs" / "results" / "hospitals.py"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return module_of(SCRIPT)


def site(page: ModuleType, p: list[list[float]], accuracy: list[float], auroc: list[float]) -> Any:
    scores = {"accuracy": dict(enumerate(accuracy)), "auroc": dict(enumerate(auroc))}
    return page.Site(np.array([1, 0, 1, 0]), np.array(p), scores, "own")


def test_a_difference_counts_seeds_and_patients(page: ModuleType):
    """Four patients, two seeds. Joined all are right, alone the last is not: patient by patient 0, 0, 0 and 1.

    Their influences on the mean 1/4 are (d - 1/4) / 4, whose squares add up to 3/64. By seed the differences are 20 and
    30 points: mean 25, standard deviation sqrt(50), of the mean 5, and Student's quantile for one degree of freedom is
    12.706. Both halves are added as squares.
    """
    joined = site(page, [[0.9, 0.1, 0.8, 0.2]] * 2, [95, 105], [100, 100])
    alone = site(page, [[0.9, 0.1, 0.8, 0.7]] * 2, [75, 75], [100, 100])
    found = joined.minus(alone, "accuracy")
    assert found.mean == 25
    assert found.half == pytest.approx(sqrt((12.7062 * 5) ** 2 + (196 * sqrt(3) / 8) ** 2), rel=1e-4)
    assert joined.minus(alone, "auroc").half == 0  # both rank the patients the same, in every seed


def test_divisions_overlap(page: ModuleType):
    """Of 0 and 2 the standard deviation is sqrt(2); the mean's variance is (1/2 + 3/5) times 2, and not 1/2 times 2."""
    found = page.resampled({1: 0.0, 2: 2.0})
    assert (found.mean, found.half) == (1.0, pytest.approx(12.7062 * sqrt(2.2), rel=1e-4))


def test_every_published_choice_can_be_read(page: ModuleType):
    for name in page.TITLES:
        federation = page.Federation(name, Path(f"{name}.csv"), Path("runs"))
        assert federation.rows[0] == page.ALONE
        assert all("train.lr" in its for its in federation.chosen.values())
        assert {*page.SHOWN, *page.SPLIT} <= federation.chosen.keys()
    assert page._settings("method.variate = 'steps', train.lr = 0.1") == {"method.variate": "steps", "train.lr": 0.1}
