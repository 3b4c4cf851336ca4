"""Events of a run, and events.jsonl, which has one a line, so that `fedshift watch` can show the run.

The file is no result: a run does not need it, and one that cannot write it goes on without.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from fedshift import files
from fedshift.core.contract import Round
from fedshift.core.metrics import ACCURACY
from fedshift.errors import DiskError
from fedshift.manifest import checked, parsed
from fedshift.runs.listener import Task
from fedshift.runs.progress import Outlook, RunListeners, RunProgress
from fedshift.runs.records import Record
from fedshift.runs.schema import (
    AnyEvent,
    BeginEvent,
    EndEvent,
    EvaluatedEvent,
    FailedEvent,
    NoteEvent,
    PlannedEvent,
    ProgressEvent,
    ScoresEvent,
    SiteEvent,
    TaskEvent,
    Told,
    moment,
)
from fedshift.runs.selection import over_clients

SECONDS_BETWEEN_EVENTS = 0.5  # of progress, on average
BURST = 4 * SECONDS_BETWEEN_EVENTS  # after a quiet time several events may follow each other at once


class Events(RunProgress):
    """Turns what happens in a run into events, and emits each.

    Rounds, tasks, steps and answers are counted; an event of progress has the counts. Steps and answers leave room
    for the beginning of a task, which may be the last event for long.
    """

    def __init__(
        self, outlook: Outlook, emit: Callable[[AnyEvent], None], get_time: Callable[[], float] = time.time
    ) -> None:
        """Emit that a run begins or goes on.

        Args:
            outlook: what the run will do.
            emit: takes each event.
            get_time: the seconds since 1970.
        """
        self._name, self._emit, self._get_time = outlook.name, emit, get_time
        self._pending, self._full_again = False, 0.0
        self._position, self._steps, self._bytes = outlook.done, 0, (0, 0)
        self._round: Round | None = None
        self._under_way, self._of_round = False, 0
        self._task: Task | None = None
        self._of_task, self._answers = 0, 0
        stages = [PlannedEvent(name=each.name, rounds=each.rounds, steps=each.steps) for each in outlook.stages]
        now = self._now()
        emit(BeginEvent(when=now, who=self._name, rounds=outlook.rounds, done=outlook.done, stages=stages))

    def begin_round(self, round: Round) -> None:
        """Count a round that begins."""
        if self._round is None or self._round.stage.name != round.stage.name:
            self._full_again = 0.0
        self._round, self._under_way, self._of_round, self._task = round, True, 0, None
        self._progress()

    def begin_task(self, task: Task) -> None:
        """Count a task that begins."""
        self._task, self._bytes = task, (task.bytes_down, task.bytes_up)
        self._of_task, self._answers = 0, 0
        self._progress()

    def steps(self, count: int) -> None:
        """Count steps."""
        self._steps += count
        self._of_round += count
        self._of_task += count
        self._progress(BURST)

    def answered(self) -> None:
        """Count an answer."""
        self._answers += 1
        self._progress(BURST)

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """Count a round that is done."""
        self._position, self._bytes = position, (bytes_down, bytes_up)
        self._under_way, self._of_round, self._task = False, 0, None
        self._progress()

    def evaluated(self, record: Record) -> None:
        """Emit the mean scores."""
        self._flush()
        scores = [ScoresEvent(**row) for row in over_clients(record)]
        event = EvaluatedEvent(
            when=self._now(),
            who=self._name,
            position=self._position,
            select=record.get("select", ACCURACY),
            environments=scores,
            ended=record.get("ended") or "",
        )
        self._emit(event)

    def note(self, text: str) -> None:
        """Emit a note."""
        self._flush()
        self._emit(NoteEvent(when=self._now(), who=self._name, text=text))

    def site(self, event: SiteEvent) -> None:
        """Emit what a site did."""
        self._flush()
        self._emit(event)

    def end(self) -> None:
        """Emit that the run is finished."""
        self._flush()
        self._emit(EndEvent(when=self._now(), who=self._name))

    def failed(self, reason: str) -> None:
        """Emit that the run stops with an error."""
        self._flush()
        self._emit(FailedEvent(when=self._now(), who=self._name, why=reason))

    def _now(self) -> str:
        return moment(self._get_time())

    def _progress(self, needed: float = SECONDS_BETWEEN_EVENTS) -> None:
        """Emit an event of progress, unless there were too many in the last seconds."""
        self._pending = True
        now = self._get_time()
        room = now - self._full_again
        if 0.0 <= room < needed:
            return
        # Room is negative where the clock was put back.
        self._full_again = now if room < 0.0 else now - min(room, BURST) + SECONDS_BETWEEN_EVENTS
        self._flush()

    def _flush(self) -> None:
        """Emit progress that was not emitted yet."""
        if not self._pending:
            return
        self._pending = False
        round, task = self._round, self._task
        counts = None
        if task is not None:
            counts = TaskEvent(
                exchange=task.exchange,
                clients=task.clients,
                steps=task.steps,
                done=self._of_task,
                answered=self._answers,
            )
        event = ProgressEvent(
            when=self._now(),
            who=self._name,
            position=self._position,
            steps=self._steps,
            bytes_down=self._bytes[0],
            bytes_up=self._bytes[1],
            stage=round.stage.name if round else "",
            round=round.number if round else 0,
            under_way=self._under_way,
            of_round=self._of_round,
            task=counts,
        )
        self._emit(event)


class EventLog(RunListeners):
    """Writes a run's events to a file, and forwards all that happens to the run's display."""

    def __init__(
        self, path: Path, outlook: Outlook, display: RunProgress, get_time: Callable[[], float] = time.time
    ) -> None:
        """Write that a run begins or goes on; events are added to the file at ``path``."""
        self._path, self._warned = path, False
        super().__init__(display, Events(outlook, self._write, get_time))

    def _write(self, event: AnyEvent) -> None:
        try:
            files.append_soon(self._path, json.dumps(event.model_dump()))
        except DiskError as error:
            if not self._warned:
                logging.getLogger(__name__).warning("The run goes on, but cannot be watched: %s", error)
            self._warned = True


def record_of(event: EvaluatedEvent) -> Record:
    """The part of a record that a display shows."""
    return {"environments": [each.model_dump() for each in event.environments], "select": event.select}


def read_event(line: bytes) -> AnyEvent:
    """An event as it was written.

    Raises:
        ValueError: the line is none.
    """
    return checked(parsed(line), Told).root
