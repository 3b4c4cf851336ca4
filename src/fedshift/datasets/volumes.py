"""DICOM and NIfTI files as slices, in the units that the files themselves give (Hounsfield units, say).

A slice of NIfTI is turned as DICOM's usual ones lie: with the patient's right (sagittal: front) at the left, and with
the front (axial) or the head at the top. Slices of a DICOM file stay as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedshift import memory
from fedshift.datasets.labelled import Array
from fedshift.datasets.listing import is_nifti
from fedshift.errors import FedshiftError, needs

Axis = Literal["axial", "coronal", "sagittal"]
GRAY = ("MONOCHROME1", "MONOCHROME2")
BYTES_PER_VALUE = 20  # as stored, as float64, and copies
FRAMES = ("PixelValueTransformationSequence", "FrameVOILUTSequence")


class Window(NamedTuple):
    """The values that are shown from black to white.

    Attributes:
        centre: the value in the middle.
        width: the extent of the values.
        function: how values become 0 to 1, as DICOM's VOI LUT Function names it (PS3.3, C.11.2.1).
    """

    centre: float
    width: float
    function: str = "LINEAR_EXACT"

    def shown(self, values: Array) -> Array:
        """Values as 0 (black) to 1 (white)."""
        if self.function == "SIGMOID":
            steepness = np.clip(4 * (values - self.centre) / self.width, -60, 60)
            return np.asarray(1 / (1 + np.exp(-steepness)))
        if self.function == "LINEAR":  # between whole numbers, as of old
            return np.clip((values - (self.centre - 0.5)) / max(self.width - 1, 1e-9) + 0.5, 0, 1)
        return np.clip((values - self.centre) / self.width + 0.5, 0, 1)


class Volume(NamedTuple):
    """The slices of a file.

    Attributes:
        values: (slices, height, width), float64, finite, after rescale slope and intercept.
        windows: the file's own window of each slice; None where it has none.
        inverted: whether low values are meant to be white (MONOCHROME1).
        limits: the lowest and the highest value that the stored bits can have; those that occur where it is unknown.
        patient: the patient's id; empty where the file names none.
    """

    values: Array
    windows: tuple[Window | None, ...]
    inverted: bool
    limits: tuple[float, float]
    patient: str = ""


def read_volume(file: Path, axis: Axis) -> Volume:
    """The slices of a file.

    Args:
        file: DICOM, or NIfTI, whose name says so.
        axis: which slices of a NIfTI volume.

    Raises:
        FedshiftError: it cannot be read, or is none of these; the message names the file and what in it is wrong.
    """
    with _readable(file):
        volume = _nifti(file, axis) if is_nifti(file) else _dicom(file)
    if not np.isfinite(volume.values).all():
        raise FedshiftError(f"The file '{file}' holds NaN or infinity; write finite numbers, such as 0 outside.")
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
    scan.pixel_array_options(allow_excess_frames=False)  # than the file says it has
    stored = scan.pixel_array  # pydicom's errors name what is missing, and what to install to decode it
    frames = stored[None] if stored.ndim == 2 else stored
    values = frames.astype(np.float64)
    if "ModalityLUTSequence" in scan:
        values = np.asarray(pydicom.pixels.apply_modality_lut(frames, scan), np.float64)
    bits, signed = int(scan.get("BitsStored") or 16), bool(scan.get("PixelRepresentation"))
    bounds = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)
    windows, limits = [], []
    for number in range(len(frames)):
        slope = _number(file, scan, number, "RescaleSlope", 1)
        intercept = _number(file, scan, number, "RescaleIntercept", 0)
        if slope == 0:
            raise FedshiftError(f"The file '{file}' has 0 in RescaleSlope; correct it.")
        values[number] = values[number] * slope + intercept
        limits += [bound * slope + intercept for bound in bounds]
        windows.append(_window(file, scan, number))
    patient = str(scan.get("PatientID") or "").strip()
    inverted = scan.PhotometricInterpretation == "MONOCHROME1"
    return Volume(values, tuple(windows), inverted, (min(limits), max(limits)), patient)


def _window(file: Path, scan: Any, frame: int) -> Window | None:
    """The file's first window of a frame."""
    if _first(scan, frame, "WindowCenter") is None or _first(scan, frame, "WindowWidth") is None:
        return None
    width = _number(file, scan, frame, "WindowWidth", 1)
    function = str(_first(scan, frame, "VOILUTFunction") or "LINEAR")
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID") or width < (1 if function == "LINEAR" else 1e-9):
        raise FedshiftError(
            f"The file '{file}' has {width:g} in WindowWidth and {function} in VOILUTFunction, of which no window "
            "can be made; give one in its place: --set data.window=given"
        )
    return Window(_number(file, scan, frame, "WindowCenter", 0), width, function)


def _number(file: Path, scan: Any, frame: int, keyword: str, default: float) -> float:
    try:  # pydicom reads the value now, too
        value = _first(scan, frame, keyword)
        number = default if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise FedshiftError(f"The file '{file}' has no number in {keyword} ({error}); correct it.") from error
    if not np.isfinite(number):
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
    shape = image.shape
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) != 3 or image.get_data_dtype().kind not in "iuf":
        raise FedshiftError(
            f"The file '{file}' holds {image.get_data_dtype()} of shape {list(image.shape)}; give a volume of numbers, "
            "with three axes: split a series into its volumes."
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


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Name the file in whatever the libraries raise on damaged bytes."""
    try:
        yield
    except (FedshiftError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FedshiftError(f"The file '{file}' cannot be read ({reason}). Replace or remove it.") from error
