"""Fresh processes without the seconds that an interpreter takes to import torch.

A server imports torch and fedshift once, does nothing else, and forks a child for each request. A child is as a new
process is: nothing that tests registered is in its catalogues, and its folder, environment, signals and standard
streams are its own. Only the seed of Python's hashes is the server's, and torch begins with one thread. Where the start
of the interpreter is the claim, start an interpreter.

The server ends with the process that started it, and its children end with the server.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import itertools
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
PATIENCE = 300.0  # seconds until what waits takes it that something hangs
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
Environment = Mapping[str, str | None]


# What tests use ----------------------------------------------------------------------------------


def call(function: Callable[..., Any], *arguments: Any, cwd: object = None, env: Environment | None = None) -> Any:
    """Call a function of a module in a fresh process; returns what it returns, raises what it raises."""
    return start(function, *arguments, cwd=cwd, env=env).result()


def ok(*words: str) -> str:
    """What a command of fedshift prints, which must end well; in this process."""
    from typer.testing import CliRunner

    from fedshift.cli.app import app

    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def command(*words: object, cwd: object = None, env: Environment | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``fedshift WORDS`` in a fresh process."""
    return start(fedshift, *map(str, words), cwd=cwd, env=env).completed()


def start(function: Callable[..., Any], *arguments: Any, cwd: object = None, env: Environment | None = None) -> Process:
    """Begin to call a function of a module in a fresh process: :func:`fedshift`, :func:`script`, or one of a test.

    What it returns and takes can be pickled. ``env`` shows how its environment differs; None unsets a variable.
    """
    return _server().start(pickle.dumps((function, arguments)), str(cwd or Path.cwd()), env or {})


def fedshift(*words: str) -> None:
    """The command line."""
    from fedshift.cli.main import main

    sys.argv = ["fedshift", *words]
    main()


def script(path: str, *words: str) -> None:
    """``python PATH WORDS``."""
    sys.argv = [path, *words]
    sys.path[0] = str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")


def without_syncing() -> None:
    """Do not wait for the disk in this process: 5 ms, some fifty times in a run. No machine fails in the tests."""
    os.fsync = lambda descriptor: None


def until(condition: Callable[[], object], process: Process | None = None) -> None:
    """Wait until a condition contains, and while a process continues."""
    last = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process
        assert time.monotonic() < last, "it takes too long"
        time.sleep(0.01)


class Process:
    """A process in progress, or ended."""

    def __init__(self, server: _Server, pid: int, folder: Path) -> None:
        self._server, self.pid, self.folder = server, pid, folder
        self.returncode: int | None = None  # then its exit code, or the negative number of a signal

    def __str__(self) -> str:
        return f"process {self.pid} with exit code {self.returncode}: {self.stdout[-2000:]}{self.stderr[-2000:]}"

    @property
    def stdout(self) -> str:
        """What it has written on its standard output by now."""
        return (self.folder / "out").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has written on its standard error by now."""
        return (self.folder / "err").read_text(errors="replace")

    def poll(self) -> int | None:
        """Its return code if it has ended."""
        self._look()
        return self.returncode

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; returns its return code."""
        self._until_changed(seconds)
        assert self.returncode is not None, "it has stopped, and waits to be continued"
        return self.returncode

    def stopped(self) -> bool:
        """Wait until it has stopped (SIGSTOP), or ended; returns whether it has stopped."""
        return self._until_changed(PATIENCE)

    def completed(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end; returns its return code and what it wrote."""
        return subprocess.CompletedProcess(f"process {self.pid}", self.wait(), self.stdout, self.stderr)

    def result(self) -> Any:
        """Wait for its end; returns what the function returned, or raises what it raised."""
        self.wait()
        file = self.folder / "result"
        if not file.is_file():
            raise ChildProcessError(str(self))
        returned, raised = pickle.loads(file.read_bytes())
        if raised is not None:
            raised.add_note(self.stderr)
            raise raised
        return returned

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _look(self) -> bool:
        """Whether it has stopped since the last look."""
        status = self._server.ask("status", self.pid) if self.returncode is None else None
        if status is not None and not os.WIFSTOPPED(status):
            self.returncode, status = os.waitstatus_to_exitcode(status), None
        return status is not None

    def _until_changed(self, seconds: float) -> bool:
        last, pause = time.monotonic() + seconds, 0.001
        while not (stopped := self._look()) and self.returncode is None:
            if time.monotonic() > last:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                raise TimeoutError(f"{self} takes more than {seconds} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return stopped


# The server --------------------------------------------------------------------------------------


class _Server:
    """The tests' end of the server."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fresh-"))
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._connection, theirs = Pipe()
        code = f"import sys; sys.path[0] = {HERE!r}; import fresh; fresh.serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD, "OMP_WAIT_POLICY": "PASSIVE"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, what: str, *arguments: Any) -> Any:
        """A request and its answer."""
        with self._lock:
            self._connection.send((what, *arguments))
            return self._connection.recv()

    def start(self, work: bytes, cwd: str, env: Environment) -> Process:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        for name in ("out", "err"):
            (folder / name).touch()
        whole = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
        return Process(self, self.ask("start", work, cwd, whole, str(folder)), folder)


@cache
def _server() -> _Server:
    return _Server()


def serve(descriptor: int) -> None:
    """Answer requests until who requests has ended."""
    _prepare()
    connection, children = Connection(descriptor), set[int]()
    while True:
        try:
            what, *arguments = connection.recv()
        except (EOFError, ConnectionError):
            break
        if what == "start":
            answer: int | None = _forked(connection, *arguments)
            children.add(answer)
        else:
            child, answer = os.waitpid(*arguments, os.WUNTRACED | os.WNOHANG)
            answer = answer if child else None
            if child and not os.WIFSTOPPED(answer):
                children.remove(child)
        connection.send(answer)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _prepare() -> None:
    """Import what children need. No thread begins: it would not be there after a fork."""
    import torch

    torch.set_num_threads(1)
    without_syncing()
    modules = "study.api cli.main reporting.report_page reporting.live engines.workers engines.vectorised runs.trained"
    modules += " methods.client2vec.client2vec datasets.image_sets"
    for module in ("pytest", "hypothesis", *(f"fedshift.{name}" for name in modules.split())):
        import_module(module)
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # imports half of torch
    torch.func.vmap(torch.func.grad(torch.sum))(torch.zeros(1, 1))
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1], label="text")
    figure.savefig(io.BytesIO(), format="svg")  # finds the fonts
    gc.collect()
    gc.freeze()  # or each child would copy all of it when it collects


def _forked(connection: Connection, work: bytes, cwd: str, env: dict[str, str], folder: str) -> int:
    """Fork a child that does some work; returns its process id."""
    server, child = os.getpid(), os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when the server ends
            if os.getppid() == server:
                connection.close()
                code = _child(work, cwd, env, folder)
        finally:
            os._exit(code)
    return child


def _child(work: bytes, cwd: str, env: dict[str, str], folder: str) -> int:
    """Do the work as a new process would; returns the exit code."""
    import random

    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    random.seed()
    np.random.seed()  # noqa: NPY002  # as a new process has
    returned, raised, code = None, None, 0
    try:
        function, arguments = pickle.loads(work)
        returned = function(*arguments)
    except SystemExit as stopped:
        raised = stopped
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        if isinstance(stopped.code, str):
            sys.stderr.write(f"{stopped.code}\n")
    except BaseException as error:
        raised, code = error, 1
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it
            stream.flush()
    answer = pickle.dumps((returned, raised))
    with open(f"{folder}/result", "wb") as file:  # noqa: PTH123
        file.write(answer)
    return code
