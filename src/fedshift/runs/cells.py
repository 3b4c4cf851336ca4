"""Cells of a table: the runs of a row on one federation, carried out once, or the reason why there are none.

That a run diverged is written into its folder, as it would diverge each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedshift import files
from fedshift.errors import DamagedError, DivergedError
from fedshift.manifest import digested_json, read_json
from fedshift.runs import runner
from fedshift.runs.folder import RunFolder
from fedshift.runs.progress import Progress
from fedshift.runs.run import Run
from fedshift.runs.schema import File
from fedshift.settings.experiment import Experiment

DIVERGED = "diverged.json"  # in the folder of a run
LACKING = {"diverged": "diverged", "refused": "cannot run", "failed": "failed"}  # what a table says of a cell


@dataclass(frozen=True)
class Lacking:
    """Why a cell has no figure.

    Attributes:
        reason: in words.
        kind: its training blew up, the method refuses the federation, or a user's method failed.
    """

    reason: str
    kind: Literal["diverged", "refused", "failed"]


@dataclass(frozen=True)
class Cost:
    """What a cell would cost.

    Attributes:
        column: the column's name.
        row: the row's name.
        runs: of the cell; 0 if it cannot be carried out.
        seconds: of one run; None if that is not known.
        lacking: why it is not.
    """

    column: str
    row: str
    runs: int
    seconds: float | None
    lacking: Lacking | None = None

    @property
    def total(self) -> float:
        """Seconds of all runs, as far as they are known."""
        return self.runs * (self.seconds or 0.0)


def carried_out(experiments: Sequence[Experiment], progress: Progress) -> list[Run]:
    """Carry out runs of a cell; finished ones are not repeated.

    Raises:
        DivergedError: one diverged, now or earlier.
        FedshiftError: one cannot be carried out.
    """
    there = [RunFolder(runner.run_path(each)) for each in experiments]
    if before := next(filter(None, map(divergence, there)), ""):
        raise DivergedError(before)
    folders, failed = runner.run_all(experiments, progress)
    if other := next((error for error in failed.values() if not isinstance(error, DivergedError)), None):
        raise other
    if diverged := next((error for error in failed.values() if isinstance(error, DivergedError)), None):
        for folder in (each for each in there if not each.finished):
            files.write(folder.path / DIVERGED, digested_json(Divergence(reason=diverged.what).model_dump()))
        raise DivergedError(diverged.what)  # settings are not the user's here, so what helps elsewhere is left out
    return [Run(folder) for folder in folders]


class Divergence(File):
    """diverged.json: why a run has no end.

    Attributes:
        reason: in words.
    """

    format: Literal[1] = 1
    reason: str


def divergence(folder: RunFolder) -> str:
    """Why a run diverged earlier; empty if it did not, or what says so is damaged."""
    if folder.finished or not (folder.path / DIVERGED).exists():
        return ""
    try:
        return read_json(folder.path / DIVERGED, Divergence).reason
    except DamagedError:
        return ""
