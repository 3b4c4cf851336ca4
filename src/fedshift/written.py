"""Values in TOML, on the command line, as a setting's type, and as text for people."""

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

# A word between commas: in quotes, in which commas are allowed, or bare.
WORD = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'[^']*'|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)
LARGEST_TOML = 4_000_000  # bytes of a file; an experiment has some thousands
LONGEST_SHOWN = 100  # characters of a value in a message


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """The tables of a TOML text; ``what`` is its name in messages."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise FedshiftError(f"{what} nests lists or tables too deep.") from error
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise FedshiftError(f"{what} is not TOML: {error}.") from error


def text_of(path: Path) -> str:
    """The text of a TOML file, which has a largest size."""
    try:
        return files.read(path, LARGEST_TOML).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedshiftError(f"'{path}' cannot be read as text in UTF-8 ({error}).") from error


def read_toml(path: Path) -> dict[str, Any]:
    return parse_toml(text_of(path), f"'{path}'")


def parse_value(text: str) -> Any:
    """The value of a text: a TOML value, several between commas, or a bare word; quotes keep commas inside a text."""
    text = text.strip()
    value = _toml({"True": "true", "False": "false"}.get(text, text))
    if isinstance(value, bool | int | float | str | list | dict):
        return value
    words = _words(text)
    return text if len(words) == 1 else [parse_value(word) for word in words]


def parse_words(text: str) -> str | list[str]:
    """The words of a text between commas; quotes keep a text with commas together."""
    listed = _toml(text)
    if isinstance(listed, list):
        return [str(word) for word in listed]
    words = _words(text.strip())
    values = [_toml(word) if word[:1] in ("'", '"') else None for word in words]
    words = [value if isinstance(value, str) else word for word, value in zip(words, values, strict=True)]
    return words if len(words) > 1 else words[0]


def parse_assignments(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """The keys and values of texts such as ``method.l2r=0.05``, given by an option of the command line."""
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
    """The texts between commas; a text that starts like a list is not split."""
    if "," not in text or text.startswith("["):
        return [text]
    words: list[str] = []
    for match in WORD.finditer(text):
        words.append(match[1])
        if not match[0].endswith(","):  # the last word; the pattern would also match the empty text after it
            break
    if "" in words:
        raise FedshiftError(f"'{text}': a comma has no value on one side; remove it, or add the value.")
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
        raise ValueError("it cannot be a folder's name: at most 255 bytes and no slash")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
RunName = Annotated[str, AfterValidator(_run_name)]  # that a file of a run or of a grid names, in the same folder
FolderPath = Annotated[str, AfterValidator(_folder_path)]


def plain(value: Any) -> Any:
    """A value as TOML types: paths become text, NumPy's numbers and arrays Python's, also within lists and tables.

    Other values are returned unchanged.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist") and not isinstance(value, type):  # a float64 is a float, but the TOML writer refuses it
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def as_toml(value: Any) -> Any:
    return [as_toml(item) for item in value] if isinstance(value, tuple) else value


def prepared(value: Any, hint: Any) -> Any:
    """A value converted for its type: a tuple for lists and single values, text for digits, 0 for -0."""
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
    """The types of a setting's values, also in lists; values of a Literal are excluded."""
    if get_origin(hint) is Annotated:
        return leaf_types(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType, tuple):
        return frozenset[Any]().union(*(leaf_types(option) for option in get_args(hint) if option is not ...))
    return frozenset({hint})


def is_text(hint: Any) -> bool:
    """Whether a setting's values are free text, so that a number means its digits."""
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
    """A text in one line that every terminal and page can show; a line feed, for example, is escaped."""
    return "".join(
        letter.encode("unicode_escape").decode() if category(letter) in SHAPELESS else letter for letter in text
    )


def moment(seconds: float) -> str:
    """A time, in seconds since 1970, as 2026-11-22T06:52:43.120000Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_of(when: str) -> float:
    """The seconds since 1970 of a text that :func:`moment` wrote."""
    time = datetime.fromisoformat(when)
    if time.tzinfo is None:
        raise ValueError("it is no time in UTC")
    return time.timestamp()


def file_name(*words: str) -> str:
    """Words as a file name: letters, digits, dots and single hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-.")
