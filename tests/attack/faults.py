"""Failures of the machine, in a child process, at any file operation below a folder.

Every operation that changes a file (open for writing, write, flush to the disk, rename, unlink, mkdir, truncate) is
counted where Python hands it to the system, so whatever code makes it is covered. Lines of events.jsonl count not: how
many there are depends on how fast a run is. At the k-th operation the process is killed, the system reports an error, a
signal comes, or the process stops until it receives to continue.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMED = "events.jsonl"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and when."""

    root: str  # operations below this folder count
    at: int = 0  # the operation, from 1, at which it happens; 0: never
    kill: bool = False  # the process is killed, in the middle of a write
    error: int = 0  # the system's error number; 0: none
    lasting: bool = False  # all later operations fail as well
    send: int = 0  # a signal that comes before the operation; SIGSTOP pauses the process
    orphans: bool = False  # the processes that this one started are killed
    trace: str = ""  # a file that receives a line for each operation when the process ends


class Interception:
    """Counts the operations of this process, and makes its fault happen."""

    def __init__(self, fault: Fault) -> None:
        """Take the place of the system's functions."""
        self.fault = fault
        self.operations: list[str] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._root = os.path.realpath(fault.root) + os.sep
        self._open, self._write = io.open, os.write
        io.open = builtins.open = self._opened  # type: ignore[assignment]
        paths = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "truncate")
        for name in (*paths, "fsync", "fdatasync", "ftruncate"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        os.open = self._os_opened(os.open)
        os.write = self._os_written(os.write)

    def finish(self) -> None:
        """Write down which operations there were."""
        if self.fault.trace:
            with self._open(self.fault.trace, "w") as file:
                file.write("\n".join(self.operations))

    def operation(self, kind: str, path: Any, tear: Callable[[], object] = lambda: None) -> None:
        """Count an operation; if it is the one, the fault happens. ``tear`` does a part of what was requested."""
        if os.getpid() != self._process or not self._inside(path):
            return
        name = Path(os.fsdecode(self._path(path))).name
        timed = name == TIMED and kind in ("open", "write")
        with self._lock:
            if not timed:
                self.operations.append(f"{kind} {name}")
            count, fault = len(self.operations), self.fault
        if not ((count == fault.at and not timed) or (fault.lasting and 0 < fault.at < count)):
            return
        if fault.kill:
            tear()
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.error and (count == fault.at or kind not in ("unlink", "remove")):
            with contextlib.suppress(OSError):
                tear()
            raise OSError(fault.error, os.strerror(fault.error), str(self._path(path)))
        if fault.send:
            os.kill(os.getpid(), fault.send)
        if fault.orphans:
            kill_children(os.getpid())

    def _path(self, path: Any) -> str:
        if isinstance(path, int):
            try:
                return str(Path(f"/proc/self/fd/{path}").readlink())
            except OSError:
                return ""
        return os.fsdecode(os.path.realpath(path))

    def _inside(self, path: Any) -> bool:
        return (self._path(path) + os.sep).startswith(self._root)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(path: Any, *rest: Any, **options: Any) -> Any:
            if not options.get("dir_fd"):
                self.operation(name, path)
            return real(path, *rest, **options)

        return function

    def _os_opened(self, real: Callable[..., int]) -> Callable[..., int]:
        def function(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & WRITING and not options.get("dir_fd"):
                self.operation("open", path)
            return real(path, flags, *rest, **options)

        return function

    def _os_written(self, real: Callable[..., int]) -> Callable[..., int]:
        def function(descriptor: int, data: Any) -> int:
            self.operation("write", descriptor, lambda: real(descriptor, bytes(data)[: len(data) // 2]))
            return real(descriptor, data)

        return function

    def _opened(self, file: Any, mode: str = "r", buffering: int = -1, *text: Any, **more: Any) -> Any:
        """As ``open``; what is written to the file counts when the system gets it."""
        if isinstance(file, int) or not set(mode) & set("wax+") or not self._inside(file):
            return self._open(file, mode, buffering, *text, **more)
        self.operation("open", file)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), opener=more.pop("opener", None))
        raw.interception = self
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **more)


class _Raw(io.FileIO):
    """A file whose writes count."""

    interception: Interception

    def write(self, data: Any) -> int:
        whole = bytes(data)
        self.interception.operation("write", self.fileno(), lambda: super(_Raw, self).write(whole[: len(whole) // 2]))
        return super().write(whole)


def kill_children(process: int) -> int:
    """Kill the processes that another one started; returns how many there were."""
    children: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return len(children)
