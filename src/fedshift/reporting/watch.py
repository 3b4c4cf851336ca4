"""Watching runs from beside: their events, told to a display as if it had been there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from rich.console import Console

from fedshift import files
from fedshift.core.contract import Round, Stage
from fedshift.errors import FedshiftError
from fedshift.reporting.live import LiveProgress
from fedshift.reporting.units import printable
from fedshift.runs.events import evaluated, read_event
from fedshift.runs.folder import EVENTS, RunFolder, find
from fedshift.runs.grid_file import grid_files, read_grid
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.records import Record
from fedshift.runs.schema import (
    AnyEvent,
    BeginEvent,
    EndEvent,
    EvaluatedEvent,
    FailedEvent,
    NoteEvent,
    ProgressEvent,
    SiteEvent,
    moment,
)
from fedshift.runs.studies import STUDY, carried_on_by, study_of
from fedshift.simulation.listener import Task
from fedshift.simulation.plan import PlannedStage

SECONDS_BETWEEN_LOOKS = 0.2  # at files that are known
SECONDS_BETWEEN_SEARCHES = 2.0  # for new ones, at least
PART_OF_TIME = 20  # a search waits as many times as long as the one before took
STALLED = 60.0  # seconds in which nothing was under way, though runs are to come
MOST_STUDIES = 4  # that are named
QUIET = 3.0  # seconds without an event after which a run's lock is looked at


class EventClock:
    """The time of the events told so far; once these are up to date, the time of the machine.

    Attributes:
        told: the time of the newest event, in seconds since 1970.
        up_to_date: whether all there are were told.
    """

    def __init__(self, get_time: Callable[[], float] = time.time) -> None:
        self.told, self.up_to_date = 0.0, False
        self._get_time = get_time

    def __call__(self) -> float:
        """Seconds since 1970; never back."""
        return max(self.told, self._get_time()) if self.up_to_date else self.told


class WatchProgress(LiveProgress):
    """A live display that leaves no line of how far a run was before anybody watched it."""

    def __init__(self, runs: int, console: Console, clock: EventClock) -> None:
        super().__init__(runs, console, clock)
        self.clock = clock

    def update(self, line: str = "") -> None:
        """Show what is new, once all events are told."""
        if self.clock.up_to_date:
            super().update(line)


Told = tuple[AnyEvent, str]  # an event with its line


@dataclass
class EventFile:
    """A run's events.jsonl, read as it grows; lines that are no events are left out.

    Attributes:
        path: the file.
    """

    path: Path
    _offset: int = 0
    _inode: int = 0

    def new(self) -> list[Told]:
        """What was written since the last time: events with their lines; a file that was replaced is read anew."""
        try:
            with files.opened(self.path) as file:
                about = self.path.stat()
                if about.st_ino != self._inode or about.st_size < self._offset:
                    self._inode, self._offset = about.st_ino, 0
                file.seek(self._offset)
                *whole, _not_yet = file.read().split(b"\n")
        except OSError:  # it is not there yet, or just being set aside
            return []
        self._offset += sum(len(line) + 1 for line in whole)
        return list(_events(whole))

    @property
    def grown(self) -> bool:
        """Whether there is more than was read."""
        return self.path.is_file() and self.path.stat().st_size > self._offset


def _events(lines: list[bytes]) -> Iterator[Told]:
    for line in lines:
        try:
            yield read_event(line), line.decode()
        except ValueError:
            continue


def _without_test(event: AnyEvent, line: str) -> Told:
    """An event with its line, without test scores."""
    if not isinstance(event, EvaluatedEvent):
        return event, line
    shown = event.model_copy(update={"environments": [each for each in event.environments if each.role != "test"]})
    return shown, json.dumps({**json.loads(line), "environments": shown.model_dump()["environments"]})


class Replay:
    """Tells a display what a run's events say, with the calls that the run's own display heard, as far as they matter.

    Events say how far a run is, so many steps or rounds that passed between two are told at once.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._run: RunProgress | None = None
        self._stages: tuple[Stage, ...] = ()
        self._before: ProgressEvent

    def tell(self, event: AnyEvent) -> None:
        """Tell of an event; those before the run's beginning are left out."""
        if isinstance(event, BeginEvent):
            self.give_up("It was interrupted, and goes on.")
            self._begin(event)
        elif isinstance(event, NoteEvent):
            self._progress.note(printable(event.text))
        elif self._run is None:
            return
        elif isinstance(event, ProgressEvent):
            self._move(self._run, event)
        elif isinstance(event, EvaluatedEvent):
            self._evaluate(self._run, event)
        elif isinstance(event, SiteEvent):
            self._run.site(event)
        elif isinstance(event, EndEvent):
            self.end()
        elif isinstance(event, FailedEvent):
            self.give_up(event.why)

    def end(self) -> None:
        """Tell that the run, if it is under way, is finished."""
        if self._run:
            self._run.end()
            self._run = None

    def give_up(self, why: str) -> None:
        """Tell that the run, if it is under way, goes on no more."""
        if self._run:
            self._run.failed(printable(why))
            self._run = None

    def _begin(self, event: BeginEvent) -> None:
        plan = tuple(PlannedStage(printable(each.name), each.rounds, each.steps) for each in event.stages)
        self._stages = tuple(Stage(each.name, each.rounds, ()) for each in plan)
        self._run = self._progress.begin(Outlook(printable(event.who), event.rounds, event.done, plan))
        self._before = ProgressEvent(
            when=event.when,
            who=event.who,
            position=event.done,
            steps=0,
            bytes_down=0,
            bytes_up=0,
            stage="",
            round=0,
            under_way=False,
        )

    def _move(self, run: RunProgress, now: ProgressEvent) -> None:
        """Tell what passed since the ProgressEvent before: rounds that were done, and the one under way."""
        before, self._before = self._before, now
        under_way, of_round = before.under_way, before.of_round
        since = now.steps - before.steps - (now.of_round if now.under_way else 0)  # in rounds that are done
        for position in range(before.position, now.position):
            if not under_way:
                run.begin_round(self._round(position))
            run.steps(since)
            run.round(position + 1, now.bytes_down, now.bytes_up)
            since, under_way, of_round = 0, False, 0
        if not now.under_way:
            return
        number, answered = 0, 0
        if not under_way:
            run.begin_round(self._round(now.position))
        elif before.task:
            number, answered = before.task.number, before.task.answered
        if now.task is None:
            run.steps(now.of_round - of_round)
            return
        task = now.task
        if task.number != number:
            run.steps(now.of_round - task.done - of_round)
            of_round, answered = now.of_round - task.done, 0
            sent = now.bytes_down, now.bytes_up
            run.begin_task(Task(self._round(now.position), task.exchange, task.clients, task.steps, *sent))
        run.steps(now.of_round - of_round)
        for _ in range(answered, task.answered):
            run.answered()

    def _evaluate(self, run: RunProgress, event: EvaluatedEvent) -> None:
        """Tell of scores; a stage that they ended has no more rounds."""
        if event.ended and event.position:
            last = self._round(event.position - 1)
            shorter = replace(last.stage, rounds=last.number)
            self._stages = tuple(shorter if stage is last.stage else stage for stage in self._stages)
        run.evaluated(_record(event))

    def _round(self, position: int) -> Round:
        """The round after so many; the stage's last one goes on after all."""
        for stage in self._stages:
            if position < stage.rounds or stage is self._stages[-1]:
                break
            position -= stage.rounds
        return Round(stage, position + 1)


def _record(event: EvaluatedEvent) -> Record:
    """What displays read of a record."""
    rows = [each.model_dump() for each in event.environments]
    named = [row | {"environment": printable(row["environment"])} for row in rows]
    return {"environments": named, "ended": event.ended, "select": event.select}


# Following --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Watched:
    """A run that is watched.

    Attributes:
        folder: the run's.
        file: its events.
        of_trial: whether settings are being chosen, while which nobody should see test scores: they are left out.
        newest: when the newest of them was, in seconds since 1970; no step back of a clock moves it.
        under_way: whether it has begun and is neither finished nor given up.
        over: whether it is finished or given up.
        scored: rounds done at the newest scores; -1: there are none.
    """

    folder: RunFolder
    file: EventFile
    of_trial: bool = False
    newest: float = 0.0
    under_way: bool = False
    over: bool = False
    scored: int = -1

    def new(self) -> list[Told]:
        """What its file newly says; the scores of a finished run are those of its records, which are checked."""
        told = self.file.new()
        if told and self.folder.finished:
            told = self._as_recorded(told)
        return [_without_test(*each) for each in told] if self.of_trial else told

    def last_scores(self) -> list[Told]:
        """The scores at the end of a finished run whose file does not say them."""
        end = moment(self.newest)
        told = self._as_recorded([(EndEvent(when=end, who=self.folder.path.name), "")])
        scores = [each for each in told if not isinstance(each[0], EndEvent)]
        return [_without_test(*each) for each in scores] if self.of_trial else scores

    def _as_recorded(self, told: Sequence[Told]) -> list[Told]:
        """Events with the scores of records in the place of their own, and the last scores before the end."""
        try:
            records = {record["position"]: record for record in self.folder.records()}
        except FedshiftError as error:
            note = NoteEvent(when=told[-1][0].when, who=told[-1][0].who, text=f"Scores are not shown: {error}")
            others = [each for each in told if not isinstance(each[0], EvaluatedEvent)]
            return [*others, (note, note.model_dump_json())]
        found: list[Told] = []
        scored, last = self.scored, max(records, default=-1)
        for event, line in told:
            if isinstance(event, EndEvent) and records and scored != last:
                found.append(evaluated(event.when, event.who, records[last]))
            if not isinstance(event, EvaluatedEvent):
                found.append((event, line))
            elif event.position in records:
                scored = event.position
                found.append(evaluated(event.when, event.who, records[scored]))
        return found

    def hear(self, event: AnyEvent) -> None:
        """Take in an event."""
        self.newest = max(self.newest, event.seconds_since_1970)
        if isinstance(event, EvaluatedEvent):
            self.scored = event.position
        if isinstance(event, BeginEvent):
            self.under_way, self.over = True, False
        elif isinstance(event, EndEvent | FailedEvent):
            self.under_way, self.over = False, True

    def left_alone(self, now: float) -> bool:
        """Whether it is under way, as its events say, but no process carries it out."""
        quiet = self.under_way and now - self.newest >= QUIET
        return quiet and not self.folder.held and not self.file.grown  # in this order: it may end meanwhile


News = list[tuple[Watched, AnyEvent, str]]


class Watch:
    """The runs at or below a path and what their events say, as it is written.

    Attributes:
        path: a run folder, or a folder of them.
        runs: those that have a folder, by path.
        expected: how many there are to be, with those that comparisons have not begun.
    """

    def __init__(self, path: Path, get_time: Callable[[], float] = time.time) -> None:
        """Prepare; see :meth:`news`.

        Raises:
            FedshiftError: the path is a file.
        """
        if path.is_file():
            raise FedshiftError(f"'{path}' is a file; give the run folder that it lies in.")
        self.path, self.expected = path, 0
        self.runs: dict[Path, Watched] = {}
        self._get_time, self._next_search = get_time, 0.0
        self._heard = time.monotonic()

    def news(self) -> News:
        """Events that were not there the last time, in order of their times, each with its line."""
        if time.monotonic() >= self._next_search:
            self._search()
        timed: list[tuple[float, tuple[Watched, AnyEvent, str]]] = []
        for run in self.runs.values():
            for event, line in run.new():
                run.hear(event)
                timed.append((run.newest, (run, event, line)))
        if timed or any(run.under_way for run in self.runs.values()):
            self._heard = time.monotonic()
        return [news for _, news in sorted(timed, key=itemgetter(0))]

    def left_alone(self) -> list[Watched]:
        """Runs that no process carries out any more; they count as over if they are finished."""
        alone = [run for run in self.runs.values() if run.left_alone(self._get_time())]
        for run in alone:
            run.under_way, run.over = False, run.folder.finished
        return alone

    @property
    def over(self) -> bool:
        """Whether every run is finished or given up, and no process chooses the next trials here."""
        over = bool(self.runs) and sum(run.over for run in self.runs.values()) >= self.expected
        return over and not ((self.path / STUDY).is_file() and RunFolder(self.path).held)

    @property
    def stalled(self) -> bool:
        """Whether runs are to come, but none is under way for long."""
        return not self.over and time.monotonic() - self._heard >= STALLED

    @property
    def searches(self) -> str:
        """Where else to look: the folders of studies below the path, whose trials are not shown; the newest first."""
        files = sorted(self._studies(), key=lambda file: file.stat().st_mtime, reverse=True)
        folders = ", ".join(f"`fedshift watch {file.parent}`" for file in files[:MOST_STUDIES])
        more = f" and {len(files) - MOST_STUDIES} older ones" if len(files) > MOST_STUDIES else ""
        return f" Trials of a search are watched in its own folder: {folders}{more}." if files else ""

    def _studies(self) -> Iterator[Path]:
        below = files.walk(self.path) if self.path.is_dir() else ()
        return (folder / STUDY for folder, names in below if STUDY in names)

    def _search(self) -> None:
        """Look for runs."""
        started = time.monotonic()
        planned = {file.parent / run.folder for file in grid_files(self.path) for run in read_grid(file).runs}
        for folder in find(self.path, least=0):
            if folder.path not in self.runs:
                file, of_trial = EventFile(folder.path / EVENTS), study_of(folder.path) is not None
                self.runs[folder.path] = Watched(folder, file, of_trial, over=folder.finished)
        self.expected = len(planned | self.runs.keys())
        now = time.monotonic()
        self._next_search = now + max(SECONDS_BETWEEN_SEARCHES, PART_OF_TIME * (now - started))


def first_news(watch: Watch, say: Callable[[str], None], wait: bool) -> News:
    """The first news of runs.

    Args:
        watch: the runs.
        say: is told that nothing is there yet.
        wait: whether to wait for a run where there is none.

    Raises:
        FedshiftError: there is no run, and it is not to be waited for.
    """
    news = watch.news()
    if not watch.expected and not wait:
        raise FedshiftError(
            f"There is no run folder at or below '{watch.path}'. Start the run first, or wait for it with --wait."
            f"{watch.searches}"
        )
    if not watch.expected:
        say(f"Waiting for a run in '{watch.path}'...{watch.searches}")
    while not watch.expected:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        news = watch.news()
    return news


def going_on(run: Watched) -> str:
    """What to do about a run that was left alone."""
    return f"No process carries it out any more; {run.folder.carried_on_by} does."


def follow_lines(
    watch: Watch, write: Callable[[str], None], say: Callable[[str], None], once: bool = False, wait: bool = False
) -> None:
    """Write events as they are in the files, until all runs are over.

    Args:
        watch: the runs.
        write: takes a line.
        say: takes what is no event.
        once: what there is now is enough.
        wait: whether to wait for a run where there is none.

    Raises:
        FedshiftError: there is no run, and it is not to be waited for.
    """
    news = first_news(watch, say, wait)
    while True:
        for _, _, line in news:
            write(line)
        for run in watch.left_alone():
            if not run.over:
                say(f"{run.folder.path.name}: {going_on(run)}")
        if once or watch.over:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)
        news = watch.news()


def follow(
    watch: Watch,
    console: Console,
    once: bool = False,
    get_time: Callable[[], float] = time.time,
    meanwhile: Callable[[], None] = lambda: None,
    wait: bool = False,
) -> None:
    """Show runs as their own terminal does, until all are over.

    Args:
        watch: the runs.
        console: where.
        once: the state now is enough.
        get_time: seconds since 1970.
        meanwhile: called between looks at what is new; what it raises ends the watching.
        wait: whether to wait for a run where there is none.

    Raises:
        FedshiftError: there is no run, and it is not to be waited for.
    """

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    news = first_news(watch, say, wait)
    clock = EventClock(get_time)
    progress = WatchProgress(watch.expected, console, clock)
    shown = Shown(watch, progress, clock)
    with nullcontext() if once else progress:
        shown.tell(news)
        while not (once or watch.over):
            time.sleep(SECONDS_BETWEEN_LOOKS)
            meanwhile()
            shown.tell(watch.news())
    if once:
        console.print(progress.view())


class Shown:
    """Runs on a display."""

    def __init__(self, watch: Watch, progress: WatchProgress, clock: EventClock) -> None:
        self._watch, self._progress, self._clock = watch, progress, clock
        self._replays: dict[Watched, Replay] = {}

    def tell(self, news: News) -> None:
        """Tell the display what is new, and which runs were left alone."""
        self._progress.runs = self._watch.expected
        for run in self._watch.runs.values():
            if run not in self._replays:
                self._replays[run] = Replay(self._progress)
                if run.over and not run.newest:  # it has no events
                    self._progress.reused(printable(run.folder.path.name))
        self._clock.up_to_date = False  # so that each is told at its own time
        begins = {run: number for number, (run, event, _) in enumerate(news) if isinstance(event, BeginEvent)}
        for number, (run, event, _) in enumerate(news):
            if number >= begins.get(run, 0):  # what was before an interruption is not shown again
                self._clock.told = max(self._clock.told, event.seconds_since_1970)
                self._replays[run].tell(event)
        for run in self._watch.left_alone():
            if run.over:  # its last event could not be written
                for event, _ in run.last_scores():
                    self._replays[run].tell(event)
                self._replays[run].end()
            else:
                self._replays[run].give_up(going_on(run))
        if self._watch.stalled:
            self._progress.note(
                f"Runs in '{self._watch.path}' are to come, but none is under way. If no process is about to carry "
                f"them out, {carried_on_by(self._watch.path)} does."
            )
        self._clock.up_to_date = True
        self._progress.update()
