"""The listener to a run: what happens from its first round to its end; displays and logs implement it."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.core.contract import Round
from fedshift.runs.listener import Listener, Task
from fedshift.runs.plan import PlannedStage
from fedshift.runs.records import Record
from fedshift.runs.schema import SiteEvent


@dataclass(frozen=True)
class Outlook:
    """What a run will do.

    Attributes:
        name: the run's name.
        rounds: all rounds.
        done: rounds that a checkpoint already holds.
        stages: the stages of these rounds, with about how many steps a round of each has.
    """

    name: str
    rounds: int
    done: int
    stages: tuple[PlannedStage, ...]


class RunProgress(Listener):
    """Listens to one run until ``end`` or ``failed``; this one does nothing."""

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """A round is done; bytes are totals since the start."""

    def evaluated(self, record: Record) -> None:
        """The models were scored; a record with ``ended`` says that its stage has no more rounds."""

    def note(self, text: str) -> None:
        """A message to the user about this run; the display gets it from :meth:`Progress.note`."""

    def site(self, event: SiteEvent) -> None:
        """A member of a federation did something, or something happened to it."""

    def end(self) -> None:
        """The run is finished."""

    def failed(self, reason: str) -> None:
        """The run stops with an error, whose message is the reason."""


class RunListeners(RunProgress):
    """Forwards what happens in a run to several listeners; a subclass may change what they get."""

    def __init__(self, *to: RunProgress) -> None:
        self._to = to

    def begin_round(self, round: Round) -> None:
        """A round begins."""
        for each in self._to:
            each.begin_round(round)

    def begin_task(self, task: Task) -> None:
        """An exchange begins."""
        for each in self._to:
            each.begin_task(task)

    def steps(self, count: int) -> None:
        """Steps were taken."""
        for each in self._to:
            each.steps(count)

    def answered(self) -> None:
        """A client has answered."""
        for each in self._to:
            each.answered()

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """A round is done."""
        for each in self._to:
            each.round(position, bytes_down, bytes_up)

    def evaluated(self, record: Record) -> None:
        """The models were scored."""
        for each in self._to:
            each.evaluated(record)

    def note(self, text: str) -> None:
        """A message to the user."""
        for each in self._to:
            each.note(text)

    def site(self, event: SiteEvent) -> None:
        """Something happened at a member of a federation."""
        for each in self._to:
            each.site(event)

    def end(self) -> None:
        """The run is finished."""
        for each in self._to:
            each.end()

    def failed(self, reason: str) -> None:
        """The run stops with an error."""
        for each in self._to:
            each.failed(reason)


class Progress:
    """Listens to any number of runs, several at once if need be; this one does nothing."""

    def embedded(self, network: str, done: int, total: int) -> None:
        """A frozen network has embedded ``done`` of ``total`` images, before a run starts."""

    def inspected(self, what: str, done: int, total: int) -> None:
        """Of a look at data, ``done`` of ``total`` steps or samples are done."""

    def note(self, text: str) -> None:
        """A message to the user: which engine was chosen and why, say, or that clients could not be stacked."""

    def begin(self, outlook: Outlook) -> RunProgress:
        """A run starts or goes on; returns its listener."""
        return RunProgress()

    def reused(self, name: str) -> None:
        """A run was finished before and is not repeated."""
