"""What a step costs beside its arithmetic: processor time of the sequential engine over that of a hand-written loop.

Both work in this process on one thread and take turns, whole rounds of FedAvg each; told is the median (smallest to
largest) of the ratios of the turns, so that a machine that others use slows both. With --startup it measures the
processor time of a run of a single round on a small table instead, imports and report included.

    python benchmarks/steps.py --workload table --workload mlp --workload cnn
    python benchmarks/steps.py --startup
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from contestants import CONTESTANTS, Contestant, Options
from workloads import WORKLOADS

RUN = ["--data", "table", "--set", "data.domain=site", "--set", "data.statistics=pooled", "--model", "mlp"]
RUN += ["--method", "fedavg", "--set", "protocol.name=in-domain", "--set", "train.rounds=1"]
START = """
import sys
from fedshift.cli.app import app
app(sys.argv[1:])
"""


def cpu_a_step(contestant: Contestant, seconds: float) -> float:
    """Processor time of a step in microseconds, over rounds of about so many seconds."""
    began, steps, rounds = time.process_time(), contestant.count.steps, 0
    until = time.perf_counter() + seconds
    while not rounds or time.perf_counter() < until:
        contestant.rounds(1)
        rounds += 1
    return 1e6 * (time.process_time() - began) / (contestant.count.steps - steps)


def compare(name: str, turns: int, seconds: float) -> None:
    """Print what a step takes by hand and by the sequential engine."""
    options = Options(WORKLOADS[name], 1)
    both: list[Contestant] = []
    for kind in ("hand", "fedshift"):
        CONTESTANTS[kind](options).host(both.append)
    times = [[cpu_a_step(one, seconds) for one in both] for _ in range(turns + 1)][1:]
    hand, ours = (median(column) for column in zip(*times, strict=True))
    ratios = [b / a for a, b in times]
    spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"{WORKLOADS[name].title}: by hand {hand:.0f} µs, fedshift {ours:.0f} µs a step, times as much: {spread}")


def startup(turns: int) -> None:
    """Print the processor time of a whole run of one round of a small table, in a process of its own."""
    times = []
    for _ in range(turns):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as out:
            file = Path(out) / "table.csv"
            rows = [f"{row * 7 % 31},{row % 37},{row % 5},{'abc'[row % 3]},{row * 7 % 31 > 15}" for row in range(300)]
            file.write_text("\n".join(["one,two,three,site,label", *rows]))
            command = [sys.executable, "-c", START, "run", *RUN, "--set", f"data.path={file}", "--out", out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"a run of one round, processor time: {median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="which (default: table)")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long a turn takes")
    parser.add_argument("--startup", action="store_true")
    options = parser.parse_args()
    if options.startup:
        startup(options.turns)
        return
    torch.set_num_threads(1)
    for name in options.workload or ["table"]:
        compare(name, options.turns, options.seconds)


if __name__ == "__main__":
    main()
