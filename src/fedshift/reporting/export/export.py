"""Writing a model for people without fedshift: nothing is handed out that predicts otherwise than the run's model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from fedshift import files
from fedshift.datasets.dataset import ImageDataset
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.reporting.export.card import Card
from fedshift.reporting.export.example_inputs import made, real
from fedshift.reporting.export.formats import FORMATS, Format, Predict
from fedshift.reporting.export.function import Probabilities
from fedshift.runs.run import Picked, Run
from fedshift.runs.schema import Blueprint
from fedshift.written import file_name

TOLERANCE = 1e-5  # how far a probability may lie from that of the run's model
CHECKS, CARD, ABOUT = "checks.npz", "README.md", "model.json"


@dataclass(frozen=True)
class Exported:
    """A model that was written.

    Attributes:
        path: the folder.
        differences: by format, how far a probability lies from that of the run's model, at most.
        made: how many made samples it was compared on.
        real: how many samples of the run's data.
        note: why it was compared on no sample of the data; empty if it was.
    """

    path: Path
    differences: Mapping[Format, float]
    made: int
    real: int
    note: str = ""


@dataclass(frozen=True)
class Checks:
    """What files are compared on."""

    made: Tensor  # samples (N, ...), which are handed out with the files
    real: Tensor  # samples (M, ...) of the data, which are not
    expected: Tensor  # the probabilities of the made ones, (N, classes), float64, as the run's model gives them
    note: str  # why there are no real ones; empty if there are some

    @classmethod
    def of(cls, run: Run, whole: Probabilities) -> Checks:
        note, found = "", None
        try:
            found = real(run, whole)
        except FedshiftError as error:
            note = str(error)
        samples = made(whole, _shape(run, whole, found))
        return cls(samples, samples[:0] if found is None else found, whole.reference(samples), note)

    @torch.no_grad()
    def difference(self, whole: Probabilities, predict: Predict) -> float:
        """How far a probability lies from that of the run's model, at most, one sample at a time and several."""
        batches = [self.made[:1], self.made[-1:], self.made, self.real[:1], self.real]
        apart = [(predict(x).double() - whole.reference(x)).abs() for x in batches if len(x)]
        return max(float(each.nan_to_num(torch.inf).max()) for each in apart)

    def npz(self) -> bytes:
        """The made samples and their probabilities, as NumPy reads them."""
        file = BytesIO()
        np.savez(file, samples=self.made.numpy(), probabilities=self.expected.numpy())
        return file.getvalue()


def export(
    run: Run,
    formats: Sequence[Format] = ("onnx",),
    client: int | str | None = None,
    round: Picked = "last",
    to: str | Path | None = None,
) -> Exported:
    """Write a model into a new folder, once every file has been executed and predicts what the run's model does.

    Args:
        run: a finished run.
        formats: of :data:`FORMATS`.
        client: whose model, by name or id; None: the global one.
        round: the final model, or that of the round which validation picks.
        to: the folder; None: ``export`` in the run's, with the client's name behind it.

    Raises:
        FedshiftError: there is no such model or format, the folder exists, an extra is missing, a format cannot express
            the model, or a file predicts otherwise; then nothing is left behind.
    """
    for name in formats:
        if name not in FORMATS:
            raise UnknownNameError("format", name, get_args(Format))
        FORMATS[name].check()
    folder = run.path / _name(run, client) if to is None else Path(to)
    if folder.exists():
        raise FedshiftError(f"'{folder}' exists and is not overwritten; give another folder: --to FOLDER")
    whole = Probabilities.of(run, client, round)
    checks = Checks.of(run, whole)
    files.make_folder(folder.parent)
    begun = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        differences = _written(whole, checks, formats, begun)
        card = Card(run, whole, client, round, differences, checks.made, len(checks.real), checks.note)
        files.write(begun / CHECKS, checks.npz())
        files.write(begun / ABOUT, card.json())
        files.write(begun / CARD, card.markdown())
        begun.chmod(0o755)  # as a folder is that was made plainly
        files.rename(begun, folder)
    finally:
        shutil.rmtree(begun, ignore_errors=True)  # nothing is there any more, if all went well
    return Exported(folder, differences, len(checks.made), len(checks.real), checks.note)


def _name(run: Run, client: int | str | None) -> str:
    if client is None:
        return "export"
    blueprint = Blueprint.model_validate(run.data_facts)
    return file_name("export", blueprint.clients[blueprint.client(client)])


def _shape(run: Run, whole: Probabilities, found: Tensor | None) -> tuple[int, ...]:
    """The shape of a sample as the data set stores it."""
    if found is not None:
        return tuple(found.shape[1:])
    stored, data = whole.model.blueprint.shape, run.experiment.data
    if whole.reader is None:
        return stored
    if isinstance(data, ImageDataset):
        return data.channels, data.size, data.size
    raise FedshiftError(
        "Which shape the samples have that the frozen network reads is known from the data alone, and these cannot be "
        "read any more: put them where they were."
    )


def _written(whole: Probabilities, checks: Checks, formats: Sequence[Format], folder: Path) -> dict[Format, float]:
    """Write the files of each format, and return how far they are from the run's model."""
    program, differences = whole.traced(checks.made[:4]), dict[Format, float]()
    for name in dict.fromkeys(formats):
        differences[name] = checks.difference(whole, FORMATS[name].write(program, folder))
        if not differences[name] <= TOLERANCE:
            others = " or ".join(f"--format {other}" for other in FORMATS if other != name)
            raise FedshiftError(
                f"The model as {name} is wrong: executed, it gives a probability that differs by "
                f"{differences[name]:.2g} from that of run.model(), and {TOLERANCE:g} is allowed. Nothing was written; "
                f"try {others}."
            )
    return differences
