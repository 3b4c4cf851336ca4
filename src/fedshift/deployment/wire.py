"""What crosses between the coordinator's machine and a site's: requests and replies, each a safetensors message.

An order and an answer are those of a simulation. Around them stand what only separate machines need: which session of
the coordinator asks, a model to be scored in the same message, and a failure in one of a few fixed words, since the
text of an error may quote samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite, isnan, nan
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, StringConstraints
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, metadata, pack
from fedshift.core.metrics import Values
from fedshift.core.sealed import checked
from fedshift.core.tensors import Tensors
from fedshift.errors import FedshiftError
from fedshift.reporting.units import printable

Reason = Literal["policy", "experiment", "data", "diverged", "audit", "state", "order", "error"]
REASONS: Mapping[Reason, str] = {
    "policy": "refuses what the method needs",
    "experiment": "has agreed on something else",
    "data": "has data that do not fit: `fedshift federation check` says there why",
    "diverged": "has numbers that are not finite",
    "audit": "would have sent what must stay",
    "state": "cannot read what it kept",
    "order": "got an order that is not for it",
    "error": "has failed; its log says why",
}
NOBODY = -1  # the client's number of a site that never trains
MEGABYTE = 10**6
METRIC = "metrics."  # before the name of a score's metric among tensors
SAME = "same"  # says that what is scored is what the order begins with


@dataclass(frozen=True)
class Session:
    """A stretch of a run that a coordinator carries out without being started again.

    Attributes:
        run: what the members call the run.
        id: a larger one after each start.
        start: how many rounds were done when it began.
        agreed: a digest of all that the members agreed on.
    """

    run: str
    id: int
    start: int
    agreed: str


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
        session: who asks.
        site: whom.
        position: how many rounds are done after this one.
        saved: how many rounds the coordinator's checkpoint has.
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
    """That a site can take part, and the versions of what computes there."""

    site: str
    versions: dict[str, str]

    def to_bytes(self) -> bytes:
        """As safetensors."""
        return _pack({}, "joined", asdict(self))


@dataclass(frozen=True)
class Done:
    """What came of a :class:`Work`.

    Attributes:
        site: whose.
        answer: to the order.
        scores: of the model.
        unscored: the environments whose model only a simulation could make, of what several clients keep.
    """

    site: str
    answer: Answer | None = None
    scores: tuple[Score, ...] = ()
    unscored: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """As safetensors, numbers of scores among the tensors."""
        about: dict[str, Any] = {"site": self.site, "unscored": list(self.unscored)}
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
    """

    site: str
    reason: Reason
    what: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """As safetensors, with the first :data:`MOST_NAMED` of what it names."""
        return _pack({}, "failed", asdict(self) | {"what": self.what[:MOST_NAMED]})

    def __str__(self) -> str:
        text = REASONS[self.reason]
        more = f" and {len(self.what) - 4} more" if len(self.what) > 4 else ""
        return f"{text} ({', '.join(self.what[:4])}{more})" if self.what else text


Reply = Joined | Done | Failed
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
    id: NonNegativeInt
    agreed: _Name
    start: NonNegativeInt


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
    models: PositiveInt


class _SaidDone(_Strict):
    site: _Name
    unscored: list[_Name] = Field(max_length=MOST_SCORES)
    scores: list[_SaidScore] = Field(max_length=MOST_SCORES)
    answer: _SaidTrip | None = None


class _SaidFailed(_Strict):
    site: _Name
    reason: Reason
    what: list[_Name] = Field(max_length=MOST_NAMED)


class _SaidJoined(_Strict):
    site: _Name
    versions: dict[_Name, _Name] = Field(max_length=MOST_VERSIONS)


def read_request(data: bytes) -> Request:
    """A request from its bytes.

    Raises:
        FedshiftError: they are none.
    """
    try:
        kind, about, tensors = _unpack(data)
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


def read_reply(data: bytes, largest: int) -> Reply:
    """A reply from its bytes; whatever a site sends, this gives a reply or an error.

    Args:
        data: what came.
        largest: how many bytes there may be.

    Raises:
        FedshiftError: they are none.
    """
    if len(data) > largest:
        raise FedshiftError(f"sent {len(data):,} bytes, of {largest:,} at most")
    try:
        kind, about, tensors = _unpack(data)
        return _REPLIES[kind](about, tensors)
    except _NOT_WRITTEN_HERE as error:
        raise FedshiftError(f"sent what is no reply ({error!s:.200})") from error


def _joined(about: dict[str, Any], tensors: Tensors) -> Joined:
    return Joined(**checked(about, _SaidJoined).model_dump())


def _failed(about: dict[str, Any], tensors: Tensors) -> Failed:
    said = checked(about, _SaidFailed)
    return Failed(said.site, said.reason, tuple(said.what))


def _done(about: dict[str, Any], tensors: Tensors) -> Done:
    said, answer = checked(about, _SaidDone), None
    if said.answer is not None:
        trip = said.answer.model_dump()
        answer = Answer(**trip, up=Up(tensors.of("up")), telemetry=Telemetry(tensors.of("telemetry")))
    scores = tuple(_score(each, tensors.of(f"scores.{number}")) for number, each in enumerate(said.scores))
    return Done(said.site, answer, scores, tuple(said.unscored))


_REPLIES: dict[str, Callable[[dict[str, Any], Tensors], Reply]] = {"joined": _joined, "failed": _failed, "done": _done}


_NUMBERS = {"accuracy": torch.float64, "loss": torch.float64, "n": torch.int64}


def _score(said: _SaidScore, tensors: Tensors) -> Score:
    """A score, whose numbers must be possible ones."""
    numbers = {name: _number(name, tensor) for name, tensor in tensors.items() if not name.startswith(METRIC)}
    metrics = {name: _metric(name, tensor) for name, tensor in tensors.of(METRIC.removesuffix(".")).items()}
    accuracy, loss, n = (numbers.get(name) for name in _NUMBERS)
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise ValueError(f"an accuracy is {accuracy}")
    if n is not None and n < 1:
        raise ValueError(f"{n} samples were scored")
    return Score(**said.model_dump(), accuracy=accuracy, loss=loss, n=None if n is None else int(n), metrics=metrics)


def _metric(name: str, tensor: Tensor) -> float | None:
    """A metric of a score; None where it is undefined, which crosses as nan."""
    if (tensor.dtype, tensor.shape) != (torch.float64, ()):
        raise ValueError(f"the metric {name:.100} of a score is a tensor {list(tensor.shape)} of {tensor.dtype}")
    number: float = tensor.item()
    if not (isnan(number) or 0 <= number <= 1):
        raise ValueError(f"the metric {name:.100} of a score is {number}")
    return None if isnan(number) else number


def _number(name: str, tensor: Tensor) -> float:
    """A number of a score, an integer where it is a count."""
    if name not in _NUMBERS:
        raise ValueError(f"a score has no {name:.100}")
    if (tensor.dtype, tensor.shape) != (_NUMBERS[name], ()):
        raise ValueError(f"the {name} of a score is a tensor {list(tensor.shape)} of {tensor.dtype}")
    number: float = tensor.item()
    if not isfinite(number):
        raise ValueError(f"the {name} of a score is {number}")
    return number


def _order(said: _SaidTrip | None, down: Tensors) -> Order | None:
    return None if said is None else Order(**said.model_dump(), down=Down(down))


def _alike(one: Down, other: Down) -> bool:
    """Whether two Downs are the same tensors."""
    return one.keys() == other.keys() and all(tensor is other[name] for name, tensor in one.items())


def _pack(tensors: Mapping[str, Tensor], kind: str, about: Mapping[str, Any]) -> bytes:
    return pack(tensors, {kind: json.dumps(about)})


def _unpack(data: bytes) -> tuple[str, dict[str, Any], Tensors]:
    ((kind, text),) = metadata(data).items()
    return kind, json.loads(text), Tensors(load(data))
