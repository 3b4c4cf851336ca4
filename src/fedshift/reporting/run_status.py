"""How far a run is, and its events and scores as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from statistics import mean

from rich.progress import TaskID

from fedshift.core.metrics import ACCURACY
from fedshift.runs.events import BeginEvent, ProgressEvent, SiteEvent
from fedshift.runs.schema import Record
from fedshift.runs.selection import over_clients, selects, value_of
from fedshift.written import bytes_text, clock, printable, seconds_of

MOST_SHOWN = 14  # environments one by one; of more than that, the mean and the worst
ROLES = ("test", "validation")


class RunStatus:
    """How far a run is, from its events.

    Attributes:
        number: which of the runs it is.
        title: what the display calls it.
        bar: its bar.
        began: when it began or continued, in seconds since 1970.
        progress: the newest event of progress.
        record: the last evaluation; None before the first.
        under_way: whether it is neither finished nor given up.
    """

    def __init__(self, number: int, title: str, bar: TaskID, event: BeginEvent, get_time: Callable[[], float]) -> None:
        self.number, self.title, self.bar, self.began = number, title, bar, seconds_of(event.when)
        self.progress = ProgressEvent(when=event.when, who=event.who, position=event.done)
        self.record: Record | None = None
        self.under_way = True
        self._get_time = get_time
        self._set_plan([(printable(each.name), each.steps) for each in event.stages for _ in range(each.rounds)])
        self._work_before = self._work(event.done)

    @property
    def rounds(self) -> int:
        return len(self._plan)

    @property
    def seconds(self) -> float:
        return max(self._get_time() - self.began, 0.0)

    @property
    def place(self) -> float:
        """Rounds done, with a part of the one in progress."""
        now = self.progress
        if not now.under_way or now.position >= self.rounds:
            return now.position
        done, of = now.of_round, self._plan[now.position][1]
        if not of and now.task:
            done, of = now.task.answered, now.task.clients
        return now.position + (min(max(done / of, 0.0), 1.0) if of else 0.0)

    @property
    def done(self) -> float:
        """The share of all planned steps that were taken since it began or continued."""
        return (self._work(self.place) - self._work_before) / (self._work(self.rounds) or 1)

    @property
    def upcoming(self) -> float:
        """The share of all planned steps that are left."""
        return 1 - self._work(self.place) / (self._work(self.rounds) or 1)

    @property
    def left(self) -> float | None:
        """About how many seconds it still takes, at its pace so far; None before anything is done."""
        return self.seconds * self.upcoming / self.done if self.done > 0 else None

    @property
    def doing(self) -> str:
        """Stage, round and exchange in progress."""
        now, task = self.progress, self.progress.task
        if not now.stage:
            return "loading"
        stage = printable(now.stage)
        rounds = Counter(name for name, _ in self._plan)[stage]
        if not now.under_way:
            return f"{stage}, {now.round} of {rounds} rounds done: scoring and saving"
        place = f"{stage}, round {now.round} of {rounds}"
        if task is None:
            return f"{place}: preparing"
        exchange = "" if task.exchange == now.stage else f" ({printable(task.exchange)})"
        clients = "1 client" if task.clients == 1 else f"{task.clients} clients" if task.clients else "server"
        done = f"step {task.done} of {task.steps}" if task.steps else f"{task.answered} done"
        return f"{place}{exchange}: {clients}, {done}"

    def end_stage(self, position: int) -> str:
        """Plan no more rounds of the stage that ended after that many rounds of the run; its name."""
        name = self._plan[position - 1][0]
        self._set_plan([*self._plan[:position], *(each for each in self._plan[position:] if each[0] != name)])
        return name

    def _set_plan(self, plan: list[tuple[str, float]]) -> None:
        self._plan, self._steps = plan, [0.0, *accumulate(steps or 1.0 for _, steps in plan)]

    def _work(self, place: float) -> float:
        whole = min(int(place), self.rounds)
        return self._steps[whole] + (place - whole) * (self._steps[min(whole + 1, self.rounds)] - self._steps[whole])


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


def left_text(seconds: float | None) -> str:
    """A time that is left; a question mark where it is not known."""
    return f"{'?' if seconds is None else clock(seconds)} left"
