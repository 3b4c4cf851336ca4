"""The table that all data of a user become: a row for each sample, with its input, label, domain and group.

A reader of some kind of file makes one :class:`Labelled` of each file; :func:`joined` checks them and turns them into
a :class:`DomainData`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.clients.preparation import Column
from fedshift.datasets.listing import left_out, reading
from fedshift.errors import FedshiftError, Problems

Array = np.ndarray[Any, Any]
Value = str | int | float
T = TypeVar("T")
Item = TypeVar("Item")


class Names(NamedTuple):
    """The labels, domains or groups of a file's samples."""

    values: Sequence[Value]  # each value once, sorted
    rows: Sequence[int]  # the row in which each value occurs first; empty where it stands in no row
    which: Tensor  # the place of each sample's value among them, (N,), int64

    @classmethod
    def all(cls, name: str, count: int) -> Names:
        return cls([name], [], torch.zeros(count, dtype=torch.int64))

    def place(self, number: int, where: str) -> str:
        """Where a value occurs first, for errors."""
        return f"row {self.rows[number]} of {where}" if self.rows else where


@dataclass(frozen=True)
class Labelled:
    """The samples of one file."""

    where: str  # the file, for errors; empty if the samples' names identify it
    x: Tensor  # inputs (N, ...), as :class:`DomainData` has them
    y: Names  # their classes
    domain: Names  # their domains
    group: Names | None = None  # what those made from one original share; None: every sample is an original
    rows: Sequence[str] = ()  # what each sample is called in the file; none: each is a row


# Files ------------------------------------------------------------------------------------------------


def files_in(given: str, suffixes: Sequence[str]) -> list[Path]:
    """The file that ``data.path`` names, or the files in the folder that it names, by the files' names.

    Args:
        given: the path.
        suffixes: what those in a folder end in, in small letters; hidden ones and those in folders below are excluded.
    """
    path, kinds = Path(given).expanduser(), " or ".join(suffixes)
    if not given or not path.exists():
        raise FedshiftError(f"data.path = '{given}' does not exist; give a file that ends in {kinds}, or a folder.")
    with reading(f"The folder '{path}'", "Allow reading it."):
        below = [path] if path.is_file() else [*path.iterdir()]
    files = [file for file in below if file == path or (file.suffix.lower() in suffixes and file.name[0] != ".")]
    if not files:
        raise FedshiftError(f"data.path = '{given}': no file in it ends in {kinds}.")
    files.sort(key=lambda file: (file.stem, file.suffix))
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise FedshiftError(f"'{one}' and '{other}' would be one domain, '{one.stem}'; rename or join them.")
    memory.check(sum(file.stat().st_size for file in files), f"The data set '{given}'", "Give fewer rows.")
    return files


def beside(given: str, files: Iterable[Path]) -> tuple[str, ...]:
    """A note on what lies in a folder beside the files that are read."""
    path = Path(given).expanduser()
    return left_out(path, files) if given and path.is_dir() else ()


def each_read(read: Callable[[Item], T], items: Iterable[Item], what: str) -> list[T]:
    """What is read of each item.

    Args:
        read: reads one.
        items: files, for example.
        what: what several errors are, after their number, such as "images cannot be read".
    """
    found, problems = list[T](), Problems(what)
    for item in items:
        with problems.gathered():
            found.append(read(item))
    problems.check()
    return found


# Checks -----------------------------------------------------------------------------------------------


def names_of(array: Array, where: str, *, whole: bool = False) -> Names:
    """What an array (N,) of text or numbers calls its samples.

    A whole number that is kept as a float, as pandas does, is that number: 1.0 is called "1".

    Args:
        array: the array.
        where: what errors call it, with its file.
        whole: whether numbers have to be whole, as those of classes do.
    """
    if array.dtype.kind == "O":
        for row, value in enumerate(array):
            if not isinstance(value, str | bool | np.bool_):
                raise FedshiftError(f"{where} contains {shown(value)} in row {row}; give text or numbers in every row.")
        array = np.array([str(value) for value in array], object)
    if array.dtype.kind not in "biufUO":
        raise FedshiftError(f"{where} is of type {array.dtype}; give text or numbers (astype(str), for example).")
    if array.dtype.kind == "f":
        wrong = ~np.isfinite(array) | (whole & (array != np.round(array)))
        if wrong.any():
            row = int(wrong.argmax())
            needed = "a name or a whole number" if whole else "a finite number"
            raise FedshiftError(f"{where} contains {array[row]} in row {row}; give {needed}.")
    values, rows, which = np.unique(array, return_index=True, return_inverse=True)
    items = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values.tolist()]
    items = [str(value) if isinstance(value, bool) else value for value in items]
    empty = next((place for place, value in enumerate(items) if isinstance(value, str) and not value.strip()), None)
    if empty is not None:
        raise FedshiftError(f"{where} is empty in row {rows[empty]}; fill it in or remove the row.")
    return Names(items, rows.tolist(), torch.from_numpy(which.reshape(-1)))


def shown(cell: object) -> str:
    return f"{str(cell)!r:.100} ({type(cell).__name__})"


def sorted_names(kind: str, found: Iterable[Names]) -> tuple[str, ...]:
    """All values as names, by size if they are numbers, else by the alphabet."""
    values = {value for names in found for value in names.values}
    text = sorted(value for value in values if isinstance(value, str))
    numbers = sorted(value for value in values if not isinstance(value, str))
    alone = [value for value in numbers if str(value) not in text]
    if text and alone and kind == "class":  # a CSV file of the classes 1 and 2 may go with one of 1, 2 and 2b
        raise FedshiftError(
            f"The class is the number {alone[0]} in one file, and the text '{text[0]}' in another; write all of them "
            "as numbers or all as text."
        )
    return tuple(sorted({*text, *map(str, numbers)}) if text else map(str, numbers))


# All files together -----------------------------------------------------------------------------------


def joined(
    parts: list[Labelled], classes: Sequence[str] = (), notes: tuple[str, ...] = (), columns: tuple[Column, ...] = ()
) -> DomainData:
    """All files as one data set.

    Args:
        parts: the files' samples; the list is emptied, since each is given up once it is copied.
        classes: the classes' names in the order of their labels; by default those that occur, sorted.
        notes: what a reader of the results must know.
        columns: of a table, what its columns are.
    """
    first = parts[0]
    for part in parts[1:]:
        if (part.x.dtype, part.x.shape[1:]) != (first.x.dtype, first.x.shape[1:]):
            raise FedshiftError(
                f"A sample of '{first.where}' is {first.x.dtype} of shape {list(first.x.shape[1:])}, one of "
                f"'{part.where}' {part.x.dtype} of shape {list(part.x.shape[1:])}; make them equal."
            )
    domains, domain = _numbered("domain", [part.domain for part in parts])
    named, y = _numbered("class", [part.y for part in parts], classes)
    group, rows = _groups(parts), [(part.where, part.rows or range(len(part.x))) for part in parts]
    where = partial(_place, rows)
    return DomainData(_together(parts), y, domain, domains, named, group, notes=notes, where=where, columns=columns)


def _place(files: Sequence[tuple[str, Sequence[str | int]]], row: int) -> str:
    """Where a sample was read from, of files in order, each with its samples' names or numbers of rows."""
    for file, names in files:
        if row < len(names):
            name = names[row] if isinstance(names[row], str) else f"row {names[row]}"
            return f"{name} of '{file}'" if file else str(name)
        row -= len(names)
    raise IndexError(row)


def _numbered(kind: str, found: Sequence[Names], known: Sequence[str] = ()) -> tuple[tuple[str, ...], Tensor]:
    names = tuple(known) or sorted_names(kind, found)
    number = {name: place for place, name in enumerate(names)}
    return names, torch.cat([torch.tensor([number[str(value)] for value in own.values])[own.which] for own in found])


def _groups(parts: Sequence[Labelled]) -> Tensor:
    """The number of each sample's group, (N,), int64; one of the same name in two files is the same group."""
    number: dict[str, int] = {}
    count = 0
    groups: list[Tensor] = []
    for part in parts:
        if part.group is None:
            groups.append(torch.arange(count, count + len(part.x)))
            count += len(part.x)
            continue
        names = [str(value) for value in part.group.values]
        for name in names:
            if name not in number:
                number[name] = count
                count += 1
        groups.append(torch.tensor([number[name] for name in names])[part.group.which])
    return torch.cat(groups)


def _together(parts: list[Labelled]) -> Tensor:
    """The inputs of all files, each of which is given up once it is copied."""
    if len(parts) == 1:
        return parts.pop().x
    stop = sum(len(part.x) for part in parts)
    x = torch.empty(stop, *parts[0].x.shape[1:], dtype=parts[0].x.dtype)
    while parts:
        own = parts.pop().x
        x[stop - len(own) : stop] = own
        stop -= len(own)
    return x
