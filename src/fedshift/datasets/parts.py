"""Samples of one file or several, put together: what each file calls classes, domains and groups becomes numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from fedshift.datasets.images import left_out
from fedshift.errors import FedshiftError
from fedshift.federation.domains import DomainData
from fedshift.federation.names import check_names
from fedshift.federation.preparation import Column

PIECE = 1 << 22  # numbers looked at together

Array = np.ndarray[Any, Any]
Value = str | int | float


class Names(NamedTuple):
    """What the samples of a file are called: by class, domain or group.

    Attributes:
        values: each value once.
        rows: the row in which each value occurs first; empty where it stands in no row.
        which: the place of each sample's value among them, (N,), int64.
        untyped: whether numbers among the values are as good as text, as in CSV, where both look alike.
    """

    values: Sequence[Value]
    rows: Sequence[int]
    which: Tensor
    untyped: bool = False

    @classmethod
    def all(cls, name: str, count: int) -> Names:
        """One name for all samples of a file."""
        return cls([name], [], torch.zeros(count, dtype=torch.int64))

    def place(self, number: int, where: str) -> str:
        """Where a value occurs first, for errors."""
        return f"row {self.rows[number]} of {where}" if self.rows else where


@dataclass(frozen=True)
class Rows(Sequence[str]):
    """Where each sample was read from, made when it is asked for: files in order, each with its samples' names.

    A name that is a number is that of a row.
    """

    files: tuple[tuple[str, Sequence[str | int]], ...]

    def __len__(self) -> int:
        return sum(len(names) for _, names in self.files)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        row = range(len(self))[index]
        for file, names in self.files:
            if row < len(names):
                name = names[row]
                return f"{f'row {name}' if isinstance(name, int) else name} of '{file}'"
            row -= len(names)
        raise IndexError(index)


@dataclass(frozen=True)
class Part:
    """The samples of one file.

    Attributes:
        where: the file, for errors.
        x: inputs (N, ...), as :class:`DomainData` has them.
        y: their classes.
        domain: their domains.
        group: what those made from one original share; None: every sample is an original.
        rows: what each sample is called in the file; none: each is a row.
    """

    where: str
    x: Tensor
    y: Names
    domain: Names
    group: Names | None = None
    rows: Sequence[str] = ()


def files_in(given: str, suffixes: Sequence[str]) -> list[Path]:
    """The file that ``data.path`` names, or the files in the folder that it names, by the files' names.

    Args:
        given: the path.
        suffixes: what those in a folder end in, in small letters; hidden ones and those in folders below are left out.

    Raises:
        FedshiftError: there is none, or two have one name but for the suffix.
    """
    path, kinds = Path(given).expanduser(), " or ".join(suffixes)
    if given and path.is_file():
        return [path]
    if not given or not path.is_dir():
        raise FedshiftError(f"data.path = '{given}' does not exist; give a file that ends in {kinds}, or a folder.")
    try:
        files = [file for file in path.iterdir() if file.suffix.lower() in suffixes and not file.name.startswith(".")]
    except OSError as error:
        raise FedshiftError(f"The folder '{path}' cannot be read ({error.strerror}). Allow reading it.") from error
    if not files:
        raise FedshiftError(f"data.path = '{given}': no file in it ends in {kinds}.")
    files.sort(key=lambda file: (file.stem, file.suffix))
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise FedshiftError(f"'{one}' and '{other}' would be one domain, '{one.stem}'; rename or join them.")
    return files


def beside(given: str, files: Iterable[Path]) -> tuple[str, ...]:
    """A note on what lies in a folder beside the files that are read."""
    path = Path(given).expanduser()
    note = left_out(path, files) if path.is_dir() else ""
    return (note,) if note else ()


def names_of(array: Array, where: str, *, whole: bool = False) -> Names:
    """What an array (N,) of text or numbers calls its samples.

    A whole number that is kept as a float, as pandas does, is that number: 1.0 is called "1".

    Args:
        array: the array.
        where: what errors call it, with its file.
        whole: whether numbers have to be whole, as those of classes do.

    Raises:
        FedshiftError: it is neither, or a number is not finite or not whole; the message names the row.
    """
    if array.dtype.kind not in "iufU":
        raise FedshiftError(f"{where} is of type {array.dtype}; give text or numbers (astype(str), say).")
    if array.dtype.kind == "f":
        check_each(array, lambda some: ~np.isfinite(some), where, "a finite number")
        if whole:
            check_each(array, lambda some: some != np.round(some), where, "a name or a whole number")
    values, rows, which = np.unique(array, return_index=True, return_inverse=True)
    items = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values.tolist()]
    return Names(items, rows.tolist(), torch.from_numpy(which))


def check_each(array: Array, wrong: Callable[[Array], Array], where: str, needed: str) -> None:
    """Refuse an array (N, ...) with a wrong number; the error names the first, and how many rows have one.

    Args:
        array: the numbers.
        wrong: which of some rows' numbers are wrong, of the same shape.
        where: what errors call the array, with its file.
        needed: what each should be.

    Raises:
        FedshiftError: one is wrong.
    """
    step = max(1, PIECE // max(1, array[:1].size))
    bad: list[int] = []
    for start in range(0, len(array), step):
        found = wrong(array[start : start + step])
        bad += (start + np.flatnonzero(found.reshape(len(found), -1).any(axis=1))).tolist()
    if not bad:
        return
    place = np.argwhere(wrong(array[bad[0] : bad[0] + 1])[0])[0].tolist()
    more = f", and {len(bad) - 1} more rows are wrong" if len(bad) > 1 else ""
    raise FedshiftError(
        f"{where} holds {array[(bad[0], *place)]} in row {bad[0]}{f' at {place}' if place else ''}{more}; each should "
        f"be {needed}. Correct such rows or leave them out."
    )


def joined(
    parts: list[Part], classes: Sequence[str] = (), notes: tuple[str, ...] = (), columns: tuple[Column, ...] = ()
) -> DomainData:
    """All parts as one data set.

    Args:
        parts: the files' samples; the list is emptied, since each is given up once it is copied.
        classes: the classes' names in the order of their labels; by default those that occur, sorted.
        notes: what a reader of the results must know.
        columns: of a table, what its columns are.

    Raises:
        FedshiftError: names cannot be used, or the samples of two files differ in shape or type.
    """
    _check_alike(parts)
    domains, domain = _numbered("domain", parts, lambda part: part.domain)
    named, y = _numbered("class", parts, lambda part: part.y, classes)
    group, where = _groups(parts), Rows(tuple((part.where, part.rows or range(len(part.x))) for part in parts))
    x = _together(parts)
    return DomainData(x, y, domain, domains, named, group, notes=notes, where=where, columns=columns)


def domain_names(places: Sequence[tuple[str, Names]]) -> tuple[str, ...]:
    """The names of all domains, by the files that name them.

    Raises:
        FedshiftError: names cannot be used.
    """
    return sorted_names("domain", places)


def _check_alike(parts: Sequence[Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        for what, (one, other) in {
            "type": (first.x.dtype, part.x.dtype),
            "shape": (list(first.x.shape[1:]), list(part.x.shape[1:])),
        }.items():
            if one != other:
                raise FedshiftError(
                    f"A sample of '{first.where}' has the {what} {one}, one of '{part.where}' {other}; make them alike."
                )


def sorted_names(kind: str, places: Sequence[tuple[str, Names]]) -> tuple[str, ...]:
    """All values, by size if they are numbers, else by the alphabet, as names.

    A file of CSV in which all happen to be numbers cannot say that they are text, so numbers are taken as text where
    another file has text, and has each of them as text or they are untyped.

    Args:
        kind: what they are names of.
        places: files, for errors, and what each calls its samples.

    Raises:
        FedshiftError: some are numbers and some text, or names cannot be used.
    """
    found: dict[Value, str] = {}
    typed: set[Value] = set()
    for where, names in places:
        for number, value in enumerate(names.values):
            found.setdefault(value, names.place(number, where))
        if not names.untyped:
            typed |= {*names.values}
    text = {value: place for value, place in found.items() if isinstance(value, str)}
    numbers = [value for value in found if value not in text]
    apart = [value for value in numbers if value in typed and str(value) not in text]
    if text and apart:
        digits, word = apart[0], next(iter(text))
        raise FedshiftError(
            f"The {kind} is the number {digits} in {found[digits]}, and the text '{word}' in {text[word]}; write all "
            "of them as numbers or all as text."
        )
    check_names(kind, {str(value): place for value, place in found.items()})
    return tuple(sorted({*text, *map(str, numbers)}) if text else map(str, sorted(numbers)))


def _numbered(
    kind: str, parts: Sequence[Part], of: Callable[[Part], Names], known: Sequence[str] = ()
) -> tuple[tuple[str, ...], Tensor]:
    """The names that samples of all parts have, and the number of each sample's, (N,), int64."""
    names = tuple(known) or sorted_names(kind, [(part.where, of(part)) for part in parts])
    place = {name: number for number, name in enumerate(names)}
    own = [torch.tensor([place[str(value)] for value in of(part).values])[of(part).which] for part in parts]
    return names, torch.cat(own)


def _groups(parts: Sequence[Part]) -> Tensor:
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


def _together(parts: list[Part]) -> Tensor:
    """The inputs of all parts, which are not all held twice."""
    if len(parts) == 1:
        return parts.pop().x
    stop = sum(len(part.x) for part in parts)
    x = torch.empty(stop, *parts[0].x.shape[1:], dtype=parts[0].x.dtype)
    while parts:
        own = parts.pop().x
        x[stop - len(own) : stop] = own
        stop -= len(own)
    return x
