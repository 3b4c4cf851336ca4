"""Analyses of finished runs: what they measure, by hand, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedshift
from fedshift.reporting.analyses.calibration import bins, calibration_error


def test_the_calibration_error_of_a_known_table():
    """Two bins of width 1/2: 0.5, 0.4 in the first (it includes its end), 0.9, 0.7, 0.8 in the second.

    The first has accuracy 1/2 and confidence 0.45, the second 2/3 and 0.8:
    2/5 * 0.05 + 3/5 * (0.8 - 2/3) = 0.02 + 0.08 = 0.1.
    """
    confidence = torch.tensor([0.5, 0.4, 0.9, 0.7, 0.8], dtype=torch.float64)
    right = torch.tensor([True, False, True, True, False])
    binned = bins(confidence, right, 2)
    assert [(one["bin"], one["n"]) for one in binned] == [(0, 2), (1, 3)]
    assert calibration_error(binned) == pytest.approx(0.1)


def test_a_run_is_measured_once_and_again_when_its_cache_is_damaged(tmp_path: Path):
    run = fedshift.run(method="fedavg", rounds=2, out=str(tmp_path))
    measured: list[str] = []
    for settings in ({}, {}, {"bins": 3}):
        fedshift.analyse("calibration", run.path, tell=lambda one: measured.append(one.path.name), **settings)
    assert len(measured) == 2
    for cache in (run.path / "analyses").iterdir():
        cache.write_bytes(cache.read_bytes()[:-30])
    again = fedshift.analyse("calibration", run.path, tell=lambda one: measured.append(one.path.name))
    assert len(measured) == 3
    assert sum(row["n"] for row in again.measurements() if row["role"] == "test") == 1000
