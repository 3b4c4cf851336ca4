"""Networks in stages: what is frozen is computed once, what follows is all that is trained and sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conftest import Make, names_sent, simulate
from federated import Local, members
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD, Inputs
from fedshift.core.frozen import embedded, frozen_network, lite0
from fedshift.core.model import Model, ModelBuilder
from fedshift.core.net import batch_norms
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.site_data import site_model
from fedshift.experiments import Experiment
from fedshift.models import MODELS
from fedshift.models.backbones import EfficientNetLite0, MobileNetV2, ResNet18
from fedshift.models.staged import Staged
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.streams import Streams
from refusal import refuses
from test_coordinate import alike
from test_engines import assert_agree, engine_named


class Small(Staged):
    """Three stages with fixed weights: two convolutions with batch norm, and the mean with dropout."""

    dropout: float = 0.0
    shift: float = 0.3

    def stages(self, channels):
        with Streams(7).as_global("stages"):
            first, second = (
                nn.Sequential(nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in ((channels, 4), (4, 5))
            )
        first[1].running_mean.fill_(self.shift)
        last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(self.dropout))
        return {"stage1": first, "stage2": second, "stage3": last}


class Pictures(Dataset):
    """Twelve coloured images of each of three classes in each of three domains."""

    def domain_names(self):
        return ("dark", "gray", "light")

    def load(self, streams):
        y, domain = torch.arange(3).repeat(36), torch.arange(3).repeat_interleave(36)
        noise = torch.randint(0, 100, (108, 3, 8, 8), generator=streams.generator("pictures"))
        x = (noise + 30 * y.view(-1, 1, 1, 1) + 20 * domain.view(-1, 1, 1, 1)).byte()
        return DomainData(x, y, domain, self.domain_names(), ("a", "b", "c"), torch.arange(108))


@pytest.fixture(autouse=True)
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._listed, "small-in-stages", Small)
    monkeypatch.setitem(DATASETS._listed, "pictures", Pictures)
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


def built(model: Model, shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    return ModelBuilder(model, shape, 3, Streams(seed), clients=2).encoder()


def embedding(model: Model, data: DomainData) -> DomainData:
    return embedded(data, model.frozen_network())


def pictures() -> DomainData:
    return Pictures().load(Streams(0))


def experiment_of(make: Make, changes: dict[str, Any] | None = None, **model: Any) -> Experiment:
    """With one frozen stage, unless the model sets another number."""
    chosen = Small(dim=2).replace(**{"freeze_until": 1, **model})
    return make({"train.lr": 0.02, "train.rounds": 2, **(changes or {})}).replace(data=Pictures(), model=chosen)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x / 255 - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)


# Cutting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [0, 1, 2, 3])
def test_the_cut_changes_nothing_that_is_predicted(frozen: int):
    """Frozen stages and an encoder of the others, one after the other, are the whole network."""
    x, cut = scaled(pictures().x), Small(dim=2, freeze_until=frozen)
    given = embedding(cut, pictures()).x if frozen else x
    assert tuple(given.shape[1:]) == [(3, 8, 8), (4, 6, 6), (5, 4, 4), (5, 1, 1)][frozen]
    z = built(cut, tuple(given.shape[1:])).eval()(given)
    torch.testing.assert_close(z, built(Small(dim=2), (3, 8, 8)).eval()(x), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_frozen_is_refused():
    with refuses("model.freeze_until = 4", "3 stages", "2 stage2"):
        embedding(Small(freeze_until=4), pictures())
    with refuses("[20]", "try 'mlp'"):
        built(Small(), (20,))
    with refuses("--set model.freeze_until=0"):
        embedding(Small(freeze_until=1), replace(pictures(), x=torch.zeros(108, 3, 8, 8)))
    with refuses("model.freeze_until = 1", "--set model.weights=pretrained"):
        embedding(ResNet18(freeze_until=1), pictures())
    for name in ("augment", "normalise"):
        with refuses(f"data.{name} works", f"--set data.{name}=false"):
            Small(freeze_until=1).check(Inputs(**{name: True}))


# In a run -----------------------------------------------------------------------------------------


def test_messages_carry_only_what_is_trained(make: Make):
    simulation = simulate(experiment_of(make))
    for direction in ("down", "up"):
        names = names_sent(simulation, "train", direction)
        assert {name.split(".")[2] for name in names if name.startswith("encoder.stages.")} == {"stage2"}
        assert {"encoder.projection.weight", "head.weight"} <= names
    assert simulation.coordinator.state.shared["encoder.stages.stage2.1.running_mean"].any()


def test_weights_that_come_in_evaluation_mode_are_trained_in_training_mode(make: Make):
    class Read(Small):
        """Stages as a library gives those that it read."""

        def stages(self, channels):
            return {name: stage.eval() for name, stage in super().stages(channels).items()}

    experiments = [experiment_of(make, freeze_until=0).replace(model=kind(dim=2)) for kind in (Small, Read)]
    one, other = (simulate(experiment).coordinator.state.shared for experiment in experiments)
    assert torch.equal(one["encoder.stages.stage2.1.running_mean"], other["encoder.stages.stage2.1.running_mean"])


def test_engines_agree(make: Make):
    experiment = experiment_of(make, {"train.precision": "float64"}, dropout=0.3)
    told: list[str] = []
    with engine_named("vectorised", told) as engine:
        assert_agree(simulate(experiment), simulate(experiment, engine=engine))
    assert not told


@pytest.mark.parametrize("bn", ["shared", "reestimate"])
def test_a_trained_model_predicts_from_images(make: Make, bn: str):
    """The frozen stages are in front, and stay as they are whatever the others do."""
    model, images = runner.start(experiment_of(make, {"method.bn": bn}), Progress()).model(), pictures().x
    given = embedding(Small(freeze_until=1), pictures()).x
    assert not torch.equal(model(images[:9]), model(images[9:18]))
    assert torch.equal(model(images), model(given))
    front = {name: tensor.clone() for name, tensor in model.front.state_dict().items()}
    model.train()
    model(images)
    assert all(torch.equal(tensor, front[name]) for name, tensor in model.front.state_dict().items())
    assert not any(parameter.requires_grad for parameter in model.front.parameters())
    for wrong in (images.float(), images[:, :, :6]):
        with refuses("(B, 4, 6, 6)", "uint8", "frozen stages"):
            model(wrong)


def test_sites_freeze_as_a_simulation_does(make: Make, tmp_path: Path):
    experiment = experiment_of(make, {"protocol": {"name": "in-domain"}, "evaluate.batch": 3})
    folder = members(tmp_path / "trial", experiment, federation={"shape": [4, 6, 6], "classes": ["a", "b", "c"]})
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    alike(run, rehearse(folder, Progress()))
    images = pictures().x
    assert torch.equal(site_model(folder / "sites" / "dark")(images), run.model()(images))


# Published networks -------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [1, 3])
def test_a_resnet_of_a_folder_is_cut(tmp_path: Path, frozen: int):
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 2, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=Streams(0).generator("large"))
    data = pictures()
    data = replace(data, x=images, y=data.y[:4], domain=data.domain[:4], group=data.group[:4])
    cut = ResNet18(weights=str(tmp_path), freeze_until=frozen, dim=4)
    x = embedding(cut, data).x
    pooled = built(cut, tuple(x.shape[1:])).eval().stages(x).flatten(1)
    torch.testing.assert_close(
        pooled, frozen_network(str(tmp_path)).load().eval()(scaled(images)), rtol=1e-4, atol=1e-5
    )


def test_mobilenet_has_the_stages_of_its_table():
    """The rows of Table 2 (Sandler et al.) from the second on, by channels: 16, 24, 32, 64, 96, 160, 320, 1280."""
    x, channels = torch.zeros(1, 3, 64, 64), []
    for stage in MobileNetV2().stages(3).values():
        x = stage.eval()(x)
        channels.append(x.shape[1])
    assert channels == [16, 24, 32, 64, 96, 160, 320, 1280]


def test_efficientnet_has_the_stages_of_its_table():
    """Table 1 of Tan & Le at 64 pixels: sizes halve in stages 1, 3, 4, 5 and 7, and the last one is pooled."""
    x, shapes = torch.rand(2, 3, 64, 64, generator=Streams(0).generator("x")), []
    pixels = x
    for stage in EfficientNetLite0().stages(3).values():
        x = stage.eval()(x)
        shapes.append(tuple(x.shape[1:]))
    sizes = [(32, 32), (16, 32), (24, 16), (40, 8), (80, 4), (112, 4), (192, 2), (320, 2)]
    assert shapes == [*((channels, side, side) for channels, side in sizes), (1280,)]
    layers = [layer for stage in EfficientNetLite0().stages(3).values() for _, layer in batch_norms(stage)]
    assert {layer.momentum for layer in layers} == {0.1}  # PyTorch's default, not the network's own 0.01
    whole = lite0().eval()
    torch.testing.assert_close(
        x, whole.extract_features((255 * pixels - 127) / 128).mean(dim=(2, 3)), rtol=1e-4, atol=1e-4
    )
