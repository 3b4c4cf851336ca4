"""Requests and replies between the coordinator's machine and a site's, each a safetensors message.

Every message is a dataclass. Its fields are JSON in the message's header, and their types are checked on reading;
tensors, and numbers that a site's policy may withhold, are tensors of the message. Orders and answers are wrapped with
what only separate machines need: the session, a proof that the site sent the earlier replies, a model to score in the
same message, and a failure in one of a few fixed words, since an error's text may quote samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from safetensors import SafetensorError
from torch import Tensor

from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, metadata, pack, unpack
from fedshift.core.tensors import Tensors
from fedshift.errors import FedshiftError
from fedshift.written import printable

Reason = Literal["policy", "models", "experiment", "data", "diverged", "audit", "state", "order", "session", "error"]
REASONS: Mapping[Reason, str] = {
    "policy": "refuses what the method needs",
    "models": "scores fewer models than the run requires",
    "experiment": "has agreed on something else",
    "data": "has data that do not fit: `fedshift federation check` explains it there",
    "diverged": "has numbers that are not finite",
    "audit": "would have sent what must stay",
    "state": "cannot read what it kept",
    "order": "refuses a request that it does not expect",
    "session": "has started another session",
    "error": "has failed; its log has the reason",
}
NOBODY = -1  # the client's number of a site that never trains
DECIMALS = 3  # of a score that leaves a site, as many as tables have
MOST_LOSS = 1e6  # nats; no model that learns is near it
MOST_SAMPLES = 10**9  # of a site
MOST_NAMED = 100  # of what a failure names
MOST_SCORES = 10_000
MOST_VERSIONS = 20
Unscored = Literal["model", "few"]
UNSCORED: Mapping[Unscored, str] = {
    "model": "its model needs what others keep",
    "few": "it has too few samples for a score to leave its site",
}
METRIC = "metrics."  # before the name of a score's metric among tensors
ENDS = ("low.", "high.")  # the prefix of an interval's ends


def _in_one_line(text: str) -> str:
    if printable(text) != text:
        raise ValueError("it has characters that cannot be shown")
    return text


Name = Annotated[str, StringConstraints(max_length=255), AfterValidator(_in_one_line)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Samples = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
STRICT = ConfigDict(strict=True, extra="forbid")
AS_TENSOR = Field(exclude=True, validate_default=True)  # a number that is no part of the header


# Orders and answers: the header has their trip, the message their tensors -------------------------


class TripHeader(BaseModel):
    """The exchange of an order or an answer."""

    model_config = STRICT
    run: Name
    stage: Name
    round: PositiveInt
    exchange: Name
    client: int


def _tensors(info: ValidationInfo) -> Tensors:
    return Tensors(info.context)


def _read_order(value: object, info: ValidationInfo) -> Order:
    order = info.data.get("order")
    down = order.down if order and info.data.get("same") else Down(_tensors(info).of(str(info.field_name)))
    return Order(**TripHeader.model_validate(value).model_dump(), down=down)


def _read_answer(value: object, info: ValidationInfo) -> Answer:
    trip, tensors = TripHeader.model_validate(value).model_dump(), _tensors(info)
    return Answer(**trip, up=Up(tensors.of("up")), telemetry=Telemetry(tensors.of("telemetry")))


_as_trip = PlainSerializer(lambda about: vars(about.trip))
SentOrder = Annotated[Order, PlainValidator(_read_order), _as_trip]
SentAnswer = Annotated[Answer, PlainValidator(_read_answer), _as_trip]


# Messages -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packet:
    """A request or a reply."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def tensors(self) -> Mapping[str, Tensor]:
        return {}

    def to_bytes(self) -> bytes:
        word = type(self).__name__.lower()
        return pack(self.tensors(), {word: json.dumps(_PACKETS[word].dump_python(self))})


@dataclass(frozen=True, kw_only=True)
class SiteRequest(Packet):
    """The fields of every request of a coordinator."""

    site: Name  # the site's name
    run: Name  # the run's name, which all members derive from the experiment
    agreed: Name  # a digest of the agreement
    # the site's count of sessions, which it returns when the coordinator joins it; 0 until then
    session: NonNegativeInt = 0
    # commitment (see :mod:`fedshift.deployment.keys`) to the last reply that the coordinator has of the site; empty if
    # it has none
    known: Name = ""


@dataclass(frozen=True, kw_only=True)
class Join(SiteRequest):
    """Requests a site to take part; ``settings`` is the coordinator's agreement, by dotted name."""

    settings: dict[Name, Any]


@dataclass(frozen=True, kw_only=True)
class Work(SiteRequest):
    """Requests a site to score a model, if ``score`` is given, and then to work on an order, if there is one."""

    position: NonNegativeInt  # the number of rounds that are done after this one
    saved: NonNegativeInt  # the number of rounds of the oldest checkpoint to which the coordinator may go back
    same: bool = False  # whether the model to score equals the order's, so that it is sent once
    order: SentOrder | None = None  # the order
    score: SentOrder | None = None  # the model to score, with its round

    def __post_init__(self) -> None:
        same = self.order is not None and self.score is not None and self.order.down is self.score.down
        object.__setattr__(self, "same", same)

    def tensors(self) -> Mapping[str, Tensor]:
        order = Tensors() if self.order is None else self.order.down.under("order")
        return order if self.score is None or self.same else order | self.score.down.under("score")


Request = Join | Work


@dataclass(frozen=True)
class SiteScore:
    """A model's score on an environment of a site; values that the site's policy withholds are None."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    environment: Name  # the environment's name
    role: Literal["validation", "test"]  # its role
    model: Literal["global", "own", "unseen"]  # whose model was scored
    models: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]  # the number of models
    accuracy: Annotated[Share | None, AS_TENSOR] = None  # in [0, 1]
    # mean negative log-likelihood in nats
    loss: Annotated[float | None, AS_TENSOR, Field(ge=0, le=MOST_LOSS, allow_inf_nan=False)] = None
    n: Annotated[int | None, AS_TENSOR, Field(ge=1, le=MOST_SAMPLES)] = None  # the number of scored samples
    # the experiment's further metrics by name; None: undefined on the environment. Empty if the site withholds them.
    metrics: Annotated[Mapping[Name, Share | None], AS_TENSOR] = field(default_factory=dict)
    # the ends of the 95 % intervals of accuracy and metrics within the environment, by name
    intervals: Annotated[Mapping[Name, tuple[Share, Share]], AS_TENSOR] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """The numbers as they leave a site; an undefined metric is nan."""
        numbers = {"accuracy": self.accuracy, "loss": self.loss}
        numbers |= {METRIC + name: nan if value is None else value for name, value in self.metrics.items()}
        for name, ends in self.intervals.items():
            numbers |= {prefix + name: end for prefix, end in zip(ENDS, ends, strict=True)}
        given = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items() if value is not None}
        return given | ({} if self.n is None else {"n": torch.tensor(self.n)})


def _with_numbers(headers: list[dict[str, Any]], info: ValidationInfo) -> tuple[dict[str, Any], ...]:
    """The headers of scores with their numbers, which are tensors of the message."""
    whole: dict[str, dict[str, Any]] = {
        str(place): {**header, "metrics": {}, "intervals": {}} for place, header in enumerate(headers)
    }
    for name, tensor in _tensors(info).of("scores").items():
        place, _, number = name.partition(".")
        value = tensor.item()
        if number.startswith(METRIC):
            whole[place]["metrics"][number.removeprefix(METRIC)] = None if isnan(value) else value
        elif number.startswith(ENDS):
            end, _, metric = number.partition(".")
            low, high = whole[place]["intervals"].get(metric, (None, None))
            whole[place]["intervals"][metric] = (value, high) if end == "low" else (low, value)
        else:
            whole[place][number] = value
    return tuple(whole.values())


def _sent_samples(value: object, info: ValidationInfo) -> object:
    tensors = _tensors(info)
    return tensors["samples"].item() if "samples" in tensors else None


@dataclass(frozen=True)
class Replied(Packet):
    """The fields of every reply of a site: its name, and a proof, see :func:`fedshift.deployment.keys.make_proof`."""

    site: Name
    proof: Name = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True)
class Joined(Replied):
    """A site can take part."""

    # the versions of packages that compute there
    versions: Annotated[dict[Name, Name], Field(max_length=MOST_VERSIONS)]
    session: NonNegativeInt = 0  # the number of the session that starts with this reply
    # the number of the site's training samples; None if its policy withholds counts. It is sent as a tensor, so that it
    # is logged as a count.
    samples: Annotated[Samples | None, AS_TENSOR, BeforeValidator(_sent_samples)] = None

    def tensors(self) -> Mapping[str, Tensor]:
        return {} if self.samples is None else {"samples": torch.tensor(self.samples)}


@dataclass(frozen=True)
class Done(Replied):
    """The reply to a :class:`Work`."""

    answer: SentAnswer | None = None  # to the order
    # of the model
    scores: Annotated[tuple[SiteScore, ...], Field(max_length=MOST_SCORES), BeforeValidator(_with_numbers)] = ()
    # reasons for missing scores, by environment
    unscored: Annotated[Mapping[Name, Unscored], Field(max_length=MOST_SCORES)] = field(default_factory=dict)

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the answer, and the numbers of the scores."""
        tensors = Tensors()
        if self.answer is not None:
            tensors |= self.answer.up.under("up") | self.answer.telemetry.under("telemetry")
        for place, score in enumerate(self.scores):
            tensors |= Tensors(score.tensors()).under(f"scores.{place}")
        return tensors


@dataclass(frozen=True)
class Failed(Replied):
    """A site could not, or refused to, fulfil a request."""

    reason: Reason  # one of :data:`REASONS`
    # the settings that differ, or the categories that the site's policy refuses
    what: Annotated[tuple[Name, ...], Field(max_length=MOST_NAMED)] = ()

    def __str__(self) -> str:
        text = REASONS[self.reason]
        more = f" and {len(self.what) - 4} more" if len(self.what) > 4 else ""
        return f"{text} ({', '.join(self.what[:4])}{more})" if self.what else text


Reply = Joined | Done | Failed


# Reading ------------------------------------------------------------------------------------------


class MessageLimits(NamedTuple):
    """The largest size of a message in bytes: all of it, and its header, which is parsed first."""

    message: int
    header: int

    def check(self, data: bytes) -> None:
        header = int.from_bytes(data[:8], "little")
        if len(data) > self.message:
            raise FedshiftError(f"sent {len(data):,} bytes, of {self.message:,} at most")
        if header > self.header:
            raise FedshiftError(f"sent what is no message: a header of {header:,} bytes, of {self.header:,} at most")


_PACKETS: Mapping[str, TypeAdapter[Any]] = {
    kind.__name__.lower(): TypeAdapter(kind) for kind in (Join, Work, Joined, Done, Failed)
}
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, SafetensorError)


def read_request(data: bytes, limits: MessageLimits) -> Request:
    """A request from its bytes."""
    try:
        limits.check(data)
        request: Request = _read(data, "join", "work")
    except _UNREADABLE as error:
        raise FedshiftError(f"A message of the coordinator cannot be read ({error!s:.200}).") from error
    return request


def read_reply(data: bytes, limits: MessageLimits) -> Reply:
    """A reply from its bytes; any bytes give a reply or an error."""
    limits.check(data)
    try:
        reply: Reply = _read(data, "joined", "done", "failed")
    except _UNREADABLE as error:
        raise FedshiftError(f"sent what is no reply ({error!s:.200})") from error
    return reply


def read_done(data: bytes) -> Done:
    """A reply that this site has written, of any size."""
    try:
        done: Done = _read(data, "done")
    except _UNREADABLE as error:
        raise ValueError(f"{error!s:.200}") from error
    return done


def _read(data: bytes, *words: str) -> Any:
    """A message of one of some kinds, with exactly the tensors that its kind sends."""
    ((word, header),) = metadata(data).items()
    if word not in words:
        raise ValueError(f"it is of the kind {word:.100}")
    tensors = unpack(data)
    try:
        message = _PACKETS[word].validate_json(header, context=tensors)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} = {first['input']!r:.100}: {first['msg']}") from error
    declared, arrived = _kinds(message.tensors()), _kinds(tensors)
    for name in sorted(declared.keys() | arrived.keys()):
        if arrived.get(name) != declared.get(name):
            raise ValueError(f"the tensor {name:.100}: {arrived.get(name)}, not {declared.get(name)}")
    return message


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{list(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}
