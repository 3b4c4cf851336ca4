"""Names of domains and classes: what may be one, and when two are the same name spelled twice."""

from __future__ import annotations

from collections.abc import Mapping
from unicodedata import category, normalize

from fedshift.errors import FedshiftError, Problems

_NOT_SHOWN = ("Cc", "Cs", "Zl", "Zp")  # control characters, bytes that are no UTF-8, ends of lines and paragraphs


def check_names(kind: str, places: Mapping[str, str]) -> None:
    """Refuse names that cannot be written in one line, and names that are likely one name spelled twice.

    Args:
        kind: "domain" or "class".
        places: where each name occurs first, by the name.

    Raises:
        FedshiftError: a name is empty, holds control characters or bytes that are no UTF-8, or two differ only in
            case, white space or Unicode form; the message says which and where.
    """
    problems = Problems(f"{kind} names cannot be used")
    spelled: dict[str, str] = {}
    for name, place in places.items():
        if not name.strip():
            problems.add(FedshiftError(f"The {kind} name {name!r} ({place}) is empty; give it one."))
        elif any(category(character) in _NOT_SHOWN for character in name):
            wrong = "holds control characters or bytes that are no UTF-8"
            problems.add(FedshiftError(f"The {kind} name {name!r} ({place}) {wrong}; rename it."))
        elif (other := spelled.setdefault(_simplified(name), name)) != name:
            problems.add(_twins(kind, other, name, places))
    problems.check()


def _twins(kind: str, one: str, other: str, places: Mapping[str, str]) -> FedshiftError:
    # In Unicode's composed and decomposed form a name looks the same, so then its code points are shown.
    shown = ascii if normalize("NFC", one) == normalize("NFC", other) else repr
    return FedshiftError(
        f"The {kind} names {shown(one)} ({places[one]}) and {shown(other)} ({places[other]}) differ only in case, "
        "white space or Unicode form. Spell them alike; if they are two, give them names that differ in more."
    )


def _simplified(name: str) -> str:
    """A name without case, white space, invisible characters and Unicode's several forms of one character.

    White space between digits stays, since "1 11" and "11 1" are different numbers.
    """
    seen = "".join(character for character in name if category(character) != "Cf")
    folded = normalize("NFC", normalize("NFC", normalize("NFD", seen).casefold()))
    joined = ""
    for word in folded.split():
        joined += " " if joined[-1:].isdigit() and word[0].isdigit() else ""
        joined += word
    return joined
