"""A site: it joins an order with its own samples and its own state, lets an engine work, keeps, and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Samples
from fedshift.core.contract import Stage
from fedshift.core.messages import Answer, Order, Telemetry
from fedshift.core.preparation import PREPARATION
from fedshift.core.setup import Round, Setup
from fedshift.core.state import ClientState
from fedshift.core.tensors import Tensors
from fedshift.engines.engine import Engine, Job, Outcome
from fedshift.errors import FedshiftError
from fedshift.rounds.audit import audit
from fedshift.rounds.store import ClientStore


class Site:
    """The clients of one place, with their samples and states: an institution's own, or all of a simulation's.

    Attributes:
        setup: what it has agreed on with the coordinator.
        federated: its clients and their environments, on the run's device.
        store: what its clients keep.
        audit: whether what they send is compared with what must stay.
    """

    def __init__(
        self, setup: Setup, federated: FederatedData, store: ClientStore | None = None, audit: bool = False
    ) -> None:
        self.setup, self.federated, self.audit = setup, federated, audit
        self.store = store or ClientStore()
        self.initial = setup.initial("client")
        self._viewed: tuple[object, Mapping[str, Tensor], FederatedData] | None = None
        self._prepared: dict[int, Tensors] = {}
        self._trained: set[int] = set()  # of whom that is known, which stays so

    def view(self, stage: Stage, received: Mapping[str, Tensor] | None = None) -> FederatedData:
        """The federation as a stage sees it; the last view is kept, which stages may share.

        Args:
            stage: the stage.
            received: what a client was sent, by which the rows of a table may be prepared; None: nothing yet.
        """
        if stage.view is None:
            return self.federated
        statistics = Tensors()
        if self.setup.preparation is not None:
            statistics = Tensors(received or self.setup.initial("down")).of(PREPARATION)
        if self._viewed is None or self._viewed[0] != stage.view or not _equal(self._viewed[1], statistics):
            with self.setup.lend("view", stage.name):
                viewed = stage.view(self._as_inputs(statistics), self.setup.streams)
            self._viewed = (stage.view, statistics, viewed.to(self.setup.device))
        return self._viewed[2]

    def _as_inputs(self, statistics: Tensors) -> FederatedData:
        """The clients with rows of a table as they are prepared; of other samples the federation as it is."""
        inputs = self.federated.inputs
        if inputs.preparation is None:
            return self.federated
        clients = tuple(
            replace(client, train=Samples(inputs.fitted(own).evaluation(client.train.x), client.train.y))
            for client in self.federated.clients
            for own in [statistics or self.prepared_by(client.id).of(PREPARATION)]
        )
        return replace(self.federated, clients=clients, environments=(), inputs=replace(inputs, preparation=None))

    def prepared_by(self, client: int) -> Tensors:
        """The statistics of a client's own training rows, where rows are prepared by each site's own; else nothing."""
        preparation = self.setup.preparation
        if preparation is None or preparation.statistics != "site":
            return Tensors()
        if client not in self._prepared:
            own = preparation.of_rows(self.federated.client(client).train.x)
            self._prepared[client] = Tensors(own).under(PREPARATION)
        return self._prepared[client]

    def state(self, client: int) -> ClientState:
        """What a client has kept, or starts with."""
        kept = self.store.get(client)
        if kept:
            return kept
        begun = self.initial | self.setup.begun(client) | self.prepared_by(client)
        return ClientState(dict(begun), trained=False)

    def has_trained(self, client: int) -> bool:
        """Whether a client has something of its own: a stage that keeps what clients do has trained it."""
        if client not in self._trained:
            state = self.store.peek(client)
            if state is None or not state.trained:
                return False
            self._trained.add(client)
        return True

    def job(self, order: Order) -> Job:
        """An order, joined with what only this site has.

        Raises:
            FedshiftError: the order is of another run.
        """
        if order.run != self.setup.run:
            raise FedshiftError(f"An order of the run {order.run} came to a site of the run {self.setup.run}.")
        stage, exchange = self.setup.find(order.stage, order.exchange)
        view, round = self.view(stage, order.down), Round(stage, order.round)
        return Job(self.setup, view, exchange, round, view.client(order.client), order.down, self.state(order.client))

    def keep(self, job: Job, outcome: Outcome) -> Answer:
        """Store what a client keeps; what it sends back.

        Raises:
            FedshiftError: the audit found in its reply what must stay; the client keeps what it had.
        """
        if self.audit:
            train = self.federated.client(job.client.id).train
            inputs = self.federated.inputs.fitted((job.down | job.state.tensors).of(PREPARATION))
            audit(job, outcome, train, inputs, self.initial)
        stage = job.round.stage
        kept = outcome.state if stage.scored else replace(job.state, drawn=outcome.state.drawn)
        self.store.put(outcome.client, kept)
        tells = self.setup.evaluate.telemetry
        telemetry = Telemetry.from_numbers(outcome.terms, outcome.steps) if tells else Telemetry()
        trip = self.setup.run, stage.name, job.round.number, job.exchange.name, outcome.client
        return Answer(*trip, outcome.up, telemetry)

    def answer(self, job: Job, came: Outcome | Exception) -> Answer | Exception:
        """What comes of a job: an answer, or what went wrong."""
        if not isinstance(came, Outcome):
            return came
        try:
            return self.keep(job, came)
        except FedshiftError as error:  # it is this client's
            return error

    def answers(self, orders: Sequence[Order], engine: Engine) -> list[Answer | Exception]:
        """Carry out orders, in turn."""
        jobs = [self.job(order) for order in orders]
        return [self.answer(job, came) for job, came in zip(jobs, engine.train(jobs), strict=True)]


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two clients' statistics are the same."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
