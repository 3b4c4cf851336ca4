"""What runs tell while they go on, several at once if need be; displays implement it."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.runs.records import Record
from fedshift.runs.schema import SiteEvent
from fedshift.simulation.listener import Listener
from fedshift.simulation.plan import PlannedStage


@dataclass(frozen=True)
class Outlook:
    """What a run will do.

    Attributes:
        name: the run's name.
        rounds: all rounds.
        done: rounds that a checkpoint already holds.
        stages: what these rounds are, with about how many steps each has.
    """

    name: str
    rounds: int
    done: int
    stages: tuple[PlannedStage, ...]


class RunProgress(Listener):
    """Hears of one run that is under way, until ``end`` or ``failed``; this one is silent."""

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """A round is done; bytes are totals since the start."""

    def evaluated(self, record: Record) -> None:
        """The models were scored; where the record says that its stage has ended early, that has no more rounds."""

    def site(self, event: SiteEvent) -> None:
        """A member of a federation did something, or something happened to it."""

    def end(self) -> None:
        """The run is finished."""

    def failed(self, reason: str) -> None:
        """The run is given up; the reason is what its error says."""


class Progress:
    """Hears of the progress of runs, any number of which may be under way at once; this one is silent."""

    def embedded(self, network: str, done: int, total: int) -> None:
        """A frozen network has embedded ``done`` of ``total`` images, before a run starts."""

    def inspected(self, what: str, done: int, total: int) -> None:
        """Of a look at data, ``done`` of ``total`` steps or samples are done."""

    def note(self, text: str) -> None:
        """Something a user should see: which engine was chosen and why, say, or that clients could not be stacked."""

    def begin(self, outlook: Outlook) -> RunProgress:
        """A run starts or goes on; what comes back hears of it."""
        return RunProgress()

    def reused(self, name: str) -> None:
        """A run was finished before and is not repeated."""
