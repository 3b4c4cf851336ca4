"""Models of the catalogue: shapes, initial values, and backbones without any download."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import Make, simulate
from fedshift.catalogue import MODELS
from fedshift.core.net import batch_norm_tensors
from fedshift.core.streams import Streams
from fedshift.errors import FedshiftError
from fedshift.models.backbones import ResNet18
from fedshift.models.cnn import CNN
from fedshift.models.mlp import MLP
from fedshift.models.model import GaussianEncoder, Model, ModelSpec


def spec(model: Model, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0) -> ModelSpec:
    return ModelSpec(model, shape, 10, Streams(seed))


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_gives_z_and_a_distribution_of_z(name: str):
    built = spec(MODELS.get(name)(), (3, 32, 32))
    x = torch.zeros(2, 3, 32, 32)
    z = built.encoder().eval()(x)
    mu, sigma = built.gaussian_encoder().eval()(x)
    assert z.shape == mu.shape == sigma.shape == (2, built.dim)
    assert (sigma > 0).all()
    assert built.head()(z).shape == (2, 10)


def test_the_papers_network():
    """Two 3x3 convolutions, 32 and 64 channels, no padding: 28 -> 26 -> 13 -> 11 -> 5, so 64 * 25 inputs to the FC."""
    shapes = [tuple(p.shape) for p in spec(CNN()).encoder().parameters()]
    assert shapes == [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (64, 1600), (64,)]


def test_pooling_before_relu_changes_nothing():
    x = torch.randn(4, 1, 28, 28, generator=Streams(0).generator("x"))
    conv1, _, _, conv2, _, _, flatten, linear = spec(CNN()).encoder()
    other = nn.Sequential(conv1, nn.ReLU(), nn.MaxPool2d(2), conv2, nn.ReLU(), nn.MaxPool2d(2), flatten, linear)
    torch.testing.assert_close(other(x), spec(CNN()).encoder()(x))


def test_initial_values_depend_on_the_seed_and_the_role_only():
    before = torch.get_rng_state()
    first, again, other = (spec(CNN(), seed=seed).encoder()[0].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    head_first = spec(CNN())
    head_first.head()
    assert torch.equal(head_first.encoder()[0].weight, first)
    assert torch.equal(torch.get_rng_state(), before)


def test_sizes_that_do_not_fit():
    with pytest.raises(FedshiftError, match="5x5 are too small"):
        spec(CNN(), (1, 5, 5)).encoder()
    with pytest.raises(FedshiftError, match="try 'mlp'"):
        spec(CNN(), (20,)).encoder()
    assert spec(MLP(hidden=(5, 6)), (20,)).encoder()(torch.zeros(2, 20)).shape == (2, 64)


def test_a_backbone_from_a_local_folder(tmp_path: Path):
    """What save_pretrained writes is read back, weight for weight, whatever its sizes."""
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    saved = transformers.ResNetModel(config)
    saved.save_pretrained(tmp_path)
    encoder = spec(ResNet18(weights=str(tmp_path), dim=5), (3, 32, 32)).encoder()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(tensor, encoder.backbone.state_dict()[name])
    assert encoder.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_backbone_weights_that_cannot_be_had(tmp_path: Path):
    with pytest.raises(FedshiftError, match=r"no weights of '.*' could be read"):
        spec(ResNet18(weights=str(tmp_path / "none")), (3, 32, 32)).encoder()
    import transformers

    transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])).save_pretrained(
        tmp_path
    )
    with pytest.raises(FedshiftError, match=r"take 3 channels, not 1: --set data.channels=3"):
        spec(ResNet18(weights=str(tmp_path)), (1, 32, 32)).encoder()


def test_batch_norm_is_found_by_name():
    encoder = spec(CNN(batch_norm=True)).gaussian_encoder()
    assert isinstance(encoder, GaussianEncoder)
    names = batch_norm_tensors(encoder)
    assert {"body.1.weight", "body.1.running_var", "body.5.num_batches_tracked"} <= names
    assert len(names) == 10


def test_a_resnet_is_trained_and_its_batch_norm_stays_home_under_fedbn(make: Make):
    simulation = simulate(
        make({"method.name": "fedbn", "model": {"name": "resnet18", "dim": 4}, "train.rounds": 1, "train.steps": 1})
    )
    assert not any("normalization" in name for name in simulation.messages["train"]["up"])
    assert any("normalization" in name for name in simulation.initial_client)
