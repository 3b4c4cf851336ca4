"""records.jsonl: a line for each evaluation; a checkpoint's manifest has its length and digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedshift.manifest import checked, parsed, read_lines
from fedshift.runs.schema import Recorded

Record = dict[str, Any]


def read_records(path: Path, data: bytes) -> list[Record]:
    """The records of a file, of which ``data`` is the part that a manifest names.

    Raises:
        DamagedError: a line is no record.
    """
    read_lines(path, data, Recorded)
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
