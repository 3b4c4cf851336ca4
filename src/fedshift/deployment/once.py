"""Replies of a site that are computed once: whoever asks for the same again gets what is kept on the disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedshift import files
from fedshift.core.messages import Order
from fedshift.deployment.limits import MessageLimits
from fedshift.deployment.turns import Key, Kind, Turns
from fedshift.deployment.wire import Done, digest, read_reply
from fedshift.errors import DamagedError, FedshiftError

_FILE = re.compile(r"(orders|scores)@(\d+)(-\d+)?\.safetensors")
_OWN = MessageLimits(2**40, 2**30)  # the site has written it itself


@dataclass(frozen=True)
class Once:
    """The replies of a run that are kept.

    Attributes:
        folder: of their files, which is made with the first.
        turns: what was asked, and what came of it.
    """

    folder: Path
    turns: Turns

    def reply(self, kind: Kind, key: Key, order: Order, make: Callable[[], Done]) -> Done:
        """The reply that is kept; where there is none, it is made and kept.

        Args:
            kind: whether an order is carried out, or its model scored.
            key: the position and, of an order, the exchange's place in its stage.
            order: what is asked.
            make: computes the reply.

        Raises:
            FedshiftError: something else was asked for at this position, or there is no reply.
        """
        self.turns.take(kind, key, digest(order.to_bytes()), f"{order.stage} {order.round}")
        path = self.folder / f"{kind}@{'-'.join(map(str, key))}.safetensors"
        if key in self.turns.answered(kind) and path.exists():
            return _read(path)
        try:
            done = make()
        except Exception:
            self.turns.end(kind, key, "failed")
            raise
        files.make_folder(self.folder)
        files.write(path, done.to_bytes(), private=True)
        self.turns.end(kind, key, "answered")
        return done

    def prune(self, position: int) -> None:
        """Remove the replies that a coordinator cannot ask for again when it has a checkpoint of a position."""
        for path in self.folder.glob("*@*"):
            if (match := _FILE.fullmatch(path.name)) and int(match[2]) < position + (match[1] == "orders"):
                files.remove(path)


def _read(path: Path) -> Done:
    """A reply that was kept.

    Raises:
        DamagedError: it is not what was written.
    """
    try:
        done = read_reply(path.read_bytes(), _OWN)
    except (OSError, FedshiftError) as error:
        raise DamagedError(
            f"'{path}' is not what was written ({error}). Remove it, so that it is made again."
        ) from error
    if not isinstance(done, Done):
        raise DamagedError(f"'{path}' is another reply. Remove it, so that it is made again.")
    return done
