"""The base of trackers: a tracker copies the scores of a run to another tool, one evaluation after another.

The interface is that of Hugging Face Accelerate's ``GeneralTracker``, with the time of each step, since runs are also
tracked after they ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, PrivateAttr

from fedshift.spec import Spec

FOLDER = "trackers"  # of a run: what trackers write there, and how far they are

RunState = Literal["running", "finished", "failed"]
Folder = Annotated[str, AfterValidator(lambda path: path and str(Path(path).expanduser().absolute()))]
"""A folder's path, absolute where it is not empty: another folder is another place, whatever it is called."""


@dataclass(frozen=True)
class TrackedRun:
    """A run for a tracker.

    Attributes:
        path: the run's folder.
        experiment: the experiment's name.
        method: the method's name.
        seed: the run's seed.
        id: a unique text, the same whenever the run is tracked with these settings.
        logged: the last step that was logged before, or -1.
    """

    path: Path
    experiment: str
    method: str
    seed: int
    id: str
    logged: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name


class Tracker(Spec):
    """Copies the scores of runs to another tool; each run has a separate tracker, with these settings.

    A run may be tracked in several sessions. Each session calls :meth:`store_init_configuration`, :meth:`log` for every
    new evaluation, :meth:`flush` from time to time, and :meth:`finish`.
    """

    section: ClassVar[str] = "tracker"
    _run: TrackedRun = PrivateAttr()

    @property
    def name(self) -> str:
        """The tracker's name in the catalogue."""
        from fedshift.reporting.trackers import TRACKERS

        return TRACKERS.name_of(self)

    @property
    def run(self) -> TrackedRun:
        """The tracked run."""
        return self._run

    def of(self, run: TrackedRun) -> Self:
        """A tracker of a run with the same settings."""
        made = self.replace()
        made._run = run
        return made

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Start, or continue after :attr:`TrackedRun.logged`.

        Args:
            values: the settings of the experiment, by dotted name.

        Raises:
            MissingExtraError: the tracker's package is not installed.
        """

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        """Log the scores of an evaluation.

        Args:
            values: the scores, by the names of :func:`fedshift.runs.selection.scalars`.
            step: the number of rounds done.
            when: the time of the evaluation, in seconds since 1970.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Store logged scores durably; stored scores are not logged again."""

    def finish(self, state: RunState) -> None:
        """End the session; the run may continue, and be tracked again.

        Args:
            state: the run's state according to its events; "running" includes a run whose process was killed.
        """
