"""The ledger of messages: every kind that crossed the wire, with number, clients, rounds and bytes.

A message costs a look-up by its signature (names, types and shapes), not a pass over its tensors; details of each
tensor are computed when the ledger is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Lt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fedshift.core.messages import Message, wire_bytes

Direction = Literal["down", "up", "telemetry"]
DIRECTIONS: tuple[Direction, ...] = ("down", "up", "telemetry")


def in_ranges(numbers: Iterable[int]) -> str:
    """Whole numbers from 0, as text such as ``0-9,12``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def from_ranges(text: str) -> set[int]:
    ends = [[int(end) for end in word.split("-")] for word in text.split(",") if word]
    return {number for each in ends for number in range(each[0], each[-1] + 1)}


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(word: Any) -> Any:
    return getattr(torch, word, None) if isinstance(word, str) else word


def _numbers(ranges: Any) -> Any:
    return from_ranges(ranges) if isinstance(ranges, str) else ranges


Length = Annotated[int, Ge(0), Lt(2**63)]
Dtype = Annotated[torch.dtype, BeforeValidator(_dtype), PlainSerializer(_word)]
Numbers = Annotated[set[int], BeforeValidator(_numbers), PlainSerializer(in_ranges)]


class Entry(BaseModel):
    """All messages of one signature, in one exchange and direction."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    exchange: str
    direction: Direction  # ``down`` to clients, ``up`` from them, or ``telemetry`` beside an up
    signature: tuple[tuple[str, Dtype, tuple[Length, ...]], ...]  # name, type and shape of every tensor
    messages: int = 0  # number of messages
    clients: Numbers = Field(default_factory=set)  # the ids of the clients that received or sent them
    rounds: Numbers = Field(default_factory=set)  # the rounds, counted over all stages from 1

    @property
    def largest(self) -> int:
        """The bytes of one message; all have the same size."""
        return wire_bytes(self.signature)

    @property
    def bytes(self) -> int:
        return self.messages * self.largest


class Ledger:
    """Every kind of message that crossed the wire, in order of first occurrence.

    It can start with the :attr:`entries` of another, which it does not change.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        copies = (entry.model_copy(deep=True) for entry in entries)
        self._entries = {(entry.exchange, entry.direction, entry.signature): entry for entry in copies}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def add(self, exchange: str, direction: Direction, message: Message, client: int, round: int) -> None:
        """Count a message to or from a client, in a round counted over all stages from 1."""
        key = exchange, direction, message.signature
        entry = self._entries.get(key)
        if entry is None:
            entry = Entry(exchange=exchange, direction=direction, signature=message.signature)
            self._entries[key] = entry
        entry.messages += 1
        entry.clients.add(client)
        entry.rounds.add(round)

    def bytes(self, direction: Direction) -> int:
        return sum(entry.bytes for entry in self._entries.values() if entry.direction == direction)

    # For readers ---------------------------------------------------------------------------------

    def declaration(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What crossed the wire, by exchange and direction, as a declaration for auditors.

        Each entry has the number of messages, total and largest bytes, clients and rounds; and the same for every
        tensor, by name, with its type and largest shape (``varies`` if there were several).
        """
        found: dict[str, dict[str, list[Entry]]] = {}
        for entry in self._entries.values():
            found.setdefault(entry.exchange, {}).setdefault(entry.direction, []).append(entry)
        return {
            exchange: {direction: _about(by[direction]) for direction in DIRECTIONS if direction in by}
            for exchange, by in found.items()
        }


def _about(entries: Sequence[Entry]) -> dict[str, Any]:
    """The declaration of one direction of an exchange."""
    by_name: dict[str, list[tuple[torch.dtype, tuple[int, ...], Entry]]] = {}
    for entry in entries:
        for name, dtype, shape in entry.signature:
            by_name.setdefault(name, []).append((dtype, shape, entry))
    tensors = {}
    for name, seen in sorted(by_name.items()):
        shapes = {shape for _, shape, _ in seen}
        tensors[name] = {
            "type": " or ".join(sorted({_word(dtype) for dtype, _, _ in seen})),
            "shape": list(max(shapes, key=lambda shape: (torch.Size(shape).numel(), shape))),
            **({"varies": True} if len(shapes) > 1 else {}),
            **_clients_and_rounds([entry for _, _, entry in seen]),
        }
    sizes = {"bytes": sum(entry.bytes for entry in entries), "largest": max(entry.largest for entry in entries)}
    return {**_clients_and_rounds(entries), **sizes, "tensors": tensors}


def _clients_and_rounds(entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "messages": sum(entry.messages for entry in entries),
        "clients": in_ranges(set().union(*(entry.clients for entry in entries))),
        "rounds": in_ranges(set().union(*(entry.rounds for entry in entries))),
    }
