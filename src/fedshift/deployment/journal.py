"""A coordinator's files of rounds: aggregated exchanges, rounds that may be undone, and pending scores."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from pydantic import BaseModel, Field
from safetensors.torch import load

from fedshift import files
from fedshift.core.messages import Answer, Down, Missing, Order, metadata, pack
from fedshift.core.metrics import ACCURACY
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.members import Arrival
from fedshift.deployment.wire import NOBODY, UNSCORED, Done
from fedshift.manifest import intact
from fedshift.rounds.coordinator import Coordinator, Received
from fedshift.rounds.evaluation import intervals_of, metrics_of
from fedshift.rounds.outliers import Suspect
from fedshift.runs.schema import Record, Size

# Merged exchanges ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Journal:
    """The aggregated exchanges of one round, each in a file.

    A later exchange sends the result of an earlier one, and a site answers one order for each exchange. A coordinator
    that is killed within a round must therefore aggregate the same answers after its restart.
    """

    folder: Path  # the run's folder
    position: int  # the number of rounds before this one

    def read(self, place: int, orders: Sequence[Order]) -> list[Received] | None:
        """The answers to the orders of an exchange, by its place in the round; None if it was not aggregated yet.

        Raises:
            DamagedError: the file was changed.
        """
        path = self._path(place)
        if not path.exists():
            return None
        with intact(path, "Remove it to ask the sites again."):
            data = path.read_bytes()
            answers, missing = load(data), json.loads(metadata(data)["missing"])
            return [
                Answer.from_bytes(answers[client].numpy().tobytes())
                if (client := str(order.client)) in answers
                else Missing(order.client, str(missing[client]))
                for order in orders
            ]

    def add(self, place: int, orders: Sequence[Order], received: Sequence[Received]) -> None:
        """Write the answers that an exchange aggregated."""
        answers, missing = dict[str, torch.Tensor](), dict[str, str]()
        for order, arrived in zip(orders, received, strict=True):
            if isinstance(arrived, Answer):
                answers[str(order.client)] = torch.frombuffer(bytearray(arrived.to_bytes()), dtype=torch.uint8)
            else:
                missing[str(order.client)] = arrived.why if isinstance(arrived, Missing) else str(arrived)
        files.write(self._path(place), pack(answers, {"missing": json.dumps(missing)}))

    def remove(self, *, this_too: bool = False) -> None:
        """Remove the files of other rounds: earlier ones have a checkpoint, later ones were undone."""
        for path in self.folder.glob("exchange-*@*.safetensors"):
            if this_too or path.stem.partition("@")[2] != str(self.position):
                files.remove(path)

    def _path(self, place: int) -> Path:
        return self.folder / f"exchange-{place}@{self.position}.safetensors"


# Answers in doubt ---------------------------------------------------------------------------------


class Doubts(BaseModel):
    """The rounds of a run that may be undone.

    A global model may pass every comparison of norms and still diverge at all sites. So the checkpoint of the newest
    model that a site has scored or trained is kept in addition to the newest round's. If most sites report that a newer
    model diverges, the coordinator returns to the former and repeats the rounds after it without the answer that was
    the largest for its cohort; if the model diverges again, without the next largest instead.

    A checkpoint has the doubts of its time. To go back, the coordinator writes the present doubts into the older
    checkpoint and removes the newer one; if it is killed in between, it decides the same again.
    """

    sound: Size = 0  # the number of rounds after which the newest model worked at a site
    merged: list[Suspect] = Field(default_factory=list)  # the answers that were aggregated since
    # the answers that were excluded since, first to last; the last one still is
    tried: list[Suspect] = Field(default_factory=list)

    def works(self, position: int) -> None:
        """Note that a site could work with the model after ``position`` rounds, so that no earlier round is undone."""
        self.sound = position
        self.renew(self.merged)
        self.tried = [each for each in self.tried if each.position > position]

    def renew(self, suspects: Sequence[Suspect]) -> None:
        """Keep, for the next checkpoint, the answers that were aggregated since the sound model."""
        self.merged = [each for each in suspects if each.position > self.sound]

    def next_of(self, suspects: Sequence[Suspect]) -> Suspect | None:
        """The largest answer since the sound model that was not excluded before, if any."""
        tried = {(each.position, each.exchange, each.client) for each in self.tried}
        untried = (
            each
            for each in suspects
            if each.position > self.sound and (each.position, each.exchange, each.client) not in tried
        )
        return max(untried, key=lambda each: each.ratio, default=None)

    def go_back(self, without: Suspect) -> None:
        """Repeat the rounds after the sound model without an answer."""
        self.merged = []
        self.tried.append(without)


# A model that is being scored ---------------------------------------------------------------------


@dataclass(frozen=True)
class Scoring:
    """The scores that a round waits for."""

    orders: Mapping[str, Order]  # the model that each site scores
    environments: Mapping[str, Collection[str]]  # the environments that each site may score
    record: Record  # the round's record without scores
    metrics: tuple[str, ...]  # the metrics of every score
    clients: int  # the number of clients, and the largest number of models

    @classmethod
    def of(cls, record: Record, coordinator: Coordinator, agreement: Agreement) -> Self:
        """Request scores of the coordinator's model for a record.

        A client scores the model that it would receive; a site without a client, and a site whose personalised model is
        not needed, everything that is sent.
        """
        round, state = coordinator.schedule[coordinator.position - 1], coordinator.state
        last, orders = round.stage.training, {}
        alike = coordinator.setup.individual and not agreement.experiment.protocol.own_models
        for site in agreement.federation.sites:
            client = agreement.client(site)
            down = Down(state.shared | state.down) if client is None or alike else coordinator.down(last, client)
            number = NOBODY if client is None else client
            orders[site] = Order(coordinator.setup.run, round.stage.name, round.number, last.name, number, down)
        environments = {site: frozenset(agreement.environments(site)) for site in orders}
        return cls(orders, environments, record, coordinator.setup.metrics, len(agreement.clients))

    def completed(self, arrived: Mapping[str, Arrival]) -> Record:
        """The record with the scores that arrived, and reasons for the missing ones."""
        rows, unscored = list[Record](), list[dict[str, str]]()
        for site in self.orders:
            scored, lacking = self._rows(site, arrived[site])
            rows += scored
            unscored += lacking
        return self.record | {"environments": rows} | ({"unscored": unscored} if unscored else {})

    def _rows(self, site: str, arrived: Arrival) -> tuple[list[Record], list[dict[str, str]]]:
        if not isinstance(arrived, Done):
            return [], [{"site": site, "why": str(arrived)}]
        agreed, seen = self.environments[site], set[tuple[str, str]]()
        rows, lacking = list[Record](), list[dict[str, str]]()

        def leave_out(environment: str, why: str) -> None:
            lacking.append({"site": site, "environment": environment, "why": why})

        for name, reason in arrived.unscored.items():
            leave_out(name, UNSCORED[reason])
        for score in arrived.scores:
            place = score.environment, score.role
            if score.environment not in agreed:
                leave_out(score.environment, f"it is not in the agreement ({', '.join(sorted(agreed))})")
            elif place in seen:
                leave_out(score.environment, "it sent two scores of it")
            elif score.models > self.clients:
                leave_out(score.environment, f"it scored {score.models} models of {self.clients} clients")
            elif score.accuracy is None or score.loss is None:
                leave_out(score.environment, "its policy withholds scores")
            elif score.metrics.keys() != set(self.metrics) or not score.intervals.keys() <= {ACCURACY, *self.metrics}:
                leave_out(score.environment, "it sent other metrics than were agreed on")
            else:
                plain = vars(score).keys() - {"metrics", "intervals"}
                row = {name: value for name, value in vars(score).items() if value is not None and name in plain}
                row |= metrics_of([{name: score.metrics[name] for name in self.metrics}])
                rows.append(row | intervals_of(score.intervals))
            seen.add(place)
        if not (arrived.scores or arrived.unscored):
            lacking.append({"site": site, "why": "sent no scores"})
        return rows, lacking
