"""A user's own arrays, as NumPy's ``savez`` writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from zipfile import ZIP_STORED

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from fedshift.clients.domains import DomainData, Unlabelled
from fedshift.clients.preparation import Column
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.labelled import (
    Array,
    Labelled,
    Names,
    beside,
    each_read,
    files_in,
    joined,
    names_of,
    sorted_names,
)
from fedshift.datasets.listing import reading
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.spec import setting
from fedshift.streams import Streams

SUFFIX = ".npz"
NEEDED, OPTIONAL = ("x", "y"), ("domain", "group", "classes", "columns", "notes")
MAPPED = 2**27  # bytes from which an array is mapped; a file that is rewritten meanwhile would end the process
KINDS = ("uint8", "int64", "float32", "float64")


class Arrays(Dataset):
    """Arrays in ``.npz`` file: ``x``, ``y`` (``domain``, ``group``, ``classes``, ``columns``), or one file a domain."""

    seeded: ClassVar[bool] = False

    path: str = setting(help="an .npz file, or a folder with one file per domain", path=True)
    exclude: tuple[str, ...] = setting(
        (), help="columns of x (N, columns) to exclude, by name, or by number from 0 if they have no names"
    )

    def domain_names(self) -> tuple[str, ...]:
        """The values of ``domain``, or the files' names."""
        return sorted_names("domain", map(self._domains, files_in(self.path, [SUFFIX])))

    def load(self, streams: Streams) -> DomainData:
        """Read every array."""
        files = files_in(self.path, [SUFFIX])
        classes, named = (_same_words(files, name) for name in ("classes", "columns"))
        notes = dict.fromkeys(note for file in files for note in _words(file, "notes"))
        parts = each_read(lambda file: self._part(file, classes), files, f"files of '{self.path}' cannot be used")
        columns = list[str]()
        if named or self.exclude:
            columns = self._kept(files[0], named or range(parts[0].x.shape[1] + len({*self.exclude})))
        return joined(parts, classes, (*notes, *beside(self.path, files)), tuple(map(Column, columns)))

    def suffixes(self) -> tuple[str, ...]:
        return (SUFFIX,)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The array ``x``."""
        with _opened(file, ("x",)) as arrays:
            others = [name for name in arrays.files if name != "x"]
            x = inputs_of(self._included(file, _mapped(file, "x", arrays)), f"x of '{file}'")
        note = f"Arrays that are ignored: {', '.join(others)} (of '{file}')."
        return Unlabelled(x, range(len(x)), (note,) if others else ())

    def _part(self, file: Path, classes: Sequence[str]) -> Labelled:
        arrays = self._arrays(file, "x", "y", "domain", "group")
        arrays["x"] = self._included(file, arrays["x"])
        return labelled(arrays, classes, str(file), f"'{file}'", file.stem)

    def _included(self, file: Path, x: Array) -> Array:
        """The columns of x that are not excluded."""
        named = _words(file, "columns", needed=("x",))
        if not self.exclude and not named:
            return x
        if x.ndim != 2 or len(named) not in (0, x.shape[1]):
            raise FedshiftError(
                f"x of '{file}' has the shape {x.shape}, but data.exclude and columns ({len(named)}) are of the "
                "columns of vectors (N, columns): leave them out, or name every column once."
            )
        names = named or tuple(map(str, range(x.shape[1])))
        return x[:, [names.index(name) for name in self._kept(file, names)]] if self.exclude else x

    def _kept(self, file: Path, names: Iterable[object]) -> list[str]:
        present = [*map(str, names)]
        for name in self.exclude:
            if name not in present:
                raise UnknownNameError(f"column (data.exclude) in '{file}'", name, present)
        kept = [name for name in present if name not in self.exclude]
        if not kept:
            raise FedshiftError(f"data.exclude leaves no column of '{file}' ({', '.join(present)}): leave one.")
        return kept

    def _domains(self, file: Path) -> Names:
        arrays = self._arrays(file, "domain")
        return names_of(arrays["domain"], f"domain of '{file}'") if arrays else Names.all(file.stem, 0)

    def _arrays(self, file: Path, *names: str) -> dict[str, Array]:
        with _opened(file) as found:
            arrays = {name: _mapped(file, name, found) for name in names if name in found}
        if "domain" in arrays and not Path(self.path).expanduser().is_file():
            raise FedshiftError(
                f"'{file}' contains an array domain, but in a folder each file is a domain, named like the file; "
                "leave it out, put all domains into one file, or name this file itself as data.path."
            )
        return arrays


@contextmanager
def _opened(file: Path, needed: Sequence[str] = NEEDED) -> Iterator[NpzFile]:
    """A file's arrays, each read when it is requested."""
    fix = (
        "Write it again with numpy.savez, and astype(str) of text: Python's objects are never loaded, since they can "
        "run code."
    )
    with reading(f"'{file}'", fix), file.open("rb") as opened:
        arrays = np.load(opened, allow_pickle=False)
        _check_file(file, arrays, needed)
        yield arrays


def _mapped(file: Path, name: str, arrays: NpzFile) -> Array:
    """An array of a file: mapped into memory, or read if it is compressed or small.

    What is mapped is a private copy where it is written to, and costs memory only where it is.
    """
    assert arrays.zip is not None
    about = next((each for each in arrays.zip.infolist() if each.filename == f"{name}.npy"), None)
    if about is None or about.compress_type != ZIP_STORED or about.file_size < MAPPED:
        found: Array = arrays[name]
        return found
    with file.open("rb") as opened:
        opened.seek(about.header_offset + 26)  # of the local header, where the lengths of its last two fields stand
        lengths = struct.unpack("<HH", opened.read(4))
        opened.seek(about.header_offset + 30 + sum(lengths))
        version = np.lib.format.read_magic(opened)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(opened)
        if dtype.hasobject or fortran:
            return arrays[name]
        return np.memmap(file, dtype, "c", opened.tell(), shape)


def _check_file(file: Path, arrays: object, needed: Sequence[str]) -> None:
    if not isinstance(arrays, NpzFile):
        raise FedshiftError(f"'{file}' is a single array; write a file of several: numpy.savez(file, x=x, y=y)")
    for name in arrays.files:
        if name not in (*NEEDED, *OPTIONAL):
            raise UnknownNameError(f"array in '{file}'", name, (*NEEDED, *OPTIONAL))
    lacking = ", ".join(name for name in needed if name not in arrays.files)
    if lacking:
        raise FedshiftError(f"'{file}' lacks the array {lacking}; it has {', '.join(arrays.files) or 'none'}.")


def _words(file: Path, name: str, needed: Sequence[str] = NEEDED) -> tuple[str, ...]:
    with _opened(file, needed) as arrays:
        array = arrays[name] if name in arrays else np.empty(0, str)
    if array.ndim != 1 or array.dtype.kind != "U" or len(set(array.tolist())) < array.size:
        raise FedshiftError(f"{name} of '{file}' should be text of shape ({name},), each name once.")
    return tuple(array.tolist())


def _same_words(files: Sequence[Path], name: str) -> tuple[str, ...]:
    """An array of different words, equal in every file, or in no file."""
    words, *others = (_words(file, name) for file in files)
    for file, other in zip(files[1:], others, strict=True):
        if other != words:
            raise FedshiftError(
                f"{name} of '{files[0]}' is {list(words) or 'not there'}, of '{file}' "
                f"{list(other) or 'not there'}; give the same names in the same order in every file."
            )
    return words


def labelled(arrays: Mapping[str, Array], classes: Sequence[str], where: str, called: str, domain: str) -> Labelled:
    """Arrays as a table.

    Args:
        arrays: ``x``, ``y``, and perhaps ``domain`` and ``group``.
        classes: the names of the numbers 0, 1, ... in ``y``, of which False is 0 and True is 1; none: a class is called
            what it is called there.
        where: the table's name.
        called: what errors call whose arrays these are.
        domain: the domain of all samples, where there is no array of domains.
    """
    x = inputs_of(arrays["x"], f"x of {called}")
    names: dict[str, Names] = {}
    for key in ("y", "domain", "group"):
        if key in arrays:
            array = arrays[key]
            if array.shape not in ((len(x),), (len(x), 1)):  # the latter is a table of one column
                raise FedshiftError(
                    f"{key} of {called} has the shape {array.shape}; x has {len(x)} rows: give ({len(x)},)."
                )
            numbered = key == "y" and classes and array.dtype.kind == "b"
            array = array.reshape(-1).astype(np.int64) if numbered else array.reshape(-1)
            names[key] = names_of(array, f"{key} of {called}", whole=key == "y")
    y = _of_classes(names["y"], classes, f"y of {called}") if classes else names["y"]
    return Labelled(where, x, y, names.get("domain", Names.all(domain, len(x))), names.get("group"))


def inputs_of(x: Array, called: str) -> Tensor:
    """An array of samples as a network's inputs: uint8 images, int64 tokens, or float32.

    Args:
        x: the samples, (N, ...).
        called: what errors call the array.
    """
    kind = x.dtype.newbyteorder("=").name
    if kind not in KINDS:
        raise FedshiftError(f'{called} is {kind}; give uint8 images, float32 (x.astype("float32")) or int64 tokens.')
    if x.ndim < 2 or not x.size:
        raise FedshiftError(f"{called} has the shape {x.shape}, so there is no sample of a number; give (N, ...).")
    if kind == "uint8" and (x.ndim != 4 or (x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3, 4))):
        raise FedshiftError(
            f"{called} is uint8 of shape {x.shape}; images have the shape (N, channels, height, width): "
            "x[:, None] of gray ones, x.transpose(0, 3, 1, 2) where channels are last."
        )
    if kind == "int64" and x.ndim != 2:
        raise FedshiftError(f"{called} is int64 of shape {x.shape}; tokens have the shape (N, length).")
    as_kept = np.float32 if x.dtype.kind == "f" else x.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is refused
        return torch.from_numpy(np.require(x, as_kept, ["C", "W"]))  # as torch requires


def _of_classes(labels: Names, classes: Sequence[str], called: str) -> Names:
    """Labels by the names of their numbers."""
    numbered = dict(enumerate(classes))
    named = [str(numbered.get(value, value) if isinstance(value, int) else value) for value in labels.values]
    for number, name in enumerate(named):
        if name not in classes:
            raise UnknownNameError(f"class in {labels.place(number, called)}", name, classes)
    return labels._replace(values=named)
