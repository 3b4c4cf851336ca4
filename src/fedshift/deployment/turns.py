"""What a site was asked in a run, and what it replied: one order and one model to be scored for each position.

A coordinator that asks again for the same gets the same reply. If it could ask with other weights, it could work out a
sample from the replies. The exception is a request that the site could not answer, as where a merged model has diverged
and the coordinator repeats the round without whoever spoilt it; there are :data:`MOST_REPLACED` of these in a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedshift import files
from fedshift.deployment.wire import commitment
from fedshift.errors import DamagedError, FedshiftError
from fedshift.manifest import checked, parsed
from fedshift.runs.schema import File, Size

MOST_REPLACED = 10
REPLIES_KNOWN = 100  # the coordinator has one of the last few
Kind = Literal["orders", "scores"]
Key = tuple[int, ...]
_WHAT: Mapping[Kind, str] = {"orders": "order", "scores": "model to be scored"}


class TakenError(FedshiftError):
    """Something else was asked for before."""


class _Asked(File):
    """A request: a digest of it, its round such as "train 3", and whether it was answered, or failed."""

    digest: str
    round: str
    state: Literal["begun", "answered", "failed"] = "begun"


class _Said(File):
    """What the file says.

    Attributes:
        session: the number of the newest session.
        orders: by position and the exchange's place in its stage, such as "3-0".
        scores: by position.
        replaced: how many failed requests were replaced by others.
        replies: the digests of the last replies, the newest last.
    """

    session: Size
    orders: dict[str, _Asked] = Field(default_factory=dict)
    scores: dict[str, _Asked] = Field(default_factory=dict)
    replaced: Size = 0
    replies: list[str] = Field(default_factory=list)


class Turns:
    """The requests of a run that a site has taken; every change is on the disk at once."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one.

        Raises:
            DamagedError: it cannot be read.
        """
        self._path = path
        try:
            self._said = checked(parsed(path.read_bytes()), _Said) if path.exists() else _Said(session=0)
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"'{path}' is not what was written ({error}). Remove it before the coordinator is started again."
            ) from error

    @property
    def session(self) -> int:
        """The number of the newest session; 0 before the first."""
        return self._said.session

    def begin_session(self) -> int:
        """Begin a session; its number, which the site counts itself, so that no message can skip any."""
        self._write(session=self.session + 1)
        return self.session

    # Requests -------------------------------------------------------------------------------------

    def answered(self, kind: Kind) -> list[Key]:
        """The keys of the requests that were answered, sorted."""
        return sorted(_key(name) for name, asked in self._of(kind).items() if asked.state == "answered")

    def take(self, kind: Kind, key: Key, digest: str, round: str) -> None:
        """Take a request, which is on record before anything is computed for it.

        Args:
            kind: an order, or a model to be scored.
            key: its position and, of an order, the exchange's place in its stage.
            digest: of what is asked.
            round: its stage and round, which may come at one position only.

        Raises:
            TakenError: something else was asked for before, the round came at another position, or a later order was
                answered.
        """
        before, replaced = self._of(kind).get(_name(key)), self._said.replaced
        for name, asked in self._of(kind).items():
            if asked.state != "failed" and (asked.round, _key(name)[1:]) == (round, key[1:]) and _key(name) != key:
                raise TakenError(f"The {_WHAT[kind]} of round {round} came at position {name} before.")
        if before is not None and before.digest == digest:
            return
        if before is not None:
            what = f"The {_WHAT[kind]} of position {_name(key)}"
            if before.state != "failed":
                raise TakenError(
                    f"{what} is another than before; one of each is answered. Where the coordinator has good reasons "
                    f"to begin the run once more, move '{self._path.parent}' away, which lets it."
                )
            if replaced >= MOST_REPLACED:
                raise TakenError(f"{what} would be the run's {replaced + 1}th that replaces one which failed.")
            replaced += 1
        elif any(each[0] > key[0] + 1 or (kind == "orders" and each > key) for each in self.answered("orders")):
            raise TakenError(f"The {_WHAT[kind]} of position {_name(key)} came after a later order.")
        self._write(replaced=replaced, **{kind: {**self._of(kind), _name(key): _Asked(digest=digest, round=round)}})

    def end(self, kind: Kind, key: Key, state: Literal["answered", "failed"]) -> None:
        """Write down what came of a request that was taken."""
        asked = self._of(kind)[_name(key)]
        if asked.state != state:
            self._write(**{kind: {**self._of(kind), _name(key): asked.model_copy(update={"state": state})}})

    # Replies --------------------------------------------------------------------------------------

    def replied(self, digest: str) -> None:
        """Add a reply that is about to leave, by its digest."""
        self._write(replies=[*self._said.replies, digest][-REPLIES_KNOWN:])

    def reply(self, known: str) -> str:
        """The digest of the reply to which the coordinator commits; empty if it is none of the last ones."""
        return next((each for each in reversed(self._said.replies) if commitment(each) == known), "")

    def _of(self, kind: Kind) -> dict[str, _Asked]:
        return self._said.orders if kind == "orders" else self._said.scores

    def _write(self, **changes: object) -> None:
        said = self._said.model_copy(update=changes)
        files.write(self._path, said.model_dump_json(), private=True)
        self._said = said


def _name(key: Key) -> str:
    return "-".join(map(str, key))


def _key(name: str) -> Key:
    return tuple(map(int, name.split("-")))
