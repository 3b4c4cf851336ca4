"""What an encoder gives: embeddings of samples and of sentences, equally long.

Choices: embeddings are divided by their norm, so the mean squared entry, which DSA-IGN's reconstruction starts near, is
1/d (0.002 for d = 512), little beside its other losses. With ``unit_norm = false`` they keep their norm, which is about
10 for CLIP: reconstruction then weighs a hundred times as much.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Client
from fedshift.page import *


class Encoder(Spec):
    """Embeds samples and texts into one space of :attr:`dim` dimensions."""

    section: ClassVar[str] = "method.index.encoder"

    unit_norm: bool = setting(True, help="divide embeddings by their norm; false: as the encoder gives them")

    @property
    def dim(self) -> int:
        """The number d of dimensions."""
        raise NotImplementedError

    def samples(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Embed images (N, channels, height, width), vectors (N, features), or token ids (N, length): (N, d)."""
        raise NotImplementedError

    def texts(self, sentences: Sequence[str]) -> Tensor:
        """Embed sentences: (len(sentences), d)."""
        raise NotImplementedError


def pairs(encoder: Encoder, federated: FederatedData) -> FederatedData:
    """The federation whose samples are pairs [D, L] (N, 2, d) of an embedding and its label's (Client2Vec, Sec. 3.2).

    Images and vectors are described by "A photo of a/an {class}"; texts by "The next character of {text}" and
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
    """Embeddings (N, d), divided by their norm if the encoder's are to be; zeros stay zeros."""
    return F.normalize(rows.float(), dim=1) if encoder.unit_norm else rows.float()
