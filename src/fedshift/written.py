"""Values as TOML holds them, as a command line gives them, as a setting's type has them, and as people read them."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unicodedata import category

from pydantic import AfterValidator

from fedshift import files
from fedshift.errors import FedshiftError

# A word between commas: in quotes, where it may hold commas, or as it stands.
WORD = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'[^']*'|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)
LARGEST_TOML = 4_000_000  # bytes of a file; an experiment has some thousands
LONGEST_SHOWN = 100  # characters of a value in a message


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


# Values of settings --------------------------------------------------------------------------------


def _folder_name(name: str) -> str:
    if not 0 < len(name) <= 100 or name.startswith(".") or set(name) & set("/\\") or not name.isprintable():
        raise ValueError("it names a folder: 1 to 100 printable characters, no slash, no dot at the start")
    return name


def _folder_path(path: str) -> str:
    if not path or not path.isprintable() or len(path) > 1000:
        raise ValueError("it names a folder: 1 to 1,000 printable characters")
    return path


def _run_name(name: str) -> str:
    if name in ("", ".", "..") or Path(name).name != name or "\0" in name or len(name.encode()) > 255:
        raise ValueError("it names no folder beside others: at most 255 bytes and no slash")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
RunName = Annotated[str, AfterValidator(_run_name)]  # that a file of a run or of a grid names, beside it
FolderPath = Annotated[str, AfterValidator(_folder_path)]


def plain(value: Any) -> Any:
    """A value as TOML can hold it: paths as text, NumPy's numbers and arrays as Python's, also within lists and tables.

    What is none of these comes back as it is.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist") and not isinstance(value, type):  # a float64 is a float, but TOML cannot hold it
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def as_toml(value: Any) -> Any:
    return [as_toml(item) for item in value] if isinstance(value, tuple) else value


def prepared(value: Any, hint: Any) -> Any:
    """A value as its type has it: a tuple for lists and single values, text for digits, 0 for -0."""
    if leaf_types(hint) == {Any} or get_origin(hint) is dict:
        return value
    as_text = is_text(hint)
    of_literals = any(get_origin(kind) is Literal for kind in leaf_types(hint))

    def item(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(item(each) for each in value)
        if isinstance(value, bool):
            return None if of_literals else value  # Python takes True for 1, which a Literal may have
        if as_text and isinstance(value, int | float):
            return str(value)
        return value + 0.0 if isinstance(value, float) else value

    value = item(value)
    if get_origin(hint) is not tuple or isinstance(value, tuple) or get_origin(get_args(hint)[0]) is tuple:
        return value
    return (value,)


@cache
def leaf_types(hint: Any) -> frozenset[Any]:
    """The types that a setting's values have, in lists as well; the values of a Literal are not among them."""
    if get_origin(hint) is Annotated:
        return leaf_types(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType, tuple):
        return frozenset[Any]().union(*(leaf_types(option) for option in get_args(hint) if option is not ...))
    return frozenset({hint})


def is_text(hint: Any) -> bool:
    """Whether a setting's values are free text, so that a number given for one can only mean its digits."""
    kinds = leaf_types(hint)
    return str in kinds and not kinds & {int, float, bool}


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 10]}...{text[-5:]}"


# Text for people ------------------------------------------------------------------------------------

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


def file_name(*words: str) -> str:
    """Words as the name of a file: letters, digits, dots and single hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-.")
