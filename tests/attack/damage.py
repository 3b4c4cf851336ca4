"""Ways to damage a file of a run folder: each takes its content, or the file, and a generator of random numbers."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], None]


def of_bytes(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    """A damage that changes a file's content."""

    def damage(file: Path, draw: random.Random) -> None:
        file.write_bytes(change(file.read_bytes(), draw))

    return damage


def flipped(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def edited(data: bytes, draw: random.Random) -> bytes:
    """Another number that looks right; of a file of tensors another byte of the last one."""
    digits = list(re.finditer(rb"(?<=[ \[:.])\d", data)) if data[:1] in b"{n" else []
    if not digits:
        return data[:-1] + bytes([data[-1] ^ 1])
    at = draw.choice(digits).start()
    return data[:at] + (b"1" if data[at : at + 1] != b"1" else b"2") + data[at + 1 :]


def line_removed(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def lines_reordered(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[1:], lines[0]]) if len(lines) > 1 else data[::-1]


def deleted(file: Path, draw: random.Random) -> None:
    file.unlink()


def a_folder(file: Path, draw: random.Random) -> None:
    file.unlink()
    file.mkdir()


def a_pipe(file: Path, draw: random.Random) -> None:
    """Anyone who opens it waits for somebody who writes."""
    file.unlink()
    os.mkfifo(file)


DAMAGES: dict[str, Damage] = {
    "cut": of_bytes(lambda data, draw: data[: draw.randrange(len(data))]),
    "a bit flipped": of_bytes(flipped),
    "edited": of_bytes(edited),
    "zeros": of_bytes(lambda data, draw: bytes(len(data))),  # what some file systems leave after a power cut
    "twice": of_bytes(lambda data, draw: data * 2),
    "nested": of_bytes(lambda data, draw: b"[" * 100_000 + b"]" * 100_000),  # more than a parser that recurses takes
    "line removed": of_bytes(line_removed),
    "lines reordered": of_bytes(lines_reordered),
    "deleted": deleted,
    "a folder in its place": a_folder,
    "a pipe in its place": a_pipe,
}
