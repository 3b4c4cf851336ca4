"""Models of the catalogue: shapes, initial values, and backbones without any download."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import Make, names_sent, simulate
from fedshift.core.model import Model, ModelBuilder
from fedshift.core.net import batch_norm_tensors, batch_norms
from fedshift.models import MODELS
from fedshift.models.backbones import ResNet18
from fedshift.models.cct import CCT7, Attention, Layer, sinusoids
from fedshift.models.norms import Normed
from fedshift.models.small import CNN, MLP, DigitsCNN, Features, ResNet10
from fedshift.streams import Streams
from refusal import refuses


def spec(model: Model, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0) -> ModelBuilder:
    return ModelBuilder(model, shape, 10, Streams(seed), clients=2)


READY = [name for name in MODELS if not any(one.required for one in MODELS.get(name).settings().values())]


@pytest.mark.parametrize("name", READY)
def test_every_model_gives_z_and_a_distribution_of_z(name: str):
    others = {"lstm": torch.zeros(2, 20, dtype=torch.int64), "cnn1d": torch.zeros(2, 3, 32)}
    x = others.get(name, torch.zeros(2, 3, 32, 32))
    built = spec(MODELS.get(name)(), tuple(x.shape[1:]))
    z = built.encoder().eval()(x)
    mu, sigma = built.gaussian_encoder().eval()(x)
    assert z.shape == mu.shape == sigma.shape == (2, built.dim)
    assert (sigma > 0).all()
    assert built.head()(z).shape == (2, 10)


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
    with refuses("5x5", "'cnn'", "10x10"):
        spec(CNN(), (1, 5, 5)).encoder()
    with refuses("[20]", "try 'mlp'"):
        spec(CNN(), (20,)).encoder()
    assert spec(MLP(hidden=(5, 6)), (20,)).encoder()(torch.zeros(2, 20)).shape == (2, 64)


def test_features_are_standardised_and_nothing_else():
    """Of 1, 3 and of 2, 2: (1 - 2) / sqrt(1 + 1e-5) = -0.999995 and 0.999995; 0 and 0; dim = 3 adds a linear layer."""
    x = torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]]])
    builder = spec(Features(), (1, 2))
    assert builder.dim == 2
    torch.testing.assert_close(builder.encoder()(x), torch.tensor([[-0.999995, 0.0], [0.999995, 0.0]]))
    assert spec(Features(dim=3), (1, 2)).encoder()(x).shape == (2, 3)


def test_a_backbone_from_a_local_folder(tmp_path: Path):
    """What save_pretrained writes is read back, weight for weight, whatever its sizes."""
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    saved = transformers.ResNetModel(config)
    saved.save_pretrained(tmp_path)
    encoder = spec(ResNet18(weights=str(tmp_path), dim=5), (3, 32, 32)).encoder()
    for tensor, read in zip(saved.state_dict().values(), encoder.stages.state_dict().values(), strict=True):
        assert torch.equal(tensor, read)
    assert encoder.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    with refuses("model.weights", "could not be read"):
        spec(ResNet18(weights=str(tmp_path / "none")), (3, 32, 32)).encoder()
    with refuses("3 channels", "not 1", "--set data.channels=3"):
        spec(ResNet18(weights=str(tmp_path)), (1, 32, 32)).encoder()


def test_a_resnet_is_trained_and_its_batch_norm_stays_home_under_fedbn(make: Make):
    simulation = simulate(
        make({"method.name": "fedbn", "model": {"name": "resnet18", "dim": 4}, "train.rounds": 1, "train.steps": 1})
    )
    assert not any("normalization" in name for name in names_sent(simulation, "train", "up"))
    assert any("normalization" in name for name in simulation.site.initial)


def test_the_narrow_residual_network():
    """64 -> (stem) 16 -> 16 -> 8 -> 4 -> 2; 16 to 128 channels, three shortcuts of 1x1; 10 layers with the head."""
    encoder = spec(ResNet10(), (3, 64, 64)).encoder()
    stem, *blocks, last = [tuple(p.shape) for p in encoder.parameters() if p.ndim > 1]
    assert (stem, last) == ((16, 3, 7, 7), (128, 128))
    assert [shape for shape in blocks if shape[2:] == (1, 1)] == [(32, 16, 1, 1), (64, 32, 1, 1), (128, 64, 1, 1)]
    assert sum(shape[2:] == (3, 3) for shape in blocks) == 2 * 4
    assert encoder[:-3](torch.zeros(2, 3, 64, 64)).shape == (2, 128, 2, 2)


# What normalises features -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in READY if issubclass(MODELS.get(name), Normed)])
@pytest.mark.parametrize("norm", ["group", "none"])
def test_no_batch_norm_is_left(name: str, norm: str):
    """Then a sample's z depends on no other sample, in training either; group norms stand where batch norms stood."""
    kind = MODELS.get(name)
    other = spec(kind(norm=norm), (3, 40) if name == "cnn1d" else (3, 32, 32)).encoder()
    batch = spec(kind(norm="batch"), (3, 40) if name == "cnn1d" else (3, 32, 32)).encoder()
    assert not batch_norm_tensors(other)
    grouped = [layer.num_channels for layer in other.modules() if isinstance(layer, nn.GroupNorm)]
    assert grouped == ([layer.num_features for _, layer in batch_norms(batch)] if norm == "group" else [])
    assert {layer.eps for layer in other.modules() if isinstance(layer, nn.GroupNorm)} <= {
        layer.eps for _, layer in batch_norms(batch)
    }
    x = torch.rand(3, 3, *((40,) if name == "cnn1d" else (32, 32)), generator=Streams(0).generator("x"))
    torch.testing.assert_close(other(x)[:2], other(x[:2]), rtol=1e-4, atol=1e-5)


def test_group_norm_by_hand():
    """Two groups of the numbers 1, 3 and 2, 6: means 2 and 4, deviations 1 and 2, so -1, 1, -1, 1."""
    encoder = spec(MLP(hidden=(4,), norm="group"), (4,)).encoder()
    assert [type(layer).__name__ for layer in encoder] == ["FlatNumbers", "Linear", "GroupNorm", "ReLU", "Linear"]
    z = encoder[2](torch.tensor([[1.0, 3.0, 2.0, 6.0]]))
    torch.testing.assert_close(z, torch.tensor([[-1.0, 1.0, -1.0, 1.0]]), rtol=1e-4, atol=1e-4)


def test_group_norm_where_it_does_not_fit():
    with refuses("model.groups = 2", "3 channels", "model.groups=1"):
        spec(CNN(channels=(3, 4), norm="group")).encoder()
    with refuses("model.groups = 2", "2 numbers", "model.norm=batch"):
        spec(MLP(hidden=(2,), norm="group")).encoder()
    with refuses("model.norm = 'group'", "pretrained", "model.weights=random"):
        ResNet18(norm="group", weights="pretrained")


# Digits CNN and CCT -------------------------------------------------------------------------------


def test_the_digits_network():
    """32 -> (5x5 and 3x3/2 pool, both padded) 16 -> 8 -> 8, so 128 * 64 = 8192 inputs to the FC of 2048."""
    encoder = spec(DigitsCNN(), (3, 32, 32)).encoder()
    weights = [tuple(p.shape) for p in encoder.parameters() if p.ndim > 1]
    assert weights == [(64, 3, 5, 5), (64, 64, 5, 5), (128, 64, 5, 5), (2048, 8192), (512, 2048)]
    assert len(batch_norm_tensors(encoder)) == 5 * 5
    assert (encoder(torch.rand(4, 3, 32, 32)) >= 0).all()


def test_cct_has_the_parameters_of_the_paper():
    """3.76 million at 32x32 with ten classes (Hassani et al.), here with z in the place of the classes.

    Convolution 3*9*256 = 6,912; 16*16 positions of 256 = 65,536; a layer: two norms 1,024, queries, keys and values
    256*768 = 196,608, their projection 256*257 = 65,792, feed-forward 257*512 + 513*256 = 262,912, so 526,336, and
    seven of them 3,684,352; the last norm 512; the score 257; the linear layer 257*10 = 2,570. Together 3,760,139.
    """
    encoder = spec(CCT7(dim=10), (3, 32, 32)).encoder()
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 3_760_139
    fixed = spec(CCT7(dim=10, positions="sinusoidal"), (3, 32, 32)).encoder()
    assert sum(parameter.numel() for parameter in fixed.parameters()) == 3_760_139 - 65_536
    assert set(encoder.state_dict()) - set(fixed.state_dict()) == {"positions"}


def test_cct_pools_its_tokens_by_their_scores():
    """Layers that add nothing leave the normed tokens; with equal scores z is their mean."""
    encoder = spec(CCT7(layers=1, heads=2, width=4, dim=4, positions="sinusoidal"), (1, 4, 4)).encoder()
    with torch.no_grad():
        encoder.layers[0].attention.projection.weight.zero_()
        encoder.layers[0].feed_forward[2].weight.zero_()
        encoder.score.weight.zero_()
        encoder.projection.weight.copy_(torch.eye(4))
    x = torch.rand(2, 1, 4, 4, generator=Streams(0).generator("x"))
    tokens = encoder.pool(encoder.convolution(x).relu()).flatten(2).transpose(1, 2) + sinusoids(4, 4)
    torch.testing.assert_close(encoder(x), nn.functional.layer_norm(tokens, (4,)).mean(dim=1), rtol=1e-4, atol=1e-4)


def test_attention_by_hand():
    """One head of width 1, weights 1: the token i gets sum_j softmax_j(x_i x_j) x_j.

    Sines and cosines: position 1 of width 4 has sin 1, cos 1, sin 0.01, cos 0.01.
    """
    attention = Attention(1, 1)
    with torch.no_grad():
        attention.qkv.weight.fill_(1)
        attention.projection.weight.fill_(1)
        attention.projection.bias.zero_()
    x = torch.tensor([[[0.0], [1.0]]])
    e = math.e
    torch.testing.assert_close(attention(x), torch.tensor([[[0.5], [e / (1 + e)]]]))
    expected = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
    torch.testing.assert_close(sinusoids(2, 4), torch.tensor(expected))


def test_a_layers_second_residual_starts_after_its_second_normalisation():
    """Where the feed-forward part adds 1, the layer gives norm(x + attention(norm(x))) + 1."""
    layer = Layer(4, 2, 8)
    x = torch.rand(2, 3, 4, generator=Streams(0).generator("x"))
    with torch.no_grad():
        layer.feed_forward[2].weight.zero_()
        layer.feed_forward[2].bias.fill_(1)
    attended = x + layer.attention(nn.functional.layer_norm(x, (4,)))
    torch.testing.assert_close(layer(x), nn.functional.layer_norm(attended, (4,)) + 1)
