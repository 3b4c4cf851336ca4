"""A user's own DICOM and NIfTI files as folder/domain/class/file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from PIL import Image
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData, Unlabelled
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.image_tables import images_in
from fedshift.datasets.images import ImageRows
from fedshift.datasets.labelled import Array, Labelled, Names, each_read, joined
from fedshift.datasets.listing import is_dicom, is_nifti
from fedshift.datasets.volumes import Axis, Volume, Window, read_volume
from fedshift.errors import FedshiftError
from fedshift.spec import FLOAT32, Count, NonNegative, Pixels, setting
from fedshift.streams import Streams

SCALES = {
    "file": "Values are 0 to 1 by the window that each file names.",
    "range": "Values are 0 to 1 from the smallest to the largest of each file.",
    "none": "Values are those of the files, after rescale slope and intercept.",
}


class Medical(Dataset):
    """Slices of DICOM and NIfTI files in folder/domain/class/file, gray, with all their bits, as float32.

    A DICOM file holds one slice or several (frames), a NIfTI file those along an axis. A split keeps the slices of a
    patient on one side, where DICOM names the patient, and those of a file otherwise.

    *Choices.* Of several windows in a file the first is taken. Slices are stretched to a square, as images are,
    whatever the distance of their pixels. MONOCHROME1 is inverted, so that high values are white
    everywhere; without a window within the values that its stored bits can have.
    """

    seeded: ClassVar[bool] = False

    path: str = setting(help="the folder that holds one folder a domain", path=True)
    size: Pixels = setting(224, help="height and width that slices are resized to, in pixels")
    channels: Literal[1, 3] = setting(1, help="1: gray; 3: the same three times, for a network that takes colour")
    window: Literal["file", "given", "range", "none"] = setting(
        "file",
        help="which values become 0 to 1: those of the file's own window; of centre and width; from each file's "
        "smallest to its largest; none: values stay as they are",
    )
    centre: Annotated[float, Ge(-3e38), FLOAT32] = setting(
        0.0, help="centre of the window, where it is given (in Hounsfield units, for CT)"
    )
    width: NonNegative = setting(0.0, help="width of the window, where it is given")
    axis: Axis = setting("axial", help="which slices of a NIfTI volume; frames of a DICOM file are taken as they are")
    slices: Literal["all", "middle"] = setting("all", help="which slices of a file of several")
    every: Count = setting(1, help="of all slices, each so many-th from the first on")
    group: Literal["patient", "file"] = setting(
        "patient", help="what a split keeps whole; patient: a file's slices, where it names no patient"
    )
    normalise: bool = setting(False, help="ImageNet's mean and standard deviation (needs 3 channels and a window)")

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: one is wrong, or two contradict each other.
        """
        super().__post_init__()
        if (self.window == "given") != (self.width > 0):
            raise FedshiftError(
                f"data.window = '{self.window}', data.centre = {self.centre:g}, data.width = {self.width:g}: a window "
                "that is given has a width above 0, and no other has one."
            )
        if self.slices == "middle" and self.every > 1:
            raise FedshiftError(f"data.every = {self.every} is for all slices: --set data.slices=all")
        if self.normalise and (self.channels == 1 or self.window == "none"):
            raise FedshiftError(
                "data.normalise needs values of 0 to 1 (data.window) in three channels (data.channels)."
            )

    def domain_names(self) -> tuple[str, ...]:
        """The names of the first-level folders."""
        return tuple(sorted(set(self._found().domains)))

    def check_here(self) -> None:
        """Whether the folder is there."""
        self._found()

    def inputs(self) -> Inputs:
        """What the settings ask for."""
        return Inputs(normalise=self.normalise)

    def load(self, streams: Streams) -> DomainData:
        """Read every slice; ``x`` is float32 (N, channels, size, size)."""
        images = self._found()
        found = list(zip((Path(where) for where, _ in images.read()), images.domains, images.labels, strict=True))
        memory.check(
            len(found) * self.channels * self.size**2 * 4,
            f"The data set, {len(found)} files or more slices of {self.size} x {self.size} pixels,",
            "Choose a smaller data.size, or fewer files.",
        )
        low, high = self.centre - self.width / 2, self.centre + self.width / 2
        notes = [SCALES.get(self.window, f"Values are 0 to 1 from {low:g} to {high:g}, and cut off beyond that.")]
        inverted, nameless = list[Path](), list[Path]()

        def read(item: tuple[Path, str, str]) -> Labelled:
            file, domain, label = item
            volume = read_volume(file, self.axis)
            x = self._slices(file, volume)
            inverted.extend([file] * volume.inverted)
            nameless.extend([file] * (not volume.patient))
            of_patient = self.group == "patient" and volume.patient
            called = (label, domain, f"patient {volume.patient}" if of_patient else f"file {file}")
            y, site, group = (Names.all(name, len(x)) for name in called)
            return Labelled(str(file), x, y, site, group, [f"slice {n}" for n in self._chosen(len(volume.values))])

        parts = each_read(read, found, "files cannot be read")
        if inverted:
            notes.append(f"{len(inverted)} of {len(found)} files are MONOCHROME1 and were inverted.")
        if nameless and self.group == "patient":
            notes.append(
                f"{len(nameless)} of {len(found)} files name no patient; a split keeps each of these files whole."
            )
        return joined(parts, images.classes, (*images.notes, *notes))

    def suffixes(self) -> tuple[str, ...]:
        """Those of DICOM and NIfTI; DICOM may have none."""
        return (".dcm", ".dicom", ".nii", ".nii.gz")

    def reads(self, file: Path) -> bool:
        """Whether it is DICOM or NIfTI."""
        return is_medical(file)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The slices that are kept of a file."""
        volume = read_volume(file, self.axis)
        return Unlabelled(self._slices(file, volume), self._chosen(len(volume.values)))

    def _found(self) -> ImageRows:
        return images_in(self.path, is_medical)

    def _slices(self, file: Path, volume: Volume) -> Tensor:
        """The slices of a file that are kept, (slices, channels, size, size), float32."""
        chosen = self._chosen(len(volume.values))
        scaled = self._scaled(file, volume, chosen)
        x = torch.stack([torch.from_numpy(_resized(each, self.size)) for each in scaled])
        return x.unsqueeze(1).repeat(1, self.channels, 1, 1)

    def _chosen(self, count: int) -> list[int]:
        """Which of so many slices are kept."""
        return [count // 2] if self.slices == "middle" else list(range(0, count, self.every))

    def _scaled(self, file: Path, volume: Volume, chosen: list[int]) -> Array:
        """The chosen slices' values as the settings ask for them, with white high."""
        values = volume.values[chosen]
        if self.window == "none":
            low, high = volume.limits
            return low + high - values if volume.inverted else values
        shown = np.stack(
            [self._window(file, volume, slice).shown(own) for slice, own in zip(chosen, values, strict=True)]
        )
        return 1 - shown if volume.inverted else shown

    def _window(self, file: Path, volume: Volume, slice: int) -> Window:
        if self.window == "given":
            return Window(self.centre, self.width)
        if self.window == "range":
            low, high = float(volume.values.min()), float(volume.values.max())
            return Window((low + high) / 2, (high - low) or 1)
        own = volume.windows[slice]
        if own is None:
            tags = "cal_min and cal_max" if is_nifti(file) else "WindowCenter and WindowWidth"
            raise FedshiftError(
                f"The file '{file}' names no window ({tags}): --set data.window=given --set data.centre=... --set "
                "data.width=..., or data.window=range, or none"
            )
        return own


def is_medical(file: Path) -> bool:
    """Whether a file is DICOM or NIfTI, by its name; a file without a suffix by how it begins."""
    return is_dicom(file) or is_nifti(file)


def _resized(values: Array, size: int) -> Array:
    """A slice as float32 (size, size), by Pillow's bilinear filter, as images are."""
    image = Image.fromarray(np.ascontiguousarray(values, np.float32))
    return np.array(image.resize((size, size), Image.Resampling.BILINEAR))
