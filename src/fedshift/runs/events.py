"""events.jsonl: what a run tells its display, a line each, so that others can watch it while it goes on and later.

It is no result: a run does not need it, and one that cannot write it goes on without.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.core.contract import Round
from fedshift.errors import DiskError
from fedshift.manifest import checked, parsed
from fedshift.runs.progress import Outlook, RunProgress
from fedshift.runs.records import Record
from fedshift.runs.schema import AnyEvent, SiteEvent, Told, moment
from fedshift.runs.selection import over_clients
from fedshift.simulation.listener import Task

SECONDS_BETWEEN_LINES = 0.5  # of progress, in the long run
MOST_ROOM = 4 * SECONDS_BETWEEN_LINES  # that a quiet time leaves for lines at once


class EventLog(RunProgress):
    """Passes on to a run's display what it hears, and writes it to a file.

    Rounds, tasks, steps and answers are counted, and a line says how far they are: about one in half a second. Steps
    and answers leave room for the beginning of a task, which may be the last that is heard for long.
    """

    def __init__(
        self, path: Path, outlook: Outlook, display: RunProgress, get_time: Callable[[], float] = time.time
    ) -> None:
        """Write that a run begins or goes on.

        Args:
            path: the file, to which lines are added.
            outlook: what the run will do.
            display: hears everything as well.
            get_time: the seconds since 1970.
        """
        self._path, self._name, self._display, self._get_time = path, outlook.name, display, get_time
        self._told, self._complained = True, False
        self._empty = 0.0  # when there was no room for a line of progress
        self._position, self._steps, self._bytes = outlook.done, 0, (0, 0)
        self._round: Round | None = None
        self._under_way, self._of_round = False, 0
        self._task: Task | None = None
        self._number, self._of_task, self._answered = 0, 0, 0
        stages = [{"name": each.name, "rounds": each.rounds, "steps": each.steps} for each in outlook.stages]
        self._write(self._event("begin", rounds=outlook.rounds, done=outlook.done, stages=stages))

    # What is counted ----------------------------------------------------------------------------

    def begin_round(self, round: Round) -> None:
        """Count a round that begins."""
        self._display.begin_round(round)
        new_stage = self._round is None or self._round.stage.name != round.stage.name
        self._round, self._under_way, self._of_round, self._task, self._number = round, True, 0, None, 0
        if new_stage:  # whose pace counts from here
            self._empty = 0.0
        self._moved()

    def begin_task(self, task: Task) -> None:
        """Count a task that begins."""
        self._display.begin_task(task)
        self._task, self._bytes = task, (task.bytes_down, task.bytes_up)
        self._number, self._of_task, self._answered = self._number + 1, 0, 0
        self._moved()

    def steps(self, count: int) -> None:
        """Count steps."""
        self._display.steps(count)
        self._steps += count
        self._of_round += count
        self._of_task += count
        self._moved(MOST_ROOM)

    def answered(self) -> None:
        """Count an answer."""
        self._display.answered()
        self._answered += 1
        self._moved(MOST_ROOM)

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """Count a round that is done."""
        self._display.round(position, bytes_down, bytes_up)
        self._position, self._bytes = position, (bytes_down, bytes_up)
        self._under_way, self._of_round, self._task = False, 0, None
        self._moved()

    # What is written at once --------------------------------------------------------------------

    def evaluated(self, record: Record) -> None:
        """Write the mean scores."""
        self._display.evaluated(record)
        # Whoever reads that a stage ended must know how many rounds it has had.
        before = self._untold() if record.get("ended") else []
        self._write(*before, self._event("evaluated", position=self._position, **said_of(record)))

    def note(self, text: str) -> None:
        """Write a note, which displays hear elsewhere."""
        self._write(*self._untold(), self._event("note", text=text))

    def site(self, event: SiteEvent) -> None:
        """Write what a site did."""
        self._display.site(event)
        self._write(*self._untold(), event.model_dump(exclude_none=True))

    def end(self) -> None:
        """Write that the run is finished."""
        self._display.end()
        self._write(*self._untold(), self._event("end"))

    def failed(self, reason: str) -> None:
        """Write that the run is given up."""
        self._display.failed(reason)
        self._write(*self._untold(), self._event("failed", why=reason))

    # Lines --------------------------------------------------------------------------------------

    def _moved(self, least: float = SECONDS_BETWEEN_LINES) -> None:
        """Write how far the run is, if there is that much room."""
        self._told = False
        now = self._get_time()
        room = now - self._empty
        if 0.0 <= room < least:
            return
        # Where there is less room than none, the clock was put back.
        self._empty = now if room < 0.0 else now - min(room, MOST_ROOM) + SECONDS_BETWEEN_LINES
        self._write(*self._untold())

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"when": moment(self._get_time()), "kind": kind, "who": self._name, **more}

    def _untold(self) -> list[dict[str, Any]]:
        """How far the run is, if that is new."""
        if self._told:
            return []
        self._told = True
        round, task = self._round, self._task
        of_task = {"number": self._number, "done": self._of_task, "answered": self._answered}
        progress = self._event(
            "progress",
            position=self._position,
            steps=self._steps,
            bytes_down=self._bytes[0],
            bytes_up=self._bytes[1],
            stage=round.stage.name if round else "",
            round=round.number if round else 0,
            under_way=self._under_way,
            of_round=self._of_round,
            task=task and {"exchange": task.exchange, "clients": task.clients, "steps": task.steps, **of_task},
        )
        return [progress]

    def _write(self, *events: Mapping[str, Any]) -> None:
        try:
            files.append_soon(self._path, "\n".join(map(json.dumps, events)))
        except DiskError as error:
            if not self._complained:
                logging.getLogger(__name__).warning("The run goes on, but cannot be watched: %s", error)
            self._complained = True


def said_of(record: Record) -> dict[str, Any]:
    """What an event says of a record beside its position."""
    more = {name: record[name] for name in ("select", "ended") if record.get(name)}
    return {"environments": over_clients(record), **more}


def evaluated(when: str, who: str, record: Record) -> tuple[AnyEvent, str]:
    """The event of a record, and its line."""
    table = {"when": when, "kind": "evaluated", "who": who, "position": record["position"], **said_of(record)}
    line = json.dumps(table)
    return read_event(line.encode()), line


def read_event(line: bytes) -> AnyEvent:
    """An event as it was written.

    Raises:
        ValueError: the line is none.
    """
    return checked(parsed(line), Told).root
