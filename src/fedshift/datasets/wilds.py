"""Camelyon17 and iWildCam in the folders that the wilds package writes (Koh et al., ICML 2021).

- camelyon17: tissue patches of five hospitals (Bandi et al., IEEE TMI 2019), tumour or none. ``metadata.csv`` has the
  columns patient, node, x_coord, y_coord, tumor and center, and the patches lie in
  ``patches/patient_P_node_N/patch_patient_P_node_N_x_X_y_Y.png``.
- iwildcam: animals before camera traps (Beery et al., 2021). ``metadata.csv`` has the columns filename, y,
  location_remapped and sequence_remapped, ``categories.csv`` names the classes (y, name), the images lie in ``train/``.

Choices: all of WILDS' own splits are put together, as a protocol holds samples out. FedCiR (Sec. 6.1) takes "ten
classes of samples in ten of the cameras that have the largest data volume" because most images are background: here
background images are excluded first (``background``), the cameras are ranked by the images that remain, and the
classes by their images in those cameras; equal counts go by number. A camera's bursts are kept whole by a split
(``bursts``), as their images are nearly the same.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch

from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import ImageDataset
from fedshift.datasets.images import ImageRows
from fedshift.datasets.listing import reading
from fedshift.errors import FedshiftError
from fedshift.spec import Count, Pixels, WholeNumber, setting
from fedshift.streams import Streams

CsvRow = dict[str, str]


class Sample(NamedTuple):
    """One image of a WILDS data set: its file, its domain and class, and the burst it is of."""

    file: Path
    domain: str
    label: str
    burst: str


class Wilds(ImageDataset):
    """A data set in a folder of the wilds package."""

    wilds_name: ClassVar[str]  # its name in the wilds package
    version: ClassVar[str]  # the version in the name of the folder
    columns: ClassVar[tuple[str, ...]]  # what ``metadata.csv`` needs

    path: str = setting(help="the folder that the wilds package wrote, with metadata.csv in it", path=True)
    per_domain: WholeNumber = setting(0, help="images drawn of each domain; 0: all")

    def contents(self) -> tuple[list[Sample], tuple[str, ...]]:
        """Every image that counts, from the tables alone; and the classes' names, in the order of their labels."""
        raise NotImplementedError

    def check_here(self) -> None:
        super().check_here()
        self.root()

    def read(self, streams: Streams) -> DomainData:
        samples, classes = self.contents()
        by_domain: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            by_domain.setdefault(sample.domain, []).append(index)
        kept: list[int] = []
        for domain, indices in by_domain.items():
            order = streams.permutation(len(indices), f"{self.wilds_name} images", domain)
            kept += [indices[i] for i in order[: self.per_domain or len(indices)].tolist()]
        files, domains, labels, bursts = zip(*(samples[index] for index in sorted(kept)), strict=True)
        images = ImageRows(domains, labels, classes, lambda: ((str(file), file) for file in files))
        number = {burst: index for index, burst in enumerate(dict.fromkeys(bursts))}
        group = torch.tensor([number[burst] for burst in bursts])
        return replace(images.decoded(self.size, self.channels), group=group)

    def root(self) -> Path:
        """The folder."""
        root = Path(self.path).expanduser()
        if not (root / "metadata.csv").is_file():
            raise FedshiftError(
                f"data.path = '{self.path}' has no metadata.csv. pip install wilds, download it by\n"
                f"  python -c \"from wilds import get_dataset; get_dataset('{self.wilds_name}', download=True)\"\n"
                f"and give the folder: --set data.path=data/{self.wilds_name}_v{self.version}"
            )
        return root

    def rows(self, table: str, columns: Sequence[str]) -> list[CsvRow]:
        """The rows of a table in the folder."""
        path = self.root() / table
        with reading(f"'{path}'", "Download it again.", " as a table"), path.open(newline="", encoding="utf-8") as file:
            rows = [{name: row.get(name) or "" for name in columns} for row in csv.DictReader(file)]
        for number, row in enumerate(rows, start=2):
            if not all(row.values()):
                lacking = ", ".join(name for name in columns if not row[name])
                raise FedshiftError(f"'{path}' has no {lacking} in line {number}; download it again.")
        return rows


class Camelyon17(Wilds):
    """Tissue patches of five hospitals, with a tumour or without; a hospital is a domain (Bandi et al., 2019)."""

    wilds_name: ClassVar[str] = "camelyon17"
    version: ClassVar[str] = "1.0"
    columns: ClassVar[tuple[str, ...]] = ("patient", "node", "x_coord", "y_coord", "tumor", "center")

    size: Pixels = setting(
        96, help="height and width that images are resized to, in pixels", source="WILDS; FedCiR: 128"
    )
    per_domain: WholeNumber = setting(
        4000,
        help="images drawn of each hospital; 0: all 455,954, which take 13 GB of memory",
        source="FedCiR: not given",
    )

    def domain_names(self) -> tuple[str, ...]:
        return tuple(f"hospital{number}" for number in range(5))

    def contents(self) -> tuple[list[Sample], tuple[str, ...]]:
        """Every patch of the table, each a separate burst."""
        patches, classes = self.root() / "patches", ("normal", "tumor")
        hospital_of = {str(number): name for number, name in enumerate(self.domain_names())}
        class_of = {str(number): name for number, name in enumerate(classes)}
        samples: list[Sample] = []
        for row in self.rows("metadata.csv", self.columns):
            if row["center"] not in hospital_of or row["tumor"] not in class_of:
                raise FedshiftError(
                    f"'{self.path}/metadata.csv' has center {row['center']} and tumor {row['tumor']} in a row; center "
                    "is 0 to 4 and tumor 0 or 1."
                )
            slide = f"patient_{row['patient']}_node_{row['node']}"
            file = patches / slide / f"patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
            samples.append(Sample(file, hospital_of[row["center"]], class_of[row["tumor"]], str(file)))
        lacking = sorted(set(hospital_of.values()) - {sample.domain for sample in samples})
        if lacking:
            raise FedshiftError(f"'{self.path}/metadata.csv' has no patch of {', '.join(lacking)}; download it again.")
        return samples, classes


class IWildCam(Wilds):
    """Animals before the camera traps with most images; a camera is a domain (Beery et al., 2021)."""

    wilds_name: ClassVar[str] = "iwildcam"
    version: ClassVar[str] = "2.0"
    columns: ClassVar[tuple[str, ...]] = ("filename", "y", "location_remapped", "sequence_remapped")

    size: Pixels = setting(
        128, help="height and width that images are resized to, in pixels", source="FedCiR, Sec. 6.1"
    )
    cameras: Count = setting(10, help="cameras, those with most images", source="FedCiR, Sec. 6.1")
    classes: Count = setting(10, help="classes, those with most images in the cameras", source="FedCiR, Sec. 6.1")
    background: Literal["drop", "keep"] = setting(
        "drop", help="images of the class 'empty', before cameras are ranked", source="FedCiR, Sec. 6.1: not useful"
    )
    bursts: Literal["whole", "single"] = setting(
        "whole",
        help="whether a split keeps the images of a burst together, by the class of its first image",
    )
    missing_classes: Literal["error", "allow"] = setting(
        "allow", help="treatment of a domain without images of a class", source="FedCiR, Sec. 6.1: label skew"
    )

    def domain_names(self) -> tuple[str, ...]:
        return tuple(sorted({sample.domain for sample in self.contents()[0]}))

    def contents(self) -> tuple[list[Sample], tuple[str, ...]]:
        """Every image of a chosen class in a chosen camera."""
        images = self.root() / "train"
        names = {row["y"]: row["name"] for row in self.rows("categories.csv", ("y", "name"))}
        rows = self.rows("metadata.csv", self.columns)
        for row in rows:
            if row["y"] not in names:
                raise FedshiftError(f"'{self.path}/categories.csv' has no name of y = {row['y']}; download it again.")
        rows = [row for row in rows if self.background == "keep" or names[row["y"]] != "empty"]
        cameras = _most(rows, "location_remapped", self.cameras, "cameras")
        rows = [row for row in rows if row["location_remapped"] in cameras]
        labels = _most(rows, "y", self.classes, "classes")
        samples = [
            Sample(
                images / row["filename"],
                f"camera{row['location_remapped']:0>3}",
                names[row["y"]],
                row["sequence_remapped"] if self.bursts == "whole" else row["filename"],
            )
            for row in rows
            if row["y"] in labels
        ]
        lacking = self.cameras - len({sample.domain for sample in samples})
        if lacking:
            raise FedshiftError(
                f"{lacking} of the {self.cameras} cameras have no image of the {self.classes} most frequent classes: "
                "raise data.classes or lower data.cameras."
            )
        return samples, tuple(names[label] for label in sorted(labels, key=_in_order))


def _most(rows: Sequence[CsvRow], column: str, count: int, what: str) -> frozenset[str]:
    occurs = Counter(row[column] for row in rows)
    if len(occurs) < count:
        raise FedshiftError(f"data.{what} = {count}, but only {len(occurs)} {what} are there.")
    return frozenset(sorted(occurs, key=lambda value: (-occurs[value], _in_order(value)))[:count])


def _in_order(number: str) -> tuple[int, str]:
    return len(number), number
