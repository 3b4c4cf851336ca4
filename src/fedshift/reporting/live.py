"""A live display of the runs under way: in a terminal, in a notebook's cell, and as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from statistics import mean
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars
from rich.table import Column
from rich.text import Text

from fedshift.core.metrics import ACCURACY
from fedshift.reporting.notebook import NotebookOutput, in_notebook
from fedshift.reporting.units import bytes_text, clock, printable
from fedshift.runs.events import (
    AnyEvent,
    BeginEvent,
    EndEvent,
    EvaluatedEvent,
    FailedEvent,
    NoteEvent,
    Progress,
    ProgressEvent,
    SiteEvent,
)
from fedshift.runs.schema import Record
from fedshift.runs.selection import mean_score, over_clients, selects, value_of

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.5  # of a notebook's cell
LOADING = "Loading data and building the model..."
MOST_SHOWN = 14  # environments one by one; of more than that, the mean and the worst
BESIDE_NAMES = 80  # columns of a line that are no title
ROLES = ("test", "validation")


class LiveProgress(Progress):
    """Shows the events of runs: how far each is, its scores and the time left, and that of all runs.

    Attributes:
        runs: how many runs there will be.
    """

    def __init__(self, runs: int, console: Console | None = None, get_time: Callable[[], float] = time.time) -> None:
        """Show so many runs in a notebook's cell, or else on standard error unless a console is given."""
        self.notebook = NotebookOutput() if console is None and in_notebook() else None
        self.console = console or (self.notebook.console if self.notebook else Console(stderr=True))
        self.runs = runs
        self._get_time = get_time
        self._runs: dict[str, RunStatus] = {}
        self._before: TaskID | None = None  # work before any run
        self._reused = 0
        self._note = ""
        self._drawn = get_time()
        title = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, self.console.width - BESIDE_NAMES))
        self._bars = _Bars(
            self._below_bars,
            TextColumn("{task.description}", style="bold", markup=False, table_column=title),
            BarColumn(20 if self.console.width >= 100 else 6),
            *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "scores", "left")),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal or self.notebook is not None,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if self.notebook:
            self.notebook.show(Group())

    # The listener -------------------------------------------------------------------------------

    def embedded(self, network: str, done: int, total: int) -> None:
        """Show how many images are embedded."""
        self.inspected(f"Embedding images with {network}", done, total)

    def inspected(self, what: str, done: int, total: int) -> None:
        """Show work that comes before runs."""
        count = f"{done} of {total}"
        if self._before is None:
            self._before = self._bars.add_task(what, count="", scores="", left="")
        self._bars.update(self._before, description=what, completed=done, total=total, count=count)
        if done >= total:
            self._bars.remove_task(self._before)
            self._before = None
        self._draw(f"{what}: {count}")

    def note(self, text: str) -> None:
        """Print a line, unless it is the last note again."""
        if text != self._note:
            self._note = text
            self._print(text)

    def reused(self, name: str, scores: str = "") -> None:
        """Print that a finished run is not repeated."""
        self._reused += 1
        self._print(f"{self._reused + len(self._runs)}/{self.runs} {name}  finished before  {scores}".rstrip())

    def handle(self, run: str, event: AnyEvent) -> None:
        """Show an event of a run."""
        if isinstance(event, BeginEvent):
            self._begin(run, event)
        elif isinstance(event, NoteEvent):
            self.note(printable(event.text))
        elif isinstance(event, SiteEvent):
            self._print(site_line(event))
        elif run in self._runs:
            self._move(run, event)

    def fail(self, key: str, reason: str) -> None:
        """Print that a run goes on no more."""
        status = self._runs[key]
        self._remove(status)
        place = f"round {status.progress.position} of {status.rounds}, {clock(status.seconds)}"
        self._print(f"{status.title}  given up after {place}: {printable(reason)}")

    # Runs ---------------------------------------------------------------------------------------

    def _begin(self, key: str, event: BeginEvent) -> None:
        before = self._runs.get(key)
        if before is None:
            number = self._reused + len(self._runs) + 1
        else:
            number = before.number
            self._remove(before)
        title = f"{number}/{self.runs} {printable(event.who)}"
        bar = self._bars.add_task(title, total=event.rounds, count="", scores="", left="")
        self._runs[key] = RunStatus(number, title, bar, event, self._get_time)
        if event.done:
            self._print(f"{title}  goes on from round {event.done}")
        self._update(self._runs[key])

    def _move(self, key: str, event: AnyEvent) -> None:
        status = self._runs[key]
        if isinstance(event, ProgressEvent):
            status.progress = event
        elif isinstance(event, EvaluatedEvent):
            status.record = event.model_dump(include={"environments", "select"})
            if event.ended:
                self.note(f"{status.title}  {status.end_stage(event.position)} ended early {printable(event.ended)}")
        elif isinstance(event, FailedEvent):
            self.fail(key, event.why)
        elif isinstance(event, EndEvent):
            self._remove(status)
            took = f"done: {status.progress.steps} steps in {clock(status.seconds)}"
            self._print(f"{status.title}  {took}  {scores_text(status.record)}" if status.record else "")
        self._update(status)

    def _remove(self, status: RunStatus) -> None:
        if status.under_way:
            status.under_way = False
            self._bars.remove_task(status.bar)

    def _update(self, status: RunStatus) -> None:
        if status.under_way:
            done, rounds = status.progress.position, status.rounds
            means = {role: mean_score(status.record, role) for role in ROLES} if status.record else {}
            scores = " ".join(f"{role} {percent(score)}" for role, score in means.items() if score is not None)
            count, left = f"{done} of {rounds} rounds", _left(status.left)
            completed = done + status.part
            self._bars.update(status.bar, completed=completed, total=rounds, count=count, scores=scores, left=left)
        self._draw("")

    @property
    def under_way(self) -> list[RunStatus]:
        """The runs that have begun, and are neither finished nor given up."""
        return [status for status in list(self._runs.values()) if status.under_way]

    # How it looks -------------------------------------------------------------------------------

    def view(self) -> Group:
        """What a terminal or a notebook shows now."""
        return Group(*self._bars.get_renderables())

    def _below_bars(self) -> Iterable[RenderableType]:
        runs = self.under_way
        if not runs:
            waiting = self._before is None and self._reused + len(self._runs) < self.runs
            return [Text(LOADING)] if waiting else []
        lines: list[RenderableType] = [Text(runs[0].doing), Text(self._pace())]
        if len(runs) == 1 and runs[0].record:
            lines.append(Text(scores_text(runs[0].record)))
        return lines

    def _pace(self) -> str:
        """Steps a second and bytes of the runs under way, and the time that all runs take."""
        runs = self.under_way
        speed = sum(status.progress.steps / status.seconds for status in runs if status.seconds)
        down = sum(status.progress.bytes_down for status in runs)
        up = sum(status.progress.bytes_up for status in runs)
        pace = f"{speed:.3g} steps a second, {bytes_text(down)} down, {bytes_text(up)} up"
        return f"{pace}, all {self.runs} runs: {_left(self.left)}" if self.runs > 1 else pace

    @property
    def left(self) -> float | None:
        """About how many seconds all runs still take: those to come as long as the others so far."""
        runs = list(self._runs.values())
        done = sum(status.share_done for status in runs)
        if done <= 0:
            return None
        to_come = sum(status.share_to_come for status in runs) + self.runs - self._reused - len(runs)
        return (self._get_time() - min(status.began for status in runs)) * to_come / done

    def _print(self, line: str) -> None:
        """Leave a line above the display."""
        if not line:
            return
        if self.notebook:
            self.notebook.leave(line)
            self.notebook.show(self.view())
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _draw(self, line: str) -> None:
        """Draw a notebook's cell anew, or print a line where there is no terminal: this one, or that of all runs."""
        if self.console.is_terminal and not self.notebook:
            return
        now = self._get_time()
        if now - self._drawn < (SECONDS_BETWEEN_DRAWINGS if self.notebook else SECONDS_BETWEEN_LINES):
            return
        self._drawn = now
        if self.notebook:
            self.notebook.show(self.view())
        elif line or self.under_way:
            self._print(line or self._line())

    def _line(self) -> str:
        """How far all runs under way are, and the newest scores."""
        runs = self.under_way
        first = runs[0]
        title = first.title if len(runs) == 1 else f"{len(runs)} of {self.runs} runs together"
        done, rounds = sum(status.progress.position for status in runs), sum(status.rounds for status in runs)
        words = [title, f"{done} of {rounds} rounds", first.doing, self._pace(), _left(first.left)]
        return "  ".join([*words, *([scores_text(first.record)] if first.record else [])])


class _Bars(ProgressBars):
    """A line with a bar for each run, and lines below."""

    def __init__(self, below: Callable[[], Iterable[RenderableType]], *columns: ProgressColumn, **options: Any) -> None:
        self._below = below
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, and what is below them."""
        if self.tasks:
            yield self.make_tasks_table(self.tasks)
        yield from self._below()


class RunStatus:
    """How far a run is, from its events.

    Attributes:
        number: which of the runs it is.
        title: what the display calls it.
        bar: its bar.
        rounds: all its rounds.
        began: when it began or went on, in seconds since 1970.
        progress: the newest event of progress.
        record: the last evaluation; None before the first.
        under_way: whether it is neither finished nor given up.
    """

    def __init__(self, number: int, title: str, bar: TaskID, event: BeginEvent, get_time: Callable[[], float]) -> None:
        self.number, self.title, self.bar = number, title, bar
        self.rounds, self.began = event.rounds, event.seconds_since_1970
        self.progress = ProgressEvent(when=event.when, who=event.who, position=event.done)
        self.record: Record | None = None
        self.under_way = True
        self._get_time = get_time
        self._stages = [(printable(each.name), each.rounds, each.steps) for each in event.stages]
        self._work_before = self._work(event.done)

    @property
    def seconds(self) -> float:
        """Since it began or went on."""
        return max(self._get_time() - self.began, 0.0)

    @property
    def part(self) -> float:
        """How much of the round under way is done, in 0..1."""
        now = self.progress
        if not now.under_way:
            return 0.0
        _, _, planned = self._stage(now.position)
        done, of = now.of_round, planned
        if not planned and now.task:
            done, of = now.task.answered, now.task.clients
        return min(max(done / of, 0.0), 1.0) if of else 0.0

    @property
    def share_done(self) -> float:
        """The share of all planned steps that were taken since it began or went on."""
        return (self._work(self.progress.position + self.part) - self._work_before) / (self._work(self.rounds) or 1)

    @property
    def share_to_come(self) -> float:
        """The share of all planned steps that are left."""
        return 1 - self._work(self.progress.position + self.part) / (self._work(self.rounds) or 1)

    @property
    def left(self) -> float | None:
        """About how many seconds it still takes, at its pace so far; None before anything is done."""
        return self.seconds * self.share_to_come / self.share_done if self.share_done > 0 else None

    @property
    def doing(self) -> str:
        """Stage, round and exchange under way."""
        now = self.progress
        if not now.stage:
            return "loading"
        name, rounds, _ = self._stage(now.position if now.under_way else now.position - 1)
        if not now.under_way:
            return f"{name}, {now.round} of {rounds} rounds done: scoring and saving"
        task, place = now.task, f"{name}, round {now.round} of {rounds}"
        if task is None:
            return f"{place}: preparing"
        exchange = "" if task.exchange == now.stage else f" ({printable(task.exchange)})"
        clients = "1 client" if task.clients == 1 else f"{task.clients} clients" if task.clients else "server"
        done = f"step {task.done} of {task.steps}" if task.steps else f"{task.answered} done"
        return f"{place}{exchange}: {clients}, {done}"

    def end_stage(self, position: int) -> str:
        """Plan no more rounds of the stage that ended after so many rounds of the run; its name."""
        before = 0
        for place, (name, rounds, steps) in enumerate(self._stages):
            if position <= before + rounds:
                self._stages[place] = (name, position - before, steps)
                self.rounds -= before + rounds - position
                return name
            before += rounds
        return ""

    def _stage(self, position: int) -> tuple[str, int, float]:
        """Name, rounds and planned steps of the stage that comes after so many rounds; the last one after all."""
        for stage in self._stages:
            if position < stage[1]:
                return stage
            position -= stage[1]
        return self._stages[-1]

    def _work(self, position: float) -> float:
        """The planned steps of so many rounds; a round of which nothing is known counts 1."""
        work = 0.0
        for _, rounds, steps in self._stages:
            work += min(max(position, 0.0), rounds) * (steps or 1)
            position -= rounds
        return work


def site_line(event: SiteEvent) -> str:
    """An event of a site in one line: 2026-11-22T06:52:43Z  berlin  answered train/3 in 4.2 s, 45 kB up."""
    exchange = f" ({event.exchange})" * (event.exchange not in ("", event.stage))
    place = f" {event.stage}/{event.round}{exchange}" * bool(event.stage)
    took = "" if event.seconds is None else f" in {event.seconds:.1f} s"
    sent = [f", {bytes_text(size)} {way}" for size, way in ((event.bytes_down, "down"), (event.bytes_up, "up")) if size]
    why = f": {event.why}" * bool(event.why)
    when = event.when.partition(".")[0].removesuffix("Z") + "Z"
    return printable(f"{when}  {event.who}  {event.what}{place}{took}{''.join(sent)}{why}")


def scores_text(record: Record) -> str:
    """The score on each environment, after the metric's name where that is not accuracy.

    Where the environments are many, it is each role's mean and worst.
    """
    metric = selects(record)
    rows = [(printable(row["environment"]), row["role"], value_of(row, metric.name)) for row in over_clients(record)]
    if len(rows) > MOST_SHOWN:
        few: list[tuple[str, str, float | None]] = []
        for role in ROLES:
            scores = {name: score for name, own, score in rows if own == role and score is not None}
            if scores:
                worst = min(scores, key=lambda name: metric.merit(scores[name]))
                few += [("mean", role, mean(scores.values())), (f"worst ({worst})", role, scores[worst])]
        rows = few
    title = "" if metric.name == ACCURACY else f"{metric.title}{metric.remark}:"
    return "  ".join(filter(None, [title, *(f"{name} {role} {percent(score)}" for name, role, score in rows)]))


def percent(score: float | None) -> str:
    """A score in %; a dash where it is undefined."""
    return "–" if score is None else f"{100 * score:.1f}"


def _left(seconds: float | None) -> str:
    return f"{'?' if seconds is None else clock(seconds)} left"


def display(progress: Progress | None, runs: int) -> AbstractContextManager[Progress]:
    """What receives the progress of so many runs: the given callback, or a live display."""
    return nullcontext(progress) if progress else LiveProgress(runs)
