"""What a case may do beside commands, from Python: each prints the result, or ends with one FedshiftError."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import IO, Any


def say(value: object) -> None:
    """Print a line."""
    sys.stdout.write(f"{value}\n")


def run(source: str) -> None:
    """As the command, without its report, whose figures take twice the time of the run."""
    import fedshift

    say(fedshift.load(fedshift.run(source).path))


def compare(source: str) -> None:
    """As the command, without its report."""
    import fedshift
    from fedshift.errors import FedshiftError

    comparison = fedshift.compare(source)
    say(comparison)
    if comparison.failure:
        raise FedshiftError(comparison.failure)


def resume(path: str) -> None:
    """As the command, without its report."""
    import fedshift

    say(fedshift.resume(path))


def load(path: str) -> None:
    """Print all that is reported of the runs at a path."""
    import fedshift

    comparison = fedshift.load(path)
    runs = {
        run.path.name: {"finished": run.finished, "records": run.records, "messages": run.messages}
        for run in comparison.runs
    }
    say(json.dumps({"runs": runs, "measurements": comparison.measurements(), "notes": comparison.notes()}))


def plain(*arguments: str) -> None:
    """A command line, its figures empty: they take long, and show what the tables state."""
    from matplotlib.figure import Figure

    from fedshift.cli import main

    def savefig(figure: Figure, file: IO[Any], **options: Any) -> None:
        empty = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
        file.write(empty if isinstance(file, io.TextIOBase) else empty.encode())

    Figure.savefig = savefig  # type: ignore[method-assign]  # in this child only
    sys.argv = ["fedshift", *arguments]
    main.main()


def nameless(*arguments: str) -> None:
    """As :func:`plain`, for a user whom the machine does not know, as in a container."""
    import pwd

    def getpwuid(uid: int) -> Any:
        raise KeyError(uid)

    pwd.getpwuid = getpwuid
    plain(*arguments)


def model(path: str) -> None:
    """Print a digest of what a run's models answer, the global one (where there is one) and each client's."""
    import torch

    from fedshift.runs.run import Run

    run = Run.open(path)
    x = torch.linspace(-1, 1, 5 * 100).view(5, 1, 10, 10)
    with torch.no_grad():
        answers = [run.model(client)(x).numpy().tobytes() for client in ("dark", "gray")]
    say([hashlib.blake2b(answer, digest_size=8).hexdigest() for answer in answers])


def python(code: str) -> None:
    """Run a script's text."""
    exec(compile(code, "script.py", "exec"), {"__name__": "__main__", "Path": Path})
