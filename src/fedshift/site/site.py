"""A site: it joins an order with its own samples and its own state, lets an engine work, keeps, and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedshift.core.contract import Round, Stage
from fedshift.core.messages import Answer, Order, Telemetry
from fedshift.core.setup import Setup
from fedshift.core.state import ClientState
from fedshift.engines.engine import Engine, Job, Outcome
from fedshift.errors import FedshiftError
from fedshift.federation.federation import Federation
from fedshift.site.audit import audit
from fedshift.site.memory import ClientStore, MemoryStore


class Site:
    """The clients of one place, with their samples and states: an institution's own, or all of a simulation's.

    Attributes:
        setup: what it has agreed on with the coordinator.
        federation: its clients and their environments, on the run's device.
        store: what its clients keep.
        audit: whether what they send is compared with what must stay.
    """

    def __init__(
        self, setup: Setup, federation: Federation, store: ClientStore | None = None, audit: bool = False
    ) -> None:
        self.setup, self.federation, self.audit = setup, federation, audit
        self.store: ClientStore = store or MemoryStore()
        self.initial = setup.initial("client")
        self._viewed: tuple[object, Federation] | None = None
        self._trained: set[int] = set()  # of whom that is known, which stays so

    def view(self, stage: Stage) -> Federation:
        """The federation as a stage sees it; the last view is kept, which stages may share."""
        if stage.view is None:
            return self.federation
        if self._viewed is None or self._viewed[0] != stage.view:
            with self.setup.lend("view", stage.name):
                viewed = stage.view(self.federation, self.setup.streams)
            self._viewed = (stage.view, viewed.to(self.setup.device))
        return self._viewed[1]

    def state(self, client: int) -> ClientState:
        """What a client has kept, or starts with."""
        kept = self.store.get(client)
        return kept or ClientState(dict(self.initial | self.setup.begun(client)), trained=False)

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
        view, round = self.view(stage), Round(stage, order.round)
        return Job(self.setup, view, exchange, round, view.client(order.client), order.down, self.state(order.client))

    def keep(self, job: Job, outcome: Outcome) -> Answer:
        """Store what a client keeps; what it sends back.

        Raises:
            FedshiftError: the audit found in its reply what must stay; the client keeps what it had.
        """
        if self.audit:
            train = self.federation.client(job.client.id).train
            audit(job, outcome, train, self.federation.inputs, self.initial)
        stage = job.round.stage
        kept = outcome.state if stage.keeps else replace(job.state, drawn=outcome.state.drawn)
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
