"""A live display of runs in a terminal, and plain lines elsewhere."""

from __future__ import annotations

import time
from statistics import mean
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fedshift.reporting.units import bytes_text, clock
from fedshift.runs import progress
from fedshift.runs.folder import Record
from fedshift.runs.progress import Outlook

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.2
LOADING = "Loading data and building the model..."
MOST_SHOWN = 14  # environments one by one; of more than that, the mean and the worst


class Shown(NamedTuple):
    """A line of the display: accuracy in 0..1 and loss, the means over clients."""

    environment: str
    role: str
    model: str
    accuracy: float
    loss: float


class LiveProgress(progress.Progress):
    """Round, accuracy of each client, bytes, steps a second and time left."""

    def __init__(self, runs: int, console: Console | None = None) -> None:
        """Prepare to show ``runs`` runs, on standard error unless a console is given."""
        self.console = console or Console(stderr=True)
        self._runs, self._number = runs, 0
        self._outlook: Outlook | None = None
        self._record: Record | None = None
        self._live: Live | None = None
        self._drawn = 0.0
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
            self._live.update(LOADING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def embedded(self, network: str, done: int, total: int) -> None:
        """Show how many images are embedded; where there is no terminal, as a line now and then."""
        line = f"Embedding images with {network}: {done} of {total}"
        if self._live:
            self._live.update(Text(line if done < total else LOADING))
        elif time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES:
            self._shown = time.monotonic()
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def begin(self, outlook: Outlook) -> None:
        """Show a new run."""
        self._number += 1
        self._outlook, self._record = outlook, None
        self._started = self._shown = time.monotonic()
        self._steps, self._position, self._bytes = 0, outlook.done, (0, 0)
        bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("round {task.completed} of {task.total}"),
            console=self.console,
        )
        self._bar, self._task = bar, bar.add_task(escape(self._title()), total=outlook.rounds, completed=outlook.done)
        if outlook.done:
            self.console.print(f"{outlook.name}: goes on from round {outlook.done}", highlight=False, markup=False)
        self._draw()

    def steps(self, count: int) -> None:
        """Count steps; long work between evaluations shows that it goes on."""
        self._steps += count
        if self._live and time.monotonic() - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._draw()
        elif not self._live and self._record is None and self._is_time_for_a_line():
            self._shown = time.monotonic()
            self.console.print(f"{self._title()}  {self._line()}", highlight=False, soft_wrap=True)

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """Move on by a round."""
        self._position, self._bytes = position, (bytes_down, bytes_up)
        self._bar.update(self._task, completed=position)
        if time.monotonic() - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._draw()

    def evaluated(self, record: Record) -> None:
        """Show new accuracies; where there is no terminal, as a line now and then."""
        self._record = record
        self._draw()
        if self._live:
            self._live.refresh()
        elif self._is_time_for_a_line():
            self._shown = time.monotonic()
            self.console.print(
                f"{self._title()}  {self._line()}  {self._accuracies()}", highlight=False, soft_wrap=True
            )

    def end(self) -> None:
        """Leave a line of the finished run."""
        if self._outlook is None or self._record is None:
            return
        pace = f"done in {clock(self._elapsed())}, {self._steps / self._elapsed():.0f} steps a second"
        self.console.print(
            f"{self._title()}  {pace}  {self._accuracies()}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        if self._live and self._number < self._runs:
            self._live.update(LOADING)

    def reused(self, name: str) -> None:
        """Say that a finished run is not repeated."""
        self._number += 1
        self.console.print(f"[{self._number} of {self._runs}] {name}  finished before", highlight=False, markup=False)

    def _title(self) -> str:
        name = self._outlook.name if self._outlook else ""
        return f"{self._number} of {self._runs}: {name}"

    def _elapsed(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    def _is_time_for_a_line(self) -> bool:
        last = self._outlook is not None and self._position == self._outlook.rounds
        return not last and time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES

    def _line(self) -> str:
        outlook = self._outlook
        if outlook is None:
            return ""
        done = self._position - outlook.done
        left = clock(self._elapsed() / done * (outlook.rounds - self._position)) if done else "?"
        down, up = (bytes_text(count) for count in self._bytes)
        return (
            f"round {self._position} of {outlook.rounds}, {self._steps / self._elapsed():.0f} steps a second, "
            f"{down} down, {up} up, {left} left"
        )

    def _accuracies(self) -> str:
        rows = shown(self._record) if self._record else []
        return "  ".join(f"{row.environment} {row.role} {100 * row.accuracy:.1f}" for row in rows)

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if not self._live:
            return
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("environment", "scored for", "model", "accuracy %", "loss"):
            table.add_column(column, justify="right" if column in ("accuracy %", "loss") else "left", style="cyan")
        for row in shown(self._record) if self._record else []:
            values = f"{100 * row.accuracy:.1f}", f"{row.loss:.3f}"
            table.add_row(escape(row.environment), row.role, row.model, *values)
        self._live.update(Group(self._bar, Text(f"  {self._line()}"), table if self._record else ""))


def shown(record: Record) -> list[Shown]:
    """A line for each environment and role; where these are many, each role's mean and worst."""
    clients: dict[tuple[str, str, str], list[Record]] = {}
    for row in record["environments"]:
        clients.setdefault((row["environment"], row["role"], row["model"]), []).append(row)
    lines = [
        Shown(*key, mean(row["accuracy"] for row in rows), mean(row["loss"] for row in rows))
        for key, rows in clients.items()
    ]
    if len(lines) <= MOST_SHOWN:
        return lines
    by_role: dict[tuple[str, str], list[Shown]] = {}
    for line in lines:
        by_role.setdefault((line.role, line.model), []).append(line)
    few = []
    for (role, model), held in by_role.items():
        worst = min(held, key=lambda line: line.accuracy)
        middle = mean(line.accuracy for line in held), mean(line.loss for line in held)
        few += [Shown("mean", role, model, *middle), worst._replace(environment=f"worst ({worst.environment})")]
    return few
