"""The models of a finished run with its data: their outputs for every sample on which they were scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import mean

from torch import Tensor

from fedshift.clients.samples import Environment
from fedshift.core.method import Prepared
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Round
from fedshift.core.state import ClientState
from fedshift.core.tensors import Tensors
from fedshift.engines.engine import Question
from fedshift.engines.sequential import Sequential
from fedshift.errors import FedshiftError
from fedshift.manifest import read_file
from fedshift.methods import INDEXING
from fedshift.runs.checkpoint import tensors_name, unpack_server
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation

# How far an accuracy may lie from the recorded accuracy: engines round differently, which changes a few predictions.
TOLERANCE = 0.005


@dataclass(frozen=True, eq=False, repr=False)
class Observed:
    """An environment with the outputs of a model that was scored on it."""

    environment: Environment
    whose: str  # "global", the client's "own", or an "unseen" client's
    log_probabilities: Tensor  # (n, classes)
    # what the method's ``encode`` gives, (n, d); of a probabilistic encoder the means. Where a personalised model has
    # an encoder in addition to the shared one (ditto, pfedme), of the shared encoder.
    z: Tensor
    y: Tensor  # labels (n,)

    @property
    def right(self) -> Tensor:
        return self.log_probabilities.argmax(dim=1) == self.y

    def __repr__(self) -> str:
        return f"Observed({self.environment.role} '{self.environment.name}', {len(self.y)} samples, {self.whose} model)"


class TrainedSimulation:
    """A finished run with its data and final models; the data are loaded when they are first read.

    Attributes:
        run: the run's folder.
    """

    def __init__(self, run: Run) -> None:
        self.run, self._weights = run, run.weights
        self._engine = Sequential()

    @cached_property
    def simulation(self) -> Simulation:
        """Sites and coordinator after the last round.

        Raises:
            FedshiftError: the run's samples are at institutions, or its data cannot be read.
        """
        if self.run.identity.host == "federation":
            raise FedshiftError(
                f"'{self.run.path}' ran between institutions, where its samples are: only a simulation can be analysed."
            )
        simulation = Simulation(self.run.experiment)
        coordinator, site = simulation.coordinator, simulation.site
        tensors = {name: tensor.to(simulation.setup.device) for name, tensor in self._weights.items()}
        coordinator.state = coordinator.state.updated(
            {n: tensors[n] for n in coordinator.state.tensors if n in tensors}
        )
        for id in coordinator.names:
            if private := {
                name: its for name, its in self._client_tensors(tensors, id).items() if name in site.initial
            }:
                site.store.put(id, ClientState(dict(site.initial | private)))
        return simulation

    @property
    def round(self) -> Round:
        return Round(self.simulation.coordinator.schedule[-1].stage, self.run.records[-1]["round"])

    @cached_property
    def prepared(self) -> Prepared:
        """The result of the method's stages before training.

        Raises:
            FedshiftError: the method prepares nothing, or the run's last checkpoint is missing.
        """
        preparing, saved = self.simulation.experiment.method.prepares, self.run.checkpoint
        if preparing is None:
            raise FedshiftError(
                f"'{self.run.path}' describes no clients before it trains; a run of '{INDEXING}', for example, does."
            )
        if saved is None:
            raise FedshiftError(f"'{self.run.path}' has no checkpoint any more, where its index was. Run it again.")
        name = tensors_name(saved.position)
        state = unpack_server(read_file(self.run.path / name, saved.files.get(name)), self.simulation.setup.device)
        return preparing.prepared(self.simulation.federated, state, saved.messages)

    def _client_tensors(self, tensors: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
        prefix = f"client.{client}."
        return {name.removeprefix(prefix): its for name, its in tensors.items() if name.startswith(prefix)}

    def questions(self, role: str | None = None) -> Iterator[list[Question]]:
        """Every environment of a role (None: of any), with each model that is scored on it."""
        strangers: list[Tensors] = []
        for environment in self.simulation.federated.environments:
            if role in (None, environment.role):
                yield self._question(environment, strangers)

    def observe_by_client(self, environment: Environment, most: int) -> dict[str, Observed]:
        """An environment's samples under the personalised models of the first clients, by the client's name.

        Raises:
            FedshiftError: all clients have the same model.
        """
        evaluation, names = self.simulation.evaluation, self.simulation.coordinator.names
        observed = {}
        for client, name in islice(names.items(), most):
            its = replace(environment, client=client)
            if evaluation.model_of(its) == "global":
                raise FedshiftError(
                    f"'{self.run.path}' ends with a single model for all clients, so there is nothing to compare "
                    "between them. Analyse a run of a method with personal models, such as fedbn."
                )
            observed[name] = Observed(its, evaluation.model_of(its), *self._engine.observe(self._question(its, [])[0]))
        return observed

    def _question(self, environment: Environment, strangers: list[Tensors]) -> list[Question]:
        """An environment with each model that is scored on it; ``strangers`` caches the models of unseen clients."""
        simulation, inputs = self.simulation, self.simulation.federated.inputs
        state, device = simulation.coordinator.state, simulation.setup.device
        sent = state.shared | state.down

        def send(client: int) -> Tensors:
            own = self._client_tensors(self._weights, client)
            return sent | {name: tensor.to(device) for name, tensor in own.items()}

        return [
            Question(simulation.setup, model, environment, inputs.fitted(model.of(PREPARATION)), self.round)
            for model in simulation.evaluation.models(environment, state, send, strangers)
        ]

    def observe(self, role: str | None = None) -> Iterator[Observed]:
        """Every environment of a role, under each model that was scored on it.

        Raises:
            FedshiftError: an accuracy differs from the recorded accuracy.
        """
        for questions in self.questions(role):
            environment = questions[0].environment
            whose = self.simulation.evaluation.model_of(environment)
            observed = [Observed(environment, whose, *self._engine.observe(question)) for question in questions]
            self._check(environment, mean(float(one.right.double().mean()) for one in observed))
            yield from observed

    def _check(self, environment: Environment, accuracy: float) -> None:
        rows = self.run.records[-1]["environments"]
        its = [
            row["accuracy"] for row in rows if (row["role"], row["environment"]) == (environment.role, environment.name)
        ]
        if not any(abs(recorded - accuracy) <= TOLERANCE for recorded in its):
            raise FedshiftError(
                f"'{self.run.path}': the accuracy on '{environment.name}' is {accuracy:.3f}, but the record has "
                f"{', '.join(f'{recorded:.3f}' for recorded in its)}: the data or a plugin changed since "
                "the run was started. Run it again to analyse it."
            )
