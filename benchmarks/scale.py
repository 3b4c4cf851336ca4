"""What many clients cost: fedshift with 100, 10,000 and 100,000 clients, 50 of them a round.

Each method with each number of clients is a process of its own; they take turns, so that a change of the machine's
speed meets all. It measures seconds a round without evaluation, seconds of one evaluation (of at most 10,000 clients)
and memory: the largest resident set, and private memory (anonymous pages) after the rounds and after the evaluation.
FedBN keeps batch norm's tensors for every client that has taken part.

    python benchmarks/scale.py --repeats 5 --seconds 3 --docs runs/scale
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from turns import Child, ChildError, Player, say, take_turns

COHORT, CLIENTS = 50, (100, 10_000, 100_000)
MB = 2**20
EVALUATIONS = 3


# A child --------------------------------------------------------------------------------------------------------------


def private() -> int:
    """Bytes of anonymous memory of this process and its children."""
    return sum(_anonymous(pid) for pid in (os.getpid(), *_children(os.getpid())))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += [int(child), *_children(int(child))]
    return found


def _anonymous(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def memory() -> dict[str, int]:
    """What is held now, and the largest resident set so far (of this process), in bytes."""
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "private": private()}


def serve(told: dict[str, Any]) -> None:
    """Set a simulation up and answer the parent's lines until there is no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    from fedshift.runs.simulation import Simulation  # noqa: PLC0415
    from ours import many, opened  # noqa: PLC0415  # the parent does without

    started = time.perf_counter()
    simulation = Simulation(many(told["clients"], COHORT, told["method"], told["engine"]))
    with opened(simulation) as held:
        answer(ready=True, setup=time.perf_counter() - started, note=held.note(), **memory())
        for line in sys.stdin:
            command, *arguments = line.split()
            started = time.perf_counter()
            if command == "go":
                for _ in range(int(arguments[0])):
                    held.round()
            elif command == "evaluate":
                held.evaluate()
            answer(seconds=time.perf_counter() - started, **memory())


# The parent -----------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let all take turns, then evaluate."""
    made = {
        (method, clients): _player(method, clients, options)
        for method in options.method or ["fedavg", "fedbn"]
        for clients in options.clients or CLIENTS
    }
    players = list(made.values())
    try:
        for player in players:
            player.settle(options.seconds)
        take_turns([player for player in players if not player.failed], options.repeats)
        for player in players:
            player.attempt(lambda child, player=player: _finish(player, child))
    finally:
        for player in players:
            player.close()
    return [
        {
            "method": method,
            "clients": clients,
            "failed": player.failed,
            "turns": player.turns,
            **player.about,
        }
        for (method, clients), player in made.items()
    ]


def _player(method: str, clients: int, options: argparse.Namespace) -> Player:
    label = f"{method}, {clients:,} clients"
    told = json.dumps({"method": method, "clients": clients, "engine": options.engine})

    def start() -> Child:
        say(f"{label}: starting")
        return Child(label, sys.executable, "scale.py", f"--child={told}", options.timeout)

    return Player(label, start)


def _finish(player: Player, child: Child) -> None:
    """Memory after the rounds, and what evaluations take."""
    player.about["after rounds"] = child.ask("memory")
    answers = [child.ask("evaluate") for _ in range(EVALUATIONS)]
    player.about["evaluation"] = median(told["seconds"] for told in answers)
    player.about["after evaluation"] = answers[-1]
    say(f"{player.label}: an evaluation takes {player.about['evaluation']:.2f} s")


def as_markdown(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Many clients",
        "",
        f"{COHORT} clients a round, batch 10, 5 steps, a small CNN with batch norm on 1x14x14 images, 20 of them for "
        "training and 2 to score for each client; child processes that took turns, median (smallest to largest) of "
        f"{about['repeats']} turns of about {about['seconds']:g} s. An evaluation scores every client twice "
        "(validation and test), of more than 10,000 that many. Peak: the largest resident set, evaluations included; "
        "private: anonymous memory. "
        f"{os.cpu_count()} cores, engine '{about['engine']}'.",
        "",
        f"    {about['command']}",
        "",
        "| method | clients | ms a round | against the first | evaluation | set up | private after rounds | "
        "private after evaluation | peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["failed"]:
            lines.append(f"| {row['method']} | {row['clients']:,} | **did not run**: {row['failed']} | | | | | | |")
            continue
        base = first.setdefault(row["method"], row)
        low, middle, high = (1000 * f(row["turns"].values()) for f in (min, median, max))
        both = row["turns"].keys() & base["turns"].keys()
        against = median(row["turns"][repeat] / base["turns"][repeat] for repeat in both)
        lines.append(
            f"| {row['method']} | {row['clients']:,} | {middle:.1f} ({low:.1f} to {high:.1f}) | {against:.2f} | "
            f"{row['evaluation']:.2f} s | {row['setup']:.1f} s | {_mb(row['after rounds']['private'])} | "
            f"{_mb(row['after evaluation']['private'])} | {_mb(row['after evaluation']['peak'])} |"
        )
    return "\n".join([*lines, ""])


def _mb(size: int) -> str:
    return f"{size / MB:.0f} MiB"


def _arguments() -> argparse.Namespace:
    head, _, example = __doc__.partition("    python ")
    parser = argparse.ArgumentParser(
        description=head,
        epilog=f"example:\n    python {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--method", action="append", help="which (default: fedavg and fedbn)")
    parser.add_argument("--clients", action="append", type=int, help="how many (default: 100, 10000 and 100000)")
    parser.add_argument("--engine", default="sequential", help="fedshift's engine (default sequential)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a turn takes (default 3)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds an answer may take (default 600)")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write scale.md and scale.json there")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, and write it."""
    options = _arguments()
    if options.child:
        serve(options.child)
        return
    about = {
        "repeats": options.repeats,
        "seconds": options.seconds,
        "engine": options.engine,
        "command": f"python benchmarks/scale.py {' '.join(sys.argv[1:])}",
    }
    rows = measure(options)
    page = as_markdown(rows, about)
    print(page)
    if options.docs:
        options.docs.mkdir(parents=True, exist_ok=True)
        (options.docs / "scale.md").write_text(page)
        (options.docs / "scale.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        say(f"wrote {options.docs}/scale.md")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no child is left behind
    try:
        main()
    except (ChildError, KeyboardInterrupt) as error:
        sys.exit(f"ended: {error}")
