"""Ways to damage the files of a run folder.

A damage takes a file's content and a generator of random numbers, and gives other contents, or None where it does not
apply to such a file. Damages of bytes apply to every file; those of JSON, TOML and safetensors keep the form, and even
the checksum, so that only what the file says is wrong.
"""

from __future__ import annotations

import json
import os
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import tomli_w

Damage = Callable[[bytes, random.Random], bytes | None]

ABSURD: tuple[Any, ...] = (
    None,
    True,
    -3,
    0,
    2**70,
    0.5,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "x" * 20_000,
    "\u0000\n\u202e",
    "../../up",
    [],
    [[]],
    {},
    {"": None},
)
NESTED = "[" * 100_000 + "]" * 100_000  # more than a parser that recurses takes


# Bytes -------------------------------------------------------------------------------------------


def truncated(data: bytes, draw: random.Random) -> bytes | None:
    return data[: draw.randrange(len(data))] if data else None


def emptied(data: bytes, draw: random.Random) -> bytes | None:
    return b"" if data else None


def flipped(data: bytes, draw: random.Random) -> bytes | None:
    if not data:
        return None
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def random_bytes(data: bytes, draw: random.Random) -> bytes | None:
    return draw.randbytes(max(64, len(data)))


def zeros(data: bytes, draw: random.Random) -> bytes | None:
    """What some file systems leave after a power cut."""
    return bytes(len(data))


def no_utf8(data: bytes, draw: random.Random) -> bytes | None:
    at = draw.randrange(len(data) + 1)
    return data[:at] + b"\xff\xfe" + data[at:]


def twice(data: bytes, draw: random.Random) -> bytes | None:
    return data * 2 if data else None


# JSON and TOML -----------------------------------------------------------------------------------


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _parsed(data: bytes) -> tuple[list[Any], Callable[[list[Any]], bytes]] | None:
    """The documents of a file, of which JSON lines have many, and how they are written back."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    try:
        return [json.loads(text)], lambda found: json.dumps(found[0], indent=2).encode()
    except ValueError:
        pass
    try:
        lines = [json.loads(line) for line in text.splitlines()]
        if lines:
            return lines, lambda found: "".join(json.dumps(line) + "\n" for line in found).encode()
    except ValueError:
        pass
    try:
        return [tomllib.loads(text)], lambda found: tomli_w.dumps(found[0]).encode()
    except tomllib.TOMLDecodeError:
        return None


def _edited(edit: Callable[[Any, Any, random.Random], bool]) -> Damage:
    """A damage that edits a container at a key, in one of a file's documents."""

    def damage(data: bytes, draw: random.Random) -> bytes | None:
        parsed = _parsed(data)
        if parsed is None:
            return None
        documents, written = parsed
        for _ in range(20):  # until one can be written, as TOML cannot hold everything
            which = draw.randrange(len(documents))
            copies = json.loads(json.dumps(documents))
            places = list(_places(copies[which]))
            if not places:
                return None
            *way, last = draw.choice(places)
            container = copies[which]
            for key in way:
                container = container[key]
            try:
                if edit(container, last, draw) and (result := written(copies)) != data:
                    return result
            except (TypeError, ValueError):
                continue
        return None

    return damage


def _remove(container: Any, key: Any, draw: random.Random) -> bool:
    del container[key]
    return True


def _rename(container: Any, key: Any, draw: random.Random) -> bool:
    if not isinstance(container, dict):
        return False
    container[draw.choice([key + "_", key.upper(), "é" + key, ""])] = container.pop(key)
    return True


def _add(container: Any, key: Any, draw: random.Random) -> bool:
    if isinstance(container, dict):
        container["another"] = draw.choice(ABSURD)
    else:
        container.insert(key, draw.choice(ABSURD))
    return True


def _replace(container: Any, key: Any, draw: random.Random) -> bool:
    container[key] = draw.choice(ABSURD)
    return True


def _nudge(container: Any, key: Any, draw: random.Random) -> bool:
    """Another value that looks right."""
    value = container[key]
    if isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int | float):
        container[key] = value + 1 if isinstance(value, int) else value / 2 + 0.01
    elif isinstance(value, str) and value:
        container[key] = value[:-1] + ("0" if value[-1] != "0" else "1")
    else:
        return False
    return True


def _swap(container: Any, key: Any, draw: random.Random) -> bool:
    """Two values of the same container in each other's place."""
    other = draw.choice(list(container) if isinstance(container, dict) else range(len(container)))
    container[key], container[other] = container[other], container[key]
    return True


key_removed = _edited(_remove)
key_renamed = _edited(_rename)
key_added = _edited(_add)
value_replaced = _edited(_replace)
value_nudged = _edited(_nudge)
values_swapped = _edited(_swap)


def nested(data: bytes, draw: random.Random) -> bytes | None:
    """A value that is nested deeper than a parser goes."""
    if _parsed(data) is None:
        return None
    text = data.decode()
    colons = [match.end() for match in re.finditer(r'": | = ', text)]
    if not colons:
        return NESTED.encode()
    at = draw.choice(colons)
    end = re.compile(r"[,\n}]").search(text, at)
    return (text[:at] + NESTED + text[end.start() if end else len(text) :]).encode()


# Lines -------------------------------------------------------------------------------------------


def _by_line(edit: Callable[[list[bytes], int], list[bytes]]) -> Damage:
    def damage(data: bytes, draw: random.Random) -> bytes | None:
        lines = data.splitlines(keepends=True)
        if len(lines) < 2 or _parsed(data) is None:
            return None
        result = b"".join(edit(lines, draw.randrange(len(lines))))
        return result if result != data else None

    return damage


line_doubled = _by_line(lambda lines, at: [*lines[: at + 1], *lines[at:]])
line_removed = _by_line(lambda lines, at: [*lines[:at], *lines[at + 1 :]])
line_cut = _by_line(lambda lines, at: [*lines[:at], lines[at][: len(lines[at]) // 2] + b"\n", *lines[at + 1 :]])
lines_ended = _by_line(lambda lines, at: lines[:at])
lines_reordered = _by_line(lambda lines, at: lines[at:] + lines[:at])


# Safetensors -------------------------------------------------------------------------------------


def resealed(data: bytes) -> bytes:
    """A sealed file with the checksum that its content has now."""
    found = re.search(rb'"?\\?"checksum\\?": \\?"([0-9a-f]{32})', data)
    if found is None:
        return data
    blank = data[: found.start(1)] + b"0" * 32 + data[found.end(1) :]
    return blank.replace(b"0" * 32, blake2b(blank, digest_size=16).hexdigest().encode(), 1)


def _headed(edit: Callable[[dict[str, Any], random.Random], Any]) -> Damage:
    """A damage of the header of a safetensors file, whose checksum, if it has one, is right afterwards."""

    def damage(data: bytes, draw: random.Random) -> bytes | None:
        try:
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + length])
        except ValueError:
            return None
        if not isinstance(header, dict) or not header.keys() - {"__metadata__"}:
            return None
        edited = edit(header, draw)
        if edited is None:
            return None
        if isinstance(edited, bytes):
            return edited + data[8 + length :] if len(edited) == 8 else edited
        text = json.dumps(edited).encode()
        return resealed(len(text).to_bytes(8, "little") + text + data[8 + length :])

    return damage


def _same(header: dict[str, Any], draw: random.Random) -> Any:
    return header


def _tensor(header: dict[str, Any], draw: random.Random) -> str:
    return draw.choice(sorted(header.keys() - {"__metadata__"}))


def _no_object(header: dict[str, Any], draw: random.Random) -> Any:
    return draw.choice([[1, 2], 5, "header", [], [header]])


def _told(header: dict[str, Any], draw: random.Random) -> Any:
    """Nonsense in what the file says of itself."""
    try:
        about = json.loads(header["__metadata__"]["run"])
    except (KeyError, ValueError):
        return None
    name = draw.choice(sorted(about.keys() - {"checksum"}))
    about[name] = draw.choice([None, -3, 0.5, float("nan"), "x" * 100, {"": None}])
    header["__metadata__"]["run"] = json.dumps(about)
    return header


def _told_less(header: dict[str, Any], draw: random.Random) -> Any:
    try:
        about = json.loads(header["__metadata__"]["run"])
    except (KeyError, ValueError):
        return None
    del about[draw.choice(sorted(about.keys() - {"checksum"}))]
    header["__metadata__"]["run"] = json.dumps(about)
    return header


def _tensor_missing(header: dict[str, Any], draw: random.Random) -> Any:
    del header[_tensor(header, draw)]
    return header


def _tensor_renamed(header: dict[str, Any], draw: random.Random) -> Any:
    name = _tensor(header, draw)
    header[draw.choice([name + "x", "x", "", "shared//" + name, "..//x"])] = header.pop(name)
    return header


def _tensor_reshaped(header: dict[str, Any], draw: random.Random) -> Any:
    name = _tensor(header, draw)
    header[name]["shape"] = draw.choice([[1, *header[name]["shape"]], [*header[name]["shape"][::-1], 1], [-1], [2**40]])
    return header


def _tensor_retyped(header: dict[str, Any], draw: random.Random) -> Any:
    name = _tensor(header, draw)
    others = {"F32": "I32", "I64": "F64", "F64": "I64", "I32": "F32"}
    header[name]["dtype"] = draw.choice([others.get(header[name]["dtype"], "U8"), "F7", 5])
    return header


def _beyond(header: dict[str, Any], draw: random.Random) -> Any:
    name = _tensor(header, draw)
    header[name]["data_offsets"] = draw.choice([[0, 2**50], [2**50, 2**50 + 4], [-8, 0], [8, 0], [0], "x"])
    return header


def _long(header: dict[str, Any], draw: random.Random) -> Any:
    return draw.choice([2**63, 2**64 - 1, 2**40, 100_000_000, 0]).to_bytes(8, "little")


def value_changed(data: bytes, draw: random.Random) -> bytes | None:
    """A number in a tensor of a file without a checksum; only a digest elsewhere can tell."""
    if len(data) < 16 or b"checksum" in data or int.from_bytes(data[:8], "little") + 8 >= len(data):
        return None
    start = 8 + int.from_bytes(data[:8], "little")
    at = draw.randrange(start, len(data))
    return data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]


rewritten = _headed(_same)  # no damage: for seeing that such a file is read

BYTES: dict[str, Damage] = {
    "truncated": truncated,
    "emptied": emptied,
    "a bit flipped": flipped,
    "random bytes": random_bytes,
    "zeros": zeros,
    "no UTF-8": no_utf8,
    "twice": twice,
}
TEXT: dict[str, Damage] = {
    "key removed": key_removed,
    "key renamed": key_renamed,
    "key added": key_added,
    "value replaced": value_replaced,
    "value nudged": value_nudged,
    "values swapped": values_swapped,
    "nested": nested,
    "line doubled": line_doubled,
    "line removed": line_removed,
    "line cut": line_cut,
    "lines ended": lines_ended,
    "lines reordered": lines_reordered,
}
TENSORS: dict[str, Damage] = {
    "header is no object": _headed(_no_object),
    "says nonsense": _headed(_told),
    "says less": _headed(_told_less),
    "tensor missing": _headed(_tensor_missing),
    "tensor renamed": _headed(_tensor_renamed),
    "tensor reshaped": _headed(_tensor_reshaped),
    "tensor of another type": _headed(_tensor_retyped),
    "offsets beyond the file": _headed(_beyond),
    "header too long": _headed(_long),
    "value changed": value_changed,
}
DAMAGES: dict[str, Damage] = BYTES | TEXT | TENSORS


# Files as a whole --------------------------------------------------------------------------------


def deleted(file: Path) -> None:
    file.unlink()


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_dangling_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def a_pipe(file: Path) -> None:
    """Whoever opens it waits for somebody who writes."""
    file.unlink()
    os.mkfifo(file)


FILES: dict[str, Callable[[Path], None]] = {
    "deleted": deleted,
    "a folder in its place": a_folder,
    "a dangling link in its place": a_dangling_link,
    "a pipe in its place": a_pipe,
}
