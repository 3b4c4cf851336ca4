"""A site: it joins an order with its local samples and state, lets an engine work, stores state, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.contract import Stage
from fedshift.core.messages import Answer, Order, Telemetry
from fedshift.core.preparation_part import COMMON, PREPARATION
from fedshift.core.setup import Round, Setup
from fedshift.core.state import ClientState
from fedshift.core.tensors import Tensors, part_of
from fedshift.engines.engine import Engine, Job, Outcome
from fedshift.errors import AuditError, FedshiftError
from fedshift.rounds.store import ClientStore

FEW = 8  # numbers; equality of fewer is a coincidence


ENOUGH = 32  # numbers from which two different values suffice


DISTINCT = 4  # minimum different values in a shorter row


AT_ONCE = 1 << 24  # numbers in memory


BASE = -7046029254386353131  # odd, so that its powers have inverses modulo 2**64


INVERSE = (pow(BASE, -1, 1 << 64) + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True)
class Secret:
    """Rows of numbers (rows, length) that must not leave a client."""

    what: str  # their description in a message; ``{}`` stands for the row's number
    rows: Tensor
    part: str = ""  # their private part; empty for samples and labels
    _cast: dict[torch.dtype, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def as_type(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows rounded to a type, and the hashes of rows that are not nearly constant."""
        if dtype not in self._cast:
            rows = _numbers(self.rows.to(dtype))
            several = rows.amax(dim=1) > rows.amin(dim=1)
            if rows.shape[1] < ENOUGH:
                several = (rows.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1) >= DISTINCT - 1
            self._cast[dtype] = rows, _hashes(rows[several], rows.shape[1])[:, 0]
        return self._cast[dtype]


def audit(job: Job, outcome: Outcome, train: Samples, inputs: Inputs, initial: Tensors) -> None:
    """Raise an AuditError if a reply equals or contains what must not leave its client.

    That is the client's samples, as stored and as inputs, its labels in order, and its private tensors other than
    ``initial``. Exact copies are found anywhere within a tensor (row by row, or column by column), in any type. This
    finds mistakes and does not stop a malicious page: not found are copies that are scaled, reordered, cut up, noisy or
    encoded, or have fewer than eight numbers; nor a trained private tensor under a shared name, since pages may keep
    copies of what they return. An upload may contain tensors of the private part that it reveals. ``train`` are the
    client's samples also if the stage works on something else.
    """
    declaration = job.setup.declaration(job.exchange)
    returned = {name: tensor for name, tensor in outcome.up.items() if name in declaration.returned}
    uploaded = {name: tensor for name, tensor in outcome.up.items() if name not in returned}
    public = [*job.down.values(), *initial.values()]
    before = list(_private(job.state.tensors, "as it was before", public))
    after = list(_private(outcome.state.tensors, "as it is now", [*public, *returned.values()])) if uploaded else []
    for of_samples in _of_samples(train, inputs):
        _search(job, outcome.up, [of_samples])
    _search(job, returned, before)
    reveals = declaration.reveals
    for name, tensor in uploaded.items():
        revealed = reveals.get(name)
        _search(job, {name: tensor}, [each for each in (*before, *after) if not revealed or each.part != revealed])


def _search(job: Job, tensors: Mapping[str, Tensor], secrets: Iterable[Secret]) -> None:
    for secret in secrets:
        for name, tensor in tensors.items():
            row = find_copy(tensor.detach(), secret)
            if row is not None:
                raise AuditError(
                    f"The reply of client '{job.client.name}', round {job.round.number} of the stage "
                    f"'{job.round.stage.name}', in the exchange '{job.exchange.name}' was not sent (run.audit): "
                    f"'{name}' contains {secret.what.format(row)}. Omit it, or send something that reveals less."
                )


def _of_samples(train: Samples, inputs: Inputs) -> Iterator[Secret]:
    """Samples as stored and as inputs, a few at a time, and the labels."""
    length = train.pool.x[0].numel()
    if length >= FEW:
        chunk = max(1, AT_ONCE // length)
        for start in range(0, len(train), chunk):
            x, _ = train.batch(torch.arange(start, min(start + chunk, len(train)), device=train.pool.x.device))
            for form in (x, inputs.evaluation(x)):
                yield Secret("its sample {}", form.flatten(1))
    if len(train) >= FEW:
        yield Secret("its labels, in order", train.y[None])


def _private(tensors: Mapping[str, Tensor], when: str, public: Iterable[Tensor]) -> Iterator[Secret]:
    known = [tensor.detach().flatten() for tensor in public]
    for name, tensor in tensors.items():
        row = tensor.detach().flatten()
        near = (_near(row, other.to(row)) for other in known if len(other) == len(row))
        if len(row) >= FEW and not any(near):
            yield Secret(f"its private tensor '{name}' {when}", row[None], part_of(name))


def _near(row: Tensor, other: Tensor) -> bool:
    row, other = row.double(), other.double()
    return bool((row - other).abs().amax() <= 1e-5 * other.abs().amax())


def find_copy(tensor: Tensor, secret: Secret) -> int | None:
    """The first row of a secret of which a tensor contains a copy, if any."""
    length = secret.rows.shape[1]
    if tensor.numel() < length:
        return None
    rows, hashes = secret.as_type(tensor.dtype)
    columns = [tensor.movedim(-1, 0)] if tensor.ndim > 1 and tensor.shape[-1] > 1 else []
    for view in (tensor, *columns):
        numbers = _numbers(view.to(rows.device)).flatten()
        for place in torch.isin(_hashes(numbers[None], length)[0], hashes).nonzero()[:, 0].tolist():
            equal = (rows == numbers[place : place + length]).all(dim=1).nonzero()
            if len(equal):
                return int(equal[0])
    return None


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.double().nan_to_num() + 0.0  # -0.0 becomes 0.0


def _hashes(rows: Tensor, length: int) -> Tensor:
    """A polynomial hash modulo 2**64 of every window of a length, (rows, windows), by differences of sums."""
    bits = rows.contiguous().view(torch.int64)
    bits = (bits ^ (bits >> 32)) * BASE
    bits = bits ^ (bits >> 29)
    powers = torch.full((bits.shape[1],), BASE, device=bits.device).cumprod(0)
    sums = torch.nn.functional.pad((bits * powers).cumsum(1), (1, 0))
    inverses = torch.full((bits.shape[1],), INVERSE, device=bits.device).cumprod(0)
    return (sums[:, length:] - sums[:, : sums.shape[1] - length]) * inverses[: bits.shape[1] - length + 1]


class Site:
    """The clients of one place with their samples and states: an institution's, or all of a simulation's.

    Attributes:
        setup: what it agreed on with the coordinator.
        federated: its clients and their environments, on the run's device.
        audit: whether uploads are compared with private data.
    """

    def __init__(
        self, setup: Setup, federated: FederatedData, store: ClientStore | None = None, audit: bool = False
    ) -> None:
        self.setup, self.federated, self.audit = setup, federated, audit
        self.store = store or ClientStore()  # the clients' states
        self.initial = setup.initial("client")
        self._viewed: tuple[object, Mapping[str, Tensor], FederatedData] | None = None
        self._prepared: dict[int, tuple[Tensors, Tensors]] = {}  # with the statistics that all sites share
        self._trained: set[int] = set()  # clients known to have trained

    def view(self, stage: Stage, received: Mapping[str, Tensor] | None = None) -> FederatedData:
        """The federation as a stage sees it, for a client's Down (None: none yet); the last view is cached."""
        if stage.view is None:
            return self.federated
        statistics = Tensors()
        if self.setup.preparation is not None:
            statistics = Tensors(received or self.setup.initial("down")).of_parts((PREPARATION, COMMON))
        if self._viewed is None or self._viewed[0] != stage.view or not _equal(self._viewed[1], statistics):
            with self.setup.global_draws("view", stage.name):
                viewed = stage.view(self._as_inputs(statistics), self.setup.streams)
            self._viewed = (stage.view, statistics, viewed.to(self.setup.device))
        return self._viewed[2]

    def _as_inputs(self, statistics: Tensors) -> FederatedData:
        """The clients with prepared rows of a table; the federation itself for other samples."""
        inputs = self.federated.inputs
        if inputs.preparation is None:
            return self.federated
        clients = tuple(
            replace(client, train=Samples(inputs.fitted(own).evaluation(client.train.x), client.train.y))
            for client in self.federated.clients
            for own in [(statistics | self.prepared_by(client.id, statistics)).of(PREPARATION)]
        )
        return replace(self.federated, clients=clients, environments=(), inputs=replace(inputs, preparation=None))

    def prepared_by(self, client: int, received: Mapping[str, Tensor]) -> Tensors:
        """A client's local statistics that prepare its rows, computed from the Down if sites share some; else empty."""
        preparation = self.setup.preparation
        if preparation is None or preparation.statistics == "pooled":
            return Tensors()
        common = Tensors(received).of(COMMON)
        if preparation.statistics == "combat" and not common:
            return Tensors()
        if client not in self._prepared or not _equal(self._prepared[client][1], common):
            own = preparation.of_site(self.federated.client(client).train.x, common)
            self._prepared[client] = Tensors(own).under(PREPARATION), common
        return self._prepared[client][0]

    def state(self, client: int, received: Mapping[str, Tensor]) -> ClientState:
        kept = self.store.get(client)
        prepared = self.prepared_by(client, received)
        if kept:
            return replace(kept, tensors={**kept.tensors, **prepared}) if prepared else kept
        return ClientState(dict(self.initial | self.setup.initial_private(client) | prepared), trained=False)

    def has_trained(self, client: int) -> bool:
        """Whether a stage that stores clients' changes has trained a client."""
        if client not in self._trained:
            state = self.store.peek(client)
            if state is None or not state.trained:
                return False
            self._trained.add(client)
        return True

    def job(self, order: Order) -> Job:
        """An order, joined with what only this site has; a FedshiftError for an order of another run."""
        if order.run != self.setup.run:
            raise FedshiftError(f"A site of the run {self.setup.run} received an order of the run {order.run}.")
        stage, exchange = self.setup.find(order.stage, order.exchange)
        view, round = self.view(stage, order.down), Round(stage, order.round)
        return Job(
            self.setup,
            view,
            exchange,
            round,
            view.client(order.client),
            order.down,
            self.state(order.client, order.down),
        )

    def keep(self, job: Job, outcome: Outcome) -> Answer:
        """Store a client's state and return its reply, or a FedshiftError if the audit finds private data."""
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

    def answer(self, job: Job, result: Outcome | Exception) -> Answer | Exception:
        if not isinstance(result, Outcome):
            return result
        try:
            return self.keep(job, result)
        except FedshiftError as error:  # it concerns this client only
            return error

    def answers(self, orders: Sequence[Order], engine: Engine) -> list[Answer | Exception]:
        jobs = [self.job(order) for order in orders]
        return [self.answer(job, result) for job, result in zip(jobs, engine.train(jobs), strict=True)]


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
