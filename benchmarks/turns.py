"""Children that take turns: each waits in a process of its own until it is told to go on."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
PAUSE = 0.2  # seconds between turns, so that threads of the one before have gone to sleep
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(HERE),
}


class ChildError(Exception):
    """A child failed; the message says why."""


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Child:
    """A process that answers each line with one line of JSON."""

    def __init__(
        self,
        label: str,
        python: str,
        script: str,
        arguments: str,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it.

        Args:
            label: what it is called.
            python: the interpreter, with what the script imports.
            script: a file beside this one.
            arguments: its only argument.
            timeout: seconds after which an answer is given up.
            environment: its environment variables; by default this process's.

        Raises:
            ChildError: there is no such interpreter.
        """
        self.label, self.timeout = label, timeout
        if shutil.which(python) is None:
            raise ChildError(f"no interpreter at {python}")
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # lives as long as the child
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(HERE / script), arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**(os.environ if environment is None else environment), **QUIET},
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer.

        Raises:
            ChildError: it failed, ended or took too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChildError(self._why("ended")) from error
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer."""
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            raise ChildError(f"no answer within {self.timeout:g} s") from None
        if not line:
            raise ChildError(self._why("ended"))
        told: dict[str, Any] = json.loads(line)
        if "failed" in told:
            raise ChildError(str(told["failed"]).splitlines()[0][:200])
        return told

    def _why(self, what: str) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return f"{what}: {lines[-1][:200]}" if lines else what

    def close(self) -> None:
        """Let it end, and if it does not, end it and what it started."""
        try:
            self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            self._process.wait(timeout=15)
        except (subprocess.TimeoutExpired, OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()


@dataclass
class Player:
    """A child and what it measured.

    Attributes:
        label: its name in tables.
        start: starts the child.
        child: the child, while it is well.
        rounds: how many rounds a turn of its has.
        turns: seconds a round, a turn each; the first index is the repeat.
        about: versions, checks and notes.
        failed: why it is out, if it is.
    """

    label: str
    start: Callable[[], Child]
    child: Child | None = None
    rounds: int = 1
    turns: dict[int, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def median(self) -> float:
        """Median seconds a round."""
        return median(self.turns.values())

    def attempt(self, work: Callable[[Child], None]) -> None:
        """Do something with the child; if that fails, it is out."""
        try:
            if self.failed:
                return
            if self.child is None:
                self.child = self.start()
                self.about |= self.child.answer()
            work(self.child)
        except ChildError as error:
            self.failed = str(error)
            say(f"{self.label}: out ({self.failed})")
            self.close()

    def go(self, rounds: int) -> float:
        """Some rounds; seconds a round."""
        assert self.child is not None
        return float(self.child.ask(f"go {rounds}")["seconds"]) / rounds

    def settle(self, seconds: float) -> None:
        """Find how many rounds a turn of about so many seconds has."""

        def work(child: Child) -> None:
            some = max(1, min(1000, int(0.3 * seconds / self.go(1))))
            self.rounds = max(1, min(10_000, round(seconds / self.go(some))))
            self.about["settled"] = 1 + some

        self.attempt(work)

    def turn(self, repeat: int) -> None:
        """One turn, measured."""

        def work(child: Child) -> None:
            self.turns[repeat] = self.go(self.rounds)

        self.attempt(work)
        if not self.failed:
            say(f"turn {repeat + 1}: {self.label} {1000 * self.turns[repeat]:.1f} ms a round ({self.rounds} rounds)")

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            self.child.close()
            self.child = None


def take_turns(players: Sequence[Player], repeats: int) -> None:
    """Let all take turns; who begins changes with every repeat."""
    for repeat in range(repeats):
        first = repeat % len(players)
        for player in (*players[first:], *players[:first]):
            time.sleep(PAUSE)
            player.turn(repeat)


def ratios(player: Player, reference: Player) -> list[float]:
    """How many times as fast as the reference, repeat by repeat."""
    both = sorted(player.turns.keys() & reference.turns.keys())
    return [reference.turns[repeat] / player.turns[repeat] for repeat in both]
