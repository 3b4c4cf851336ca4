"""A user's own arrays, as NumPy's ``savez`` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from fedshift import memory
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.parts import Array, Names, Part, beside, check_each, domain_names, files_in, joined, names_of
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.federation.domains import DomainData, Unlabelled
from fedshift.federation.preparation import Column
from fedshift.settings.spec import setting
from fedshift.streams import Streams

SUFFIX = ".npz"
NEEDED, OPTIONAL = ("x", "y"), ("domain", "group", "classes", "notes")
KINDS = ("uint8", "int64", "float32", "float64")


@dataclass(frozen=True)
class ArrayFile:
    """One file of arrays.

    Attributes:
        path: the file.
        alone: whether it is the only one; of several, each is a domain.
    """

    path: Path
    alone: bool

    def nbytes(self) -> int:
        """Bytes of its samples, before any is read.

        Raises:
            FedshiftError: it cannot be read, or holds other arrays than it should.
        """
        with self._opened() as file:
            assert file.zip is not None  # while it is open
            return sum(info.file_size for info in file.zip.infolist() if info.filename.startswith("x."))

    def domains(self) -> Names:
        """What its samples' domains are called, without reading the samples.

        Raises:
            FedshiftError: the domains cannot be read.
        """
        with self._opened() as file:
            return self._domains(self._array(file, "domain"), 0)

    def classes(self) -> tuple[str, ...]:
        """The names of class numbers; empty where it holds none.

        Raises:
            FedshiftError: they are no names.
        """
        return self._words("classes")

    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know of how the arrays came about.

        Raises:
            FedshiftError: that is no text.
        """
        return self._words("notes")

    def _words(self, name: str) -> tuple[str, ...]:
        """An array of different words; none where there is no such array."""
        with self._opened() as file:
            array = self._array(file, name)
        if array is None:
            return ()
        if array.ndim != 1 or array.dtype.kind != "U" or len(set(array.tolist())) < array.size:
            raise FedshiftError(f"{self._called(name)} should be text of shape ({name},), each name once.")
        return tuple(array.tolist())

    def part(self) -> Part:
        """Its samples.

        Raises:
            FedshiftError: an array cannot be used; the message names the row and the value.
        """
        with self._opened() as file:
            found = {name: self._array(file, name) for name in (*NEEDED, "domain", "group")}
        x, y = found["x"], found["y"]
        assert x is not None  # since these are needed
        assert y is not None
        problems = Problems(f"arrays of '{self.path}' cannot be used")
        with problems.gathered():
            inputs = inputs_of(x, self._called("x"))
        for name in ("y", "domain", "group"):
            with problems.gathered():
                self._check_length(name, found[name], len(x) if x.ndim else 0)
        problems.check()
        with problems.gathered():
            labels = labels_of(y, self.classes(), self._called("y"))
        with problems.gathered():
            domain = self._domains(found["domain"], len(x))
        with problems.gathered():
            group = None if found["group"] is None else names_of(found["group"], self._called("group"))
        problems.check()
        return Part(str(self.path), inputs, labels, domain, group)

    def unlabelled(self) -> Unlabelled:
        """Its samples alone.

        Raises:
            FedshiftError: they cannot be used; the message names the row and the value.
        """
        with self._opened(("x",)) as file:
            x, others = self._array(file, "x"), [name for name in file.files if name != "x"]
        assert x is not None  # since it is needed
        note = f"Arrays that are not looked at: {', '.join(others)} (of '{self.path}')."
        return Unlabelled(inputs_of(x, self._called("x")), range(len(x)), (note,) if others else ())

    def _called(self, name: str) -> str:
        return f"{name} of '{self.path}'"

    def _domains(self, array: Array | None, count: int) -> Names:
        if array is None:
            return Names.all(self.path.stem, count)
        if not self.alone:
            raise FedshiftError(
                f"'{self.path}' holds an array domain, but in a folder each file is a domain, named like the file; "
                "leave it out, put all domains into one file, or name this file itself as data.path."
            )
        return names_of(array, self._called("domain"))

    def _check_length(self, name: str, array: Array | None, samples: int) -> None:
        if array is not None and array.shape != (samples,):
            raise FedshiftError(
                f"{self._called(name)} has the shape {array.shape}; x holds {samples} samples, so give ({samples},)."
            )

    @contextmanager
    def _opened(self, needed: Sequence[str] = NEEDED) -> Iterator[NpzFile]:
        with ExitStack() as opened:
            with _readable(f"'{self.path}'"):
                file = np.load(opened.enter_context(self.path.open("rb")), allow_pickle=False)
            yield self._checked(file, needed)

    def _checked(self, file: object, needed: Sequence[str]) -> NpzFile:
        """What NumPy has opened, if it has the arrays that there should be, and no other.

        Raises:
            FedshiftError: it has not.
        """
        if not isinstance(file, NpzFile):
            raise FedshiftError(
                f"'{self.path}' is a single array; write a file of several: numpy.savez(file, x=x, y=y)"
            )
        for name in file.files:
            if name not in (*NEEDED, *OPTIONAL):
                raise UnknownNameError(f"array in '{self.path}'", name, (*NEEDED, *OPTIONAL))
        lacking = [name for name in needed if name not in file.files]
        if lacking:
            raise FedshiftError(
                f"'{self.path}' lacks the array {' and '.join(lacking)}; it has {', '.join(file.files) or 'none'}."
            )
        return file

    def _array(self, file: Mapping[str, Any], name: str) -> Array | None:
        if name not in file:
            return None
        with _readable(self._called(name)):
            array = file[name]
        if not isinstance(array, np.ndarray):
            raise FedshiftError(f"{self._called(name)} is no array of NumPy; write it with numpy.savez.")
        return array


def inputs_of(x: Array, called: str) -> Tensor:
    """An array of samples as a network's inputs: uint8 images, int64 tokens, or float32.

    Args:
        x: the samples, (N, ...).
        called: what errors call the array.

    Raises:
        FedshiftError: it has another type or shape, or a number that cannot be; the message names the row.
    """
    kind = x.dtype.newbyteorder("=").name
    if kind not in KINDS:
        raise FedshiftError(f'{called} is {kind}; give uint8 images, float32 (x.astype("float32")) or int64 tokens.')
    if x.ndim < 2 or not x.size:
        raise FedshiftError(f"{called} has the shape {x.shape}, so there is no sample of a number; give (N, ...).")
    if kind == "uint8":
        _check_images(x, called)
    elif kind == "int64":
        if x.ndim != 2:
            raise FedshiftError(f"{called} is int64 of shape {x.shape}; tokens have the shape (N, length).")
        check_each(x, lambda some: some < 0, called, "a token from 0")
    else:
        limit = np.finfo(np.float32).max
        check_each(x, lambda some: ~(np.abs(some) <= limit), called, "a finite number of float32")
        return torch.from_numpy(np.require(x, np.float32, ["C", "W"]))  # as torch asks for
    return torch.from_numpy(np.require(x, x.dtype.newbyteorder("="), ["C", "W"]))


def _check_images(x: Array, called: str) -> None:
    if x.ndim == 4 and (x.shape[1] in (1, 3) or x.shape[-1] not in (1, 3, 4)):
        return
    fix = {3: "x[:, None]", 4: "x.transpose(0, 3, 1, 2)"}.get(x.ndim)
    raise FedshiftError(
        f"{called} is uint8 of shape {x.shape}; images have the shape (N, channels, height, width)"
        f"{f': {fix}' if fix else ''}."
    )


def labels_of(y: Array, classes: Sequence[str], called: str) -> Names:
    """The classes of samples, by name where numbers have names.

    Args:
        y: a number or name for each sample, (N,).
        classes: the names of the numbers 0, 1, ...; none: a class is called what it is called in ``y``.
        called: what errors call the array.

    Raises:
        FedshiftError: a value is no class; the message names the row.
    """
    labels = names_of(y, called, whole=True)
    if not classes:
        return labels
    named = []
    for number, value in enumerate(labels.values):
        if isinstance(value, str) and value not in classes:
            raise UnknownNameError(f"class in {labels.place(number, called)}", value, classes)
        if not isinstance(value, str) and not 0 <= value < len(classes):
            raise FedshiftError(
                f"{called} holds {value} in row {labels.rows[number]}, but classes has {len(classes)} "
                f"names, so it should be from 0 to {len(classes) - 1}."
            )
        named.append(value if isinstance(value, str) else classes[int(value)])
    return labels._replace(values=named)


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Names the file in whatever goes wrong: NumPy and zipfile raise nearly anything on damaged bytes."""
    try:
        yield
    except Exception as error:
        if "allow_pickle" in str(error):
            raise FedshiftError(
                f"{where} is no array of numbers or text but of Python's objects (or no .npz file), which are never "
                "loaded, since they can run code: write astype(str) of text."
            ) from error
        reason = str(error) or type(error).__name__
        raise FedshiftError(f"{where} cannot be read ({reason}). Write it again with numpy.savez.") from error


@dataclass(frozen=True)
class ArraySource:
    """A file of arrays, or every such file in a folder."""

    path: str
    files: Sequence[ArrayFile] = field(init=False)

    def __post_init__(self) -> None:
        paths = files_in(self.path, [SUFFIX])
        alone = Path(self.path).expanduser().is_file()
        object.__setattr__(self, "files", [ArrayFile(path, alone) for path in paths])

    def domains(self) -> tuple[str, ...]:
        """The domains' names, without reading the samples."""
        return domain_names([(str(file.path), file.domains()) for file in self.files])

    def load(self) -> DomainData:
        """Every sample.

        Raises:
            FedshiftError: it does not fit into memory, or arrays cannot be used; the message names them all.
        """
        memory.check(
            sum(file.nbytes() for file in self.files), f"The data set '{self.path}'", "Give fewer or smaller samples."
        )
        classes = self._classes()
        parts: list[Part] = []
        problems = Problems(f"files of '{self.path}' cannot be used")
        for file in self.files:
            with problems.gathered():
                parts.append(file.part())
        problems.check()
        said = dict.fromkeys(note for file in self.files for note in file.notes())
        return joined(parts, classes, (*said, *beside(self.path, [file.path for file in self.files])))

    def _classes(self) -> tuple[str, ...]:
        """The names of class numbers, which all files give alike, or none."""
        first, *others = self.files
        classes = first.classes()
        for other in others:
            if other.classes() != classes:
                raise FedshiftError(
                    f"classes of '{first.path}' is {list(classes) or 'not there'}, of '{other.path}' "
                    f"{list(other.classes()) or 'not there'}; give the same names in the same order in every file."
                )
        return classes


@dataclass(frozen=True, kw_only=True)
class Arrays(Dataset):
    """Arrays in ``.npz`` file: ``x``, ``y`` (``domain``, ``group``, ``classes``, ``notes``), or one file a domain."""

    path: str = setting(help="an .npz file, or a folder that holds one a domain", path=True)

    def domain_names(self) -> tuple[str, ...]:
        """The values of ``domain``, or the files' names."""
        return ArraySource(self.path).domains()

    def load(self, streams: Streams) -> DomainData:
        """Read every array."""
        return ArraySource(self.path).load()

    def suffixes(self) -> tuple[str, ...]:
        """NumPy's."""
        return (SUFFIX,)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The array ``x``."""
        return ArrayFile(file, alone=True).unlabelled()
