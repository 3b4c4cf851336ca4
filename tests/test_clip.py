"""CLIP through transformers, on a tiny network that the test makes and saves; no download."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import extras
from fedshift.clients.inputs import Inputs
from fedshift.methods.client2vec.clip import CLIP, MEAN, PUBLISHED_DIM, STD
from fedshift.streams import Streams
from refusal import refuses

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CLIP of random weights with a tokenizer of single letters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    with Streams(0).as_global("a tiny CLIP"):
        extras.clip()
    return tmp_path / "clip"


def test_images_and_texts_share_a_space(folder: Path):
    encoder = CLIP(path=str(folder))
    assert encoder.dim == 32
    images = torch.randint(256, (3, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    embedded = encoder.samples(images, Inputs())
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    pixels = (images / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        pooled = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
    torch.testing.assert_close(embedded, pooled, rtol=1e-4, atol=1e-6)
    texts = encoder.texts(["a photo of a dog", "a photo of a dog", "a photo of a cat and a very long tail of words"])
    assert texts.shape == (3, 32)
    torch.testing.assert_close(texts[0], texts[1])


def test_images_are_embedded_once_and_token_ids_as_text(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path))
    encoder, images = CLIP(path=str(folder)), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    first = encoder.samples(images, Inputs())
    monkeypatch.setattr(CLIP, "_images", None)  # to build the network again would fail
    assert torch.equal(CLIP(path=str(folder)).samples(images, Inputs()), first)
    read = encoder.samples(torch.tensor([[0, 1]]), Inputs(vocabulary=("a", "b")))
    assert torch.equal(read, encoder.texts(["The next character of ab"]))


def test_no_clip_is_a_readable_error(tmp_path: Path):
    with refuses("encoder.path", "'offline'"):
        _ = CLIP(path=str(tmp_path / "none")).dim


def test_the_published_model_has_the_dimensions_of_the_librarys_default():
    """Transformers' default configuration is that of openai/clip-vit-base-patch32."""
    import transformers

    assert transformers.CLIPConfig().projection_dim == PUBLISHED_DIM
    assert CLIP().dim == PUBLISHED_DIM
