"""A site's requests and replies in a run: one order and one model to score for each position.

A repeated request gets the same reply, which is kept on disk. If a coordinator could repeat a request with other
weights, it could derive a sample from the replies. The exception is a request that the site could not answer, for
example because an aggregated model has diverged and the coordinator repeats the round without the cause; a run may have
:data:`MOST_REPLACED` of these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from fedshift import files
from fedshift.core.messages import Order
from fedshift.core.setup import Round, Setup
from fedshift.deployment.keys import commitment, digest
from fedshift.deployment.wire import MOST_NAMED, NOBODY, Done, Reason, read_done
from fedshift.errors import FedshiftError
from fedshift.manifest import checked, intact, parsed
from fedshift.rounds.message_checks import check_order
from fedshift.runs.schema import File, Size

TURNS, REPLIES = "turns.json", "replies"
MOST_REPLACED = 10
REPLIES_KNOWN = 100  # the coordinator has one of the last replies
Kind = Literal["order", "score"]


class CannotError(FedshiftError):
    """The reason why a site does not fulfil a request, in words that may leave it."""

    def __init__(self, reason: Reason, text: str, what: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.reason, self.what = reason, what[:MOST_NAMED]


class Turn(NamedTuple):
    """A request that a site takes once: an order of an exchange of a round, or a model to score after a round."""

    kind: Kind  # order or score
    position: int  # the number of rounds that are done after it
    place: int = 0  # for an order, the exchange's place in its stage


class TakenTurn(File):
    """A request: its turn, digest, round such as "train 3", and whether it was answered or failed."""

    kind: Kind
    position: Size
    place: Size
    digest: str
    round: str
    state: Literal["begun", "answered", "failed"] = "begun"


class TurnsFile(File):
    """turns.json."""

    session: Size  # the number of the newest session
    taken: list[TakenTurn] = Field(default_factory=list)  # the requests
    replaced: Size = 0  # the number of failed requests that were replaced
    replies: list[str] = Field(default_factory=list)  # the digests of the last replies, the newest last


class Turns:
    """The requests that a site has taken in a run, and its replies; every change is durable at once."""

    def __init__(self, folder: Path) -> None:
        """Read or create the folder of the run's state.

        Raises:
            DamagedError: its file cannot be read.
        """
        self._path, self._replies = folder / TURNS, folder / REPLIES
        files.make_folder(self._replies)
        self._now = TurnsFile(session=0)
        if self._path.exists():
            with intact(self._path, "Remove it before the coordinator is started again."):
                self._now = checked(parsed(self._path.read_bytes()), TurnsFile)
        self._taken = {Turn(each.kind, each.position, each.place): each for each in self._now.taken}

    @property
    def session(self) -> int:
        """The number of the newest session; 0 before the first."""
        return self._now.session

    def begin_session(self) -> int:
        """Start a session; its number, which the site counts itself, so that no message can skip any."""
        self._write(session=self.session + 1)
        return self.session

    # Requests -------------------------------------------------------------------------------------

    def answered(self, kind: Kind) -> list[Turn]:
        return sorted(turn for turn, taken in self._taken.items() if (turn.kind, taken.state) == (kind, "answered"))

    def reply(self, turn: Turn, order: Order, make: Callable[[], Done]) -> Done:
        """The kept reply; a missing one is computed and kept.

        Args:
            turn: the turn.
            order: the order, or the model to score.
            make: computes the reply.
        """
        self._take(turn, digest(order.to_bytes()), f"{order.stage} {order.round}")
        path = self._reply(turn)
        if turn in self.answered(turn.kind) and path.exists():
            return _read(path)
        try:
            done = make()
        except Exception:
            self.end(turn, "failed")
            raise
        files.write(path, done.to_bytes(), private=True)
        self.end(turn, "answered")
        return done

    def _take(self, turn: Turn, digest: str, round: str) -> None:
        """Record a request before anything is computed for it.

        Raises:
            CannotError: another request was taken before, the round came at another position, or a later order was
                answered.
        """
        replaced, what = self._now.replaced, "The order" if turn.kind == "order" else "The model to be scored"
        for other, each in self._taken.items():
            same = (other.kind, other.place, each.round) == (turn.kind, turn.place, round)
            if same and each.state != "failed" and other != turn:
                raise CannotError("order", f"{what} of round {round} came at position {other.position} before.")
        before = self._taken.get(turn)
        if before is not None and before.digest == digest:
            return
        if before is not None:
            if before.state != "failed":
                raise CannotError(
                    "order",
                    f"{what} of position {turn.position} differs from the earlier one; each is answered once. If the "
                    "coordinator has good reasons to restart the run, move "
                    f"'{self._path.parent}' away, which lets it.",
                )
            if replaced >= MOST_REPLACED:
                raise CannotError(
                    "order", f"{what} would be the run's {replaced + 1}th replacement of a failed request."
                )
            replaced += 1
        elif any(
            each.position > turn.position + 1 or (turn.kind == "order" and each > turn)
            for each in self.answered("order")
        ):
            raise CannotError("order", f"{what} of position {turn.position} came after a later order.")
        self._taken[turn] = TakenTurn(**turn._asdict(), digest=digest, round=round)
        self._write(replaced=replaced)

    def end(self, turn: Turn, state: Literal["answered", "failed"]) -> None:
        """Record the outcome of a request."""
        if self._taken[turn].state != state:
            self._taken[turn] = self._taken[turn].model_copy(update={"state": state})
            self._write()

    def prune(self, position: int) -> None:
        """Remove replies that a coordinator with a checkpoint of a position can no longer request."""
        for turn in self._taken:
            if turn.position < position + (turn.kind == "order"):
                files.remove(self._reply(turn))

    def _reply(self, turn: Turn) -> Path:
        return self._replies / f"{turn.kind}@{turn.position}-{turn.place}.safetensors"

    # Replies --------------------------------------------------------------------------------------

    def replied(self, digest: str) -> None:
        """Add the digest of a reply that is about to leave."""
        self._write(replies=[*self._now.replies, digest][-REPLIES_KNOWN:])

    def last_reply(self, known: str) -> str:
        """The digest of the reply to which the coordinator commits; empty if it is not among the last ones."""
        return next((each for each in reversed(self._now.replies) if commitment(each) == known), "")

    def _write(self, **changes: object) -> None:
        self._now = self._now.model_copy(update={**changes, "taken": list(self._taken.values())})
        files.write(self._path, self._now.model_dump_json(), private=True)


def _read(path: Path) -> Done:
    with intact(path, "Remove it, so that it is created again."):
        return read_done(path.read_bytes())


# Which turn a request is --------------------------------------------------------------------------


def check_turn(setup: Setup, order: Order, position: int, client: int | None) -> int:
    """The place of an order's exchange in its round.

    Args:
        setup: the run's setup.
        order: the order.
        position: the number of rounds that are done after it.
        client: the number of the site's client; None for the target.
    """
    round = _round(setup, order, position, client)
    place = next((n for n, each in enumerate(round.stage.exchanges) if each.name == order.exchange), None)
    if place is None:
        raise CannotError("order", f"The stage '{order.stage}' has no exchange '{order.exchange}'.")
    check_order(setup, order, round.stage.exchanges[place])
    return place


def check_score(setup: Setup, score: Order, position: int, client: int | None) -> None:
    """Refuse a model for another site, or of a round that is not scored; see :func:`check_turn`."""
    if not setup.scored(_round(setup, score, position, NOBODY if client is None else client)):
        raise CannotError("order", f"The model of round {score.round} is not to be scored.")
    if client is not None:  # the target is sent more than any client is
        check_order(setup, score, setup.find(score.stage, score.exchange)[1])


def _round(setup: Setup, order: Order, position: int, client: int | None) -> Round:
    """The round of an order, which must follow from its position; stages may end early."""
    if (order.run, order.client) != (setup.run, client):
        raise CannotError("order", f"This is client {order.client} of the run {order.run}, not this site's.")
    planned = 0
    for stage in setup.stages:
        if stage.name == order.stage and 1 <= order.round <= stage.rounds:
            planned += order.round
            if position == planned or (setup.train.patience != "off" and order.round <= position < planned):
                return Round(stage, order.round)
            break
        planned += stage.rounds
    raise CannotError("order", f"Round {order.round} of the stage '{order.stage}' is not the {position}th.")
