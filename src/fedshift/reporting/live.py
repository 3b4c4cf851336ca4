"""A live display of the runs in progress: in a terminal, in a notebook's cell, and as plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from io import StringIO
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars
from rich.table import Column
from rich.text import Text

from fedshift.reporting.run_status import ROLES, RunStatus, left_text, percent, scores_text, site_line
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
from fedshift.runs.selection import mean_score
from fedshift.written import bytes_text, clock, printable

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.5  # of a notebook's cell
LOADING = "Loading data and building the model..."
BESIDE_NAMES = 80  # columns of a line that are no title
NOTEBOOK_WIDTH = 110  # columns
FORMAT = '<pre style="font-family: monospace; line-height: 1.3; white-space: pre-wrap; margin: 0">{code}</pre>'


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter's, Colab's or an editor's."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


class NotebookOutput:
    """Lines that stay and a view below them, in one output of a cell, which is drawn in place."""

    def __init__(self) -> None:
        options: dict[str, Any] = {"force_terminal": True, "force_jupyter": False, "record": True}
        self.console = Console(file=StringIO(), width=NOTEBOOK_WIDTH, **options)
        self.lines: list[str] = []
        self._handle: Any = None

    def show(self, view: RenderableType) -> None:
        """Draw the lines and a view in the place of what was drawn before."""
        for line in self.lines:
            self.console.print(Text(line), soft_wrap=True)
        self.console.print(view)
        html = self.console.export_html(code_format=FORMAT, inline_styles=True, clear=False)
        data = {"text/html": html, "text/plain": self.console.export_text()}
        self.console.file = StringIO()  # which would grow
        if self._handle is None:
            self._handle = import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class LiveProgress(Progress):
    """Shows the events of runs: how far each is, its scores and the time left, and that of all runs.

    Attributes:
        runs: how many runs there will be.
    """

    def __init__(self, runs: int, console: Console | None = None, get_time: Callable[[], float] = time.time) -> None:
        """Show runs in a notebook's cell, or else on standard error unless a console is given."""
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
        self._bars = ProgressBars(
            TextColumn("{task.description}", style="bold", markup=False, table_column=title),
            BarColumn(20 if self.console.width >= 100 else 6),
            *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "scores", "left")),
        )
        self._serve_jobs = Live(console=self.console, transient=True, get_renderable=self.view)

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.notebook:
            self._serve_jobs.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._serve_jobs.stop()
        if self.notebook:
            self.notebook.show(Group())

    # What happens -------------------------------------------------------------------------------

    def embedded(self, network: str, done: int, total: int) -> None:
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
        self._draw(lambda: f"{what}: {count}")

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
        status = self._runs.get(run)
        if isinstance(event, NoteEvent):
            self.note(printable(event.text))
        elif isinstance(event, SiteEvent):
            self._print(site_line(event))
        elif isinstance(event, BeginEvent):
            self._begin(run, event)
        elif status:
            if isinstance(event, ProgressEvent):
                status.progress = event
            elif isinstance(event, EvaluatedEvent):
                status.record = event.model_dump(include={"environments", "select"})
                if event.ended:
                    stage = status.end_stage(event.position)
                    self.note(f"{status.title}  {stage} ended early {printable(event.ended)}")
            elif isinstance(event, FailedEvent):
                place = f"round {status.progress.position} of {status.rounds}, {clock(status.seconds)}"
                self._end(status, f"given up after {place}: {printable(event.why)}")
            elif isinstance(event, EndEvent):
                took = f"done: {status.progress.steps} steps in {clock(status.seconds)}"
                self._end(status, f"{took}  {scores_text(status.record)}" if status.record else "")
            self._update(status)

    # Runs ---------------------------------------------------------------------------------------

    def _begin(self, run: str, event: BeginEvent) -> None:
        before = self._runs.get(run)
        number = before.number if before else self._reused + len(self._runs) + 1
        if before:
            self._end(before, "")
        title = f"{number}/{self.runs} {printable(event.who)}"
        bar = self._bars.add_task(title, total=event.rounds, count="", scores="", left="")
        self._runs[run] = RunStatus(number, title, bar, event, self._get_time)
        if event.done:
            self._print(f"{title}  continues from round {event.done}")
        self._update(self._runs[run])

    def _end(self, status: RunStatus, line: str) -> None:
        if status.under_way:
            status.under_way = False
            self._bars.remove_task(status.bar)
        if line:
            self._print(f"{status.title}  {line}")

    def _update(self, status: RunStatus) -> None:
        if status.under_way:
            means = {role: mean_score(status.record, role) for role in ROLES} if status.record else {}
            self._bars.update(
                status.bar,
                completed=status.place,
                total=status.rounds,
                count=f"{status.progress.position} of {status.rounds} rounds",
                scores=" ".join(f"{role} {percent(score)}" for role, score in means.items() if score is not None),
                left=left_text(status.left),
            )
        self._draw(self._line)

    # How it looks -------------------------------------------------------------------------------

    def view(self) -> Group:
        """What a terminal or a notebook shows now: a line with a bar for each run, and lines below."""
        lines: list[RenderableType] = [self._bars.make_tasks_table(self._bars.tasks)] if self._bars.tasks else []
        if runs := self._under_way():
            lines += [Text(runs[0].doing), Text(self._pace())]
            if len(runs) == 1 and runs[0].record:
                lines.append(Text(scores_text(runs[0].record)))
        elif self._before is None and self._reused + len(self._runs) < self.runs:
            lines.append(Text(LOADING))
        return Group(*lines)

    def _under_way(self) -> list[RunStatus]:
        return [status for status in list(self._runs.values()) if status.under_way]

    def _pace(self) -> str:
        """Steps a second and bytes of the runs in progress, and the time that all runs take."""
        runs = self._under_way()
        speed = sum(status.progress.steps / status.seconds for status in runs if status.seconds)
        down = sum(status.progress.bytes_down for status in runs)
        up = sum(status.progress.bytes_up for status in runs)
        pace = f"{speed:.3g} steps a second, {bytes_text(down)} down, {bytes_text(up)} up"
        return f"{pace}, all {self.runs} runs: {left_text(self._seconds_left())}" if self.runs > 1 else pace

    def _seconds_left(self) -> float | None:
        """About how many seconds all runs still take: those to come as long as the others so far."""
        runs = list(self._runs.values())
        done = sum(status.done for status in runs)
        if done <= 0:
            return None
        upcoming = sum(status.upcoming for status in runs) + self.runs - self._reused - len(runs)
        return (self._get_time() - min(status.began for status in runs)) * upcoming / done

    def _print(self, line: str) -> None:
        if self.notebook:
            self.notebook.lines.append(line)
            self.notebook.show(self.view())
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _draw(self, line: Callable[[], str]) -> None:
        """Draw a notebook's cell again, or print a line where there is no terminal; not too often."""
        now = self._get_time()
        every = SECONDS_BETWEEN_DRAWINGS if self.notebook else SECONDS_BETWEEN_LINES
        if now - self._drawn < every or (self.console.is_terminal and not self.notebook):
            return
        self._drawn = now
        if self.notebook:
            self.notebook.show(self.view())
        elif text := line():
            self._print(text)

    def _line(self) -> str:
        """How far all runs in progress are, and the newest scores."""
        runs = self._under_way()
        if not runs:
            return ""
        first = runs[0]
        title = first.title if len(runs) == 1 else f"{len(runs)} of {self.runs} runs together"
        done, rounds = sum(status.progress.position for status in runs), sum(status.rounds for status in runs)
        scores = [scores_text(first.record)] if first.record else []
        return "  ".join(
            [title, f"{done} of {rounds} rounds", first.doing, self._pace(), left_text(first.left), *scores]
        )


def display(progress: Progress | None, runs: int) -> AbstractContextManager[Progress]:
    """The receiver of the runs' progress: the given callback, or a live display."""
    return nullcontext(progress) if progress else LiveProgress(runs)
