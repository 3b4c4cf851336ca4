"""JSON files that end with a seal, by which a changed or foreign one is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedshift import files
from fedshift.runs.schema import parsed


def sealed_json(table: Mapping[str, Any], run: str = "") -> str:
    """A table as JSON that ends with a ``seal``: a digest of the rest, and of the fingerprint of the run it is of."""
    return json.dumps({**table, "seal": seal_of(table, run)}, indent=2) + "\n"


def unsealed_json(data: bytes, run: str = "") -> dict[str, Any]:
    """The table of a sealed file.

    Raises:
        ValueError: it is none, was changed, or is of another run.
    """
    table = parsed(data)
    if not isinstance(table, dict) or table.pop("seal", "") != seal_of(table, run):
        raise ValueError("its seal is broken")
    return table


def seal_of(table: Mapping[str, Any], run: str) -> str:
    """The digest of a table, and of the fingerprint of the run it is of."""
    read_back = json.loads(json.dumps(table))  # its keys are texts: "10" is before "2"
    return files.digest_of(f"{run} {json.dumps(read_back, sort_keys=True)}".encode())
