"""The reference engine: one resident model, one client after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor, nn

from fedshift.core.contract import (
    Batch,
    Context,
    Exchange,
    LocalWork,
    Measure,
    Method,
    Objective,
    Part,
    Phase,
    Replies,
    ServerState,
    Terms,
    tensor_scopes,
)
from fedshift.core.messages import Tensors
from fedshift.core.net import Net, batch_norms
from fedshift.core.state import ClientState, Moments
from fedshift.core.streams import Draws, Streams, sample_draws
from fedshift.data.federation import Environment, Samples
from fedshift.data.inputs import Inputs
from fedshift.engines.batches import BatchOrder
from fedshift.engines.engine import Job, Moment, Outcome, Score
from fedshift.errors import DivergedError, FedshiftError
from fedshift.experiment import Evaluate, Train
from fedshift.models.model import ModelSpec

SERVER = -1  # the server's number where clients have theirs


@dataclass(frozen=True)
class _Site:
    """Where phases run: a client with its samples, or the server, which has none."""

    name: str
    key: int
    samples: Samples | None
    inputs: Inputs
    counts: Tensor
    received: Tensors = field(default_factory=dict)
    replies: Replies = ()
    tell: Callable[[int], None] = lambda steps: None

    @cached_property
    def number(self) -> Tensor:
        """The key as objectives see it, made once and not in every step."""
        return torch.tensor(self.key, device=self.counts.device)


@dataclass
class _Done:
    """What came of a site's phases: means of terms, sums measured, steps taken and batches drawn."""

    means: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    drawn: int = 0


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
        if self.objective.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(moved, self.objective.optimiser.clip)
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
        modules = {name: part.module.to(device) for name, part in parts.items()}
        self.net = Net({name: module for name, module in modules.items() if parts[name].scope != "server"})
        self.server_net = Net({name: module for name, module in modules.items() if parts[name].scope != "client"})
        self.resident = dict(Net(modules).tensors())

    # Training -----------------------------------------------------------------------------------

    def train(self, exchange: Exchange, moment: Moment, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Let every client work, one after the other."""
        for job in jobs:
            yield self._work(exchange, moment, job)

    def _work(self, exchange: Exchange, moment: Moment, job: Job) -> Outcome:
        self._load(job.down)
        self._load(job.state.tensors)
        client, stage = job.client, moment.stage.name
        counts = self._counts(client.train)
        site = _Site(client.name, client.id, client.train, job.inputs, counts, job.down)
        drawn, moments = job.state.drawn.get(stage, 0), dict(job.state.moments)
        phases = exchange.phases(moment.round, moment.stage.rounds)
        done = self._run(self.net, phases, moment, site, moments, drawn)
        own = self._copy("client")
        # What was not sent is another client's, left over in the resident net.
        after = {name: tensor for name, tensor in self._copy("shared").items() if name in job.down}
        work = LocalWork(after, own, job.down, done.measured, client.train, site.counts)
        up, kept = exchange.reply(work), exchange.keep(work)
        own |= {name: tensor.detach().clone() for name, tensor in kept.items()}
        state = ClientState(own, moments, {**job.state.drawn, stage: drawn + done.drawn})
        return Outcome(client.id, up, state, done.means, done.steps)

    def serve(
        self, exchange: Exchange, moment: Moment, state: ServerState, replies: Replies, tell: Callable[[int], None]
    ) -> tuple[ServerState, dict[str, float]]:
        """Run the server's phases of an exchange; returns its state and each term's mean."""
        phases = exchange.server(moment.round, moment.stage.rounds)
        if not phases:
            return state, {}
        self._load({**state.shared, **state.down, **state.server})
        site = _Site("the server", SERVER, None, Inputs(), self._counts(None), replies=replies, tell=tell)
        moments = dict(state.moments)
        done = self._run(self.server_net, phases, moment, site, moments, 0)
        down, server = self._copy("down"), self._copy("server")
        return replace(state, down=down, server=server, moments=moments, measured=done.measured), done.means

    def _counts(self, samples: Samples | None) -> Tensor:
        labels = torch.zeros(0, dtype=torch.int64, device=self.device) if samples is None else samples.y
        return torch.bincount(labels, minlength=self.spec.classes)

    def _run(
        self,
        net: Net,
        phases: Sequence[Phase | Measure],
        moment: Moment,
        site: _Site,
        moments: Moments,
        drawn: int,
    ) -> _Done:
        """Carry out phases in order; ``moments`` is updated."""
        done = _Done()
        for phase in phases:
            if isinstance(phase, Measure):
                done.measured |= self._measure(net, phase, moment, site)
                continue
            there = site if phase.samples is None else replace(site, samples=phase.samples(site.replies))
            order = self._order(phase, there)
            count = self._steps(phase, order)
            means = self._phase(net, phase, order, count, moment, there, drawn + done.drawn, moments)
            for name, mean in means.items():
                done.means[name if name not in done.means else f"{phase.name}.{name}"] = mean
            done.steps += count
            done.drawn += count if order else 0
        return done

    def _phase(
        self,
        net: Net,
        phase: Phase,
        order: BatchOrder | None,
        count: int,
        moment: Moment,
        site: _Site,
        drawn: int,
        moments: Moments,
    ) -> dict[str, float]:
        """Take the steps of one phase; returns each term's mean and updates the kept moments."""
        batches = order.from_number(drawn) if order else None
        descents = {o.name: self._descent(net, o, moments.get(f"{phase.name}.{o.name}", {})) for o in phase.objectives}
        for step in range(count):
            batch = self._batch(site, next(batches), drawn + step) if batches else self._no_batch()
            for descent in descents.values():
                objective = descent.objective
                if step == 0 or len(descents) > 1:
                    self._set_modes(net, objective.moves)
                for repeat in range(objective.repeats):
                    key: list[str | int] = [phase.name, objective.name, step, *([repeat] if repeat else [])]
                    noise = self._noise(objective.draws(self.spec, len(batch.y)), moment, site, *key)
                    try:
                        descent.step(net, batch, self._context(moment, site, step, noise))
                    except Exception as error:
                        where = f"{self._place(site)}, round {moment.round}, phase '{phase.name}', step {step + 1}"
                        error.add_note(f"This happened at {where}, objective '{objective.name}'.")
                        raise
            site.tell(1)
        for name, descent in descents.items():
            moments[f"{phase.name}.{name}"] = self._kept_moments(descent)
        return self._means(descents, phase, moment, site)

    def _measure(self, net: Net, phase: Measure, moment: Moment, site: _Site) -> dict[str, Tensor]:
        """Sum what the phase measures over all of the site's samples."""
        self._set_modes(net, ())
        batches = [self._no_batch()] if site.samples is None else self._all_batches(site.samples, site.inputs)
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            noise = self._noise(phase.draws(self.spec, len(batch.y)), moment, site, phase.name, "measure", number)
            measured = phase.measure(net, batch, self._context(moment, site, number, noise))
            for name, value in measured.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach().clone()
        return sums

    def _order(self, phase: Phase, site: _Site) -> BatchOrder | None:
        if site.samples is None:
            return None
        return BatchOrder(self.streams, site.key, len(site.samples), phase.batch or self.settings.batch)

    def _steps(self, phase: Phase, order: BatchOrder | None) -> int:
        if phase.steps is not None:
            return phase.steps
        per_epoch = order.per_epoch if order else 1
        if phase.epochs is not None:
            return phase.epochs * per_epoch
        return self.settings.steps * (per_epoch if self.settings.unit == "epochs" else 1)

    def _batch(self, site: _Site, indices: Tensor, number: int) -> Batch:
        assert site.samples is not None
        indices = indices.to(self.device)
        x = site.inputs.training(site.samples.x[indices], self.streams, site.key, number)
        return Batch(x, site.samples.y[indices])

    def _no_batch(self) -> Batch:
        return Batch(torch.empty(0, device=self.device), torch.empty(0, dtype=torch.int64, device=self.device))

    def _all_batches(self, samples: Samples, inputs: Inputs) -> Iterator[Batch]:
        for x, y in _chunks(samples, self.evaluate.batch):
            yield Batch(inputs.evaluation(x), y)

    def _context(self, moment: Moment, site: _Site, step: int, noise: Mapping[str, Tensor]) -> Context:
        rounds = moment.stage.rounds
        return Context(moment.round, rounds, step, site.received, noise, site.number, site.counts, site.replies)

    def _noise(self, draws: Draws, moment: Moment, site: _Site, *key: str | int) -> dict[str, Tensor]:
        if not draws:
            return {}
        return sample_draws(draws, self.streams.generator("noise", *moment.key, site.key, *key), self.device)

    def _set_modes(self, net: Net, moves: Sequence[str]) -> None:
        for name, module in net.parts.items():
            module.train(name in moves)

    def _descent(self, net: Net, objective: Objective, moments: Mapping[str, Mapping[str, Tensor]]) -> _Descent:
        """An objective with the parameters it moves and their optimiser, which goes on from kept moments."""
        fixed = "down" if net is self.net else "shared"
        for part in objective.moves:
            if part not in net.parts:
                raise FedshiftError(
                    f"The objective '{objective.name}' moves '{part}', which is not there; there are "
                    f"{', '.join(net.parts)}."
                )
        parameters = {name: p for name, p in net.parameters() if name.partition(".")[0] in objective.moves}
        for name in parameters:
            if self.scopes[name] == fixed:
                raise FedshiftError(
                    f"The objective '{objective.name}' moves '{name}' of scope {fixed}, which is fixed where it runs."
                )
        values = list(parameters.values())
        o, s = objective.optimiser, self.settings
        lr = s.lr if o.lr is None else o.lr
        weight_decay = s.weight_decay if o.weight_decay is None else o.weight_decay
        optimiser: torch.optim.Optimizer
        if (o.name or s.optimiser) == "adam":
            fused = self.device.type in ("cpu", "cuda")
            optimiser = torch.optim.Adam(values, lr, weight_decay=weight_decay, fused=fused)
        else:
            # Fused SGD is slower on a CPU, and cannot start from moments of some parameters only.
            momentum = s.momentum if o.momentum is None else o.momentum
            optimiser = torch.optim.SGD(values, lr, momentum, weight_decay=weight_decay, foreach=True)
        for name, kinds in moments.items():
            parameter = parameters[name]
            optimiser.state[parameter] = {kind: laid_out_as(parameter, tensor) for kind, tensor in kinds.items()}
        return _Descent(objective, parameters, optimiser)

    def _kept_moments(self, descent: _Descent) -> dict[str, dict[str, Tensor]]:
        """The moments that outlive the round."""
        state = descent.optimiser.state
        return {
            name: {kind: value for kind, value in state[parameter].items() if isinstance(value, Tensor)}
            for name, parameter in descent.parameters.items()
            if parameter in state and self.method.keeps_moments(self.scopes[name])
        }

    def _means(self, descents: Mapping[str, _Descent], phase: Phase, moment: Moment, site: _Site) -> dict[str, float]:
        """Each term's mean over the steps, after checking that every loss was finite."""
        means: dict[str, float] = {}
        for objective, descent in descents.items():
            steps = descent.history
            if not steps:
                continue
            table = torch.stack([torch.stack(list(terms.values())) for terms in steps]).cpu().double()
            bad = (~table.isfinite()).any(dim=1).nonzero()
            if len(bad):
                first = int(bad[0])
                values = dict(zip(steps[0], table[first].tolist(), strict=True))
                step = first // descent.objective.repeats + 1
                raise DivergedError(
                    f"The loss is not finite at {self._place(site)}, round {moment.round}, phase '{phase.name}', "
                    f"step {step}, objective '{objective}': {values}. {self._advice(descent.objective)}"
                )
            for name, mean in zip(steps[0], table.mean(dim=0).tolist(), strict=True):
                means[name if name not in means else f"{objective}.{name}"] = mean
        return means

    def _place(self, site: _Site) -> str:
        return site.name if site.key == SERVER else f"client '{site.name}'"

    def _advice(self, objective: Objective | None = None) -> str:
        kept = "The last checkpoint, if there is one, is kept."
        if objective is not None and objective.optimiser.lr is not None:
            return f"{kept} A smaller rate than this objective's own, {objective.optimiser.lr:g}, usually helps."
        return f"{kept} A smaller learning rate usually helps: --set train.lr={self.settings.lr / 10:g}"

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
        for number, (x, y) in enumerate(_chunks(environment.samples, self.evaluate.batch)):
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


def _chunks(samples: Samples, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples in chunks of nearly equal size, so that re-estimated statistics weigh every sample alike."""
    count = -(-len(samples) // size)
    return zip(torch.tensor_split(samples.x, count), torch.tensor_split(samples.y, count), strict=True)


def laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A copy with the parameter's memory layout, which a checkpoint does not keep and fused optimisers need."""
    if tensor.shape != parameter.shape:
        return tensor.clone()
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
