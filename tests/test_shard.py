"""Processes that share the runs of a folder: each run once, none lost, and no clock is believed."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Make
from fedshift.errors import DivergedError, LockedError
from fedshift.runs import locks, runner, scheduling, together
from fedshift.runs.events import Progress
from fedshift.runs.locks import CLAIM, Claim, check_locked, is_locked, locked
from fedshift.runs.run import Run
from fedshift.runs.shard import Shard
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import Document, expand, override
from fedshift.study.search import Budget
from fedshift.study.tune import search_all
from refusal import refuses

LONG = {"train.rounds": 6, "evaluate.every": 1, "run.checkpoint_every": 2, "run.engine": "sequential"}


def child(work: Callable[[], object]) -> int:
    """A process that does something; its number."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """How a process ended: its exit code, or minus a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each time that a process carries a run on: its name and the position it begins at."""
    log, real = tmp_path / "begun", together._begin

    def begin(simulation: Any, folder: Run, position: int, *rest: Any) -> Any:
        with log.open("a") as file:
            file.write(f"{folder.path.name} {position}\n")
        time.sleep(0.05)  # so that processes are running side by side
        return real(simulation, folder, position, *rest)

    monkeypatch.setattr(together, "_begin", begin)
    monkeypatch.setattr(scheduling, "CHECK_SECONDS", 0.02)
    return log


def weights(folders: list[Run]) -> list[bytes]:
    return [(each.path / "weights.safetensors").read_bytes() for each in folders]


# Whose turn a run is ------------------------------------------------------------------------------


@given(count=st.integers(1, 9), items=st.integers(0, 40))
def test_every_shard_has_all_items_and_none_begins_with_anothers(count: int, items: int):
    orders = [Shard(number, count).order(range(items)) for number in range(1, count + 1)]
    assert all(sorted(order) == [*range(items)] for order in orders)
    firsts = [order[: -(-(items - number) // count)] for number, order in enumerate(orders) if number < items]
    assert sorted(each for first in firsts for each in first) == [*range(items)]


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "-1/2", "1 / 2", "1/2/3"])
def test_what_is_no_shard_is_refused(text: str):
    with refuses("shard =", "1/16"):
        Shard.of(text)
    assert Shard.of("3/16") == Shard(3, 16)


# Runs ---------------------------------------------------------------------------------------------


def test_each_run_is_carried_out_once_whatever_the_clocks_say(tiny_document: Document, tmp_path: Path, begun: Path):
    """Three processes, one of whose clocks is a day late, make the bits of one; each has all runs in the end."""
    alone, _ = runner.run_all(
        expand(override(tiny_document, LONG | {"seed": [*range(7)], "name": "alone"})), Progress()
    )
    begun.unlink()
    requested = expand(override(tiny_document, LONG | {"seed": [*range(7)], "name": "shared"}))

    def work(number: int) -> None:
        if number == 2:
            now = time.time
            time.time = lambda: now() - 86_400  # type: ignore[assignment]
        folders, failed = runner.run_all(requested, Progress(), Shard(number, 3))
        assert (len(folders), failed) == (7, {})

    assert [ended(pid) for pid in [child(lambda number=number: work(number)) for number in (1, 2, 3)]] == [0, 0, 0]
    assert sorted(begun.read_text().split("\n")[:-1]) == sorted(f"{each.run_name} 0" for each in requested)
    assert weights([Run(scheduling.run_path(each)) for each in requested]) == weights(alone)


def test_the_run_of_a_process_that_dies_goes_on(tiny_document: Document, tmp_path: Path, begun: Path):
    """SIGKILL after a checkpoint: the others take the run over from there, and begin no other again."""
    requested = expand(override(tiny_document, LONG | {"seed": [*range(5)]}))
    first = requested[0].run_name

    def dies() -> None:
        real = together._save

        def save(*given: Any) -> None:
            real(*given)
            os.kill(os.getpid(), signal.SIGKILL)

        together._save = save  # type: ignore[assignment]
        runner.run_all(requested, Progress(), Shard(1, 2))

    assert ended(child(dies)) == -signal.SIGKILL
    pids = [child(lambda number=number: runner.run_all(requested, Progress(), Shard(number, 2))) for number in (1, 2)]
    assert [ended(pid) for pid in pids] == [0, 0]
    lines = Counter(begun.read_text().split("\n")[:-1])
    assert lines == Counter([f"{each.run_name} 0" for each in requested] + [f"{first} 2"])


def test_a_run_that_another_process_has_just_finished_is_not_begun_again(make: Make, begun: Path):
    """It may end while this one loads its data."""
    experiment = make(LONG)
    done = runner.start(experiment, Progress())
    simulation = Simulation(experiment)
    choice = simulation.choice(lambda text: None)
    (error,) = together.run_together([(simulation, Run(done.path))], choice, Progress()).values()
    assert isinstance(error, LockedError)
    assert len(begun.read_text().split("\n")[:-1]) == 1


def test_a_run_that_diverged_is_not_tried_by_the_others(tiny_document: Document, begun: Path):
    requested = expand(override(tiny_document, LONG | {"train.lr": [0.01, 1000.0], "seed": [0, 1]}))
    failed = [runner.run_all(requested, Progress(), Shard(number, 2))[1] for number in (1, 2)]
    assert len(begun.read_text().split("\n")[:-1]) == 4
    ours, theirs = ({why.what for why in its.values() if isinstance(why, DivergedError)} for its in failed)
    assert ours == theirs
    assert {path.name for path in failed[1]} == {each.run_name for each in requested if each.train.lr > 1}


def test_a_search_that_is_shared_finds_what_one_finds(tiny_document: Document, begun: Path):
    """Random trials on two seeds, some of them pruned, and finalists: the same trials, values and file."""
    budget = Budget(trials=12, sampler="random", finalists=2)
    settings = LONG | {"seed": [0, 1], "train.lr": 0.01}
    alone = search_all(expand(override(tiny_document, settings | {"name": "alone"})), budget, Progress())
    begun.unlink()
    requested = expand(override(tiny_document, settings | {"name": "shared"}))
    pids = [
        child(lambda number=number: search_all(requested, budget, Progress(), Shard(number, 3))) for number in (1, 2, 3)
    ]
    assert [ended(pid) for pid in pids] == [0, 0, 0]
    assert max(Counter(begun.read_text().split("\n")[:-1]).values()) == 1
    found = search_all(requested, budget, Progress())
    assert [(each.settings, each.state, each.value, each.curve) for each in found.studies[0].trials] == [
        (each.settings, each.state, each.value, each.curve) for each in alone.studies[0].trials
    ]
    assert found.tuned.tuned[0].settings == alone.tuned.tuned[0].settings


# Locks --------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """The claim of a process on another machine, whose locks do not reach this one."""
    monkeypatch.setattr(locks, "SILENT", 0.6)
    monkeypatch.setattr(locks, "LOOKS", 0.02)
    claim = Claim("ward-7", "another boot", 4711, "abc")
    write(tmp_path, claim)
    return claim


def write(folder: Path, claim: Claim) -> None:
    (folder / CLAIM).write_text(json.dumps(asdict(claim)))


def test_a_claim_that_stands_still_is_taken_over_and_one_that_beats_is_not(tmp_path: Path, elsewhere: Claim):
    """Its file's times, which another machine's clock made, mean nothing."""

    def beat() -> None:
        time.sleep(0.1)
        write(tmp_path, replace(elsewhere, beats=1))
        os.utime(tmp_path / CLAIM, (0, 0))

    os.utime(tmp_path / CLAIM, (0, 0))
    beats = child(beat)
    assert is_locked(tmp_path)
    with refuses("process 4711 of ward-7", error=LockedError), locked(tmp_path):
        pass
    assert ended(beats) == 0
    os.utime(tmp_path / CLAIM, (2**32, 2**32))
    with locked(tmp_path):
        assert Claim.of(tmp_path) != elsewhere
        check_locked(tmp_path)
    assert not (tmp_path / CLAIM).exists()
    assert not is_locked(tmp_path)


def test_who_was_taken_over_ends_before_it_writes(tmp_path: Path, elsewhere: Claim):
    (tmp_path / CLAIM).unlink()
    with locked(tmp_path):
        write(tmp_path, elsewhere)
        with refuses("taken over", error=LockedError):
            check_locked(tmp_path)
    assert Claim.of(tmp_path) == elsewhere  # it is not ours to remove


def test_a_claim_beats_while_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "BEAT", 0.01)
    with locked(tmp_path):
        end = time.monotonic() + 20
        while (claim := Claim.of(tmp_path)) and claim.beats < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert claim
        assert claim.beats >= 3


def test_a_process_that_was_killed_leaves_nothing_locked(tmp_path: Path):
    """On its own machine its claim is nobody's at once."""

    def dies() -> None:
        with locked(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    assert ended(child(dies)) == -signal.SIGKILL
    assert Claim.of(tmp_path)
    began = time.monotonic()
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass
    assert time.monotonic() - began < locks.SILENT / 2


def test_where_there_are_no_links_a_claim_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on exFAT. Another's that comes in between is not overwritten."""

    def refuse(*given: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with locked(tmp_path):
        assert Claim.of(tmp_path)
        check_locked(tmp_path)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(CLAIM)] == []
    (tmp_path / "draft").write_bytes(b"ours")
    write(tmp_path, Claim("ward-7", "another boot", 4711, "abc"))
    with pytest.raises(FileExistsError):
        locks._put(tmp_path / "draft", tmp_path / CLAIM)
    assert Claim.of(tmp_path)


def test_a_pipe_in_the_place_of_a_claim_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / CLAIM)
    assert Claim.of(tmp_path) is None


def test_a_claim_that_cannot_be_read_is_nobodys(tmp_path: Path):
    for content in (b"", b"{}", b"\xff", b'{"host": 1}'):
        (tmp_path / CLAIM).write_bytes(content)
        with locked(tmp_path), suppress(FileNotFoundError):
            assert Claim.of(tmp_path)
