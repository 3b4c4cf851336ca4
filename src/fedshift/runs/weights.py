"""The tensors of a run's models: the final ones, and those of the round that source validation picks.

The selected ones are written as the run goes, whenever validation improves, and only what a prediction reads of them.
The next checkpoint names their file; the one before then goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedshift.core.messages import pack_in_pieces
from fedshift.core.tensors import part_of
from fedshift.manifest import FileDigest, check_file, write_file
from fedshift.rounds.coordinator import Coordinator
from fedshift.rounds.site import Site
from fedshift.runs.schema import Record
from fedshift.runs.selection import source_validation


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


class Selection:
    """Keeps the weights of the round that source validation picks, in a run's folder.

    Attributes:
        files: the file with them, for a manifest; none before anything is scored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._picked: Record | None = None
        self.files: dict[str, FileDigest] = {}

    def go_back(self, records: Sequence[Record], named: Mapping[str, FileDigest]) -> None:
        """Go on from the records up to a checkpoint, and the files that it names.

        Raises:
            DamagedError: the weights of the round that the records pick are missing or damaged.
        """
        self._picked = source_validation(records) if records else None
        self.files = {}
        if self._picked:
            name = selected_name(self._picked["position"])
            check_file(self._folder / name, named.get(name))
            self.files = {name: named[name]}

    def consider(self, record: Record, weights: Weights) -> None:
        """Write the weights if validation picks the round of this record, the newest."""
        # Of all records before only the one that they pick can still be picked.
        if source_validation([*filter(None, [self._picked]), record]) is not record:
            return
        self._picked = record
        name = selected_name(record["position"])
        self.files = {name: write_file(self._folder / name, pack_in_pieces(*weights))}


def selected_name(position: int) -> str:
    """The file of the weights after so many rounds, where source validation picks them."""
    return f"selected@{position}.safetensors"
