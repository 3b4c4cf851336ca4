"""A user's own arrays, tensors and torch data sets, by site, as a data set of the catalogue.

What is given is checked, and written into one ``.npz`` file that is named by what it holds, so that a run on it goes
on, is compared and predicts as one on any file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import files
from fedshift.datasets.arrays import Arrays, inputs_of, labels_of
from fedshift.datasets.parts import Array, Names, Part, joined, names_of
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.federation.domains import DomainData

FOLDER = "runs/data"
KEYS = ("x", "y", "group")
PAIR = "(x, y), (x, y, group), or a mapping with the keys x, y and perhaps group"
PIECE = 1 << 24  # bytes written together


def in_memory(sites: Mapping[Any, Any], classes: Sequence[str] | None = None, folder: str | Path = FOLDER) -> Arrays:
    """The data of several sites, as ``data=`` of :func:`fedshift.compare`, :func:`fedshift.run` and the others.

    Each site gives ``(x, y)``, ``(x, y, group)``, a mapping with these keys, or a torch ``Dataset`` with a length,
    whose items are such. ``x`` holds a sample a row, in one type and shape at all sites:

    * images: uint8, (N, channels, height, width), (N, height, width) or (N, height, width, channels);
    * vectors, signals (N, channels, time) and whatever else: float32, (N, ...); float64 and float16 become float32;
    * sequences of tokens: int64, (N, length).

    ``y`` holds a class a row, as a whole number or text. Samples of one ``group`` (one patient, say), at several sites
    too, stay on one side of every split. What is converted is said in the notes of a run.

    Args:
        sites: the sites by name; they are numbered in the order of their names.
        classes: the names of the classes 0, 1, ...; by default these are called as in ``y``, and sorted.
        folder: where the file is written, unless it is there: equal data are in one file. A run reads it, so it should
            stay until nobody resumes the run.

    Returns:
        The data set that reads the file.

    Raises:
        FedshiftError: something cannot be used; the message names the site, the row and the value.
        DiskError: the file cannot be written.
    """
    if isinstance(classes, str):
        raise FedshiftError(f"classes = {classes!r:.200}: give a list of the names of the classes 0, 1, ...")
    data, names = _gathered(sites, () if classes is None else tuple(classes))
    arrays = _arrays(data, names)
    total = blake2b(digest_size=16)
    for piece in _npz(arrays):
        total.update(piece)
    path = Path(folder).expanduser().resolve() / f"{total.hexdigest()[:16]}.npz"
    if files.digest(path) != total.hexdigest():
        files.make_folder(path.parent)
        files.write(path, _npz(arrays))
    return Arrays(path=str(path))


def _gathered(sites: Any, classes: tuple[str, ...]) -> tuple[DomainData, Array]:
    """All sites' samples, and the name of each one's site as it was given."""
    if not isinstance(sites, Mapping):
        raise FedshiftError(f'{_kind(sites)} is no mapping of sites; give {{"north": (x, y), "south": (x, y)}}.')
    if not sites:
        raise FedshiftError('The mapping holds no site; give {"north": (x, y), "south": (x, y)}.')
    sites = {int(name) if isinstance(name, np.integer) else name: given for name, given in sites.items()}
    if not all(isinstance(word, str) for word in classes):
        raise FedshiftError(f"classes = {classes!r:.200}: give the names of the classes 0, 1, ... as text.")
    if len(set(classes)) < len(classes):
        raise FedshiftError(f"classes = {list(classes)!r:.200}: give each name once.")
    alike = all(isinstance(name, str) for name in sites) or all(type(name) is int for name in sites)
    if not alike:
        raise FedshiftError(f"Sites are called {list(sites)!r:.200}; give names as text, or whole numbers.")
    parts, notes, names = list[Part](), dict[str, None](), list[Array]()
    problems = Problems("sites cannot be used")
    first: _Site | None = None
    for name in sorted(sites):
        with problems.gathered():
            site = _Site(name, sites[name])
            parts.append(site.part(classes))
            notes |= dict.fromkeys(site.notes)
            names.append(np.repeat(np.array([name]), len(parts[-1].x)))
            if site.named:
                first = first or site
                site.check_named_as(first)
    problems.check()
    return joined(parts, classes, tuple(notes)), np.concatenate(names)


class _Site:
    """What one site gives.

    Attributes:
        notes: what was converted, whichever site's it was.
        named: the names of the columns of x, where it is a table of pandas.
    """

    def __init__(self, name: str | int, given: Any) -> None:
        self.name = name
        self.notes: list[str] = []
        self._given = self._columns(given)
        self.named = tuple(map(str, getattr(self._given["x"], "columns", ())))

    def check_named_as(self, first: _Site) -> None:
        """Raise an error unless columns are named as those of another site."""
        if self.named != first.named:
            raise FedshiftError(
                f"{self._called('x')} has the columns {', '.join(self.named)[:200]}, but of the site '{first.name}' "
                f"{', '.join(first.named)[:200]}; give the same at every site, in the same order."
            )

    def part(self, classes: Sequence[str]) -> Part:
        """Its samples, checked.

        Raises:
            FedshiftError: they cannot be used.
        """
        x, y = self._array("x"), self._words("y")
        self._check_rows()
        if not x.ndim:
            raise FedshiftError(f"{self._called('x')} is {_kind(self._given['x'])}; give an array with a sample a row.")
        if not len(x):
            raise FedshiftError(f"The site '{self.name}' holds no sample: leave it out.")
        group = self._words("group") if "group" in self._given else None
        for key, array in {"y": y, "group": group}.items():
            if array is not None and array.shape != (len(x),):
                raise FedshiftError(
                    f"{self._called(key)} has the shape {array.shape}, but x has {len(x)} rows: give ({len(x)},)."
                )
        inputs = inputs_of(self._converted(x), self._called("x"))
        labels = labels_of(y, classes, self._called("y"))
        groups = None if group is None else names_of(group, self._called("group"))
        return Part(f"site {self.name}", inputs, labels, Names.all(str(self.name), len(x)), groups)

    def _check_rows(self) -> None:
        """Raise an error if tables of pandas have the same rows in another order."""
        indices: list[Any] = [getattr(self._given[key], "index", None) for key in ("x", "y")]
        x, y = indices
        if not (hasattr(x, "sort_values") and hasattr(y, "sort_values")) or x.equals(y):
            return
        if x.sort_values().equals(y.sort_values()):
            raise FedshiftError(
                f"x and y of the site '{self.name}' have the same index in another order, and rows count here, not the "
                "index: give y.loc[x.index], or reset_index(drop=True) of both."
            )

    def _called(self, key: str) -> str:
        return f"{key} of the site '{self.name}'"

    # What is given ----------------------------------------------------------------------------------

    def _columns(self, given: Any) -> dict[str, Any]:
        """``x``, ``y`` and perhaps ``group``."""
        if isinstance(given, Mapping) or (isinstance(given, tuple) and len(given) in (2, 3)):
            return self._named(given, f"The site '{self.name}'")
        if isinstance(given, str | list | tuple | np.ndarray | Tensor) or not hasattr(given, "__getitem__"):
            raise FedshiftError(
                f"The site '{self.name}' is {_kind(given)}; give {PAIR}, or a torch Dataset with a length (of a "
                "DataLoader its dataset)."
            )
        return self._read(given)

    def _named(self, given: Any, called: str) -> dict[str, Any]:
        """A pair, a triple or a mapping, by its keys."""
        if isinstance(given, Mapping):
            for key in given:
                if key not in KEYS:
                    raise UnknownNameError(f"key of {called[0].lower()}{called[1:]}", str(key), KEYS)
            if not {"x", "y"} <= given.keys():
                raise FedshiftError(f"{called} lacks {' and '.join(sorted({'x', 'y'} - given.keys()))}; give {PAIR}.")
            return dict(given)
        if isinstance(given, tuple | list) and len(given) in (2, 3):
            return dict(zip(KEYS, given, strict=False))
        raise FedshiftError(f"{called} is {_kind(given)}; give {PAIR}.")

    def _read(self, dataset: Any) -> dict[str, Any]:
        """All items of a torch Dataset, each read once, in order."""
        try:
            count = len(dataset)
        except TypeError as error:
            raise FedshiftError(
                f"The site '{self.name}' is {_kind(dataset)} without a length; give a map-style Dataset, with "
                "__getitem__ and __len__."
            ) from error
        columns: dict[str, Any] = {}
        for row in range(count):
            called = f"Item {row} of the site '{self.name}'"
            try:
                item = dataset[row]
            except Exception as error:  # whatever the user's code raises
                raise FedshiftError(f"{called} cannot be read: {type(error).__name__}: {error}") from error
            for key, value in self._named(item, called).items():
                columns.setdefault(key, []).append(value)
        if wrong := [key for key, values in columns.items() if len(values) < count]:
            raise FedshiftError(f"Items of the site '{self.name}' differ in whether they have a {wrong[0]}.")
        if columns:
            columns["x"] = self._stacked(columns["x"])
        return columns or {"x": np.zeros((0, 1), np.float32), "y": np.zeros(0, np.int64)}

    def _stacked(self, items: list[Any]) -> Any:
        """The inputs of all items as one array; numbers in lists stay lists."""
        if isinstance(items[0], list | tuple):
            return items
        arrays = [_numpy(item, self._called("x")) for item in items]
        for row, array in enumerate(arrays):
            if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
                raise FedshiftError(
                    f"{self._called('x')} is {array.dtype} {array.shape} in row {row}, but {arrays[0].dtype} "
                    f"{arrays[0].shape} in row 0; make them alike."
                )
        return np.stack(arrays)

    # As arrays --------------------------------------------------------------------------------------

    def _array(self, key: str) -> Array:
        """What was given as an array.

        Raises:
            FedshiftError: it is none, or a list that may be two things.
        """
        given = self._given[key]
        try:
            array = _numpy(given, self._called(key))
        except (TypeError, ValueError, RuntimeError) as error:  # the last by tensors that hold nothing, say
            ragged = self._ragged(given)
            raise FedshiftError(
                f"{self._called(key)} is no array: {ragged or str(error).splitlines()[0]}. Give one row a sample, all "
                "of one shape."
            ) from error
        if array.dtype.kind == "O":
            kinds = sorted({type(value).__name__ for value in array.ravel()[:1000]})
            raise FedshiftError(
                f"{self._called(key)} holds {', '.join(kinds)}, as Python's objects; give numbers of one type "
                '(astype("float32"), or toarray() of a sparse matrix).'
            )
        if key == "x" and isinstance(given, list | tuple) and array.dtype.kind in "iu" and array.size:
            raise FedshiftError(
                f"{self._called(key)} is a list of whole numbers, which may be features, tokens or pixels: give "
                'np.array(x, "float32"), "int64" or "uint8".'
            )
        return array

    def _ragged(self, given: Any) -> str:
        """Which of a list's rows has another length than the first."""
        if not isinstance(given, list | tuple) or not all(hasattr(row, "__len__") for row in given):
            return ""
        lengths = [len(row) for row in given]
        row = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
        return "" if row is None else f"row {row} has {lengths[row]} values and row 0 has {lengths[0]}"

    def _words(self, key: str) -> Array:
        """Classes or groups; text may be in an array of Python's objects, as pandas has it."""
        given = self._given[key]
        if isinstance(given, list) and given and isinstance(given[0], Tensor | np.ndarray | np.generic):
            given = [value.item() if getattr(value, "ndim", None) == 0 else value for value in given]
        if isinstance(given, list | tuple) and any(isinstance(value, str) for value in given):
            row = next((row for row, value in enumerate(given) if not isinstance(value, str)), None)
            if row is not None:
                raise FedshiftError(
                    f"{self._called(key)} is {given[row]!r:.80} in row {row}, and text elsewhere; give text or numbers."
                )
            return np.array(given)
        if getattr(getattr(given, "dtype", None), "kind", "") == "O":  # of pandas also text and categories
            self._given[key] = list(given)
            return self._words(key)
        return self._array(key)

    def _converted(self, x: Array) -> Array:
        """The samples as data sets store them; each conversion is noted."""
        shape = ", ".join(map(str, x.shape[1:]))
        if x.dtype == np.uint8 and x.ndim == 3:
            self.notes.append(f"in_memory: images (N, {shape}) are taken as gray, with one channel.")
            return x[:, None]
        if x.dtype == np.uint8 and x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3, 4):
            self.notes.append(f"in_memory: images (N, {shape}) are taken as (N, height, width, channels).")
            return x.transpose(0, 3, 1, 2)
        if x.dtype.kind == "f" and x.dtype != np.float32:
            self.notes.append(f"in_memory: x is {x.dtype.name} and becomes float32.")
            return x.astype(np.float64)  # of which what float32 cannot hold is found
        return x


def _numpy(given: Any, called: str) -> Array:
    """An array, a tensor, an image of Pillow or a list as an array.

    Raises:
        FedshiftError: some of it is masked, which is no value.
    """
    if np.ma.is_masked(given):
        row = int(np.argwhere(np.ma.getmaskarray(given))[0][0])
        raise FedshiftError(f"{called} is masked in row {row}: fill it in (filled(value)), or leave such rows out.")
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.float() if given.dtype is torch.bfloat16 else given  # which NumPy has not
    array: Array = np.asarray(given)
    return array


def _kind(given: object) -> str:
    """What something is, for a message."""
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)}"
    return f"of the type {type(given).__name__}"


# The file ---------------------------------------------------------------------------------------------


def _arrays(data: DomainData, names: Array) -> dict[str, Array]:
    """What the file holds."""
    arrays = {"x": data.x.numpy(), "y": data.y.numpy(), "domain": names, "classes": np.array(data.classes)}
    if len(np.unique(data.group.numpy())) < len(data.group):
        arrays["group"] = data.group.numpy()
    if data.notes:
        arrays["notes"] = np.array(data.notes)
    return arrays


class _Sink:
    """Takes what a zip file writes, until it is asked for."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def write(self, piece: bytes) -> int:
        """Keep a piece."""
        self._held.append(bytes(piece))
        return len(piece)

    def flush(self) -> None:
        """There is nothing behind it."""

    def taken(self) -> Iterator[bytes]:
        """What is held, which is then given up."""
        held, self._held = self._held, []
        yield from held


def _npz(arrays: Mapping[str, Array]) -> Iterator[bytes]:
    """What ``numpy.savez`` would write, piece by piece, and without the time of day: equal arrays are equal bytes."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as file:  # type: ignore[call-overload]  # it writes and flushes only
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            info.create_system = 3  # the same on every system
            with file.open(info, "w", force_zip64=True) as entry:
                whole = np.ascontiguousarray(array)
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(whole))
                flat = whole.reshape(-1).view(np.uint8)
                for start in range(0, flat.size, PIECE):
                    entry.write(flat[start : start + PIECE].data)
                    yield from sink.taken()
    yield from sink.taken()
