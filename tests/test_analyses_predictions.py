"""Analyses of predictions and images: by hand, and what comes out of real runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedshift
from fedshift.reporting.analyses.confusion import confusion
from fedshift.reporting.analyses.grad_cam import grad_cam, last_spatial_layer
from fedshift.reporting.analyses.pictures import as_png, pixels_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    fedshift.compare(method=["fedavg", "fedsr"], rounds=2, out=str(out))
    return out


def test_grad_cam_of_a_linear_model():
    """A 1x1 convolution with weights (2, -1), the mean over the map, and a linear layer w = ((1, 3), (0, -1)).

    The maps are A_k = v_k x. The output of class c has the derivative w_ck / (H W) by every pixel of A_k, so a_k
    is that, and the map of class 0 is relu(1/4 * 2 x + 3/4 * (-1) x) = relu(-x / 4); of class 1 relu(1/4 x).
    """
    maps, head = nn.Conv2d(1, 2, 1, bias=False), nn.Linear(2, 2, bias=False)
    model = nn.Sequential(maps, nn.AvgPool2d(2), nn.Flatten(), head)
    with torch.no_grad():
        maps.weight.copy_(torch.tensor([2.0, -1.0]).view(2, 1, 1, 1))
        head.weight.copy_(torch.tensor([[1.0, 3.0], [0.0, -1.0]]))
    x = torch.tensor([[[[1.0, -2.0], [3.0, -4.0]]]]).repeat(2, 1, 1, 1)
    layer = last_spatial_layer(model, lambda: model(x))
    assert layer is maps
    pytest.importorskip("captum", reason="captum is not installed")
    found = grad_cam(maps, lambda: model(x), torch.tensor([0, 1]))
    assert torch.allclose(found[0], torch.tensor([[0.0, 0.5], [0.0, 1.0]]))
    assert torch.allclose(found[1], torch.tensor([[0.25, 0.0], [0.75, 0.0]]))


def test_a_confusion_matrix_by_hand():
    """Of two of class 0 one is taken for 1; the only one of class 1 for 2; class 2 has none."""
    counts = confusion(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), 3)
    assert counts.tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_counts_are_of_every_test_sample_and_agree_with_the_accuracy(runs: Path):
    found = fedshift.analyse("confusion", runs)
    for label, its in found.rows.items():
        rows = its[0].measured.rows
        assert sum(int(row["n"] or 0) for row in rows) == 1000
        right = sum(int(row["n"] or 0) for row in rows if row["class"] == row["predicted"]) / 1000
        assert right == pytest.approx(fedshift.load(runs).accuracy(label))
    assert len(found.charts()) == 2
    table = found.tables()[0]
    assert table.columns == ["row", "class", *map(str, range(10))]
    for label, its in found.rows.items():
        counts = {(row["class"], row["predicted"]): row["n"] for row in its[0].measured.rows}
        matrix = {row[1]: row[2:] for row in table.rows if row[0].startswith(f"{label}: ")}
        assert matrix == {a: [str(counts.get((a, b), 0)) for b in matrix] for a in map(str, range(10))}


def test_the_hardest_samples_have_the_largest_losses(runs: Path):
    for one in fedshift.analyse("hardest", runs, samples=5).rows["fedavg"]:
        losses = [float(row["loss"] or 0) for row in one.measured.rows]
        assert losses == sorted(losses, reverse=True)
        mean = next(row["loss"] for row in one.run.records[-1]["environments"] if row["role"] == "test")
        assert losses[-1] > mean
        assert len(one.measured.images) == 5


def test_pictures_keep_their_pixels():
    image = torch.arange(12, dtype=torch.uint8).view(3, 2, 2)
    assert torch.equal(torch.from_numpy(pixels_of(as_png(image)).copy()).permute(2, 0, 1), image)
    assert pixels_of(as_png(image[:2]))[1, 1].tolist() == [3, 7, 0]  # red and green
    assert pixels_of(as_png(image[:1]))[0, 1].tolist() == [1, 1, 1]


def test_images_of_each_domain_and_where_models_look(runs: Path):
    found = fedshift.analyse("samples", runs, images=3)
    assert len(found.rows["fedavg"][0].measured.images) == 18
    assert len(found.charts()[0].data) == 18
    pytest.importorskip("captum", reason="captum is not installed")
    looked = fedshift.analyse("grad-cam", runs, images=2)
    first, second = (its[0].measured for its in looked.rows.values())
    assert first.images["0"] == second.images["0"]
    assert len(looked.charts()[0].data) == 4
    with pytest.raises(fedshift.FedshiftError, match="no test environment 'x'; it has 0"):
        fedshift.analyse("grad-cam", runs, environment="x")


def test_what_is_no_image_is_not_drawn(tmp_path: Path):
    run = fedshift.run("breast-cancer", method="fedavg", rounds=1, seed=0, out=str(tmp_path))
    for name in ("samples", "grad-cam"):
        with pytest.raises(fedshift.FedshiftError, match="are no images"):
            fedshift.analyse(name, run.path)
    assert fedshift.analyse("hardest", run.path).charts() == []
