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
from fedshift.deployment.rehearsal import rehearse
from fedshift.deployment.site_model import site_model
from fedshift.experiments import Experiment
from fedshift.files import cache_folder
from fedshift.models import MODELS
from fedshift.models.backbones import EfficientNetLite0, MobileNetV2, ResNet18
from fedshift.models.staged import Staged
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.simulation import load_data
from fedshift.spec import setting
from fedshift.streams import Streams
from refusal import refuses
from test_coordinate import alike
from test_engines import assert_agree, engine_named


class Small(Staged):
    """Three stages with fixed weights: two convolutions with batch norm, and the mean with dropout."""

    dropout: float = 0.0
    shift: float = 0.3

    def stages(self, channels):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            first, second = (
                nn.Sequential(nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in ((channels, 4), (4, 5))
            )
        first[1].running_mean.fill_(self.shift)
        last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(self.dropout))
        return {"stage1": first, "stage2": second, "stage3": last}


class Pictures(Dataset):
    """Twelve coloured images of each of three classes in each of three domains."""

    normalise: bool = setting(False, help="as images are")
    side: int = setting(8, help="height and width")

    def inputs(self):
        return Inputs(normalise=self.normalise)

    def domain_names(self):
        return ("dark", "gray", "light")

    def load(self, streams):
        y, domain = torch.arange(3).repeat(36), torch.arange(3).repeat_interleave(36)
        noise = torch.randint(0, 100, (108, 3, self.side, self.side), generator=streams.generator("pictures"))
        x = (noise + 30 * y.view(-1, 1, 1, 1) + 20 * domain.view(-1, 1, 1, 1)).byte()
        return DomainData(x, y, domain, self.domain_names(), ("a", "b", "c"), torch.arange(108))


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._listed, "small-in-stages", Small)
    monkeypatch.setitem(DATASETS._listed, "pictures", Pictures)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    return cache_folder("features")


def built(model: Model, shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    return ModelBuilder(model, shape, 3, Streams(seed), clients=2).encoder()


def embedding(model: Model, data: DomainData) -> DomainData:
    return embedded(data, model.frozen_network())


def pictures() -> DomainData:
    return Pictures().load(Streams(0))


def large(side: int) -> DomainData:
    """Four of them, drawn anew in another size."""
    x = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8, generator=Streams(0).generator("large"))
    data = pictures()
    return replace(data, x=x, y=data.y[:4], domain=data.domain[:4], group=data.group[:4])


def experiment_of(make: Make, model: Model, changes: dict[str, Any] | None = None) -> Experiment:
    return make({"train.lr": 0.02, "train.rounds": 2, **(changes or {})}).replace(data=Pictures(), model=model)


# Cutting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [0, 1, 2, 3])
def test_the_cut_changes_nothing_that_is_predicted(frozen: int):
    """Frozen stages and an encoder of the others, one after the other, are the whole network."""
    data = pictures()
    x = (data.x / 255 - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)
    whole = built(Small(dim=2), (3, 8, 8)).eval()
    cut = Small(dim=2, freeze_until=frozen)
    given = embedding(cut, data).x if frozen else x
    assert tuple(given.shape[1:]) == [(3, 8, 8), (4, 6, 6), (5, 4, 4), (5, 1, 1)][frozen]
    z = built(cut, tuple(given.shape[1:])).eval()(given)
    torch.testing.assert_close(z, whole(x), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_frozen_is_refused():
    with refuses("model.freeze_until = 4", "3 stages", "2 stage2"):
        embedding(Small(freeze_until=4), pictures())
    with refuses("(3, 8, 8)", "'stage2'"):
        built(Small(freeze_until=1), (3, 8, 8))
    with refuses("[20]", "try 'mlp'"):
        built(Small(), (20,))
    with refuses("--set model.freeze_until=0"):
        embedding(Small(freeze_until=1), replace(pictures(), x=torch.zeros(108, 3, 8, 8)))
    with refuses("model.freeze_until = 1", "--set model.weights=pretrained"):
        embedding(ResNet18(freeze_until=1), pictures())


@pytest.mark.parametrize("name", ["augment", "normalise"])
def test_frozen_stages_read_images_as_they_are(name: str):
    Small().check(Inputs(**{name: True}))
    with refuses(f"data.{name} works", f"--set data.{name}=false"):
        Small(freeze_until=1).check(Inputs(**{name: True}))


# In a run -----------------------------------------------------------------------------------------


def test_messages_carry_only_what_is_trained(make: Make):
    simulation = simulate(experiment_of(make, Small(dim=2, freeze_until=1)))
    for direction in ("down", "up"):
        names = names_sent(simulation, "train", direction)
        assert {name.split(".")[2] for name in names if name.startswith("encoder.stages.")} == {"stage2"}
        assert {"encoder.projection.weight", "head.weight"} <= names
    start, end = simulation.site.initial, simulation.coordinator.state.shared
    assert not torch.equal(end["encoder.stages.stage2.1.running_mean"], torch.zeros(5))
    assert not any("stage1" in name for name in (*start, *end))


def test_weights_that_come_in_evaluation_mode_are_trained_in_training_mode(make: Make):
    class Read(Small):
        """Stages as a library gives those that it read."""

        def stages(self, channels):
            return {name: stage.eval() for name, stage in super().stages(channels).items()}

    mean = "encoder.stages.stage2.1.running_mean"
    experiments = [experiment_of(make, kind(dim=2), {"train.rounds": 1}) for kind in (Small, Read)]
    one, other = (simulate(experiment).coordinator.state.shared[mean] for experiment in experiments)
    assert torch.equal(one, other)


def test_engines_agree(make: Make):
    experiment = experiment_of(make, Small(dim=2, freeze_until=1, dropout=0.3), {"train.precision": "float64"})
    told: list[str] = []
    with engine_named("vectorised", told) as engine:
        assert_agree(simulate(experiment), simulate(experiment, engine=engine))
    assert not told


@pytest.mark.parametrize("bn", ["shared", "reestimate"])
def test_a_trained_model_predicts_from_images(make: Make, bn: str):
    """The frozen stages are in front, and stay as they are whatever the others do."""
    experiment = experiment_of(make, Small(dim=2, freeze_until=1), {"method.bn": bn})
    finished = Run(runner.start(experiment, Progress()))
    model, images = finished.model(), pictures().x
    given = embedding(Small(freeze_until=1), pictures()).x
    assert not torch.equal(model(images[:9]), model(images[9:18]))
    assert torch.equal(model(images), model(given))
    front = {name: tensor.clone() for name, tensor in model.front.state_dict().items()}
    model.train()
    assert not any(module.training for module in model.front.modules())
    model(images)
    assert all(torch.equal(tensor, front[name]) for name, tensor in model.front.state_dict().items())
    assert not any(parameter.requires_grad for parameter in model.front.parameters())
    for wrong in (images.float(), images[:, :, :6]):
        with refuses("(B, 4, 6, 6)", "uint8", "frozen stages"):
            model(wrong)


def federation_of(make: Make, folder: Path, model: Model, **data: Any) -> Path:
    experiment = experiment_of(make, model, {"protocol": {"name": "in-domain"}, "evaluate.batch": 3})
    experiment = experiment.replace(data=Pictures(**data))
    return members(folder, experiment, federation={"shape": [4, 6, 6], "classes": ["a", "b", "c"]})


def test_sites_freeze_as_a_simulation_does(make: Make, tmp_path: Path):
    folder = federation_of(make, tmp_path / "trial", Small(dim=2, freeze_until=1))
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    alike(run, rehearse(folder, Progress()))
    images = pictures().x
    assert torch.equal(site_model(folder / "sites" / "dark")(images), Run(run).model()(images))


def test_data_are_loaded_once_for_models_that_freeze_alike(monkeypatch: pytest.MonkeyPatch):
    loads: list[int] = []
    load = Pictures.load

    def counted(self, streams):
        loads.append(1)
        return load(self, streams)

    monkeypatch.setattr(Pictures, "load", counted)
    for model in (Small(dim=2), Small(dim=3), Small(dim=2, dropout=0.1)):
        assert load_data(Pictures(), model.frozen_network(), 5, "").x.shape[1:] == (3, 8, 8)
    assert len(loads) == 1
    for model in (Small(dim=2, freeze_until=1), Small(dim=3, freeze_until=1)):
        assert load_data(Pictures(), model.frozen_network(), 5, "").x.shape[1:] == (4, 6, 6)
    assert len(loads) == 2


# Published networks -------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [1, 3])
def test_a_resnet_of_a_folder_is_cut(tmp_path: Path, frozen: int):
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 2, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    data = large(32)
    cut = ResNet18(weights=str(tmp_path), freeze_until=frozen, dim=4)
    x = embedding(cut, data).x
    pooled = built(cut, tuple(x.shape[1:])).eval().stages(x).flatten(1)
    whole = frozen_network(str(tmp_path)).load().eval()
    scaled = (data.x / 255 - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)
    torch.testing.assert_close(pooled, whole(scaled), rtol=1e-4, atol=1e-5)


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


def test_efficientnet_from_a_stage_on_is_the_frozen_features_network(make: Make):
    data = large(64)
    model = EfficientNetLite0(freeze_until=7, dim=3)
    x = embedding(model, data).x
    assert x.shape[1:] == (192, 2, 2)
    encoder = built(model, (192, 2, 2))
    network = frozen_network("efficientnet-lite0")
    features = network.load().eval()((data.x / 255 - network.mean[0]) / network.std[0])
    torch.testing.assert_close(encoder.eval().stages(x), features, rtol=1e-4, atol=1e-4)
    assert {name.split(".")[1] for name in encoder.state_dict() if name.startswith("stages")} == {"stage8", "stage9"}


def test_efficientnet_is_trained(make: Make):
    """From stage 9 on, with its own dropout, stacked and one by one; messages carry that stage alone."""
    model = EfficientNetLite0(freeze_until=8, dim=4)
    experiment = experiment_of(make, model, {"train.rounds": 1, "train.precision": "float64"})
    told: list[str] = []
    one = simulate(experiment)
    with engine_named("vectorised", told) as engine:
        assert_agree(one, simulate(experiment, engine=engine), relative=1e-7)
    assert not told
    sent = names_sent(one, "train", "up")
    assert {name.split(".")[2] for name in sent if ".stages." in name} == {"stage9"}
