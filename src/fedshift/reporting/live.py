"""A live display of the runs under way: in a terminal, in a notebook's cell, and as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fedshift.core.contract import Round
from fedshift.core.metrics import ACCURACY
from fedshift.reporting.notebook import NotebookOutput, in_notebook
from fedshift.reporting.units import bytes_text, clock, printable
from fedshift.runs.progress import Outlook, Progress, RunProgress
from fedshift.runs.records import Record
from fedshift.runs.schema import SiteEvent
from fedshift.runs.selection import mean_score, over_clients, selects, value_of
from fedshift.simulation.listener import Task
from fedshift.simulation.plan import PlannedStage

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_UPDATES = 0.5  # of a notebook's cell
LOADING = "Loading data and building the model..."
MOST_SITES = 5  # the newest lines of what sites did
MOST_SHOWN = 14  # environments one by one; of more than that, the mean and the worst
MOST_RUNS = 12  # runs with a bar
BESIDE_BARS = 4  # lines
BESIDE_NAMES = 60  # columns of a line, without its bar
ROLES = ("test", "validation")


class LiveProgress(Progress):
    """What the runs under way do, their scores, bytes, steps a second, and the time left of each and of all.

    Attributes:
        runs: how many runs there are to be.
    """

    def __init__(
        self,
        runs: int,
        console: Console | None = None,
        get_time: Callable[[], float] = time.monotonic,
        notebook: NotebookOutput | None = None,
    ) -> None:
        """Prepare to show ``runs`` runs, in a notebook's cell or else on standard error unless a place is given."""
        self.notebook = notebook or (NotebookOutput() if console is None and in_notebook() else None)
        self.console = console or (self.notebook.console if self.notebook else Console(stderr=True))
        self.get_time = get_time
        self._terminal = self.console.is_terminal and not self.notebook
        self.runs, self._number, self._under_way = runs, 0, list[LiveRun]()
        self._given_up: dict[str, int] = {}  # numbers of runs that failed, by name, which may begin again
        self._embedding: tuple[str, int, int] | None = None
        self._newest: LiveRun | None = None  # whose scores are the newest
        self._note: str | None = None
        self._seconds: list[float] = []  # that a whole run took, each time a run ended
        self._shown = get_time()
        self._live = Live(get_renderable=self.view, console=self.console, transient=True)

    def __enter__(self) -> Self:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self.notebook:
            self.notebook.show(Group())

    # What is heard ------------------------------------------------------------------------------

    def embedded(self, network: str, done: int, total: int) -> None:
        """Show how many images are embedded."""
        self.inspected(f"Embedding images with {network}", done, total)

    def inspected(self, what: str, done: int, total: int) -> None:
        """Show how far a work is that comes before runs."""
        self._embedding = (what, done, total) if done < total else None
        self.update(f"{what}: {done} of {total}")

    def note(self, text: str) -> None:
        """Leave a line, unless it is the last note again."""
        if text != self._note:
            self._note = text
            self.print(text)

    def reused(self, name: str) -> None:
        """Say that a finished run is not repeated."""
        self._number += 1
        self.print(f"{self._number}/{self.runs} {name}  finished before")

    def begin(self, outlook: Outlook) -> LiveRun:
        """Show a new run, or one that failed and begins again."""
        number = self._given_up.pop(outlook.name, None)
        if number is None:
            self._number += 1
            number = self._number
        if not self._under_way:
            self._shown = self.get_time()
        run = LiveRun(self, number, outlook)
        self._under_way.append(run)
        for each in self._under_way:
            each.together = max(each.together, len(self._under_way))
        if outlook.done:
            self.print(f"{run.title}  goes on from round {outlook.done}")
        return run

    def scored(self, run: LiveRun) -> None:
        """Show new scores."""
        self._newest = run
        self.update()

    def leave(self, run: LiveRun, line: str, seconds: float | None = None) -> None:
        """Show a run no more, but for a line if there is any; a run that ended took so many seconds for itself."""
        self._under_way.remove(run)
        self._seconds += [] if seconds is None else [seconds]
        if line:
            self.print(line)

    def give_up(self, run: LiveRun, line: str) -> None:
        """Show a run no more, but for a line; its number is kept for it."""
        self._given_up[run.name] = run.number
        self.leave(run, line)

    def told_of_site(self, text: str) -> None:
        """Show what a site did: among the newest lines, or as a line of its own where nothing is drawn."""
        if not (self._terminal or self.notebook):
            self.print(text)
        self.update()

    # How it looks -------------------------------------------------------------------------------

    def print(self, line: str) -> None:
        """Leave a line above the display."""
        if self.notebook:
            self.notebook.leave(line)
            self.notebook.show(self.view())
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def view(self) -> Group:
        """What a terminal or a notebook shows now."""
        runs, embedding = list(self._under_way), self._embedding  # which may change meanwhile, as a thread draws
        if embedding:
            text, done, total = embedding
            return Group(self._bars([(text, total, done, f"image {done} of {total}", "", "")]))
        if not runs:
            if self._number >= self.runs:
                return Group()
            return Group(Text(", ".join([LOADING, *(self._all_runs() if self._seconds else [])])))
        most = max(1, min(MOST_RUNS, self.console.height - BESIDE_BARS))
        rows = [
            (run.title, run.rounds, run.progress(), f"{run.done} of {run.rounds} rounds", run.scores, _left(run.left()))
            for run in runs[:most]
        ]
        hidden = [f"and {len(runs) - most} more runs"] if len(runs) > most else []
        shown: list[RenderableType] = [self._bars(rows), Text(_doing(runs))]
        shown.append(Text(", ".join([self._pace(runs), *self._all_runs(), *hidden])))
        shown += [
            Text(line, no_wrap=True, overflow="ellipsis", style="dim") for run in runs[:most] for line in run.sites
        ]
        if len(runs) == 1 and runs[0].record:
            shown.append(score_table(runs[0].record))
        return Group(*shown)

    def _bars(self, rows: Sequence[tuple[str, float, float, str, str, str]]) -> Table:
        """A line each: a title, a bar of so many and how many of them are done, and words."""
        width = 20 if self.console.width >= 100 else 6
        room = max(8, self.console.width - width - BESIDE_NAMES)
        title = Column(no_wrap=True, overflow="ellipsis", max_width=room, style="bold")
        grid = Table.grid(title, "", *(Column(no_wrap=True) for _ in range(3)), padding=(0, 1, 0, 0))
        for text, total, done, count, scores, left in rows:
            bar = ProgressBar(total or 1, done, width)
            grid.add_row(Text(text), bar, Text(count), Text(scores, style="cyan"), Text(left, style="cyan"))
        return grid

    def _pace(self, runs: Sequence[LiveRun]) -> str:
        """Steps a second and bytes of the runs under way."""
        down, up = (bytes_text(sum(run.sent[way] for run in runs)) for way in (0, 1))
        speeds = [run.stage.speed for run in runs if run.stage.speed is not None]
        speed = sum(speeds) if speeds else None
        words = "?" if speed is None else f"{speed:.0f}" if speed >= 10 else f"{speed:.2g}"
        return f"{words} steps a second, {down} down, {up} up"

    def left(self) -> float | None:
        """About how many seconds all runs still take; those not begun as long as the mean of the others."""
        runs, to_come = list(self._under_way), self.runs - self._number
        left = [run.left() for run in runs]
        known = [seconds for seconds in left if seconds is not None]
        whole = [seconds for run in runs if (seconds := run.whole()) is not None] + self._seconds
        if len(known) < len(left) or (to_come and not whole):
            return None
        return max(known, default=0.0) + (to_come * mean(whole) if to_come else 0.0)

    def _all_runs(self) -> list[str]:
        """How long all runs still take, in words, where there are others than those under way."""
        return [f"all {self.runs} runs: {_left(self.left())}"] if self.runs > self._number else []

    def update(self, line: str = "") -> None:
        """Show what is new where nothing is drawn by itself.

        A notebook's cell is drawn anew. Without a terminal it is this line or that of all runs; none when only their
        last lines are still to come.
        """
        if self._terminal:
            return
        now, runs = self.get_time(), self._under_way
        if self.notebook:
            if now - self._shown >= SECONDS_BETWEEN_UPDATES:
                self._shown = now
                self.notebook.show(self.view())
            return
        if now - self._shown < SECONDS_BETWEEN_LINES or not (line or any(run.done < run.rounds for run in runs)):
            return
        self._shown = now
        self.print(line or self._line(runs))

    def _line(self, runs: Sequence[LiveRun]) -> str:
        """Where all runs under way are, and the newest scores."""
        left = [run.left() for run in runs]
        known = [seconds for seconds in left if seconds is not None]
        these = "run" if len(runs) == 1 else "these runs"
        words = [
            runs[0].title if len(runs) == 1 else f"{len(runs)} of {self.runs} runs together",
            f"{sum(run.done for run in runs)} of {sum(run.rounds for run in runs)} rounds",
            _doing(runs),
            self._pace(runs),
            ", ".join([f"{these}: {_left(max(known) if len(known) == len(left) else None)}", *self._all_runs()]),
        ]
        for newest in runs:
            if newest is self._newest:
                words += [newest.title] * (len(runs) > 1) + [newest.in_words()]
        return "  ".join(words)


def line(event: SiteEvent) -> str:
    """What a site did in one line: 2026-11-22T06:52:43Z  berlin  answered train/3 in 4.2 s, 45 kB up."""
    exchange = f" ({event.exchange})" * (event.exchange not in ("", event.stage))
    place = f" {event.stage}/{event.round}{exchange}" * bool(event.stage)
    took = "" if event.seconds is None else f" in {event.seconds:.1f} s"
    sent = [f", {bytes_text(size)} {way}" for size, way in ((event.bytes_down, "down"), (event.bytes_up, "up")) if size]
    why = f": {event.why}" * bool(event.why)
    when = event.when.partition(".")[0].removesuffix("Z") + "Z"
    return printable(f"{when}  {event.who}  {event.what}{place}{took}{''.join(sent)}{why}")


class _StageProgress:
    """How far a run is within a stage, and how fast; time counts from where the stage began or went on.

    A terminal is drawn by a thread, so what is read twice is read into a variable first.

    Attributes:
        plan: what is known of the stage beforehand.
        done: rounds of the stage that are done, those before an interruption as well.
        steps: steps taken in the round under way.
        answered: clients that have answered in the task under way.
        task: what the round under way asks for now; None while it is prepared, and between rounds.
    """

    def __init__(self, plan: PlannedStage, get_time: Callable[[], float]) -> None:
        self.plan, self.done, self.steps, self.answered = plan, 0, 0, 0
        self.task: Task | None = None
        self.under_way = False
        self._get_time, self._began = get_time, get_time()
        self._rounds, self._steps, self._of_task = 0, 0, 0  # done here

    def begin_round(self, number: int) -> None:
        if not (self._rounds or self._steps):
            self._began = self._get_time()
        self.done, self.steps, self.answered, self.task, self.under_way = number - 1, 0, 0, None, True

    def begin_task(self, task: Task) -> None:
        self.task, self.answered, self._of_task = task, 0, 0

    def step(self, count: int) -> None:
        self.steps += count
        self._steps += count
        self._of_task += count

    def end_round(self) -> None:
        self.done, self.steps, self.answered, self.task, self.under_way = self.done + 1, 0, 0, None, False
        self._rounds += 1

    @property
    def of_task(self) -> int:
        """Steps taken in the task under way."""
        return self._of_task if self.task else 0

    @property
    def seconds(self) -> float:
        """Since it began or went on."""
        return self._get_time() - self._began

    @property
    def speed(self) -> float | None:
        """Steps a second, or None before any is taken."""
        return self._steps / self.seconds if self._steps > 0 and self.seconds > 0 else None

    def part(self) -> float:
        """How much of the round under way is done, in 0..1."""
        task, steps = self.task, self.steps
        if task is None:
            return 0.0
        if whole := steps + self._left_of_round():
            return steps / whole
        return self.answered / task.clients if task.clients else 0.0

    def left(self) -> float | None:
        """Seconds that the stage still takes, at its pace so far; None if nothing is known of its pace."""
        rounds = self.plan.rounds - self.done
        if not rounds:
            return 0.0
        of_round, of_later = self._left_of_round(), self._steps_of_round()
        if of_round + of_later + self._steps > 0:
            later = max(of_later, self.steps + of_round if self.under_way else 0.0)
            steps = of_round + (rounds - 1) * later if self.under_way else rounds * later
            speed = self.speed
            return None if speed is None else steps / speed
        done = self._rounds + self.part()
        return (rounds - self.part()) * self.seconds / done if done else None

    def _steps_of_round(self) -> float:
        """How many steps a round has: the mean of those that are done, or as was planned."""
        return (self._steps - self.steps) / self._rounds if self._rounds else self.plan.steps

    def _left_of_round(self) -> float:
        """How many steps the round under way still has."""
        if not self.under_way:
            return 0.0
        task = self.task
        of_task = task.steps - self._of_task if task else 0
        return max(self._steps_of_round() - self.steps, of_task, 0)


class LiveRun(RunProgress):
    """A run of a live display.

    Attributes:
        name: its name.
        number: which of the runs it is.
        title: what the display calls it.
        rounds: all its rounds.
        done: the rounds that are done.
        stage: where it is.
        sent: bytes sent to clients and by clients.
        record: its last evaluation, or None before the first.
        scores: the mean scores of its last evaluation, in words.
        together: how many runs were under way beside it at most, itself included.
        sites: the newest lines of what sites of a federation did.
    """

    def __init__(self, display: LiveProgress, number: int, outlook: Outlook) -> None:
        self.name, self.number = outlook.name, number
        self.title = f"{number}/{display.runs} {outlook.name}"
        self.sites: tuple[str, ...] = ()
        self.rounds, self.done = outlook.rounds, outlook.done
        self.sent, self.scores, self.together = (0, 0), "", 1
        self.record: Record | None = None
        self._display, self._plan, self._steps = display, outlook.stages, 0
        self._began, self._before = display.get_time(), outlook.done
        self.stage = self._of_position(outlook.done)

    def begin_round(self, round: Round) -> None:
        """Show where it is."""
        if round.stage.name != self.stage.plan.name:
            self.stage = self._of_position(self.done)
        self.stage.begin_round(round.number)
        self._display.update()

    def begin_task(self, task: Task) -> None:
        """Show what it does."""
        self.stage.begin_task(task)
        self.sent = task.bytes_down, task.bytes_up
        self._display.update()

    def steps(self, count: int) -> None:
        """Count steps."""
        self._steps += count
        self.stage.step(count)
        self._display.update()

    def answered(self) -> None:
        """Count answers."""
        self.stage.answered += 1
        self._display.update()

    def round(self, position: int, bytes_down: int, bytes_up: int) -> None:
        """Move on by a round."""
        self.done, self.sent = position, (bytes_down, bytes_up)
        self.stage.end_round()

    def evaluated(self, record: Record) -> None:
        """Take new scores."""
        self.record = record
        means = {role: mean_score(record, role) for role in ROLES}
        self.scores = " ".join(f"{role} {percent(score)}" for role, score in means.items() if score is not None)
        self._display.scored(self)
        if ended := record.get("ended"):
            self._shorten()
            self._display.note(f"{self.title}  {self.stage.plan.name} ended early {printable(ended)}")

    def _shorten(self) -> None:
        """Plan no more rounds of the stage than are done."""
        before, now = self.stage.plan, replace(self.stage.plan, rounds=self.stage.done)
        self._plan = tuple(now if plan is before else plan for plan in self._plan)
        self.rounds -= before.rounds - now.rounds
        self.stage.plan = now

    def site(self, event: SiteEvent) -> None:
        """Show what a site did."""
        text = line(event)
        self.sites = (*self.sites, text)[-MOST_SITES:]
        self._display.told_of_site(text)

    def end(self) -> None:
        """Leave a line of the finished run, if it was ever scored."""
        took = f"done: {self._steps} steps in {clock(self.seconds)}"
        line = f"{self.title}  {took}  {self.in_words()}" if self.record else ""
        self._display.leave(self, line, self.whole())

    def failed(self, reason: str) -> None:
        """Leave a line of the run that is given up."""
        place = f"round {self.done} of {self.rounds}, {clock(self.seconds)}"
        self._display.give_up(self, f"{self.title}  given up after {place}: {printable(reason)}")

    # How far it is ------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since it began or went on."""
        return self._display.get_time() - self._began

    def progress(self) -> float:
        """How many rounds are done, with the part of the one under way."""
        return min(self.done + self.stage.part(), self.rounds)

    def left(self) -> float | None:
        """About how many seconds it still takes: stages to come at the pace of all its steps so far."""
        of_stage, to_come = self.stage.left(), self._plan[self._plan.index(self.stage.plan) + 1 :]
        steps = sum(stage.rounds * stage.steps for stage in to_come)
        if of_stage is None or (steps and not self._steps):
            return None
        return of_stage + (steps * self.seconds / self._steps if steps else 0.0)

    def whole(self) -> float | None:
        """About how many seconds all its rounds would take, less what runs beside it take; None if that is unknown."""
        left, here = self.left(), self.rounds - self._before
        return None if left is None or not here else (self.seconds + left) * self.rounds / here / self.together

    def in_words(self) -> str:
        """The score on each environment, after what it is where that is not accuracy."""
        if not self.record:
            return ""
        scores = [f"{row.environment} {row.role} {percent(row.score)}" for row in shown(self.record)]
        metric = selects(self.record)
        return "  ".join([*([] if metric.name == ACCURACY else [f"{metric.title}{metric.remark}:"]), *scores])

    def _of_position(self, position: int) -> _StageProgress:
        """The stage that comes after so many rounds; the last one after all."""
        for plan in self._plan:
            if position < plan.rounds or plan is self._plan[-1]:
                break
            position -= plan.rounds
        progress = _StageProgress(plan, self._display.get_time)
        progress.done = position
        return progress


def _left(seconds: float | None) -> str:
    return f"{'?' if seconds is None else clock(seconds)} left"


def _doing(runs: Sequence[LiveRun]) -> str:
    """What the first of the runs does, together with those that do the same."""
    stage = runs[0].stage
    name, rounds, task = stage.plan.name, stage.plan.rounds, stage.task
    left = f", {_left(stage.left())}"
    if not stage.under_way:
        return f"{name}, {stage.done} of {rounds} rounds done: scoring and saving" if stage.done else f"{name}: loading"
    place = f"{name}, round {stage.done + 1} of {rounds}"
    if task is None:
        return f"{place}: preparing"
    same = [run.stage for run in runs if run.stage.task and _alike(run.stage.task, task)]
    tasks = [other.task for other in same if other.task]
    exchange = "" if task.exchange == name else f" ({task.exchange})"
    clients, steps = sum(other.clients for other in tasks), sum(other.steps for other in tasks)
    who = f"{clients} client{'s' * (clients > 1)}" if clients else "server"
    if steps:
        return f"{place}{exchange}: {who}, step {sum(other.of_task for other in same)} of {steps}{left}"
    return f"{place}{exchange}: {who}, {sum(other.answered for other in same)} done{left}"


def _alike(task: Task, other: Task) -> bool:
    return (task.round.key, task.exchange, bool(task.clients)) == (
        other.round.key,
        other.exchange,
        bool(other.clients),
    )


class Shown(NamedTuple):
    """A line of the table: the means over clients of the metric that selects, in 0..1, and of the loss."""

    environment: str
    role: str
    model: str
    score: float | None
    loss: float


def percent(score: float | None) -> str:
    """A score in %; a dash where it is undefined."""
    return "–" if score is None else f"{100 * score:.1f}"


def score_table(record: Record) -> Table:
    """The scores and losses of an evaluation."""
    table = Table("environment", "scored for", "model", box=None, padding=(0, 2, 0, 0))
    for column in (f"{selects(record).title} %", "loss"):
        table.add_column(escape(column), justify="right", style="cyan")
    for row in shown(record):
        table.add_row(escape(row.environment), row.role, row.model, percent(row.score), f"{row.loss:.3f}")
    return table


def shown(record: Record) -> list[Shown]:
    """A line for each environment and role; where these are many, each role's mean and worst."""
    metric = selects(record)
    lines = [
        Shown(row["environment"], row["role"], row["model"], value_of(row, metric.name), row["loss"])
        for row in over_clients(record)
    ]
    if len(lines) <= MOST_SHOWN:
        return lines
    by_role: dict[tuple[str, str], list[Shown]] = {}
    for line in lines:
        by_role.setdefault((line.role, line.model), []).append(line)
    few = []
    for (role, model), group in by_role.items():
        scored = {number: line.score for number, line in enumerate(group) if line.score is not None}
        score = mean(scored.values()) if scored else None
        few.append(Shown("mean", role, model, score, mean(line.loss for line in group)))
        if scored:
            worst = group[min(scored, key=lambda number: metric.merit(scored[number]))]
            few.append(worst._replace(environment=f"worst ({worst.environment})"))
    return few
