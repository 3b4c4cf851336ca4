"""Shakespeare's roles as domains: which character comes next (LEAF, Caldas et al., 2018).

A sample is a window of 80 characters of one role's text; its label is the character that follows. The classes are the
characters that occur anywhere in the file.

*Choices*: where windows start a character apart, a random split of windows would put nearly the same text on both
sides. So a role's text is cut into blocks, windows that would cross the border of a block are left out, and a block is
a group, which a split keeps whole. A role of several plays counts once; its speeches are joined by line ends, and a
paragraph without a speaker belongs to the speech before it. LEAF draws roles until it has a share of the samples; here
the share is one of the roles that are long enough, drawn anew for each seed.

LEAF's own files cut every line into windows of its own, the first of 80 blanks. They are read as they are: a line is a
text, with its blanks. Files out of which LEAF has drawn single windows at random, to sample or to split, are refused,
because what a window overlaps may then be anywhere.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.content import digest
from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Fraction, WholeNumber, Width, setting
from fedshift.streams import Streams

Texts = Mapping[str, Sequence[str]]  # each role's texts, in order


class Shakespeare(Dataset):
    """The next character in a role's text."""

    path: str = setting(
        help="a text of plays, speakers on lines of their own such as 'ROMEO:' after a blank line; or LEAF's JSON "
        "(all_data), a file or a folder of them",
        path=True,
    )
    length: Width = setting(80, help="characters of a window", source="LEAF")
    stride: Count = setting(1, help="characters from one window to the next", source="LEAF")
    block: Count = setting(
        400, help="characters of a block, which a split keeps whole; block - length windows of it are used"
    )
    min_blocks: Count = setting(3, help="roles of fewer blocks are left out; a split has up to three sides")
    min_samples: Count = setting(40, help="roles of fewer samples are left out", source="LEAF, as in Client2Vec")
    fraction: Fraction = setting(
        0.1, help="part of the remaining roles, drawn by the seed", source="LEAF, as in Client2Vec"
    )
    samples_per_role: WholeNumber = setting(0, help="windows drawn of each role at most; 0: all")

    def domain_names(self) -> tuple[str, ...]:
        """Every role that is long enough; a seed draws ``fraction`` of them."""
        return tuple(sorted(self._pieces()))

    def check_here(self) -> None:
        """Whether the text is there and can be read."""
        self._texts()

    def load(self, streams: Streams) -> DomainData:
        """Draw roles and cut their blocks into windows.

        Raises:
            FedshiftError: the file cannot be read as a text of plays or LEAF's JSON, or no role is long enough.
        """
        pieces = self._pieces()
        names = sorted(pieces)
        count = max(1, round(self.fraction * len(names)))
        drawn = sorted(names[i] for i in streams.permutation(len(names), "shakespeare roles")[:count].tolist())
        vocabulary = _vocabulary(self._texts())
        token = {character: i for i, character in enumerate(vocabulary)}
        self._check_fits([pieces[name] for name in drawn])
        windows, domain, group, blocks = [], [], [], 0
        for index, name in enumerate(drawn):
            cut = [self._windows(torch.tensor([token[character] for character in piece])) for piece in pieces[name]]
            numbers = torch.arange(blocks, blocks + len(cut)).repeat_interleave(torch.tensor([len(w) for w in cut]))
            kept = self._draw(len(numbers), name, streams)
            windows.append(torch.cat(cut)[kept])
            group.append(numbers[kept])
            domain.append(torch.full((len(kept),), index))
            blocks += len(cut)
        together = torch.cat(windows)
        return DomainData(
            x=together[:, :-1].contiguous(),
            y=together[:, -1].contiguous(),
            domain=torch.cat(domain),
            domains=tuple(drawn),
            classes=vocabulary,
            group=torch.cat(group),
        )

    def inputs(self) -> Inputs:
        """Token ids as they are, with the characters they stand for."""
        return Inputs(vocabulary=_vocabulary(self._texts()))

    def _texts(self) -> Texts:
        return _read(self.path, self.length, digest(self.path))

    def _pieces(self) -> dict[str, list[str]]:
        """The blocks of every role that is long enough, each with at least one window."""
        if self.block <= self.length:
            raise FedshiftError(
                f"data.block = {self.block} holds no window of {self.length} characters with the next one: "
                f"--set data.block={5 * self.length}"
            )
        pieces = {}
        for name, texts in self._texts().items():
            cut = [text[at : at + self.block] for text in texts for at in range(0, len(text), self.block)]
            cut = [piece for piece in cut if len(piece) > self.length]
            samples = sum((len(piece) - self.length - 1) // self.stride + 1 for piece in cut)
            if len(cut) >= self.min_blocks and samples >= self.min_samples:
                pieces[name] = cut
        if not pieces:
            raise FedshiftError(
                f"No role in '{self.path}' has {self.min_blocks} blocks and {self.min_samples} samples: lower "
                "data.block, data.min_blocks, data.min_samples or data.stride."
            )
        return pieces

    def _check_fits(self, roles: Sequence[Sequence[str]]) -> None:
        """Refuse windows that do not fit into memory: eight bytes a character, in two copies."""
        counts = [sum(max(0, len(piece) - self.length - 1) // self.stride + 1 for piece in cut) for cut in roles]
        most = self.samples_per_role or max(counts)
        windows = sum(min(count, most) for count in counts)
        memory.check(
            windows * (self.length + 1) * 8 * 2,
            f"The data set, {windows} windows of {self.length} characters,",
            "Lower data.fraction or data.samples_per_role, or raise data.stride.",
        )

    def _windows(self, tokens: Tensor) -> Tensor:
        """Tokens (L,) of a block as windows with their next character, (n, length + 1)."""
        return tokens.unfold(0, self.length + 1, self.stride)

    def _draw(self, count: int, name: str, streams: Streams) -> Tensor:
        """Which of a role's windows are used, in order."""
        if not 0 < self.samples_per_role < count:
            return torch.arange(count)
        return streams.permutation(count, "shakespeare samples", name)[: self.samples_per_role].sort().values


def _vocabulary(texts: Texts) -> tuple[str, ...]:
    return tuple(sorted(set().union(*(text for role in texts.values() for text in role))))


@lru_cache(maxsize=1)
def _read(path: str, length: int, content: str) -> Texts:
    """Each role's texts; read again only if the content has changed."""
    root = Path(path).expanduser()
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    if not content or not files:
        raise FedshiftError(f"data.path = '{path}' is no file, and no folder of LEAF's JSON files.")
    texts: dict[str, list[str]] = defaultdict(list)
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
            parsed = _leaf(json.loads(text), file, length) if file.suffix == ".json" else _plays(text)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise FedshiftError(f"'{file}' cannot be read as text in UTF-8 or as JSON ({error}).") from error
        for role, own in parsed.items():
            texts[role] += own
    if not texts:
        raise FedshiftError(
            f"'{path}' names no speaker: a speaker is a line of its own that ends in a colon, after a blank line."
        )
    return dict(texts)


def _plays(text: str) -> Texts:
    """Each role's speeches as one text."""
    speeches: dict[str, list[str]] = defaultdict(list)
    speaker = ""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        first, *rest = paragraph.split("\n")
        if first.rstrip().endswith(":"):
            speaker = first.strip().removesuffix(":").rstrip()
        else:
            rest = [first, *rest]
        if speaker and rest:
            speeches[speaker].append("\n".join(rest))
    return {role: ["\n".join(own)] for role, own in speeches.items()}


def _leaf(table: Any, file: Path, length: int) -> Texts:
    """Each user's windows put together again: a window either continues the one before it or starts a text."""
    try:
        users = {user: (table["user_data"][user]["x"], table["user_data"][user]["y"]) for user in table["users"]}
    except (KeyError, TypeError) as error:
        raise FedshiftError(
            f"'{file}' is not laid out as LEAF's: it needs 'users', and 'x' and 'y' of each in 'user_data' ({error!r})."
        ) from error
    return {
        user: _joined(windows, following, f"user '{user}' in '{file}'", length)
        for user, (windows, following) in users.items()
    }


def _joined(windows: Sequence[str], following: Sequence[str], where: str, length: int) -> list[str]:
    if len(windows) != len(following):
        raise FedshiftError(f"The samples of {where} are {len(windows)} windows, but {len(following)} labels.")
    texts: list[list[str]] = []
    expected = ""
    for number, (window, character) in enumerate(zip(windows, following, strict=True)):
        if len(window) != length or len(character) != 1:
            raise FedshiftError(
                f"Sample {number} of {where} has a window of {len(window)} characters and a label of "
                f"{len(character)}, not of data.length = {length} and 1."
            )
        if window != expected:
            if number and window.strip(" "):
                raise FedshiftError(
                    f"Sample {number} of {where} neither continues the one before it nor starts a line, so what it "
                    "overlaps cannot be told. Give LEAF's all_data, from before its sampling and splitting."
                )
            texts.append([window])
        texts[-1].append(character)
        expected = window[1:] + character
    return ["".join(parts) for parts in texts]
