"""What stacking several runs of a table gains (engines/merging.py): runs that advance together against one by one.

Runs differ in their seed and learning rate. Each turn carries all of them forward by a round, as one stack, each as a
stack of its own clients, and (on a CPU) by worker processes; told is the median of the ratios to the second.

    python benchmarks/together.py --runs 8 --workload table --workload mlp --device cuda
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import torch

from fedshift.engines.choice import Choice, cores, open_engine
from fedshift.engines.engine import Engine
from fedshift.engines.kernels import Kernels
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from ours import experiment
from workloads import LR, WORKLOADS


def seconds_a_round(groups: Sequence[Sequence[Simulation]], engine: Engine, seconds: float) -> float:
    """Of a round of every run, of which those of a group advance together, over about so many seconds."""
    started, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - started < seconds:
        for group in groups:
            for error in advance(group, engine).values():
                raise error
        rounds += 1
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / rounds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="which (default: table)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn takes")
    options = parser.parse_args()
    stack = Choice("vectorised", 1, cores(), Kernels())
    workers = Choice("workers", cores(), 1, Kernels())
    for name in options.workload or ["table"]:
        requested = experiment(WORKLOADS[name], "float32", "vectorised", cores(), device=options.device)
        runs = [
            Simulation(requested.replace(seed=seed, train=requested.train.replace(lr=LR * (1 + seed / 10))))
            for seed in range(options.runs)
        ]
        one_by_one = [[run] for run in runs]
        ways = {"one by one": (one_by_one, stack), "together": ([runs], stack)}
        if options.device == "cpu":
            ways["workers"] = ([runs], workers)
        with ExitStack() as opened:
            engines = {way: opened.enter_context(open_engine(choice)) for way, (_, choice) in ways.items()}
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(options.turns + 1):
                for way, (groups, choice) in ways.items():
                    torch.set_num_threads(choice.threads)
                    times[way].append(seconds_a_round(groups, engines[way], options.seconds))
        for way, taken in times.items():
            ratios = [plain / mine for plain, mine in zip(times["one by one"][1:], taken[1:], strict=True)]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{WORKLOADS[name].title}, {options.runs} runs: {way} {spread}", flush=True)


if __name__ == "__main__":
    main()
