"""One objective's gradient steps, in every lane of a bank at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from inspect import unwrap
from itertools import groupby
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedshift.core.contract import Batch, Context, Objective
from fedshift.core.dropout import dropout_draws
from fedshift.core.net import Net
from fedshift.core.setup import Round, Setup
from fedshift.engines.banks import Bank, Given
from fedshift.engines.engine import SERVER
from fedshift.engines.lane import Course, Lane
from fedshift.engines.weighing import Weighing
from fedshift.errors import FedshiftError
from fedshift.streams import Draws


class Descent:
    """One objective of a phase in every lane, with torch's optimisers.

    Lanes with the same optimiser settings and step count share an optimiser; the others have separate ones, on their
    rows of the same tensors.
    """

    def __init__(self, bank: Bank, objective: Objective, courses: Sequence[Course], number: int) -> None:
        self.bank, self.objective, self.setup = bank, objective, courses[0].lane.setup
        self.lanes, self.phase = [course.lane for course in courses], courses[0].phase
        self.names: list[str] = []
        self.history: list[list[Tensor]] = []
        self._draws: list[Draws] | None = None
        self._quiet: list[Context] = []  # the contexts of a step without draws, equal in every step
        own = [course.phase.objectives[number] for course in courses]
        self.moved = self._moved(courses[0].lane)
        self._moved_tensors = list(self.moved.values())
        self._clips = _clips([course.lane.setup for course in courses], own)
        self._take = bank.recorded(self._run_step)
        self._shares: list[tuple[slice, dict[str, Tensor], torch.optim.Optimizer]] = []
        settings = [
            (_settings(course.lane.setup, one, course.lane.round), _counted(course.optimisers[one.name]))
            for course, one in zip(courses, own, strict=True)
        ]
        start = 0
        for (setting, _), members in groupby(settings):
            rows = slice(start, start + len(list(members)))
            start = rows.stop
            kept = [course.optimisers[objective.name] for course in courses[rows]]
            self._shares.append(self._share(setting, rows, kept, whole=rows == slice(0, len(courses))))

    def _moved(self, lane: Lane) -> dict[str, Tensor]:
        """The tensors that it moves, by full name."""
        net, fixed = self.bank.net, "shared" if lane.key == SERVER else "down"
        for part in self.objective.moves:
            if part not in net.parts:
                raise FedshiftError(
                    f"The objective '{self.objective.name}' moves the unknown part '{part}'; there are "
                    f"{', '.join(net.parts)}."
                )
        names = [name for name, _ in net.parameters() if name.partition(".")[0] in self.objective.moves]
        for name in names:
            if lane.setup.scopes[name] == fixed:
                raise FedshiftError(
                    f"The objective '{self.objective.name}' moves '{name}' of scope {fixed}, which is fixed where it "
                    "runs."
                )
        return {name: self.bank.in_use[name] for name in names}

    def _share(
        self, settings: Settings, rows: slice, kept: Sequence[Mapping[str, Mapping[str, Tensor]]], whole: bool
    ) -> tuple[slice, dict[str, Tensor], torch.optim.Optimizer]:
        """The optimiser of some rows, which continues from stored state."""
        targets = self.moved if whole else {name: t.detach()[rows] for name, t in self.moved.items()}
        optimiser = settings.optimiser(list(targets.values()))
        for name, target in targets.items():
            kinds = {kind: tensor for one in kept for kind, tensor in one.get(name, {}).items()}
            for kind, example in kinds.items():
                if kind == "step":
                    # which these rows have in common; on a GPU it must be there for a step to be recorded
                    optimiser.state[target][kind] = example.to(target.device, copy=True)
                    continue
                value = torch.empty_like(target, requires_grad=False)
                self.bank.fill(value, [one[name][kind] if name in one else torch.zeros_like(example) for one in kept])
                optimiser.state[target][kind] = value
        if settings.name == "sgd" and optimiser.state:  # a fused optimiser needs momentum for all or for none
            for target in targets.values():
                optimiser.state[target].setdefault("momentum_buffer", torch.zeros_like(target, requires_grad=False))
        return rows, targets, optimiser

    def step(self, batches: Sequence[Batch], *key: str | int) -> None:
        """Take one step in every lane, moving nothing else; ``key`` keys its noise."""
        self.history.append(self._take(self.bank.gather(batches, self._contexts(batches, key))))

    def _contexts(self, batches: Sequence[Batch], key: Sequence[str | int]) -> Sequence[Context]:
        """Each lane's context in a step, with its noise."""
        if self._draws is None:
            drops = dropout_draws(self.bank.net.dropouts, self.objective.moves)
            sizes = [len(batch.y) or self.phase.batch or 0 for batch in batches]
            pairs = zip(self.lanes, sizes, strict=True)
            self._draws = [{**self.objective.draws(lane.setup.model, size), **drops} for lane, size in pairs]
            if not any(self._draws):
                self._quiet = [lane.context({}) for lane in self.lanes]
        if self._quiet:
            return self._quiet
        drawn = zip(self.lanes, self._draws, strict=True)
        return [lane.context(lane.noise(draws, self.phase.name, self.objective.name, *key)) for lane, draws in drawn]

    def _run_step(self, given: Given) -> list[Tensor]:
        """The tensor work of the step; returns each term, by lane."""
        terms = given(self._loss)
        moved = self._moved_tensors
        for tensor in moved:
            tensor.grad = None
        total = reduce(add, terms.values())
        if not total.requires_grad:
            raise FedshiftError(
                f"The loss of the objective '{self.objective.name}' has no gradient: none of its terms depends on the "
                f"parts that it moves ({', '.join(self.objective.moves)}), or they were detached."
            )
        # Lanes are independent, so each gradient is its lane's.
        torch.autograd.backward([total.sum() if total.ndim else total], inputs=moved)
        if self._clips is not None:
            self._clip(self._clips)
        for rows, targets, optimiser in self._shares:
            if targets is not self.moved:
                for name, target in targets.items():
                    gradient = self.moved[name].grad
                    target.grad = None if gradient is None else gradient[rows]
            optimiser.step()
        self.names = list(terms)
        return [term.detach() for term in terms.values()]

    def _loss(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        if batch.weight is None or self.names:
            terms = self.objective.evaluate(net, batch, context)
        else:  # the first step shows whether weights are read
            with Weighing(self.setup, self.objective.name, batch, self.lanes[0].read):
                terms = self.objective.evaluate(net, batch, context)
        if not self.names:
            self._check(terms)
        return terms

    def _check(self, terms: Mapping[str, object]) -> None:
        """Raise an error unless terms are scalars."""
        for name, term in terms.items():
            if not isinstance(term, Tensor) or term.ndim:
                kind = type(term).__name__
                found = f"of the shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"a {kind}"
                raise FedshiftError(
                    f"The term '{name}' of the objective '{self.objective.name}' is {found}; a term is a scalar "
                    "tensor, such as the mean over the batch."
                )

    @torch.no_grad()
    def _clip(self, largest: Tensor) -> None:
        gradients = [self.bank.rows(tensor.grad) for tensor in self.moved.values() if tensor.grad is not None]
        norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        factors = (largest / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))

    def write_results(self, courses: Sequence[Course]) -> None:
        """Give every lane the terms of its steps, (steps, terms), and its optimiser state."""
        table = torch.stack([torch.stack(column) for column in zip(*self.history, strict=True)], dim=1)
        table = table.view(len(self.history), len(self.names), -1).cpu().double()
        for place, course in enumerate(courses):
            _, tables = course.terms.setdefault(self.objective.name, (self.names, []))
            tables.append(table[:, :, place])
        for rows, targets, optimiser in self._shares:
            own: list[dict[str, dict[str, Tensor]]] = [{} for _ in courses[rows]]
            for name, target in targets.items():
                for kind, value in optimiser.state.get(target, {}).items():
                    if isinstance(value, Tensor):
                        # The number of steps is read here in every round, so it stays on the CPU.
                        copies = [value.cpu().clone()] * len(own) if kind == "step" else self.bank.separate(value)
                        for state, copy in zip(own, copies, strict=True):
                            state.setdefault(name, {})[kind] = copy
            for course, state in zip(courses[rows], own, strict=True):
                course.optimisers[self.objective.name] = state
        del self._take  # a recording refers to this object, and would wait for garbage collection


def _clips(setups: Sequence[Setup], objectives: Sequence[Objective]) -> Tensor | None:
    """The largest gradient norm of each lane, (lanes,), by its objective's and experiment's limits; None: no limit."""
    limits = []
    for setup, objective in zip(setups, objectives, strict=True):
        own, clip = objective.optimiser.clip, setup.train.clip
        limits.append(min(math.inf if own is None else own, math.inf if clip == "off" else clip))
    if all(limit == math.inf for limit in limits):
        return None
    return torch.tensor(limits, dtype=setups[0].dtype, device=setups[0].device)


# Optimisers ---------------------------------------------------------------------------------------


class _Light(torch.optim.Optimizer):
    """Without torch's compiler, which takes a second to load in every process and is not used here."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _patch_step_function(self) -> None:
        """Torch's version records every step for its profiler, a tenth of the time of a small step."""


class SGD(_Light, torch.optim.SGD):
    """torch's SGD."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(_Light, torch.optim.Adam):
    """torch's Adam."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class Settings(NamedTuple):
    """How an objective is minimised in a round."""

    name: str
    lr: float
    momentum: float
    weight_decay: float

    def optimiser(self, targets: list[Tensor]) -> torch.optim.Optimizer:
        """A new optimiser of some tensors."""
        on_gpu = targets[0].is_cuda
        fused = on_gpu or targets[0].is_cpu
        if self.name == "adam":  # on a GPU the step count must be on the device for a step to be recorded
            return Adam(targets, self.lr, weight_decay=self.weight_decay, fused=fused, capturable=on_gpu)
        # Fused SGD passes over memory once, but on a CPU takes ten times as long unless the layout is row by row.
        fused = fused and all(target.is_contiguous() for target in targets)
        kind = {"fused": True} if fused else {"foreach": True}
        return SGD(targets, self.lr, self.momentum, weight_decay=self.weight_decay, **kind)


def _settings(setup: Setup, objective: Objective, round: Round) -> Settings:
    """The objective's settings, with the experiment's as defaults."""
    own, train = objective.optimiser, setup.train
    lr = own.factor * train.lr_in(round.number, round.stage.rounds) if own.lr is None else own.lr
    return Settings(
        own.name or train.optimiser,
        lr * own.decay ** (round.number - 1),
        train.momentum if own.name is None else 0.0,
        train.weight_decay if own.name is None else own.weight_decay,
    )


def _counted(state: Mapping[str, Mapping[str, Tensor]]) -> tuple[tuple[str, float], ...]:
    return tuple((name, float(kinds["step"])) for name, kinds in sorted(state.items()) if "step" in kinds)
