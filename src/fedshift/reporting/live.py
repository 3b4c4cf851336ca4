"""A live display of runs in a terminal, and plain lines elsewhere.

One run under way is shown with the accuracy on each environment. Several that advance together get a line each and
share one line of what the machine does for all of them: it has no pace of one run alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedshift.reporting.units import bytes_text, clock
from fedshift.runs.folder import Record
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.selection import by_environment

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.2
LOADING = "Loading data and building the model..."
MOST_SHOWN = 14  # environments one by one; of more than that, the mean and the worst
MOST_RUNS = 12  # runs one by one
LINES_BESIDE_RUNS = 5  # headings, "and 6 more", the common line, what is being loaded, and the cursor's line
ROOM_BESIDE_NAMES = 54  # columns that a line of a run has besides its name, some for the bar
MOST_SHORTENED = 8  # columns that a name keeps in the narrowest terminal
ROLES = ("test", "validation")


class Shown(NamedTuple):
    """A line of the display: accuracy in 0..1 and loss, the means over clients."""

    environment: str
    role: str
    model: str
    accuracy: float
    loss: float


class LiveProgress(Progress):
    """Round, accuracies, bytes, steps a second and time left of the runs under way."""

    def __init__(self, runs: int, console: Console | None = None) -> None:
        """Prepare to show ``runs`` runs, on standard error unless a console is given."""
        self.console = console or Console(stderr=True)
        self._runs, self._number = runs, 0
        self._under_way: list[LiveRun] = []
        self._steps, self._since = 0, 0.0  # of all runs since none was under way
        self._embedding: str | None = None
        self._note: str | None = None
        self._live: Live | None = None
        self._drawn = 0.0
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    # What is told -------------------------------------------------------------------------------

    def embedded(self, network: str, done: int, total: int) -> None:
        """Show how many images are embedded; where there is no terminal, as a line now and then."""
        line = f"Embedding images with {network}: {done} of {total}"
        self._embedding = line if done < total else None
        self._draw()
        if not self._live and self._is_time_for_a_line():
            self.print(line)

    def note(self, text: str) -> None:
        """Leave a line, unless it is the last note again."""
        if text != self._note:
            self._note = text
            self.print(text)

    def begin(self, outlook: Outlook) -> LiveRun:
        """Show a new run."""
        self._number += 1
        now = time.monotonic()
        if not self._steps:  # what is loaded between the beginnings of runs is no part of their pace
            self._since = self._shown = now
        run = LiveRun(self, f"{self._number} of {self._runs}: {outlook.name}", self._number, outlook, now)
        self._under_way.append(run)
        for other in self._under_way:
            other.together = max(other.together, len(self._under_way))
        if outlook.done:
            self.print(f"{outlook.name}: goes on from round {outlook.done}")
        self._draw()
        return run

    def reused(self, name: str) -> None:
        """Say that a finished run is not repeated."""
        self._number += 1
        self.print(f"[{self._number} of {self._runs}] {name}  finished before")

    # What runs tell on --------------------------------------------------------------------------

    def stepped(self, count: int) -> None:
        """Count steps of any run; long work between evaluations shows that it goes on."""
        self._steps += count
        self.moved()
        if len(self._under_way) > 1 or not all(run.record for run in self._under_way):
            self._line_now_and_then()

    def moved(self) -> None:
        """Draw anew, if it is not too soon."""
        if time.monotonic() - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._draw()

    def scored(self) -> None:
        """Show new accuracies; where there is no terminal, as a line now and then."""
        if len(self._under_way) > 1:
            self.moved()
        else:
            self._draw()
            if self._live:
                self._live.refresh()
        self._line_now_and_then()

    def leave(self, run: LiveRun, line: str) -> None:
        """Show a run no more, but for a line if there is one."""
        self._under_way.remove(run)
        if not self._under_way:
            self._steps = 0
        if line:
            self.print(line)
        self._draw()

    def pace(self) -> float:
        """Steps a second of all runs, since none was under way."""
        return self._steps / max(time.monotonic() - self._since, 1e-9)

    def print(self, line: str) -> None:
        """Leave a line above the display."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    # How it looks -------------------------------------------------------------------------------

    def _is_time_for_a_line(self) -> bool:
        due = time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES
        if due:
            self._shown = time.monotonic()
        return due

    def _line_now_and_then(self) -> None:
        """Without a terminal, a line of all that is under way; none when only the last line is still to come."""
        runs = self._under_way
        if self._live or all(run.position == run.outlook.rounds for run in runs) or not self._is_time_for_a_line():
            return
        if len(runs) == 1:
            words = [runs[0].title, self._one(runs[0]), runs[0].accuracies()]
        else:
            position, rounds = sum(run.position for run in runs), sum(run.outlook.rounds for run in runs)
            words = [self._all(), f"{position} of {rounds} rounds", *ranges(runs)]
        self.print("  ".join(word for word in words if word))

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._live:
            self._live.update(self.view())

    def view(self) -> Group:
        """What a terminal shows now."""
        shown: list[RenderableType] = []
        if len(self._under_way) == 1:
            shown = self._alone(self._under_way[0])
        elif self._under_way:
            shown = self._together()
        if self._embedding:
            shown.append(Text(self._embedding))
        elif not shown and self._number < self._runs:
            shown.append(Text(LOADING))
        return Group(*shown)

    def _alone(self, run: LiveRun) -> list[RenderableType]:
        """The bar of one run, what it does, and its accuracies."""
        bar = Table.grid(padding=(0, 1))
        bar.add_row(Text(run.title, style="bold"), run.bar(), f"round {run.position} of {run.outlook.rounds}")
        return [bar, Text(f"  {self._one(run)}"), *([accuracy_table(run.record)] if run.record else [])]

    def _together(self) -> list[RenderableType]:
        """A line for each run with its mean accuracies, as many as there is room for, and what all do."""
        most = max(1, min(MOST_RUNS, self.console.height - LINES_BESIDE_RUNS))
        runs = self._under_way[:most]
        room = max(MOST_SHORTENED, self.console.width - ROOM_BESIDE_NAMES)
        table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
        table.add_column("", justify="right", style="bold", no_wrap=True)
        table.add_column("run", style="bold", no_wrap=True, max_width=room)
        table.add_column("", ratio=1)
        table.add_column("round", justify="right", no_wrap=True)
        for role in ROLES:
            table.add_column(f"{role} %", justify="right", style="cyan", no_wrap=True)
        for run in runs:
            means = [run.mean(role) for role in ROLES]
            cells = [f"{100 * accuracy:.1f}" if accuracy is not None else "" for accuracy in means]
            place = f"{run.position} of {run.outlook.rounds}"
            table.add_row(str(run.number), escape(run.outlook.name), run.bar(), place, *cells)
        shown: list[RenderableType] = [table]
        if others := self._under_way[most:]:
            shown.append(Text("  ".join((f"    and {len(others)} more", *ranges(others)))))
        return [*shown, Text(self._all())]

    def _one(self, run: LiveRun) -> str:
        """What a run that is alone does."""
        return f"round {run.position} of {run.outlook.rounds}, {self.pace():.0f} steps a second, {traffic([run])}"

    def _all(self) -> str:
        """What the runs under way do, all of them."""
        runs = self._under_way
        return f"{len(runs)} of {self._runs} runs together: {self.pace():.0f} steps a second, {traffic(runs)}"


class LiveRun(RunProgress):
    """One run of a live display.

    Attributes:
        title: its number and name.
        number: which run of the display it is, in the order of their beginnings, from 1.
        outlook: what it will do.
        position: rounds done.
        sent: bytes sent to clients and by clients.
        record: its last evaluation, or None before the first.
        together: how many runs were under way at once, at most, since it began; it counts as one.
    """

    def __init__(self, display: LiveProgress, title: str, number: int, outlook: Outlook, started: float) -> None:
        """Begin at ``started``, in seconds of the monotonic clock."""
        self.title, self.number, self.outlook = title, number, outlook
        self.position, self.sent, self.together = outlook.done, (0, 0), 1
        self.record: Record | None = None
        self._display, self._started, self._steps = display, started, 0

    def steps(self, count: int) -> None:
        """Count steps."""
        self._steps += count
        self._display.stepped(count)

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """Move on by a round."""
        self.position, self.sent = position, (bytes_down, bytes_up)
        self._display.moved()

    def evaluated(self, record: Record) -> None:
        """Take new accuracies."""
        self.record = record
        self._display.scored()

    def end(self) -> None:
        """Leave a line of the finished run, if it was ever scored."""
        done = f"{self.title}  done in {clock(self._elapsed())}"
        if self.together == 1:
            done += f", {self._steps / self._elapsed():.0f} steps a second"
        else:
            done += f"{self._company()}, {self._display.pace():.0f} steps a second in all"
        self._display.leave(self, f"{done}  {self.accuracies()}" if self.record else "")

    def failed(self, reason: str) -> None:
        """Leave a line of the run that is given up."""
        place = f"round {self.position} of {self.outlook.rounds}"
        after = f"{clock(self._elapsed())}{self._company()}"
        self._display.leave(self, f"{self.title}  failed after {place}, {after}: {reason}")

    def left(self) -> float | None:
        """Seconds until its end, if its rounds go on as they have since it began; None while there is none to go by."""
        done, rounds = self.position - self.outlook.done, self.outlook.rounds - self.position
        return self._elapsed() / done * rounds if done else None if rounds else 0.0

    def mean(self, role: str) -> float | None:
        """Mean accuracy over the environments of a role; None where there is none."""
        accuracies = by_environment(self.record, role).values() if self.record else ()
        return mean(accuracies) if accuracies else None

    def accuracies(self) -> str:
        """The accuracy on each environment, in words."""
        rows = shown(self.record) if self.record else []
        return "  ".join(f"{row.environment} {row.role} {100 * row.accuracy:.1f}" for row in rows)

    def bar(self) -> ProgressBar:
        """How far it is."""
        return ProgressBar(total=self.outlook.rounds, completed=self.position)

    def _elapsed(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    def _company(self) -> str:
        """Who else took from the time it took."""
        if self.together == 1:
            return ""
        return " with 1 other" if self.together == 2 else f" with {self.together - 1} others"


def traffic(runs: Sequence[LiveRun]) -> str:
    """Bytes of runs so far, and the time until the last of them ends."""
    down, up = (bytes_text(sum(run.sent[way] for run in runs)) for way in (0, 1))
    left = [run.left() for run in runs]
    known = [seconds for seconds in left if seconds is not None]
    return f"{down} down, {up} up, {clock(max(known)) if len(known) == len(left) else '?'} left"


def ranges(runs: Sequence[LiveRun]) -> list[str]:
    """The smallest and largest mean accuracy of any run, for each role that was scored."""
    words = []
    for role in ROLES:
        means = [accuracy for run in runs if (accuracy := run.mean(role)) is not None]
        low, high = (f"{100 * value:.1f}" for value in (min(means, default=0.0), max(means, default=0.0)))
        if means:
            words.append(f"{role} {low}" if low == high else f"{role} {low} to {high}")
    return words


def accuracy_table(record: Record) -> Table:
    """The accuracies and losses of one evaluation."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("environment", "scored for", "model", "accuracy %", "loss"):
        table.add_column(column, justify="right" if column in ("accuracy %", "loss") else "left", style="cyan")
    for row in shown(record):
        values = f"{100 * row.accuracy:.1f}", f"{row.loss:.3f}"
        table.add_row(escape(row.environment), row.role, row.model, *values)
    return table


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
