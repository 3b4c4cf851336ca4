"""What came of the exchanges of a round, so that a coordinator which is killed in it goes on to the same bits.

A later exchange brings what an earlier one was merged to, and a site answers one order for each exchange. So a
coordinator that is started again must merge the same answers, without those of a site that was away before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from fedshift import files
from fedshift.core.messages import Answer, Missing, Order, metadata, pack
from fedshift.errors import DamagedError
from fedshift.rounds.coordinator import Received


@dataclass(frozen=True)
class Journal:
    """The exchanges of one round that were merged, each a file.

    Attributes:
        folder: the run's.
        position: how many rounds were done before this one.
    """

    folder: Path
    position: int

    def read(self, place: int, orders: Sequence[Order]) -> list[Received] | None:
        """What came of the orders of an exchange, by its place in the round; None if it was not merged yet.

        Raises:
            DamagedError: the file is not what was written.
        """
        path = self._path(place)
        if not path.exists():
            return None
        try:
            data = path.read_bytes()
            answers, missing = load(data), json.loads(metadata(data)["missing"])
            return [
                Answer.from_bytes(answers[client].numpy().tobytes())
                if (client := str(order.client)) in answers
                else Missing(order.client, str(missing[client]))
                for order in orders
            ]
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            raise DamagedError(
                f"'{path}' is not what was written ({error}). Remove it to ask the sites again."
            ) from error

    def add(self, place: int, orders: Sequence[Order], received: Sequence[Received]) -> None:
        """Write down what came of the orders of an exchange, and was merged."""
        answers, missing = dict[str, torch.Tensor](), dict[str, str]()
        for order, came in zip(orders, received, strict=True):
            if isinstance(came, Answer):
                answers[str(order.client)] = torch.frombuffer(bytearray(came.to_bytes()), dtype=torch.uint8)
            else:
                missing[str(order.client)] = came.why if isinstance(came, Missing) else str(came)
        files.write(self._path(place), pack(answers, {"missing": json.dumps(missing)}))

    def remove_others(self) -> None:
        """Remove the files of other rounds: of those before there is a checkpoint, those after are taken back."""
        for path in self.folder.glob("exchange-*@*.safetensors"):
            if path.stem.partition("@")[2] != str(self.position):
                files.remove(path)

    def remove_all(self) -> None:
        """Remove every file, as a round is repeated to another end."""
        for path in self.folder.glob("exchange-*@*.safetensors"):
            files.remove(path)

    def _path(self, place: int) -> Path:
        return self.folder / f"exchange-{place}@{self.position}.safetensors"
