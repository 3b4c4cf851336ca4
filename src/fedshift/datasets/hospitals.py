"""Two tables of real hospitals, each a file at a path: nothing is downloaded, and sites are where patients were seen.

*Heart disease* (Janosi, Steinbrunn, Pfisterer and Detrano, UCI Machine Learning Repository, 1988; CC BY 4.0): 920
patients who were referred for coronary angiography in Cleveland, Budapest, Zurich and Basel, and Long Beach. A patient
is ill where a vessel is narrowed by more than half (``num`` above 0): .46, .36, .93 and .74 of them. ``ca`` is missing
for 1, 99, 96 and 99 %, ``thal`` for 1, 90, 42 and 83 %, and Switzerland, of whose 123 patients 8 are well, measured no
cholesterol. The file is the four of UCI joined, under the first line ``hospital,age,sex,...,num``.

*OPT* (Michalowicz et al., New England Journal of Medicine, 2006): 823 pregnant women with periodontitis at four clinics
of the United States, of whom half were treated at once and half after delivery. The label is whether at visit 5 more
than 57.051 % of the sites around the teeth bleed on probing (``V5..BOP``), which is the median of the 659 women who
came to it. Inputs are what was known before: the group, and what was asked and measured at baseline.
The file is ``opt`` of R's package medicaldata as CSV, which is in Rdatasets as well.

*Choices.*

- A cholesterol or a blood pressure of 0 is what the files have for one that nobody measured: it is missing.
- Codes that are no quantity are categories (``cp``, ``restecg``, ``slope``, ``thal``).
- No input of OPT is from after the women were assigned to a group: neither the treatment's course nor other visits.
  Baseline columns that are empty for more than two women in three are left out (``BL.Diab.Type``, ``BL.Cig.Day``,
  ``BL.Drks.Day``, ``Spont.ab``, ``Induced.ab``), and so are laboratory values (bacteria, antibodies).
- The median is a constant here, as it defines the task. Women who did not come to the visit are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedshift.datasets.column_files import as_number
from fedshift.datasets.table_file import Bound, TableFile
from fedshift.spec import fixed, setting

MEDIAN_BLEEDING = 57.051  # % of sites


class _Hospitals(TableFile):
    """A table whose columns are known."""

    path: str = setting(help="the CSV or Parquet file", path=True)
    statistics: Literal["site", "pooled"] = setting(
        "pooled", help="what prepares rows: statistics of training rows of each site alone, or of all together"
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


class OPT(_Hospitals):
    """659 pregnant women at four clinics, and whether their gums bleed more than the median's at visit 5."""

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
