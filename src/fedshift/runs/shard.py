"""Several processes that share the runs of one folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedshift.errors import FedshiftError

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of several processes, on any number of machines, that share the runs in one folder.

    Each starts with a separate part and then continues with runs that no other process is running, until all are done.
    A process that dies loses its work since the last checkpoint, and the results do not depend on how many there are.
    Runs are run one by one. ``number`` is 1 to ``count``.
    """

    number: int
    count: int

    @classmethod
    def of(cls, text: str | None) -> Shard | None:
        """The shard of a text such as "3/16"; None of None, a single process."""
        if text is None:
            return None
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count:
            raise FedshiftError(
                f"shard = {text!r}: give its number and how many there are, from 1/16 to 16/16, for example."
            )
        return cls(number, count)

    def order(self, items: Sequence[T]) -> list[T]:
        """All items: first this shard's, with which no other shard begins, then the next shard's, etc."""
        firsts = [(self.number - 1 + step) % self.count for step in range(self.count)]
        return [each for first in firsts for each in items[first :: self.count]]
