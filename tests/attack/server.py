"""A process that has imported everything and forks a child for each case, which is a hundred times faster than anew.

It reads requests from its input, a line of JSON each, and answers each with a line. See :mod:`forks` for the other end.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def serve() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        match request.pop("do"):
            case "preload":
                import_module(request["module"])
                answer: Any = None
            case "start":
                answer = start(**request)
            case "wait":
                answer = wait(**request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def start(**case: Any) -> int:
    """Fork a child that carries out a case; returns its process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = carry_out(**case)
        finally:
            os._exit(code)
    return child


def wait(process: int, seconds: float) -> tuple[str, int]:
    """Wait until a child has ended, or has stopped: ("exit", code), ("signal", number) or ("stopped", number)."""
    last = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WUNTRACED | os.WNOHANG)
        if ended:
            break
        if time.monotonic() > last:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return "signal", signal.SIGALRM
        time.sleep(0.001)
    if os.WIFSTOPPED(status):
        return "stopped", os.WSTOPSIG(status)
    return ("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ("exit", os.WEXITSTATUS(status))


def carry_out(
    cwd: str,
    output: str,
    steps: Sequence[Sequence[str]],
    fault: dict[str, Any] | None,
    environment: dict[str, str | None],
    memory: int,
    seconds: int,
    closed: bool,
) -> int:
    """In the child: take the steps one after the other; each leaves ``<n>.out``, ``<n>.err`` and ``<n>.code``."""
    from attack.faults import Fault, Interception

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    for name, value in environment.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    if memory:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    interception = Interception(Fault(**fault)) if fault else None
    code = 0
    for number, step in enumerate(steps):
        base = os.path.join(output, str(number))  # noqa: PTH118  # the child's own files, beside any interception
        for descriptor, ending in ((1, "out"), (2, "err")):
            file = os.open(f"{base}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
            os.close(file)
        if closed:
            reading, writing = os.pipe()
            os.close(reading)
            os.dup2(writing, 1)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            setattr(sys, name, io.TextIOWrapper(os.fdopen(os.dup(descriptor), "wb"), write_through=True))
        signal.alarm(seconds)
        code = take(step)
        signal.alarm(0)
        file = os.open(f"{base}.code", os.O_WRONLY | os.O_CREAT)
        os.write(file, str(code).encode())
        os.close(file)
    if interception:
        interception.finish()
    return code


def take(step: Sequence[str]) -> int:
    """One step, a command line or a probe; returns its exit code."""
    from attack import probes
    from fedshift.cli import app
    from fedshift.errors import FedshiftError

    what, *arguments = step
    try:
        if what == "fedshift":
            sys.argv = ["fedshift", *arguments]
            app.main()
        else:
            try:
                getattr(probes, what)(*arguments)
            except FedshiftError as error:
                sys.stderr.write(f"Error: {error}\n")  # as the command line does
                return 2
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                continue
    return 0


def prepare() -> None:
    """Import what children need, and fix what decides bits."""
    sys.path[0] = str(HERE.parent)
    import torch

    torch.set_num_threads(1)
    from fedshift.settings.experiment import load_plugins

    for module in (
        "fedshift.api",
        "fedshift.cli.app",
        "fedshift.reporting.page",
        "fedshift.reporting.live",
        "fedshift.engines.workers",
        "fedshift.engines.vectorised",
        "fedshift.methods.client2vec.client2vec",
        "fedshift.datasets.folder",
        "fedshift.runs.trained",
        "attack.faults",
        "attack.probes",
    ):
        import_module(module)
    load_plugins([str(HERE.parent / "tiny.py")])
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # imports half of torch
    torch.func.vmap(torch.func.grad(torch.sum))(torch.zeros(1, 1))
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1], label="text")
    figure.savefig(io.BytesIO(), format="svg")  # finds the fonts
    gc.collect()
    gc.freeze()  # or each child would copy all of it when it collects


if __name__ == "__main__":
    prepare()
    serve()
