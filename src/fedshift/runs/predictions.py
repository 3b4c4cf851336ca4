"""Predictions of a trained model for new files: the probability of each class for every sample."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift import files
from fedshift.clients.data_checks import check_inputs
from fedshift.clients.preparation import Column
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.listing import files_below
from fedshift.errors import FedshiftError, Problems, needs
from fedshift.runs.run import Picked, Run
from fedshift.runs.trained import Trained

Done = Callable[[int, int], None]  # takes how many files are read, of how many
NAMED = 8  # kinds of files that an error lists
COLUMNS = ("file", "row", "predicted")


def ignore_progress(done: int, of: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True)
class Predictions:
    """The probability of each class for the samples of files.

    Attributes:
        classes: the classes' names.
        files: each sample's file.
        rows: its row in the file, from 0, or its name there; None where the file is one sample.
        probabilities: (samples, classes), float64; each row's sum is 1.
        problems: the files that could not be read, with the reasons.
        notes: what a reader must know about how files were read.
    """

    classes: tuple[str, ...]
    files: tuple[str, ...]
    rows: tuple[int | str | None, ...]
    probabilities: Tensor
    problems: Problems
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Predictions({len(self.files)} samples, classes: {', '.join(self.classes)})"

    @property
    def predicted(self) -> list[str]:
        """Each sample's most probable class, the first of equals."""
        return [self.classes[number] for number in self.probabilities.argmax(dim=1).tolist()]

    def table(self) -> list[dict[str, Any]]:
        """For each sample its ``file``, ``row``, the ``predicted`` class, and as ``p_<class>`` each probability."""
        return [
            dict(zip(self._columns, (file, row, predicted, *probabilities), strict=True))
            for file, row, predicted, probabilities in zip(
                self.files, self.rows, self.predicted, self.probabilities.tolist(), strict=True
            )
        ]

    def frame(self) -> Any:
        """The :meth:`table` as a pandas data frame; raises a FedshiftError if pandas is not installed."""
        with needs("pandas", "A pandas table (table() gives the same as a list)"):
            import pandas as pd
        return pd.DataFrame(self.table())

    def csv(self) -> str:
        """The :meth:`table` as CSV, with nine digits of each probability, which distinguish any two of float32."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._columns)
        for row in self.table():
            writer.writerow(f"{value:.9g}" if isinstance(value, float) else value for value in row.values())
        return text.getvalue()

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*COLUMNS, *(f"p_{name}" for name in self.classes))

    def write(self, path: str | Path) -> Path:
        """Write the :meth:`csv` atomically; its folder is created if need be.

        Raises:
            FedshiftError: it cannot be written.
        """
        to = Path(path)
        files.make_folder(to.parent)
        files.write(to, self.csv())
        return to

    def check(self) -> None:
        """Raise an error that names every file that could not be read, if there are any."""
        self.problems.check()


def predictions(
    run: Run,
    paths: Sequence[str | Path],
    client: int | str | None = None,
    round: Picked = "last",
    notify: Done = ignore_progress,
) -> Predictions:
    """Predict for files of the kind that a run was trained on; unreadable files are reported in the result.

    ``paths`` are files, or folders searched recursively; ``client`` is a name or id (None: the global model); ``round``
    the final model, or the round that validation selects; ``notify`` receives the number of files read. Raises a
    FedshiftError if there is no such model or file, or if no file could be read; the message names every file.
    """
    model, dataset = run.model(client, round), run.experiment.data
    run.check_readers()
    front, batch, problems = dataset.front(), run.experiment.evaluate.batch, Problems("files cannot be predicted for")
    places: list[tuple[str, int | str | None]] = []
    notes: dict[str, None] = {}
    # Where stages of the network are frozen, images may have any size, but all the same size.
    shape, kind = (model.blueprint.shape, model.blueprint.type) if model.front is None else (None, "")
    prepared = model.blueprint.inputs.preparation
    columns = tuple(map(Column, model.blueprint.columns)) if prepared is None else prepared.columns

    def read() -> Iterator[Tensor]:
        nonlocal shape
        found = files_of(dataset, DATASETS.name_of(dataset), paths, problems)
        for number, file in enumerate(found):
            with problems.gathered():
                samples = dataset.samples(file, columns)
                with torch.no_grad():
                    x = samples.x if front is None else front(samples.x)
                if (given := str(x.dtype).removeprefix("torch.")) != (kind or given):
                    raise FedshiftError(
                        f"'{file}' has samples of type {given}; the model takes {kind}: give that, scaled as in "
                        "training."
                    )
                own = tuple(x.shape[1:])
                shape = own if shape is None else shape
                if own != shape:
                    raise FedshiftError(f"'{file}' has samples of shape {own}; the model takes {shape}.")
                rows: Sequence[int | str | None] = samples.rows or [None]
                check_inputs(x, model.blueprint.inputs, partial(_place, file, rows))
                places.extend((str(file), row) for row in rows)
                notes.update(dict.fromkeys(samples.notes))
                yield x
            notify(number + 1, len(found))

    found = list(probabilities(model, read(), batch))
    if not found:
        problems.check()
        raise FedshiftError("There are no files to predict for; give files, or folders that contain some.")
    names, rows = zip(*places, strict=True)
    return Predictions(model.blueprint.classes, names, rows, torch.cat(found), problems, tuple(notes))


def _place(file: Path, rows: Sequence[int | str | None], row: int) -> str:
    name = rows[row]
    return f"'{file}'" if name is None else f"{f'row {name}' if isinstance(name, int) else name} of '{file}'"


def probabilities(model: Trained, pieces: Iterable[Tensor], batch: int) -> Iterator[Tensor]:
    """The probabilities (B, classes), float64, of samples in pieces, ``batch`` at a time.

    A model that draws noise predicts one sample at a time, so that a prediction does not depend on the sample's place.
    """
    waiting: list[Tensor] = []
    batch = 1 if model.draws else batch
    for piece in pieces:
        waiting.append(piece)
        if sum(map(len, waiting)) >= batch:
            *full, rest = torch.split(torch.cat(waiting), batch)
            waiting = [] if len(rest) == batch else [rest]
            for x in full if waiting else [*full, rest]:
                yield _probabilities(model, x)
    if waiting:
        yield _probabilities(model, torch.cat(waiting))


def _probabilities(model: Trained, x: Tensor) -> Tensor:
    with torch.no_grad():
        predicted: Tensor = model(x)
    return predicted.double().softmax(dim=1)


def files_of(dataset: Dataset, name: str, paths: Sequence[str | Path], problems: Problems) -> list[Path]:
    """The files of paths, each once; problems with paths are collected."""
    suffixes = dataset.suffixes()
    if not suffixes:
        raise FedshiftError(
            f"The data set '{name}' cannot read other files, so there are no files to predict for; in Python a "
            "sample is predicted for by run.model()."
        )
    kinds = ", ".join(suffixes[:NAMED]) + (", ..." if len(suffixes) > NAMED else "")
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        with problems.gathered():
            if path.is_dir():
                below = [file for file in files_below(path) if dataset.reads(file) and not file.name.startswith(".")]
                if not below:
                    raise FedshiftError(f"'{path}' contains no file that ends in {kinds}.")
                found |= dict.fromkeys(below)
            elif not path.exists():
                raise FedshiftError(f"'{path}' does not exist.")
            elif not dataset.reads(path):
                raise FedshiftError(
                    f"'{path}' is not a kind of file that '{name}' reads: give files that end in {kinds}."
                )
            else:
                found[path] = None
    return list(found)
