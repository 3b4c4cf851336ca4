"""A character-level LSTM for text (LEAF, Caldas et al., 2018).

Characters are embedded, two LSTM layers read them in order, and the last hidden state of the upper layer is what is
known of the text.

*Choices*: LEAF classifies from that state; here a linear layer without a non-linearity takes it to z, so that z has
the dimension that a method asks for. A network is told the shape of its inputs but not which tokens occur, so the
size of the vocabulary is a setting; tokens that never occur cost a row of the embedding each.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Le
from torch import Tensor, nn

from fedshift.core.model import Model, Shape
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Width, setting


class LastState(nn.Module):
    """An embedding, LSTM layers, and a linear layer on the last hidden state."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, out: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.projection = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (B, length), whole numbers in 0..vocabulary - 1, to (B, out).

        Raises:
            FedshiftError: these are no token ids, or one is outside the vocabulary.
        """
        if x.is_floating_point():
            raise FedshiftError("The model 'lstm' reads token ids, not features; try 'mlp'.")
        largest = int(x.max()) if x.numel() else 0
        if largest >= self.vocabulary:
            raise FedshiftError(
                f"The text has the token {largest}, but model.vocabulary = {self.vocabulary}: "
                f"--set model.vocabulary={largest + 1} or more"
            )
        states, _ = self.lstm(self.embedding(x))
        z: Tensor = self.projection(states[:, -1])
        return z


class LSTM(Model):
    """LEAF's stacked LSTM for next-character prediction."""

    axes: ClassVar[int | None] = 1

    dim: Width = setting(256, help="dimension d of the representation z")
    vocabulary: Annotated[Count, Le(1_114_112)] = setting(
        128, help="how many tokens there are; those of the text must be fewer"
    )
    embedding: Width = setting(8, help="width of a character's embedding", source="LEAF")
    hidden: Width = setting(256, help="width of each LSTM layer", source="LEAF")
    layers: Annotated[Count, Le(32)] = setting(2, help="LSTM layers", source="LEAF")

    def encoder(self, shape: Shape, out: int) -> nn.Module:
        """Token ids (B, length) to (B, out)."""
        return LastState(self.vocabulary, self.embedding, self.hidden, self.layers, out)
