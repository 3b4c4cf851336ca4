"""What can be heard of a run within its rounds."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.core.contract import Round


@dataclass(frozen=True)
class Task:
    """What a run asks its engine for: that a cohort works, or the server.

    Attributes:
        round: the round that it is part of.
        exchange: the exchange's name.
        clients: how many clients work; 0: the server does.
        steps: how many steps all of them take; 0 where they only measure or answer.
        bytes_down: what was sent to clients since the run's start, these included.
        bytes_up: what clients have sent since the run's start.
    """

    round: Round
    exchange: str
    clients: int
    steps: int
    bytes_down: int
    bytes_up: int


class Listener:
    """Hears of what happens within a run's rounds; this one is silent."""

    def begin_round(self, round: Round) -> None:
        """A round begins; what its stage needs of samples is made now."""

    def begin_task(self, task: Task) -> None:
        """Clients, or the server, begin to work."""

    def steps(self, count: int) -> None:
        """So many steps were taken; fewer than none where work is begun again."""

    def answered(self) -> None:
        """One of the clients of the task has answered."""
