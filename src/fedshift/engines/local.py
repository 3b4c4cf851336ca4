"""The training loop: phases of clients (or the server) that advance together on a bank.

Lanes share their phases and batch lengths; lanes with fewer steps finish before the others, so lanes are sorted with
the most steps first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fedshift.core.contract import Measure, Objective, Phase, Phases, term_names
from fedshift.core.net import Net
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.tensors import Tensors
from fedshift.engines.banks import Bank
from fedshift.engines.descent import Descent
from fedshift.engines.divergence import explained
from fedshift.engines.engine import SERVER
from fedshift.engines.lane import Course, Lane
from fedshift.engines.weighing import check_read
from fedshift.errors import DivergedError


def run_phases(bank: Bank, lanes: Sequence[Lane], phases: Phases | None = None) -> None:
    """Run the lanes' phases on a bank that contains their tensors; lanes are sorted with the most steps first."""
    for number, phase in enumerate(phases or lanes[0].phases):
        if isinstance(phase, Measure):
            _measure(bank, lanes, phase)
        else:
            own = [lane.phases[number] for lane in lanes]
            _train(bank, phase, [Course(lane, phase) for lane, phase in zip(lanes, own, strict=True)])
    check_read(lanes[0].read, lanes[0].setup)


def _train(bank: Bank, phase: Phase, courses: Sequence[Course]) -> None:
    """Take every lane's steps of a phase; a lane without further steps leaves."""
    start = 0
    for stop in sorted({course.steps for course in courses} - {0}):
        active = [course for course in courses if course.steps >= stop]
        bank.choose(slice(len(active)))
        descents = [Descent(bank, objective, active, number) for number, objective in enumerate(phase.objectives)]
        for step in range(start, stop):
            _step(bank, phase, descents, active, step)
            if phase.snapshot:
                _take_snapshots(bank, active, step)
        for descent in descents:
            descent.write_results(active)
        start = stop
    for course in courses:
        _finish(phase, course)


def _step(bank: Bank, phase: Phase, descents: Sequence[Descent], active: Sequence[Course], step: int) -> None:
    """One batch of every lane, and every objective on it."""
    batches = [next(course.batches) for course in active]
    for descent in descents:
        objective = descent.objective
        set_modes(bank.net, objective.moves)
        for repeat in range(objective.repeats):
            try:
                descent.step(batches, step, *([repeat] if repeat else []))
            except Exception as error:
                lane, more = active[0].lane, len(active) - 1
                others = f" (stacked with {more} more)" if more else ""
                where = f"{lane.place}{others}, round {lane.round.number}, phase '{phase.name}', step {step + 1}"
                error.add_note(f"This happened at {where}, objective '{objective.name}'.")
                raise
    for course in active:
        course.lane.notify(1)


def _take_snapshots(bank: Bank, active: Sequence[Course], step: int) -> None:
    """Copy the shared tensors of lanes whose drawn step this was; lanes with equally many steps draw the same."""
    for number, course in enumerate(active):
        lane = course.lane
        drawn = torch.rand((), generator=lane.setup.streams.generator("snapshot", *lane.round.key, course.phase.name))
        if step == int(drawn * course.steps):
            shared = [name for name in lane.received if lane.setup.scopes[name] == "shared"]
            rows = {name: bank.rows(bank.in_use[name])[number].detach() for name in shared}
            copies = {name: row.clone(memory_format=torch.contiguous_format) for name, row in rows.items()}
            lane.measured |= Tensors(copies).under("snapshot")


def _finish(phase: Phase, course: Course) -> None:
    """Record a lane's means, after checking that every loss was finite, and its optimiser state."""
    lane = course.lane
    called = term_names(lane.phases)
    for objective in phase.objectives:
        if objective.name not in course.terms:
            continue
        names, tables = course.terms[objective.name]
        table = torch.cat(tables)
        means: list[float] = table.mean(dim=0).tolist()
        if not all(map(math.isfinite, means)):
            first = int((~table.isfinite()).any(dim=1).nonzero()[0])
            values = dict(zip(names, table[first].tolist(), strict=True))
            what = (
                f"The loss is not finite at {lane.place}, round {lane.round.number}, phase '{phase.name}', "
                f"step {first // objective.repeats + 1}, objective '{objective.name}' ({values})"
            )
            samples, untouched = course.samples, first == 0 and _begins(lane, phase, objective)
            explanation = explained(lane.setup, what, lane.inputs, samples, objective, untouched)
            lane.error = lane.error or DivergedError(*explanation)
        for name, mean in zip(names, means, strict=True):
            lane.means[called[phase.name, objective.name, name]] = mean
    if lane.key == SERVER or lane.setup.method.core.optimiser_state == "kept":
        for objective_name, of_objective in course.optimisers.items():
            lane.optimisers[f"{phase.name}.{objective_name}"] = of_objective
    lane.steps += course.steps
    lane.drawn += course.steps if course.samples else 0


def _begins(lane: Lane, phase: Phase, objective: Objective) -> bool:
    stage = next(stage.name for stage in lane.setup.stages if stage.name != PREPARATION)
    first = (lane.round.stage.name, lane.round.number, lane.drawn, lane.steps) == (stage, 1, 0, 0)
    return first and objective is phase.objectives[0]


def _measure(bank: Bank, lanes: Sequence[Lane], phase: Measure) -> None:
    """Sum what the phase measures over each lane's batches; lanes with equally many samples are stacked."""
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
            values = bank.gather(batches, contexts)(phase.measure)
            for place, lane in enumerate(together):
                for name, value in values.items():
                    sums, more = lane.measured, bank.rows(value)[place].detach()
                    sums[name] = sums[name] + more if number else more.clone()
                    lane.seen[name] = (lane.seen[name] if number else 0) + len(batches[place].y)


def set_modes(net: Net, moves: Sequence[str]) -> None:
    """Set moved parts to training mode, all others to evaluation mode."""
    for name, module in net.parts.items():
        if module.training != (name in moves):
            module.train(name in moves)
