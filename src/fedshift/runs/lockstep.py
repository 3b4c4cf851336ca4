"""Carrying runs forward, one round each: what their clients have to do goes to one engine together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedshift.engines.engine import Engine, Job, Outcome, ServerJob
from fedshift.engines.lane import steps_of_job
from fedshift.runs.listener import Listener, Task
from fedshift.runs.simulation import Done, Simulation, Work


@dataclass
class _Round:
    """A run within its round: what it asks for now, if it is not through."""

    simulation: Simulation
    listener: Listener
    asking: Generator[Work, Done, None]
    request: Work | None = None
    error: Exception | None = None

    def go_on(self, answer: Done | None) -> None:
        """Hand it the answer to its request and hear the next one."""
        self._resume(lambda: next(self.asking) if answer is None else self.asking.send(answer))

    def fail(self, error: Exception) -> None:
        """Tell it what went wrong with its request."""
        self._resume(lambda: self.asking.throw(error))

    def tell_of(self, jobs: Sequence[Job | ServerJob]) -> None:
        """Say that these jobs, of its request, are begun."""
        first, coordinator = jobs[0], self.simulation.coordinator
        clients = 0 if isinstance(first, ServerJob) else len(jobs)
        steps = sum(map(steps_of_job, jobs))
        sent = coordinator.bytes_down, coordinator.bytes_up
        self.listener.begin_task(Task(first.round, first.exchange.name, clients, steps, *sent))

    def _resume(self, step: Callable[[], Work]) -> None:
        self.request = None
        try:
            self.request = step()
        except StopIteration:
            pass
        except Exception as error:  # one run's failure is not the others'
            self.error = error


class _Steps:
    """Tells of a client's steps while it works, as far as its engine does, and of the rest when it has answered."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self._told = listener, 0

    def __call__(self, count: int) -> None:
        self._told += count
        self._listener.steps(count)

    def answered(self, answer: Outcome | Exception) -> None:
        if isinstance(answer, Outcome):
            self._listener.steps(answer.steps - self._told)
        self._listener.answered()


def advance(
    simulations: Sequence[Simulation], engine: Engine, listeners: Mapping[Simulation, Listener] | None = None
) -> dict[Simulation, Exception]:
    """Carry every run forward by its next round.

    Args:
        simulations: runs that are not at their end.
        engine: does the work of all of them together.
        listeners: who hears of what each run does.

    Returns:
        What went wrong, by run; such a run has not moved on, and its state is to be thrown away.
    """
    rounds = {}
    for simulation in simulations:
        listener, coming = (listeners or {}).get(simulation, Listener()), simulation.coordinator.next_round
        listener.begin_round(coming)
        rounds[simulation] = _Round(simulation, listener, simulation.round(coming, listener.steps))
        rounds[simulation].go_on(None)
    while open_rounds := [under_way for under_way in rounds.values() if under_way.request is not None]:
        _train(open_rounds, engine)
        _serve(open_rounds, engine)
    return {simulation: under_way.error for simulation, under_way in rounds.items() if under_way.error is not None}


def _train(rounds: Sequence[_Round], engine: Engine) -> None:
    """Let all clients of all runs that ask for it work, and answer each run."""
    asked: list[tuple[_Round, list[Job]]] = [
        (under_way, under_way.request) for under_way in rounds if isinstance(under_way.request, list)
    ]
    tells = [[_Steps(under_way.listener) for _ in jobs] for under_way, jobs in asked]
    for under_way, jobs in asked:
        under_way.tell_of(jobs)
    answers = engine.train(
        [
            replace(job, tell=tell)
            for (_, jobs), of_run in zip(asked, tells, strict=True)
            for job, tell in zip(jobs, of_run, strict=True)
        ]
    )
    for (under_way, _), of_run in zip(asked, tells, strict=True):
        outcomes: list[Outcome | Exception] = []
        for tell in of_run:
            outcomes.append(next(answers))
            tell.answered(outcomes[-1])
        under_way.go_on(outcomes)


def _serve(rounds: Sequence[_Round], engine: Engine) -> None:
    """Let the servers of the runs that ask for it work, one after the other."""
    for under_way in rounds:
        if under_way.request is None or isinstance(under_way.request, list):
            continue
        try:
            if under_way.request.exchange.server:
                under_way.tell_of([under_way.request])
            answer = engine.serve(under_way.request)
        except Exception as error:  # it is this run's
            under_way.fail(error)
        else:
            under_way.go_on(answer)
