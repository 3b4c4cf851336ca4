"""Processes of the forkserver are as new ones are, and none outlives who requested it."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

import fresh


def state() -> tuple[int, str, str | None, bool, int]:
    import fedshift

    here = str(Path.cwd())
    return os.getpid(), here, os.environ.get("MINE"), "tiny" in fedshift.DATASETS, threading.active_count()


def wait() -> None:
    sys.stdout.write("waiting\n")
    time.sleep(600)


def test_a_child_is_as_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINE", "mine")
    before = os.getpid(), Path.cwd()
    pid, here, mine, registered, threads = fresh.call(state, cwd=tmp_path)
    assert pid != os.getpid()
    assert (here, mine, registered, threads) == (str(tmp_path), "mine", False, 1)
    assert fresh.call(state, env={"MINE": None})[2] is None
    assert (os.getpid(), Path.cwd()) == before


def leave_a_child(folder: str) -> tuple[int, int]:
    """Ends without a word to the server that it started."""
    ours, theirs = Pipe()
    server = os.fork()
    if server == 0:
        ours.close()
        fresh.serve(theirs.fileno())
        os._exit(0)
    ours.send(("start", pickle.dumps((wait, ())), folder, dict(os.environ), folder))
    child = ours.recv()
    fresh.until(lambda: "waiting" in Path(folder, "out").read_text())
    return server, child


def test_nothing_outlives_who_asked(tmp_path: Path):
    for name in ("out", "err"):
        (tmp_path / name).touch()
    for pid in fresh.call(leave_a_child, str(tmp_path)):
        fresh.until(lambda pid=pid: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
