"""Whether `auto` picks what the benchmark finds: its calibration, and every way it tried in turns of their own.

The calibration measures and picks as in a run. Then each way that it measured is opened alone, in an order that moves
on by one each time, and carries out whole rounds of a simulation, merging included, for about --seconds. What `auto`
picked is right if no way is more than 5 % faster by the median of the repeats.

    python benchmarks/auto.py --workload mlp --workload cnn --repeats 5 --seconds 3
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.timings import calibrate
from fedshift.runs.lockstep import advance
from fedshift.runs.simulation import Simulation
from ours import experiment
from workloads import WORKLOADS

CLEARLY = 0.95  # another way is better if it takes no more than this part of the time


def seconds_a_round(simulation: Simulation, choice: Choice, seconds: float) -> float:
    """Of whole rounds with one engine, after one to warm up."""
    with open_engine(choice) as engine:

        def go_on() -> float:
            began = time.perf_counter()
            for error in advance([simulation], engine).values():
                raise error
            return time.perf_counter() - began

        go_on()
        rounds = [go_on()]
        while sum(rounds) < seconds:
            rounds.append(go_on())
    return sum(rounds) / len(rounds)


def compare(workload: str, precision: str, repeats: int, seconds: float) -> bool:
    """Print what `auto` picks beside what whole rounds take; whether it is right."""
    requested = experiment(WORKLOADS[workload], precision, "auto", 0)
    simulation = Simulation(requested)
    began = time.perf_counter()
    calibration = calibrate(simulation.example(), requested.run)
    took = time.perf_counter() - began
    print(f"\n{WORKLOADS[workload].title}, {precision}: calibrated in {took:.1f} s\n{calibration}")
    ways = [timing.choice for timing in calibration.engines if not timing.notes]
    times: dict[Choice, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        first = repeat % len(ways)
        for way in (*ways[first:], *ways[:first]):
            times[way].append(seconds_a_round(simulation, way, seconds))
    picked = times[calibration.best.choice]
    speeds = {way: median(a / b for a, b in zip(picked, taken, strict=True)) for way, taken in times.items()}
    for timing in calibration.engines:
        if not timing.notes:
            claimed = calibration.best.milliseconds / timing.milliseconds
            print(f"  {timing.choice}: {speeds[timing.choice]:.2f} times as fast as picked; calibration {claimed:.2f}")
    right = max(speeds.values()) * CLEARLY <= 1
    print(f"  {'right' if right else 'WRONG'}")
    return right


def main() -> None:
    """Compare on each workload in each precision; exit code 1 if `auto` is wrong somewhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("    python ")[0])
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="which (default: mlp and cnn)")
    parser.add_argument("--precision", action="append", choices=["float32", "bfloat16"], help="which (default: both)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each way (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a turn takes (default 3)")
    options = parser.parse_args()
    right = [
        compare(workload, precision, options.repeats, options.seconds)
        for workload in options.workload or ["mlp", "cnn"]
        for precision in options.precision or ["float32", "bfloat16"]
    ]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
