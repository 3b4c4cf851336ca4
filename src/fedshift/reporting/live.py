"""A live display of the runs under way in a terminal, and plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import mean
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text

from fedshift.reporting.units import bytes_text, clock
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.records import Record
from fedshift.runs.selection import by_environment

SECONDS_BETWEEN_LINES = 10.0
LOADING = "Loading data and building the model..."
MOST_SHOWN = 14  # environments one by one; of more than that, the mean and the worst
MOST_RUNS = 12  # runs with a bar
BESIDE_BARS = 3  # lines
BESIDE_NAMES = 52  # columns of a line, without its bar
ROLES = ("test", "validation")


class LiveProgress(Progress):
    """Rounds, accuracies, bytes, steps a second and time left of the runs under way."""

    def __init__(
        self, runs: int, console: Console | None = None, get_time: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare to show ``runs`` runs, on standard error unless a console is given."""
        self.console = console or Console(stderr=True)
        bar = 20 if self.console.width >= 100 else 6
        room = max(8, self.console.width - bar - BESIDE_NAMES)
        name = Column(no_wrap=True, overflow="ellipsis", max_width=room)
        self.bars = Bars(
            TextColumn("{task.description}", style="bold", markup=False, table_column=name),
            BarColumn(bar),
            TextColumn("{task.fields[unit]} {task.completed:.0f} of {task.total:.0f}"),
            TextColumn("{task.fields[scores]}", style="cyan"),
            TimeRemainingColumn(),
            get_time=get_time,
            speed_estimate_period=float("inf"),  # a round may take minutes
        )
        self._runs, self._number, self._under_way = runs, 0, list[LiveRun]()
        self._steps = self.bar("", "step", None)  # of all runs
        self._embedding: Task | None = None
        self._newest: LiveRun | None = None  # whose scores are the newest
        self._note: str | None = None
        self._get_time, self._shown = get_time, get_time()
        self._live = Live(get_renderable=self.view, console=self.console, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    # What is heard ------------------------------------------------------------------------------

    def embedded(self, network: str, done: int, total: int) -> None:
        """Show how many images are embedded."""
        text = f"Embedding images with {network}"
        if not self._embedding:
            self._embedding = self.bar(text, "image", total)
        self.bars.update(self._embedding.id, completed=done)
        if done == total:
            self.bars.remove_task(self._embedding.id)
            self._embedding = None
        self._line_now_and_then(f"{text}: {done} of {total}")

    def note(self, text: str) -> None:
        """Leave a line, unless it is the last note again."""
        if text != self._note:
            self._note = text
            self.print(text)

    def reused(self, name: str) -> None:
        """Say that a finished run is not repeated."""
        self._number += 1
        self.print(f"{self._number}/{self._runs} {name}  finished before")

    def begin(self, outlook: Outlook) -> LiveRun:
        """Show a new run."""
        self._number += 1
        if not self._under_way:
            self._shown = self._get_time()
            self.bars.reset(self._steps.id)  # what is loaded between runs is no part of their pace
        title = f"{self._number}/{self._runs} {outlook.name}"
        run = LiveRun(self, self.bar(title, "round", outlook.rounds, outlook.done))
        self._under_way.append(run)
        self._fit()
        if outlook.done:
            self.print(f"{title}  goes on from round {outlook.done}")
        return run

    def stepped(self, count: int) -> None:
        """Count steps of any run."""
        self.bars.advance(self._steps.id, count)
        self._line_now_and_then()

    def scored(self, run: LiveRun) -> None:
        """Show new accuracies."""
        self._newest = run
        self._line_now_and_then()

    def leave(self, run: LiveRun, line: str) -> None:
        """Show a run no more, but for a line if there is any."""
        self._under_way.remove(run)
        self.bars.remove_task(run.task.id)
        self._fit()
        if line:
            self.print(line)

    # How it looks -------------------------------------------------------------------------------

    def bar(self, title: str, unit: str, total: int | None, done: int = 0) -> Task:
        """A new bar, shown if it is known how long it is."""
        self.bars.add_task(title, total=total, completed=done, visible=total is not None, unit=unit, scores="")
        return self.bars.tasks[-1]

    def print(self, line: str) -> None:
        """Leave a line above the display."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def view(self) -> Group:
        """What a terminal shows now."""
        shown: list[RenderableType] = [self.bars]
        if runs := list(self._under_way):  # it may change meanwhile, as a thread draws
            hidden = sum(not run.task.visible for run in runs)
            shown.append(Text(self._pace() + (f", and {hidden} more" if hidden else "")))
            if len(runs) == 1 and runs[0].record:
                shown.append(accuracy_table(runs[0].record))
        elif not self._embedding and self._number < self._runs:
            shown = [Text(LOADING)]
        return Group(*shown)

    def _fit(self) -> None:
        """Show as many bars as there is room for."""
        most = max(1, min(MOST_RUNS, self.console.height - BESIDE_BARS))
        for index, run in enumerate(self._under_way):
            self.bars.update(run.task.id, visible=index < most)

    def _pace(self) -> str:
        """Steps a second and bytes of the runs under way."""
        down, up = (bytes_text(sum(run.sent[way] for run in self._under_way)) for way in (0, 1))
        speed = self._steps.speed
        return f"{'?' if speed is None else f'{speed:.0f}'} steps a second, {down} down, {up} up"

    def _line_now_and_then(self, line: str = "") -> None:
        """Without a terminal, this line or that of all runs; none when only their last lines are still to come."""
        now, runs = self._get_time(), self._under_way
        idle = not line and all(run.task.finished for run in runs)
        if self.console.is_terminal or idle or now - self._shown < SECONDS_BETWEEN_LINES:
            return
        self._shown = now
        self.print(line or self._line(runs))

    def _line(self, runs: Sequence[LiveRun]) -> str:
        """Where all runs under way are, and the newest accuracies."""
        done, rounds = sum(run.task.completed for run in runs), sum(run.rounds for run in runs)
        left = [run.task.time_remaining for run in runs]
        known = [seconds for seconds in left if seconds is not None]
        words = [
            runs[0].task.description if len(runs) == 1 else f"{len(runs)} of {self._runs} runs together",
            f"round {done:.0f} of {rounds}",
            f"{self._pace()}, {clock(max(known)) if len(known) == len(left) else '?'} left",
        ]
        for newest in runs:
            if newest is self._newest:
                words += [newest.task.description] * (len(runs) > 1) + [newest.accuracies()]
        return "  ".join(words)


class LiveRun(RunProgress):
    """A run of a live display.

    Attributes:
        task: its bar.
        rounds: all its rounds.
        sent: bytes sent to clients and by clients.
        record: its last evaluation, or None before the first.
    """

    def __init__(self, display: LiveProgress, task: Task) -> None:
        self.task, self.rounds, self.sent = task, int(task.total or 0), (0, 0)
        self.record: Record | None = None
        self._display, self._steps = display, 0

    def steps(self, count: int) -> None:
        """Count steps."""
        self._steps += count
        self._display.stepped(count)

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """Move on by a round."""
        self.sent = bytes_down, bytes_up
        self._display.bars.update(self.task.id, completed=position)

    def evaluated(self, record: Record) -> None:
        """Take new accuracies."""
        self.record = record
        means = {role: by_environment(record, role).values() for role in ROLES}
        scores = " ".join(f"{role} {100 * mean(values):.1f}" for role, values in means.items() if values)
        self._display.bars.update(self.task.id, scores=scores)
        self._display.scored(self)

    def end(self) -> None:
        """Leave a line of the finished run, if it was ever scored."""
        took = f"done: {self._steps} steps in {clock(self.task.elapsed or 0)}"
        self._display.leave(self, f"{self.task.description}  {took}  {self.accuracies()}" if self.record else "")

    def failed(self, reason: str) -> None:
        """Leave a line of the run that is given up."""
        place = f"round {self.task.completed:.0f} of {self.rounds}, {clock(self.task.elapsed or 0)}"
        self._display.leave(self, f"{self.task.description}  failed after {place}: {reason}")

    def accuracies(self) -> str:
        """The accuracy on each environment, in words."""
        rows = shown(self.record) if self.record else []
        return "  ".join(f"{row.environment} {row.role} {100 * row.accuracy:.1f}" for row in rows)


class Shown(NamedTuple):
    """A line of the table: accuracy in 0..1 and loss, the means over clients."""

    environment: str
    role: str
    model: str
    accuracy: float
    loss: float


def accuracy_table(record: Record) -> Table:
    """The accuracies and losses of an evaluation."""
    table = Table("environment", "scored for", "model", box=None, padding=(0, 2, 0, 0))
    for column in ("accuracy %", "loss"):
        table.add_column(column, justify="right", style="cyan")
    for row in shown(record):
        table.add_row(escape(row.environment), row.role, row.model, f"{100 * row.accuracy:.1f}", f"{row.loss:.3f}")
    return table


def shown(record: Record) -> list[Shown]:
    """A line for each environment and role; where these are many, each role's mean and worst."""
    clients: dict[tuple[str, str, str], list[Record]] = {}
    for row in record["environments"]:
        clients.setdefault((row["environment"], row["role"], row["model"]), []).append(row)
    lines = [Shown(*key, *_means([(row["accuracy"], row["loss"]) for row in rows])) for key, rows in clients.items()]
    if len(lines) <= MOST_SHOWN:
        return lines
    by_role: dict[tuple[str, str], list[Shown]] = {}
    for line in lines:
        by_role.setdefault((line.role, line.model), []).append(line)
    few = []
    for (role, model), group in by_role.items():
        worst = min(group, key=lambda line: line.accuracy)
        means = _means([(line.accuracy, line.loss) for line in group])
        few += [Shown("mean", role, model, *means), worst._replace(environment=f"worst ({worst.environment})")]
    return few


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean accuracy and loss."""
    accuracies, losses = zip(*pairs, strict=True)
    return mean(accuracies), mean(losses)
