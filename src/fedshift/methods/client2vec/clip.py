"""CLIP: image and text encoders that are trained to match.

Radford et al., ICML 2021; Client2Vec uses ViT-B/32 (Sec. 3.2). The weights come from the Hugging Face hub or a local
folder.

Choices: images are resized to the network's size, without a crop, and embedded once (kept in the cache of frozen
features). Texts are cut to the length that the network reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fedshift.clients.inputs import Inputs
from fedshift.core.frozen import embed, frozen_network
from fedshift.hub import answers, reading
from fedshift.methods.client2vec.encoder import Encoder
from fedshift.page import *

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BATCH = 256
PUBLISHED, PUBLISHED_DIM = "openai/clip-vit-base-patch32", 512  # known before it is downloaded


class CLIP(Encoder):
    """CLIP's image and text encoders, by hub id or local folder."""

    path: str = setting(
        PUBLISHED,
        help="a hub id, or a folder written by save_pretrained",
        source="Sec. 3.2",
        path=True,
    )

    def check_here(self) -> None:
        """Check that the weights, or the hub, are available."""
        if not answers():
            _read(self.path)

    @property
    def dim(self) -> int:
        """Dimensions of the space that images and texts share."""
        if self.path == PUBLISHED:
            return PUBLISHED_DIM
        size: int = _read(self.path)[0].config.projection_dim
        return size

    def samples(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Embed uint8 images (N, channels, height, width) by the image encoder, texts by the text encoder: (N, d)."""
        if inputs.vocabulary:
            return self.texts([f"The next character of {text}" for text in inputs.text(x)])
        if inputs.tokens:
            raise FedshiftError(
                "CLIP reads images and characters, and the text of a tokenizer's ids is not kept: --set "
                "method.index.encoder=offline"
            )
        side: int = _read(self.path)[0].config.vision_config.image_size
        network = frozen_network(self.path)
        tower = replace(network, name=f"{network.name} (images)", load=self._images, mean=MEAN, std=STD)
        return embed(x, tower, side)

    def _images(self) -> nn.Module:
        return _Images(_read(self.path)[0])

    @torch.no_grad()
    def texts(self, sentences: Sequence[str]) -> Tensor:
        """Embed sentences by the text encoder: (N, d)."""
        model, tokenizer = _read(self.path)
        length = model.config.text_config.max_position_embeddings
        rows = []
        for start in range(0, len(sentences), BATCH):
            tokens = tokenizer(
                list(sentences[start : start + BATCH]),
                padding=True,
                truncation=True,
                max_length=length,
                return_tensors="pt",
            )
            rows.append(_features(model.get_text_features(**tokens)))
        return torch.cat(rows)


class _Images(nn.Module):
    """The image encoder with its projection into the shared space."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images (B, 3, height, width) to (B, d)."""
        return _features(self.model.get_image_features(pixel_values=x))


def _features(output: Any) -> Tensor:
    # a tensor or an output with it, depending on the version of transformers
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


@lru_cache(maxsize=1)
def _read(path: str) -> tuple[Any, Any]:

    with needs("images", "CLIP"):
        import transformers
    with reading(path, "encoder.path", "The encoder 'offline' needs neither."):
        model = transformers.CLIPModel.from_pretrained(path).eval().requires_grad_(False)
        return model, transformers.AutoTokenizer.from_pretrained(path)
