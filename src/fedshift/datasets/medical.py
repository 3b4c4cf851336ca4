"""A user's own DICOM and NIfTI files as folder/domain/class/file, in the units that the files themselves give.

A slice of NIfTI is turned as DICOM's usual ones lie: with the patient's right (sagittal: front) at the left, and with
the front (axial) or the head at the top. Slices of a DICOM file stay as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

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
from fedshift.datasets.labelled import Array, Labelled, Names, each_read, joined
from fedshift.datasets.listing import is_dicom, is_nifti, reading
from fedshift.errors import FedshiftError, needs
from fedshift.spec import FLOAT32, Count, NonNegative, Pixels, setting
from fedshift.streams import Streams

Axis = Literal["axial", "coronal", "sagittal"]
GRAY = ("MONOCHROME1", "MONOCHROME2")
BYTES_PER_VALUE = 20  # as stored, as float64, and copies
FRAMES = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
SCALES = {
    "file": "Values are 0 to 1 by the window that each file names.",
    "range": "Values are 0 to 1 from the smallest to the largest of each file.",
    "none": "Values are those of the files, after rescale slope and intercept.",
}


class Window(NamedTuple):
    """The values that are shown from black to white."""

    centre: float  # the value in the middle
    width: float  # the extent of the values
    function: str = "LINEAR_EXACT"  # how values become 0 to 1, as DICOM's VOI LUT Function names it (PS3.3, C.11.2.1)

    def shown(self, values: Array) -> Array:
        """Values as 0 (black) to 1 (white)."""
        if self.function == "SIGMOID":
            steepness = np.clip(4 * (values - self.centre) / self.width, -60, 60)
            return np.asarray(1 / (1 + np.exp(-steepness)))
        if self.function == "LINEAR":  # between whole numbers, as of old
            return np.clip((values - (self.centre - 0.5)) / max(self.width - 1, 1e-9) + 0.5, 0, 1)
        return np.clip((values - self.centre) / self.width + 0.5, 0, 1)


class Volume(NamedTuple):
    """The slices of a file."""

    values: Array  # (slices, height, width), float64, finite, after rescale slope and intercept
    windows: tuple[Window | None, ...]  # the file's own window of each slice; None where it has none
    inverted: bool  # whether low values are meant to be white (MONOCHROME1)
    # the lowest and the highest value that the stored bits can have; those that occur where it is unknown
    limits: tuple[float, float]
    patient: str = ""  # the patient's id; empty where the file names none


class Medical(Dataset):
    """Slices of DICOM and NIfTI files in folder/domain/class/file, gray, with all their bits, as float32.

    A DICOM file contains one slice or several (frames), a NIfTI file those along an axis. A split keeps the slices of a
    patient on one side, where DICOM names the patient, and those of a file otherwise.

    *Choices.* Of several windows in a file the first is taken. Slices are stretched to a square, as images are,
    whatever the distance of their pixels. MONOCHROME1 is inverted, so that high values are white
    everywhere; without a window within the values that its stored bits can have.
    """

    seeded: ClassVar[bool] = False

    path: str = setting(help="the folder with one folder per domain", path=True)
    size: Pixels = setting(224, help="height and width that slices are resized to, in pixels")
    channels: Literal[1, 3] = setting(1, help="1: gray; 3: three equal channels, for a network of colour images")
    window: Literal["file", "given", "range", "none"] = setting(
        "file",
        help="which values become 0 to 1: file: the file's window; given: centre and width; range: each file's "
        "smallest to largest; none: values stay as they are",
    )
    centre: Annotated[float, Ge(-3e38), FLOAT32] = setting(
        0.0, help="centre of the window, with window = given (Hounsfield units for CT)"
    )
    width: NonNegative = setting(0.0, help="width of the window, with window = given")
    axis: Axis = setting("axial", help="axis of the slices of a NIfTI volume; frames of a DICOM file stay as they are")
    slices: Literal["all", "middle"] = setting("all", help="which slices of a file of several")
    every: Count = setting(1, help="keep every n-th slice, from the first")
    group: Literal["patient", "file"] = setting(
        "patient", help="what a split keeps whole; patient: or a file's slices, if it names no patient"
    )
    normalise: bool = setting(False, help="ImageNet's mean and standard deviation (needs 3 channels and a window)")

    def __post_init__(self) -> None:
        """Check the settings."""
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
        return tuple(sorted(set(images_in(self.path, self.reads).domains)))

    def check_here(self) -> None:
        images_in(self.path, self.reads)

    def inputs(self) -> Inputs:
        return Inputs(normalise=self.normalise)

    def load(self, streams: Streams) -> DomainData:
        """Read every slice; ``x`` is float32 (N, channels, size, size)."""
        images = images_in(self.path, self.reads)
        found = list(zip((Path(where) for where, _ in images.read()), images.domains, images.labels, strict=True))
        memory.check(
            len(found) * self.channels * self.size**2 * 4,
            f"The data set, {len(found)} files or more slices of {self.size} x {self.size} pixels,",
            "Choose a smaller data.size, or fewer files.",
        )
        low, high = self.centre - self.width / 2, self.centre + self.width / 2
        notes = [SCALES.get(self.window, f"Values are 0 to 1 from {low:g} to {high:g}, and cut off beyond that.")]
        inverted, nameless, patients = list[Path](), list[Path](), dict[str, set[str]]()

        def read(item: tuple[Path, str, str]) -> Labelled:
            file, domain, label = item
            volume = read_volume(file, self.axis)
            x = self._slices(file, volume)
            inverted.extend([file] * volume.inverted)
            nameless.extend([file] * (not volume.patient))
            patients.setdefault(domain, set()).add(volume.patient or f"file {file}")
            of_patient = self.group == "patient" and volume.patient
            called = (label, domain, f"patient {volume.patient}" if of_patient else f"file {file}")
            y, site, group = (Names.all(name, len(x)) for name in called)
            return Labelled(str(file), x, y, site, group, [f"slice {n}" for n in self._chosen(len(volume.values))])

        parts = each_read(read, found, "files cannot be read")
        if self.group == "patient" and len(found) > len(patients):
            _check_patients(patients, len(found))
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
        """Whether it is DICOM or NIfTI, by its name; a file without a suffix by how it begins."""
        return is_dicom(file) or is_nifti(file)

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        volume = read_volume(file, self.axis)
        return Unlabelled(self._slices(file, volume), self._chosen(len(volume.values)))

    def _slices(self, file: Path, volume: Volume) -> Tensor:
        """The slices of a file that are kept, with white high, (slices, channels, size, size), float32."""
        x = []
        for slice in self._chosen(len(volume.values)):
            values, (low, high) = volume.values[slice], volume.limits
            if self.window == "none":
                values = low + high - values if volume.inverted else values
            else:
                values = self._window(file, volume, slice).shown(values)
                values = 1 - values if volume.inverted else values
            image = Image.fromarray(np.ascontiguousarray(values, np.float32))  # resized as images are
            x.append(torch.from_numpy(np.array(image.resize((self.size, self.size), Image.Resampling.BILINEAR))))
        return torch.stack(x).unsqueeze(1).repeat(1, self.channels, 1, 1)

    def _chosen(self, count: int) -> list[int]:
        return [count // 2] if self.slices == "middle" else list(range(0, count, self.every))

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


def _check_patients(patients: Mapping[str, set[str]], files: int) -> None:
    """Refuse files of which all that a site has are of one patient, as where names were taken out.

    Args:
        patients: whose files each domain has.
        files: how many there are.
    """
    if any(len(own) > 1 for own in patients.values()):
        return
    names = sorted({name for own in patients.values() for name in own})
    named = ", ".join(f"'{name}'" for name in names[:3]) + ", ..." * (len(names) > 3)
    raise FedshiftError(
        f"All files of a site ({files} in all) name one patient in PatientID, {named}, and a split keeps a patient "
        "whole, so none would be left to test. If these are many patients without their names, --set data.group=file "
        "keeps each file whole instead; better, give each patient a separate id."
    )


def read_volume(file: Path, axis: Axis) -> Volume:
    """The slices of a file.

    Args:
        file: DICOM, or NIfTI, recognised by its name.
        axis: which slices of a NIfTI volume.
    """
    with reading(f"The file '{file}'", "Replace or remove it."):
        volume = _nifti(file, axis) if is_nifti(file) else _dicom(file)
    if not np.isfinite(volume.values).all():
        raise FedshiftError(f"The file '{file}' contains NaN or infinity; write finite numbers, such as 0 outside.")
    return volume


def _dicom(file: Path) -> Volume:
    with needs("medical", "Reading DICOM"):
        import pydicom
    scan = pydicom.dcmread(file)
    if scan.get("PhotometricInterpretation", GRAY[1]) not in GRAY:
        raise FedshiftError(
            f"The file '{file}' has {scan.PhotometricInterpretation} in PhotometricInterpretation, and the data set "
            f"'medical' reads {' and '.join(GRAY)}; export colour images as PNG for the data set 'folder'."
        )
    size = int(scan.get("NumberOfFrames") or 1) * scan.get("Rows", 0) * scan.get("Columns", 0)
    memory.check(size * BYTES_PER_VALUE, f"Reading the file '{file}'", "Split it, or remove it.")
    scan.pixel_array_options(allow_excess_frames=False)  # than the file states it has
    stored = scan.pixel_array  # pydicom's errors name the missing decoder
    frames = stored[None] if stored.ndim == 2 else stored
    values = frames.astype(np.float64)
    if "ModalityLUTSequence" in scan:
        values = np.asarray(pydicom.pixels.apply_modality_lut(frames, scan), np.float64)
    bits, signed = int(scan.get("BitsStored") or 16), bool(scan.get("PixelRepresentation"))
    bounds = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)
    windows, limits = list[Window | None](), list[float]()
    for number in range(len(frames)):
        slope, intercept = (_number(file, scan, number, f"Rescale{name}") for name in ("Slope", "Intercept"))
        if slope == 0:
            raise FedshiftError(f"The file '{file}' has 0 in RescaleSlope; correct it.")
        slope, intercept = slope or 1.0, intercept or 0.0
        values[number] = values[number] * slope + intercept
        limits += [bound * slope + intercept for bound in bounds]
        windows.append(_window(file, scan, number))
    patient = str(scan.get("PatientID") or "").strip()
    inverted = scan.PhotometricInterpretation == "MONOCHROME1"
    return Volume(values, tuple(windows), inverted, (min(limits), max(limits)), patient)


def _window(file: Path, scan: Any, frame: int) -> Window | None:
    centre, width = (_number(file, scan, frame, keyword) for keyword in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None:
        return None
    function = str(_first(scan, frame, "VOILUTFunction") or "LINEAR")
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID") or width < (1 if function == "LINEAR" else 1e-9):
        raise FedshiftError(
            f"The file '{file}' has {width:g} in WindowWidth and {function} in VOILUTFunction, of which no window "
            "can be made; give one in its place: --set data.window=given"
        )
    return Window(centre, width, function)


def _number(file: Path, scan: Any, frame: int, keyword: str) -> float | None:
    try:  # pydicom reads the value now, too
        value = _first(scan, frame, keyword)
        number = None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise FedshiftError(f"The file '{file}' has no number in {keyword} ({error}); correct it.") from error
    if number is not None and not np.isfinite(number):
        raise FedshiftError(f"The file '{file}' has {number} in {keyword}; write a finite number.")
    return number


def _first(scan: Any, frame: int, keyword: str) -> Any:
    """The first value of an element: the frame's own, that of all frames, or the file's; None: there is none."""
    shared, own = scan.get("SharedFunctionalGroupsSequence"), scan.get("PerFrameFunctionalGroupsSequence")
    groups = [*(own[frame : frame + 1] if own else []), *(shared[:1] if shared else [])]
    places = [place for group in groups for name in FRAMES for place in (group.get(name) or [])[:1]]
    for place in (*places, scan):
        value = place.get(keyword)
        if isinstance(value, list | tuple) or type(value).__name__ == "MultiValue":
            value = value[0] if len(value) else None
        if value is not None and value != "":
            return value
    return None


def _nifti(file: Path, axis: Axis) -> Volume:
    with needs("medical", "Reading NIfTI"):
        import nibabel
    image = nibabel.load(file)
    shape = image.shape[:3]
    if len(shape) < 3 or {*image.shape[3:]} - {1} or image.get_data_dtype().kind not in "iuf":
        raise FedshiftError(
            f"The file '{file}' contains {image.get_data_dtype()} of shape {list(image.shape)}; give a volume of "
            "numbers, with three axes: split a series into its volumes."
        )
    memory.check(int(np.prod(shape)) * BYTES_PER_VALUE, f"Reading the file '{file}'", "Scale it down, or remove it.")
    stored = nibabel.orientations.io_orientation(image.affine)
    wanted = nibabel.orientations.axcodes2ornt("LPS")
    data = np.asarray(image.dataobj, np.float64).reshape(shape)
    data = nibabel.orientations.apply_orientation(data, nibabel.orientations.ornt_transform(stored, wanted))
    low, high = float(image.header["cal_min"]), float(image.header["cal_max"])
    values = {
        "axial": data.transpose(2, 1, 0),
        "coronal": data.transpose(1, 2, 0)[:, ::-1],
        "sagittal": data.transpose(0, 2, 1)[:, ::-1],
    }[axis]
    window = Window((low + high) / 2, high - low) if high > low else None
    return Volume(values, (window,) * len(values), inverted=False, limits=(float(data.min()), float(data.max())))
