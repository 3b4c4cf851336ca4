"""Watching runs from another process: their events, shown on the same display."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from rich.console import Console

from fedshift import files
from fedshift.errors import FedshiftError
from fedshift.reporting.live import LiveProgress
from fedshift.reporting.run_status import scores_text
from fedshift.runs.events import AnyEvent, BeginEvent, EndEvent, EvaluatedEvent, FailedEvent, read_event
from fedshift.runs.find import find, grid_files, read_grid
from fedshift.runs.locks import is_locked
from fedshift.runs.origin import STUDY, carried_on_by, study_of
from fedshift.runs.run import EVENTS, Run
from fedshift.written import moment, printable

SECONDS_BETWEEN_LOOKS = 0.2  # at files that are known
SECONDS_BETWEEN_SEARCHES = 2.0  # for new ones
STALLED = 60.0  # seconds in which nothing was in progress, though runs are to come
QUIET = 3.0  # seconds without an event after which a run's lock is inspected


class EventsFile:
    """A run's events.jsonl, read as it grows.

    Attributes:
        roles: the environments whose scores are read: not those of the test while settings are being chosen.
    """

    def __init__(self, folder: Run) -> None:
        self._path, self._offset, self._inode = folder.path / EVENTS, 0, 0
        self.roles = ("validation",) if study_of(folder.path) else ("validation", "test")

    def new(self) -> list[AnyEvent]:
        """Events since the last time; lines that are no events are excluded."""
        try:
            with files.opened(self._path) as file:
                about = self._path.stat()
                if about.st_ino != self._inode or about.st_size < self._offset:  # it was replaced
                    self._inode, self._offset = about.st_ino, 0
                file.seek(self._offset)
                *whole, _not_yet = file.read().split(b"\n")
        except OSError:  # it is not there yet, or just being replaced
            return []
        self._offset += sum(len(line) + 1 for line in whole)
        events = list[AnyEvent]()
        for line in whole:
            with suppress(ValueError):
                event = read_event(line)
                events.append(event.of_roles(self.roles) if isinstance(event, EvaluatedEvent) else event)
        return events

    def unread(self) -> bool:
        return self._path.is_file() and self._path.stat().st_size > self._offset


class WatchedRun:
    """A run that is watched by its events.

    Attributes:
        folder: the run's.
        file: its events.
        newest: when its newest event was read.
        state: how far it is; of a finished run the file is not read any more.
    """

    def __init__(self, folder: Run) -> None:
        self.folder, self.file, self.newest = folder, EventsFile(folder), 0.0
        self.state: Literal["to come", "under way", "given up", "finished"] = "to come"

    def new(self) -> list[AnyEvent]:
        """Events since the last time; those before an interruption are excluded."""
        events = list[AnyEvent]()
        for event in self.file.new():
            if isinstance(event, BeginEvent):
                events.clear()
            events.append(event)
        return events

    def scores(self) -> str:
        """The last scores of a finished run, from its records, which are checked."""
        try:
            record = self.folder.records[-1]
        except FedshiftError as error:
            return f"Scores are not shown: {error}"
        rows = [row for row in record["environments"] if row["role"] in self.file.roles]
        return scores_text({**record, "environments": rows})


class RunWatch:
    """The runs at or below a path, those that begin later as well, shown on a display.

    Attributes:
        runs: by folder.
        expected: how many runs there are, with those that have not started.
    """

    def __init__(self, path: Path, display: LiveProgress, get_time: Callable[[], float] = time.time) -> None:
        if path.exists() and not path.is_dir():
            raise FedshiftError(f"'{path}' is a file. Give a run folder, or a folder of them.")
        self._path, self._display, self._get_time = path, display, get_time
        self.runs: dict[Path, WatchedRun] = {}
        self.expected, self._next_search, self._last_activity = 0, 0.0, get_time()

    @property
    def over(self) -> bool:
        """Whether every run is finished or given up, and no process chooses the next trials here."""
        over = [run for run in self.runs.values() if run.state in ("given up", "finished")]
        return len(over) >= max(1, self.expected) and not ((self._path / STUDY).is_file() and is_locked(self._path))

    def look(self) -> None:
        now = self._get_time()
        if now >= self._next_search:
            self._search()
            self._next_search = now + SECONDS_BETWEEN_SEARCHES
        for run in self.runs.values():
            for event in () if run.state == "finished" else run.new():
                self._show(run, event)
            if run.state == "under way" and self._get_time() - run.newest > QUIET:
                self._check_alive(run)
        if any(run.state == "under way" for run in self.runs.values()):
            self._last_activity = now
        elif self.expected and not self.over and now - self._last_activity >= STALLED:
            self._display.note(
                f"Runs in '{self._path}' are to come, but none is in progress. If no process is about to carry them "
                f"out, {carried_on_by(self._path)} does."
            )

    def _search(self) -> None:
        """Look for runs; of those that are finished already, the scores are shown."""
        planned = {file.parent / run.folder for file in grid_files(self._path) for run in read_grid(file).runs}
        found = find(self._path, least=0)
        self.expected = self._display.runs = len(planned | {folder.path for folder in found})
        for folder in found:
            if folder.path not in self.runs:
                run = self.runs[folder.path] = WatchedRun(folder)
                if folder.finished:
                    run.state = "finished"
                    self._display.reused(printable(folder.path.name), run.scores())

    def _show(self, run: WatchedRun, event: AnyEvent) -> None:
        run.newest = self._get_time()
        if isinstance(event, BeginEvent):
            run.state = "under way"
        elif isinstance(event, EndEvent | FailedEvent):
            run.state = "finished" if isinstance(event, EndEvent) else "given up"
        self._display.handle(str(run.folder.path), event)

    def _check_alive(self, run: WatchedRun) -> None:
        """Show a run that no process works on."""
        folder = run.folder
        if is_locked(folder.path) or run.file.unread():  # in this order: it may end meanwhile
            return
        when, who = moment(self._get_time()), folder.path.name
        if folder.finished:  # its last event could not be written
            self._show(run, EndEvent(when=when, who=who))
            return
        why = f"No process carries it out any more; {folder.carried_on_by} does."
        self._show(run, FailedEvent(when=when, who=who, why=why))
        run.state = "to come"


def follow(
    path: Path, console: Console | None = None, wait: bool = False, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Show runs as their own terminal does, until all are over.

    Args:
        path: a run folder, or a folder of them.
        console: where they are shown; None: where the display of a run is.
        wait: whether to wait for a run if there is none.
        meanwhile: is called between checks for news; what it raises ends the watching.
    """
    display = LiveProgress(0, console)
    watch = RunWatch(path, display)
    watch.look()
    if not watch.expected:
        if not wait:
            raise FedshiftError(
                f"There is no run folder at or below '{path}'. Start the run first, or wait for it with --wait. "
                "Trials of a search are watched in its own folder."
            )
        display.note(f"Waiting for a run in '{path}'...")
    with display:
        while not watch.over:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            meanwhile()
            watch.look()
