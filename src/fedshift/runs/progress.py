"""What a run tells while it goes on; displays implement it."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.runs.folder import Record


@dataclass(frozen=True)
class Outlook:
    """What a run will do.

    Attributes:
        name: the run's name.
        rounds: all rounds.
        done: rounds that a checkpoint already holds.
    """

    name: str
    rounds: int
    done: int


class Progress:
    """Hears of a run's progress; this one is silent."""

    def embedded(self, network: str, done: int, total: int) -> None:
        """A frozen network has embedded ``done`` of ``total`` images, before a run starts."""

    def begin(self, outlook: Outlook) -> None:
        """A run starts or goes on."""

    def steps(self, count: int) -> None:
        """A client took local steps."""

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """A round is done; bytes are totals since the start."""

    def evaluated(self, record: Record) -> None:
        """The models were scored."""

    def end(self) -> None:
        """The run is finished."""

    def reused(self, name: str) -> None:
        """A run was finished before and is not repeated."""
