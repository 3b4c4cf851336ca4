"""Steps a second of fedshift's sequential engine against a hand-written PyTorch loop on the same work.

FedAvg: 5 clients, the paper's CNN, batch 64, 5 local steps a round, SGD with momentum, one machine. Both
train the same network on the same images; they take turns, so that a change of the machine's speed meets both.

    python benchmarks/local_loop.py --rounds 20 --repeats 9
"""

from __future__ import annotations

import argparse
import copy
import time
from statistics import median

import torch
from torch.nn import functional as F

from fedshift.grid import expand, override, read
from fedshift.runs.progress import Progress
from fedshift.runs.simulation import Simulation

BATCH, STEPS, LR, MOMENTUM = 64, 5, 0.01, 0.9


class HandWritten:
    """What one would write in a notebook: load the global model, train, collect, average."""

    def __init__(self, simulation: Simulation) -> None:
        encoder, head = (copy.deepcopy(simulation.engine.net.parts[name]) for name in ("encoder", "head"))
        self.model = torch.nn.Sequential(encoder, head)
        self.clients = [(client.train.x, client.train.y) for client in simulation.federation.clients]
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def round(self) -> None:
        """One round of FedAvg."""
        collected = []
        for x, y in self.clients:
            self.model.load_state_dict(self.state)
            optimiser = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM)
            order = torch.randperm(len(y))
            for step in range(STEPS):
                batch = order[step * BATCH : (step + 1) * BATCH]
                optimiser.zero_grad()
                F.cross_entropy(self.model(x[batch]), y[batch]).backward()
                optimiser.step()
            collected.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        self.state = {name: torch.stack([one[name] for one in collected]).mean(dim=0) for name in self.state}


class Fedshift:
    """The same work through the library."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.moments = iter(simulation.moments())

    def round(self) -> None:
        """One round of FedAvg."""
        self.simulation.advance(next(self.moments), Progress())


def seconds(rounds: int, loop: HandWritten | Fedshift) -> float:
    """How long some rounds take."""
    started = time.perf_counter()
    for _ in range(rounds):
        loop.round()
    return time.perf_counter() - started


def main() -> None:
    """Let both take turns and print their speeds and ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds in each turn")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changes = {"method.name": "fedavg", "method.optimiser_state": "fresh", "train.rounds": 10**6}
    (experiment,) = expand(override(read("rotated-mnist"), changes))
    simulation = Simulation(experiment)
    hand, ours = HandWritten(simulation), Fedshift(simulation)
    seconds(3, hand), seconds(3, ours)
    ratios: list[float] = []
    speeds: dict[str, list[float]] = {"hand-written": [], "fedshift": []}
    work = options.rounds * STEPS * len(hand.clients)
    for repeat in range(options.repeats):
        # Whoever goes second may find a warmer machine, so they swap.
        pair = [("hand-written", hand), ("fedshift", ours)]
        took = {name: seconds(options.rounds, loop) for name, loop in (pair if repeat % 2 else pair[::-1])}
        ratios.append(took["hand-written"] / took["fedshift"])
        for name, value in took.items():
            speeds[name].append(work / value)
    for name, values in speeds.items():
        low, high = min(values), max(values)
        print(f"{name:13} {median(values):7.1f} steps a second (median; {low:.1f} to {high:.1f})")
    spread = f"median of {len(ratios)}; {min(ratios):.3f} to {max(ratios):.3f}"
    print(f"fedshift / hand-written: {median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    main()
