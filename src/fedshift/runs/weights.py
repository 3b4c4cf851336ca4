"""The tensors of a run's models: the final ones, and those of the round that source validation picks.

The selected ones are written as the run goes, whenever validation improves, and only what a prediction reads of them.
They are written beside those of the pick before, as the *next*, and take their place once the checkpoint is there
that knows of the round. A file says its round, and the records which round is picked, so after a crash at any moment
the file of that round is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pydantic import PositiveInt
from torch import Tensor

from fedshift import files
from fedshift.coordinator.coordinator import Coordinator
from fedshift.core import sealed
from fedshift.core.tensors import part_of
from fedshift.errors import DamagedError
from fedshift.runs.records import Record
from fedshift.runs.selection import source_validation
from fedshift.simulation.checkpoint import check_alike
from fedshift.site.site import Site

SELECTED, NEXT_SELECTED = "selected.safetensors", "selected.next.safetensors"
_WHAT = "file of selected weights"


class Weights(NamedTuple):
    """Named tensors that need not be in memory together.

    Attributes:
        likes: for each name, in order, a tensor of the same type and shape.
        tensors: the tensors, in that order.
    """

    likes: Mapping[str, Tensor]
    tensors: Iterable[Tensor]


def final_weights(coordinator: Coordinator, read: Collection[str], site: Site | None = None) -> Weights:
    """Every shared tensor, the down ones of parts that a prediction reads, and all that clients keep.

    Args:
        coordinator: at the end of a round.
        read: the parts that a prediction reads.
        site: has what clients keep, each client's under ``client.<id>.``; None: it stays at their sites.
    """
    state = coordinator.state
    return _weights(coordinator, state.shared | state.down.of_parts(read), {} if site is None else site.initial, site)


def read_weights(coordinator: Coordinator, read: Collection[str], site: Site | None = None) -> Weights:
    """Of the :func:`final_weights` those of parts that a prediction reads."""
    state, initial = coordinator.state, {} if site is None else site.initial
    private = {name: like for name, like in initial.items() if part_of(name) in read}
    return _weights(coordinator, (state.shared | state.down).of_parts(read), private, site, read)


def _weights(
    coordinator: Coordinator,
    sent: Mapping[str, Tensor],
    private: Mapping[str, Tensor],
    site: Site | None,
    read: Collection[str] | None = None,
) -> Weights:
    # In order of their names, which a checkpoint does not keep as they were.
    sent, private = dict(sorted(sent.items())), dict(sorted(private.items()))
    last = coordinator.schedule[coordinator.position - 1].stage.training
    individual = {
        f"client.{client}.{name}": tensor
        for client in coordinator.names
        for name, tensor in coordinator.own(last, client).items()
        if read is None or part_of(name) in read
    }
    if site is None or not private:
        return Weights(sent | individual, chain(sent.values(), individual.values()))
    trained = [client for client in site.store.ids() if site.has_trained(client)]
    likes = sent | {f"client.{client}.{name}": like for client in trained for name, like in private.items()}
    states = (state for _, state in site.store.items() if state.trained)  # one client in memory at a time
    kept = (state.tensors[name] for state in states for name in private)
    return Weights(likes | individual, chain(sent.values(), kept, individual.values()))


class About(sealed.About):
    """What a file of selected weights says beside its tensors.

    Attributes:
        position: after how many rounds they were so.
    """

    position: PositiveInt


class Selection:
    """Keeps the weights of the round that source validation picks, in a run's folder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        self._picked: Record | None = None

    def go_back(self, records: Sequence[Record], likes: Mapping[str, Tensor]) -> None:
        """Go on from these records: only the weights of the round that they pick remain.

        Args:
            records: up to the checkpoint.
            likes: of what prediction reads there, by name, tensors of the same type and shape; all that are no
                client's are among the weights that remain.

        Raises:
            DamagedError: they are missing, damaged, or another run's.
        """
        self._picked = source_validation(records) if records else None
        coming, there = self._folder / NEXT_SELECTED, self._folder / SELECTED
        if coming.exists():
            if self._picked and selected_position(coming) == self._picked["position"]:
                self.commit()
            else:
                files.remove(coming)
        if self._picked:
            self._check(there, self._picked["position"], likes)
        elif there.exists():
            files.remove(there)

    def _check(self, path: Path, position: int, likes: Mapping[str, Tensor]) -> None:
        about = sealed.said(path, _WHAT, About)
        if (about.experiment, about.position) != (self._fingerprint, position):
            raise DamagedError(
                f"The {_WHAT} '{path}' is of round {about.position} of the run {about.experiment}, not of round "
                f"{position} of {self._fingerprint}."
            )
        sealed.check_sealed(path, _WHAT)
        found = sealed.tensors(path, _WHAT)
        # A client may have trained since, or be sent its own since, and so have more tensors now.
        wanted = {name: like for name, like in likes.items() if name in found or not name.startswith("client.")}
        check_alike(wanted, found, f"{_WHAT} '{path}'")

    def consider(self, record: Record, weights: Weights) -> None:
        """Write the weights as the next, if validation picks the round of this record, the newest."""
        # Of all records before only the one that they pick can still be picked.
        if source_validation([*filter(None, [self._picked]), record]) is not record:
            return
        self._picked = record
        about = About(experiment=self._fingerprint, position=record["position"])
        sealed.write_sealed(self._folder / NEXT_SELECTED, *weights, about)

    def commit(self) -> None:
        """Put the next weights, if there are any, in the place of those before."""
        if (self._folder / NEXT_SELECTED).exists():
            files.rename(self._folder / NEXT_SELECTED, self._folder / SELECTED)


def selected_position(path: Path) -> int:
    """After how many rounds the weights of a file of selected ones were so.

    Raises:
        DamagedError: it is none.
    """
    return sealed.said(path, _WHAT, About).position
