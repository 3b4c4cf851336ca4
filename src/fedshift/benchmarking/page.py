"""A benchmark as one HTML page, and its figure."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from matplotlib.figure import Figure

from fedshift.benchmarking.rows import BASE
from fedshift.benchmarking.scores import Scores
from fedshift.benchmarking.tables import notes, tables_and_settings
from fedshift.reporting.page import render, write_page_to
from fedshift.reporting.units import printable
from fedshift.study.figures import as_png, make_plain

WIDTH, BESIDE_ROWS, OF_A_ROW = 9.6, 1.1, 0.24  # inches
CLEAR, OPEN = "#1f77b4", "#8c8c8c"


def write_page(scores: Scores, png: bytes, folder: Path) -> Path:
    """Write scores.html into a folder."""
    text = render(
        "benchmark.html.jinja",
        title=f"Benchmark, scale {scores.plan.scale.name}",
        tables=tables_and_settings(scores),
        notes=notes(scores),
        figure=b64encode(png).decode(),
        base=BASE,
    )
    return write_page_to(folder, "benchmark.html", text)


def figure(scores: Scores) -> bytes:
    """Mean ranks, and the overall differences to FedAvg with their intervals, as a PNG file; the best row above."""
    methods = [method for method in scores.by_rank() if scores.mean_rank(method) is not None][::-1]
    drawn = Figure(figsize=(WIDTH, BESIDE_ROWS + OF_A_ROW * len(methods)), layout="constrained")
    ranks, differences = drawn.subplots(1, 2, sharey=True, width_ratios=(1, 1.6))
    ranks.set_yticks(range(len(methods)), [printable(method) for method in methods], parse_math=False)
    for place, method in enumerate(methods):
        ranks.plot(scores.mean_rank(method), place, "o", color=CLEAR, markersize=5)
        if (found := scores.overall(method)) is None or method == BASE:
            continue
        differences.errorbar(
            100 * found.mean,
            place,
            xerr=100 * found.half if found.half is not None else None,
            fmt="o",
            color=CLEAR if found.clear else OPEN,
            markersize=5,
            linewidth=1.4,
            capsize=2.5,
        )
    differences.axvline(0, color="black", linewidth=0.8)
    ranks.set(xlabel="mean rank", ylim=(-0.8, len(methods) - 0.2))
    differences.set_xlabel(f"accuracy less {BASE}'s (points), mean over columns, 95 % over seeds")
    for axis in (ranks, differences):
        make_plain(axis)
    return as_png(drawn)
