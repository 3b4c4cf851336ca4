"""The one loop that trains: the phases of clients (or the server) that go step by step together on a bank.

A lane is one site. Lanes share their phases and the lengths of their batches; those with fewer steps leave before
the others, so lanes are given with the most steps first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import groupby, islice
from operator import add

import torch
from torch import Tensor

from fedshift.core.contract import Batch, Context, Measure, Objective, Phase, Phases, Round, term_names
from fedshift.core.dropout import dropout_draws
from fedshift.core.net import Net
from fedshift.core.setup import Setup
from fedshift.core.state import OptimiserState
from fedshift.core.tensors import Replies, Tensors
from fedshift.core.training import Train
from fedshift.engines.banks import Bank, Given
from fedshift.engines.batches import BalancedOrder, BatchOrder, Purpose
from fedshift.engines.engine import SERVER
from fedshift.engines.graphs import replayed
from fedshift.engines.optimisers import SGD, Adam
from fedshift.engines.weighing import Weighing, check_read, noting
from fedshift.errors import DivergedError, FedshiftError
from fedshift.federation.inputs import Inputs
from fedshift.federation.samples import Samples
from fedshift.streams import Draws, sample_draws


@dataclass(eq=False)
class Lane:
    """A client or the server at work.

    Attributes:
        setup: the run.
        round: when.
        name: what messages call it.
        key: the client's id, or SERVER.
        phases: what it does.
        samples: its training samples; the server has none.
        inputs: how they become inputs.
        received: the Down's tensors.
        optimisers: optimiser state that was kept; replaced by what is kept now.
        drawn: how many batches it drew before.
        replies: on the server, what the clients sent.
        tell: hears of steps.
        means: when done, the mean of each loss term over the steps.
        measured: when done, the sums of every measure.
        seen: when done, over how many samples each of these is.
        snapshot: when done, the shared tensors after the drawn step of a phase that takes a snapshot.
        steps: how many steps were done.
        error: what went wrong with this lane alone.
    """

    setup: Setup
    round: Round
    name: str
    key: int
    phases: Phases
    samples: Samples | None = None
    inputs: Inputs = field(default_factory=Inputs)
    received: Tensors = field(default_factory=Tensors)
    optimisers: OptimiserState = field(default_factory=dict)
    drawn: int = 0
    replies: Replies = field(default_factory=Replies)
    tell: Callable[[int], None] = lambda steps: None
    means: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Tensor] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    snapshot: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    error: Exception | None = None

    @cached_property
    def number(self) -> Tensor:
        """The key as objectives see it, made once and not in every step."""
        return torch.tensor(self.key, device=self.setup.device)

    @cached_property
    def counts(self) -> Tensor:
        """How many training samples of each class there are, (classes,)."""
        device = self.setup.device
        labels = self.samples.y if self.samples else torch.zeros(0, dtype=torch.int64, device=device)
        return torch.bincount(labels, minlength=self.setup.model.classes)

    @cached_property
    def class_weights(self) -> Tensor | None:
        """How much a sample of each class counts, (classes,), 1 in the mean over the client's samples; None: alike.

        Raises:
            FedshiftError: none of the client's samples counts.
        """
        given = self.setup.train.class_weights
        if given == "none" or self.samples is None:
            return None
        counts = self.counts.double()
        weights = 1 / counts.clamp(min=1) if given == "balanced" else counts.new_tensor(given)
        weighted = (weights * counts).sum()
        if not weighted:
            raise FedshiftError(
                f"train.class_weights = {list(given)}: all samples of {self.place} are of classes with a weight of 0. "
                "Give these classes a weight, or leave the client out."
            )
        return (weights * (len(self.samples) / weighted)).to(self.setup.dtype)

    @property
    def training(self) -> list[Phase]:
        """The phases that take steps."""
        return [phase for phase in self.phases if isinstance(phase, Phase)]

    @property
    def place(self) -> str:
        """Where it is, for a message."""
        return self.name if self.key == SERVER else f"client '{self.name}'"

    def drawn_from(self, phase: Phase) -> Samples | None:
        """The samples that a phase draws its batches from: the lane's own, or those it makes of the replies."""
        return self.samples if phase.samples is None else phase.samples(self.replies)

    def order(self, phase: Phase, samples: Samples | None) -> BatchOrder | None:
        """The sequence of batches that a phase draws from; None for a server without samples."""
        if samples is None:
            return None
        return self._order(samples, phase.batch, ("batches",))

    def _order(self, samples: Samples, size: int | None, purpose: Purpose) -> BatchOrder:
        """A sequence of batches; classes are balanced among a client's own samples alone."""
        train = self.setup.train
        drawn = self.setup.streams, self.key, len(samples), size or train.batch, purpose
        if train.batches == "balanced" and samples is self.samples:
            return BalancedOrder(*drawn, samples.y.cpu())
        return BatchOrder(*drawn)

    def count(self, phase: Phase, order: BatchOrder | None) -> int:
        """How many steps a phase has."""
        return steps_of(phase, self.setup.train, order.per_epoch if order else 1)

    def shape(self) -> tuple[object, ...]:
        """What lanes that go together must have in common: the length of the batches of each phase."""
        return tuple(order.length for phase in self.training if (order := self.order(phase, self.samples)))

    def typed(self, x: Tensor) -> Tensor:
        """Floating inputs and noise in the type of the run."""
        return x.to(self.setup.dtype) if x.is_floating_point() else x

    def noise(self, draws: Draws, *key: str | int) -> dict[str, Tensor]:
        """What an objective or a measure asked for, drawn in float32 whatever the run's type."""
        if not draws:
            return {}
        generator = self.setup.streams.generator("noise", *self.round.key, self.key, *key)
        drawn = sample_draws(draws, generator, self.setup.device)
        return {name: self.typed(value) for name, value in drawn.items()}

    def context(self, noise: Mapping[str, Tensor]) -> Context:
        """What an objective may know."""
        when = self.round.number, self.round.stage.rounds
        return Context(*when, self.received, noise, self.number, self.counts, Tensors(self.measured), self.replies)

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        """A batch of inputs and labels."""
        weights = self.class_weights
        return Batch(self.typed(x), y, weight=None if weights is None else weights[y])

    def no_batch(self) -> Batch:
        """The batch of a server without samples."""
        device = self.setup.device
        return Batch(torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device))

    def measured_rows(self, phase: Measure) -> Iterator[Tensor]:
        """The samples of each batch that a phase measures on: every sample once, or so many batches of the round's."""
        assert self.samples is not None
        if phase.steps is None:
            return even_chunks(len(self.samples), self.setup.evaluate.batch)
        purpose = "measured batches", *self.round.key, phase.name
        return islice(self._order(self.samples, phase.batch, purpose).from_number(0), phase.steps)

    def measured_batches(self, phase: Measure) -> Iterator[Batch]:
        """What a phase measures on, without augmentation."""
        if self.samples is None:
            yield self.no_batch()
            return
        for rows in self.measured_rows(phase):
            x, y = self.samples.batch(rows.to(self.setup.device))
            yield self.batch(self.inputs.evaluation(x), y)


def steps_of(phase: Phase, train: Train, per_epoch: int) -> int:
    """How many steps a phase has, where an epoch has so many."""
    if phase.steps is not None:
        return phase.steps
    if phase.epochs is not None:
        return phase.epochs * per_epoch
    return train.steps * (per_epoch if train.unit == "epochs" else 1)


def advice(setup: Setup, objective: Objective | None = None) -> str:
    """What helps when a loss is not finite."""
    kept = "The last checkpoint, if there is one, is kept."
    if objective is not None and objective.optimiser.lr is not None:
        return f"{kept} A smaller rate than this objective's own, {objective.optimiser.lr:g}, usually helps."
    return f"{kept} A smaller learning rate usually helps: --set train.lr={setup.train.lr / 10:g}"


def even_chunks(length: int, size: int) -> Iterator[Tensor]:
    """0..length-1 in chunks of nearly equal size, so that re-estimated statistics weigh every sample alike."""
    return iter(torch.arange(length).tensor_split(-(-length // size)))


def work(bank: Bank, lanes: Sequence[Lane], phases: Phases | None = None) -> None:
    """Carry out the lanes' phases on a bank that is loaded with their tensors.

    Args:
        bank: has a lane for each of ``lanes``.
        lanes: with the most steps first.
        phases: what to call, where that is not the first lane's own phases.
    """
    read: set[str] = set()
    for number, phase in enumerate(phases or lanes[0].phases):
        if isinstance(phase, Measure):
            _measure(bank, lanes, phase)
        else:
            own = [lane.phases[number] for lane in lanes]
            read |= _train(bank, phase, [_Course(lane, phase) for lane, phase in zip(lanes, own, strict=True)])
    check_read(read, lanes[0].setup)


class _Course:
    """A lane's way through one phase."""

    def __init__(self, lane: Lane, phase: Phase | Measure) -> None:
        assert isinstance(phase, Phase)
        self.lane, self.phase = lane, phase
        self.samples = lane.drawn_from(phase)
        order = lane.order(phase, self.samples)
        self.steps = lane.count(phase, order)
        self.start = lane.drawn
        self.batches = order.from_number(lane.drawn) if order else None
        self.optimisers = {o.name: lane.optimisers.get(f"{phase.name}.{o.name}", {}) for o in phase.objectives}

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        lane = self.lane
        if self.batches is None or self.samples is None:
            return lane.no_batch()
        rows = next(self.batches).to(lane.setup.device)
        x, y = self.samples.batch(rows)
        batch = lane.batch(lane.inputs.training(x, lane.setup.streams, lane.key, self.start + step), y)
        return batch._replace(environment=self.samples.subset(rows).environment) if self.phase.environments else batch


def _train(bank: Bank, phase: Phase, courses: Sequence[_Course]) -> set[str]:
    """Take every lane's steps of a phase; a lane that has taken its own leaves.

    Returns:
        What the objectives read of batches that have weights: "y", "weight", both or neither.
    """
    read: set[str] = set()
    histories: dict[str, list[Tensor]] = {objective.name: [] for objective in phase.objectives}
    names: dict[str, list[str]] = {}
    start = 0
    for stop in sorted({course.steps for course in courses} - {0}):
        active = [course for course in courses if course.steps >= stop]
        bank.narrow(len(active))
        descents = [_Descent(bank, objective, active, number) for number, objective in enumerate(phase.objectives)]
        for step in range(start, stop):
            _step(bank, phase, descents, active, step)
            if phase.snapshot:
                _take_snapshots(bank, active, step)
        for descent in descents:
            names[descent.objective.name] = descent.names
            read |= descent.read
            if descent.history:
                histories[descent.objective.name].append(torch.stack(descent.history))
            descent.give_state(active)
        start = stop
    for lane_number, course in enumerate(courses):
        _finish(phase, course, names, {name: _of_lane(tables, lane_number) for name, tables in histories.items()})
    return read


def _step(bank: Bank, phase: Phase, descents: Sequence[_Descent], active: Sequence[_Course], step: int) -> None:
    """One batch of every lane, and every objective on it."""
    batches = [course.batch(step) for course in active]
    for descent in descents:
        objective = descent.objective
        set_modes(bank.net, objective.moves)
        for repeat in range(objective.repeats):
            key: list[str | int] = [phase.name, objective.name, step, *([repeat] if repeat else [])]
            lanes = [course.lane for course in active]
            drops = dropout_draws(bank.net.dropouts, objective.moves)
            draws = [
                {**objective.draws(lane.setup.model, len(b.y)), **drops} for lane, b in zip(lanes, batches, strict=True)
            ]
            contexts = [lane.context(lane.noise(d, *key)) for lane, d in zip(lanes, draws, strict=True)]
            try:
                descent.step(batches, contexts)
            except Exception as error:
                lane, more = active[0].lane, len(active) - 1
                others = f" (stacked with {more} more)" if more else ""
                where = f"{lane.place}{others}, round {lane.round.number}, phase '{phase.name}', step {step + 1}"
                error.add_note(f"This happened at {where}, objective '{objective.name}'.")
                raise
    for course in active:
        course.lane.tell(1)


def _take_snapshots(bank: Bank, active: Sequence[_Course], step: int) -> None:
    """Copy the shared tensors of lanes whose drawn step this was; lanes with equally many steps draw the same."""
    for number, course in enumerate(active):
        lane = course.lane
        drawn = torch.rand((), generator=lane.setup.streams.generator("snapshot", *lane.round.key, course.phase.name))
        if step == int(drawn * course.steps):
            shared = [name for name in lane.received if lane.setup.scopes[name] == "shared"]
            lane.snapshot = bank.copy(number, shared)


def _of_lane(tables: Sequence[Tensor], lane: int) -> Tensor:
    """The terms (steps, terms) of one lane, from tables (steps, terms, lanes) that have fewer and fewer lanes."""
    held = [table[:, :, lane] for table in tables if lane < table.shape[2]]
    return torch.cat(held).cpu().double() if held else torch.zeros(0, 0)


def _finish(phase: Phase, course: _Course, names: Mapping[str, list[str]], tables: Mapping[str, Tensor]) -> None:
    """Write down a lane's means, after checking that every loss was finite, and what it keeps of its optimisers."""
    lane = course.lane
    called = term_names(lane.phases)
    for objective in phase.objectives:
        table = tables[objective.name]
        if not len(table):
            continue
        bad = (~table.isfinite()).any(dim=1).nonzero()
        if len(bad):
            first = int(bad[0])
            values = dict(zip(names[objective.name], table[first].tolist(), strict=True))
            lane.error = lane.error or DivergedError(
                f"The loss is not finite at {lane.place}, round {lane.round.number}, phase '{phase.name}', "
                f"step {first // objective.repeats + 1}, objective '{objective.name}': {values}.",
                advice(lane.setup, objective),
            )
        for name, mean in zip(names[objective.name], table.mean(dim=0).tolist(), strict=True):
            lane.means[called[phase.name, objective.name, name]] = mean
    if lane.key == SERVER or lane.setup.method.optimiser_state == "kept":
        for objective_name, of_objective in course.optimisers.items():
            lane.optimisers[f"{phase.name}.{objective_name}"] = of_objective
    lane.steps += course.steps
    lane.drawn += course.steps if course.batches else 0


@dataclass(frozen=True)
class _Settings:
    """How an objective is minimised, all said."""

    name: str
    lr: float
    momentum: float
    weight_decay: float
    fused: bool

    def optimiser(self, targets: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimiser of some tensors."""
        if self.name == "adam":
            on_gpu = targets[0].is_cuda  # where the count of steps must be, too, for a step to be recorded
            return Adam(targets, self.lr, weight_decay=self.weight_decay, fused=self.fused, capturable=on_gpu)
        # Fused SGD passes over memory once, but on a CPU takes ten times as long where a layout is not row by row.
        fused = self.fused and all(target.is_contiguous() for target in targets)
        kind = {"fused": True} if fused else {"foreach": True}
        return SGD(targets, self.lr, self.momentum, weight_decay=self.weight_decay, **kind)


class _Descent:
    """One objective of a phase at work in every lane, by torch's optimisers.

    Lanes whose optimiser has the same settings and counts the same steps share one; the others have each their own,
    on their rows of the same tensors.
    """

    def __init__(self, bank: Bank, objective: Objective, courses: Sequence[_Course], number: int) -> None:
        self.bank, self.objective, self.setup = bank, objective, courses[0].lane.setup
        self.names: list[str] = []
        self.read: set[str] = set()
        self.history: list[Tensor] = []
        own = [course.phase.objectives[number] for course in courses]
        self.moved = self._moved(courses[0].lane)
        self._clips = _clips([course.lane.setup for course in courses], own)
        self._take = replayed(self._go) if bank.on_graph else self._go
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
                    f"The objective '{self.objective.name}' moves '{part}', which is not there; there are "
                    f"{', '.join(net.parts)}."
                )
        names = [name for name, _ in net.parameters() if name.partition(".")[0] in self.objective.moves]
        for name in names:
            if lane.setup.scopes[name] == fixed:
                raise FedshiftError(
                    f"The objective '{self.objective.name}' moves '{name}' of scope {fixed}, which is fixed where it "
                    "runs."
                )
        return {name: self.bank.at_work[name] for name in names}

    def _share(
        self, settings: _Settings, rows: slice, kept: Sequence[Mapping[str, Mapping[str, Tensor]]], whole: bool
    ) -> tuple[slice, dict[str, Tensor], torch.optim.Optimizer]:
        """The optimiser of some rows, which goes on from kept state."""
        targets = self.moved if whole else {name: t.detach()[rows] for name, t in self.moved.items()}
        optimiser = settings.optimiser(list(targets.values()))
        for name, target in targets.items():
            kinds = {kind: tensor for one in kept for kind, tensor in one.get(name, {}).items()}
            for kind, example in kinds.items():
                if kind == "step":
                    optimiser.state[target][kind] = example.clone()  # which these rows have in common
                    continue
                value = torch.zeros_like(target, requires_grad=False)
                for row, one in zip(self.bank.rows(value), kept, strict=True):
                    if name in one:
                        row.copy_(one[name][kind])
                optimiser.state[target][kind] = value
        if settings.name == "sgd" and optimiser.state:  # a fused optimiser wants momentum of all or of none
            for target in targets.values():
                optimiser.state[target].setdefault("momentum_buffer", torch.zeros_like(target, requires_grad=False))
        return rows, targets, optimiser

    def step(self, batches: Sequence[Batch], contexts: Sequence[Context]) -> None:
        """Take one step in every lane, moving nothing else."""
        self.history.append(self._take(self.bank.gather(batches, contexts)))

    def _go(self, given: Given) -> Tensor:
        """The step itself, all of it work on tensors; the terms (terms, lanes)."""
        terms = self.bank.evaluate(self._checked_loss, given)
        moved = list(self.moved.values())
        for tensor in moved:
            tensor.grad = None
        total = reduce(add, terms.values())
        if not total.requires_grad:
            raise FedshiftError(
                f"The loss of the objective '{self.objective.name}' has no gradient: none of its terms depends on the "
                f"parts that it moves ({', '.join(self.objective.moves)}), or they were detached."
            )
        torch.autograd.backward([total.sum()], inputs=moved)  # each lane's gradient is of its own total
        if self._clips is not None:
            self._clip(self._clips)
        for rows, targets, optimiser in self._shares:
            if targets is not self.moved:
                for name, target in targets.items():
                    gradient = self.moved[name].grad
                    target.grad = None if gradient is None else gradient[rows]
            optimiser.step()
        self.names = list(terms)
        return torch.stack([term.detach() for term in terms.values()])

    def _checked_loss(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        objective = self.objective
        watched: AbstractContextManager[object] = nullcontext()
        if batch.weight is not None and not self.names:  # the first step shows it
            watched = Weighing(self.setup, objective.name, batch.y)
            batch = noting(batch, self.read)
        with watched:
            terms = objective.evaluate(net, batch, context)
        if not isinstance(terms, Mapping) or not terms:
            raise FedshiftError(
                f"The loss of the objective '{objective.name}' returns {_kind(terms)}: return terms by name, such as "
                '{"cross_entropy": ...}.'
            )
        if undeclared := sorted(terms.keys() - set(objective.terms)):
            raise FedshiftError(
                f"The loss of the objective '{objective.name}' returns the term '{undeclared[0]}', which is not "
                f"declared (there are {', '.join(objective.terms)}): add it to the method's terms, such as terms = "
                f'(*FedAvg.terms, "{undeclared[0]}"), or to terms= of the objective.'
            )
        for name, term in terms.items():
            if not isinstance(term, Tensor):
                raise FedshiftError(
                    f"The term '{name}' of the objective '{objective.name}' is {_kind(term)}; a term is a tensor."
                )
            if term.ndim:
                raise FedshiftError(
                    f"The term '{name}' of the objective '{objective.name}' has the shape {tuple(term.shape)}; "
                    "a term is a scalar, such as the mean over the batch."
                )
        return terms

    @torch.no_grad()
    def _clip(self, largest: Tensor) -> None:
        """Scale each lane's gradient down to its largest norm."""
        gradients = [self.bank.rows(tensor.grad) for tensor in self.moved.values() if tensor.grad is not None]
        norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        factors = (largest / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))

    def give_state(self, courses: Sequence[_Course]) -> None:
        """Hand every lane its optimiser state."""
        for rows, targets, optimiser in self._shares:
            for place, course in enumerate(courses[rows]):
                course.optimisers[self.objective.name] = {
                    name: {
                        kind: (value if kind == "step" else self.bank.rows(value)[place]).clone()
                        for kind, value in optimiser.state[target].items()
                        if isinstance(value, Tensor)
                    }
                    for name, target in targets.items()
                    if target in optimiser.state
                }


def _kind(value: object) -> str:
    """What a loss returned in the place of something else."""
    return "nothing" if value is None or (isinstance(value, Mapping) and not value) else f"a {type(value).__name__}"


def _settings(setup: Setup, objective: Objective, round: Round) -> _Settings:
    own, train = objective.optimiser, setup.train
    return _Settings(
        own.name or train.optimiser,
        (train.lr_in(round.number, round.stage.rounds) if own.lr is None else own.lr) * own.decay ** (round.number - 1),
        train.momentum if own.momentum is None else own.momentum,
        train.weight_decay if own.weight_decay is None else own.weight_decay,
        fused=setup.device.type in ("cpu", "cuda"),
    )


def _clips(setups: Sequence[Setup], objectives: Sequence[Objective]) -> Tensor | None:
    """The largest norm of each lane's gradient, (lanes,), on the device; None where no lane has a limit.

    It is the smaller one of the objective's and the experiment's.
    """
    limits = []
    for setup, objective in zip(setups, objectives, strict=True):
        own, clip = objective.optimiser.clip, setup.train.clip
        limits.append(min(math.inf if own is None else own, math.inf if clip == "off" else clip))
    if all(limit == math.inf for limit in limits):
        return None
    return torch.tensor(limits, dtype=setups[0].dtype, device=setups[0].device)


def _counted(state: Mapping[str, Mapping[str, Tensor]]) -> tuple[tuple[str, float], ...]:
    """How many steps Adam has counted for each tensor, on which its rate depends."""
    return tuple((name, float(kinds["step"])) for name, kinds in sorted(state.items()) if "step" in kinds)


def _measure(bank: Bank, lanes: Sequence[Lane], phase: Measure) -> None:
    """Sum what the phase measures over its batches of each lane; lanes with equally many samples go together."""
    set_modes(bank.net, ())
    by_length: dict[int, list[int]] = {}
    for number, lane in enumerate(lanes):
        by_length.setdefault(len(lane.samples) if lane.samples else 0, []).append(number)
    for numbers in by_length.values():
        bank.choose(numbers)
        together = [lanes[number] for number in numbers]
        for number, batches in enumerate(zip(*(lane.measured_batches(phase) for lane in together), strict=True)):
            contexts = [
                lane.context(lane.noise(phase.draws(lane.setup.model, len(batch.y)), phase.name, "measure", number))
                for lane, batch in zip(together, batches, strict=True)
            ]
            values = bank.evaluate(phase.measure, bank.gather(batches, contexts))
            for place, lane in enumerate(together):
                for name, value in values.items():
                    sums, more = lane.measured, value[place].detach()
                    sums[name] = sums[name] + more if number else more.clone()
                    lane.seen[name] = (lane.seen[name] if number else 0) + len(batches[place].y)


def set_modes(net: Net, moves: Sequence[str]) -> None:
    """What moves is in training mode, all else in evaluation mode."""
    for name, module in net.parts.items():
        if module.training != (name in moves):
            module.train(name in moves)
