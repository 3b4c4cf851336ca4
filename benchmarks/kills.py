"""Random kills of a real federation on this machine, one after the other: is anything lost?

A coordinator and three sites carry out FedSR. At random moments a random process of theirs is killed, and what a user
would start again is started again; the rest is left to the members' own commands. A round goes on without a site that
is away, and its absence is on record; so the weights at the end must be, bit for bit, those of a run in one process
that nothing disturbs but the same absences.
(FedSR's clients keep no state: whether a site that was killed had already trained makes no difference to the others.)

    python benchmarks/kills.py --kills 10 --rounds 30 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from conftest import TINY
from federated import SITES
from fedshift.deployment.supervisor import listens
from fedshift.errors import FedshiftError
from fedshift.runs.run import Run
from fedshift.study.grid import expand, override
from loopback import DATA, EXECUTOR, GATE, SERVER, SUPERLINK, SUPERNODE, Loopback, events, loopback
from test_flower import as_replayed, missing
from test_methods import small
from turns import say

OF_COORDINATOR: Mapping[str, str] = {"serve": "", "SuperLink": SUPERLINK, "gate": GATE, "run": SERVER}
OF_SITE: Mapping[str, str] = {"join": "", "SuperNode": SUPERNODE, "executor": EXECUTOR}
KINDS = (*OF_COORDINATOR, *OF_SITE)  # the first of each is killed with all that it has started
BETWEEN = 5.0, 40.0  # seconds from what the coordinator last heard of sites after a kill to the next
DEADLINE = 180.0  # seconds for an exchange
PAUSE = 5.0  # seconds before a process that has ended is started again


@dataclass
class Kill:
    """A kill.

    Attributes:
        what: the process, and whose it was.
        position: how many rounds were done.
        when: seconds since the beginning.
        recovered: seconds until the coordinator heard of sites again; None: it has not yet.
    """

    what: str
    position: int
    when: float
    recovered: float | None = None


class Killer:
    """Kills processes of a federation whose run goes on, and starts again what has ended."""

    def __init__(self, federation: Loopback, run: Run, random: Random) -> None:
        self.federation, self.run, self.random = federation, run, random
        self.kills: list[Kill] = []
        self.started = time.monotonic()
        self.runs = 0

    def carry_out(self, count: int) -> None:
        """Kill so many processes before the run ends."""
        self._begin()
        heard, due = 0, 0.0
        while not self.run.finished:
            self._revive()
            if (now_heard := len(self._answers())) > heard:
                heard = now_heard
                if self.kills and self.kills[-1].recovered is None:
                    self.kills[-1].recovered = self._now - self.kills[-1].when
                due = due or self._now + self.random.uniform(*BETWEEN)
            if due and self._now >= due and len(self.kills) < count and self._kill():
                due = 0.0
            time.sleep(0.2)
        self.federation.end_run()

    @property
    def _now(self) -> float:
        return time.monotonic() - self.started

    def _answers(self) -> list[dict[str, Any]]:
        return [event for event in events(self.run) if event["what"] in ("joined", "answered", "scored")]

    def _begin(self) -> None:
        self.runs += 1
        self.federation.begin_run()

    def _kill(self) -> bool:
        """Kill a process, if there is one of the kind that was drawn."""
        kind, site = self.random.choice(KINDS), self.random.choice(SITES)
        owner = "coordinator" if kind in OF_COORDINATOR else site
        program = {**OF_COORDINATOR, **OF_SITE}[kind]
        if not self.federation.is_running(owner):
            return False
        position = max((event["position"] for event in events(self.run, "progress")), default=0)
        try:
            if program:
                self.federation.crash_program(owner, program)
            else:
                self.federation.crash(owner)
        except LookupError:  # no message is on its way there, say
            return False
        what = kind if owner == "coordinator" else f"{kind} of {site}"
        self.kills.append(Kill(what, position, self._now))
        say(f"kill {len(self.kills)}: {what}, after {position} rounds")
        if kind == "serve":
            self.federation.processes.start_coordinator()
        return True

    def _revive(self) -> None:
        """Start again what has ended: a site's command, and the run's."""
        for site in SITES:
            if not self.federation.is_running(site):
                time.sleep(PAUSE)
                self.federation.processes.start_site(site)
        port = self.federation.processes.control_port
        if not self.federation.is_running("run") and not self.run.finished and listens("127.0.0.1", port):
            time.sleep(PAUSE)
            self._begin()


def as_markdown(killer: Killer, command: str) -> str:
    """The page."""
    lines = [
        "# Random kills",
        "",
        f"{len(killer.kills)} kills, `fedshift federation run` typed {killer.runs} times; "
        f"{len(missing(killer.run))} of "
        f"{len(SITES) * len(killer.run.records)} answers are missing, each on record. The run ended with the weights "
        "of one that nothing disturbs but these absences, bit for bit.",
        "",
        f"    {command}",
        "",
        "| | killed | after rounds | at second | seconds until sites answered again |",
        "|---|---|---|---|---|",
    ]
    for number, kill in enumerate(killer.kills, 1):
        recovered = "" if kill.recovered is None else f"{kill.recovered:.0f}"
        lines.append(f"| {number} | {kill.what} | {kill.position} | {kill.when:.0f} | {recovered} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Carry the run out and print the table."""
    head, _, example = __doc__.partition("    python ")
    parser = argparse.ArgumentParser(
        description=head,
        epilog=f"example:\n    python {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=10, help="how many (default 10)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the run (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills (default 0)")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write kills.md there")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as at the sites
    changes = {"data": DATA, "protocol": {"name": "in-domain"}, "evaluate.batch": 6, "train.rounds": options.rounds}
    (experiment,) = expand(override(TINY, {**small("fedsr"), **changes, "train.min_answers": 0.3}))
    with (
        tempfile.TemporaryDirectory() as folder,
        loopback(Path(folder) / "trial", experiment, deadline=DEADLINE) as federation,
    ):
        federation.start()
        run = federation.agree(experiment)
        killer = Killer(federation, run, Random(options.seed))
        killer.carry_out(options.kills)
        as_replayed(federation, run)
        page = as_markdown(killer, f"python benchmarks/kills.py {' '.join(sys.argv[1:])}")
    if len(killer.kills) < options.kills:
        raise FedshiftError(f"The run ended after {len(killer.kills)} kills: give it more --rounds.")
    print(page)
    if options.docs:
        options.docs.mkdir(parents=True, exist_ok=True)
        (options.docs / "kills.md").write_text(page)


if __name__ == "__main__":
    try:
        main()
    except FedshiftError as error:
        sys.exit(str(error))
