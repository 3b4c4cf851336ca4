"""ComBat as preparation: equal to neuroHarmonize, whose numbers are stored, and to regression on all rows together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedshift.clients.combat import covariate_sums, effects_of, location_and_scale
from fedshift.clients.preparation import Column, Preparation, Statistics

nan = float("nan")

# What neuroHarmonize 2.5.2 with neuroCombat 0.2.12 gives of :func:`measurements`, by
#     import sys, pandas, neuroCombat.neuroCombat
#     from neuroHarmonize import harmonizationLearn
#     sys.modules["neuroCombat.neuroCombat"].it_sol.__defaults__ = (1e-13,)  # which ends at 1e-4 else
#     site, age, x = measurements()
#     model, y = harmonizationLearn(x, pandas.DataFrame({"SITE": site}))  # or {"SITE": site, "age": age}
#     model["gamma_star"], model["delta_star"], y[[0, 10, 20]]
WITHOUT: dict[str, Any] = {
    "gamma": [
        [0.399292417, -0.436395223, 0.276790874, -0.213111733],
        [1.457451474, 2.655420252, 1.70161737, 3.286547445],
        [-1.601446806, -1.782721918, -1.746198976, -2.689769387],
    ],
    "delta": [
        [0.547097903, 0.56928601, 0.792305955, 0.915358101],
        [2.865012275, 2.819450762, 2.763364837, 2.749465178],
        [0.194814413, 0.295446423, 0.265792036, 0.223073702],
    ],
    "rows": [
        [4.1782836, -63.895300158, 0.608124189, 5.603247833],
        [2.135901574, -38.213051953, 0.560167706, 3.173347312],
        [4.060264703, -54.22603919, 0.50745445, 6.06133122],
    ],
}
WITH_AGE: dict[str, Any] = {
    "gamma": [
        [0.04327835, -0.354276072, -0.023743217, -0.298839599],
        [2.083085808, 2.655585314, 2.233240096, 3.363577483],
        [-1.76411685, -1.804805292, -1.862406897, -2.701185796],
    ],
    "delta": [
        [0.548819312, 0.54520459, 0.721240084, 0.800623462],
        [2.919383696, 2.917042353, 2.888391187, 2.892233625],
        [0.263505363, 0.25782104, 0.261253687, 0.238773161],
    ],
    "rows": [
        [4.724679888, -65.563018114, 0.649438274, 6.248160021],
        [1.675806782, -37.92778873, 0.520450321, 2.863359684],
        [3.829846815, -53.777347008, 0.496877215, 5.708336634],
    ],
}


def measurements() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """21 rows of three sites, their ages, and four columns that sites shift and scale, and that age changes."""
    draw = np.random.default_rng(0)
    site, units = np.repeat([0, 1, 2], [8, 6, 7]), np.array([1, 10, 0.1, 5])
    age = draw.normal(60, 10, 21).round(0)
    x = draw.normal(size=(21, 4)) * units * np.array([1.0, 2.0, 0.5])[site][:, None]
    shift = np.array([0, 3, -2])[site][:, None] * units
    return site, age, (x + np.outer(age, [0.05, -1, 0.01, 0.0]) + shift).round(3)


def fitted(preparation: Preparation, sites: list[Tensor]) -> tuple[Statistics, list[Statistics]]:
    """What sites share, and each one's own, as in a run."""
    shared = preparation.shared_by([preparation.measured(rows) for rows in sites])
    return shared, [preparation.of_site(rows, shared) for rows in sites]


@pytest.mark.parametrize(("covariates", "oracle"), [((), WITHOUT), (("age",), WITH_AGE)], ids=["alone", "age"])
def test_it_equals_neuro_harmonize(covariates: tuple[str, ...], oracle: dict[str, Any]):
    site, age, x = measurements()
    columns = tuple(Column(name) for name in ("a", "b", "c", "d", *covariates))
    rows = torch.from_numpy(np.column_stack([x, age])[:, : len(columns)])
    preparation = Preparation("combat", columns=columns, covariates=covariates)
    shared, own = fitted(preparation, [rows[torch.from_numpy(site == number)] for number in range(3)])
    for number, statistics in enumerate(own):
        gamma = (statistics["center"] - shared["center"]) / shared["scale"]
        delta = (statistics["scale"] / shared["scale"]) ** 2
        assert gamma[:4].tolist() == pytest.approx(oracle["gamma"][number], abs=1e-8)
        assert delta[:4].tolist() == pytest.approx(oracle["delta"][number], abs=1e-8)
    for place, row, expected in zip((0, 1, 2), (0, 10, 20), oracle["rows"], strict=True):
        inputs = preparation.inputs(rows[[row]], own[place])[0].double()
        harmonised = inputs * shared["scale"] + shared["center"]
        assert harmonised[:4].tolist() == pytest.approx(expected, rel=2e-6)  # inputs are float32
    if covariates:
        assert preparation.inputs(rows, own[0])[:, 4].std(correction=0) == pytest.approx(1, abs=1e-6)


@given(st.integers(0, 10**6), st.booleans())
def test_what_sites_share_is_the_regression_on_all_rows_together(seed: int, gaps: bool):
    """Of each column, on covariates and one indicator a site, over the rows in which it has a value.

    The pooled variance is the mean squared residual, and the center the mean, of these rows.
    """
    draw = np.random.default_rng(seed)
    site = np.repeat([0, 1, 2], [9, 12, 7])
    z = draw.normal(size=(28, 2)) * [1, 100]
    x = draw.normal(size=(28, 3)) + z @ draw.normal(size=(2, 3)) + draw.normal(size=(3, 3))[site] + 1000
    if gaps:
        x[draw.random(x.shape) < 0.2] = np.nan
    rows = torch.from_numpy(np.column_stack([x, z]))
    columns = tuple(map(Column, "abcyz"))
    preparation = Preparation("combat", columns=columns, covariates=("y", "z"))
    shared, _ = fitted(preparation, [rows[torch.from_numpy(site == number)] for number in range(3)])
    for column in range(3):
        there = ~np.isnan(x[:, column])
        design = np.column_stack([site[there][:, None] == [0, 1, 2], z[there]])
        found, *_ = np.linalg.lstsq(design, x[there, column], rcond=None)
        left = x[there, column] - design @ found
        assert shared["effects"][column].tolist() == pytest.approx(found[3:], rel=1e-6, abs=1e-9)
        assert float(shared["scale"][column]) == pytest.approx(np.sqrt(np.mean(left**2)), rel=1e-7)
        assert float(shared["center"][column]) == pytest.approx(x[there, column].mean(), rel=1e-12)
        assert shared["covariates"][column].tolist() == pytest.approx(z[there].mean(axis=0), rel=1e-9)


def test_a_single_column_gets_the_mean_and_the_deviation_that_sites_share():
    """Nothing is shrunk then. By hand: site 1 has 1 and 3, site 2 has 6, 8 and 10, so 5.6 is the mean of all.

    The mean squared deviation within sites is (2 + 8) / 5 = 2. Site 1 has the mean 2 and the variance 2, site 2 has 8
    and 4. So 1 becomes (1 - 2) / sqrt(2) and 10 becomes (10 - 8) / 2. A missing cell is 0, the mean of all.
    """
    preparation = Preparation("combat", columns=(Column("a"),))
    sites = [torch.tensor(rows, dtype=torch.float64)[:, None] for rows in ([1, 3, nan], [6, 8, 10])]
    shared, own = fitted(preparation, sites)
    assert float(shared["center"]) == pytest.approx(5.6)
    assert float(shared["scale"]) == pytest.approx(2**0.5)
    assert preparation.inputs(sites[0], own[0])[:, 0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5, 0])
    assert preparation.inputs(sites[1], own[1])[:, 0].tolist() == pytest.approx([-1, 0, 1])


def test_a_site_that_never_trained_is_in_the_location_and_scale_that_sites_share():
    """By hand, as above: 5.6 and sqrt(2); and before there are any sites every number is 0."""
    preparation = Preparation("combat", columns=(Column("a"),))
    sites = [torch.tensor(rows, dtype=torch.float64)[:, None] for rows in ([1, 3, nan], [6, 8, 10])]
    shared, _ = fitted(preparation, sites)
    unseen = preparation.of_unseen((), shared)
    assert unseen["rows"] == 0
    given = preparation.inputs(torch.tensor([[5.6], [5.6 + 2**0.5], [nan]]), unseen)
    assert given[:, 0].tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert preparation.inputs(sites[0], preparation.of_nobody()).tolist() == [[0], [0], [0]]


def test_what_cannot_be_estimated_is_left_alone():
    """A column that a site lacks, or has once, or that is the same everywhere; categories and covariates are pooled."""
    columns = (*map(Column, "abcd"), Column("e", ("u", "v")))
    preparation = Preparation("combat", columns=columns, covariates=("d", "e"))
    draw = np.random.default_rng(0)
    sites = [torch.from_numpy(draw.normal(size=(9, 5)) + 5 * shift) for shift in (0, 1)]
    for rows in sites:
        rows[:, 2], rows[:, 4] = 7.0, torch.arange(9) % 2
    sites[1][:, 0] = nan
    sites[1][1:, 1] = nan
    shared, own = fitted(preparation, sites)
    assert torch.equal(own[1]["scale"][:2], shared["scale"][:2])
    assert torch.equal(own[1]["center"], shared["center"])
    assert torch.equal(own[0]["center"][3:], shared["center"][3:])
    inputs = preparation.inputs(sites[0], own[0])
    assert inputs[:, 2].abs().max() == 0
    assert inputs[:, 4:].tolist() == [[1 - n % 2, n % 2] for n in range(9)]
    assert inputs.isfinite().all()
    assert preparation.inputs(sites[1], own[1])[:, 0].abs().max() == 0
    both = torch.cat(sites)[:, 3]
    expected = (sites[0][:, 3] - both.mean()) / both.std(correction=0)
    torch.testing.assert_close(inputs[:, 3].double(), expected, rtol=1e-6, atol=1e-6)


def test_gamma_and_delta_are_modes_of_the_posterior():
    """Each solves its equation of Johnson et al., and gamma lies between its own mean and that of all columns."""
    x = torch.from_numpy(np.random.default_rng(3).normal(size=(10, 5)) * [1, 2, 3, 1, 2] + [0, 1, 2, 3, -1])
    gamma, delta = location_and_scale(x)
    mean, variance = x.mean(dim=0), x.var(dim=0)
    width, center, middle, spread = mean.var(), mean.mean(), variance.mean(), variance.var()
    a, b = (2 * spread + middle**2) / spread, (middle * spread + middle**3) / spread
    torch.testing.assert_close(gamma, (width * 10 * mean + delta * center) / (width * 10 + delta))
    torch.testing.assert_close(delta, ((x - gamma).square().sum(dim=0) / 2 + b) / (10 / 2 + a - 1))
    assert ((gamma - mean) * (center - mean) > 0).all()


@pytest.mark.parametrize("constant", [0, 3])
def test_columns_that_hardly_differ_give_finite_numbers(constant: float):
    """Whose variances are all the same, or 0."""
    x = torch.zeros(4, 3, dtype=torch.float64) + constant * torch.tensor([[1], [-1], [1], [-1]]) + torch.arange(3)
    gamma, delta = location_and_scale(x)
    assert gamma.isfinite().all()
    assert (delta > 0).all()


def test_a_missing_covariate_counts_as_the_mean_of_its_site():
    x = torch.tensor([[1.0], [2.0], [4.0], [9.0]], dtype=torch.float64)
    z = torch.tensor([[1.0], [nan], [3.0], [5.0]], dtype=torch.float64)
    filled = z.nan_to_num(3)
    sums, expected = covariate_sums(x, z), covariate_sums(x, filled)
    assert all(torch.equal(sums[name], expected[name]) for name in sums)
    present = {"present": torch.tensor([4])}
    slope = np.polyfit(filled[:, 0], x[:, 0], 1)[0]
    assert float(effects_of([sums | present])["effects"]) == pytest.approx(slope)
