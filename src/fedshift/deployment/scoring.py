"""Scores of a round's model, which sites make when the next message brings it: orders, and the record they complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from fedshift.coordinator.coordinator import Coordinator
from fedshift.core.contract import Round
from fedshift.core.messages import Down, Order
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.members import Came
from fedshift.deployment.wire import NOBODY, Done
from fedshift.evaluation.evaluation import metrics_of
from fedshift.runs.records import Record


@dataclass(frozen=True)
class Scoring:
    """What is to be scored after a round.

    Attributes:
        orders: the model that each site scores.
        record: the record of the round, but for the scores.
        metrics: the names of the metrics that every score has.
    """

    orders: Mapping[str, Order]
    record: Record
    metrics: tuple[str, ...]

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
        return cls(orders, record, coordinator.setup.metrics)

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
        rows = list[Record]()
        lacking = [
            {"site": site, "environment": name, "why": "its model needs what others keep"} for name in came.unscored
        ]
        for score in came.scores:
            place = {"site": site, "environment": score.environment}
            if (score.environment in self.orders and score.environment != site) or any(
                (row["environment"], row["role"]) == (score.environment, score.role) for row in rows
            ):
                lacking.append(place | {"why": "it sent a score that is another's, or twice"})
            elif score.accuracy is None or score.loss is None:
                lacking.append(place | {"why": "its policy withholds scores"})
            elif score.metrics.keys() != set(self.metrics):
                lacking.append(place | {"why": "it sent other metrics than were agreed on"})
            else:
                said = {name: value for name, value in vars(score).items() if value is not None and name != "metrics"}
                ordered = {name: score.metrics[name] for name in self.metrics}
                rows.append(said | metrics_of([ordered]))
        if not (came.scores or came.unscored):
            lacking.append({"site": site, "why": "sent no scores"})
        return rows, lacking
