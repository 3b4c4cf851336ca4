"""What a coordinator can take back: the rounds since the newest model with which sites could work.

A merged model may pass every comparison of norms and still let all sites diverge. So the checkpoint of the newest model
that a site has scored, or trained on, stays beside that of the newest round. Where most sites report of a newer model
that it diverges, the coordinator goes back to the former and repeats the rounds after it without the answer that was
the largest for its cohort; if the model diverges again, without the next largest instead.

What is decided is written down before anything is moved, so that a kill at any moment changes nothing of what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ConfigDict, FiniteFloat

from fedshift import files
from fedshift.coordinator.coordinator import Suspect
from fedshift.core.sealed import checked
from fedshift.core.sealed import said as said_of
from fedshift.errors import DamagedError
from fedshift.runs.schema import File, Size
from fedshift.runs.seals import sealed_json, unsealed_json
from fedshift.simulation.checkpoint import CURRENT, About, commit, saved

PREVIOUS = "checkpoint.previous.safetensors"
DOUBTS = "doubts.json"
_WITHOUT = f"Remove {DOUBTS} beside it: the run then goes on from its last checkpoint."


class _Merged(File):
    """An answer that was merged; see :class:`Suspect`."""

    position: Size
    exchange: str
    client: Size
    ratio: FiniteFloat

    def suspect(self) -> Suspect:
        return Suspect(self.position, self.exchange, self.client, self.ratio)


class _Said(File):
    """doubts.json.

    Attributes:
        sound: after how many rounds the model was the newest with which a site could work.
        suspects: what was merged since.
        tried: what was left out since, first to last; the last one still is.
        back: to how many rounds the coordinator is going back; None: it is not.
    """

    model_config = ConfigDict(extra="forbid")

    sound: Size
    suspects: list[_Merged]
    tried: list[_Merged]
    back: Size | None = None


class Doubts:
    """The rounds of a run's folder that may be taken back.

    Attributes:
        sound: after how many rounds the model was the newest with which a site could work.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """Read what was written down, and finish going back where that was begun.

        Raises:
            DamagedError: a file is not what was written.
        """
        self._folder, self._fingerprint = folder, fingerprint
        said = self._read()
        if said.back is not None:
            self._move(said.back)
            said = said.model_copy(update={"back": None})
            self._write(said)
        # A coordinator that was killed before its checkpoint was written knows less than the file.
        position = max(saved(folder), default=0)
        self.sound = min(said.sound, position)
        self._suspects = [each for each in said.suspects if self.sound < each.position <= position]
        self._tried = [each for each in said.tried if each.position > self.sound]

    @property
    def suspects(self) -> list[Suspect]:
        """The answers that were merged since the sound model, as they are on the disk."""
        return [each.suspect() for each in self._suspects]

    @property
    def left_out(self) -> Suspect | None:
        """The answer that is left out when the rounds since the sound model are repeated, if they are."""
        return self._tried[-1].suspect() if self._tried else None

    def works(self, position: int) -> None:
        """A site could work with the model after so many rounds, so nothing before is taken back any more."""
        self.sound = position
        self._tried = [each for each in self._tried if each.position > position]

    def next_of(self, suspects: Sequence[Suspect]) -> Suspect | None:
        """The largest answer since the sound model that was not left out before; None where there is none."""
        tried = {(each.position, each.exchange, each.client) for each in self._tried}
        untried = (
            each
            for each in suspects
            if each.position > self.sound and (each.position, each.exchange, each.client) not in tried
        )
        return max(untried, key=lambda each: each.ratio, default=None)

    # On the disk ----------------------------------------------------------------------------------

    def save(self, suspects: Sequence[Suspect]) -> None:
        """Write down what is known now; the next checkpoint is written after it, and then :meth:`commit` is called.

        Raises:
            DiskError: it could not be written.
        """
        self._suspects = [_Merged(**vars(each)) for each in suspects if each.position > self.sound]
        self._write(_Said(sound=self.sound, suspects=self._suspects, tried=self._tried))

    def commit(self) -> None:
        """Put the next checkpoint in the place of the newest, which stays beside it if its model is the sound one.

        Raises:
            DiskError: it could not be done; both are there.
        """
        newest = self._folder / CURRENT
        if newest.exists() and said_of(newest, "checkpoint", About).position == self.sound:
            files.rename(newest, self._folder / PREVIOUS)
        commit(self._folder)

    def go_back(self, without: Suspect) -> None:
        """Decide to repeat the rounds after the sound model without an answer; it is done when the run begins again.

        Raises:
            DiskError: it could not be written.
        """
        self._tried.append(_Merged(**vars(without)))
        self._write(_Said(sound=self.sound, suspects=[], tried=self._tried, back=self.sound))

    def forget(self) -> None:
        """Remove the files of a run that is about to be finished."""
        for name in (PREVIOUS, DOUBTS):
            files.remove(self._folder / name)

    def _move(self, back: int) -> None:
        """Put the checkpoint after so many rounds in the place of a newer one."""
        newest, previous = self._folder / CURRENT, self._folder / PREVIOUS
        if max(saved(self._folder), default=0) <= back:  # it was done before a kill, or there is nothing to move
            return
        if back == 0:
            files.remove(newest)
            return
        if not previous.exists() or said_of(previous, "checkpoint", About).position != back:
            raise DamagedError(f"'{previous}' should be the checkpoint after {back} rounds, and is not. {_WITHOUT}")
        files.rename(previous, newest)

    def _read(self) -> _Said:
        path = self._folder / DOUBTS
        if not path.exists():  # of a run that has not saved yet, or was begun before there were doubts
            return _Said(sound=max(saved(self._folder), default=0), suspects=[], tried=[])
        try:
            return checked(unsealed_json(path.read_bytes(), self._fingerprint), _Said)
        except (OSError, ValueError) as error:
            raise DamagedError(f"'{path}' is not what was written ({error}). {_WITHOUT}") from error

    def _write(self, said: _Said) -> None:
        files.write(self._folder / DOUBTS, sealed_json(said.model_dump(), self._fingerprint))
