"""Ray actors beside worker processes: the same rounds of the same federations, in turns, and where Ray's time goes.

A small network (14 thousand numbers) and a large one (11 million); both engines have as many processes of one thread.
The turns are in one process, so that whatever else the machine does meets both. Weights are compared at the end.

    python benchmarks/clusters.py --rounds 5 --turns 5
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch

from fedshift.engines import ray_actors
from fedshift.engines.kernels import Kernels
from fedshift.engines.workers import Workers
from fedshift.experiments import Experiment
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand
from ours import Opened

COUNT = 2  # processes of an engine
PARTS = {
    "what all receive, put once": (ray_actors, "_Broadcast"),
    "a job: written and handed over": (ray_actors._RemoteActor, "submit"),
    "waiting for actors": (ray_actors.RayActors, "_answered"),
    "an answer: fetched and copied": (ray_actors._RemoteActor, "answer"),
}


def federation(size: str) -> Experiment:
    """Ten clients of images of 32 x 32, all in a round: a small network, or ResNet-18."""
    large = {"name": "resnet18", "norm": "group"}
    small = {"name": "cnn", "channels": [8, 16], "dim": 32}
    (made,) = expand(
        {
            "name": "clusters",
            "data": {"name": "rotated-mnist", "images_per_class": 20},
            "partition": {"name": "iid", "clients": 2},
            "protocol": {"name": "in-domain"},
            "model": large if size == "large" else small,
            "method": {"name": "fedavg"},
            "train": {"rounds": 10**4, "steps": 5, "batch": 16},
            "evaluate": {"every": 10**4},
            "run": {"device": "cpu"},
        }
    )
    return made


def timed(spent: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose time is added up."""

    def measured(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - started

    return measured


def main() -> None:
    """Measure and print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=5, help="of each engine")
    parser.add_argument("--sizes", default="small,large")
    requested = parser.parse_args()
    spent = Counter[str]()
    for name, (owner, attribute) in PARTS.items():
        setattr(owner, attribute, timed(spent, name, getattr(owner, attribute)))
    torch.set_num_threads(1)
    for size in requested.sizes.split(","):
        with ExitStack() as stack:
            engines = {
                "workers": Workers(Kernels(channels_last=True), COUNT),
                "ray": ray_actors.RayActors(Kernels(channels_last=True), COUNT, COUNT),
            }
            sides = {name: Opened(Simulation(federation(size)), engine, name) for name, engine in engines.items()}
            for engine in engines.values():
                stack.callback(engine.close)
            for side in sides.values():
                side.round()  # processes start, modules are made
            while not all(actor.ready for actor in engines["ray"]._pool):  # type: ignore[attr-defined]
                sides["ray"].round()
                sides["workers"].round()
            times: dict[str, list[float]] = {name: [] for name in sides}
            spent.clear()
            for _ in range(requested.turns):
                for name, side in sides.items():
                    started = time.perf_counter()
                    for _ in range(requested.rounds):
                        side.round()
                    times[name].append((time.perf_counter() - started) / requested.rounds)
            show(size, sides, times, spent, requested.rounds * requested.turns)


def show(size: str, sides: dict[str, Opened], times: dict[str, list[float]], spent: Counter[str], rounds: int) -> None:
    """Print the tables of a size."""
    states = [side.simulation.coordinator.state.tensors for side in sides.values()]
    same = all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    parameters = sum(tensor.numel() for tensor in states[0].values())
    clients = len(sides["ray"].simulation.federated.ids)
    print(f"\n{size}: {parameters:,} numbers, {clients} clients a round, {COUNT} processes of one thread")
    for name, found in times.items():
        print(f"  {name:8} {1e3 * median(found):9.1f} ms a round   ({min(found) * 1e3:.1f} to {max(found) * 1e3:.1f})")
    ratios = [ray / workers for ray, workers in zip(times["ray"], times["workers"], strict=True)]
    print(f"  ray / workers {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); same bits: {same}")
    total = sum(times["ray"]) / len(times["ray"])
    for name, seconds in spent.items():
        print(f"    {name:34} {1e3 * seconds / rounds:9.1f} ms a round, {100 * seconds / rounds / total:3.0f} %")


if __name__ == "__main__":
    main()
