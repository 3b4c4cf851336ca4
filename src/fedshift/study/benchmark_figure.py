"""The benchmark as one HTML page, and its figure."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from matplotlib.figure import Figure

from fedshift.reporting.page import render, write_page_to
from fedshift.reporting.units import printable
from fedshift.study.benchmark_plan import BASE
from fedshift.study.benchmark_tables import chosen_settings
from fedshift.study.figures import as_png, make_plain
from fedshift.study.ranking import Ranking

WIDTH, BESIDE_ROWS, OF_A_ROW = 9.6, 1.1, 0.24  # inches
CLEAR, OPEN = "#1f77b4", "#8c8c8c"


def write_page(done: Ranking, png: bytes) -> Path:
    """Write benchmark.html into the plan's folder."""
    text = render(
        "benchmark.html.jinja",
        title=f"Benchmark, scale {done.plan.scale.name}",
        tables=[*done.tables(), *chosen_settings(done)],
        notes=done.notes(),
        figure=b64encode(png).decode(),
        base=BASE,
    )
    return write_page_to(done.plan.folder, "benchmark.html", text)


def draw_benchmark(done: Ranking) -> bytes:
    """Mean ranks, and the overall differences to FedAvg with their intervals, as a PNG file; the best row above."""
    methods = [method for method in done.by_rank() if done.mean_rank(method) is not None][::-1]
    drawn = Figure(figsize=(WIDTH, BESIDE_ROWS + OF_A_ROW * len(methods)), layout="constrained")
    ranks, differences = drawn.subplots(1, 2, sharey=True, width_ratios=(1, 1.6))
    ranks.set_yticks(range(len(methods)), [printable(method) for method in methods], parse_math=False)
    for place, method in enumerate(methods):
        ranks.plot(done.mean_rank(method), place, "o", color=CLEAR, markersize=5)
        if (found := done.overall(method)) is not None and method != BASE:
            colour = CLEAR if found.clear else OPEN
            differences.errorbar(found.mean, place, xerr=found.half, fmt="o", color=colour, markersize=5, capsize=2.5)
    differences.axvline(0, color="black", linewidth=0.8)
    ranks.set(xlabel="mean rank", ylim=(-0.8, len(methods) - 0.2))
    differences.set_xlabel(f"accuracy less {BASE}'s (points), mean over columns, 95 % over seeds")
    for axis in (ranks, differences):
        make_plain(axis)
    return as_png(drawn)
