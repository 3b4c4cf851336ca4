"""Carrying runs forward, one round each: what their clients have to do goes to one engine together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from fedshift.engines.engine import Engine, Job, Outcome
from fedshift.simulation.simulation import Done, Simulation, Work

Stepped = Callable[[int], None]


@dataclass
class _Round:
    """A run within its round: what it asks for now, if it is not through."""

    asking: Generator[Work, Done, None]
    tell: Stepped
    request: Work | None = None
    error: Exception | None = None

    def go_on(self, answer: Done | None) -> None:
        """Hand it the answer to its request and hear the next one."""
        self._resume(lambda: next(self.asking) if answer is None else self.asking.send(answer))

    def fail(self, error: Exception) -> None:
        """Tell it what went wrong with its request."""
        self._resume(lambda: self.asking.throw(error))

    def _resume(self, step: Callable[[], Work]) -> None:
        self.request = None
        try:
            self.request = step()
        except StopIteration:
            pass
        except Exception as error:  # one run's failure is not the others'
            self.error = error


def advance(
    simulations: Sequence[Simulation], engine: Engine, tells: Mapping[Simulation, Stepped] | None = None
) -> dict[Simulation, Exception]:
    """Carry every run forward by its next round.

    Args:
        simulations: runs that are not at their end.
        engine: does the work of all of them together.
        tells: who hears of each run's steps.

    Returns:
        What went wrong, by run; such a run has not moved on, and its state is to be thrown away.
    """
    rounds = {}
    for simulation in simulations:
        tell = (tells or {}).get(simulation, lambda steps: None)
        rounds[simulation] = _Round(simulation.round(simulation.coordinator.next_round, tell), tell)
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
    answers = engine.train([job for _, jobs in asked for job in jobs])
    for under_way, jobs in asked:
        outcomes: list[Outcome | Exception] = []
        for _ in jobs:
            outcomes.append(next(answers))
            if isinstance(outcome := outcomes[-1], Outcome):
                under_way.tell(outcome.steps)
        under_way.go_on(outcomes)


def _serve(rounds: Sequence[_Round], engine: Engine) -> None:
    """Let the servers of the runs that ask for it work, one after the other."""
    for under_way in rounds:
        if under_way.request is None or isinstance(under_way.request, list):
            continue
        try:
            answer = engine.serve(under_way.request)
        except Exception as error:  # it is this run's
            under_way.fail(error)
        else:
            under_way.go_on(answer)
