"""A run from its folder: its request, its records, and its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel

from fedshift import files
from fedshift.errors import DamagedError, FedshiftError, UnknownNameError
from fedshift.manifest import Manifest, check_file, read_file, read_lines, read_table
from fedshift.runs.checkpoint import Checkpoint, Summary, read_checkpoint, saved_positions
from fedshift.runs.events import FailedEvent, read_event
from fedshift.runs.origin import CLIENTS, RECORDS, SUMMARY, Origin
from fedshift.runs.schema import Blueprint, MessageTable, Record, Timed, read_records, whole_records
from fedshift.runs.selection import shares, summary

if TYPE_CHECKING:
    from torch import Tensor

    from fedshift.runs.trained import Trained

from fedshift.runs.checkpoint import WeightsFile

WEIGHTS, MESSAGES, DATA_FACTS = "weights.safetensors", "messages.json", "data.json"
TIMINGS, EVENTS = "timings.jsonl", "events.jsonl"
# What running makes, manifests first: without them it begins again.
MADE = (
    *(SUMMARY, "manifest-*.json", WEIGHTS, "checkpoint@*.safetensors", "selected@*.safetensors", CLIENTS),
    *(RECORDS, TIMINGS, EVENTS, MESSAGES, DATA_FACTS),
)
ASIDE = "damaged-"
DIVERGED = "diverged.txt"  # in the folder of a run that is not tried again: why it has no end
Picked = Literal["last", "selected"]


@dataclass(frozen=True)
class Times:
    """The times of a run."""

    training: float  # seconds of rounds
    evaluation: float  # seconds of scoring models
    engines: tuple[str, ...]  # in the order of use; several if the run was resumed with another engine
    # peak bytes of everything its process did until then (:func:`fedshift.memory.peak`); None: unknown
    memory: int | None = None


@dataclass(frozen=True, eq=False)
class Run(Origin):
    """A run; files are read on first request, and cached.

    run.json identifies the run, experiment.toml has its settings. Every other file is listed, with its size and digest,
    in the manifest of the newest checkpoint or, once the run is finished, in summary.json. A reader gets the listed
    content, or an error. :class:`fedshift.runs.recorder.Recorder` writes the files.
    """

    def __repr__(self) -> str:
        return f"Run('{self.path}'{'' if self.finished else ', not finished'})"

    # What happened ------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first.

        Raises:
            DamagedError: it is damaged.
        """
        with self._fix():
            while positions := saved_positions(self.path):
                try:
                    return read_checkpoint(self.path, self.identity.fingerprint, max(positions))
                except DamagedError:
                    if saved_positions(self.path) == positions:
                        raise
        return None

    @cached_property
    def final(self) -> Summary:
        """The summary of a finished run; raises a DamagedError if it is damaged."""
        with self._fix():
            return Summary.read(self.path / SUMMARY, self.identity.fingerprint)

    @property
    def _manifest(self) -> Manifest | None:
        return self.final if self.finished else self.checkpoint

    def _read(self, name: str) -> bytes:
        if (manifest := self._manifest) is None:
            return b""
        with self._fix():
            return read_file(self.path / name, manifest.files.get(name), growing=isinstance(manifest, Checkpoint))

    def _json(self, name: str, kind: type[BaseModel]) -> dict[str, Any]:
        if (manifest := self._manifest) is None:
            return {}
        with self._fix():
            return read_table(self.path / name, manifest.files.get(name), kind)

    @cached_property
    def records(self) -> list[Record]:
        """The records of all evaluations; a crash may have cut off the last line of an unfinished run.

        Raises:
            DamagedError: a line was cut, changed or moved.
        """
        path, kept = self.path / RECORDS, self._read(RECORDS)
        with self._fix():
            records = read_records(path, kept)
            if self.finished or not path.exists():
                return records
            try:
                return records + whole_records(files.read(path)[len(kept) :])
            except OSError as error:
                raise DamagedError(f"'{path}' cannot be read ({error.strerror or error}).") from error

    @cached_property
    def times(self) -> Times:
        """The times of rounds and evaluations; runs that advance together share them equally.

        Raises:
            DamagedError: its lines were changed.
        """
        return self.times_until()

    def times_until(self, position: float = inf) -> Times:
        """The :attr:`times` of the first ``position`` rounds, up to the last evaluation among them."""
        timed = [timing for timing in self._timed if timing.stop <= position]
        return Times(
            training=sum(timing.seconds / timing.together for timing in timed),
            evaluation=sum(timing.evaluation / timing.together for timing in timed),
            engines=tuple(dict.fromkeys(timing.engine for timing in timed)),
            memory=max((timing.memory for timing in timed if timing.memory), default=None),
        )

    @cached_property
    def _timed(self) -> list[Timed]:
        return read_lines(self.path / TIMINGS, self._read(TIMINGS), Timed)

    @cached_property
    def messages(self) -> Record:
        """The messages until the newest checkpoint, by exchange and direction (down, up, telemetry).

        Each entry has ``messages``, ``clients`` and ``rounds`` (as ranges, rounds from 1 over all stages), ``bytes`` of
        all and of the ``largest`` message, and ``tensors`` by name, with ``type``, the largest ``shape`` (``varies``
        where there were several), ``messages``, ``clients`` and ``rounds``.
        """
        if self.finished:
            return self._json(MESSAGES, MessageTable)
        checkpoint = self.checkpoint
        return checkpoint.messages if checkpoint else {}

    @cached_property
    def data_facts(self) -> dict[str, Any]:
        """Classes, clients and their numbers of samples; empty before the first checkpoint."""
        return self._json(DATA_FACTS, Blueprint)

    @property
    def environment(self) -> dict[str, Any]:
        """The versions and the machine with which it was started."""
        return self.identity.environment.model_dump()

    @cached_property
    def summary(self) -> Record:
        """The choice of each selection rule; raises a FedshiftError if the run is not finished."""
        self._check_finished("summary")
        return summary(self.records)

    @property
    def shares(self) -> dict[int, dict[str, float]]:
        """By rounds done, each loss term's share of the clients' loss; see :func:`shares`."""
        return {record["position"]: shares(record) for record in self.records}

    @property
    def notes(self) -> list[str]:
        """What a reader of its results must know; empty before it is finished."""
        return self.final.notes if self.finished else []

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The final tensors, each read on request: shared tensors by name, a client's under ``client.<id>.``.

        Raises:
            FedshiftError: the run is not finished.
        """
        return WeightsFile(self._intact(WEIGHTS, "weights"))

    @cached_property
    def selected(self) -> Mapping[str, Tensor]:
        """As :attr:`weights`, of the round that source validation selects, and only what a prediction reads.

        Raises:
            FedshiftError: the run is not finished, or has no such weights.
        """
        self._check_finished("selected weights")
        name = next((name for name in self.final.files if name.startswith("selected@")), None)
        if name is None:
            raise FedshiftError(
                f"'{self.path}' has no weights of a round that validation selects: nothing was scored. Its final "
                'model is there: round="last".'
            )
        return WeightsFile(self._intact(name, "selected weights"))

    def model(self, client: int | str | None = None, round: Picked = "last") -> Trained:
        """Build a model as a module in evaluation mode; neither the data nor a global generator is used.

        Args:
            client: a client's name or id, for that client's model; None: the global model.
            round: "last": the final model; "selected": the model of the round that source validation selects.

        Returns:
            A module from samples (B, ...) as the data set stores them, or as a frozen network (data.frozen) embeds
            them, to log-probabilities (B, classes). To train it further with dropout, replace its
            :class:`fedshift.core.dropout.Dropout` layers, which need a run's steps, by ``nn.Dropout``.

        Raises:
            FedshiftError: the run is not finished; there is no such client; no client is given where each has a
                model; or the run has no weights of the selected round.
        """
        from fedshift.runs.trained import rebuilt

        if round not in get_args(Picked):
            raise UnknownNameError("round", round, get_args(Picked))
        self._check_finished("model")
        weights = self.weights if round == "last" else self.selected
        return rebuilt(self.experiment, Blueprint.model_validate(self.data_facts), weights, client)

    @property
    def given_up(self) -> str:
        """Why it stopped after its last checkpoint, such as a loss that is not finite; empty if it did not."""
        try:
            line = (self.path / EVENTS).read_bytes().splitlines()[-1:]
            event = read_event(line[0]) if line else None
        except (OSError, ValueError):  # no reader relies on it
            return ""
        return event.why if isinstance(event, FailedEvent) else ""

    # Damage -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Read everything that a report shows; raises a FedshiftError if a file is damaged."""
        for name in ("table", "records", "notes", "messages", "data_facts", "times"):
            getattr(self, name)

    def damage(self) -> str:
        """What of a finished run was changed since it was written; empty if nothing.

        Raises:
            FedshiftError: the request was changed, which cannot be restored.
        """
        fresh = Run(self.path)
        _ = fresh.table  # or an error
        try:
            for name, entry in fresh.final.files.items():
                check_file(self.path / name, entry)
        except DamagedError as error:
            return str(error)
        return ""

    def set_aside(self) -> Path:
        """Move all results into a separate folder, so that the run can be repeated; returns that folder."""
        aside = next(path for n in count(1) if not (path := self.path / f"{ASIDE}{n}").exists())
        files.make_folder(aside)
        for path in [path for name in MADE for path in sorted(self.path.glob(name))]:
            files.rename(path, aside / path.name)
        return aside

    def _intact(self, name: str, what: str) -> Path:
        self._check_finished(what)
        entry = self.final.files.get(name)
        with self._fix():
            check_file(self.path / name, entry)
        return self.path / name

    def _check_finished(self, what: str) -> None:
        if not self.finished:
            raise FedshiftError(
                f"The run '{self.path}' is not finished, so it has no {what} yet; {self.resume_command} resumes it."
            )

    @contextmanager
    def _fix(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            first = "Move it away, and " if "federation" in self.resume_command else ""
            raise DamagedError(f"{error} {first}{self.resume_command} repeats it.") from error
