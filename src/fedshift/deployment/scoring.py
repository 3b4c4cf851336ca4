"""Scores of a round's model, which sites make when the next message brings it: orders, and the record they complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from fedshift.core.contract import Round
from fedshift.core.messages import Down, Order
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.members import Came
from fedshift.deployment.wire import NOBODY, UNSCORED, Done
from fedshift.rounds.coordinator import Coordinator
from fedshift.rounds.evaluation import metrics_of
from fedshift.runs.schema import Record


@dataclass(frozen=True)
class Scoring:
    """What is to be scored after a round.

    Attributes:
        orders: the model that each site scores.
        environments: the names of the environments that each site may score.
        record: the record of the round, but for the scores.
        metrics: the names of the metrics that every score has.
        clients: how many clients there are, so models at most.
    """

    orders: Mapping[str, Order]
    environments: Mapping[str, Collection[str]]
    record: Record
    metrics: tuple[str, ...]
    clients: int

    @classmethod
    def after(cls, round: Round, coordinator: Coordinator, agreement: Agreement) -> Self:
        """Have the model of a round that has just ended scored; who was missing until then is in its record."""
        return cls.of(coordinator.record(round), coordinator, agreement)

    @classmethod
    def of(cls, record: Record, coordinator: Coordinator, agreement: Agreement) -> Self:
        """Have the coordinator's model scored for a record.

        A client scores what it would be sent, a site without a client all that is sent.
        """
        round, state = coordinator.schedule[coordinator.position - 1], coordinator.state
        last, orders = round.stage.training, {}
        for site in agreement.federation.sites:
            client = agreement.client(site)
            down = Down(state.shared | state.down) if client is None else coordinator.down(last, client)
            number = NOBODY if client is None else client
            orders[site] = Order(coordinator.setup.run, round.stage.name, round.number, last.name, number, down)
        environments = {site: frozenset(agreement.environments(site)) for site in orders}
        return cls(orders, environments, record, coordinator.setup.metrics, len(agreement.clients))

    def completed(self, came: Mapping[str, Came]) -> Record:
        """The record with what came; what is lacking is in it with the reason."""
        rows, unscored = list[Record](), list[dict[str, str]]()
        for site in self.orders:
            scored, lacking = self._rows(site, came[site])
            rows += scored
            unscored += lacking
        return self.record | {"environments": rows} | ({"unscored": unscored} if unscored else {})

    def _rows(self, site: str, came: Came) -> tuple[list[Record], list[dict[str, str]]]:
        """A site's rows of a record, and what it has not scored, with the reason."""
        if not isinstance(came, Done):
            return [], [{"site": site, "why": str(came)}]
        agreed, seen = self.environments[site], set[tuple[str, str]]()
        rows, lacking = list[Record](), list[dict[str, str]]()

        def leave_out(environment: str, why: str) -> None:
            lacking.append({"site": site, "environment": environment, "why": why})

        for name, reason in came.unscored.items():
            leave_out(name, UNSCORED[reason])
        for score in came.scores:
            place = score.environment, score.role
            if score.environment not in agreed:
                leave_out(score.environment, f"it is none of those agreed on ({', '.join(sorted(agreed))})")
            elif place in seen:
                leave_out(score.environment, "it sent two scores of it")
            elif score.models > self.clients:
                leave_out(score.environment, f"it scored {score.models} models of {self.clients} clients")
            elif score.accuracy is None or score.loss is None:
                leave_out(score.environment, "its policy withholds scores")
            elif score.metrics.keys() != set(self.metrics):
                leave_out(score.environment, "it sent other metrics than were agreed on")
            else:
                row = {name: value for name, value in vars(score).items() if value is not None and name != "metrics"}
                rows.append(row | metrics_of([{name: score.metrics[name] for name in self.metrics}]))
            seen.add(place)
        if not (came.scores or came.unscored):
            lacking.append({"site": site, "why": "sent no scores"})
        return rows, lacking
