"""One run from data to records: the rounds of a method on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from fedshift.core.contract import Exchange, ServerState, Stage, tensor_scopes
from fedshift.core.messages import Message, Tensors, Up
from fedshift.core.net import Net, batch_norms
from fedshift.core.state import ClientState, ClientStore, MemoryStore
from fedshift.core.streams import Streams
from fedshift.data.dataset import Dataset, DomainData
from fedshift.data.features import Tell, silent
from fedshift.data.federation import Client, Environment, Federation
from fedshift.engines.engine import Job, Moment, Score
from fedshift.engines.sequential import Sequential, laid_out_as
from fedshift.errors import DivergedError, FedshiftError
from fedshift.experiment import Experiment
from fedshift.models.model import ModelSpec
from fedshift.runs.checkpoint import Checkpoint
from fedshift.runs.folder import Record
from fedshift.runs.progress import Progress


class Simulation:
    """Everything of one run in memory: federation, model, method, engine and state.

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
        self.spec = ModelSpec(experiment.model, federation.shape, len(federation.classes), self.streams, clients)
        parts = self.method.parts(self.spec)
        self.scopes = tensor_scopes(self.method, parts)
        self.stages = self.method.stages(experiment.train.rounds)
        self.engine = Sequential(
            self.method,
            self.spec,
            parts,
            self.federation.inputs,
            experiment.train,
            experiment.evaluate,
            self.streams,
            self.device,
        )
        self.notes = self._notes()
        initial = {
            name: tensor.detach().clone().to(self.device)
            for name, tensor in Net({name: part.module for name, part in parts.items()}).tensors()
        }
        shared, down, server = (self._of_scope(initial, scope) for scope in ("shared", "down", "server"))
        self.server = ServerState(shared, down, server, clients=clients)
        self.initial_client = self._of_scope(initial, "client")
        self.store: ClientStore = MemoryStore()
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
        has_batch_norm = any(True for module in self.engine.net.parts.values() for _ in batch_norms(module))
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
        return [Moment(stage, number) for stage in self.stages for number in range(1, stage.rounds + 1)]

    def scored(self) -> list[int]:
        """The positions after which models are evaluated: every so many rounds, and after a stage's last."""
        every = self.experiment.evaluate.every
        return [
            position
            for position, moment in enumerate(self.moments(), start=1)
            if moment.stage.scored and (moment.round % every == 0 or moment.round == moment.stage.rounds)
        ]

    def advance(self, moment: Moment, progress: Progress) -> None:
        """Carry out one round: select a cohort, then make every exchange with it."""
        by_id = {client.id: client for client in self.view(moment.stage).clients}
        chosen = self._select(moment, sorted(by_id))
        cohort = [by_id[client] for client in dict.fromkeys(chosen)]
        self._terms = {}
        for exchange in moment.stage.exchanges:
            ups = self.exchange(exchange, moment, cohort, progress)
            replies = [(client, ups[client]) for client in chosen]
            state, terms = self.engine.serve(exchange, moment, self.server, replies, progress.steps)
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

    def _select(self, moment: Moment, clients: Sequence[int]) -> list[int]:
        """The ids of a round's cohort, in order."""
        if moment.stage.participation == 1:
            return list(clients)
        generator = self.streams.generator("selection", *moment.key)
        return sorted(self.method.select(self.server, clients, self.cohort(moment.stage), generator))

    def exchange(
        self, exchange: Exchange, moment: Moment, cohort: Sequence[Client], progress: Progress
    ) -> dict[int, Up]:
        """Send each client its Down, let it work, store what it keeps, and collect the Ups by client id."""
        inputs = self.view(moment.stage).inputs
        jobs = [Job(client, exchange.send(self.server, client.id), self._state(client.id), inputs) for client in cohort]
        for job in jobs:
            self._check_scopes(job.down, exchange, "send")
        self.bytes_down += sum(job.down.nbytes for job in jobs)
        ups = {}
        for job, outcome in zip(jobs, self.engine.train(exchange, moment, jobs), strict=True):
            self._check_scopes(outcome.up, exchange, "reply")
            ups[outcome.client] = outcome.up
            self.bytes_up += outcome.up.nbytes
            kept = outcome.state if moment.stage.keeps else replace(job.state, drawn=outcome.state.drawn)
            self.store.put(outcome.client, kept)
            self._terms.setdefault(job.client.name, {}).update(outcome.terms)
            progress.steps(outcome.steps)
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
        return next(one.name for one in self.federation.clients if one.id == client)

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

    def checkpoint(self) -> Checkpoint:
        """Everything that changes over time, as it is now."""
        return Checkpoint(
            self.experiment.fingerprint,
            self.position,
            self.bytes_down,
            self.bytes_up,
            self.server,
            dict(self.store.items()),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back (or on) to a checkpoint."""
        self.position = checkpoint.position
        saved = checkpoint.server
        shared, down, server = (self._laid_out(tensors) for tensors in (saved.shared, saved.down, saved.server))
        self.server = replace(saved, shared=shared, down=down, server=server, clients=self.server.clients)
        self.bytes_down, self.bytes_up = checkpoint.bytes_down, checkpoint.bytes_up
        for client, state in checkpoint.clients.items():
            self.store.put(client, replace(state, tensors=self._laid_out(state.tensors)))

    def _laid_out(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """The tensors in the model's memory layout, which a checkpoint does not keep and on which last bits depend."""
        return {name: laid_out_as(self.engine.resident[name], tensor) for name, tensor in tensors.items()}

    # Scores -------------------------------------------------------------------------------------

    def evaluate(self, moment: Moment) -> Record:
        """Score every environment; the record says which model was used on whose data."""
        scored = []
        for environment in self.federation.environments:
            models = self.models(environment)
            scores = [self.engine.score(model, environment, moment) for model in models]
            scored.append(self._row(environment, scores))
        return {
            "position": self.position,
            "stage": moment.stage.name,
            "round": moment.round,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "terms": self._terms,
            "environments": scored,
        }

    def models(self, environment: Environment) -> list[Tensors]:
        """The tensors of each model that is scored on an environment.

        A client is scored with what the server would send it and what it keeps; one that has not trained yet,
        or never will, with what the method gives an unseen client.
        """
        client = environment.client
        sent = {**self.server.shared, **self.server.down}
        if client is not None:
            sent = dict(self.method.send(self.server, client))
        trained = dict(self.store.items())
        if not self._personal:
            return [sent]
        if client in trained:
            return [{**sent, **trained[client].tensors}]
        held = [state.tensors for state in trained.values()]
        return [{**sent, **own} for own in self.method.unseen(self.server, held or [self.initial_client])]

    @property
    def _personal(self) -> bool:
        """Whether prediction reads tensors that clients keep."""
        return any(name.partition(".")[0] in self.method.reads() for name in self.initial_client)

    def _row(self, environment: Environment, scores: list[Score]) -> Record:
        trained = environment.client is not None and self.store.get(environment.client) is not None
        own = "global" if not self._personal else "own" if trained else "unseen"
        return {
            "environment": environment.name,
            "role": environment.role,
            "model": own,
            "models": len(scores),
            "accuracy": sum(score.accuracy for score in scores) / len(scores),
            "loss": sum(score.loss for score in scores) / len(scores),
            "n": scores[0].n,
        }


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
