"""Shakespeare's roles as domains: which character comes next (LEAF, Caldas et al., 2018).

A sample is a window of 80 characters of one role's text; its label is the character that follows. The classes are the
characters that occur anywhere in the file.

*Choices*: where windows start one character after another, a random split of windows would put nearly the same text on
both sides. So a role's text is cut into blocks, windows that would cross the border of a block are excluded, and a
block is a group, which a split keeps whole. A role of several plays counts once; its speeches are joined by line ends,
and a paragraph without a speaker belongs to the speech before it. LEAF draws roles until it has a share of the samples;
here the share is one of the roles that are long enough, drawn again for each seed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import torch

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.content import digest
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.listing import reading
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Fraction, WholeNumber, Width, setting
from fedshift.streams import Streams


class Shakespeare(Dataset):
    """The next character in a role's text."""

    path: str = setting(
        help="a text of plays, speakers on separate lines such as 'ROMEO:' after a blank line", path=True
    )
    length: Width = setting(80, help="characters of a window", source="LEAF")
    stride: Count = setting(1, help="characters from one window to the next", source="LEAF")
    block: Count = setting(
        400, help="characters of a block, which a split keeps whole; block - length windows of it are used"
    )
    min_blocks: Count = setting(3, help="roles of fewer blocks are excluded; a split has up to three sides")
    min_samples: Count = setting(40, help="roles of fewer samples are excluded", source="LEAF, as in Client2Vec")
    fraction: Fraction = setting(
        0.1, help="part of the remaining roles, drawn by the seed", source="LEAF, as in Client2Vec"
    )
    samples_per_role: WholeNumber = setting(0, help="windows drawn of each role at most; 0: all")

    def domain_names(self) -> tuple[str, ...]:
        """Every role that is long enough; a seed draws ``fraction`` of them."""
        return tuple(sorted(self._pieces()))

    def check_here(self) -> None:
        self._texts()

    def load(self, streams: Streams) -> DomainData:
        """Draw roles and cut their blocks into windows."""
        pieces = self._pieces()
        names = sorted(pieces)
        count = max(1, round(self.fraction * len(names)))
        drawn = sorted(names[i] for i in streams.permutation(len(names), "shakespeare roles")[:count].tolist())
        counts = [self._windows(pieces[name]) for name in drawn]
        total = sum(min(count, self.samples_per_role or count) for count in counts)
        memory.check(
            total * (self.length + 1) * 8 * 2,  # eight bytes a character, in two copies
            f"The data set, {total} windows of {self.length} characters,",
            "Lower data.fraction or data.samples_per_role, or raise data.stride.",
        )
        vocabulary = _vocabulary(self._texts())
        token = {character: i for i, character in enumerate(vocabulary)}
        windows, domain, group, blocks = [], [], [], 0
        for index, name in enumerate(drawn):
            tokens = [torch.tensor([token[character] for character in piece]) for piece in pieces[name]]
            cut = [each.unfold(0, self.length + 1, self.stride) for each in tokens]
            numbers = torch.arange(blocks, blocks + len(cut)).repeat_interleave(torch.tensor([len(w) for w in cut]))
            kept = torch.arange(len(numbers))
            if 0 < self.samples_per_role < len(numbers):
                order = streams.permutation(len(numbers), "shakespeare samples", name)
                kept = order[: self.samples_per_role].sort().values
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

    def _texts(self) -> Mapping[str, str]:
        return _read(self.path, digest(self.path))

    def _windows(self, pieces: Iterable[str]) -> int:
        return sum((len(piece) - self.length - 1) // self.stride + 1 for piece in pieces)

    def _pieces(self) -> dict[str, list[str]]:
        """The blocks of every role that is long enough, each with at least one window."""
        if self.block <= self.length:
            raise FedshiftError(
                f"data.block = {self.block} contains no window of {self.length} characters with the next one: "
                f"--set data.block={5 * self.length}"
            )
        pieces = {}
        for name, text in self._texts().items():
            cut = [text[at : at + self.block] for at in range(0, len(text), self.block)]
            cut = [piece for piece in cut if len(piece) > self.length]
            if len(cut) >= self.min_blocks and self._windows(cut) >= self.min_samples:
                pieces[name] = cut
        if not pieces:
            raise FedshiftError(
                f"No role in '{self.path}' has {self.min_blocks} blocks and {self.min_samples} samples: lower "
                "data.block, data.min_blocks, data.min_samples or data.stride."
            )
        return pieces


def _vocabulary(texts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*texts.values())))


@lru_cache(maxsize=1)
def _read(path: str, content: str) -> Mapping[str, str]:
    """Each role's speeches as one text; read again only if the content has changed."""
    with reading(f"data.path = '{path}'", "Write it again.", " as text in UTF-8"):
        text = Path(path).expanduser().read_text(encoding="utf-8")
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
    if not speeches:
        raise FedshiftError(
            f"'{path}' names no speaker: a speaker is a separate line that ends in a colon, after a blank line."
        )
    return {role: "\n".join(own) for role, own in speeches.items()}
