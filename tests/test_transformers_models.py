"""Networks of the transformers library: read from a folder, cut, frozen, adapted; what is sent and put together."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from refusal import refuses

pytest.importorskip("transformers", reason="the extra 'images' is not installed")

import transformers

from conftest import Make, resident, simulate
from federated import Local, members
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD, Inputs
from fedshift.core.frozen import embed
from fedshift.core.model import ModelBuilder
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.site_data import site_model
from fedshift.engines.banks import Stacked
from fedshift.experiments import Experiment
from fedshift.models.opened import Fixing
from fedshift.models.transformer import Transformer
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.streams import Streams
from test_coordinate import alike
from test_engines import assert_agree, engine_named

SMALL: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
WORDS, LENGTH, SIDE = 24, 6, 8
PAD = 0


def networks() -> dict[str, Any]:
    """A small network of each kind, by name; the last three have no pooler, batch norm, or are causal."""
    text = {"vocab_size": WORDS, "max_position_embeddings": 16, "pad_token_id": PAD}
    image = {"image_size": SIDE, "patch_size": 4}
    distil = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}
    gpt = {"vocab_size": WORDS, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": PAD}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    tower = {"text_config": {**SMALL, **text, **ends}, "vision_config": {**SMALL, **image}}
    resnet = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}
    return {
        "bert": transformers.BertModel(transformers.BertConfig(**SMALL, **text)),
        "vit": transformers.ViTModel(transformers.ViTConfig(**SMALL, **image)),
        "clip": transformers.CLIPModel(transformers.CLIPConfig(**tower)),
        "distilbert": transformers.DistilBertModel(transformers.DistilBertConfig(**distil, **text)),
        "resnet": transformers.ResNetModel(transformers.ResNetConfig(**resnet)),
        "gpt2": transformers.GPT2Model(transformers.GPT2Config(**gpt, **ends)),
    }


PARTS = {"clip": "vision_model"}
TEXTS = ("bert", "distilbert", "gpt2")
EVERY = ("bert", "vit", "clip", "distilbert", "resnet", "gpt2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each is saved."""
    root = tmp_path_factory.mktemp("networks")
    with Streams(0).as_global("networks"):
        made = networks()
    for name, network in made.items():
        for buffer_name, buffer in network.named_buffers():  # as if it had seen images
            if "running_mean" in buffer_name:
                buffer.fill_(0.2)
        network.save_pretrained(root / name)
    return {name: root / name for name in made}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


def samples(name: str, count: int = 5) -> Tensor:
    """As a data set stores them: texts that end in padding, or images."""
    generator = Streams(0).generator("samples", name)
    if name not in TEXTS:
        return torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    x = torch.randint(3, WORDS, (count, LENGTH), generator=generator)
    x[1:, 4:] = PAD
    return x


def a_model(folders: dict[str, Path], name: str, **settings: Any) -> Transformer:
    return Transformer(path=str(folders[name]), part=PARTS.get(name, ""), **{"dim": 3, **settings})


def built(model: Transformer, shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    return ModelBuilder(model, shape, 3, Streams(seed), clients=2).encoder()


def given(model: Transformer, x: Tensor) -> Tensor:
    """What an encoder reads: what the frozen stages give, token ids, or pixels in 0..1."""
    network = model.frozen_network()
    if network is not None:
        return embed(x, network)
    return x if x.dtype == torch.int64 else x / 255


def encoded(model: Transformer, x: Tensor, seed: int = 0) -> Tensor:
    inputs = given(model, x)
    return built(model, tuple(inputs.shape[1:]), seed).eval()(inputs)


def hidden(name: str, folder: Path, x: Tensor) -> Any:
    """What the library itself gives for samples, with ImageNet's normalisation."""
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    if name == "clip":
        network = network.vision_model
    if name in TEXTS:
        return network(input_ids=x, attention_mask=(x != PAD).long())
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return network(pixel_values=(x / 255 - mean) / std)


# One encoder --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_the_mean_of_the_last_hidden_states(folders: dict[str, Path], name: str):
    """It is m in z = W m + b: over places, or over the tokens that do not pad, 6 of the first text, 4 of the others."""
    x = samples(name)
    encoder = built(a_model(folders, name), tuple(x.shape[1:])).eval()
    states = hidden(name, folders[name], x).last_hidden_state
    states = states.flatten(2).transpose(1, 2) if states.ndim == 4 else states
    if name in TEXTS:
        mean = torch.stack([states[0].mean(dim=0), *(row[:4].mean(dim=0) for row in states[1:])])
    else:
        mean = states.mean(dim=1)
    torch.testing.assert_close(encoder(given(a_model(folders, name), x)), encoder.projection(mean))


@pytest.mark.parametrize("name", ["bert", "resnet"])
@torch.no_grad()
def test_the_first_token_and_the_pooler(folders: dict[str, Path], name: str):
    x = samples(name)
    library, pooler = hidden(name, folders[name], x), a_model(folders, name, pooling="pooler")
    encoder, first = built(pooler, tuple(x.shape[1:])).eval(), pooler.replace(pooling="first")
    expected = encoder.projection(library.pooler_output.flatten(1))
    torch.testing.assert_close(encoder(given(pooler, x)), expected)
    if name == "resnet":
        with refuses("ResNetModel", "--set model.pooling=mean"):
            built(first, (3, SIDE, SIDE))
    else:
        encoder = built(first, tuple(x.shape[1:])).eval()
        expected = encoder.projection(library.last_hidden_state[:, 0])
        torch.testing.assert_close(encoder(given(first, x)), expected)


@torch.no_grad()
def test_vectors_in_the_place_of_embedded_tokens(folders: dict[str, Path]):
    """Of the network's own width they are read as they are, of another a linear layer is before it."""
    model = a_model(folders, "bert", vectors=True)
    network = transformers.AutoModel.from_pretrained(folders["bert"], attn_implementation="eager").eval()
    x, vectors = torch.randn(4, 5, 8), torch.randn(4, 7)
    encoder, other = built(model, (5, 8)).eval(), built(model, (7,)).eval()
    mean = network(inputs_embeds=x).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(encoder(x), encoder.projection(mean))
    mean = network(inputs_embeds=other.reader.entry(vectors).unsqueeze(1)).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(other(vectors), other.projection(mean))
    assert not any("word_embeddings" in name for name in other.state_dict())  # they are not read


def test_images_are_normalised_as_the_network_says(folders: dict[str, Path], tmp_path: Path):
    shutil.copytree(folders["vit"], tmp_path / "vit")
    said = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(said))
    x = samples("vit")
    own, plain = Transformer(path=str(tmp_path / "vit"), dim=3), a_model(folders, "vit")
    mean, std = (torch.tensor(said[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    imagenet = [torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD)]
    same = (x / 255 - mean) / std * imagenet[1] + imagenet[0]
    whole = built(own, (3, 8, 8)).eval()(x / 255)
    torch.testing.assert_close(whole, built(plain, (3, 8, 8)).eval()(same))
    torch.testing.assert_close(encoded(own.replace(freeze_until=2), x), whole, rtol=1e-4, atol=1e-5)
    with refuses("--set data.normalise=false"):
        plain.check(Inputs(normalise=True))


# Frozen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_a_cut_changes_nothing_that_is_predicted(folders: dict[str, Path], name: str):
    """Stages 1 to 3: before the layers, and two layers; frozen to the end, the layer to z is all that is left."""
    x = samples(name)
    whole = encoded(a_model(folders, name), x)
    for freeze_until in (1, 2):
        model = a_model(folders, name, freeze_until=freeze_until)
        torch.testing.assert_close(encoded(model, x), whole, rtol=1e-4, atol=1e-5)
        names = built(model, tuple(given(model, x).shape[1:])).state_dict()
        layers = [int(found[1]) for part in names if (found := re.search(r"\.(\d+)\.", part))]
        assert not any("embed" in part for part in names)
        assert min(layers) == freeze_until - 1
    last = a_model(folders, name, freeze_until=3)
    torch.testing.assert_close(encoded(last, x), whole, rtol=1e-4, atol=1e-5)
    assert set(built(last, tuple(given(last, x).shape[1:])).state_dict()) == {"1.weight", "1.bias"}
    with refuses("model.freeze_until = 4", "3 stages"):
        a_model(folders, name, freeze_until=4).frozen_network()


def test_a_network_that_cannot_be_cut_is_refused(tmp_path: Path):
    """Swin's layers receive how large the map is by those before them."""
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=4, depths=[1, 1], num_heads=[1, 2], window_size=2
    )
    transformers.SwinModel(config).save_pretrained(tmp_path)
    model = Transformer(path=str(tmp_path), dim=3, freeze_until=2)
    x = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    with refuses("model.freeze_until = 2", "SwinModel", "train it whole"):
        built(model, tuple(given(model, x).shape[1:]))
    assert encoded(model.replace(freeze_until=3), x).shape == (2, 3)


# Adapters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "clip"])
def test_adapters_begin_as_the_network_and_are_all_that_is_trained(folders: dict[str, Path], name: str):
    """B is 0 at first, so that W + B A alpha / r is W."""
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    x = samples(name)
    model = a_model(folders, name, adapter_rank=2)
    adapted, whole = (built(each, tuple(x.shape[1:])).eval() for each in (model, a_model(folders, name)))
    whole.projection = adapted.projection
    torch.testing.assert_close(adapted(given(model, x)), whole(given(model, x)))
    adapted(given(model, x)).sum().backward()
    assert all(parameter.grad is not None for parameter in adapted.parameters())
    names = set(adapted.state_dict())
    assert all(".lora_A." in name or ".lora_B." in name or name.startswith("projection.") for name in names)
    assert {name for name, _ in adapted.named_parameters()} == names


def test_the_network_is_held_once(folders: dict[str, Path], make: Make):
    """Both encoders of a method, the resident modules and a stack of clients read the same memory."""
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    changes = {"method.name": "fedpin", "method.alpha": 1e-4}
    simulation = simulate(of(make, "vit", a_model(folders, "vit", adapter_rank=2), changes), rounds=1)
    parts = [part.module for part in simulation.setup.parts.values()]
    for held in (resident(simulation).client.net, Stacked(resident(simulation), 2).net):
        parts += held.parts.values()
    encoders = [module for part in parts for module in part.modules() if isinstance(module, Fixing)]
    assert len(encoders) > 4
    (place,) = {
        tuple(held.data_ptr() for name, held in encoder.named_buffers() if ".network." in name and "lora" not in name)
        for encoder in encoders
    }
    assert len(place) > 20


# Errors -------------------------------------------------------------------------------------------


def test_a_network_that_cannot_be_had(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedshift.hub.answers", lambda: False)
    with refuses("model.path = ", "nowhere'", "ID@COMMIT"):
        Transformer(path=str(tmp_path / "nowhere")).check_here()
    with monkeypatch.context() as patched:
        patched.setattr("fedshift.hub.commit_of", lambda name: "0" * 40)
        with refuses(f"--set model.path=someone/encoder@{'0' * 40}"):
            Transformer(path="someone/encoder").check_here()
    with refuses("could not be read", "download it once"):
        built(Transformer(path=f"someone/encoder@{'0' * 40}"), (4,))
    file = shutil.copytree(folders["bert"], tmp_path / "cut") / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("encoder.layer.1.output.dense.weight")
    save_file(tensors, file, {"format": "pt"})
    with refuses("lacks weights", "encoder.layer.1.output.dense.weight"):
        built(Transformer(path=str(tmp_path / "cut")), (LENGTH,))


@pytest.mark.parametrize(
    ("name", "settings", "shape", "message"),
    [
        ("vit", {}, (3, 9, 9), ("(3, 9, 9)", "ViTModel")),
        ("vit", {"vectors": True}, (5, 8), ("reads images", "--set model.vectors=false")),
        ("distilbert", {"pooling": "pooler"}, (6,), ("DistilBertModel", "--set model.pooling=mean")),
        ("resnet", {"adapter_rank": 1}, (3, 8, 8), ("model.adapter_targets = []", "ResNetModel", "convolution")),
        ("clip", {"part": ""}, (3, 8, 8), ("CLIPModel",)),
    ],
)
def test_what_does_not_fit(
    folders: dict[str, Path], name: str, settings: dict, shape: tuple[int, ...], message: tuple[str, ...]
):
    with refuses(*message):
        built(a_model(folders, name).replace(**settings), shape)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("bert", Inputs(tokens=25), ("25 ids", "embeds 24", "data.tokens")),
        ("bert", Inputs(tokens=24, pad=3), ("id 3", "pad_token_id = 0", '"pad_token_id": 3')),
        ("bert", Inputs(), ("reads tokens", "--set data.tokens=TOKENIZER", "--set model.vectors=true")),
        ("vit", Inputs(tokens=24), ("reads images", "token ids", "--set data.tokens=hashing")),
    ],
)
def test_samples_that_are_not_read(folders: dict[str, Path], name: str, inputs: Inputs, message: tuple[str, ...]):
    with refuses(*message):
        a_model(folders, name).check(inputs)


# In a run -----------------------------------------------------------------------------------------


class Pictures(Dataset):
    """Twelve coloured images of each of three classes in each of three domains."""

    def domain_names(self):
        return ("dark", "gray", "light")

    def load(self, streams):
        y, domain = torch.arange(3).repeat(36), torch.arange(3).repeat_interleave(36)
        return DomainData(self.drawn(y, domain), y, domain, self.domain_names(), ("a", "b", "c"), torch.arange(108))

    def drawn(self, y, domain):
        return (samples("vit", 108) // 4 + (60 * y + 20 * domain).view(-1, 1, 1, 1)).byte()


class Texts(Pictures):
    """As many texts."""

    def inputs(self):
        return Inputs(tokens=WORDS, pad=PAD)

    def drawn(self, y, domain):
        return torch.cat([3 + y[:, None], samples("bert", 108)[:, 1:]], dim=1)


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._listed, "pictures", Pictures)
    monkeypatch.setitem(DATASETS._listed, "texts", Texts)


def of(make: Make, name: str, model: Transformer, changes: dict[str, Any] | None = None) -> Experiment:
    data = Texts() if name in TEXTS else Pictures()
    return make({"train.lr": 0.05, "train.rounds": 2, **(changes or {})}).replace(data=data, model=model)


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_adapters_and_heads_are_all_that_is_sent_and_kept(folders: dict[str, Path], make: Make, name: str):
    """Names and bytes of every message, the weights and the checkpoint; the network is named by its content.

    Of 8 x 8 layers an adapter of rank 2 has 32 numbers, of 8 x 12 ones 40: a layer of four and two has 208, and both
    416. The layer to z has 8 x 3 + 3 = 27 and the head 3 x 3 + 3 = 12: 455 numbers of 4 bytes. A message states the
    name, type and place of each of its tensors as well.
    """
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    run = runner.start(of(make, name, a_model(folders, name, adapter_rank=2)), Progress())
    (messages,) = run.messages.values()
    for direction in ("down", "up"):
        told = messages[direction]
        names = set(told["tensors"])
        assert names == set(run.weights)
        own = ("encoder.projection.", "head.")
        assert all(".lora_A." in each or ".lora_B." in each or each.startswith(own) for each in names)
        assert {each["type"] for each in told["tensors"].values()} == {"float32"}
        assert sum(torch.Size(each["shape"]).numel() for each in told["tensors"].values()) == 455
        assert told["bytes"] == told["messages"] * told["largest"]
        assert told["largest"] < 4 * 455 + sum(200 + len(each) for each in names)
    assert max(file.stat().st_size for file in run.path.glob("checkpoint@*")) < 20_000
    assert run.identity.contents["model.path"]
    assert run.model()(samples(name)).shape == (5, 3)


def test_a_model_is_put_together_again_from_the_same_network(folders: dict[str, Path], make: Make, tmp_path: Path):
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    here = shutil.copytree(folders["vit"], tmp_path / "network")
    experiment = of(make, "vit", Transformer(path=str(here), dim=3, adapter_rank=2))
    run, simulation, x = runner.start(experiment, Progress()), simulate(experiment), samples("vit")
    net = resident(simulation).client.net
    resident(simulation).client.load([simulation.coordinator.state.shared])
    for part in net.parts.values():
        part.eval()
    with torch.no_grad():
        torch.testing.assert_close(run.model()(x), net.head(net.encoder(x / 255)).log_softmax(dim=1))
    shutil.rmtree(here)
    networks()["vit"].save_pretrained(here)
    with refuses("model.path", "changed", "Restore"):
        Run(run.path).model()


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "resnet"])
@pytest.mark.parametrize("settings", [{}, {"freeze_until": 2}, {"adapter_rank": 2}])
def test_engines_agree(folders: dict[str, Path], make: Make, name: str, settings: dict[str, Any]):
    """Texts of BERT inspect their masks, so their clients run one by one, and a note mentions it."""
    if "adapter_rank" in settings:
        pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
        settings = settings | ({"adapter_targets": ("convolution",)} if name == "resnet" else {})
    experiment = of(make, name, a_model(folders, name, **settings), {"train.precision": "float64"})
    reference = simulate(experiment)
    for kind in ("workers", "vectorised"):
        told: list[str] = []
        with engine_named(kind, told) as engine:
            assert_agree(reference, simulate(experiment, engine=engine))
        stacks = kind == "workers" or name != "bert"
        assert bool(told) != stacks, told
        assert stacks or "data-dependent control flow" in told[0]


@pytest.mark.parametrize(
    ("name", "settings", "shape"), [("bert", {"freeze_until": 2}, [LENGTH, 9]), ("bert", {"adapter_rank": 2}, [LENGTH])]
)
def test_sites_work_as_a_simulation_does(
    folders: dict[str, Path], make: Make, tmp_path: Path, name: str, settings: dict[str, Any], shape: list[int]
):
    """Of texts, the coordinator knows from the data set alone that samples are token ids."""
    pytest.importorskip("peft", reason="the extra 'adapters' is not installed")
    changes = {"protocol": {"name": "in-domain"}, "evaluate.batch": 3}
    experiment = of(make, name, a_model(folders, name, **settings), changes)
    folder = members(tmp_path / "trial", experiment, federation={"shape": shape, "classes": ["a", "b", "c"]})
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    alike(run, rehearse(folder, Progress()))
    x = samples(name)
    assert torch.equal(site_model(folder / "sites" / "dark")(x), run.model()(x))
