"""The coordinator: samples clients, broadcasts, checks and aggregates, and never sees a sample or a private tensor."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedshift.clients.samples import Lazy
from fedshift.core.contract import Exchange, Select, ServerState, Stage, term_names, uniform
from fedshift.core.messages import Answer, Down, Missing, Order
from fedshift.core.metrics import ACCURACY
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Round, Setup
from fedshift.core.tensors import Replies
from fedshift.engines.engine import ServerJob
from fedshift.errors import DivergedError, FedshiftError
from fedshift.rounds.ledger import DIRECTIONS, Ledger
from fedshift.rounds.message_checks import check_answer, check_scopes, enough, first_not_finite

Received = Answer | Missing | Exception  # the result of an order
Request = list[Order] | ServerJob  # the work that a round yields to its host
RoundSteps = Generator[Request, Any, None]  # it receives a list of Received, or a server's state and its loss terms


class OpenExchange(NamedTuple):
    """An exchange of a round: the clients whose answers count, repeated as they were drawn, and their Downs."""

    exchange: Exchange
    round: Round
    cohort: Sequence[int]
    orders: Sequence[Order]


class Coordinator:
    """A run as its coordinator sees it.

    Attributes:
        setup: what it agreed on with the sites.
        names: the clients' names by id, in id order.
    """

    def __init__(self, setup: Setup, names: Mapping[int, str]) -> None:
        self.setup, self.names = setup, dict(sorted(names.items()))
        self.state = ServerState(
            setup.initial("shared"), setup.initial("down"), setup.initial("server"), clients=len(names)
        )
        self.position = 0  # number of finished rounds, over all stages
        self.ledger = Ledger()  # every kind of message that has crossed the wire
        self.terms: dict[str, dict[str, float]] = {}  # the means of the loss terms in the last round, by client's name
        self.missing: list[dict[str, Any]] = []  # the clients that did not answer since the last record, with reasons
        self.ended: dict[str, int] = {}  # the last rounds of stages that ended early, by name
        self._sent: tuple[Exchange, ServerState, Down] | None = None

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes of the Downs and of the Ups so far."""
        return self.ledger.bytes("down"), self.ledger.bytes("up")

    # The plan -----------------------------------------------------------------------------------

    @property
    def schedule(self) -> Sequence[Round]:
        return schedule_of(self.setup.stages, self.ended)

    @property
    def next_round(self) -> Round:
        return self.schedule[self.position]

    def rounds_of(self, stage: Stage) -> int:
        """The number of rounds of a stage: as planned, or until it was ended."""
        return self.ended.get(stage.name, stage.rounds)

    @property
    def stage_over(self) -> bool:
        last = self.schedule[self.position - 1]
        return last.number == self.rounds_of(last.stage)

    def end_stage(self) -> None:
        """Skip the remaining rounds of the current stage."""
        last = self.schedule[self.position - 1]
        self.ended[last.stage.name] = last.number

    def cohort(self, stage: Stage) -> int:
        participation = stage.participation or self.setup.train.participation
        return max(1, round(participation * len(self.names)))

    # A round ------------------------------------------------------------------------------------

    def round(self) -> RoundSteps:
        """Run the next round: sample a cohort, then run every exchange with it.

        A client that does not answer receives no further order in this round. If too few answer, an exchange aggregates
        nothing and ends the round, and an error among the answers is raised. Yields orders or a server's job, and
        receives the results.
        """
        round = self.next_round
        self.state = replace(self.state, round=round.number)
        gone = set[int]()
        self.terms = {}
        for exchange, chosen in self.cohorts(round):
            cohort = [client for client in chosen if client not in gone]
            orders = self.orders(exchange, round, list(dict.fromkeys(cohort)))
            for order in orders:
                self.ledger.add(exchange.name, "down", order.down, order.client, self.position + 1)
            requested = OpenExchange(exchange, round, cohort, orders)
            answers = self._collect(requested, (yield orders))
            merged: ServerState | None = None
            if enough(self.setup, len(orders), len(answers)):
                merged = yield from self._merged(requested, answers)
            gone |= {order.client for order in orders} - answers.keys()
            if merged is None:
                if round.stage.name == PREPARATION:
                    raise FedshiftError(
                        f"{len(answers)} of {len(orders)} clients answered in the stage '{round.stage.name}', which "
                        "the run needs: lower train.min_answers or train.absent, or resume when more clients are "
                        "available."
                    )
                break
            self.state = merged
        self.position += 1

    def _merged(
        self, requested: OpenExchange, answers: dict[int, Answer]
    ) -> Generator[Request, Any, ServerState | None]:
        """The state after the server's phases and aggregation; a client's answer counts as often as it was drawn.

        None: too few answers remain. DivergedError: the state is not finite.
        """
        exchange, round = requested.exchange, requested.round
        replies = Replies((client, answers[client].up) for client in requested.cohort if client in answers)
        state, terms = yield ServerJob(self.setup, exchange, round, self.state, replies)
        with self.setup.global_draws("merge", *round.key, exchange.name):
            merged = exchange.merge(state, replies)
        if terms:
            self.terms.setdefault("server", {}).update(terms)
        if first_not_finite(merged.tensors):
            raise DivergedError(
                f"The aggregate of round {round.number} is not finite, though every client's reply is.",
                "Check the settings of [method] that the server uses for extreme values.",
            )
        return merged

    def _record_missing(self, requested: OpenExchange, client: int, why: str) -> dict[str, Any]:
        """Record that a client's answer is not aggregated, and return the place."""
        about = {
            "stage": requested.round.stage.name,
            "round": requested.round.number,
            "exchange": requested.exchange.name,
        }
        self.missing.append(about | {"client": self.names[client], "why": why})
        return about

    def cohorts(self, round: Round) -> Iterator[tuple[Exchange, list[int]]]:
        """Each exchange of a round with the ids of its clients, in order: the round's, or a separate cohort."""
        first, *later = round.stage.exchanges
        everyone, streams = round.stage.participation == 1, self.setup.streams
        generator = streams.generator("selection", *round.key)
        chosen = list(self.names) if everyone else self._drawn(first.select or uniform, round, generator)
        yield first, chosen
        for exchange in later:
            if exchange.select is None:
                yield exchange, chosen
            else:
                generator = streams.generator("selection", *round.key, exchange.name)
                yield exchange, self._drawn(exchange.select, round, generator, exchange.name)

    def _drawn(self, select: Select, round: Round, generator: torch.Generator, *exchange: str) -> list[int]:
        with self.setup.global_draws("select", *round.key, *exchange):
            return sorted(select(self.state, list(self.names), self.cohort(round.stage), generator))

    def down(self, exchange: Exchange, client: int) -> Down:
        """The Down of an exchange to a client: the declared parts, with tensors for this client alone."""
        everybodys = self._down_of_all(exchange)
        if exchange.send is None:
            return everybodys
        down = Down(everybodys | self.own(exchange, client))
        check_scopes(self.setup, down, exchange, "send")
        return down

    def own(self, exchange: Exchange, client: int) -> Mapping[str, Tensor]:
        if exchange.send is None:
            return {}
        with self.setup.global_draws("send", self.position, exchange.name, client):
            return exchange.send(self.state, client)

    def _down_of_all(self, exchange: Exchange) -> Down:
        if self._sent is None or self._sent[0] is not exchange or self._sent[1] is not self.state:
            names = self.setup.declaration(exchange).sent
            self._sent = (exchange, self.state, Down((self.state.shared | self.state.down).only(names)))
        return self._sent[2]

    def orders(self, exchange: Exchange, round: Round, cohort: Sequence[int]) -> list[Order]:
        where = self.setup.run, round.stage.name, round.number, exchange.name
        return [Order(*where, client, self.down(exchange, client)) for client in cohort]

    def first_orders(self, round: Round) -> Iterator[tuple[Exchange, list[Order]]]:
        """The orders of each exchange of a round if the run started with it; nothing is counted."""
        for exchange, cohort in self.cohorts(round):
            yield exchange, self.orders(exchange, round, list(dict.fromkeys(cohort)))

    def _collect(self, requested: OpenExchange, received: Sequence[Received]) -> dict[int, Answer]:
        """The valid answers by client; records the others, or raises the first error if the run needs them."""
        answers: dict[int, Answer] = {}
        errors: list[Exception] = []
        for order, result in zip(requested.orders, received, strict=True):
            checked = self._checked(requested, order, result)
            if isinstance(checked, Answer):
                answers[order.client] = checked
                self._count(requested.exchange, checked)
                continue
            errors += [checked] if isinstance(checked, Exception) else []
            self._record_missing(
                requested, order.client, checked.why if isinstance(checked, Missing) else describe_error(checked)
            )
        self._remove_rejected(requested, answers)
        if errors and (
            self.setup.train.min_answers == "all" or not enough(self.setup, len(requested.orders), len(answers))
        ):
            raise errors[0]
        return answers

    def _remove_rejected(self, requested: OpenExchange, answers: dict[int, Answer]) -> None:
        """Remove answers that are as declared but must not be aggregated; here, nothing."""

    def _checked(self, requested: OpenExchange, order: Order, result: Received) -> Received:
        """An answer if it is as declared, else its error."""
        if not isinstance(result, Answer):
            return result
        exchange, where = requested.exchange, f"client '{self.names[order.client]}', round {requested.round.number}"
        if result.trip != order.trip:
            return FedshiftError(
                f"The answer to the order of {where}, exchange '{exchange.name}', is from client {result.client} and "
                f"belongs to the {result} of the run {result.run}: it was sent earlier, or by another client."
            )
        try:
            self._check(result, exchange, where)
        except FedshiftError as error:  # it concerns this client only, not the round
            return error
        return result

    def _check(self, answer: Answer, exchange: Exchange, where: str) -> None:
        check_answer(self.setup, answer, exchange, where)

    def _count(self, exchange: Exchange, answer: Answer) -> None:
        round = self.position + 1
        self.ledger.add(exchange.name, "up", answer.up, answer.client, round)
        if answer.telemetry:
            self.ledger.add(exchange.name, "telemetry", answer.telemetry, answer.client, round)
            reported, declared = answer.telemetry.terms, term_names(exchange.phases).values()
            in_order = {name: reported[name] for name in declared if name in reported}
            self.terms.setdefault(self.names[answer.client], {}).update(in_order)

    def record(self, round: Round) -> dict[str, Any]:
        """A round's record besides scores; missing clients are listed once."""
        missing, self.missing = self.missing, []
        select, last = self.setup.evaluate.select, self.setup.evaluate.last
        return {
            "position": self.position,
            "stage": round.stage.name,
            "round": round.number,
            **{f"bytes_{way}": self.ledger.bytes(way) for way in DIRECTIONS},
            "terms": self.terms,
            **({"missing": missing} if missing else {}),
            **({"select": select} if select != ACCURACY else {}),
            **({"last": last} if last != 1 else {}),
        }


def describe_error(error: Exception) -> str:
    """An error's text; for unforeseen errors with their type, since the text may be empty."""
    return str(error) if isinstance(error, FedshiftError) else f"{type(error).__name__}: {error}"


def schedule_of(stages: Sequence[Stage], ended: Mapping[str, int] | None = None) -> Lazy[Round]:
    """Every round of the stages, in order; ``ended`` has the number of rounds of stages that ended early."""
    starts = list(accumulate(((ended or {}).get(stage.name, stage.rounds) for stage in stages), initial=0))

    def round_at(place: int) -> Round:
        number = bisect_right(starts, place) - 1
        return Round(stages[number], place - starts[number] + 1)

    return Lazy(round_at, range(starts[-1]))
