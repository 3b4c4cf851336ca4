"""CLIP through transformers, on a tiny network that the test makes and saves; no download."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedshift.clients.inputs import Inputs
from fedshift.methods.client2vec.clip import CLIP, MEAN, STD
from fedshift.streams import Streams
from refusal import refuses

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of random weights with a tokenizer of single letters."""
    path = tmp_path_factory.mktemp("clip")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (path / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer(str(path / "vocab.json"), str(path / "merges.txt")).save_pretrained(path)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": len(words), "eos_token_id": len(words) - 1, "bos_token_id": len(words) - 2}
    config = transformers.CLIPConfig(
        text_config={**text, "max_position_embeddings": 20},
        vision_config={**small, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    with Streams(0).as_global("a tiny CLIP"):
        transformers.CLIPModel(config).save_pretrained(path)
    return path


def test_images_and_texts_share_a_space(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path))
    encoder = CLIP(path=str(folder))
    assert encoder.dim == 8
    images = torch.randint(256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    embedded = encoder.samples(images, Inputs())
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    pixels = (images / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        pooled = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
    torch.testing.assert_close(embedded, pooled, rtol=1e-4, atol=1e-6)
    texts = encoder.texts(["a photo of a dog", "a photo of a dog", "a photo of a cat and a very long tail of words"])
    assert texts.shape == (3, 8)
    torch.testing.assert_close(texts[0], texts[1])


def test_no_clip_is_a_readable_error(tmp_path: Path):
    with refuses("encoder.path", "'offline'"):
        _ = CLIP(path=str(tmp_path / "none")).dim
