"""Reading tables: what a column is, what a cell holds, and what is said of it; and the two that scikit-learn ships."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fedshift
from fedshift import memory, parquet
from fedshift.clients.checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.clients.preparation import UNSEEN, Column
from fedshift.datasets import DATASETS
from fedshift.datasets.sklearn_tables import MEDIAN_PROGRESSION, BreastCancer, Diabetes
from fedshift.datasets.table_file import TableFile
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.runs.events import Progress
from fedshift.runs.simulation import make_federated
from fedshift.streams import Streams
from refusal import refuses

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
NAN = float("nan")


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
    columns = {
        "a": [1.5, None, -0.0, 2.0],
        "b": ["u", "v", None, "u"],
        "c": [True, None, False, True],
        "big": [2**40, 2**40 + 1, 0, 1],
        "label": ["x", "y", "x", "y"],
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    pd.read_parquet(tmp_path / "x.parquet").to_csv(tmp_path / "x.csv", index=False)
    one, other = (read(TableFile(path=str(tmp_path / f"x.{kind}"), statistics="site")) for kind in ("parquet", "csv"))
    assert torch.equal(one.x.nan_to_num(-99).view(torch.int64), other.x.nan_to_num(-99).view(torch.int64))
    assert (one.columns, one.notes) == (other.columns, other.notes)
    assert one.x[1, 3] - one.x[0, 3] == 1


def test_what_stands_for_nothing_is_said(tmp_path: Path):
    text = "a,b,label\nNA,?,x\n1,u,y\n"
    message = refusal(table(tmp_path / "x.csv", text))
    assert all(word in message for word in ("'a'", "'NA' (str) in row 0", "number 1 in row 1", "data.missing='NA'"))
    data = read(table(tmp_path / "x.csv", text, missing=["", "NA", "?"]))
    assert cells(data) == [[-99, -99], [1, 0]]


@pytest.mark.parametrize(
    "values",
    [
        ("1.234,5", "7,0"),
        ("10%", "5 %"),
        ("1 000", "2 000"),
        ("12:30", "1:05"),
        ("2020-01-31", "2020-02-01T10:30"),
        ("31.1.2020", "1/2/20"),
    ],
)
def test_numbers_dates_and_times_of_another_notation_are_no_categories(tmp_path: Path, values: tuple[str, str]):
    text = "a,label\n" + "".join(
        f'"{value}",{label}\n' for value, label in zip((*values, values[0]), "xyx", strict=True)
    )
    with refuses("'a'", "x.csv", repr(values[0]), "row 0", "data.categories=a"):
        read(table(tmp_path / "x.csv", text))
    data = read(table(tmp_path / "x.csv", text, categories=["a"]))
    assert data.columns[0].categories == tuple(sorted(values))


def sites_of(tmp_path: Path, *files: str) -> list[tuple[str, ...]]:
    """The names of sites, and the site of each row, of CSV files with the column ``site``."""
    for number, sites in enumerate(files):
        rows = "".join(f"{row},{site},{'xy'[row % 2]}\n" for row, site in enumerate(sites.split("|")))
        (tmp_path / f"{number}.csv").write_text(f"a,site,label\n{rows}")
    dataset = TableFile(path=str(tmp_path), domain="site")
    data = dataset.load(Streams(0))
    assert dataset.domain_names() == data.domains
    return [data.domains, tuple(data.domains[number] for number in data.domain)]


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("10|9|11", ("9", "10", "11")),
        ("1.0|2.0|2.0", ("1", "2")),
        ("01|02|10|1", ("01", "02", "1", "10")),
        ("1.1|1.10|1.2", ("1.1", "1.10", "1.2")),
        ("1e3|2|3", ("1e3", "2", "3")),
        ("0x1|1|2", ("0x1", "1", "2")),
        ("+1|1|2", ("+1", "1", "2")),
        ("1.5|1|2", ("1", "1.5", "2")),
        ("12345678901234567|12345678901234568|1", ("1", "12345678901234567", "12345678901234568")),
    ],
)
def test_a_site_is_called_as_it_is_written(tmp_path: Path, written: str, names: tuple[str, ...]):
    """Usual numbers stay numbers, in their order and with 1.0 for 1; any other way to write one is text, for all."""
    found, rows = sites_of(tmp_path, written)
    assert found == names
    if "1.0" not in written.split("|"):
        assert rows == tuple(written.split("|"))


def test_sites_are_called_alike_in_all_files(tmp_path: Path):
    """10 and 11 of the second file are numbers there, and text beside the 01 of the first; 10 is the same site."""
    names, rows = sites_of(tmp_path, "01|02|10", "10|11|12")
    assert names == ("01", "02", "10", "11", "12")
    assert rows == ("01", "02", "10", "10", "11", "12")


def decimals(*values: str) -> Any:
    return pa.array(map(Decimal, values), pa.decimal128(38, 1))


def test_decimals_of_parquet_are_names(tmp_path: Path):
    """As labels where they are whole, in the order of their size; as sites whatever they are."""
    columns = {"a": [1, 2, 3], "site": decimals("1.5", "10", "2"), "label": decimals("10", "9.0", "10")}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    data = read(TableFile(path=str(tmp_path / "x.parquet"), domain="site"))
    assert data.classes == ("9", "10")
    assert data.y.tolist() == [1, 0, 1]
    assert data.domains == ("1.5", "2", "10")
    pq.write_table(pa.table(columns | {"label": decimals("10", "9.5", "10")}), tmp_path / "x.parquet")
    said = ("'label'", "9.5", "row 1", "whole number")
    with refuses(*said):
        read(TableFile(path=str(tmp_path / "x.parquet"), domain="site"))


def test_truth_is_read_as_it_is_written(tmp_path: Path):
    for file, word in (("x.csv", "true"), ("y.csv", "TRUE")):
        data = read(table(tmp_path / file, f"a,label\n{word},{word}\nfalse,false\n", statistics="site"))
        assert data.columns[0].categories == tuple(sorted(("false", word)))
        assert data.classes == tuple(sorted(("false", word)))


@pytest.mark.parametrize("trained", ["a\n07\n08\nx\n", "a\n7\n8\n9\n"])
def test_the_category_of_a_cell_does_not_hang_on_the_cells_beside_it(tmp_path: Path, trained: str):
    """As text "07" is a category of its own, where all are numbers it is 7; alone in a file, too."""
    labels = ("label", "x", "y", "x")
    lines = "".join(f"{line},{label}\n" for line, label in zip(trained.split(), labels, strict=True))
    dataset = table(tmp_path / "x.csv", lines, statistics="site", categories=["a"])
    columns = read(dataset).columns
    file = tmp_path / "new.csv"
    file.write_text("a,other\n07,1\n8,1\n,1\n")
    found = dataset.samples(file, columns)
    known = columns[0].categories or ()
    assert found.x[0, 0] == known.index("07" if "07" in known else "7")
    assert found.x[1, 0] == (known.index("8") if "8" in known else -1)
    assert len(found.notes) == (3 if "07" in known else 2)  # columns that are not looked at, missing, and unknown


def test_a_file_that_lacks_the_classes_with_letters(tmp_path: Path):
    """Its classes alone would be numbers; where another file has other names, numbers are refused as before."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "berlin.csv").write_text("a,label\n1,2\n2,10\n")
    (tmp_path / "all" / "oslo.csv").write_text("a,label\n1,2b\n2,2\n3,10\n")
    data = read(TableFile(path=str(tmp_path / "all")))
    assert data.classes == ("10", "2", "2b")
    assert data.y.tolist() == [1, 0, 2, 1, 0]
    (tmp_path / "all" / "oslo.csv").write_text("a,label\n1,ill\n2,2\n")
    assert "The class is the number 10 in one file" in refusal(TableFile(path=str(tmp_path / "all")))


def test_files_of_sites_agree_on_what_a_column_is(tmp_path: Path):
    table(tmp_path / "oslo.csv", "a,b,label\n,,x\n,,y\n")
    table(tmp_path / "rome.csv", "b,a,label\nu,1,x\n7,2,y\n")
    data = TableFile(path=str(tmp_path), statistics="pooled", categories=["b"])
    assert read(data).columns == (Column("a"), Column("b", ("7", "u")))
    assert "holds 'u' (str) in row 0, but the number 7 in row 1" in refusal(
        TableFile(path=str(tmp_path), statistics="pooled")
    )


@pytest.mark.parametrize("text", ["a,label\n1,x\n,y\n", "a,label\nu,x\nv,y\n", "a,label\nTrue,x\nFalse,y\n"])
def test_without_statistics_the_error_says_which_setting_to_choose(tmp_path: Path, text: str):
    assert "--set data.statistics=site (or pooled)" in refusal(table(tmp_path / "x.csv", text, statistics="none"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,label\n1,x\n,y\n", ["'a'", "nothing in row 1"]),
        ("a,label\n1,x\nhigh,y\n", ["'a'", "'high' (str) in row 1"]),
        ("a,label\n1,x\n1_0,y\n", ["'1_0' (str) in row 1"]),
        ("a,label\n1,x\n1e39,y\n", ["x holds inf at [0] of row 1", "float32"]),
        ("a,label\n1,x\ninf,y\n", ["x holds inf at [0] of row 1"]),
        ("a,label\n1,x\n2,\n", ["'label'", "nothing in row 1"]),
        ("a,label\n1,0\n2,0.5\n", ["'label'", "0.5 in row 1", "whole number"]),
        ("a,label\n1,x\n2,X\n", ["'X'", "'x'", "differ only in case"]),
        ("a,Label\n1,x\n", ["(data.label)", "Did you mean", "--set data.label=COLUMN"]),
        ("a;label\n1;x\n", ["Separate columns by commas"]),
        ("a,a,label\n1,2,x\n", ["two columns 'a'"]),
        (",a,label\n0,2,x\n", ["column without a name", "index=False"]),
        ("label\nx\ny\n", ["no column of inputs beside label"]),
        ("a,label\n1,x,9\n2,y,9\n", ["cannot be read"]),
        ("a,label\n1,x\n2,y,9\n", ["cannot be read", "line 3"]),
        ('a,label\n1,"x\n', ["cannot be read"]),
        ("a,label\n", ["has no row"]),
        ("", ["is empty"]),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, text: str, words: list[str]):
    with refuses("mine.csv", *words):
        read(table(tmp_path / "mine.csv", text, statistics="none"))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [1.0, None]}, ["'a'", "nothing in row 1"]),
        ({"label": ["x", None]}, ["'label'", "row 1"]),
        ({"a": [[1], [2]]}, ["'a'", "(ndarray) in row 0"]),
        ({"a": pa.array([1, 2], pa.timestamp("ns"))}, ["'a'", "(Timestamp) in row 0"]),
        ({"a": [1, 2], "__index_level_0__": [0, 1]}, ["__index_level_0__", "index=False"]),
        ({"label": [b"x", b"y"]}, ["'label'", "(bytes) in row 0"]),
    ],
    ids=range(6),
)
def test_parquet_that_cannot_be_used_is_named(tmp_path: Path, columns: dict[str, Any], words: list[str]):
    pq.write_table(pa.table({"a": [1, 2], "label": ["x", "y"]} | columns), tmp_path / "mine.parquet")
    with refuses("mine.parquet", *words):
        read(TableFile(path=str(tmp_path / "mine.parquet")))


def test_other_text_than_utf_8_and_no_parquet(tmp_path: Path):
    (tmp_path / "x.csv").write_bytes("a,label\n1,größer\n".encode("latin-1"))
    with refuses("x.csv", "\\xf6", "UTF-8"):
        read(TableFile(path=str(tmp_path / "x.csv")))
    (tmp_path / "x.parquet").write_bytes(b"none")
    with refuses("x.parquet", "cannot be read as a table"):
        read(TableFile(path=str(tmp_path / "x.parquet")))


def test_a_folder_of_tables(tmp_path: Path):
    table(tmp_path / "rome.csv", "b,label,a\n1,x,2\n3,y,4\n")
    pq.write_table(pa.table({"a": [6.0], "b": [5.0], "label": ["x"]}), tmp_path / "oslo.parquet")
    (tmp_path / "notes.txt").write_text("")
    dataset = TableFile(path=str(tmp_path))
    assert dataset.domain_names() == ("oslo", "rome")
    data = read(dataset)
    assert (data.x.dtype, data.x.tolist(), data.domain.tolist()) == (torch.float32, [[6, 5], [2, 1], [4, 3]], [0, 1, 1])
    assert data.notes == (f"Not read in '{tmp_path}': 1 .txt.",)
    table(tmp_path / "berlin.csv", "a,c,label\n1,2,x\n")
    with refuses("column of inputs", "'c'"):
        read(dataset)
    table(tmp_path / "oslo.csv", "a,b,label\n1,2,x\n")
    with refuses("would be one domain", "'oslo'"):
        read(dataset)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"impute": "median", "statistics": "pooled"}, ("data.impute = 'median'", "--set data.impute=mean")),
        ({"categories": ["a"], "statistics": "none"}, ("data.statistics = 'none'", "data.categories")),
        ({"columns": ["a"], "categories": ["b"]}, ("data.categories", "'b'")),
        ({"domain": "label"}, ("data.label", "each column once")),
        ({"columns": ["a", "a"]}, ("'a', 'a'", "each column once")),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, given: dict[str, Any], words: tuple[str, ...]):
    with refuses(*words):
        TableFile(**{"path": str(tmp_path), "statistics": "site", **given})


def test_rows_of_a_file_without_a_label(tmp_path: Path):
    dataset = table(tmp_path / "x.csv", MIXED, categories=["zip"])
    columns = read(dataset).columns
    (tmp_path / "new.csv").write_text("zip,age,sex,smoker\n3,1,x,\n,,m,True\n", encoding="utf-8")
    rows = dataset.rows(tmp_path / "new.csv", columns)
    assert rows.nan_to_num(-99).tolist() == [[1, UNSEEN, -99, 0], [-99, 1, 1, -99]]
    (tmp_path / "new.csv").write_text("zip,age,sex\n3,1,x\n", encoding="utf-8")
    with refuses("column", "'smoker'"):
        dataset.rows(tmp_path / "new.csv", columns)


# What scikit-learn ships -------------------------------------------------------------------------


def test_diabetes_is_in_age_bands():
    data = Diabetes().load(Streams(0))
    sites = torch.bincount(data.domain).tolist()
    assert (data.domains, sites) == (("under 43", "43 to 55", "56 and over"), [147, 152, 143])
    age = data.x[:, [column.name for column in data.columns].index("age")]
    assert [(float(age[data.domain == n].min()), float(age[data.domain == n].max())) for n in range(3)] == [
        (19, 42),
        (43, 55),
        (56, 79),
    ]
    from sklearn.datasets import load_diabetes

    target = load_diabetes(scaled=False).target
    assert np.median(target) == MEDIAN_PROGRESSION
    assert data.y.tolist() == (target > MEDIAN_PROGRESSION).tolist()
    assert data.columns[1] == Column("sex", ("1", "2"))
    plain = Diabetes(statistics="none").load(Streams(0))
    assert (plain.x.dtype, plain.columns[1]) == (torch.float32, Column("sex"))


def test_breast_cancer_is_in_thirds_by_texture():
    data = BreastCancer().load(Streams(0))
    assert torch.bincount(data.domain).tolist() == [190, 185, 194]
    assert len(data.columns) == 27
    assert not [column.name for column in data.columns if "texture" in column.name]
    benign = [float((data.y[data.domain == n] == 1).double().mean()) for n in range(3)]
    assert [round(100 * share) for share in benign] == [89, 63, 37]


@pytest.mark.parametrize("name", ["diabetes", "breast-cancer"])
def test_the_experiments_that_ship_train_better_than_chance(name: str, tmp_path: Path):
    asked = fedshift.experiment(name, seed=0, method="fedavg", out=str(tmp_path), settings={"run.engine": "sequential"})
    assert isinstance(asked, Experiment)
    assert type(asked.data) is DATASETS.get(name).cls
    assert make_federated(asked).inputs.preparation is not None
    run = fedshift.run(asked, progress=Progress())
    tested = [row["accuracy"] for row in run.records[-1]["environments"] if row["role"] == "test"]
    assert min(tested) > 0.6


# The page ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["missing", "shipped"])
def test_the_examples_of_the_page_run(marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (code,) = re.findall(rf"<!-- {marker} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    original = fedshift.run

    def run(*source: str, settings: dict[str, Any] | None = None, **options: Any) -> fedshift.Run:
        here = {**(settings or {}), "run.engine": "sequential", "run.threads": 1}
        return original(*source, **options, settings=here, progress=Progress())

    monkeypatch.setattr(fedshift, "run", run)
    names: dict[str, Any] = {}
    exec(compile(code, "tables.md", "exec"), names)  # the point of the test
    assert names["run"].finished


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
