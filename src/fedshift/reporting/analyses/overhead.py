"""What a method costs: computation, communication, memory and time, until a target accuracy is reached."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import floor, log10
from statistics import mean
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval
from matplotlib.figure import Figure

from fedshift.core.metrics import ACCURACY
from fedshift.reporting.analyses.analysis import Analysis, Measured, MeasuredRun, Rows
from fedshift.reporting.charts import COLOURS, INK, Chart, style
from fedshift.reporting.results import MeanStd
from fedshift.reporting.table import Table
from fedshift.rounds.coordinator import schedule_of
from fedshift.runs.flops import FlopCounter
from fedshift.runs.observed import TrainedSimulation
from fedshift.runs.selection import mean_score
from fedshift.spec import setting
from fedshift.written import file_name

SIZE = (4.8, 3.2)  # inches
GIGA, MEGA, PERCENT = 1e9, 1e6, 100.0
HEADINGS = {
    "round": "rounds",
    "gflop_client": "GFLOP a client",
    "gflop": "GFLOP in all",
    "mb_to_client": "MB to a client",
    "mb_from_client": "MB from a client",
    "mb": "MB in all",
    "seconds": "seconds",
    "memory_mb": "peak memory, MB",
}
AXES = {
    "mb_client": "MB to and from a client",
    "gflop_client": "GFLOP a client",
    "seconds": "seconds of training",
}


class Overhead(Analysis):
    """Computation, communication, peak memory and training time until the mean test accuracy reaches a target.

    FLOPs are those of matrix products, convolutions and attention, forward and backward, where a multiplication with
    an addition is 2. A step of each phase is counted and multiplied by the steps that clients and server take; how
    several clients are trained at once makes no difference. MB are those of models and statistics. Numbers of a client
    are means over all clients. Seconds are those of training, and peak memory is of the process that carried the run
    out, or of the GPU.
    """

    title: ClassVar[str] = "Overhead"
    source: ClassVar[str] = "FedCiR, Table 3; FedPIN, Table 4"

    accuracy: Literal["none"] | Annotated[float, Interval(gt=0, le=100)] = setting(
        "none", help="The mean test accuracy, in %, up to which costs count; none: all rounds count"
    )

    def measure(self, trained: TrainedSimulation) -> Measured:
        """The mean test accuracy, and all costs so far, at each evaluation."""
        run, simulation = trained.run, trained.simulation
        ended = {record["stage"]: record["round"] for record in run.records if record.get("ended")}
        counter, clients = FlopCounter(simulation), len(simulation.federated.clients)
        by_round = [counter.of_round(round) for round in schedule_of(simulation.setup.stages, ended)]
        of_clients = [*accumulate((flops.clients for flops in by_round), initial=0)]
        of_server = [*accumulate((flops.server for flops in by_round), initial=0)]
        rows: list[dict[str, float | int | str | None]] = []
        for record in run.records:
            position, down, up = record["position"], record["bytes_down"], record["bytes_up"]
            score, times = mean_score(record, "test", ACCURACY), run.times_until(position)
            rows.append(
                {
                    "round": position,
                    "accuracy": None if score is None else PERCENT * score,
                    "gflop_client": of_clients[position] / clients / GIGA,
                    "gflop": (of_clients[position] + of_server[position]) / GIGA,
                    "mb_to_client": down / clients / MEGA,
                    "mb_from_client": up / clients / MEGA,
                    "mb_client": (down + up) / clients / MEGA,
                    "mb": (down + up) / MEGA,
                    "seconds": times.training,
                    "memory_mb": None if times.memory is None else times.memory / MEGA,
                }
            )
        return Measured(rows=rows)

    def tables(self, rows: Rows) -> list[Table]:
        """The costs of each row, mean and standard deviation over seeds."""
        until = "of all rounds" if self.accuracy == "none" else f"until {self.accuracy:g} % mean test accuracy"
        cells = [[label, *self._cells(its)] for label, its in rows.items()]
        return [Table(f"Overhead {until}", ["method", *HEADINGS.values()], cells)]

    def charts(self, rows: Rows) -> list[Chart]:
        """The mean test accuracy by what a client sent, received and computed, and by the time."""
        return [self._chart(rows, name) for name in AXES]

    def notes(self, rows: Rows) -> list[str]:
        """What the costs exclude, and whose memory it is."""
        notes = [
            "Not counted: operations that work number by number (activations, norms, optimisers, merges), evaluation, "
            "what a frozen network embeds before training, and loss terms that are sent to be recorded.",
            "Peak memory counts all that a process did until then. Runs of one command share a process: to compare "
            "methods by their memory, run each by itself.",
        ]
        if self.accuracy != "none":
            notes.append(
                "The target counts as reached at the first evaluation with that accuracy, which uses the test "
                "data; between evaluations it may have been reached before (run with --set evaluate.every=1). Means "
                "are over runs that reached it."
            )
        return notes

    def _reached(self, one: MeasuredRun) -> dict[str, Any] | None:
        if self.accuracy == "none":
            return one.measured.rows[-1]
        target = self.accuracy
        return next((row for row in one.measured.rows if float(row["accuracy"] or 0.0) >= target), None)

    def _cells(self, runs: Sequence[MeasuredRun]) -> list[str]:
        found = [(one.seed, row) for one in runs if (row := self._reached(one))]
        if not found:
            best = max(float(row["accuracy"] or 0.0) for one in runs for row in one.measured.rows)
            return [f"not reached (best {best:.1f} %)", *[""] * (len(HEADINGS) - 1)]
        cells = [_text(_over_seeds([(seed, row[name]) for seed, row in found])) for name in HEADINGS]
        if len(found) < len(runs):
            cells[0] += f" ({len(found)} of {len(runs)} runs)"
        return cells

    def _chart(self, rows: Rows, name: str) -> Chart:
        data: list[dict[str, Any]] = []
        with style():
            figure = Figure(figsize=SIZE, layout="constrained")
            axis = figure.subplots()
            for number, (label, its) in enumerate(rows.items()):
                points = _curve(its, name)
                data += [{"method": label, name: x, "accuracy": y} for x, y in points]
                axis.plot(*zip(*points, strict=True), color=COLOURS[number % len(COLOURS)], label=label, linewidth=1.6)
            if self.accuracy != "none":
                axis.axhline(self.accuracy, linestyle=":", color=INK, linewidth=0.8)
            axis.set(xlabel=AXES[name], ylabel="mean test accuracy (%)", xlim=(0, None))
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False)
        target = "" if self.accuracy == "none" else f" The dotted line is the target, {self.accuracy:g} %."
        return Chart(
            file_name("overhead", name),
            f"Accuracy by {AXES[name]}",
            f"Mean over seeds at each evaluation. Further left is cheaper.{target}",
            f"Mean test accuracy by {AXES[name]}, a line for each of {', '.join(rows)}.{target}",
            figure,
            data,
        )


def _over_seeds(values: Sequence[tuple[int, float | None]]) -> MeanStd | None:
    by_seed: dict[int, list[float]] = {}
    for seed, value in values:
        if value is not None:
            by_seed.setdefault(seed, []).append(value)
    return MeanStd.of([mean(its) for its in by_seed.values()])


def _text(found: MeanStd | None) -> str:
    if found is None:
        return ""
    whole = found.mean == round(found.mean) and not found.std
    return found.text(decimals=0 if whole else min(6, max(0, 2 - floor(log10(found.mean)))))


def _curve(runs: Sequence[MeasuredRun], name: str) -> list[tuple[float, float]]:
    """The cost and the accuracy at each evaluation, means over runs."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    for one in runs:
        for row in one.measured.rows:
            point = float(row[name] or 0.0), float(row["accuracy"] or 0.0)
            by_round.setdefault(int(row["round"] or 0), []).append(point)
    return [(mean(x for x, _ in points), mean(y for _, y in points)) for _, points in sorted(by_round.items())]
