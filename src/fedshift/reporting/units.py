"""Numbers with units, and texts that users gave, for a reader."""

from __future__ import annotations

from unicodedata import category

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
