"""Arrays, tensors and torch data sets in memory, by site, as a data set of the catalogue.

The data are checked and written into an ``.npz`` file that is named by its content, so that a run on it can be resumed,
compared and used for prediction like a run on any file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor

from fedshift import files
from fedshift.clients.data_checks import check_data
from fedshift.clients.inputs import Inputs
from fedshift.datasets.arrays import Arrays, labelled
from fedshift.datasets.labelled import Array, Labelled, joined
from fedshift.errors import DiskError, FedshiftError, Problems, UnknownNameError

FOLDER = "runs/data"
KEYS = ("x", "y", "group")
COLOURS = (1, 3, 4)  # channels of an image
SIDE = 16  # pixels of an image that is no square, at least
PAIR = "(x, y), (x, y, group), or a mapping with the keys x, y and perhaps group"


def in_memory(
    sites: Mapping[Any, Any],
    classes: Sequence[str] | None = None,
    folder: str | Path = FOLDER,
    exclude: Sequence[str] = (),
) -> Arrays:
    """The data of several sites in memory, for the argument ``data`` of :func:`fedshift.run` and others.

    Each site is ``(x, y)``, ``(x, y, group)``, a mapping with these keys, or a torch ``Dataset`` with a length and such
    items. ``x`` has a sample per row, of the same type and shape at all sites:

    * images: uint8 or float, (N, channels, height, width) or (N, height, width, channels); uint8 also (N, height,
      width);
    * vectors, signals (N, channels, time) and other arrays: float32, (N, ...); float64 and float16 become float32;
    * token sequences: int64, (N, length).

    ``y`` has a class per row as an integer, bool or text: (N,) or (N, 1). Samples of one ``group`` (one patient, for
    example), also at several sites, stay on one side of every split. Conversions are noted in the run.

    Args:
        sites: the sites by name, numbered in the order of their names.
        classes: the names of the classes 0, 1, ...; by default the sorted values of ``y``.
        folder: the folder for the file; equal data share a file. Keep it as long as the run may be resumed.
        exclude: columns of vectors (N, columns) to exclude, by the names of a pandas table, or by number from 0, as
            text.

    Returns:
        The data set that reads the file.

    Raises:
        FedshiftError: a value cannot be used; the message names the site, the row and the value.
        DiskError: the file cannot be written.
    """
    words = [] if classes is None or isinstance(classes, str) else [*classes]
    if isinstance(classes, str) or not all(isinstance(word, str) for word in words) or len({*words}) < len(words):
        raise FedshiftError(f"classes = {classes!r:.200}: give a list of the names of the classes, each once.")
    path = _write(_arrays(sites, words), Path(folder).expanduser().resolve())
    return Arrays(path=str(path), exclude=tuple(map(str, exclude)))


def _arrays(sites: Any, classes: Sequence[str]) -> dict[str, Array]:
    """The file's content: all sites' samples, and each sample's site."""
    if not isinstance(sites, Mapping) or not sites:
        what = f"{_kind(sites)} is no mapping of sites" if not isinstance(sites, Mapping) else "The mapping has no site"
        raise FedshiftError(f'{what}; give {{"north": (x, y), "south": (x, y)}}.')
    sites = {int(name) if isinstance(name, np.integer) else name: given for name, given in sites.items()}
    if {type(name) for name in sites} not in ({str}, {int}):
        raise FedshiftError(f"Sites are called {list(sites)!r:.200}; give names as text, or whole numbers.")
    parts, notes, names = list[Labelled](), dict[str, None](), list[Array]()
    columns: dict[Any, list[Any]] = {}  # of pandas
    problems = Problems("sites cannot be used")
    for name in sorted(sites):
        with problems.gathered():
            given = _columns(sites[name], f"site '{name}'")
            if hasattr(given["x"], "columns"):
                columns[name] = [*given["x"].columns]
                first = next(iter(columns))
                if columns[name] != columns[first]:
                    here, there = (", ".join(map(str, columns[site])) for site in (name, first))
                    raise FedshiftError(
                        f"x of the site '{name}' has the columns {here:.200}, but of the site '{first}' "
                        f"{there:.200}; give the same at every site, in the same order."
                    )
            _check_index(given["x"], given["y"], name)
            arrays = {key: _array(value, f"{key} of the site '{name}'") for key, value in given.items()}
            arrays["x"], own = _converted(arrays["x"])
            parts.append(labelled(arrays, classes, f"site {name}", f"the site '{name}'", str(name)))
            notes |= dict.fromkeys(own)
            names.append(np.repeat(np.array([name]), len(parts[-1].x)))
    problems.check()
    data = joined(parts, classes, tuple(notes))
    check_data(data, Inputs(), one_class=True)
    arrays = {"x": data.x.numpy(), "y": data.y.numpy(), "domain": np.concatenate(names)}
    arrays["classes"] = np.array(data.classes)
    if len(np.unique(data.group.numpy())) < len(data.group):
        arrays["group"] = data.group.numpy()
    if len(columns) == len(sites) and (words := _names_of_columns(columns[min(sites)])):
        arrays["columns"] = np.array(words)
    if data.notes:
        arrays["notes"] = np.array(data.notes)
    return arrays


def _names_of_columns(columns: Sequence[Any]) -> list[str]:
    named = len({*columns}) == len(columns) and all(isinstance(name, str) for name in columns)
    return [*columns] if named else []


def _check_index(x: Any, y: Any, name: str) -> None:
    """Raise an error if pandas tables have the same rows in another order."""
    if not (hasattr(x, "sort_index") and hasattr(y, "sort_index")) or x.index.equals(y.index):
        return
    if x.index.sort_values().equals(y.index.sort_values()):
        raise FedshiftError(
            f"x and y of the site '{name}' have the same index in another order, and rows count here, not the index: "
            "give y.loc[x.index], or reset_index(drop=True) of both."
        )


# Inputs ----------------------------------------------------------------------------------------


def _columns(given: Any, called: str) -> dict[str, Any]:
    """``x``, ``y`` and possibly ``group`` of a pair, a triple, a mapping or a torch Dataset."""
    if isinstance(given, Mapping | tuple):
        return _named(given, called)
    if isinstance(given, str | list | np.ndarray | Tensor) or not hasattr(given, "__getitem__"):
        raise FedshiftError(
            f"The {called} is {_kind(given)}; give {PAIR}, or a torch Dataset with a length (a DataLoader's dataset)."
        )
    if not hasattr(given, "__len__") or not len(given):
        raise FedshiftError(f"The {called} has no sample, or no length: leave it out, or give a Dataset with __len__.")
    items = []
    for row in range(len(given)):
        try:
            item = given[row]
        except Exception as error:  # whatever the user's code raises
            raise FedshiftError(
                f"The item {row} of {called} cannot be read: {type(error).__name__}: {error}"
            ) from error
        items.append(_named(item, f"item {row} of {called}"))
    if any(item.keys() != items[0].keys() for item in items):
        raise FedshiftError(f"Items of {called} differ in whether they have a group.")
    columns: dict[str, Any] = {key: [item[key] for item in items] for key in items[0]}
    columns["x"] = [_array(x, f"x of item {row} of {called}") for row, x in enumerate(columns["x"])]
    return columns


def _named(given: Any, called: str) -> dict[str, Any]:
    """A pair, a triple or a mapping, by its keys."""
    if isinstance(given, Mapping):
        unknown = next((key for key in given if key not in KEYS), None)
        if unknown is not None:
            raise UnknownNameError(f"key of {called}", str(unknown), KEYS)
        if {"x", "y"} <= given.keys():
            return dict(given)
    elif isinstance(given, tuple | list) and len(given) in (2, 3):
        return dict(zip(KEYS, given, strict=False))
    raise FedshiftError(f"The {called} is {_kind(given)}; give {PAIR}.")


def _array(given: Any, called: str) -> Array:
    if any(np.ma.is_masked(each) for each in (given, *(given if isinstance(given, list | tuple) else ()))):
        raise FedshiftError(f"{called} has masked values: fill them in (filled(value)), or leave such rows out.")
    if isinstance(given, list) and given and isinstance(given[0], Tensor):
        given = [value.item() if value.ndim == 0 else value for value in given]
    if isinstance(given, list | tuple) and any(isinstance(value, str) for value in given):
        given = np.array(given, object)  # in which NaN is not a text
    try:
        return np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        message = f"{called} is not an array: {reason}. Give one row per sample, all of one shape."
        raise FedshiftError(message) from error


def _converted(x: Array) -> tuple[Array, list[str]]:
    """The samples as data sets store them, and a note on the conversion."""
    shape = ", ".join(map(str, x.shape[1:]))
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None], [f"in_memory: images (N, {shape}) are read as gray, with one channel."]
    notes = list[str]()
    if _channels_last(x, shape):
        x = x.transpose(0, 3, 1, 2)
        notes.append(f"in_memory: images (N, {shape}) are taken as (N, height, width, channels).")
    if x.dtype.kind == "f" and x.dtype != np.float32:
        return x.astype(np.float64), [*notes, f"in_memory: x is {x.dtype.name} and becomes float32."]
    return x, notes


def _channels_last(x: Array, shape: str) -> bool:
    """Whether samples are images (N, height, width, channels)."""
    if x.ndim != 4 or x.shape[-1] not in COLOURS:
        return False
    if x.dtype == np.uint8:
        return x.shape[1] not in (1, 3)
    if x.dtype.kind != "f" or x.shape[1] in COLOURS:
        return False
    if x.shape[1] != x.shape[2] and min(x.shape[1:3]) < SIDE:
        raise FedshiftError(
            f"x (N, {shape}) may be images with the channels last, or other arrays: give images as (N, channels, "
            "height, width), x.transpose(0, 3, 1, 2), and other arrays in an .npz file, which is taken as it is."
        )
    return True


def _kind(given: object) -> str:
    if isinstance(given, Mapping):
        return f"a mapping of {', '.join(map(str, given)) or 'nothing'}"
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)}"
    return f"of the type {type(given).__name__}"


# The file ---------------------------------------------------------------------------------------------


def _write(arrays: Mapping[str, Array], folder: Path) -> Path:
    """Write arrays into a file named by its digest, unless it exists; return its path.

    The file has no timestamps, so equal arrays give equal bytes.
    """
    files.make_folder(folder)
    try:
        with TemporaryDirectory(prefix=".new-", dir=folder) as temporary:
            new = Path(temporary) / "data.npz"
            np.savez(new, allow_pickle=False, **arrays)
            digest = files.digest(new)
            path = folder / f"{digest[:16]}.npz"
            if files.digest(path) != digest:
                files.sync(new.parent, [new.name])
                files.rename(new, path)
            return path
    except OSError as error:
        raise DiskError(f"The data cannot be written into '{folder}': {error.strerror or error}.") from error
