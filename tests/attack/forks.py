"""Cases in child processes: the tests' end of :mod:`server`."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attack.faults import Fault

GIB = 2**30
PATIENCE = 60  # seconds of a step
Step = Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Attributes:
        step: what was asked.
        code: the exit code; the negative number of a signal.
        out: what it wrote on standard output.
        err: what it wrote on standard error.
    """

    step: Step
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        how = "hangs" if self.code == -signal.SIGALRM else f"ends with {self.code}"
        tail = (self.err.strip() or self.out.strip())[-700:]
        return f"`{' '.join(self.step)}` {how}: {tail}"

    @property
    def fine(self) -> bool:
        """Whether it did what was asked."""
        return self.code == 0 and "Traceback" not in self.err

    @property
    def refused(self) -> bool:
        """Whether it ended with one clear error: exit code 2, a single short message and no traceback."""
        usage = self.err.startswith(("Usage: ", "╭─ Error"))  # of the command line's own parser
        messages = len(re.findall("^Error: ", self.err, re.MULTILINE))
        return self.code == 2 and "Traceback" not in self.err and (usage or messages == 1) and len(self.err) < 3000

    @property
    def clean(self) -> bool:
        """Whether it is one of the two."""
        return self.fine or self.refused


@dataclass(frozen=True)
class Child:
    """A case under way."""

    forks: Forks
    process: int
    steps: Sequence[Step]
    output: Path

    def wait(self, seconds: float = PATIENCE) -> list[Outcome]:
        """Wait for its end.

        Returns:
            How each step ended; the last may have been cut off, and those after it were not begun.
        """
        how, number = self.forks.ask(do="wait", process=self.process, seconds=seconds)
        assert how != "stopped", "it stopped, and waits to be continued"
        outcomes = []
        for index, step in enumerate(self.steps):
            files = {ending: self.output / f"{index}.{ending}" for ending in ("out", "err", "code")}
            out, err = (
                files[ending].read_text(errors="replace") if files[ending].is_file() else ""
                for ending in ("out", "err")
            )
            if files["code"].is_file():
                outcomes.append(Outcome(step, int(files["code"].read_text()), out, err))
                continue
            outcomes.append(Outcome(step, -number if how == "signal" else number, out, err))
            break
        return outcomes

    def stopped(self, seconds: float = PATIENCE) -> bool:
        """Wait until it has stopped, or ended; whether it has stopped."""
        how, _ = self.forks.ask(do="wait", process=self.process, seconds=seconds)
        return bool(how == "stopped")

    def go_on(self) -> None:
        """Continue after a stop."""
        os.kill(self.process, signal.SIGCONT)


class Forks:
    """A server that forks children, and where they leave what they say."""

    def __init__(self, folder: Path) -> None:
        """Start the server; it is ready when it answers."""
        self._folder = folder
        self._numbers = itertools.count()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **threads, "FEDSHIFT_CACHE": str(folder / "cache"), "COLUMNS": "160"}
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the server."""
        self._server.communicate()

    def ask(self, **request: Any) -> Any:
        """A request and its answer."""
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the server of forks has ended"
        return json.loads(answer)

    def preload(self, module: str) -> None:
        """Import a module before children are forked."""
        self.ask(do="preload", module=module)

    def start(
        self,
        *steps: Step,
        cwd: Path,
        fault: Fault | None = None,
        environment: Mapping[str, str | None] | None = None,
        memory: int = 0,
        seconds: int = PATIENCE,
        closed: bool = False,
    ) -> Child:
        """Begin a case.

        Args:
            steps: each ``("fedshift", *arguments)``, or the name of a probe and its arguments.
            cwd: the folder it runs in.
            fault: what goes wrong.
            environment: environment variables to set; None unsets one.
            memory: bytes of address space beyond what the child begins with; 0: without limit.
            seconds: how long a step may take.
            closed: whether nobody reads its standard output.
        """
        output = self._folder / f"case-{next(self._numbers)}"
        output.mkdir()
        process = self.ask(
            do="start",
            cwd=str(cwd),
            output=str(output),
            steps=steps,
            fault=asdict(fault) if fault else None,
            environment=dict(environment or {}),
            memory=memory,
            seconds=seconds,
            closed=closed,
        )
        return Child(self, process, steps, output)

    def run(self, *steps: Step, **options: Any) -> list[Outcome]:
        """A case from its beginning to its end."""
        return self.start(*steps, **options).wait(seconds=PATIENCE * len(steps))
