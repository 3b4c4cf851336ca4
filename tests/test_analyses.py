"""Analyses of finished runs: what they measure, by hand, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedshift
from fedshift.errors import FedshiftError
from fedshift.reporting.analyses.a_distance import a_distance
from fedshift.reporting.analyses.calibration import bins, calibration_error
from fedshift.reporting.analyses.cka import linear_cka
from fedshift.reporting.analyses.domain_gap import gaps
from fedshift.reporting.analyses.similarity import separation
from fedshift.study.grid import Document, override

SMALL = {"data.images_per_class": 30, "model.channels": [4, 8], "model.dim": 16}


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
        fedshift.analyse("calibration", run.path, notify=lambda one: measured.append(one.path.name), **settings)
    assert len(measured) == 2
    for cache in (run.path / "analyses").iterdir():
        cache.write_bytes(cache.read_bytes()[:-30])
    again = fedshift.analyse("calibration", run.path, notify=lambda one: measured.append(one.path.name))
    assert len(measured) == 3
    assert sum(row["n"] for row in again.measurements() if row["role"] == "test") == 1000


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_a_distance_of_equal_and_of_separable_gaussians():
    """Equal: err is 1/2 with a standard error of 0.5 / sqrt(4000) = 0.008, so 2 (1 - 2 err) is 0 with one of 0.032.

    Separable, means 40 standard deviations apart: err is 0, and the distance 2. Overlapping: N(0, 1) and
    N(2, 1) have the best threshold 1 and err = Phi(-1) = 0.1587, so the distance is 2 (1 - 0.3173) = 1.365, with one of
    0.023.
    """
    a, b = normal(0, 2000, 2), normal(1, 2000, 2)
    assert a_distance(a, b) == pytest.approx(0, abs=4 * 0.032)
    assert a_distance(a, b + torch.tensor([40.0, 0.0])) == 2
    assert a_distance(a, b + torch.tensor([2.0, 0.0])) == pytest.approx(1.365, abs=4 * 0.023)


def test_domains_of_unequal_sizes_are_cut_evenly():
    """Ten distant classes, sorted, 1000 rows against 4000: only the classes differ, so the domains are equal."""
    classes = 20 * normal(5, 10, 2)
    a = classes.repeat_interleave(100, dim=0) + normal(2, 1000, 2)
    b = classes.repeat_interleave(400, dim=0) + normal(3, 4000, 2)
    assert a_distance(a, b) < 4 * 0.045
    assert a_distance(b, a) < 4 * 0.045


@given(scale=st.floats(0.1, 10))
def test_distances_between_domains_and_classes_by_hand(scale: float):
    """Means of classes 0 and 1: (0, 0) and (4, 0) in one domain, (0, 3) and (4, 3) in another, which also has a 2.

    Domains are at a distance of 3 in both classes; a single sample has no mean, so class 2 counts nowhere, and classes
    are at a distance of 4.
    """
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [5.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0, 1, 1])
    z = torch.cat([first[0] + torch.tensor([0.0, 3.0]), torch.tensor([[50.0, 50.0]])])
    second = z, torch.tensor([0, 0, 1, 1, 2])
    assert gaps([(scale * z, y) for z, y in (first, second)]) == pytest.approx((3 * scale, 4 * scale))
    with pytest.raises(FedshiftError, match="two domains"):
        gaps([first])


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10))
def test_cka_does_not_see_rotations_scales_and_shifts(seed: int, scale: float):
    """A rotated copy aQ has (aQ)'(aQ) = Q' a'a Q, whose norm is that of a'a, as has Q'a'a: the ratio is 1."""
    a = normal(seed, 20, 4)
    rotation, _ = torch.linalg.qr(normal(seed + 1, 4, 4))
    assert linear_cka(a, scale * a @ rotation + 3) == pytest.approx(1, abs=1e-9)


def test_cka_of_features_by_hand():
    """Of a = (1, 1, -1, -1) and b = (1, -1, 1, -1), which are centred and have a'b = 0, it is 0.

    Of a and c = a + b it is (a'c)^2 / (a'a c'c) = 4^2 / (4 * 8) = 1/2.
    """
    a, b = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    assert linear_cka(a, b) == 0
    assert linear_cka(a, a + b) == pytest.approx(0.5)


def test_clients_with_one_encoder_are_not_compared_and_personal_ones_are(tmp_path: Path):
    methods = ["fedavg", "ditto", "fedbn"]
    settings = SMALL | {"model.norm": "batch"}
    fedshift.compare("rotated-mnist-in-domain", method=methods, rounds=2, seed=0, settings=settings, out=str(tmp_path))
    found = fedshift.analyse("cka", tmp_path)
    assert [*found.rows] == ["fedbn"]
    refused = " ".join(found.notes())
    assert "single model for all clients" in refused
    assert "z is the same at every client" in refused
    values = [float(row["cka"] or 0) for row in found.rows["fedbn"][0].measured.rows]
    assert len(values) == 15  # pairs of six clients
    assert 0 < min(values) < 0.99999


def test_files_of_an_analysis(tmp_path: Path):
    fedshift.compare(method=["fedavg", "fedsr"], rounds=2, settings=SMALL, out=str(tmp_path))
    for name, charts in {"tsne": 2, "a-distance": 1, "calibration": 2, "domain-gap": 0}.items():
        written = fedshift.analyse(name, tmp_path).write(tmp_path / name)
        assert len({*written}) == len(written) == 1 + 3 * charts
        assert all(path.stat().st_size for path in written)
    points = fedshift.analyse("tsne", tmp_path).measurements()
    assert {row["domain"] for row in points if row["kind"] == "target"} == {"0"}


def test_how_far_pairs_within_a_domain_are_more_alike_by_hand():
    """Within 0.9, 0.5 and between 0.5, 0.1: of four pairs three are larger and one is a tie, 3.5 / 4."""
    assert separation([0.9, 0.5], [0.5, 0.1]) == pytest.approx(0.875)
    assert separation([0.9], [0.1, 0.2]) == 1
    assert separation([0.1], [0.9]) == 0


def test_the_similarity_of_a_finished_run_is_that_of_its_index(tmp_path: Path, tiny_document: Document):
    """Two clients of each of two domains make six pairs. A method that describes no clients is refused."""
    index = {"name": "feature-average", "encoder": {"name": "offline", "size": 16}}
    partition = {"name": "iid", "clients": 2}
    document = override(tiny_document, {"method": {"name": "client2vec", "index": index}, "partition": partition})
    run = fedshift.run(document, out=str(tmp_path))
    rows = fedshift.analyse("similarity", run.path).measurements()
    assert [row["domain"] == row["other_domain"] for row in rows] == [True, False, False, False, False, True]
    cosines = fedshift.index(run.experiment).cosines["feature index"]
    assert [row["cosine"] for row in rows] == pytest.approx(cosines[*torch.triu_indices(4, 4, 1)].tolist(), abs=1e-6)
    alone = fedshift.run(tiny_document, out=str(tmp_path))
    with pytest.raises(FedshiftError, match="describes no clients before it trains"):
        fedshift.analyse("similarity", alone.path)
