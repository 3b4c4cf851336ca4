"""The coordinator: it selects, sends, checks, merges and counts, and never sees a sample or a private tensor."""

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
Request = list[Order] | ServerJob  # what a round requests from its host
Asking = Generator[Request, Any, None]  # it is sent a list of Received, or a server's state and its loss terms


class AskedExchange(NamedTuple):
    """An exchange of a round: whose answers count, as often as they were drawn, and what they were sent."""

    exchange: Exchange
    round: Round
    cohort: Sequence[int]
    orders: Sequence[Order]


class Coordinator:
    """One run as its coordinator sees it.

    Attributes:
        setup: what it has agreed on with the sites.
        names: the clients' names by id, in id order.
        state: the server's tensors.
        position: how many rounds are done, over all stages.
        ledger: every kind of message that crossed the wire so far.
        terms: the means of the loss terms in the last round, by client's name.
        missing: who did not answer, and why, since the last record.
        ended: the last rounds of stages that ended before they were to, by name.
    """

    def __init__(self, setup: Setup, names: Mapping[int, str]) -> None:
        self.setup, self.names = setup, dict(sorted(names.items()))
        self.state = ServerState(
            setup.initial("shared"), setup.initial("down"), setup.initial("server"), clients=len(names)
        )
        self.position = 0
        self.ledger = Ledger()
        self.terms: dict[str, dict[str, float]] = {}
        self.missing: list[dict[str, Any]] = []
        self.ended: dict[str, int] = {}
        self._sent: tuple[Exchange, ServerState, Down] | None = None

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes of the Downs and of the Ups so far."""
        return self.ledger.bytes("down"), self.ledger.bytes("up")

    # The plan -----------------------------------------------------------------------------------

    @property
    def schedule(self) -> Sequence[Round]:
        """Every round of the run, in order."""
        return schedule_of(self.setup.stages, self.ended)

    @property
    def next_round(self) -> Round:
        """The round that comes next."""
        return self.schedule[self.position]

    def rounds_of(self, stage: Stage) -> int:
        """How many rounds a stage has: all that it was to have, or those before it was ended."""
        return self.ended.get(stage.name, stage.rounds)

    @property
    def stage_over(self) -> bool:
        """Whether the round that was done last is its stage's last."""
        last = self.schedule[self.position - 1]
        return last.number == self.rounds_of(last.stage)

    def end_stage(self) -> None:
        """Exclude the rounds that the stage of the round that was done last still has."""
        last = self.schedule[self.position - 1]
        self.ended[last.stage.name] = last.number

    def cohort(self, stage: Stage) -> int:
        """How many clients take part in a round of a stage."""
        participation = stage.participation or self.setup.train.participation
        return max(1, round(participation * len(self.names)))

    # A round ------------------------------------------------------------------------------------

    def round(self) -> Asking:
        """Run the next round: select a cohort, then make every exchange with it.

        A client that does not answer is not requested again in this round. Where too few answer, an exchange merges
        nothing and ends the round; an error among the answers is then the round's.

        Yields what its host must do, orders to be run or a server's job, and is sent the result.
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
            requested = AskedExchange(exchange, round, cohort, orders)
            answers = self._collect(requested, (yield orders))
            merged: ServerState | None = None
            if enough(self.setup, len(orders), len(answers)):
                merged = yield from self._merged(requested, answers)
            gone |= {order.client for order in orders} - answers.keys()
            if merged is None:
                if round.stage.name == PREPARATION:
                    raise FedshiftError(
                        f"{len(answers)} of {len(orders)} clients answered in the stage '{round.stage.name}', which "
                        "the run needs: lower train.min_answers or train.absent, or start again when more of them are "
                        "there."
                    )
                break
            self.state = merged
        self.position += 1

    def _merged(
        self, requested: AskedExchange, answers: dict[int, Answer]
    ) -> Generator[Request, Any, ServerState | None]:
        """The state after the server's phases and the merge of answers; a client's counts as often as it was drawn.

        None: too few answers remain.

        Raises:
            DivergedError: it is not finite.
        """
        exchange, round = requested.exchange, requested.round
        replies = Replies((client, answers[client].up) for client in requested.cohort if client in answers)
        state, terms = yield ServerJob(self.setup, exchange, round, self.state, replies)
        with self.setup.lend("merge", *round.key, exchange.name):
            merged = exchange.merge(state, replies)
        if terms:
            self.terms.setdefault("server", {}).update(terms)
        if first_not_finite(merged.tensors):
            raise DivergedError(
                f"What round {round.number} merged is not finite, though every client's reply is.",
                "Look for absurd values among the settings of [method] that the server uses.",
            )
        return merged

    def _miss(self, requested: AskedExchange, client: int, why: str) -> dict[str, Any]:
        """Write down that nothing of a client is merged, and return where that was."""
        about = {
            "stage": requested.round.stage.name,
            "round": requested.round.number,
            "exchange": requested.exchange.name,
        }
        self.missing.append(about | {"client": self.names[client], "why": why})
        return about

    def cohorts(self, round: Round) -> Iterator[tuple[Exchange, list[int]]]:
        """Each exchange of a round with the ids that it goes to, in order: the round's, or a separate cohort."""
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
        with self.setup.lend("select", *round.key, *exchange):
            return sorted(select(self.state, list(self.names), self.cohort(round.stage), generator))

    def down(self, exchange: Exchange, client: int) -> Down:
        """What a client receives in an exchange: the declared parts, and what is meant for this client alone."""
        everybodys = self._down_of_all(exchange)
        if exchange.send is None:
            return everybodys
        down = Down(everybodys | self.own(exchange, client))
        check_scopes(self.setup, down, exchange, "send")
        return down

    def own(self, exchange: Exchange, client: int) -> Mapping[str, Tensor]:
        """What one client receives in an exchange in the place of what all do."""
        if exchange.send is None:
            return {}
        with self.setup.lend("send", self.position, exchange.name, client):
            return exchange.send(self.state, client)

    def _down_of_all(self, exchange: Exchange) -> Down:
        if self._sent is None or self._sent[0] is not exchange or self._sent[1] is not self.state:
            names = self.setup.declaration(exchange).sent
            self._sent = (exchange, self.state, Down((self.state.shared | self.state.down).only(names)))
        return self._sent[2]

    def orders(self, exchange: Exchange, round: Round, cohort: Sequence[int]) -> list[Order]:
        """What each client of a cohort, by id, is requested to do."""
        where = self.setup.run, round.stage.name, round.number, exchange.name
        return [Order(*where, client, self.down(exchange, client)) for client in cohort]

    def first_orders(self, round: Round) -> Iterator[tuple[Exchange, list[Order]]]:
        """What each exchange of a round would ask of clients if the run began with it; nothing is counted."""
        for exchange, cohort in self.cohorts(round):
            yield exchange, self.orders(exchange, round, list(dict.fromkeys(cohort)))

    def _collect(self, requested: AskedExchange, received: Sequence[Received]) -> dict[int, Answer]:
        """The answers that came and are as declared, by client; the others are written down.

        Raises:
            Exception: the first error, where the run requires all answers or too few came.
        """
        answers: dict[int, Answer] = {}
        errors: list[Exception] = []
        for order, came in zip(requested.orders, received, strict=True):
            checked = self._checked(requested, order, came)
            if isinstance(checked, Answer):
                answers[order.client] = checked
                self._count(requested.exchange, checked)
                continue
            errors += [checked] if isinstance(checked, Exception) else []
            self._miss(requested, order.client, checked.why if isinstance(checked, Missing) else in_words(checked))
        self._sift(requested, answers)
        if errors and (
            self.setup.train.min_answers == "all" or not enough(self.setup, len(requested.orders), len(answers))
        ):
            raise errors[0]
        return answers

    def _sift(self, requested: AskedExchange, answers: dict[int, Answer]) -> None:
        """Take out answers that are as declared and not to be merged; here there are none."""

    def _checked(self, requested: AskedExchange, order: Order, came: Received) -> Received:
        """An answer if it is as declared; else what is wrong."""
        if not isinstance(came, Answer):
            return came
        exchange, where = requested.exchange, f"client '{self.names[order.client]}', round {requested.round.number}"
        if came.trip != order.trip:
            return FedshiftError(
                f"The answer to the order of {where}, exchange '{exchange.name}', is that of client {came.client} to "
                f"the {came} of the run {came.run}: it was sent before, or by another."
            )
        try:
            self._check(came, exchange, where)
        except FedshiftError as error:  # it is this client's, not the round's
            return error
        return came

    def _check(self, answer: Answer, exchange: Exchange, where: str) -> None:
        check_answer(self.setup, answer, exchange, where)

    def _count(self, exchange: Exchange, answer: Answer) -> None:
        round = self.position + 1
        self.ledger.add(exchange.name, "up", answer.up, answer.client, round)
        if answer.telemetry:
            self.ledger.add(exchange.name, "telemetry", answer.telemetry, answer.client, round)
            told, declared = answer.telemetry.terms, term_names(exchange.phases).values()
            in_order = {name: told[name] for name in declared if name in told}
            self.terms.setdefault(self.names[answer.client], {}).update(in_order)

    def record(self, round: Round) -> dict[str, Any]:
        """What a record of a round states beside scores; missing clients are listed once."""
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


def in_words(error: Exception) -> str:
    """An error's text; of an unforeseen one its kind as well, since its text may be empty."""
    return str(error) if isinstance(error, FedshiftError) else f"{type(error).__name__}: {error}"


def schedule_of(stages: Sequence[Stage], ended: Mapping[str, int] | None = None) -> Lazy[Round]:
    """Every round of the stages, in order; of a stage that has ended early, by its name, that many."""
    starts = list(accumulate(((ended or {}).get(stage.name, stage.rounds) for stage in stages), initial=0))

    def round_at(place: int) -> Round:
        number = bisect_right(starts, place) - 1
        return Round(stages[number], place - starts[number] + 1)

    return Lazy(round_at, range(starts[-1]))
