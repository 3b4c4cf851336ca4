"""Reading tables: columns, cells and notes on them; and the two tables that scikit-learn ships."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedshift import memory, parquet
from fedshift.clients.data_checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.clients.preparation import UNSEEN, Column
from fedshift.datasets.sklearn_tables import BreastCancer, Diabetes
from fedshift.datasets.table_file import TableFile
from fedshift.errors import FedshiftError
from fedshift.streams import Streams
from refusal import refuses


def table(path: Path, text: str, **settings: Any) -> TableFile:
    path.write_text(text, encoding="utf-8")
    return TableFile(**{"path": str(path), "statistics": "site", **settings})


def read(dataset: TableFile) -> DomainData:
    data = dataset.load(Streams(0))
    check_data(data, dataset.inputs())
    return data


def refusal(dataset: TableFile) -> str:
    with pytest.raises(FedshiftError) as caught:
        read(dataset)
    return str(caught.value)


def cells(data: DomainData) -> list[list[float]]:
    """Rows with -99 for what is missing, which equals itself."""
    return data.x.nan_to_num(-99).tolist()


MIXED = "age,sex,smoker,zip,label\n,f,True,20,x\n2,,False,3,y\n3.5,m,True,,x\n"


def test_numbers_text_truth_and_numbers_that_are_categories(tmp_path: Path):
    data = read(table(tmp_path / "x.csv", MIXED, categories=["zip"]))
    assert data.columns == (
        Column("age"),
        Column("sex", ("f", "m")),
        Column("smoker", ("False", "True")),
        Column("zip", ("3", "20")),
    )
    assert data.x.dtype == torch.float64
    assert cells(data) == [[-99, 0, 1, 1], [2, -99, 0, 0], [3.5, 1, 1, -99]]
    assert data.notes == (
        "Columns read as categories (how many): 'sex' (2), 'smoker' (2), 'zip' (2).",
        "Columns with missing cells (how many), which are filled in: 'age' (1), 'sex' (1), 'zip' (1).",
    )


def test_parquet_and_csv_give_the_same_bits(tmp_path: Path):
    columns = {"a": [1.5, None, -0.0, 2.0], "b": ["u", "v", None, "u"], "c": [True, None, False, True]}
    columns |= {"big": [2**40, 2**40 + 1, 0, 1], "label": ["x", "y", "x", "y"]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    pd.read_parquet(tmp_path / "x.parquet").to_csv(tmp_path / "x.csv", index=False)
    one, other = (read(TableFile(path=str(tmp_path / f"x.{kind}"), statistics="site")) for kind in ("parquet", "csv"))
    assert torch.equal(one.x.nan_to_num(-99).view(torch.int64), other.x.nan_to_num(-99).view(torch.int64))
    assert (one.columns, one.notes) == (other.columns, other.notes)
    assert one.x[1, 3] - one.x[0, 3] == 1


def test_what_stands_for_nothing_is_said(tmp_path: Path):
    text = "a,b,label\nNA,?,x\n1,u,y\n"
    with refuses("'a'", "'NA' (str) in row 0", "number 1 in row 1", "data.missing='NA'"):
        read(table(tmp_path / "x.csv", text))
    data = read(table(tmp_path / "x.csv", text, missing=["", "NA", "?"]))
    assert cells(data) == [[-99, -99], [1, 0]]


def test_excluded_columns_are_not_read(tmp_path: Path):
    """Neither as inputs nor as categories, whatever stands in them; they have to be there."""
    text = "age,id,when,label\n1,P1,3.4.2020,x\n2,P2,,y\n"
    left_out = ["id", "when"]
    for more in ({}, {"columns": ["id", "age"]}, {"categories": ["id"]}):
        dataset = table(tmp_path / "x.csv", text, exclude=left_out, **more)
        data = read(dataset)
        assert data.columns == (Column("age"),)
        assert data.x.equal(dataset.rows(tmp_path / "x.csv", data.columns))
        assert cells(data) == [[1], [2]]
    with refuses("'idd'", "Did you mean 'id'?", "data.exclude"):
        read(table(tmp_path / "x.csv", text, exclude=["idd", "when"]))
    with refuses("label", "each column once"):
        table(tmp_path / "x.csv", text, exclude=["label"])
    with refuses("data.exclude=when"):
        read(table(tmp_path / "x.csv", text, exclude=["id"]))


@pytest.mark.parametrize("values", [("1.234,5", "7,0"), ("12:30", "1:05"), ("31.1.2020", "1/2/20"), ("10 %", "20 %")])
def test_numbers_dates_and_times_of_another_notation_are_no_categories(tmp_path: Path, values: tuple[str, str]):
    one, other = values
    text = f'a,label\n"{one}",x\n"{other}",y\n"{one}",x\n'
    with refuses("'a'", "x.csv", repr(one), "row 0", "data.categories=a"):
        read(table(tmp_path / "x.csv", text))
    data = read(table(tmp_path / "x.csv", text, categories=["a"]))
    assert data.columns[0].categories == tuple(sorted(values))


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("10|9|11", ("9", "10", "11")),
        ("1.0|2.0|2.0", ("1", "2")),
        ("01|02|10|1", ("01", "02", "1", "10")),
        ("1.1|1.10|1.2", ("1.1", "1.10", "1.2")),
        ("12345678901234567|12345678901234568|1", ("1", "12345678901234567", "12345678901234568")),
    ],
)
def test_a_site_is_called_as_it_is_written(tmp_path: Path, written: str, names: tuple[str, ...]):
    """Usual numbers stay numbers, in their order and with 1.0 for 1; any other way to write one is text, for all."""
    rows = "".join(f"{row},{site},{'xy'[row % 2]}\n" for row, site in enumerate(written.split("|")))
    dataset = table(tmp_path / "x.csv", f"a,site,label\n{rows}", domain="site")
    data = dataset.load(Streams(0))
    assert dataset.domain_names() == data.domains == names
    assert [data.domains[number] for number in data.domain] == [
        {"1.0": "1", "2.0": "2"}.get(site, site) for site in written.split("|")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,label\n1,x\n,y\n", ["'a'", "empty in row 1", "--set data.statistics=site (or pooled)"]),
        ("a,label\n1,x\nhigh,y\n", ["'a'", "'high' (str) in row 1"]),
        ("a,label\n1,x\n1e39,y\n", ["x contains inf at [0] of row 1", "float32"]),
        ("a,label\n1,x\n2,\n", ["'label'", "empty in row 1"]),
        ("a,label\n1,0\n2,0.5\n", ["'label'", "0.5 in row 1", "whole number"]),
        ("a,label\n1,x\n2,X\n", ["'X'", "'x'", "differ only in case"]),
        ("a,Label\n1,x\n", ["(data.label)", "Did you mean", "--set data.label=COLUMN"]),
        ("a;label\n1;x\n", ["--set 'data.sep=;'"]),
        ("a\tlabel\n1\tx\n", ["--set 'data.sep=tab'"]),
        ("a\n1\n", ["Separate columns by ','", "data.sep"]),
        (",a,label\n0,2,x\n", ["column without a name", "index=False"]),
        ("label\nx\ny\n", ["no column of inputs beside label"]),
        ("a,label\n1,x\n2,y,9\n", ["cannot be read", "line 3"]),
        ("a,label\n", ["has no row"]),
        ("", ["is empty"]),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, text: str, words: list[str]):
    with refuses("mine.csv", *words):
        read(table(tmp_path / "mine.csv", text, statistics="none"))


def test_other_text_than_utf_8_and_no_parquet(tmp_path: Path):
    for name, content, words in (
        ("x.csv", "a,label\n1,größer\n", ("0xF6", "\\xf6", "UTF-8", "--set data.encoding=cp1252")),
        ("x.parquet", "none", ("read",)),
    ):
        (tmp_path / name).write_bytes(content.encode("latin-1"))
        with refuses(name, *words):
            read(TableFile(path=str(tmp_path / name)))


@pytest.mark.parametrize(("sep", "given"), [(";", ";"), ("\t", "tab"), ("\t", r"\t"), ("|", "|")])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_other_separators_and_encodings_give_the_same_samples(tmp_path: Path, sep: str, given: str, encoding: str):
    """The same as of commas in UTF-8, as the data set reads it and as a file to predict for."""
    text = "größe,ort,label,clinic\n1.5,Köln,weiß,Zürich\n2,Ulm,rot,Basel\n"
    expected = read(table(tmp_path / "x.csv", text, domain="clinic"))
    (tmp_path / "y.csv").write_bytes(text.replace(",", sep).encode(encoding))
    dataset = TableFile(path=str(tmp_path / "y.csv"), statistics="site", domain="clinic", sep=given, encoding=encoding)
    found = read(dataset)
    assert (found.columns, found.classes, found.domains) == (expected.columns, ("rot", "weiß"), ("Basel", "Zürich"))
    assert torch.equal(found.x, expected.x)
    assert torch.equal(dataset.rows(tmp_path / "y.csv", found.columns), expected.x)
    assert "label, clinic" in dataset.samples(tmp_path / "y.csv", found.columns).notes[0]


def test_a_file_in_another_encoding_than_is_said(tmp_path: Path):
    (tmp_path / "x.csv").write_bytes("a,label\n1,größer\n".encode("utf-16"))
    with refuses("x.csv", "0xFF", "UTF-8", "data.encoding=utf-16"):
        read(TableFile(path=str(tmp_path / "x.csv")))
    table(tmp_path / "x.csv", "a,label\n1,x\n")
    with refuses("x.csv", "no utf-16", "data.encoding"):
        read(TableFile(path=str(tmp_path / "x.csv"), encoding="utf-16"))
    for encoding in ("utf-9", "base64", "\0"):
        with refuses("data.encoding = ", "cp1252"):
            TableFile(path="x.csv", encoding=encoding)
    for sep in ("", ";;", '"', "\n", "a"):
        with refuses("data.sep = ", "';'"):
            TableFile(path="x.csv", sep=sep)


DATES = "seen,born,label\n1970-01-02,2000-02-28,x\n1969-12-31T06:00,,y\n2000-03-01 00:00+02:00,2000-03-01,x\n"


@pytest.mark.parametrize("statistics", ["none", "site"])
def test_dates_are_days_since_1970(tmp_path: Path, statistics: str):
    """1970-01-02 is day 1; 18 hours before the end of 1969 are 0.75 days before 1970.

    From 1970 to 2000 there are 30 years of 365 days and 7 leap days (72, 76, ..., 96), 10,957 in all. 2000 is a leap
    year: 28 February is 31 + 27 days later, 1 March two days after that. Its midnight two hours east of Greenwich is
    1/12 day before that in UTC.
    """
    text = DATES if statistics == "site" else DATES.replace("T06:00,", "T06:00,1970-01-01")
    data = read(table(tmp_path / "x.csv", text, statistics=statistics, dates=["seen", "born"]))
    lacking = -99 if statistics == "site" else 0
    assert cells(data) == [[1, 11015], [-0.75, lacking], [pytest.approx(11017 - 1 / 12), 11017]]
    assert "Dates read as days since 1970-01-01: 'seen', 'born'." in data.notes
    if statistics == "site":
        assert data.columns == (Column("seen"), Column("born"))


def test_dates_of_parquet(tmp_path: Path):
    days = pd.to_datetime(["1970-01-11 00:00", None, "1970-01-01 12:00"])
    columns = {"day": [date(1970, 1, 11), None, date(1970, 1, 1)], "time": days, "far": days.tz_localize("Asia/Tokyo")}
    pq.write_table(pa.table({**columns, "label": ["x", "y", "x"]}), tmp_path / "x.parquet")
    dataset = TableFile(path=str(tmp_path / "x.parquet"), statistics="site", dates=["day", "time", "far"])
    assert cells(read(dataset)) == [[10, 10, 10 - 0.375], [-99] * 3, [0, 0.5, 0.125]]  # Tokyo is nine hours ahead
    with refuses("'day'", "row 0", "data.dates=day"):
        read(TableFile(path=str(tmp_path / "x.parquet"), statistics="site"))


@pytest.mark.parametrize("cell", ["31.1.2020", "1/2/20", "20200131", "2020-13-01", "2020-02-30", "2020-1-2", "12"])
def test_a_date_that_can_be_read_in_two_ways_is_refused(tmp_path: Path, cell: str):
    with refuses("'seen'", "(data.dates)", cell, "row 1", "2020-01-31"):
        read(table(tmp_path / "x.csv", f"seen,label\n2020-01-02,x\n{cell},y\n", dates=["seen"]))


def test_a_column_of_dates_has_to_be_named(tmp_path: Path):
    text = "seen,label\n2020-01-02,x\n2020-01-03,y\n"
    for statistics in ("none", "site"):
        with refuses("'seen'", "data.dates="):
            read(table(tmp_path / "x.csv", text, statistics=statistics))
    with refuses("'seem'", "data.dates", "Did you mean 'seen'"):
        read(table(tmp_path / "x.csv", text, dates=["seem"]))
    with refuses("'seen'", "data.categories", "data.dates"):
        table(tmp_path / "x.csv", text, dates=["seen"], categories=["seen"])


def test_a_folder_of_tables(tmp_path: Path):
    """A site a file; all agree on what a column is."""
    table(tmp_path / "rome.csv", "b,label,a\n1,x,2\n3,y,4\n")
    pq.write_table(pa.table({"a": [6.0], "b": [5.0], "label": ["x"]}), tmp_path / "oslo.parquet")
    dataset = TableFile(path=str(tmp_path))
    assert dataset.domain_names() == ("oslo", "rome")
    data = read(dataset)
    assert (data.x.dtype, data.x.tolist(), data.domain.tolist()) == (torch.float32, [[6, 5], [2, 1], [4, 3]], [0, 1, 1])
    table(tmp_path / "berlin.csv", "a,b,label\n,u,x\n")
    categories = TableFile(path=str(tmp_path), statistics="pooled", categories=["b"])
    assert read(categories).columns == (Column("a"), Column("b", ("1", "3", "5", "u")))
    with refuses("'u' (str) in row 0", "the number"):
        read(TableFile(path=str(tmp_path), statistics="pooled"))
    table(tmp_path / "berlin.csv", "a,c,label\n1,2,x\n")
    with refuses("column of inputs", "'c'"):
        read(dataset)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"impute": "median", "statistics": "pooled"}, ("data.impute = 'median'", "--set data.impute=mean")),
        ({"categories": ["a"], "statistics": "none"}, ("data.statistics = 'none'", "data.categories")),
        ({"domain": "label"}, ("data.label", "each column once")),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, given: dict[str, Any], words: tuple[str, ...]):
    with refuses(*words):
        TableFile(**{"path": str(tmp_path), "statistics": "site", **given})


def test_rows_of_a_file_without_a_label(tmp_path: Path):
    dataset = table(tmp_path / "x.csv", MIXED, categories=["zip"])
    (tmp_path / "new.csv").write_text("zip,age,sex,smoker\n3,1,x,\n,,m,True\n", encoding="utf-8")
    rows = dataset.rows(tmp_path / "new.csv", read(dataset).columns)
    assert rows.nan_to_num(-99).tolist() == [[1, UNSEEN, -99, 0], [-99, 1, 1, -99]]


def test_a_label_that_is_a_number_makes_two_classes(tmp_path: Path):
    """The second class is above the bound, even where the first row is; a row without a label keeps others' numbers."""
    text = "a,num\n1,9\n2,\n3,-1\n4,10\n"
    with refuses("'num'", "empty in row 1", "data.unlabelled=left-out"):
        read(table(tmp_path / "x.csv", text, label="num", label_above=9))
    data = read(table(tmp_path / "x.csv", text, label="num", label_above=9, unlabelled="left-out"))
    assert (data.classes, data.y.tolist(), cells(data)) == (("num <= 9", "num > 9"), [0, 0, 1], [[1], [3], [4]])
    assert [data.where(row).split(" of")[0] for row in range(3)] == ["row 0", "row 2", "row 3"]
    data = read(table(tmp_path / "x.csv", text, label="num", unlabelled="left-out"))
    assert (data.classes, data.y.tolist()) == (("-1", "9", "10"), [1, 0, 2])


# What scikit-learn ships -------------------------------------------------------------------------


def test_diabetes_is_in_age_bands():
    from sklearn.datasets import load_diabetes

    data, plain = (Diabetes(statistics=each).load(Streams(0)) for each in ("site", "none"))
    sites = torch.bincount(data.domain).tolist()
    assert (data.domains, sites) == (("under 43", "43 to 55", "56 and over"), [147, 152, 143])
    age = data.x[:, [column.name for column in data.columns].index("age")]
    bands = [(float(age[data.domain == n].min()), float(age[data.domain == n].max())) for n in range(3)]
    assert bands == [(19, 42), (43, 55), (56, 79)]
    target = load_diabetes(scaled=False).target
    assert data.y.tolist() == (target > np.median(target)).tolist()
    assert (data.columns[1], plain.x.dtype, plain.columns[1]) == (
        Column("sex", ("1", "2")),
        torch.float32,
        Column("sex"),
    )


def test_breast_cancer_is_in_thirds_by_texture():
    data = BreastCancer().load(Streams(0))
    assert torch.bincount(data.domain).tolist() == [190, 185, 194]
    assert len(data.columns) == 27
    assert not [column.name for column in data.columns if "texture" in column.name]
    benign = [float((data.y[data.domain == n] == 1).double().mean()) for n in range(3)]
    assert [round(100 * share) for share in benign] == [89, 63, 37]


# What is too large ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_too_many_columns_is_refused_by_its_first_line(tmp_path: Path, monkeypatch: Any, kind: str):
    monkeypatch.setattr(parquet, "MOST_COLUMNS", 3)
    file = tmp_path / f"wide.{kind}"
    if kind == "csv":
        file.write_text("a,b,c,label\n1,2\n")
    else:
        pq.write_table(pa.table({name: [1] for name in ("a", "b", "c", "label")}), file)
    with refuses(f"wide.{kind}", "4 columns", "at most 3"):
        read(TableFile(path=str(file)))


@pytest.mark.parametrize("column", [np.zeros(200_000), ["x" * 200] * 10_000, [[0.0] * 50] * 10_000], ids=range(3))
def test_parquet_that_decodes_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: Any
):
    """A few kilobytes on the disk, some megabytes in memory."""
    file = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"a": column, "label": ["x"] * len(column)}), file)
    assert file.stat().st_size < 100_000
    monkeypatch.setattr(memory, "available", lambda: 3_000_000)
    with refuses("bomb.parquet", f"{len(column):,} rows", "MB", "fewer rows"):
        read(TableFile(path=str(file)))
    monkeypatch.setattr(memory, "available", lambda: 30_000_000)
    assert parquet.read(file, ["a"]).num_rows == len(column)


def test_a_label_above_a_number_makes_two_classes_of_a_file_or_a_folder(tmp_path: Path):
    """At most the number, and more; a label that is not a number is named with what can be done."""
    text = "a,num\n1,0\n2,2\n3,1\n"
    data = read(table(tmp_path / "x.csv", text, label="num", label_above=0))
    assert (data.classes, data.y.tolist()) == (("num <= 0", "num > 0"), [0, 1, 1])
    for name, rows in (("Oslo", "1,0.5\n2,3\n"), ("Rome", "1,1.5\n2,1.6\n")):
        folder = tmp_path / "sites"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.csv").write_text(f"a,num\n{rows}", encoding="utf-8")
    data = read(TableFile(path=str(folder), label="num", label_above=1.5))
    assert (data.domains, data.classes) == (("Oslo", "Rome"), ("num <= 1.5", "num > 1.5"))
    assert data.y.tolist() == [0, 1, 0, 1]
    with refuses("'num'", "'mild' (str) in row 1", "data.label_above = 0", "each text is a class"):
        read(table(tmp_path / "x.csv", text.replace("2,2", "2,mild"), label="num", label_above=0))
    with refuses("'num'", "empty in row 1", "data.unlabelled=left-out"):
        read(table(tmp_path / "x.csv", text.replace("2,2", "2,"), label="num", label_above=0))
