"""Folders with runs that will be damaged, and what is tried on them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attack.faults import Fault
from attack.forks import GIB, Forks
from attack.harness import RESUME, Reference, copied, loaded, run_folders, table

MEMORY = 2 * GIB  # of a case, which takes a few megabytes
LEFT_ALONE = (".lock", "operations", "case.toml", "report.html")
STATES = ("finished", "unfinished")

Victims = Callable[[str, str], "Victim"]  # gives those of a scenario in one of the states


@dataclass(frozen=True)
class Victim:
    """A folder with runs that will be damaged."""

    reference: Reference
    folder: Path  # runs lie below its folder ``runs``
    finished: bool
    expected: Mapping[str, Any]  # what is loaded of them
    printed: str  # the tables of their report
    models: str  # what their models answer

    def files(self) -> list[Path]:
        """What can be damaged, as paths below the folder."""
        found = (file for file in sorted((self.folder / "runs").rglob("*")) if file.is_file())
        return [file.relative_to(self.folder) for file in found if file.name not in LEFT_ALONE]

    def steps(self, folder: Path) -> list[tuple[str, ...]]:
        """What is tried after a damage."""
        run = str(run_folders(self.folder)[0].relative_to(self.folder))
        report = ("plain", "report", "runs", "--to", str(folder.parent / "out.html"))
        return [("load", "runs"), report, ("model", run), RESUME, self.reference.scenario.step]


def made(forks: Forks, reference: Reference, state: str, base: Path) -> Victim:
    """A scenario's runs in one of the states: finished, or killed on the way."""
    if state == "finished":
        folder = copied(reference.folder, base / "whole")
    else:
        folder = reference.scenario.write(base / "cut")
        records = [at for at, done in enumerate(reference.operations, 1) if done == "write records.jsonl"]
        fault = Fault(str(folder / "runs"), records[len(records) * 3 // 4] + 2, kill=True)
        forks.run(reference.scenario.step, cwd=folder, fault=fault)
    run = str(run_folders(folder)[0].relative_to(folder))
    load, report, model = forks.run(
        ("load", "runs"), ("plain", "report", "runs", "--to", str(base / "out.html")), ("model", run), cwd=folder
    )
    assert load.fine, load
    assert report.fine, report
    assert model.fine or state == "unfinished", model
    return Victim(reference, folder, state == "finished", loaded(load), table(report.out), model.out)
