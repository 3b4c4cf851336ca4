"""Robust aggregation for sites that may be dishonest: excludes outliers, and answers that make the model explode.

Sizes are root mean squares, whose ratios are norms' ratios. An answer's tensors form groups: those that the client
received (their change counts), other model updates, statistics, and embeddings. In each group an answer is compared
with the lower median of all. Since sites that send zeros could lower the median, a model update may always be as large
as a part of the model that was sent, and a statistic may have a mean square of 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from torch import Tensor

from fedshift.core.contract import Category, Epochs, Exchange, Phase, ServerState
from fedshift.core.messages import Answer, Down, Up
from fedshift.core.setup import Setup
from fedshift.core.tensors import Tensors
from fedshift.errors import DivergedError
from fedshift.rounds.coordinator import Coordinator, OpenExchange, Request, describe_error
from fedshift.rounds.message_checks import check_numbers, enough

FEW = 3  # with fewer answers, a single one may decide the median
PART_OF_MODEL = 0.01  # part of the sent model's norm that an update may always have, times the factor
MOST_GROWTH = 100.0  # declared samples beyond this have no effect, since they cannot be verified

Squares = tuple[float, int]  # the sum of the squares of a tensor's numbers, and their count
Group = tuple[Category, bool]
"""The category of an answer's tensors, and whether the client received tensors of these names."""
Notify = Callable[[str, str, Mapping[str, Any]], None]
"""Called with an excluded answer: the client's name, the reason, and stage, round and exchange."""


@dataclass(frozen=True)
class Limits:
    """What a coordinator accepts of sites that may be dishonest."""

    norm_factor: float  # maximum norm of an answer, in units of the cohort's median norm; 0: no limit
    samples: Mapping[int, int] = field(default_factory=dict)  # declared numbers of training samples, by client id

    @property
    def factor(self) -> float:
        return self.norm_factor or math.inf


@dataclass(frozen=True)
class Excess:
    """The size of an answer in the group in which it is largest; an outlier if ``ratio`` exceeds ``norm_factor``."""

    ratio: float
    why: str


@dataclass(frozen=True)
class _Size:
    """The root mean square of an answer's tensors of a group, and of what the client was sent in their place."""

    answer: float
    sent: float


def excesses(
    setup: Setup, exchange: Exchange, answers: Mapping[int, tuple[Down, Up]], limits: Limits
) -> dict[int, Excess]:
    """The size of each answer of an exchange, compared with the others; ``answers`` has Downs and Ups by client id."""
    categories, worst = setup.declaration(exchange).categories, dict.fromkeys(answers, Excess(0.0, ""))
    groups: dict[Group, dict[int, _Size]] = defaultdict(dict)
    for client, (down, up) in answers.items():
        for group, size in _sizes(categories, down, up).items():
            groups[group][client] = size
    for (category, _), sizes in groups.items():
        median = median_low([size.answer for size in sizes.values()]) if len(sizes) > 1 else 0.0
        for client, size in sizes.items():
            reference, basis = _reference(category, median, size.sent, len(sizes))
            times = size.answer / reference if math.isfinite(size.answer) else math.inf
            growth = _growth(setup, exchange, category, client, limits)
            power = 2 if category == "statistic" else 1  # it may be a sum of squares, as of a table's columns
            ratio = (times / growth) ** (1 / power)
            if ratio > worst[client].ratio:
                what, allowed = "update" if category == "model update" else category, limits.factor**power * growth
                why = f"its {what} has {times:.2g} times {basis}; federation.toml allows {allowed:g} (norm_factor)"
                worst[client] = Excess(ratio, why)
    return worst


def _sizes(categories: Mapping[str, Category], down: Down, up: Up) -> dict[Group, _Size]:
    changes = defaultdict[Group, list[Squares]](list)
    received: list[Squares] = []
    for name, tensor in up.items():
        if not tensor.is_floating_point():
            continue
        category, given = categories[name], tensor.cpu().double()
        known = category == "model update" and name in down
        if known:
            sent = down[name].cpu().double()
            received.append((_squared(sent), sent.numel()))
            given = given - sent
        changes[category, known].append((_squared(given), given.numel()))
    root = _root_mean(received)
    return {
        group: _Size(_root_mean(each), root if group[0] == "model update" else 0.0) for group, each in changes.items()
    }


def _root_mean(squares: Sequence[Squares]) -> float:
    count = sum(numbers for _, numbers in squares)
    return math.sqrt(sum(total for total, _ in squares) / count) if count else 0.0


def _squared(tensor: Tensor) -> float:
    return float(tensor.cpu().double().square().sum())


def _reference(category: Category, median: float, sent: float, answers: int) -> tuple[float, str]:
    """The size that answers are compared with, and its name; infinite if there is nothing to compare."""
    if sent > 0:
        part = PART_OF_MODEL if answers >= FEW else 1.0
        floor, basis = part * sent, "the norm of the model that it was sent"
        basis = basis if part == 1 else f"{part:.0%} of {basis}"
    else:
        floor, basis = (1.0, "a mean square of 1") if answers > 1 else (math.inf, "nothing")
    return (median, "the cohort's median norm") if median >= floor else (floor, basis)


def _growth(setup: Setup, exchange: Exchange, category: Category, client: int, limits: Limits) -> float:
    grows = category == "statistic" or (category == "model update" and _counts_epochs(setup, exchange))
    if not grows or client not in limits.samples:
        return 1.0
    typical = median_low(list(limits.samples.values()))
    return min(MOST_GROWTH, max(1.0, limits.samples[client] / max(1, typical)))


def _counts_epochs(setup: Setup, exchange: Exchange) -> bool:
    return any(
        isinstance(phase.steps, Epochs) or (phase.steps is None and setup.train.unit == "epochs")
        for phase in exchange.phases
        if isinstance(phase, Phase)
    )


def explosion(before: Tensors, after: Tensors, ups: Sequence[Up], limits: Limits) -> str:
    """A description of an exploded model, or empty; ``norm_factor``, its norm and the answers limit its change."""
    names = [name for name, tensor in after.items() if tensor.is_floating_point()]
    change = math.sqrt(sum(_squared(after[name].double() - before[name].double()) for name in names))
    if not math.isfinite(change):
        return "The model is not finite."
    answers = (tensor for up in ups for tensor in up.values() if tensor.is_floating_point())
    scale = math.sqrt(sum(_squared(before[name]) for name in names)) + math.sqrt(sum(map(_squared, answers)))
    if change > limits.factor * scale:
        times = change / scale if scale else math.inf
        return (
            f"The model moves by {times:.2g} times the norm of itself and all answers; federation.toml allows "
            f"{limits.factor:g} (norm_factor)."
        )
    return ""


@dataclass(frozen=True)
class Suspect:
    """An answer that was aggregated, and its size; see :class:`Excess`."""

    position: int
    exchange: str
    client: int
    ratio: float


class GuardedCoordinator(Coordinator):
    """Aggregates an answer only if it is plausible, not much larger than the others, and leaves the model finite.

    Attributes:
        limits: what is accepted.
    """

    def __init__(self, setup: Setup, names: Mapping[int, str], limits: Limits, notify: Notify) -> None:
        super().__init__(setup, names)
        self.limits, self._notify = limits, notify
        self.suspects: list[Suspect] = []  # the answers that were aggregated
        # answers to exclude in any case, with the reason: by the round of the run, from 1, the exchange, and the
        # client
        self.left_out: dict[tuple[int, str, int], str] = {}

    def _check(self, answer: Answer, exchange: Exchange, where: str) -> None:
        super()._check(answer, exchange, where)
        check_numbers(self.setup, answer, exchange, where, self.limits.samples.get(answer.client))

    def _remove_rejected(self, requested: OpenExchange, answers: dict[int, Answer]) -> None:
        """Remove the answers that were excluded beforehand, then outliers."""
        for client in sorted(answers):
            if why := self.left_out.get((self.position + 1, requested.exchange.name, client)):
                self._leave_out(requested, answers, client, why)
        for client, size in self._sizes(requested, answers).items():
            if size.ratio > self.limits.factor or size.ratio == math.inf:
                self._leave_out(requested, answers, client, size.why)

    def _merged(
        self, requested: OpenExchange, answers: dict[int, Answer]
    ) -> Generator[Request, Any, ServerState | None]:
        """The state after aggregation, without the answer that would make it explode; None if too few remain.

        Excluded answers are removed from ``answers`` and recorded; if no single exclusion helps, the error is raised.
        """
        sizes = self._sizes(requested, answers)
        kept = {client: answers[client] for client in sorted(answers, key=lambda client: -sizes[client].ratio)}
        whole = merged = yield from self._tried(requested, kept)
        while isinstance(merged, Exception) and len(kept) > 1:
            largest = next(iter(kept))
            for client in list(kept):
                rest = {each: answer for each, answer in kept.items() if each != client}
                merged = yield from self._tried(requested, rest)
                if isinstance(merged, ServerState):
                    kept = rest
                    break
            else:  # several answers cause it
                del kept[largest]
        if isinstance(merged, Exception):
            raise whole if isinstance(whole, Exception) else merged
        if isinstance(whole, Exception):
            what = whole.what if isinstance(whole, DivergedError) else describe_error(whole)
            for client in sorted(answers.keys() - kept.keys()):
                self._leave_out(requested, answers, client, f"with its answer the aggregation failed: {what}")
        if not enough(self.setup, len(requested.orders), len(answers)):
            return None
        place = self.position + 1, requested.exchange.name
        self.suspects += [Suspect(*place, client, sizes[client].ratio) for client in sorted(answers)]
        return merged

    def _tried(
        self, requested: OpenExchange, answers: dict[int, Answer]
    ) -> Generator[Request, Any, ServerState | Exception]:
        """The state after aggregation, or why it must be rejected."""
        try:
            merged = yield from super()._merged(requested, answers)
        except Exception as error:  # raised if no answer causes it
            return error
        assert merged is not None  # the base class accepts any number of answers
        before, after = self.state.shared | self.state.down, merged.shared | merged.down
        wrong = explosion(before, after, [answer.up for answer in answers.values()], self.limits)
        return DivergedError(wrong) if wrong else merged

    def _sizes(self, requested: OpenExchange, answers: Mapping[int, Answer]) -> dict[int, Excess]:
        downs = {order.client: order.down for order in requested.orders}
        pairs = {client: (downs[client], answer.up) for client, answer in answers.items()}
        return excesses(self.setup, requested.exchange, pairs, self.limits)

    def _leave_out(self, requested: OpenExchange, answers: dict[int, Answer], client: int, why: str) -> None:
        del answers[client]
        self._notify(self.names[client], why, self._record_missing(requested, client, why))
