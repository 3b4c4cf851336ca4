"""Copies what runs have evaluated from their events to trackers, each evaluation once.

It only reads a run's events, so that it can be done during a run or later, and decides nothing of the run. How far a
tracker is stands in ``trackers/`` of the run's folder. After a kill the events have some rounds twice, with the same
scores; the last count.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from fedshift import files
from fedshift.errors import DiskError, FedshiftError, LockedError, Problems
from fedshift.manifest import digested_json, read_json
from fedshift.reporting.follow import EventsFile, follow
from fedshift.reporting.results import flattened
from fedshift.reporting.trackers import TRACKERS
from fedshift.reporting.trackers.tracker import FOLDER, RunState, TrackedRun, Tracker
from fedshift.runs.events import BeginEvent, EndEvent, EvaluatedEvent, FailedEvent
from fedshift.runs.find import find
from fedshift.runs.run import Run
from fedshift.runs.schema import File
from fedshift.spec import check_names
from fedshift.written import seconds_of

SECONDS_BETWEEN_LOGS = 2.0

Evaluations = Mapping[int, EvaluatedEvent]  # by rounds done


class TrackerState(File):
    """RUN/trackers/TRACKER-*.json: how far a tracker with certain settings is."""

    format: Literal[1] = 1
    id: str  # what the tracker calls the run
    logged: int = -1  # the last step that it has; -1: none
    state: RunState | None = None  # the last state of the run that it knows; None: none


class RunLog:
    """A run and a tracker, which is opened when there is something to log."""

    def __init__(self, folder: Run, tracker: Tracker, stack: ExitStack) -> None:
        """Find how far the tracker is, and keep other processes from it until the stack ends.

        Raises:
            LockedError: another process logs this.
            FedshiftError: it cannot be remembered how far the tracker is, or what is remembered is damaged.
        """
        settings = json.dumps(tracker.table(), sort_keys=True).encode()
        self._path = folder.path / FOLDER / f"{tracker.name}-{files.digest_of(settings)[:8]}.json"
        self._folder, self._tracker, self._open = folder, tracker, False
        stack.enter_context(self._locked())
        stack.callback(self.close)
        new = TrackerState(id=uuid.uuid4().hex[:12])
        self._saved = read_json(self._path, TrackerState) if self._path.exists() else new

    def log(self, found: Evaluations, state: RunState) -> int:
        """Log what is new; returns how many evaluations that is."""
        new = sorted(position for position in found if position > self._saved.logged)
        if not new and state == self._saved.state:
            return 0
        if not self._open:
            self._begin()
        for position in new:
            self._tracker.log(found[position].scalars, position, seconds_of(found[position].when))
        if new:
            self._tracker.flush()
        if state != "running":
            self.close(state)
        self._save(logged=max(new, default=self._saved.logged), state=state)
        return len(new)

    def close(self, state: RunState = "running") -> None:
        if self._open:
            self._open = False
            self._tracker.finish(state)

    def _begin(self) -> None:
        self._save()  # the id first: a kill leaves no unknown run
        table, saved = self._folder.table, self._saved
        about = str(table["name"]), str(table["method"]["name"]), int(table["seed"])
        self._tracker = self._tracker.of(TrackedRun(self._folder.path, *about, saved.id, saved.logged))
        self._tracker.store_init_configuration(flattened(table))
        self._open = True

    def _save(self, **changes: Any) -> None:
        self._saved = self._saved.model_copy(update=changes)
        files.write(self._path, digested_json(self._saved.model_dump()))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self._path.with_suffix(".lock"), timeout=0)
        try:
            files.make_folder(self._path.parent)
            lock.acquire()
        except Timeout:
            raise LockedError(f"Another process tracks '{self._folder.path}' with the same settings.") from None
        except (DiskError, OSError) as error:
            raise FedshiftError(
                f"'{self._path.parent}' cannot be written, where it is remembered what was logged. Copy the run's "
                "folder to a separate place, and track that."
            ) from error
        try:
            yield
        finally:
            lock.release()


class Tracking:
    """Runs at or below a path, and their trackers.

    Attributes:
        logged: how many evaluations were logged, by the run's folder.
        problems: what keeps runs from being tracked.
    """

    def __init__(self, path: Path, trackers: Sequence[Tracker], stack: ExitStack) -> None:
        self._path, self._trackers, self._stack = path, trackers, stack
        self.logged: dict[Path, int] = {}
        self.problems = Problems("runs cannot be tracked")
        self._runs: dict[Path, _TrackedEvents | None] = {}
        self._next = 0.0

    def look(self) -> None:
        """Log what is new in every run, those that began since as well."""
        for folder in find(self._path, least=0):
            if folder.path not in self._runs:
                self._runs[folder.path] = None
                with self.problems.gathered():
                    _ = folder.table  # or an error
                    logs = [RunLog(folder, tracker, self._stack) for tracker in self._trackers]
                    self._runs[folder.path] = _TrackedEvents(folder, logs)
            if run := self._runs[folder.path]:
                self.logged[folder.path] = self.logged.get(folder.path, 0) + run.log()

    def look_at_times(self) -> None:
        if time.monotonic() >= self._next:
            self.look()
            self._next = time.monotonic() + SECONDS_BETWEEN_LOGS


class _TrackedEvents:
    """The events of a run, and where they are logged."""

    def __init__(self, folder: Run, logs: Sequence[RunLog]) -> None:
        self._events, self._logs = EventsFile(folder), logs
        self._state: RunState | None = None

    def log(self) -> int:
        """Log what is new; returns how many evaluations are new to a tracker."""
        found: dict[int, EvaluatedEvent] = {}
        for event in self._events.new():
            match event:
                case BeginEvent():
                    self._state = "running"
                case EndEvent():
                    self._state = "finished"
                case FailedEvent():
                    self._state = "failed"
                case EvaluatedEvent():
                    found[event.position] = event
        state = self._state
        return max((log.log(found, state) for log in self._logs), default=0) if state else 0


def track(
    path: str | Path, to: str | Tracker | Sequence[str | Tracker], *, wait: bool = False, **settings: Any
) -> dict[Path, int]:
    """Copy what runs have evaluated to trackers: scores, losses, loss terms and bytes, by rounds done.

    Called again, it continues where it was. It may be called while runs continue, which do not notice.

    Args:
        path: a run folder, or a folder of them.
        to: trackers: names of ``fedshift list trackers``, or trackers with their settings.
        wait: whether to continue, and show the runs, until all of them are over; if there are no runs yet it waits for
            one.
        settings: of the trackers that are named, each for those that have it.

    Returns:
        How many evaluations were logged, by the run's folder.

    Raises:
        FedshiftError: there are no runs, no such tracker or setting, or a run that cannot be tracked, whose message
            comes after all others were.
    """
    trackers, path = chosen(to, settings), Path(path)
    with ExitStack() as stack:
        tracking = Tracking(path, trackers, stack)
        if wait:
            follow(path, wait=True, meanwhile=tracking.look_at_times)
        else:
            find(path)  # or an error
        tracking.look()
    tracking.problems.check()
    return tracking.logged


def chosen(to: str | Tracker | Sequence[str | Tracker], settings: Mapping[str, Any]) -> list[Tracker]:
    """The trackers that are requested."""
    requested = [to] if isinstance(to, str | Tracker) else [*to]
    named = {each: TRACKERS.get(each).settings() for each in requested if isinstance(each, str)}
    check_names(settings, {name: None for known in named.values() for name in known}, Tracker.section)
    return [
        each
        if isinstance(each, Tracker)
        else TRACKERS.build({"name": each, **{name: settings[name] for name in settings if name in named[each]}})
        for each in requested
    ]
