"""The reference engine: one resident model, one client after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn

from fedshift.core.contract import (
    Batch,
    Context,
    Exchange,
    LocalWork,
    Method,
    Objective,
    Part,
    Phase,
    Terms,
    tensor_scopes,
)
from fedshift.core.messages import Tensors
from fedshift.core.net import Net, batch_norms
from fedshift.core.state import ClientState, Moments
from fedshift.core.streams import Streams, sample_draws
from fedshift.data.federation import Environment
from fedshift.data.inputs import Inputs
from fedshift.engines.batches import BatchOrder
from fedshift.engines.engine import Job, Moment, Outcome, Score
from fedshift.errors import DivergedError, FedshiftError
from fedshift.experiment import Evaluate, Train
from fedshift.models.model import ModelSpec


@dataclass
class _Descent:
    """One objective of a phase at work."""

    objective: Objective
    parameters: dict[str, nn.Parameter]
    optimiser: torch.optim.Optimizer
    history: list[Terms] = field(default_factory=list)

    def step(self, net: Net, batch: Batch, context: Context) -> None:
        """Take one step on one batch, moving no other parameter."""
        terms = self.objective.loss(net, batch, context)
        for name, term in terms.items():
            if term.ndim:
                raise FedshiftError(
                    f"The term '{name}' of the objective '{self.objective.name}' has the shape {tuple(term.shape)}; "
                    "a term is a scalar, such as the mean over the batch."
                )
        moved = list(self.parameters.values())
        for parameter in moved:
            parameter.grad = None
        torch.autograd.backward(reduce(add, terms.values()), inputs=moved)
        self.optimiser.step()
        self.history.append({name: term.detach() for name, term in terms.items()})


class Sequential:
    """Loads each client's tensors into one resident net and trains it there."""

    def __init__(
        self,
        method: Method,
        spec: ModelSpec,
        parts: Mapping[str, Part],
        inputs: Inputs,
        train: Train,
        evaluate: Evaluate,
        streams: Streams,
        device: torch.device,
    ) -> None:
        self.method, self.spec, self.inputs = method, spec, inputs
        self.settings, self.evaluate, self.streams, self.device = train, evaluate, streams, device
        self.scopes = tensor_scopes(method, parts)
        self.net = Net({name: part.module.to(device) for name, part in parts.items() if part.scope != "server"})
        for name, part in parts.items():
            if part.scope == "down":
                self.net.parts[name].requires_grad_(False)
        self.resident = dict(self.net.tensors())

    # Training -----------------------------------------------------------------------------------

    def train(self, exchange: Exchange, moment: Moment, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Let every client work, one after the other."""
        for job in jobs:
            yield self._work(exchange, moment, job)

    def _work(self, exchange: Exchange, moment: Moment, job: Job) -> Outcome:
        self._load(job.down)
        self._load(job.state.tensors)
        moments = dict(job.state.moments)
        drawn, steps = job.state.drawn, 0
        means: dict[str, float] = {}
        for phase in exchange.phases(moment.round, moment.stage.rounds):
            count = self._steps(phase, job)
            for name, mean in self._phase(phase, count, moment, job, drawn, moments).items():
                means[name if name not in means else f"{phase.name}.{name}"] = mean
            drawn, steps = drawn + count, steps + count
        after = self._copy("shared")
        up = exchange.reply(LocalWork(after, job.down, len(job.client.train)))
        return Outcome(job.client.id, up, ClientState(self._copy("client"), moments, drawn), means, steps)

    def _phase(
        self, phase: Phase, count: int, moment: Moment, job: Job, drawn: int, moments: Moments
    ) -> dict[str, float]:
        """Take the steps of one phase; returns each term's mean and updates the kept moments."""
        order = BatchOrder(self.streams, job.client.id, len(job.client.train), self.settings.batch)
        batches = order.from_number(drawn)
        descents = {o.name: self._descent(o, moments.get(f"{phase.name}.{o.name}", {})) for o in phase.objectives}
        for step in range(count):
            batch = self._batch(job, next(batches), drawn + step)
            for descent in descents.values():
                if step == 0 or len(descents) > 1:
                    self._set_modes(descent.objective)
                noise = self._noise(descent.objective, moment, job.client.id, phase.name, step)
                context = Context(moment.round, moment.stage.rounds, step, job.down, noise)
                try:
                    descent.step(self.net, batch, context)
                except Exception as error:
                    where = f"client '{job.client.name}', round {moment.round}, phase '{phase.name}', step {step + 1}"
                    error.add_note(f"This happened at {where}, objective '{descent.objective.name}'.")
                    raise
        for name, descent in descents.items():
            moments[f"{phase.name}.{name}"] = self._kept_moments(descent)
        return self._means(descents, phase, moment, job.client.name)

    def _steps(self, phase: Phase, job: Job) -> int:
        if phase.steps is not None:
            return phase.steps
        per_epoch = len(job.client.train) // self.settings.batch
        return self.settings.steps * (per_epoch if self.settings.unit == "epochs" else 1)

    def _batch(self, job: Job, indices: Tensor, number: int) -> Batch:
        indices = indices.to(self.device)
        x = self.inputs.training(job.client.train.x[indices], self.streams, job.client.id, number)
        return Batch(x, job.client.train.y[indices])

    def _noise(self, objective: Objective, moment: Moment, client: int, phase: str, step: int) -> dict[str, Tensor]:
        draws = objective.draws(self.spec, self.settings.batch)
        if not draws:
            return {}
        generator = self.streams.generator("noise", *moment.key, client, phase, objective.name, step)
        return sample_draws(draws, generator, self.device)

    def _set_modes(self, objective: Objective) -> None:
        for name, module in self.net.parts.items():
            module.train(name in objective.moves)

    def _descent(self, objective: Objective, moments: Mapping[str, Mapping[str, Tensor]]) -> _Descent:
        """An objective with the parameters it moves and their optimiser, which goes on from kept moments."""
        parameters = {name: p for name, p in self.net.parameters() if name.partition(".")[0] in objective.moves}
        values = list(parameters.values())
        s = self.settings
        optimiser: torch.optim.Optimizer
        if s.optimiser == "adam":
            fused = self.device.type in ("cpu", "cuda")
            optimiser = torch.optim.Adam(values, s.lr, weight_decay=s.weight_decay, fused=fused)
        else:
            # Fused SGD is slower on a CPU, and cannot start from moments of some parameters only.
            optimiser = torch.optim.SGD(values, s.lr, s.momentum, weight_decay=s.weight_decay, foreach=True)
        for name, kinds in moments.items():
            parameter = parameters[name]
            optimiser.state[parameter] = {kind: _laid_out_as(parameter, tensor) for kind, tensor in kinds.items()}
        return _Descent(objective, parameters, optimiser)

    def _kept_moments(self, descent: _Descent) -> dict[str, dict[str, Tensor]]:
        """The moments that outlive the round."""
        state = descent.optimiser.state
        return {
            name: {kind: value for kind, value in state[parameter].items() if isinstance(value, Tensor)}
            for name, parameter in descent.parameters.items()
            if parameter in state and self.method.keeps_moments(self.scopes[name])
        }

    def _means(self, descents: Mapping[str, _Descent], phase: Phase, moment: Moment, client: str) -> dict[str, float]:
        """Each term's mean over the steps, after checking that every loss was finite."""
        means: dict[str, float] = {}
        for objective, descent in descents.items():
            steps = descent.history
            if not steps:
                continue
            table = torch.stack([torch.stack(list(terms.values())) for terms in steps]).cpu().double()
            bad = (~table.isfinite()).any(dim=1).nonzero()
            if len(bad):
                step = int(bad[0])
                values = dict(zip(steps[0], table[step].tolist(), strict=True))
                raise DivergedError(
                    f"The loss is not finite at client '{client}', round {moment.round}, phase '{phase.name}', "
                    f"step {step + 1}, objective '{objective}': {values}. {self._advice()}"
                )
            for name, mean in zip(steps[0], table.mean(dim=0).tolist(), strict=True):
                means[name if name not in means else f"{objective}.{name}"] = mean
        return means

    def _advice(self) -> str:
        smaller = f"--set train.lr={self.settings.lr / 10:g}"
        return f"The last checkpoint, if there is one, is kept. A smaller learning rate usually helps: {smaller}"

    # Tensors ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _load(self, tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name in self.resident:
                self.resident[name].copy_(tensor)

    @torch.no_grad()
    def _copy(self, scope: str) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.resident.items() if self.scopes[name] == scope}

    # Scoring ------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, model: Tensors, environment: Environment, moment: Moment) -> Score:
        """Predict for every sample of the environment, ``evaluate.batch`` at a time."""
        self._load(model)
        for module in self.net.parts.values():
            module.eval()
        if self.method.reestimates(unseen=environment.client is None):
            self._reestimate(environment, moment)
        correct, loss = 0.0, 0.0
        for log_probabilities, y in self._predictions(environment, moment):
            correct += float((log_probabilities.argmax(dim=1) == y).sum())
            loss -= float(log_probabilities.gather(1, y.unsqueeze(1)).cpu().double().sum())
        n = len(environment.samples)
        if not math.isfinite(loss):
            raise DivergedError(
                f"The loss on '{environment.name}' is not finite after round {moment.round}. {self._advice()}"
            )
        return Score(correct / n, loss / n, n)

    def _predictions(self, environment: Environment, moment: Moment) -> Iterator[tuple[Tensor, Tensor]]:
        # Chunks of nearly equal size, so that re-estimated statistics weigh every sample alike.
        count = -(-len(environment.samples) // self.evaluate.batch)
        samples = environment.samples
        chunks = zip(torch.tensor_split(samples.x, count), torch.tensor_split(samples.y, count), strict=True)
        for number, (x, y) in enumerate(chunks):
            draws = self.method.prediction_draws(self.spec, len(y))
            key = (*moment.key, environment.name, environment.role, number)
            noise = sample_draws(draws, self.streams.generator("prediction", *key), self.device) if draws else {}
            yield self.method.predict(self.net, self.inputs.evaluation(x), noise), y

    def _reestimate(self, environment: Environment, moment: Moment) -> None:
        """Measure batch-norm statistics on the environment's inputs, each batch with equal weight."""
        layers = [layer for module in self.net.parts.values() for _, layer in batch_norms(module)]
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
            layer.train()
        for _ in self._predictions(environment, moment):
            pass
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()


def _laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A copy with the parameter's memory layout, which a checkpoint does not keep and fused optimisers need."""
    if tensor.shape != parameter.shape:
        return tensor.clone()
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
