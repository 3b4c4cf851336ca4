"""records.jsonl: a line for each evaluation; a checkpoint's manifest has its length and digest."""

from __future__ import annotations

import json
from typing import Any

from fedshift.manifest import checked, parsed
from fedshift.runs.schema import Recorded

Record = dict[str, Any]


def read_records(data: bytes) -> list[Record]:
    """The records of lines that are as they were written.

    Raises:
        ValueError: a line is none.
    """
    return [json.loads(line) for line in data.splitlines()]


def whole_records(data: bytes) -> list[Record]:
    """The records of lines that no manifest has yet, up to the first that a crash cut off or that is none."""
    found: list[Record] = []
    for line in data.split(b"\n")[:-1]:
        try:
            record = parsed(line)
            checked(record, Recorded)
        except ValueError:
            break
        found.append(record)
    return found
