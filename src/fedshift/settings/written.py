"""Values as they are written on a command line, which the type of their setting reads."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from fedshift.errors import FedshiftError
from fedshift.settings.spec import is_text, leaf_types

# A word between commas: in quotes, where it may hold commas, or as it stands.
WORD = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'[^']*'|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)


DEEPEST = 20  # lists and tables in one another
LARGEST_TOML = 4_000_000  # bytes of a file; an experiment has some thousands


@dataclass(frozen=True)
class Written:
    """A value as it was typed, until it is known which setting it is for.

    A text is taken as typed: ``1e3`` stays ``1e3``. Commas make a list. Quotes, as TOML has them, hold a text with
    commas together, and a TOML list such as ``["a", "b"]`` is a list. Anything else is a TOML value, or a bare word.
    """

    text: str

    def read(self, hint: Any) -> Any:
        """The value for a setting of this type; ``Any`` where the type is not known.

        Raises:
            FedshiftError: there is nothing beside a comma.
        """
        value = _toml(self.text)
        if isinstance(value, list):
            return value
        if leaf_types(hint) == {bool} and self.text.lower() in ("true", "false"):  # as Python writes them, too
            return self.text.lower() == "true"
        if is_text(hint):
            return self.names()
        return _anything(self.text)

    def names(self) -> str | list[str]:
        """The text, or several between commas.

        Raises:
            FedshiftError: there is nothing beside a comma.
        """
        listed = _toml(self.text)
        if isinstance(listed, list):
            return listed
        words = self._words()
        return _unquoted(words[0]) if len(words) == 1 else [_unquoted(word) for word in words]

    def table(self) -> dict[str, Any] | None:
        """The table that it is, such as ``{ name = "clip" }``; None of anything else."""
        value = _toml(self.text)
        return value if isinstance(value, dict) else None

    def _words(self) -> list[str]:
        text = self.text.strip()
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


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """The tables of a TOML text; ``what`` is its name in messages.

    Raises:
        FedshiftError: it is not TOML, is too long, or its numbers or lists have no end.
    """
    if len(text) > LARGEST_TOML:
        raise FedshiftError(
            f"{what} has {len(text):,} letters, and at most {LARGEST_TOML:,} are read: leave out what is no setting."
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedshiftError(f"{what} is not TOML: {error}.") from error
    except RecursionError as error:
        raise FedshiftError(f"{what} has lists or tables in one another to a depth that no experiment has.") from error
    except ValueError as error:  # Python reads no whole number of thousands of digits
        raise FedshiftError(f"{what} has a number of thousands of digits; no setting takes it.") from error
    if _deeper(table, DEEPEST):
        raise FedshiftError(f"{what} has lists or tables in one another to a depth that no experiment has.")
    return table


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and tables lie in one another more often than so many times."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def _toml(text: str) -> Any:
    """The value that a text is in TOML; None if it is none."""
    try:
        tables = parse_toml(f"value = {text}", "the value")
    except FedshiftError:
        return None
    return tables["value"] if tables.keys() == {"value"} else None


def _anything(text: str) -> Any:
    value = _toml(text)
    if isinstance(value, bool | int | float | str | list | dict):
        return value
    words = Written(text)._words()
    return _unquoted(text.strip()) if len(words) == 1 else [_anything(word) for word in words]


def _unquoted(word: str) -> str:
    """The text in quotes, or the word as it stands."""
    inner = _toml(word) if word[:1] in ("'", '"') else None
    return inner if isinstance(inner, str) else word
