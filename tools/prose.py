"""Report words that the project's prose avoids: in docs, TOML files, docstrings, comments, and messages.

    python tools/prose.py            the hits, and how often each limited word occurs
    python tools/prose.py --counts   the counts alone

The list, with what to write instead, is ``tools/words.toml``.
"""

from __future__ import annotations

import re
import sys
import tokenize
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

GENERATED = {"_build", "methods", "gallery", "generated", "jupyter_execute", "methods.md", "commands.md", "settings.md"}
ROOT = Path(__file__).resolve().parent.parent
WORDS = tomllib.loads((ROOT / "tools" / "words.toml").read_text(encoding="utf-8"))
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->", re.DOTALL)  # of Markdown
MARKED = re.compile(r"``[^`]*``|:\w+:`[^`]*`|\{[^{}]*\}")  # code in a docstring, a field of an f-string
STRING = {tokenize.STRING} | {kind for name in ("FSTRING_MIDDLE",) if (kind := getattr(tokenize, name, None))}


class Hit(NamedTuple):
    """An avoided word at a line of a file, and what to write instead."""

    path: Path
    line: int
    word: str
    use: str


def prose_of_python(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a Python file and its strings of at least three words, each with its first line."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT or (token.type in STRING and len(token.string.split()) > 2):
                yield token.start[0], _blank(MARKED, token.string)


def prose_of_markdown(path: Path) -> Iterator[tuple[int, str]]:
    """The text of a Markdown page without its code and its links' addresses."""
    yield 1, _blank(CODE, path.read_text(encoding="utf-8"))


def prose_of_toml(path: Path) -> Iterator[tuple[int, str]]:
    """A TOML file without the marks of its comments."""
    yield 1, path.read_text(encoding="utf-8").replace("#", " ")


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """The text with what matches replaced by the line ends in it, so that lines keep their numbers."""
    return pattern.sub(lambda match: "\n" * match.group().count("\n") or " ", text)


READERS = {".py": prose_of_python, ".md": prose_of_markdown, ".toml": prose_of_toml}


def trees() -> dict[str, list[Path]]:
    """The files of each tree that has limits."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    changes = ROOT / "CHANGELOG.md"
    return {
        "src": sorted((ROOT / "src").rglob("*.py")),
        "docs": sorted(page for page in pages if page != changes and not GENERATED & {page.name, *page.parts}),
        "toml": sorted((ROOT / "src").rglob("*.toml")),
    }


def prose(paths: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """Each piece of prose in files, with its first line."""
    for path in paths:
        for line, text in READERS[path.suffix](path):
            yield path, line, text


def hits(paths: Iterable[Path]) -> list[Hit]:
    """Every avoided word in files; a phrase may go across lines."""
    rules = [(re.compile(rf"\b(?:{'|'.join(rule['words'])})\b", re.IGNORECASE), rule["use"]) for rule in WORDS["avoid"]]
    found = []
    for path, line, text in prose(paths):
        words = [*re.finditer(r"\S+", text)]
        ends = [*accumulate((len(word.group()) + 1 for word in words), initial=0)]  # of each word, in the joined text
        joined = " ".join(word.group() for word in words)
        for pattern, use in rules:
            for match in pattern.finditer(joined):
                word = words[bisect_right(ends, match.start()) - 1]
                found.append(Hit(path, line + text.count("\n", 0, word.start()), match.group(), use))
    return found


def counts(tree: str) -> dict[str, int]:
    """How often each limited word occurs in a tree."""
    text = "\n".join(text for _, _, text in prose(trees()[tree]))
    return {word: len(re.findall(rf"\b{word}\b", text, re.IGNORECASE)) for word in WORDS["limits"][tree]}


def main() -> int:
    """Print hits and counts; the exit code is 1 if there are hits, or a word is over its limit."""
    failed = False
    for tree, paths in trees().items():
        found = hits(paths)
        if "--counts" not in sys.argv:
            for hit in found:
                print(f"{hit.path.relative_to(ROOT)}:{hit.line}: '{hit.word}': {hit.use}")
        limited = [(word, count, WORDS["limits"][tree][word]) for word, count in counts(tree).items()]
        print(f"{tree}: {len(found)} avoided", *(f"{word} {n} of {limit}" for word, n, limit in limited), sep=", ")
        failed |= bool(found) or any(count > limit for _, count, limit in limited)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
