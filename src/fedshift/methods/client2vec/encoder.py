"""Encoders: embeddings of samples and of sentences in one space.

Embeddings are divided by their norm, so DSA-IGN's reconstruction starts near 1/d (0.002 for d = 512), which is small
beside its other losses. With ``unit_norm = false`` they keep their norm, about 10 for CLIP, and the term is a hundred
times as large.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Client
from fedshift.page import *


class Encoder(Spec):
    """Embed samples and texts into one space of :attr:`dim` dimensions."""

    section: ClassVar[str] = "method.index.encoder"

    unit_norm: bool = setting(True, help="divide embeddings by their norm")

    @property
    def dim(self) -> int:
        """The dimension d of the embeddings."""
        raise NotImplementedError

    def samples(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Embed images (N, channels, height, width), vectors (N, features), or token ids (N, length): (N, d)."""
        raise NotImplementedError

    def texts(self, sentences: Sequence[str]) -> Tensor:
        """Embed sentences: (len(sentences), d)."""
        raise NotImplementedError


def pairs(encoder: Encoder, federated: FederatedData) -> FederatedData:
    """The federation with pairs [D, L] (N, 2, d) of sample and label embeddings (Client2Vec, Sec. 3.2).

    Labels of images and vectors are "A photo of a/an {class}"; texts are "The next character of {text}" and
    "Character {class}" (App. D.1).
    """
    labels = _scaled(encoder.texts([_description(name, federated.inputs) for name in federated.classes]), encoder)
    clients = tuple(_replace_samples(client, encoder, federated.inputs, labels) for client in federated.clients)
    return FederatedData(clients, (), federated.classes, Inputs())


def _replace_samples(client: Client, encoder: Encoder, inputs: Inputs, labels: Tensor) -> Client:
    data = _scaled(encoder.samples(client.train.x.cpu(), inputs), encoder)
    y = client.train.y.cpu()
    return replace(client, train=Samples(torch.stack([data, labels[y]], dim=1), y))


def _description(name: str, inputs: Inputs) -> str:
    if inputs.vocabulary:
        return f"Character {name}"
    if inputs.tokens:
        return f"A text of the class {name}"
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"A photo of {article} {name.replace('_', ' ')}"


def _scaled(rows: Tensor, encoder: Encoder) -> Tensor:

    return F.normalize(rows.float(), dim=1) if encoder.unit_norm else rows.float()
