"""What recording a step as a CUDA graph gains (engines/graphs.py): a stack of clients with it and without, in turns.

python benchmarks/graphs.py --workload mlp --workload cnn
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

import torch

from fedshift.engines import banks
from fedshift.engines.kernels import Kernels
from fedshift.engines.vectorised import Vectorised
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from ours import experiment
from workloads import WORKLOADS


def seconds_a_round(simulation: Simulation, engine: Vectorised, seconds: float) -> float:
    """Of whole rounds, over about so many seconds."""
    torch.cuda.synchronize()
    started, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - started < seconds:
        for error in advance([simulation], engine).values():
            raise error
        rounds += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / rounds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="which (default: all)")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn takes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here, and graphs are recorded nowhere else")
    recorded = banks.replayed
    for name in options.workload or list(WORKLOADS):
        requested = experiment(WORKLOADS[name], "float32", "vectorised", 1, device="cuda")
        simulation, engine = Simulation(requested), Vectorised(Kernels())
        ratios = []
        for _ in range(options.turns + 1):
            times = []
            for way in (lambda step: step, recorded):
                banks.replayed = way
                times.append(seconds_a_round(simulation, engine, options.seconds))
            ratios.append(times[0] / times[1])
        spread = f"{median(ratios[1:]):.2f} ({min(ratios[1:]):.2f} to {max(ratios[1:]):.2f})"
        print(f"{WORKLOADS[name].title}: recorded steps are {spread} times as fast", flush=True)


if __name__ == "__main__":
    main()
