"""A case in a fresh process: some steps, with what goes wrong meanwhile and what it may take."""

from __future__ import annotations

import io
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attack import probes
from attack.faults import Fault, Interception

TINY = str(Path(__file__).parents[1] / "tiny.py")


def carry_out(
    steps: Sequence[Sequence[str]],
    folders: Sequence[str],
    output: str,
    fault: Fault | None,
    memory: int,
    seconds: int,
    closed: bool,
) -> None:
    """Take the steps one after the other, each in its folder; each leaves ``<n>.out``, ``<n>.err`` and ``<n>.code``."""
    from fedshift.experiments import load_plugins

    load_plugins([TINY])
    if memory:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    interception = Interception(fault) if fault else None
    code = 0
    for number, (step, folder) in enumerate(zip(steps, folders, strict=True)):
        os.chdir(folder)
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
    sys.exit(code)


def take(step: Sequence[str]) -> int:
    """One step, a command line or a probe; returns its exit code."""
    from fedshift.cli import main
    from fedshift.errors import FedshiftError

    what, *arguments = step
    try:
        if what == "fedshift":
            sys.argv = ["fedshift", *arguments]
            main.main()
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
