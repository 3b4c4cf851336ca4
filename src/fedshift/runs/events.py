"""Events of a run: the only way in which displays and logs follow it.

events.jsonl has an event per line, for `fedshift watch`. The file is not a result: a run does not need it, and
continues if it cannot write it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, FiniteFloat, RootModel

from fedshift import files
from fedshift.core.metrics import ACCURACY
from fedshift.core.setup import Round
from fedshift.errors import DiskError
from fedshift.manifest import checked, parsed
from fedshift.runs.schema import Few, File, Record, Scores, Size
from fedshift.runs.selection import over_clients, scalars
from fedshift.written import moment, seconds_of


def _a_moment(when: str) -> str:
    seconds_of(when)
    return when


SECONDS_BETWEEN_EVENTS = 0.5  # of progress, on average
BURST = 4 * SECONDS_BETWEEN_EVENTS  # after a quiet time several events may follow each other at once


class Event(File):
    """A line of events.jsonl, about the run or the member of a federation that ``who`` names."""

    when: Annotated[str, AfterValidator(_a_moment)]
    kind: str
    who: str


class PlannedStage(File):
    """A stage of a run that begins.

    ``steps`` is about how many steps a round has, all clients of a cohort and the server together. Server steps on
    samples that are generated from the replies are unknown beforehand and not included.
    """

    name: str
    rounds: Few
    steps: FiniteFloat


class BeginEvent(Event):
    """A run starts or resumes; ``done`` rounds are in its checkpoint."""

    kind: Literal["begin"] = "begin"
    done: Few
    stages: Annotated[list[PlannedStage], Field(min_length=1)]

    @property
    def rounds(self) -> int:
        return sum(stage.rounds for stage in self.stages)


class TaskEvent(File):
    """The current work of a round."""

    exchange: str
    clients: Few  # how many clients work; 0: the server does
    steps: Size  # how many steps all of them take
    done: int  # how many of these are done
    answered: Few  # how many clients have answered


class ProgressEvent(Event):
    """The progress of a run."""

    kind: Literal["progress"] = "progress"
    position: Few  # rounds done, before a resumption too
    steps: int = 0  # steps taken since the run started or resumed
    bytes_down: Size = 0  # sent to clients since the run's start
    bytes_up: Size = 0  # sent by clients since the run's start
    stage: str = ""  # the stage of the newest round
    round: Few = 0  # the newest round, within its stage
    under_way: bool = False  # whether that round is still running
    of_round: int = 0  # steps taken in it so far
    task: TaskEvent | None = None  # its current work


class EvaluatedEvent(Event):
    """The models were scored after ``position`` rounds; ``select`` is the metric that selects.

    ``scalars`` are numbers of the record by name; see :func:`fedshift.runs.selection.scalars`.
    """

    kind: Literal["evaluated"] = "evaluated"
    position: Few
    select: str = ACCURACY
    environments: list[Scores]
    ended: str = ""  # where the stage ended early, and why
    scalars: dict[str, float] = Field(default_factory=dict)

    def of_roles(self, roles: Sequence[str]) -> Self:
        rows = [row for row in self.environments if row.role in roles]
        others = tuple(f"{row.role}/" for row in self.environments if row.role not in roles)
        scalars = {name: value for name, value in self.scalars.items() if not name.startswith(others)}
        return self.model_copy(update={"environments": rows, "scalars": scalars})


class NoteEvent(Event):
    """A message for the user."""

    kind: Literal["note"] = "note"
    text: str


class EndEvent(Event):
    """The run is finished."""

    kind: Literal["end"] = "end"


class FailedEvent(Event):
    """The run failed."""

    kind: Literal["failed"] = "failed"
    why: str


class SiteEvent(Event):
    """An event of a member of a federation."""

    kind: Literal["site"] = "site"
    what: str  # "joined", "answered", "late", "failed", "refused", "offline", "back", or a few words
    why: str = ""  # the reason, if there is one
    stage: str = ""  # of the round, if the event belongs to a round
    round: Few = 0  # within its stage
    exchange: str = ""
    seconds: FiniteFloat | None = None  # how long it took
    bytes_down: Size | None = None  # sent to the site
    bytes_up: Size | None = None  # sent by the site


AnyEvent = BeginEvent | ProgressEvent | EvaluatedEvent | NoteEvent | EndEvent | FailedEvent | SiteEvent


class _Line(RootModel[Annotated[AnyEvent, Field(discriminator="kind")]]):
    """A line of events.jsonl, of any kind."""


def read_event(line: bytes) -> AnyEvent:
    return checked(parsed(line), _Line).root


class Progress:
    """Callbacks for any number of runs, perhaps concurrent; this class does nothing."""

    def embedded(self, network: str, done: int, total: int) -> None:
        """A frozen network has embedded ``done`` of ``total`` images, before a run starts."""

    def inspected(self, what: str, done: int, total: int) -> None:
        """``done`` of ``total`` steps or samples of a data inspection are done."""

    def note(self, text: str) -> None:
        """A message to the user, such as the chosen engine with the reason."""

    def handle(self, run: str, event: AnyEvent) -> None:
        """An event of a run, by its name; progress events come at most twice a second, all others at once."""

    def after_round(self, run: str, position: int) -> None:
        """``position`` rounds of a run are done; called after every round."""

    def reused(self, name: str) -> None:
        """A run was already finished and is not repeated."""


class RunEvents:
    """Turns a run's activity into events, for a display and for a file.

    Rounds, tasks, steps and answers are counted, and a progress event reports the counts. Counts of steps and answers
    are delayed so that the start of a task, perhaps the last event for long, is not.
    """

    def __init__(
        self,
        name: str = "",
        progress: Progress | None = None,
        path: Path | None = None,
        done: int = 0,
        get_time: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._progress, self._path, self._get_time = name, progress or Progress(), path, get_time
        self._pending, self._full_again, self._warned = False, 0.0, False
        self._now: dict[str, Any] = {"position": done, "steps": 0, "stage": ""}
        self._task: dict[str, Any] | None = None

    def begin(self, stages: Sequence[PlannedStage]) -> None:
        self._emit(BeginEvent, done=self._now["position"], stages=list(stages))

    def begin_round(self, round: Round) -> None:
        if self._now["stage"] != round.stage.name:
            self._full_again = 0.0
        self._now |= {"stage": round.stage.name, "round": round.number, "under_way": True, "of_round": 0}
        self._task = None
        self._count()

    def begin_task(self, exchange: str, clients: int, steps: int, bytes_down: int, bytes_up: int) -> None:
        """Clients, or with 0 clients the server, begin to work; bytes are totals since the run's start."""
        self._task = {"exchange": exchange, "clients": clients, "steps": steps, "done": 0, "answered": 0}
        self._now |= {"bytes_down": bytes_down, "bytes_up": bytes_up}
        self._count()

    def steps(self, count: int) -> None:
        """``count`` steps were taken; negative where work is restarted."""
        self._now["steps"] += count
        self._now["of_round"] = self._now.get("of_round", 0) + count
        if self._task:
            self._task["done"] += count
        self._count(BURST)

    def answered(self) -> None:
        if self._task:
            self._task["answered"] += 1
        self._count(BURST)

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        self._now |= {"position": position, "bytes_down": bytes_down, "bytes_up": bytes_up}
        self._now |= {"under_way": False, "of_round": 0}
        self._task = None
        self._count()
        self._progress.after_round(self._name, position)

    def evaluated(self, record: Record) -> None:
        """The models were scored; a record with ``ended`` means that its stage has no more rounds."""
        self._emit(
            EvaluatedEvent,
            position=self._now["position"],
            select=record.get("select", ACCURACY),
            environments=[Scores(**row) for row in over_clients(record)],
            ended=record.get("ended") or "",
            scalars=scalars(record),
        )

    def note(self, text: str) -> None:
        self._emit(NoteEvent, text=text)

    def site(self, who: str, what: str, **more: Any) -> None:
        self._emit(SiteEvent, who=who, what=what, **more)

    def end(self) -> None:
        self._emit(EndEvent)

    def failed(self, reason: str) -> None:
        self._emit(FailedEvent, why=reason)

    def _count(self, needed: float = SECONDS_BETWEEN_EVENTS) -> None:
        """Emit a progress event, unless too many were emitted in the last seconds."""
        self._pending = True
        now = self._get_time()
        room = now - self._full_again
        if 0.0 <= room < needed:
            return
        # Room is negative where the clock was put back.
        self._full_again = now if room < 0.0 else now - min(room, BURST) + SECONDS_BETWEEN_EVENTS
        self._emit()

    def _emit(self, kind: Callable[..., AnyEvent] | None = None, **about: Any) -> None:
        common: dict[str, Any] = {"when": moment(self._get_time()), "who": self._name}
        events: list[AnyEvent] = []
        if self._pending:
            task = TaskEvent(**self._task) if self._task else None
            events.append(ProgressEvent(**common, **self._now, task=task))
        self._pending = False
        if kind:
            events.append(kind(**common | about))
        for event in events:
            self._progress.handle(self._name, event)
            try:
                if self._path:
                    files.append(self._path, event.model_dump_json(), soon=True)
            except DiskError as error:
                if not self._warned:
                    logging.getLogger(__name__).warning("The run continues, but cannot be watched: %s", error)
                self._warned = True
