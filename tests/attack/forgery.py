"""Digests made anew: a run folder in which a file says something else, and every seal, chain and digest fits it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from attack.damage import resealed

FORGERIES = ("key removed", "key renamed", "key added", "value replaced", "value nudged", "values swapped")


def digest(data: bytes) -> str:
    """As fedshift's of files."""
    return blake2b(data, digest_size=16).hexdigest()


def sealed(table: Mapping[str, Any], run: str, indent: int | None = 2) -> bytes:
    """A JSON file, or with no indent a line, with the seal that its content has now."""
    rest = {name: value for name, value in table.items() if name != "seal"}
    seal = digest(f"{run} {json.dumps(rest, sort_keys=True)}".encode())
    return json.dumps({**rest, "seal": seal}, indent=indent).encode() + b"\n"


def chained(lines: bytes, run: str) -> tuple[bytes, dict[int, str]]:
    """Records with the chain that they have now, and its links by position."""
    chain, written, links = run, [], {}
    for line in lines.splitlines():
        record = json.loads(line)
        record.pop("chain", None)
        chain = digest(f"{chain} {json.dumps(record, sort_keys=True)}".encode())
        written.append(json.dumps({**record, "chain": chain}))
        if isinstance(record.get("position"), int):
            links[record["position"]] = chain
    return "".join(f"{line}\n" for line in written).encode(), links


def sealed_anew(folder: Path) -> None:
    """Make every digest of a run's folder fit what its files say now; what is no JSON object any more stays."""
    identity = _read(folder / "run.json")
    if identity is None:
        return
    table = tomllib.loads((folder / "experiment.toml").read_text())
    decides = {name: value for name, value in table.items() if name != "run"}
    if "table" in identity:
        identity["table"] = digest(json.dumps(decides, sort_keys=True, default=str).encode())
    (folder / "run.json").write_bytes(sealed(identity, ""))
    run = str(identity.get("fingerprint", ""))
    for name in ("environment.json", "federation.json", "messages.json"):
        if (held := _read(folder / name)) is not None:
            (folder / name).write_bytes(sealed(held, run))
    if (folder / "timings.jsonl").exists():
        lines = [json.loads(line) for line in (folder / "timings.jsonl").read_bytes().splitlines()]
        (folder / "timings.jsonl").write_bytes(
            b"".join(sealed(line, run, None) if isinstance(line, dict) else b"5\n" for line in lines)
        )
    _records(folder, run)
    if (summary := _read(folder / "summary.json")) is not None:
        if isinstance(summary.get("files"), dict):
            summary["files"] = {
                name: digest((folder / name).read_bytes()) if (folder / name).is_file() else value
                for name, value in summary["files"].items()
            }
        summary["selected"] = _selected(folder) or summary.get("selected")
        (folder / "summary.json").write_bytes(sealed(summary, run))


def _records(folder: Path, run: str) -> None:
    """The chain, and the links of it that checkpoints know."""
    file = folder / "records.jsonl"
    try:
        written, links = chained(file.read_bytes(), run)
    except (AttributeError, ValueError, OSError):
        return
    file.write_bytes(written)
    for path in folder.glob("checkpoint*.safetensors"):
        data = path.read_bytes()
        about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["run"])
        link = links.get(about.get("position"), about.get("records"))
        if isinstance(about.get("records"), str) and len(about["records"]) == len(link):
            path.write_bytes(resealed(data.replace(about["records"].encode(), link.encode(), 1)))


def _selected(folder: Path) -> Any:
    """What a forger's records come to, if they come to anything."""
    from fedshift.runs.selection import summary

    try:
        return summary([json.loads(line) for line in (folder / "records.jsonl").read_bytes().splitlines()])
    except Exception:  # whatever a forger writes
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
