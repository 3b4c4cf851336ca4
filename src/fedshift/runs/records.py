"""records.jsonl: a line for each evaluation, chained, so that a line that was cut, changed or moved does not fit.

Each line ends with ``chain``, a digest of the line and of the chain before it; the first goes on from the run's
fingerprint. A checkpoint and the summary have the chain's end.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedshift import files
from fedshift.core.sealed import checked
from fedshift.errors import DamagedError
from fedshift.runs.schema import Recorded, parsed

Record = dict[str, Any]


class Records:
    """The records of a run that goes on.

    Attributes:
        chain: the end of the chain so far.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path, self.chain = path, fingerprint

    def append(self, record: Record) -> None:
        """Add a record."""
        self.chain = linked(self.chain, record)
        files.append(self._path, json.dumps(record | {"chain": self.chain}))

    def go_back(self, position: int, chain: str) -> None:
        """Drop what was recorded after a position, which will be recorded again, and go on from there.

        Args:
            position: rounds done.
            chain: the end of the chain then.

        Raises:
            DamagedError: what was recorded until then is not there any more.
        """
        through = [chain] if position else []
        kept = [r for r in read(self._path, self.chain, through) if r["position"] <= position] if position else []
        lines = []
        for record in kept:
            self.chain = linked(self.chain, record)
            lines.append(json.dumps(record | {"chain": self.chain}) + "\n")
        files.write(self._path, "".join(lines))


def read(path: Path, fingerprint: str, through: Collection[str] = ()) -> list[Record]:
    """Every whole record, without its chain; the last line may have been cut off by a crash.

    Args:
        path: the file.
        fingerprint: where the chain begins.
        through: ends of the chain at checkpoints, which it must pass.

    Raises:
        DamagedError: a line before the last is not what was recorded, or lines are missing.
    """
    try:
        *whole, _cut_off = files.read(path).split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise DamagedError(f"'{path}' cannot be read ({error.strerror or error}).") from error
    records: list[Record] = []
    chain, passed = fingerprint, {fingerprint}
    for number, line in enumerate(whole, start=1):
        try:
            record, chain = link(chain, line, Recorded)
        except ValueError as error:
            if number == len(whole):
                break
            raise DamagedError(f"Line {number} of '{path}' is not what was recorded ({error}).") from error
        records.append(record)
        passed.add(chain)
    if not passed.issuperset(through):
        raise DamagedError(f"'{path}' lacks records that were there at the last checkpoint.")
    return records


def link(chain: str, line: bytes, kind: type[BaseModel]) -> tuple[Record, str]:
    """The record of a line, and the chain with it.

    Args:
        chain: the chain up to the line.
        line: what is there.
        kind: what the record should hold.

    Raises:
        ValueError: the line is no record, or does not go on from the chain.
    """
    record = parsed(line)
    checked(record, kind)
    said = record.pop("chain", None)
    chain = linked(chain, record)
    if said != chain:
        raise ValueError("it, or one before it, was changed, moved or cut")
    return record, chain


def linked(chain: str, record: Record) -> str:
    """The chain with a record."""
    return files.digest_of(f"{chain} {json.dumps(record, sort_keys=True)}".encode())
