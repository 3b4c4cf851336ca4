"""TOML texts, single values as they are typed on a command line, and numbers and names as they are printed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unicodedata import category

from fedshift import files
from fedshift.errors import FedshiftError

# A word between commas: in quotes, where it may hold commas, or as it stands.
WORD = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'[^']*'|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)
LARGEST_TOML = 4_000_000  # bytes of a file; an experiment has some thousands


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """The tables of a TOML text; ``what`` is its name in messages.

    Raises:
        FedshiftError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise FedshiftError(f"{what} nests lists or tables too deep.") from error
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise FedshiftError(f"{what} is not TOML: {error}.") from error


def text_of(path: Path) -> str:
    """The text of a TOML file.

    Raises:
        FedshiftError: it cannot be read, or is too large for settings.
    """
    try:
        return files.read(path, LARGEST_TOML).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedshiftError(f"'{path}' cannot be read as text in UTF-8 ({error}).") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        FedshiftError: it cannot be read, is too large, or is not TOML.
    """
    return parse_toml(text_of(path), f"'{path}'")


def parse_value(text: str) -> Any:
    """The value of a text: a TOML value, several between commas, or a bare word.

    Quotes keep a text with commas together.

    Raises:
        FedshiftError: there is nothing beside a comma.
    """
    text = text.strip()
    value = _toml({"True": "true", "False": "false"}.get(text, text))
    if isinstance(value, bool | int | float | str | list | dict):
        return value
    words = _words(text)
    return text if len(words) == 1 else [parse_value(word) for word in words]


def parse_words(text: str) -> str | list[str]:
    """A text as it is typed, or those between commas; quotes keep a text with commas together.

    Raises:
        FedshiftError: there is nothing beside a comma.
    """
    listed = _toml(text)
    if isinstance(listed, list):
        return [str(word) for word in listed]
    words = _words(text.strip())
    values = [_toml(word) if word[:1] in ("'", '"') else None for word in words]
    words = [value if isinstance(value, str) else word for word, value in zip(words, values, strict=True)]
    return words if len(words) > 1 else words[0]


def parse_assignments(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """The keys and values of texts such as ``method.l2r=0.05``, which an option of the command line gives.

    Raises:
        FedshiftError: one is no assignment, or gives a key again.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise FedshiftError(f"'{text}' is no assignment; write for example {option} method.l2r=0.05")
        if key in found:
            raise FedshiftError(f"{option} gives {key} twice; give it once.")
        found[key] = parse_value(value)
    return found


def _toml(text: str) -> Any:
    try:
        table = parse_toml(f"value = {text}", "the value")
    except FedshiftError:
        return None
    return table["value"] if table.keys() == {"value"} else None


def _words(text: str) -> list[str]:
    """The texts between commas; one that begins like a list is no list of words."""
    if "," not in text or text.startswith("["):
        return [text]
    words: list[str] = []
    for match in WORD.finditer(text):
        words.append(match[1])
        if not match[0].endswith(","):  # the last one; the pattern would match nothing once more after it
            break
    if "" in words:
        raise FedshiftError(f"'{text}': there is nothing beside a comma; remove it, or name what is missing.")
    return words


SHAPELESS = frozenset({"Cc", "Cn", "Cs", "Zl", "Zp"})  # controls, what is no letter at all, half letters, line ends


def bytes_text(count: int) -> str:
    """A number of bytes with four digits, in units of 1,000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def clock(seconds: float) -> str:
    """A duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str) -> str:
    """A text in one line that every terminal and page can hold: a line feed in a name, say, becomes an escape."""
    return "".join(
        letter.encode("unicode_escape").decode() if category(letter) in SHAPELESS else letter for letter in text
    )


def moment(seconds: float) -> str:
    """A time, in seconds since 1970, as 2026-11-22T06:52:43.120000Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_of(when: str) -> float:
    """The seconds since 1970 of what :func:`moment` wrote.

    Raises:
        ValueError: it is no time with a time zone.
    """
    time = datetime.fromisoformat(when)
    if time.tzinfo is None:
        raise ValueError("it is no time in UTC")
    return time.timestamp()
