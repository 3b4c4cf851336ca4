"""What the attacks have in common: the runs that are attacked, what they should come to, and who judges."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from attack.faults import Fault
from attack.forks import Forks, Outcome, Step
from conftest import CNN_WITH_BN, TINY
from fedshift.study.grid import override

RESUME: Step = ("resume", "runs")
# What must be equal to the byte, whatever happened on the way; the other files state when and on what machine.
SET_ASIDE = re.compile(r"/(damaged-\d+/|\.)")  # what fedshift keeps of what was damaged, and files half written
RESULTS = ("experiment.toml", "records.jsonl", "messages.json", "data.json", "summary.json", "*.safetensors")

LOCAL_STATE = {"name": "fedsr", "reference_scope": "client", "bn": "local", "optimiser_state": "kept"}
ABSENT = {"train.participation": 0.5, "train.absent": 0.2, "train.late": 0.2}
FOUR_CLIENTS = {"protocol": {"name": "in-domain"}, "data.domains": 4}
WORKERS = {"run.engine": "workers", "run.workers": 2}
INDEX = {"name": "dsa-ign", "epochs": 2, "feedforward": 16, "encoder": {"size": 64}}


@dataclass(frozen=True)
class Scenario:
    """A command, "run" or "compare", and how the experiment file that it runs differs from the tiny one."""

    command: str
    changes: Mapping[str, Any]

    @property
    def step(self) -> Step:
        """The command as a probe."""
        return self.command, "case.toml"

    @property
    def line(self) -> Step:
        """The command line."""
        return "fedshift", self.command, "case.toml"

    def write(self, folder: Path) -> Path:
        """Write the experiment file into a folder, where runs lie below ``runs``; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        common = {"run.out": "runs", "train.rounds": 5, "run.checkpoint_every": 2}
        (folder / "case.toml").write_text(tomli_w.dumps(override(TINY, {**common, **self.changes})))
        return folder


SCENARIOS: dict[str, Scenario] = {
    "run": Scenario(
        "run", {**CNN_WITH_BN, **FOUR_CLIENTS, **ABSENT, "method": LOCAL_STATE, "train.lr": 0.01, "train.rounds": 6}
    ),
    "grid": Scenario("compare", {"method.name": ["fedavg", "fedavgm"], "seed": [0, 1], "train.rounds": 3}),
    "stack": Scenario(
        "compare", {**ABSENT, **FOUR_CLIENTS, "seed": [0, 1, 2], "run.engine": "vectorised", "run.together": 3}
    ),
    "workers": Scenario("run", {**CNN_WITH_BN, **FOUR_CLIENTS, **WORKERS, "method": LOCAL_STATE, "train.rounds": 3}),
    "client2vec": Scenario("run", {"method": {"name": "client2vec", "index": INDEX}, "train.rounds": 3}),
}


def in_small(all_of: Iterable[Any], *small: Any) -> list[Any]:
    """Parameters of a test, of which some are run in the small attack and the others in the large one only."""
    return [one if one in small else pytest.param(one, marks=pytest.mark.large) for one in all_of]


# What should come of it --------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """A scenario that nothing interrupted."""

    scenario: Scenario
    folder: Path  # runs lie below its folder ``runs``
    results: Mapping[str, bytes]  # every file that must be equal, by its path
    operations: Sequence[str]  # of files, in order
    table: str  # what was printed of accuracies

    @classmethod
    def of(cls, forks: Forks, scenario: Scenario, folder: Path) -> Reference:
        """Carry a scenario out."""
        scenario.write(folder)
        trace = folder / "operations"
        (outcome,) = forks.run(scenario.step, cwd=folder, fault=Fault(str(folder / "runs"), trace=str(trace)))
        assert outcome.fine, outcome
        return cls(scenario, folder, results(folder), trace.read_text().splitlines(), table(outcome.out))

    def differences(self, folder: Path, aside: Iterable[str] = ()) -> list[str]:
        """Each run whose files differ from these, and which they are; patterns of files may be left aside."""
        found = results(folder)
        names = sorted(name for name in self.results.keys() | found.keys() if self.results.get(name) != found.get(name))
        names = [name for name in names if not any(Path(name).match(pattern) for pattern in aside)]
        by_run: dict[Path, list[str]] = {}
        for name in map(Path, names):
            by_run.setdefault(Path(*name.parts[:2]), []).append(str(Path(*name.parts[2:])))
        there = {Path(*Path(name).parts[:2]) for name in found}
        said = {
            run: f"differs in {', '.join(names)}" if run in there else "is not there" for run, names in by_run.items()
        }
        return [f"{run} {what}" for run, what in said.items()]


def results(folder: Path) -> dict[str, bytes]:
    """The files of all runs below a folder that equal runs have equal."""
    runs = folder / "runs"
    found = {file for name in RESULTS for file in runs.rglob(name) if file.is_file()}
    return {str(file.relative_to(runs)): _decided(file) for file in sorted(found) if not SET_ASIDE.search(str(file))}


def _decided(file: Path) -> bytes:
    """What of a file equal runs have equal; a summary also names files with times."""
    data = file.read_bytes()
    with suppress(ValueError, LookupError, TypeError):
        if file.name == "summary.json":
            summary = json.loads(data)
            return json.dumps([summary[name] for name in ("selected", "notes", "ended")]).encode()
    return data


def contents(folder: Path, but: Path | None = None) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, locks and reports and a folder there excluded, with content and time of change."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in (".lock", "report.html")]
    files = [file for file in files if but is None or not file.is_relative_to(but)]
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def table(printed: str) -> str:
    """The tables of accuracies in what a command printed."""
    _, start, rest = printed.partition("Accuracy in %")
    return start + re.split("Note: |Run folders: ", rest)[0].strip()


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs below a folder, sorted."""
    return sorted(file.parent for file in (folder / "runs").rglob("experiment.toml"))


def recovered(forks: Forks, reference: Reference, folder: Path, again: bool = False) -> list[str]:
    """Resume what was interrupted, by ``resume`` or the same command again; returns what is wrong with the result."""
    scenario = reference.scenario
    once_more = not run_folders(folder) or (again and scenario.command == "compare")
    (outcome,) = forks.run(scenario.step if once_more else RESUME, cwd=folder)
    if not outcome.fine:
        return [str(outcome)]
    problems = reference.differences(folder)
    if not problems and table(outcome.out) != reference.table:
        problems.append(f"`{' '.join(outcome.step)}` prints another table:\n{table(outcome.out)}")
    return problems


# Where it happens --------------------------------------------------------------------------------


def spread(operations: Sequence[str], count: int | None, seed: str, kinds: Iterable[str] = ()) -> list[int]:
    """Some operations, from 1, of each kind on each kind of file in turn; all if ``count`` is None."""
    only = set(kinds)
    numbered = [(at, op) for at, op in enumerate(operations, start=1) if not only or op.split()[0] in only]
    if count is None:
        return [at for at, _ in numbered]
    groups: dict[str, list[int]] = {}
    for at, operation in numbered:
        groups.setdefault(re.sub(r"\d+", "", operation), []).append(at)
    draw = random.Random(seed)
    pools = list(groups.values())
    draw.shuffle(pools)
    chosen: list[int] = []
    while len(chosen) < min(count, len(numbered)):
        for pool in pools:
            if pool and len(chosen) < count:
                chosen.append(pool.pop(draw.randrange(len(pool))))
    return sorted(chosen)


def copied(folder: Path, to: Path) -> Path:
    """A copy of a folder and of its runs."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, symlinks=True)
    return to


def loaded(outcome: Outcome) -> dict[str, Any]:
    """What the probe ``load`` printed."""
    found: dict[str, Any] = json.loads(outcome.out)
    return found


Problems = list[str]


def none_of(problems: Problems) -> None:
    """Fail with all problems at once."""
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(f"- {problem}" for problem in problems)
