"""What left each client, by part of the messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from fedshift.core.messages import TYPES
from fedshift.reporting.results import Row
from fedshift.reporting.table import Table
from fedshift.runs.schema import Record
from fedshift.written import bytes_text

KINDS = {"up": "result", "telemetry": "telemetry"}


class SentPart(NamedTuple):
    """Tensors whose names begin the same, such as those of the encoder."""

    name: str  # that beginning, such as "encoder", "head" or "term"
    kind: str  # "result", which trains the models, or "telemetry", which only a person reads
    exchanges: list[str]  # in which it was sent
    tensors: int  # how many there are in a message
    bytes: int  # of their values, in a message, at most
    messages: int  # in how many it was sent, of all clients


def parts_sent(messages: Record) -> list[SentPart]:
    """What clients sent, by kind and by the first component of the tensors' names.

    Args:
        messages: of a run, as :attr:`fedshift.runs.run.Run.messages` has them.
    """
    found: dict[tuple[str, str], SentPart] = {}
    for exchange, kind, name, tensors in _sent(messages):
        size = sum(prod(one["shape"]) * TYPES[one["type"]].itemsize for one in tensors)
        count = max(one["messages"] for one in tensors)
        known = found.get((name, kind), SentPart(name, kind, [], 0, 0, 0))
        found[name, kind] = SentPart(
            name,
            kind,
            [*known.exchanges, exchange],
            max(known.tensors, len(tensors)),
            max(known.bytes, size),
            known.messages + count,
        )
    return sorted(found.values(), key=lambda part: (part.kind, -part.bytes * part.messages, part.name))


def _sent(messages: Record) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """The exchange, the kind, a part's name and its tensors."""
    for exchange, ways in messages.items():
        for way, kind in KINDS.items():
            by_part: dict[str, list[dict[str, Any]]] = {}
            for name, tensor in ways.get(way, {}).get("tensors", {}).items():
                by_part.setdefault(name.partition(".")[0], []).append(tensor)
            for name, tensors in by_part.items():
                yield exchange, kind, name, tensors


def sent(rows: Sequence[Row]) -> list[Table]:
    """What clients sent, by part; nothing where they sent nothing."""
    columns = ["method", "part", "kind", "exchanges", "tensors", "in a message, at most", "messages"]
    cells = [
        [row.label, part.name, part.kind, ", ".join(part.exchanges), *_numbers(part)]
        for row in rows
        for part in parts_sent(row.runs[0].messages)
    ]
    return [Table("What clients sent, by part of a message", columns, cells, words=3)] if cells else []


def _numbers(part: SentPart) -> list[str]:
    return [f"{part.tensors:,}", bytes_text(part.bytes), f"{part.messages:,}"]
