"""What every tracker is: a place to which the scores of a run are copied, one evaluation after another.

The interface is that of Hugging Face Accelerate's ``GeneralTracker``; steps come with their times, since runs are also
tracked when they are over.
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
    """What a tracker knows of a run.

    Attributes:
        path: the run's folder.
        experiment: the experiment's name.
        method: the method's name.
        seed: the run's seed.
        id: text that no other run has, the same whenever the run is tracked with these settings.
        logged: the last step that was logged before; -1: none was.
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
    """A place to which the scores of runs are copied; each run has a separate tracker, with these settings.

    A run is tracked whenever its owner wants, perhaps in several goes: each of them calls
    :meth:`store_init_configuration`, :meth:`log` for every evaluation that was not logged before, now and then
    :meth:`flush`, and :meth:`finish`.
    """

    section: ClassVar[str] = "tracker"
    _run: TrackedRun = PrivateAttr()

    @property
    def name(self) -> str:
        """What the catalogue calls it."""
        from fedshift.reporting.trackers import TRACKERS

        return TRACKERS.name_of(self)

    @property
    def run(self) -> TrackedRun:
        """The run that is tracked."""
        return self._run

    def of(self, run: TrackedRun) -> Self:
        """A tracker of a run, with the same settings."""
        made = self.replace()
        made._run = run
        return made

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Begin, or continue after :attr:`TrackedRun.logged`.

        Args:
            values: the settings of the experiment, by dotted name.

        Raises:
            MissingExtraError: what the tracker needs is not installed.
        """

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        """Take the scores of an evaluation.

        Args:
            values: by the names of :func:`fedshift.runs.selection.scalars`.
            step: how many rounds are done.
            when: the time of the evaluation, in seconds since 1970.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Store what was logged, so that a kill does not lose it; what is stored is not logged again."""

    def finish(self, state: RunState) -> None:
        """Close what was opened; the run may continue, and be tracked further.

        Args:
            state: the run's state as far as its events show; "running" includes a run whose process was killed.
        """
