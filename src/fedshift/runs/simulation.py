"""A run on this machine: a coordinator, and all its sites in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import prod

import torch

from fedshift import memory
from fedshift.clients.data_checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.missing import notes_on_missing
from fedshift.clients.oddities import most_serious
from fedshift.core.contract import Stage
from fedshift.core.frozen import Embedding, FrozenNetwork, embedded, silent
from fedshift.core.messages import Missing, Order
from fedshift.core.net import batch_norms
from fedshift.core.setup import Round, Setup
from fedshift.datasets.dataset import Dataset
from fedshift.engines.choice import Choice, requested_engine
from fedshift.engines.engine import Engine, Job, Outcome
from fedshift.engines.timings import choose
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.methods.fedavg import FedAvg
from fedshift.models import MODELS
from fedshift.models.own import Own, Widened
from fedshift.rounds.coordinator import Coordinator, Received
from fedshift.rounds.evaluation import Evaluation
from fedshift.rounds.site import Site
from fedshift.runs.schema import Blueprint, Record
from fedshift.streams import Streams

INPUT = 4  # bytes of a number of a network's inputs


class Simulation:
    """All objects of a run; an engine does its work.

    Attributes:
        blueprint: what its modules are created from
        coordinator: selects, sends, checks, aggregates and counts
        site: every client, with its samples and state
        notes: what a reader of the results must know
    """

    def __init__(
        self, experiment: Experiment, notify: Embedding = silent, federated: FederatedData | None = None
    ) -> None:
        """Load the data and build the model.

        ``notify`` is called as a frozen network embeds images; ``federated`` are existing clients and environments
        (None: from the experiment's data). Raises a FedshiftError with the reason if the experiment cannot run.
        """
        self.experiment = experiment
        experiment.check()
        device = choose_device(experiment.run.device)
        federated = (federated or make_federated(experiment, notify)).to(device)
        _check_batches(experiment, federated)
        self.blueprint = Blueprint.of(federated)
        self.setup = self.blueprint.setup(experiment, f"{experiment.name}-seed{experiment.seed}", device)
        _check_patience(experiment, federated)
        self.site = Site(self.setup, federated, audit=experiment.run.audit)
        self.coordinator = Coordinator(self.setup, self.blueprint.clients)
        self.evaluation = Evaluation(self.site)
        self.notes = [
            *federated.notes,
            *_notes_on_batch_norm(self.setup),
            *_notes_on_widths(self.setup),
            *_notes_on_classifiers(self.setup),
            *self.setup.notes_on_rates,
        ]

    @property
    def federated(self) -> FederatedData:
        """Clients and environments, on the run's device."""
        return self.site.federated

    @property
    def rounds(self) -> int:
        return len(self.coordinator.schedule)

    def scored(self, position: int) -> bool:
        return self.setup.scored(self.coordinator.schedule[position - 1])

    # Rounds -------------------------------------------------------------------------------------

    def jobs(self, orders: Sequence[Order]) -> list[Job]:
        return [self.site.job(order) for order in orders if not self._is(order, "absent")]

    def received(
        self, orders: Sequence[Order], jobs: Sequence[Job], outcomes: Sequence[Outcome | Exception]
    ) -> list[Received]:
        """The answers to orders, from the outcomes of their jobs; some are late."""
        received: dict[int, Received] = {order.client: Missing(order.client, "absent") for order in orders}
        for job, outcome in zip(jobs, outcomes, strict=True):
            received[job.client.id] = self.site.answer(job, outcome)
        for order in orders:
            if not isinstance(received[order.client], Missing) and self._is(order, "late"):
                received[order.client] = Missing(order.client, "late")
        return list(received.values())

    def _is(self, order: Order, what: str) -> bool:
        likely = getattr(self.experiment.train, what)
        if not likely:
            return False
        generator = self.setup.streams.generator(what, order.stage, order.round, order.exchange, order.client)
        return bool(torch.rand((), generator=generator) < likely)

    @property
    def main_stage(self) -> Stage:
        """The longest of the stages whose models are evaluated."""
        return max(self.setup.stages, key=lambda stage: (stage.scored, stage.rounds))

    def example(self) -> list[Job]:
        """The clients' jobs of a first round of training, to measure engines on; nothing is sent."""
        stage = self.main_stage
        cohort = [client.id for client in islice(self.site.view(stage).clients, self.coordinator.cohort(stage))]
        orders = self.coordinator.orders(stage.training, Round(stage, 1), cohort)
        return [self.site.job(order) for order in orders]

    def choice(self, notify: Callable[[str], None]) -> Choice:
        """The engine that the run requires, or the fastest; ``notify`` is called with the choice and its reason."""
        options = self.experiment.run
        if options.engine == "auto":
            return choose(self.example(), options, notify)
        return requested_engine(self.setup, options)

    def record(self, round: Round, engine: Engine) -> Record:
        """Score every environment.

        The record names which model was used on whose data, and which clients did not answer.
        """
        coordinator, last = self.coordinator, round.stage.training
        rows = self.evaluation.rows(coordinator.state, lambda client: coordinator.down(last, client), round, engine)
        return {
            **coordinator.record(round),
            **({"only_in_simulation": True} if self.evaluation.simulated else {}),
            "environments": rows,
        }


def refused_by_method(experiment: Experiment, notify: Embedding = silent) -> bool:
    """Whether FedAvg could run, so that only the method refuses the experiment."""
    try:
        Simulation(experiment.replace(method=FedAvg()), notify)
    except FedshiftError:
        return False
    return True


def make_federated(experiment: Experiment, notify: Embedding = silent) -> FederatedData:
    """The clients and environments of an experiment, on the CPU."""
    seed = experiment.seed_of_data
    experiment.model.check(experiment.data.inputs())
    network, streams = experiment.model.frozen_network(), Streams(seed)
    drawn_by = seed if experiment.data.seeded else 0  # data without chance are read once for all seeds
    data = load_data(experiment.data, network, drawn_by, str(experiment.contents), notify)
    with streams.as_global("global draws in federation"):
        federated = divided(experiment, data, streams)
        lacking = notes_on_missing(data, federated.inputs.preparation)
        noted = replace(federated, notes=(*data.notes, *federated.notes, *lacking)).checked(data)
        table = network is None and getattr(experiment.data, "frozen", "none") == "none"
        noted = replace(noted, oddity=most_serious(data, noted, experiment.train.batch, table))
        return experiment.method.regroup(noted.scoring(experiment.evaluate.clients, streams))


def read_federated(experiment: Experiment) -> tuple[DomainData, FederatedData]:
    """The samples of an experiment as they were read, by client, which may be empty.

    Without features of a frozen network.

    Raises a FedshiftError if the data are unavailable, or cannot be divided as requested.
    """
    streams = Streams(experiment.seed_of_data)
    data = read_data(experiment.data, streams)
    with streams.as_global("global draws in federation"):
        return data, divided(experiment, data, streams)


def divided(experiment: Experiment, data: DomainData, streams: Streams) -> FederatedData:
    inputs = experiment.inputs.counting(data.x)
    federated = experiment.protocol.federate(data, experiment.partition, inputs, streams)
    federated = replace(federated, columns=tuple(column.name for column in data.columns))
    return federated if inputs.preparation is None else federated.by_training(data.columns)


def _check_batches(experiment: Experiment, federated: FederatedData) -> None:
    """Refuse batches whose inputs alone exceed the memory; a batch is never larger than the set it is drawn from."""
    trained, scored = (max(sizes, default=0) for sizes in (federated.trained_sizes, federated.scored_sizes))
    for name, batch in (
        ("train.batch", min(experiment.train.batch, trained)),
        ("evaluate.batch", min(experiment.evaluate.batch, scored)),
    ):
        memory.check(
            batch * prod(federated.shape) * INPUT,
            f"A batch of {batch:,} samples of shape {federated.shape}",
            f"Lower {name}.",
        )


def _check_patience(experiment: Experiment, federated: FederatedData) -> None:
    """Refuse to wait for better validation scores where there are no validation samples."""
    if experiment.train.patience == "off":
        return
    sizes = zip(federated.environments, federated.scored_sizes, strict=True)
    if not any(size for environment, size in sizes if environment.role == "validation"):
        raise FedshiftError(
            f"train.patience = {experiment.train.patience} ends training by validation scores, but no client has "
            "validation samples: give the protocol some (--set protocol.validation=0.1), or set train.patience = 'off'."
        )


def _notes_on_batch_norm(setup: Setup) -> list[str]:
    name, method = setup.method.label, setup.method
    modules = [part.module for part in setup.parts.values() if part.scope != "server"]
    if method.core.bn != "shared" and not any(True for module in modules for _ in batch_norms(module)):
        model = setup.model.model
        other = getattr(model, "norm", "batch") != "batch"
        fix = "--set model.norm=batch adds it" if other else "choose a model that has some, or another method"
        without = f"{name}: the model '{MODELS.name_of(model)}' has no batch norm"
        return [f"{without}, so bn = '{method.core.bn}' changes nothing; {fix}"]
    if method.core.reestimates(unseen=True):
        whose = "every" if method.core.reestimates(unseen=False) else "an unseen"
        return [
            f"{name}: batch-norm statistics of {whose} environment are measured on the inputs that are scored, "
            "without labels, so its accuracy is transductive"
        ]
    return []


def _notes_on_widths(setup: Setup) -> list[str]:
    """Note where a layer was added behind a user's module."""
    return [
        f"Behind the {layer.features} features of {type(layer.body).__name__} a linear layer gives the {layer.out} of "
        f"'{name}'."
        for name, part in setup.parts.items()
        for layer in part.module.modules()
        if isinstance(layer, Widened)
    ]


def _notes_on_classifiers(setup: Setup) -> list[str]:
    model = setup.model.model
    note = model.whole_classifier_reason(setup.model.shape, setup.model.classes) if isinstance(model, Own) else ""
    return [note] if note else []


def choose_device(name: str) -> torch.device:
    """The device of a name; 'auto' is the accelerator if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise FedshiftError(f"run.device = '{name}' is not usable here ({reason}); try auto or cpu.") from error
    return device


@lru_cache(maxsize=1)
def load_data(
    dataset: Dataset, network: FrozenNetwork | None, seed: int, content: str, notify: Embedding = silent
) -> DomainData:
    """A data set in memory, checked and embedded, as an encoder reads it after the stages that a model freezes.

    Cached for the next run of a grid while its files, and these stages, are the same. Raises a FedshiftError if it
    cannot be read, or if its numbers are invalid.
    """
    streams = Streams(seed)
    data = read_data(dataset, streams)
    with streams.as_global("global draws in embedding"):
        return embedded(dataset.embedded(data, notify), network, notify=notify)


def read_data(dataset: Dataset, streams: Streams) -> DomainData:
    inputs = dataset.inputs()
    with streams.as_global("global draws in data"):
        data = dataset.load(streams)
    check_data(data, inputs)
    return data
