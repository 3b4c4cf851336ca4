"""One run from data to records: the rounds of a method on one machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import overload

import torch

from fedshift.coordinator.checkpoint import Checkpoint
from fedshift.core.contract import Exchange, ServerState, Stage
from fedshift.core.messages import Message, Tensors, Up
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net, batch_norms
from fedshift.core.state import ClientState, ClientStore, MemoryStore
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.features import Tell, silent
from fedshift.engines.banks import same
from fedshift.engines.engine import Engine, Job, Moment, Outcome, Question, Score, ServerJob, Setup
from fedshift.errors import DivergedError, FedshiftError
from fedshift.federation.domains import DomainData
from fedshift.federation.environments import Environment
from fedshift.federation.federation import Federation
from fedshift.runs.folder import Record
from fedshift.settings.experiment import Experiment
from fedshift.site.store import DiskStore
from fedshift.streams import Streams

CHECKPOINT = "checkpoint.safetensors"
Request = list[Job] | ServerJob  # what a round asks an engine for
Answer = list[Outcome] | tuple[ServerState, dict[str, float]]
Asking = Generator[Request, Answer, None]


def no_steps(count: int) -> None:
    """Nobody hears of steps."""


class Simulation:
    """Everything of one run: federation, model, method and state. An engine does its work.

    Attributes:
        position: how many rounds are done, over all stages.
        bytes_down: bytes sent to clients so far.
        bytes_up: bytes sent by clients so far.
        messages: the first Down and Up of every exchange.
    """

    def __init__(self, experiment: Experiment, tell: Tell = silent) -> None:
        """Load the data and build the model.

        Args:
            experiment: what to run.
            tell: hears of images that a frozen network embeds.

        Raises:
            FedshiftError: the experiment cannot be run; the message says why.
        """
        self.experiment = experiment
        self.method = experiment.method
        self.streams = Streams(experiment.seed)
        self.device = choose_device(experiment.run.device)
        self.federation = self._federation(tell)
        federation = self.federation
        clients = len(federation.clients)
        spec = ModelBuilder(experiment.model, federation.shape, len(federation.classes), self.streams, clients)
        self.setup = Setup(
            self.method,
            spec,
            self.method.parts(spec),
            federation,
            experiment.train,
            experiment.evaluate,
            self.streams,
            self.device,
        )
        self.scopes = self.setup.scopes
        self.stages = self.method.stages(experiment.train.rounds)
        self.notes = self._notes()
        initial = {
            name: tensor.detach().clone().to(self.device, self.setup.dtype if tensor.is_floating_point() else None)
            for name, tensor in Net({name: part.module for name, part in self.setup.parts.items()}).tensors()
        }
        shared, down, server = (self._of_scope(initial, scope) for scope in ("shared", "down", "server"))
        self.server = ServerState(shared, down, server, clients=clients)
        self.initial_client = self._of_scope(initial, "client")
        self.store: ClientStore = MemoryStore()
        self._folder: Path | None = None
        self.position = self.bytes_down = self.bytes_up = 0
        self.messages: dict[str, dict[str, Message]] = {}
        self._terms: dict[str, dict[str, float]] = {}
        self._viewed: tuple[object, Federation] | None = None

    def _federation(self, tell: Tell) -> Federation:
        experiment = self.experiment
        data = experiment.data.embedded(load_data(experiment.data, experiment.seed, experiment.content), tell)
        inputs = experiment.data.inputs()
        federation = experiment.protocol.federate(data, experiment.partition, inputs, self.streams)
        return self.method.federation(federation.checked()).to(self.device)

    def _of_scope(self, tensors: Tensors, scope: str) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in tensors.items() if self.scopes[name] == scope}

    def _notes(self) -> list[str]:
        """What a reader of the results must know."""
        return [*self.federation.notes, *self._notes_on_batch_norm()]

    def _notes_on_batch_norm(self) -> list[str]:
        name, method = type(self.method).__name__, self.method
        modules = [part.module for part in self.setup.parts.values() if part.scope != "server"]
        has_batch_norm = any(True for module in modules for _ in batch_norms(module))
        if method.bn != "shared" and not has_batch_norm:
            return [
                f"{name}: the model has no batch norm, so bn = '{method.bn}' changes nothing "
                "(for the model 'cnn': --set model.batch_norm=true)"
            ]
        if method.reestimates(unseen=True):
            whose = "every" if method.reestimates(unseen=False) else "an unseen"
            return [
                f"{name}: batch-norm statistics of {whose} environment are measured on the inputs that are scored, "
                "without labels, so its accuracy is transductive"
            ]
        return []

    # Rounds -------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """All rounds, over all stages."""
        return sum(stage.rounds for stage in self.stages)

    def cohort(self, stage: Stage) -> int:
        """How many clients take part in a round of a stage."""
        participation = stage.participation or self.experiment.train.participation
        return max(1, round(participation * len(self.federation.clients)))

    def moments(self) -> list[Moment]:
        """Every round of the run, in order."""
        return self._moments

    @cached_property
    def _moments(self) -> list[Moment]:
        return [Moment(stage, number) for stage in self.stages for number in range(1, stage.rounds + 1)]

    @property
    def next_moment(self) -> Moment:
        """The round that comes next."""
        return self.moments()[self.position]

    def scored(self) -> list[int]:
        """The positions after which models are evaluated: every so many rounds, and after a stage's last."""
        every = self.experiment.evaluate.every
        return [
            position
            for position, moment in enumerate(self.moments(), start=1)
            if moment.stage.scored and (moment.round % every == 0 or moment.round == moment.stage.rounds)
        ]

    def round(self, moment: Moment, tell: Callable[[int], None] = no_steps) -> Asking:
        """Carry out one round: select a cohort, then make every exchange with it.

        Yields what an engine must do, jobs or a server's job, and is sent their outcomes; ``tell`` hears of the
        server's steps.
        """
        view = self.view(moment.stage)
        chosen = self._select(moment, view)
        cohort = list(dict.fromkeys(chosen))
        self._terms = {}
        self.store.begin(self.position + 1)
        for exchange in moment.stage.exchanges:
            jobs = self.jobs(exchange, moment, cohort)
            outcomes = yield jobs
            assert isinstance(outcomes, list)
            ups = self.collect(exchange, moment, jobs, outcomes)
            replies = [(client, ups[client]) for client in chosen]
            served = yield ServerJob(self.setup, exchange, moment, self.server, replies, tell)
            assert isinstance(served, tuple)
            state, terms = served
            self.server = replace(exchange.merge(state, replies), measured={})
            if terms:
                self._terms.setdefault("server", {}).update(terms)
            self._check_finite(ups, moment)
        self.position += 1

    def view(self, stage: Stage) -> Federation:
        """The federation as a stage sees it; the last view is kept, which stages may share."""
        if stage.view is None:
            return self.federation
        if self._viewed is None or self._viewed[0] != stage.view:
            self._viewed = (stage.view, stage.view(self.federation, self.streams).to(self.device))
        return self._viewed[1]

    def _select(self, moment: Moment, view: Federation) -> list[int]:
        """The ids of a round's cohort, in order."""
        ids = view.ids
        if moment.stage.participation == 1:
            return list(ids)
        generator = self.streams.generator("selection", *moment.key)
        return sorted(self.method.select(self.server, ids, self.cohort(moment.stage), generator))

    def jobs(self, exchange: Exchange, moment: Moment, cohort: Sequence[int]) -> list[Job]:
        """Send each client of a cohort, by id, its Down."""
        view = self.view(moment.stage)
        jobs = []
        for client in cohort:
            down = exchange.send(self.server, client)
            self._check_scopes(down, exchange, "send")
            self.bytes_down += down.nbytes
            jobs.append(Job(self.setup, view, exchange, moment, view.client(client), down, self._state(client)))
        return jobs

    def collect(
        self, exchange: Exchange, moment: Moment, jobs: Sequence[Job], outcomes: Sequence[Outcome]
    ) -> dict[int, Up]:
        """Store what each client keeps, and collect the Ups by client id."""
        ups = {}
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._check_scopes(outcome.up, exchange, "reply")
            ups[outcome.client] = outcome.up
            self.bytes_up += outcome.up.nbytes
            kept = outcome.state if moment.stage.keeps else replace(job.state, drawn=outcome.state.drawn)
            self.store.put(outcome.client, kept)
            self._terms.setdefault(job.client.name, {}).update(outcome.terms)
        self.messages.setdefault(exchange.name, {"down": jobs[0].down, "up": ups[jobs[0].client.id]})
        return ups

    def _check_finite(self, ups: Mapping[int, Up], moment: Moment) -> None:
        """A round's last step has no loss of its own, so what was merged is looked at before it is kept."""
        if all(tensor.isfinite().all() for tensor in (*self.server.shared.values(), *self.server.down.values())):
            return
        for client, up in sorted(ups.items()):
            for name, tensor in up.items():
                if not tensor.isfinite().all():
                    raise DivergedError(
                        f"'{name}' is not finite after the last step of client '{self._name(client)}', round "
                        f"{moment.round}. The last checkpoint, if there is one, is kept. A smaller learning rate "
                        f"usually helps: --set train.lr={self.experiment.train.lr / 10:g}"
                    )
        raise DivergedError(
            f"What round {moment.round} merged is not finite, though every client's reply is: look for absurd values "
            "among the settings of [method] that the server uses."
        )

    def _name(self, client: int) -> str:
        return self.federation.client(client).name

    def _check_scopes(self, message: Message, exchange: Exchange, hook: str) -> None:
        """Nothing of client or server scope crosses the wire; a client's reply sees no client tensor but by name."""
        for name in message:
            if self.scopes.get(name) in ("client", "server"):
                raise FedshiftError(
                    f"The exchange '{exchange.name}' would send '{name}', which never leaves the {self.scopes[name]}. "
                    f"Leave it out of {hook}(), or give its part another scope."
                )

    def _state(self, client: int) -> ClientState:
        return self.store.get(client) or ClientState(self.initial_client)

    def example(self) -> list[Job]:
        """What clients are asked to do in a first round of training, to measure engines on; nothing is sent."""
        stage = max(self.stages, key=lambda stage: (stage.scored, stage.rounds))
        moment, before = Moment(stage, 1), self.bytes_down
        cohort = [client.id for client in islice(self.view(stage).clients, self.cohort(stage))]
        jobs = self.jobs(stage.exchanges[-1], moment, cohort)
        self.bytes_down = before
        return jobs

    # Going on later -----------------------------------------------------------------------------

    def attach(self, folder: Path) -> None:
        """Keep client states and checkpoints in a run's folder, and go on from the checkpoint there if there is one.

        Memory then holds the states of one cohort; the others are read when they are sampled.

        Raises:
            FedshiftError: the checkpoint, or a client's state, is damaged, missing or of another experiment.
        """
        keep = max(1, round(self.experiment.train.participation * len(self.federation.clients)))
        self._folder = folder
        self.store = DiskStore(folder / "clients", self.experiment.fingerprint, keep, self.device)
        if not (folder / CHECKPOINT).is_file():
            self.store.rewind(0, {})
            return
        checkpoint = Checkpoint.load(folder / CHECKPOINT, self.experiment.fingerprint, self.device)
        self.position, self.bytes_down, self.bytes_up = checkpoint.position, checkpoint.bytes_down, checkpoint.bytes_up
        self.server = replace(checkpoint.server, clients=self.server.clients)
        self.store.rewind(checkpoint.position, checkpoint.clients)

    def save(self) -> None:
        """Write a checkpoint of everything that changes over time into the folder that is attached.

        Raises:
            FedshiftError: the disk is full, say; the checkpoint before is kept.
        """
        assert self._folder is not None
        assert isinstance(self.store, DiskStore)
        self.store.flush()
        Checkpoint(
            self.experiment.fingerprint,
            self.position,
            self.bytes_down,
            self.bytes_up,
            self.server,
            self.store.versions(),
        ).save(self._folder / CHECKPOINT)
        self.store.prune(self.position)

    # Scores -------------------------------------------------------------------------------------

    def evaluate(self, moment: Moment, engine: Engine) -> Record:
        """Score every environment; the record says which model was used on whose data."""
        about: list[tuple[Record, int]] = []
        scores = iter(list(engine.score(self._questions(moment, about))))
        return {
            "position": self.position,
            "stage": moment.stage.name,
            "round": moment.round,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "terms": self._terms,
            "environments": [row | _mean([next(scores) for _ in range(models)]) for row, models in about],
        }

    def _questions(self, moment: Moment, about: list[tuple[Record, int]]) -> Iterator[Question]:
        """Every model on its environment; ``about`` gets what a record says of it, and how many models there are."""
        strangers: list[Tensors] = []
        last: list[Tensors] = []
        for environment in self.federation.environments:
            models = self.models(environment, strangers)
            if not _same_models(models, last):
                last = models  # models that are the same object are predicted with together
            row = {"environment": environment.name, "role": environment.role, "model": self._whose(environment)}
            about.append((row, len(last)))
            for model in last:
                yield Question(self.setup, model, environment, moment)

    def models(self, environment: Environment, strangers: list[Tensors] | None = None) -> list[Tensors]:
        """The tensors of each model that is scored on an environment.

        A client is scored with what the server would send it and what it keeps; one that has not trained yet,
        or never will, with what the method gives an unseen client.

        Args:
            environment: what is scored.
            strangers: what unseen clients are given, filled when it is first needed.
        """
        client, strangers = environment.client, [] if strangers is None else strangers
        sent = {**self.server.shared, **self.server.down} if client is None else self.method.send(self.server, client)
        match self._whose(environment):
            case "global":
                return [dict(sent)]
            case "own":
                assert client is not None
                state = self.store.peek(client)
                assert state is not None
                return [{**sent, **state.tensors}]
        if not strangers:
            strangers += self.method.unseen(self.server, self._kept_by_clients())
        return [{**sent, **own} for own in strangers]

    def _whose(self, environment: Environment) -> str:
        """Whose model an environment is scored with: the global one, the client's own, or an unseen client's."""
        if not any(name.partition(".")[0] in self.method.reads() for name in self.initial_client):
            return "global"
        return "own" if environment.client is not None and environment.client in self.store else "unseen"

    def _kept_by_clients(self) -> Sequence[Tensors]:
        """The tensors of every client that has trained, or the initial ones if none has."""
        return _Kept(self.store) if self.store.ids() else [self.initial_client]


def _mean(scores: Sequence[Score]) -> Record:
    """What a record says of an environment that one or several models were scored on."""
    return {
        "models": len(scores),
        "accuracy": sum(score.accuracy for score in scores) / len(scores),
        "loss": sum(score.loss for score in scores) / len(scores),
        "n": scores[0].n,
    }


class _Kept(Sequence[Tensors]):
    """The tensors that clients keep, in id order, each read when it is asked for."""

    def __init__(self, store: ClientStore) -> None:
        self._store, self._ids = store, store.ids()

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> Tensors: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tensors]: ...
    def __getitem__(self, place: int | slice) -> Tensors | list[Tensors]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        state = self._store.peek(self._ids[place])
        assert state is not None
        return state.tensors


def _same_models(models: Sequence[Tensors], others: Sequence[Tensors]) -> bool:
    """Whether two lists of models are the same tensors."""
    return len(models) == len(others) and all(
        one.keys() == other.keys() and all(same(tensor, other[name]) for name, tensor in one.items())
        for one, other in zip(models, others, strict=True)
    )


def choose_device(name: str) -> torch.device:
    """The device of a name; 'auto' is the accelerator if there is one, else the CPU.

    Raises:
        FedshiftError: there is no such device here.
    """
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
def load_data(dataset: Dataset, seed: int, content: str) -> DomainData:
    """A data set in memory; the last one is kept for the next run of a grid while its files' content is the same."""
    return dataset.load(Streams(seed))
