"""One run from its folder: what was asked for, what was recorded, and the models it left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.runs.folder import WEIGHTS, RunFolder
from fedshift.runs.schema import Record
from fedshift.runs.selection import shares, summary

if TYPE_CHECKING:
    from torch import Tensor

    from fedshift.experiments import Experiment
    from fedshift.runs.trained import Trained


Picked = Literal["last", "selected"]


@dataclass(frozen=True, eq=False)
class Run:
    """One run; files are read when they are first asked for, and then kept.

    Attributes:
        folder: its files.
        trust: whether its plugins may be imported although they never ran on this machine.
    """

    folder: RunFolder
    trust: bool = False

    def __repr__(self) -> str:
        return f"Run('{self.path}'{'' if self.finished else ', not finished'})"

    @classmethod
    def open(cls, path: str | Path, trust: bool = False) -> Run:
        """The run of a folder.

        Raises:
            FedshiftError: it is no run folder.
        """
        return cls(RunFolder.open(Path(path)), trust)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder.path

    @property
    def finished(self) -> bool:
        """Whether it was carried to its end."""
        return self.folder.finished

    @cached_property
    def table(self) -> dict[str, Any]:
        """The resolved experiment as a table."""
        return self.folder.table()

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment; its data need not be there any more."""
        return self.folder.experiment_of_models(self.trust)

    @cached_property
    def records(self) -> list[Record]:
        """What was recorded at each evaluation so far."""
        return self.folder.records()

    @cached_property
    def summary(self) -> Record:
        """What each selection rule picks.

        Raises:
            FedshiftError: the run is not finished.
        """
        self._check_finished("summary")
        return summary(self.records)

    @property
    def shares(self) -> dict[int, dict[str, float]]:
        """By rounds done, each loss term's share of what clients minimised, see :func:`.selection.shares`."""
        return {record["position"]: shares(record) for record in self.records}

    @cached_property
    def notes(self) -> list[str]:
        """What a reader of its results must know; none before it is finished."""
        return self.folder.summary.notes if self.finished else []

    @cached_property
    def messages(self) -> Record:
        """What crossed the wire, by exchange and direction (``down``, ``up``, ``telemetry``).

        Of each: ``messages``, ``clients`` and ``rounds`` (as ranges, rounds from 1 over all stages), ``bytes`` of all
        and of the ``largest`` message, and ``tensors`` by name, with ``type``, the largest ``shape`` (``varies`` where
        there were several), ``messages``, ``clients`` and ``rounds``.
        """
        return self.folder.messages

    @cached_property
    def data_facts(self) -> dict[str, Any]:
        """Classes, clients and how many samples they have; empty before the run has begun."""
        return self.folder.data_facts

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The versions and the machine that it was made with."""
        return self.folder.environment

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The final tensors, each read when it is asked for: shared ones by name, a client's under ``client.<id>.``.

        Raises:
            FedshiftError: the run is not finished.
        """
        self._check_finished("weights")
        return _Weights(self.folder.intact(WEIGHTS))

    @cached_property
    def selected(self) -> Mapping[str, Tensor]:
        """As :attr:`weights`, of the round that source validation picks, and only what a prediction reads.

        Raises:
            FedshiftError: the run is not finished, or keeps none.
        """
        self._check_finished("selected weights")
        return _Weights(self.folder.selected_weights())

    def check(self) -> None:
        """Read all that a report shows.

        Raises:
            FedshiftError: a file is damaged.
        """
        for read in ("table", "records", "notes", "messages", "data_facts", "environment"):
            getattr(self, read)
        self.folder.times()

    def model(self, client: int | str | None = None, round: Picked = "last") -> Trained:
        """A model as a module in evaluation mode; neither the data nor a global generator is touched.

        Args:
            client: a client's name or id, for that client's model; None: the global model.
            round: "last": the final one; "selected": that of the round which source validation picks.

        Returns:
            A module from samples (B, ...) as the data set stores them, or as a frozen network (data.frozen) embeds
            them, to log-probabilities (B, classes). To train it further with dropout, replace its
            :class:`fedshift.core.dropout.Dropout` layers, which know a run's steps only, by ``nn.Dropout``.

        Raises:
            FedshiftError: the run is not finished; there is no such client; no client is given where each has a
                model; or the run keeps no weights of the selected round.
        """
        from fedshift.runs.trained import Blueprint, rebuilt

        if round not in get_args(Picked):
            raise UnknownNameError("round", round, get_args(Picked))
        self._check_finished("model")
        weights = self.weights if round == "last" else self.selected
        return rebuilt(self.experiment, Blueprint.from_table(self.data_facts), weights, client)

    def _check_finished(self, what: str) -> None:
        if not self.finished:
            raise FedshiftError(
                f"The run '{self.path}' is not finished, so it has no {what} yet; "
                f"{self.folder.carried_on_by} carries it on."
            )


class _Weights(Mapping[str, "Tensor"]):
    """The tensors of a safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as file:
            self._names = dict.fromkeys(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        with self._opened() as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _opened(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self._path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise FedshiftError(f"'{self._path}' cannot be read ({error}). Restore it.") from error
