"""Cases in fresh processes: what the tests ask of :mod:`case`, and how it ended."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fresh
from attack import case
from attack.faults import Fault

GIB = 2**30
PATIENCE = 120  # seconds until a step is taken to hang
Step = Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """How a step ended."""

    step: Step
    code: int  # the negative number of a signal
    out: str
    err: str

    def __str__(self) -> str:
        how = "hangs" if self.code == -signal.SIGALRM else f"ends with {self.code}"
        tail = (self.err.strip() or self.out.strip())[-700:]
        return f"`{' '.join(self.step)}` {how}: {tail}"

    @property
    def fine(self) -> bool:
        """Whether it did what was requested."""
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
    """A case in progress."""

    process: fresh.Process
    steps: Sequence[Step]
    output: Path

    def wait(self) -> list[Outcome]:
        """Wait for its end; the last step may have been cut off, and those after it were not started."""
        ended = self.process.wait()
        outcomes = []
        for index, step in enumerate(self.steps):
            files = [self.output / f"{index}.{ending}" for ending in ("out", "err", "code")]
            out, err, code = (file.read_text(errors="replace") if file.is_file() else "" for file in files)
            outcomes.append(Outcome(step, int(code or ended), out, err if code else err or self.process.stderr))
            if not code:
                break
        return outcomes

    def go_on(self) -> None:
        """Continue after a stop."""
        self.process.send_signal(signal.SIGCONT)


class Forks:
    """Begins cases, and knows where they leave what they state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def start(
        self,
        *steps: Step,
        cwd: Path | Sequence[Path],
        fault: Fault | None = None,
        environment: Mapping[str, str | None] | None = None,
        memory: int = 0,
        seconds: int = PATIENCE,
        closed: bool = False,
    ) -> Child:
        """Begin a case.

        Args:
            steps: each ``("fedshift", *arguments)``, or the name of a probe and its arguments.
            cwd: the folder it runs in, or the folder of each step.
            fault: what goes wrong.
            environment: environment variables to set; None unsets one.
            memory: bytes of address space beyond what the child begins with; 0: without limit.
            seconds: how long a step may take.
            closed: whether nobody reads its standard output.
        """
        output = self._folder / f"case-{next(self._numbers)}"
        output.mkdir()
        folders = [str(folder) for folder in ([cwd] * len(steps) if isinstance(cwd, Path) else cwd)]
        process = fresh.start(
            case.carry_out,
            *(steps, folders, str(output), fault, memory, seconds, closed),
            env={"FEDSHIFT_CACHE": str(self._folder / "cache"), "COLUMNS": "160", **fresh.ONE_THREAD}
            | dict(environment or {}),
        )
        return Child(process, steps, output)

    def run(self, *steps: Step, **options: Any) -> list[Outcome]:
        """A case from its beginning to its end."""
        return self.start(*steps, **options).wait()
