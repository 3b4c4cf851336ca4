"""What crosses between the coordinator's machine and a site's: requests and replies, each a safetensors message.

An order and an answer are those of a simulation. Around them stand what only separate machines need: the session, a
proof that a site is the one that answered before, a model to be scored in the same message, and a failure in one of a
few fixed words, since the text of an error may quote samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from hmac import compare_digest
from hmac import new as hmac
from math import isnan, nan
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, StringConstraints
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, metadata, pack
from fedshift.core.metrics import Values
from fedshift.core.tensors import Tensors
from fedshift.errors import FedshiftError
from fedshift.manifest import checked
from fedshift.reporting.units import printable

Reason = Literal["policy", "models", "experiment", "data", "diverged", "audit", "state", "order", "session", "error"]
REASONS: Mapping[Reason, str] = {
    "policy": "refuses what the method needs",
    "models": "scores fewer models than the run asks for",
    "experiment": "has agreed on something else",
    "data": "has data that do not fit: `fedshift federation check` says there why",
    "diverged": "has numbers that are not finite",
    "audit": "would have sent what must stay",
    "state": "cannot read what it kept",
    "order": "refuses a request that it does not expect",
    "session": "has begun another session",
    "error": "has failed; its log says why",
}
NOBODY = -1  # the client's number of a site that never trains
MEGABYTE = 10**6
DECIMALS = 3  # of a score that leaves a site, as many as tables have
MOST_LOSS = 1e6  # nats; no model that learns is near it
MOST_SAMPLES = 10**9  # of a site
Unscored = Literal["model", "few"]
UNSCORED: Mapping[Unscored, str] = {
    "model": "its model needs what others keep",
    "few": "it has too few samples for a score to leave its site",
}
METRIC = "metrics."  # before the name of a score's metric among tensors
SAME = "same"  # says that what is scored is what the order begins with


@dataclass(frozen=True)
class Session:
    """What every request of a coordinator begins with.

    Attributes:
        run: the run's name, which all members derive from the experiment.
        agreed: a digest of all that the members agreed on.
        number: the site's own count of sessions, which it gives when the coordinator joins it; 0 until then.
        known: :func:`commitment` to the last reply that the coordinator has of the site; empty if it has none.
    """

    run: str
    agreed: str
    number: int = 0
    known: str = ""


@dataclass(frozen=True)
class Join:
    """Asks a site whether it can take part; ``agreed`` is what the coordinator has, by dotted name."""

    session: Session
    site: str
    agreed: dict[str, Any]

    def to_bytes(self) -> bytes:
        """As safetensors without tensors."""
        return _pack({}, "join", asdict(self))


@dataclass(frozen=True)
class Work:
    """Asks a site to score a model, if ``score`` is given, and then to carry out an order, if there is one.

    Attributes:
        session: the session that the site has begun for this coordinator.
        site: the site's name.
        position: how many rounds are done after this one.
        saved: how many rounds the oldest checkpoint has to which the coordinator may go back.
        order: what is to be done.
        score: the model that is to be scored, and after which round.
    """

    session: Session
    site: str
    position: int
    saved: int
    order: Order | None = None
    score: Order | None = None

    def to_bytes(self) -> bytes:
        """As safetensors; tensors that order and score share are in it once."""
        tensors: dict[str, Tensor] = {}
        about: dict[str, Any] = {
            "session": asdict(self.session),
            "site": self.site,
            "position": self.position,
            "saved": self.saved,
        }
        for name, order in (("order", self.order), ("score", self.score)):
            if order is None:
                continue
            about[name] = vars(order.trip)
            if name == "score" and self.order is not None and _alike(order.down, self.order.down):
                about[SAME] = True
            else:
                tensors |= order.down.under(name)
        return _pack(tensors, "work", about)


Request = Join | Work


@dataclass(frozen=True)
class Score:
    """A model's score on an environment of a site; what the site's policy withholds is None.

    Attributes:
        environment: the environment's name.
        role: what it is for.
        model: whose model was scored.
        models: how many.
        accuracy: in [0, 1].
        loss: mean negative log-likelihood in nats.
        n: how many samples were scored.
        metrics: what the experiment measures besides, by name; None: undefined on the environment. Empty where the site
            does not tell.
    """

    environment: str
    role: Literal["validation", "test"]
    model: Literal["global", "own", "unseen"]
    models: int
    accuracy: float | None
    loss: float | None
    n: int | None
    metrics: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Joined:
    """A site can take part.

    Attributes:
        site: the site's name.
        versions: of what computes there, by package.
        session: the number of the session that begins with this reply.
        samples: how many samples the site trains on; None where its policy withholds counts.
        proof: see :func:`proof`.
    """

    site: str
    versions: dict[str, str]
    session: int = 0
    samples: int | None = None
    proof: str = field(default="", compare=False)

    def to_bytes(self) -> bytes:
        """As safetensors; the number of samples is a tensor, so that it is on record as a count."""
        tensors = {} if self.samples is None else {"samples": torch.tensor(self.samples)}
        about = {"site": self.site, "versions": self.versions, "session": self.session, "proof": self.proof}
        return _pack(tensors, "joined", about)


@dataclass(frozen=True)
class Done:
    """What came of a :class:`Work`.

    Attributes:
        site: whose.
        answer: to the order.
        scores: of the model.
        unscored: why an environment has no score, by its name.
        proof: see :func:`proof`.
    """

    site: str
    answer: Answer | None = None
    scores: tuple[Score, ...] = ()
    unscored: Mapping[str, Unscored] = field(default_factory=dict)
    proof: str = field(default="", compare=False)

    def to_bytes(self) -> bytes:
        """As safetensors, numbers of scores among the tensors."""
        about: dict[str, Any] = {"site": self.site, "unscored": dict(self.unscored), "proof": self.proof}
        tensors: dict[str, Tensor] = {}
        if self.answer is not None:
            about["answer"] = vars(self.answer.trip)
            tensors |= self.answer.up.under("up") | self.answer.telemetry.under("telemetry")
        about["scores"] = [{name: getattr(score, name) for name in _SAID} for score in self.scores]
        for number, score in enumerate(self.scores):
            tensors |= {f"scores.{number}.{name}": tensor for name, tensor in score_tensors(score).items()}
        return _pack(tensors, "done", about)


@dataclass(frozen=True)
class Failed:
    """That a site could not, or would not, do what it was asked.

    Attributes:
        site: whose.
        reason: one of :data:`REASONS`.
        what: the settings that differ, or the categories that the site's policy refuses.
        proof: see :func:`proof`.
    """

    site: str
    reason: Reason
    what: tuple[str, ...] = ()
    proof: str = field(default="", compare=False)

    def to_bytes(self) -> bytes:
        """As safetensors, with the first :data:`MOST_NAMED` of what it names."""
        return _pack({}, "failed", asdict(self) | {"what": self.what[:MOST_NAMED]})

    def __str__(self) -> str:
        text = REASONS[self.reason]
        more = f" and {len(self.what) - 4} more" if len(self.what) > 4 else ""
        return f"{text} ({', '.join(self.what[:4])}{more})" if self.what else text


Reply = Joined | Done | Failed


def digest(data: bytes) -> str:
    """The SHA-256 of a message, in hexadecimal digits; nobody but its sender and its receiver knows it."""
    return sha256(data).hexdigest()


def commitment(reply: str) -> str:
    """The digest of a reply's digest, which tells a site which reply is meant, and nobody what it was."""
    return digest(reply.encode())


def proof(reply: str, request: bytes) -> str:
    """What only a site that sent a reply can say about a request.

    A reply with its proof is what the next proof is made of, so they form a chain: who has the site's key alone cannot
    go on with it.

    Args:
        reply: the digest of the reply to which the request commits; empty if there is none, then so is the proof.
        request: the request's bytes.
    """
    return hmac(reply.encode(), request, sha256).hexdigest() if reply else ""


def is_proof(given: str, reply: str, request: bytes) -> bool:
    """Whether a site's proof is right; the time that this takes tells nothing."""
    return compare_digest(given.encode(), proof(reply, request).encode())


class Limits(NamedTuple):
    """How large a message may be, in bytes: all of it, and its header, which is parsed before anything else."""

    message: int
    header: int

    def check_size(self, data: bytes) -> None:
        """Raise an error where a message is larger than that."""
        if len(data) > self.message:
            raise FedshiftError(f"sent {len(data):,} bytes, of {self.message:,} at most")


_SAID = ("environment", "role", "model", "models")


def score_tensors(score: Score) -> dict[str, Tensor]:
    """The numbers of a score, as they leave a site."""
    given = {"accuracy": score.accuracy, "loss": score.loss}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in given.items() if value is not None}
    for name, value in score.metrics.items():
        tensors[METRIC + name] = torch.tensor(nan if value is None else value, dtype=torch.float64)
    return tensors | ({} if score.n is None else {"n": torch.tensor(score.n)})


# Reading ------------------------------------------------------------------------------------------


def _in_one_line(text: str) -> str:
    if printable(text) != text:
        raise ValueError("it has characters that cannot be shown")
    return text


_Name = Annotated[str, StringConstraints(max_length=255), AfterValidator(_in_one_line)]
MOST_NAMED = 100  # of what a failure names
MOST_SCORES = 10_000
MOST_VERSIONS = 20


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _SaidTrip(_Strict):
    run: _Name
    stage: _Name
    round: PositiveInt
    exchange: _Name
    client: int


class _SaidSession(_Strict):
    run: _Name
    agreed: _Name
    number: NonNegativeInt
    known: _Name


class _SaidJoin(_Strict):
    session: _SaidSession
    site: _Name
    agreed: dict[_Name, Any]


class _SaidWork(_Strict):
    session: _SaidSession
    site: _Name
    position: NonNegativeInt
    saved: NonNegativeInt
    order: _SaidTrip | None = None
    score: _SaidTrip | None = None
    same: bool = False


class _SaidScore(_Strict):
    environment: _Name
    role: Literal["validation", "test"]
    model: Literal["global", "own", "unseen"]
    models: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]


class _SaidDone(_Strict):
    site: _Name
    proof: _Name
    unscored: dict[_Name, Unscored] = Field(max_length=MOST_SCORES)
    scores: list[_SaidScore] = Field(max_length=MOST_SCORES)
    answer: _SaidTrip | None = None


class _SaidFailed(_Strict):
    site: _Name
    proof: _Name
    reason: Reason
    what: list[_Name] = Field(max_length=MOST_NAMED)


class _SaidJoined(_Strict):
    site: _Name
    proof: _Name
    session: NonNegativeInt
    versions: dict[_Name, _Name] = Field(max_length=MOST_VERSIONS)


def read_request(data: bytes, limits: Limits) -> Request:
    """A request from its bytes.

    Raises:
        FedshiftError: they are none.
    """
    try:
        limits.check_size(data)
        kind, about, tensors = _unpack(data, limits)
        return _REQUESTS[kind](about, tensors)
    except _NOT_WRITTEN_HERE as error:
        raise FedshiftError(f"A message of the coordinator cannot be read ({error!s:.200}).") from error


def _join(about: dict[str, Any], tensors: Tensors) -> Join:
    said = checked(about, _SaidJoin)
    return Join(Session(**said.session.model_dump()), said.site, said.agreed)


def _work(about: dict[str, Any], tensors: Tensors) -> Work:
    said = checked(about, _SaidWork)
    order = _order(said.order, tensors.of("order"))
    score = _order(said.score, order.down if said.same and order else tensors.of("score"))
    return Work(Session(**said.session.model_dump()), said.site, said.position, said.saved, order, score)


_REQUESTS: dict[str, Callable[[dict[str, Any], Tensors], Request]] = {"join": _join, "work": _work}
_NOT_WRITTEN_HERE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, SafetensorError)


def read_reply(data: bytes, limits: Limits) -> Reply:
    """A reply from its bytes; whatever a site sends, this gives a reply or an error.

    Raises:
        FedshiftError: they are none.
    """
    limits.check_size(data)
    try:
        kind, about, tensors = _unpack(data, limits)
        return _REPLIES[kind](about, tensors)
    except _NOT_WRITTEN_HERE as error:
        raise FedshiftError(f"sent what is no reply ({error!s:.200})") from error


def _joined(about: dict[str, Any], tensors: Tensors) -> Joined:
    samples = {name: int(_number(name, tensor, _JOINED)) for name, tensor in tensors.items()}.get("samples")
    return Joined(**checked(about, _SaidJoined).model_dump(), samples=samples)


def _failed(about: dict[str, Any], tensors: Tensors) -> Failed:
    said = checked(about, _SaidFailed)
    return Failed(said.site, said.reason, tuple(said.what), said.proof)


def _done(about: dict[str, Any], tensors: Tensors) -> Done:
    said, answer = checked(about, _SaidDone), None
    if said.answer is not None:
        trip = said.answer.model_dump()
        answer = Answer(**trip, up=Up(tensors.of("up")), telemetry=Telemetry(tensors.of("telemetry")))
    scores = tuple(_score(each, tensors.of(f"scores.{number}")) for number, each in enumerate(said.scores))
    return Done(said.site, answer, scores, said.unscored, said.proof)


_REPLIES: dict[str, Callable[[dict[str, Any], Tensors], Reply]] = {"joined": _joined, "failed": _failed, "done": _done}


_JOINED = {"samples": (torch.int64, 0, MOST_SAMPLES)}
_NUMBERS = {
    "accuracy": (torch.float64, 0, 1),
    "loss": (torch.float64, 0, MOST_LOSS),
    "n": (torch.int64, 1, MOST_SAMPLES),
}


def _score(said: _SaidScore, tensors: Tensors) -> Score:
    """A score, whose numbers must be possible ones."""
    numbers = {name: _number(name, tensor, _NUMBERS) for name, tensor in tensors.items() if not name.startswith(METRIC)}
    metrics = {name: _metric(name, tensor) for name, tensor in tensors.of(METRIC.removesuffix(".")).items()}
    accuracy, loss, n = (numbers.get(name) for name in _NUMBERS)
    return Score(**said.model_dump(), accuracy=accuracy, loss=loss, n=None if n is None else int(n), metrics=metrics)


def _metric(name: str, tensor: Tensor) -> float | None:
    """A metric of a score; None where it is undefined, which crosses as nan."""
    if (tensor.dtype, tensor.shape) != (torch.float64, ()):
        raise ValueError(f"the metric {name:.100} of a score is a tensor {list(tensor.shape)} of {tensor.dtype}")
    number: float = tensor.item()
    if not (isnan(number) or 0 <= number <= 1):
        raise ValueError(f"the metric {name:.100} of a score is {number}")
    return None if isnan(number) else number


def _number(name: str, tensor: Tensor, declared: Mapping[str, tuple[torch.dtype, float, float]]) -> float:
    """A number of a reply, an integer where it is a count, in its range."""
    if name not in declared:
        raise ValueError(f"there is no number {name:.100} in such a reply")
    dtype, least, most = declared[name]
    if (tensor.dtype, tensor.shape) != (dtype, ()):
        raise ValueError(f"the number {name} is a tensor {list(tensor.shape)} of {tensor.dtype}")
    number: float = tensor.item()
    if not least <= number <= most:  # nan is not, either
        raise ValueError(f"{name} = {number}, which is not between {least} and {most:g}")
    return number


def _order(said: _SaidTrip | None, down: Tensors) -> Order | None:
    return None if said is None else Order(**said.model_dump(), down=Down(down))


def _alike(one: Down, other: Down) -> bool:
    """Whether two Downs are the same tensors."""
    return one.keys() == other.keys() and all(tensor is other[name] for name, tensor in one.items())


def _pack(tensors: Mapping[str, Tensor], kind: str, about: Mapping[str, Any]) -> bytes:
    return pack(tensors, {kind: json.dumps(about)})


def _unpack(data: bytes, limits: Limits) -> tuple[str, dict[str, Any], Tensors]:
    if (header := int.from_bytes(data[:8], "little")) > limits.header:
        raise ValueError(f"a header of {header:,} bytes, of {limits.header:,} at most")
    ((kind, text),) = metadata(data).items()
    return kind, json.loads(text), Tensors(load(data))
