"""DICOM and NIfTI: values by hand and as pydicom has them, slices, patients, what is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Make
from fedshift.clients.domains import DomainData
from fedshift.datasets.medical import Medical, Window, read_volume
from fedshift.errors import FedshiftError
from fedshift.runs.simulation import make_federated
from fedshift.streams import Streams
from refusal import refuses

pydicom = pytest.importorskip("pydicom")
nibabel = pytest.importorskip("nibabel")

from pydicom.data import get_testdata_file  # noqa: E402
from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage  # noqa: E402

RAMP = np.arange(16, dtype=np.uint16).reshape(4, 4)


def dicom(file: Path, pixels: np.ndarray, **elements: Any) -> Path:
    """A file of 16 bits, MONOCHROME2; an element that is None is excluded."""
    held = Dataset()
    held.file_meta = FileMetaDataset()
    held.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    held.file_meta.MediaStorageSOPClassUID = held.SOPClassUID = MRImageStorage
    held.file_meta.MediaStorageSOPInstanceUID = held.SOPInstanceUID = "1.2.3"
    signed = pixels.dtype.kind == "i"
    own = {"SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME2", "PixelRepresentation": int(signed)}
    own |= {"BitsAllocated": 16, "BitsStored": 16, "HighBit": 15, "Rows": pixels.shape[-2], "Columns": pixels.shape[-1]}
    if pixels.ndim == 3:
        own["NumberOfFrames"] = len(pixels)
    for name, value in (own | elements).items():
        if value is not None:
            setattr(held, name, value)
    held.PixelData = pixels.tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    held.save_as(file, enforce_file_format=True)
    return file


def nifti(file: Path, values: np.ndarray, affine: np.ndarray | None = None, **header: float) -> Path:
    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    for name, value in header.items():
        image.header[name] = value
    file.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, file)
    return file


def load(root: Path, **settings: Any) -> DomainData:
    return Medical(**{"path": str(root), "size": 4, "window": "none", **settings}).load(Streams(0))


def refusal(root: Path, **settings: Any) -> str:
    with pytest.raises(FedshiftError) as caught:
        load(root, **settings)
    return str(caught.value)


def one(root: Path, pixels: np.ndarray = RAMP, **elements: Any) -> Path:
    """A folder of a single file."""
    dicom(root / "oslo" / "ill" / "1.dcm", pixels, **elements)
    return root


# Values ------------------------------------------------------------------------------------------


def test_all_bits_are_kept(tmp_path: Path):
    """Every value of 16 bits comes through, signed or not, in the units of slope and intercept."""
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    x = load(one(tmp_path, every), size=256).x
    assert (x.dtype, tuple(x.shape)) == (torch.float32, (1, 1, 256, 256))
    assert np.array_equal(x[0, 0].numpy(), every)
    signed = load(one(tmp_path, every.astype(np.int16)), size=256).x
    assert np.array_equal(signed[0, 0].numpy(), every.astype(np.int16))
    rescaled = load(one(tmp_path, RAMP, RescaleSlope="0.5", RescaleIntercept="-1000")).x
    assert np.array_equal(rescaled[0, 0].numpy(), RAMP * 0.5 - 1000)


def test_windows_by_hand(tmp_path: Path):
    """From 5 - 8/2 = 1 to 9, or as DICOM's LINEAR has it: ((x - (5 - 0.5)) / (8 - 1)) + 0.5."""
    root = one(tmp_path, WindowCenter=["5", "40"], WindowWidth=["8", "400"])
    given_ = load(root, window="given", centre=5, width=8)
    torch.testing.assert_close(given_.x[0, 0], torch.from_numpy(np.clip((RAMP - 1.0) / 8, 0, 1)).float())
    assert "Values are 0 to 1 from 1 to 9, and cut off beyond that." in given_.notes
    own = load(root, window="file")
    torch.testing.assert_close(own.x[0, 0], torch.from_numpy(np.clip((RAMP - 4.5) / 7 + 0.5, 0, 1)).float())
    full = load(root, window="range")
    torch.testing.assert_close(full.x[0, 0], torch.from_numpy(RAMP / 15.0).float())
    exact = load(one(tmp_path, WindowCenter="5", WindowWidth="8", VOILUTFunction="LINEAR_EXACT"), window="file")
    assert torch.equal(exact.x, given_.x)


def test_monochrome1_is_inverted(tmp_path: Path):
    """Low is meant to be white: in a window 1 - y. Without one, of 12 bits the highest is 4095, and signed -1 - x."""
    invert = {"PhotometricInterpretation": "MONOCHROME1"}
    for name, elements in (("1.dcm", {}), ("2.dcm", invert)):
        dicom(tmp_path / "both" / "oslo" / "ill" / name, RAMP, **elements)
    data = load(tmp_path / "both", window="given", centre=5, width=8)
    torch.testing.assert_close(data.x[1], 1 - data.x[0])
    assert "1 of 2 files are MONOCHROME1 and were inverted." in data.notes
    scale = {"BitsStored": 12, "HighBit": 11, "RescaleSlope": "2", "RescaleIntercept": "-10"}
    x = load(one(tmp_path / "one", **invert, **scale)).x
    assert np.array_equal(x[0, 0].numpy(), 2.0 * (4095 - RAMP) - 10)
    signed = load(one(tmp_path / "one", RAMP.astype(np.int16), **invert)).x
    assert np.array_equal(signed[0, 0].numpy(), -1.0 - RAMP)


@pytest.mark.parametrize("name", ["CT_small.dcm", "MR_small.dcm", "MR_small_bigendian.dcm", "MR_small_RLE.dcm"])
def test_real_files_have_pydicoms_values(name: str):
    """Those that it ships: slope and intercept, three ways of storing the same slice."""
    file = Path(str(get_testdata_file(name)))
    held = pydicom.dcmread(file)
    volume = read_volume(file, "axial")
    assert np.array_equal(volume.values, pydicom.pixels.apply_rescale(held.pixel_array, held)[None])
    assert volume.patient == held.PatientID


def test_frames_have_slopes_and_windows_of_their_own(tmp_path: Path):
    """Enhanced files store them in groups: the slope for all frames, and for the second one another and a window."""
    shared, first, second, scale, other, window = (Dataset() for _ in range(6))
    scale.RescaleSlope, scale.RescaleIntercept = "2", "1"
    other.RescaleSlope, other.RescaleIntercept = "3", "0"
    window.WindowCenter, window.WindowWidth = "24", "48"
    shared.PixelValueTransformationSequence = [scale]
    second.PixelValueTransformationSequence, second.FrameVOILUTSequence = [other], [window]
    groups = {"SharedFunctionalGroupsSequence": [shared], "PerFrameFunctionalGroupsSequence": [first, second]}
    file = dicom(tmp_path / "1.dcm", np.stack([RAMP, RAMP]), **groups, RescaleSlope="9")
    volume = read_volume(file, "axial")
    assert np.array_equal(volume.values, np.stack([2.0 * RAMP + 1, 3.0 * RAMP]))
    assert volume.windows == (None, Window(24, 48, "LINEAR"))


# Slices and patients -----------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["axial", "coronal", "sagittal"])
@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, 1, 1), (1, -1, -1)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_slices_of_a_volume_lie_alike(
    tmp_path: Path, axis: str, flips: tuple[int, int, int], order: tuple[int, int, int]
):
    """A volume's voxels encode their place (to the right, front and head, from 0), however the file stores its axes.

    Axial rows go from front to back and columns from the patient's right to the left; coronal rows from head to feet;
    sagittal columns from front to back.
    """
    right, front, head = np.meshgrid(np.arange(4), np.arange(4), np.arange(4), indexing="ij")
    volume = (100 * right + 10 * front + head).astype(np.float32)
    affine = np.eye(4)
    for place, (axis_of_body, sign) in enumerate(zip(order, (flips[each] for each in order), strict=True)):
        affine[:3, place] = 0
        affine[axis_of_body, place] = sign
    stored = np.flip(volume, [place for place in range(3) if flips[place] < 0]).transpose(order)
    nifti(tmp_path / "oslo" / "ill" / "1.nii", stored, affine)
    slices = load(tmp_path, axis=axis).x[:, 0].numpy()
    place = {
        "axial": lambda slice, row, column: (3 - column, 3 - row, slice),
        "coronal": lambda slice, row, column: (3 - column, 3 - slice, 3 - row),
        "sagittal": lambda slice, row, column: (3 - slice, 3 - column, 3 - row),
    }[axis]
    for slice, row, column in np.ndindex(4, 4, 4):
        assert slices[slice, row, column] == volume[place(slice, row, column)]


def test_nifti_has_its_scale_and_window(tmp_path: Path):
    """Slope 2 and intercept 1 of 16 bits; the header's range of display, 1 to 31, is its window; .nii.gz is equal."""
    values = RAMP.reshape(4, 4, 1).astype(np.int16)
    image = nibabel.Nifti1Image(values, np.diag([-1.0, -1.0, 1.0, 1.0]))
    image.header.set_slope_inter(2, 1)
    image.header["cal_min"], image.header["cal_max"] = 1, 31
    for name in ("1.nii", "2.nii.gz"):
        (tmp_path / "oslo" / "ill").mkdir(parents=True, exist_ok=True)
        image.to_filename(tmp_path / "oslo" / "ill" / name)
    raw = load(tmp_path)
    assert np.array_equal(raw.x[0, 0].numpy(), 2.0 * RAMP.T + 1)
    assert torch.equal(raw.x[0], raw.x[1])
    assert raw.group.tolist() == [0, 1]
    assert "2 of 2 files name no patient; a split keeps each of these files whole." in raw.notes
    torch.testing.assert_close(load(tmp_path, window="file").x[0, 0], torch.from_numpy(RAMP.T / 15.0).float())


def test_a_patient_is_a_group_everywhere(tmp_path: Path):
    """Which a split keeps whole; where ids mean nothing, each file is one."""
    for number, patient in enumerate("pqpq"):
        place = tmp_path / ("oslo", "rome")[number // 2] / "ill"
        dicom(place / str(number), np.stack([RAMP, RAMP]), PatientID=patient)
    assert load(tmp_path).group.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert load(tmp_path, group="file").group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(load(tmp_path, slices="middle").x) == 4


@pytest.mark.parametrize("names", [("anonymous", "anonymous"), ("anon-1", "anon-2")])
def test_files_that_all_name_one_patient_at_a_site_are_refused(tmp_path: Path, names: tuple[str, str]):
    """With the patient and the setting that splits them by file; a single other patient is enough to split."""
    for (site, name), label, number in product(zip("ab", names, strict=True), ("ill", "well"), range(3)):
        place = tmp_path / site / label
        place.mkdir(parents=True, exist_ok=True)
        dicom(place / str(number), RAMP, PatientID=name)
    with refuses("12 in all", f"'{names[0]}'", f"'{names[1]}'", "PatientID", "--set data.group=file"):
        load(tmp_path)
    assert len(torch.unique(load(tmp_path, group="file").group)) == 12
    dicom(tmp_path / "a" / "ill" / "0", RAMP, PatientID="P1")
    assert len(torch.unique(load(tmp_path).group)) == len({*names, "P1"})


def test_a_split_keeps_a_patient_on_one_side(tmp_path: Path, make: Make):
    """Eight patients of three files at each of two sites; 100 times a pixel is its patient's number."""
    for number, file in product(range(16), range(3)):
        place = tmp_path / ("oslo", "rome")[number % 2] / ("ill", "well")[number // 2 % 2] / f"{number}-{file}"
        dicom(place, np.full((4, 4), 100 * number + file, np.uint16), PatientID=f"P{number}")
    data = {"name": "medical", "path": str(tmp_path), "size": 4, "window": "none"}
    federated = make_federated(make({"data": data, "protocol": {"name": "in-domain", "test": 0.25}}))
    sides = [client.train for client in federated.clients] + [each.samples for each in federated.environments]
    of_sides = [{int(pixel) // 100 for pixel in side.x[:, 0, 0, 0].tolist()} for side in sides]
    assert [len(side) for side in sides] == [3 * len(patients) for patients in of_sides]
    assert sum(map(len, of_sides)) == len(set().union(*of_sides)) == 16


def test_files_of_both_kinds_and_of_any_name(tmp_path: Path):
    """DICOM needs no suffix; deeper folders belong to the class; what is not read is reported."""
    dicom(tmp_path / "oslo" / "ill" / "study" / "IM0001", RAMP)
    dicom(tmp_path / "oslo" / "well" / "1.2.840.10008", RAMP)
    nifti(tmp_path / "rome" / "ill" / "1.nii.gz", np.zeros((4, 4, 3), np.float32))
    for name in ("rome/ill/1.json", "rome/ill/1.png", "rome/notes", "oslo/ill/.hidden.dcm"):
        (tmp_path / name).write_bytes(b"text")
    dicom(tmp_path / "rome" / "misplaced.dcm", RAMP)
    data = load(tmp_path)
    assert (data.domains, data.domain.tolist()) == (("oslo", "rome"), [0, 0, 1, 1, 1])
    assert (data.classes, data.y.tolist()) == (("ill", "well"), [0, 1, 0, 0, 0])
    assert data.notes[0] == f"Not read in '{tmp_path}': 1 .dcm, 1 .json, 1 .png, 1 without a suffix."


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR in PhotometricInterpretation"),
        ({"Rows": None}, "'Rows'"),
        ({"RescaleSlope": "0"}, "has 0 in RescaleSlope"),
        ({}, "names no window (WindowCenter and WindowWidth): --set data.window=given"),
        ({"WindowCenter": "1", "WindowWidth": "0.5"}, "0.5 in WindowWidth"),
        ({"WindowCenter": "1", "WindowWidth": "2", "VOILUTFunction": "CUBIC"}, "CUBIC in VOILUTFunction"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_tag(tmp_path: Path, elements: dict[str, Any], words: str):
    with refuses(words, str(tmp_path / "oslo" / "ill" / "1.dcm")):
        load(one(tmp_path, **elements), window="file")


def test_every_damaged_file_is_named(tmp_path: Path):
    place = one(tmp_path) / "oslo" / "ill"
    (place / "2.dcm").write_bytes((place / "1.dcm").read_bytes()[:-9])
    (place / "3.dcm").write_bytes(b"no DICOM")
    whole = nifti(place / "5.nii.gz", np.random.default_rng(0).normal(size=(9, 9, 9))).read_bytes()
    (place / "5.nii.gz").write_bytes(whole[:-200])
    nifti(place / "6.nii", np.zeros((4, 4, 3, 2), np.float32))
    nifti(place / "7.nii", np.full((4, 4, 3), np.nan, np.float32))
    damaged = [f"{file}' cannot be read (" for file in ("2.dcm", "3.dcm", "5.nii.gz")]
    with refuses(
        "5 files cannot be read:", *damaged, "6.nii' contains float32 of shape [4, 4, 3, 2]", "7.nii' contains NaN"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": "given"}, ("data.width = 0", "'given'")),
        ({"window": "file", "width": 400}, ("data.window = 'file'", "data.width = 400")),
        ({"slices": "middle", "every": 2}, ("data.every = 2", "--set data.slices=all")),
        ({"normalise": True}, ("data.normalise", "data.window", "data.channels")),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], words: tuple[str, ...]):
    with refuses(*words):
        Medical(path="x", **settings)
