"""A process that is killed, stopped or refused by the machine at any file operation loses nothing.

Each case interrupts a run at one operation and carries it on. Whatever was recorded, sent and trained must then be
equal to the byte to what a run comes to that nothing interrupted.
"""

from __future__ import annotations

import errno
import random
import signal
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from attack.faults import Fault, kill_children
from attack.forks import Forks
from attack.harness import (
    RESUME,
    SCENARIOS,
    Problems,
    Reference,
    contents,
    copied,
    in_small,
    none_of,
    recovered,
    spread,
    table,
)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="requests Linux which file a descriptor is of"
)
KILLS = {"grid": 1, "stack": 2, "workers": 1, "client2vec": 1}  # in the small attack
WRITES = ("open", "write", "fsync", "replace", "rename", "mkdir")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Shares of the operations: one test for each, so that tests go in parallel."""
    if "share" in metafunc.fixturenames:
        shares = 16 if metafunc.config.getoption("attack") == "large" else 1
        metafunc.parametrize("share", [(number, shares) for number in range(shares)], ids=lambda s: f"{s[0]}of{s[1]}")


def points(
    reference: Reference, share: tuple[int, int], small: int, what: str, kinds: tuple[str, ...] = ()
) -> list[int]:
    """The operations of a share: all of them in the large attack, ``small`` in the small one."""
    number, shares = share
    return spread(reference.operations, small if shares == 1 else None, what, kinds)[number::shares]


def moments(reference: Reference) -> list[int]:
    """Operations of a run between which what is there differs in kind."""

    def after(operation: str, number: int = 0) -> int:
        return [at for at, done in enumerate(reference.operations, 1) if done.startswith(operation)][number] + 1

    saved = "replace .manifest-"
    # It has only started, has records, has a checkpoint, has records ahead of it, has its last checkpoint.
    found = [after("replace .experiment.toml"), after("write records.jsonl"), after(saved)]
    found += [after("write records.jsonl", 2), after(saved, -1)]
    assert sorted(found) == found
    return found


def attacked(
    forks: Forks, reference: Reference, folder: Path, fault: Fault, code: int | None = None, again: bool = False
) -> Problems:
    """Carry a scenario out with a fault, to a code (None: 0 or one clear error), and on; returns what is wrong."""
    reference.scenario.write(folder)
    step = reference.scenario.line if fault.error else reference.scenario.step
    (outcome,) = forks.run(step, cwd=folder, fault=replace(fault, root=str(folder / "runs")))
    ended = outcome.clean if code is None else outcome.code == code and "Traceback" not in outcome.err
    problems = [] if ended else [str(outcome)]
    problems += recovered(forks, reference, folder, again)
    operation = reference.operations[fault.at - 1] if fault.at else "no operation"
    return [f"at operation {fault.at} ({operation}): {problem}" for problem in problems]


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_an_operation(
    forks: Forks, references: dict[str, Reference], tmp_path: Path, name: str, share: tuple[int, int]
):
    reference = references[name]
    problems: Problems = []
    small = name == "run" and share[1] == 1
    for at in moments(reference) if small else points(reference, share, KILLS.get(name, 0), f"kill {name}"):
        fault = Fault("", at, kill=True)
        problems += attacked(forks, reference, tmp_path / str(at), fault, -signal.SIGKILL, again=at % 2 == 0)
    none_of(problems)


STOPS = list(product(("run", "stack", "workers"), (signal.SIGINT, signal.SIGTERM)))


@pytest.mark.parametrize("case", in_small(STOPS, STOPS[0], STOPS[1], STOPS[2], STOPS[5]), ids=str)
def test_told_to_stop(
    forks: Forks,
    references: dict[str, Reference],
    tmp_path: Path,
    case: tuple[str, signal.Signals],
    share: tuple[int, int],
):
    """Ctrl-C, and what a batch system sends: a word on how to continue, and nothing is lost."""
    name, number = case
    reference, problems, code = references[name], list[str](), 128 + number
    for at in points(reference, share, 1, f"{number} {name}", WRITES):
        folder = reference.scenario.write(tmp_path / str(at))
        (outcome,) = forks.run(reference.scenario.line, cwd=folder, fault=Fault(str(folder / "runs"), at, send=number))
        where = f"at operation {at} ({reference.operations[at - 1]})"
        if outcome.code != code or "Traceback" in outcome.err or "fedshift resume" not in outcome.err:
            problems.append(f"{where}: {outcome}")
        problems += [f"{where}: {wrong}" for wrong in recovered(forks, reference, folder)]
    none_of(problems)


REFUSALS = list(product(("run", "stack"), (errno.ENOSPC, errno.EIO), (False, True)))


@pytest.mark.parametrize("case", in_small(REFUSALS, *REFUSALS[0:4:3], *REFUSALS[5:7]), ids=str)
def test_the_disk_refuses(
    forks: Forks,
    references: dict[str, Reference],
    tmp_path: Path,
    case: tuple[str, int, bool],
    share: tuple[int, int],
):
    """Full or broken, once or for good: one clear error; with room again the run continues to the same bytes."""
    name, error, lasting = case
    reference, problems = references[name], list[str]()
    for at in points(reference, share, 1, f"{error} {lasting} {name}", WRITES):
        fault = Fault("", at, error=error, lasting=lasting)
        problems += attacked(forks, reference, tmp_path / str(at), fault, again=at % 2 == 0)
    none_of(problems)


def test_workers_that_are_killed(
    forks: Forks, references: dict[str, Reference], tmp_path: Path, share: tuple[int, int]
):
    """They are replaced at any moment, and it is stated."""
    reference, problems = references["workers"], []
    for at in points(reference, share, 1, "orphans"):
        problems += attacked(forks, reference, tmp_path / str(at), Fault("", at, orphans=True))
    draw = random.Random(f"workers {share}")
    for attempt in range(1 if share[1] == 1 else 8):
        folder, wait = reference.scenario.write(tmp_path / f"random {attempt}"), draw.uniform(0.1, 0.6)
        child = forks.start(reference.scenario.step, cwd=folder)
        time.sleep(wait)
        kill_children(child.process.pid)
        (outcome,) = child.wait()
        wrong = [*([] if outcome.clean else [str(outcome)]), *recovered(forks, reference, folder)]
        problems += [f"after {wait:.3f} s: {problem}" for problem in wrong]
    none_of(problems)


# Two processes -----------------------------------------------------------------------------------


SECONDS = list(product(("run", "grid", "stack"), ("the same", "resume")))


@pytest.mark.parametrize("case", in_small(SECONDS, SECONDS[0], SECONDS[2], SECONDS[3], SECONDS[5]), ids=str)
def test_a_second_process(
    forks: Forks, references: dict[str, Reference], tmp_path: Path, case: tuple[str, str], share: tuple[int, int]
):
    """Started while the first is anywhere in its work: one of them is refused, or they share the work of a grid.

    A second process that is refused changes nothing in the folder, and what there is in the end is the run's.
    """
    name, second = case
    reference, problems = references[name], list[str]()
    for at in points(reference, share, 1, f"second {name} {second}", WRITES):
        folder = reference.scenario.write(tmp_path / str(at))
        fault = Fault(str(folder / "runs"), at, send=signal.SIGSTOP)
        first = forks.start(reference.scenario.step, cwd=folder, fault=fault)
        where = f"while the first is at operation {at} ({reference.operations[at - 1]})"
        assert first.process.stopped(), where
        before = contents(folder)
        step = reference.scenario.step if second == "the same" else RESUME
        (other,) = forks.run(step, cwd=folder)
        after = contents(folder)
        first.go_on()
        (one,) = first.wait()
        wrong = [f"the second {other}"] if not other.clean else []
        wrong += [f"the first {one}"] if not one.clean else []
        if (
            other.refused and name != "grid" and before != after
        ):  # runs of a grid that no client has started may be started
            changed = sorted(file for file in before.keys() | after.keys() if before.get(file) != after.get(file))
            wrong.append(f"the second was refused and changed {', '.join(changed)}")
        if name == "run" and not (one.fine or other.fine):  # runs of a grid may be divided between the two
            wrong.append(f"both were refused: {one.err} {other.err}")
        wrong += recovered(forks, reference, folder, again=True)
        problems += [f"{where}: {problem}" for problem in wrong]
    none_of(problems)


# A folder that cannot be written -----------------------------------------------------------------


def test_a_folder_that_may_only_be_read(forks: Forks, references: dict[str, Reference], tmp_path: Path):
    """What only reads works, what writes is refused, and nothing changes."""
    reference, error = references["run"], errno.EROFS
    folder = copied(reference.folder, tmp_path / "finished")
    before, fault = contents(folder), Fault(str(folder / "runs"), 1, error=error, lasting=True)
    here = ("fedshift", "report", "runs")
    elsewhere, resume = (*here, "--to", str(tmp_path / "report.html")), ("fedshift", "resume", "runs")
    outcomes = forks.run(("load", "runs"), elsewhere, here, resume, cwd=folder, fault=fault)
    assert contents(folder) == before
    (whole,) = forks.run(elsewhere, cwd=folder)  # which keeps sample images in the folder
    assert outcomes[0].fine, outcomes[0]
    assert outcomes[1].fine, outcomes[1]
    assert table(outcomes[1].out) == table(whole.out)
    assert outcomes[2].refused, outcomes[2]
    assert outcomes[3].clean, outcomes[3]
    new = reference.scenario.write(tmp_path / "new")
    (run,) = forks.run(reference.scenario.line, cwd=new, fault=Fault(str(new / "runs"), 1, error=error, lasting=True))
    assert run.refused, run


def test_scenarios_are_what_they_say(references: dict[str, Reference]):
    """The attack would prove little if nothing were absent, private or stacked."""
    run, stack = references["run"].results, references["stack"].results
    assert any(b'"missing"' in data for name, data in run.items() if name.endswith("records.jsonl"))
    assert any("clients/" in name for name in run)
    assert sum(name.endswith("summary.json") for name in stack) == 3
    kinds = {operation.split()[0] for operation in references["run"].operations}
    assert {"open", "write", "fsync", "replace", "unlink", "mkdir"} <= kinds
