"""DICOM and NIfTI files as slices, in the units that the files themselves give (Hounsfield units, say).

A slice of NIfTI is turned as DICOM's usual ones lie: with the patient's right (sagittal: front) at the left, and with
the front (axial) or the head at the top. Slices of a DICOM file stay as they are stored.
"""

from __future__ import annotations

import gzip
import logging
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedshift import memory
from fedshift.datasets.labelled import Array
from fedshift.errors import FedshiftError, needs

Axis = Literal["axial", "coronal", "sagittal"]
GRAY = ("MONOCHROME1", "MONOCHROME2")
BYTES_PER_VALUE = 20  # as stored, as float64, and copies
FRAMES = {"PixelValueTransformationSequence", "FrameVOILUTSequence"}


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
        warned: what the library that read it warns of.
    """

    values: Array
    windows: tuple[Window | None, ...]
    inverted: bool
    limits: tuple[float, float]
    patient: str = ""
    warned: tuple[str, ...] = ()


def read_volume(file: Path, axis: Axis) -> Volume:
    """The slices of a file.

    Args:
        file: DICOM, or NIfTI, whose name says so.
        axis: which slices of a NIfTI volume.

    Raises:
        FedshiftError: it cannot be read, or is none of these; the message names the file and what in it is wrong.
    """
    with _heard() as caught:
        nifti = file.name.lower().endswith((".nii", ".nii.gz"))
        volume = _nifti(file, axis) if nifti else _dicom(file)
    finite = np.isfinite(volume.values)
    if not finite.all():
        place = np.argwhere(~finite)[0].tolist()
        raise FedshiftError(
            f"The file '{file}' holds {volume.values[tuple(place)]} at {place[1:]} of slice {place[0]}, and "
            f"{(~finite).sum() - 1} more such; write finite numbers, such as 0 outside of the body."
        )
    return volume._replace(warned=tuple(dict.fromkeys(_line(str(each.message)) for each in caught)))


def _dicom(file: Path) -> Volume:
    with needs("medical", "Reading DICOM"):
        import pydicom
    with _readable(file):  # values are read from their bytes when they are asked for
        held = pydicom.dcmread(file)
        _check_pixels(file, held)
        stored = _decoded(file, held)
        frames = stored[None] if stored.ndim == 2 else stored
        values = frames.astype(np.float64)
        if "ModalityLUTSequence" in held:
            values = np.asarray(pydicom.pixels.apply_modality_lut(frames, held), np.float64)
        windows, limits = [], []
        for number in range(len(frames)):
            slope = _number(file, held, number, "RescaleSlope", 1)
            intercept = _number(file, held, number, "RescaleIntercept", 0)
            if slope == 0:
                raise FedshiftError(f"The file '{file}' has the rescale slope 0 {_tag('RescaleSlope')}; correct it.")
            values[number] = values[number] * slope + intercept
            limits += [bound * slope + intercept for bound in _bounds(held)]
            windows.append(_window(file, held, number))
        patient = str(held.get("PatientID") or "").strip()
        inverted = held.PhotometricInterpretation == "MONOCHROME1"
    return Volume(values, tuple(windows), inverted, (min(limits), max(limits)), patient)


def _check_pixels(file: Path, held: Any) -> None:
    """There are pixels of one gray channel, and they fit into memory.

    Raises:
        FedshiftError: there are none; the message names the tag.
    """
    if not any(name in held for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise FedshiftError(f"The file '{file}' holds no pixels {_tag('PixelData')}; remove it, or export the image.")
    if not held.get("PhotometricInterpretation"):
        raise FedshiftError(f"The file '{file}' lacks {_tag('PhotometricInterpretation')}; export it again.")
    if held.PhotometricInterpretation not in GRAY:
        raise FedshiftError(
            f"The file '{file}' is {held.PhotometricInterpretation} {_tag('PhotometricInterpretation')}, and the data "
            f"set 'medical' reads {' and '.join(GRAY)}; export colour images as PNG for the data set 'folder'."
        )
    sides = {"Rows": 0, "Columns": 0, "NumberOfFrames": 1}
    sizes = [_number(file, held, 0, name, default) for name, default in sides.items()]
    for name, size in zip(sides, sizes, strict=True):
        if size < 1 or size != int(size):
            raise FedshiftError(f"The file '{file}' has {size:g} in {_tag(name)}; export it again.")
    memory.check(int(np.prod(sizes)) * BYTES_PER_VALUE, f"Reading the file '{file}'", "Split it, or remove it.")


def _decoded(file: Path, held: Any) -> Array:
    """The pixels as stored, (height, width) or (frames, height, width).

    Raises:
        FedshiftError: they are compressed as nothing here can decode; the message says what to install.
    """
    from pydicom.pixels import get_decoder

    syntax = getattr(held, "file_meta", {}).get("TransferSyntaxUID")
    if syntax is None:
        raise FedshiftError(f"The file '{file}' lacks {_tag('TransferSyntaxUID')}; export it again.")
    try:
        decoder = get_decoder(syntax)
        lacking = "" if decoder.is_available else "; ".join(decoder.missing_dependencies)
    except NotImplementedError:
        lacking = "pydicom knows no decoder of it"
    if not lacking:
        try:
            held.pixel_array_options(allow_excess_frames=False)  # than the file says it has
            pixels: Array = held.pixel_array
        except Exception as error:  # decoders raise nearly anything
            if not syntax.is_compressed:
                raise
            lacking = str(error).strip()
        else:
            return pixels
    raise FedshiftError(
        f"The pixels of '{file}' are compressed as {syntax.name} {_tag('TransferSyntaxUID')}, and cannot be decoded "
        f"here ({_line(lacking)}): pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, or export the file "
        "uncompressed."
    )


def _bounds(held: Any) -> tuple[float, float]:
    """The lowest and the highest value that can be stored."""
    bits = int(held.get("BitsStored") or 16)
    return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if held.get("PixelRepresentation") else (0.0, 2.0**bits - 1)


def _window(file: Path, held: Any, frame: int) -> Window | None:
    """The file's first window of a frame."""
    if _found(held, frame, "WindowCenter") is None or _found(held, frame, "WindowWidth") is None:
        return None
    width = _number(file, held, frame, "WindowWidth", 1)
    function = str(_found(held, frame, "VOILUTFunction") or "LINEAR")
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise FedshiftError(f"The file '{file}' has the unknown function {function} {_tag('VOILUTFunction')}.")
    if width < (1 if function == "LINEAR" else 1e-9):
        raise FedshiftError(
            f"The file '{file}' has a window of width {width:g} {_tag('WindowWidth')}; give one in its place: "
            "--set data.window=given"
        )
    return Window(_number(file, held, frame, "WindowCenter", 0), width, function)


def _number(file: Path, held: Any, frame: int, keyword: str, default: float) -> float:
    try:  # pydicom reads the value now, too
        found = _found(held, frame, keyword)
        number = default if found is None else float(found)
    except (TypeError, ValueError) as error:
        raise FedshiftError(f"The file '{file}' has no number in {_tag(keyword)} ({error}); correct it.") from error
    if not np.isfinite(number):
        raise FedshiftError(f"The file '{file}' has {number} in {_tag(keyword)}; write a finite number.")
    return number


def _found(held: Any, frame: int, keyword: str) -> Any:
    """The first value of an element: the frame's own, that of all frames, or the file's; None: there is none."""
    shared, own = held.get("SharedFunctionalGroupsSequence"), held.get("PerFrameFunctionalGroupsSequence")
    groups = [*(own[frame : frame + 1] if own else []), *(shared[:1] if shared else [])]
    places = [place for group in groups for name in FRAMES for place in (group.get(name) or [])[:1]]
    for place in (*places, held):
        value = place.get(keyword)
        several = isinstance(value, list | tuple) or type(value).__name__ == "MultiValue"
        if several and len(value):
            return value[0]
        if value is not None and value != "" and not several:
            return value
    return None


def _tag(keyword: str) -> str:
    """An element as errors name it: its number and name."""
    from pydicom.datadict import dictionary_description, tag_for_keyword

    tag = tag_for_keyword(keyword)
    assert tag is not None  # since it is in the dictionary
    return f"({tag >> 16:04X},{tag & 0xFFFF:04X}) {dictionary_description(tag)}"


def _nifti(file: Path, axis: Axis) -> Volume:
    with needs("medical", "Reading NIfTI"):
        import nibabel
    with _readable(file):
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
    with _readable(file):
        stored = nibabel.orientations.io_orientation(image.affine)
        if np.isnan(stored).any():
            raise FedshiftError(f"The file '{file}' has an affine that places no axis in the body; correct its header.")
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
def _heard() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of what is read; pydicom also logs them, so that they would be said twice."""
    log = logging.getLogger("pydicom")
    silent, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        log.disabled = silent


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Names the file in whatever goes wrong: the libraries raise nearly anything on damaged bytes."""
    try:
        yield
    except FedshiftError:
        raise
    except Exception as error:
        damaged = isinstance(error, EOFError | zlib.error | gzip.BadGzipFile)
        other = type(error).__name__ in ("InvalidDicomError", "ImageFileError")  # whose words are for programmers
        reason = "it does not begin as such files do" if other else _line(str(error)) or type(error).__name__
        reason = "it is cut off or damaged" if damaged else reason
        raise FedshiftError(f"The file '{file}' cannot be read ({reason}). Replace or remove it.") from error


def _line(text: str) -> str:
    """A library's words in a line."""
    return " ".join(text.split())
