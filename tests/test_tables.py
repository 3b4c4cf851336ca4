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
from fedshift.datasets import DATASETS
from fedshift.datasets import cells as cells_module
from fedshift.datasets.cells import MOST_COLUMNS
from fedshift.datasets.image_tables import ParquetSource
from fedshift.datasets.sklearn_tables import MEDIAN_PROGRESSION, BreastCancer, Diabetes
from fedshift.datasets.table_file import MOST_CATEGORIES, TableFile
from fedshift.datasets.wilds import read_csv
from fedshift.errors import FedshiftError
from fedshift.federation.checks import check_data
from fedshift.federation.domains import DomainData
from fedshift.federation.preparation import UNSEEN, Column
from fedshift.runs.progress import Progress
from fedshift.settings.experiment import Experiment
from fedshift.simulation.simulation import make_federation
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


def test_columns_that_are_chosen_in_their_order(tmp_path: Path):
    data = read(table(tmp_path / "x.csv", MIXED, columns=["zip", "sex"]))
    assert data.columns == (Column("zip"), Column("sex", ("f", "m")))
    assert cells(data) == [[20, 0], [3, -99], [-99, 1]]


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
    assert "The column 'a' of" in message
    assert "holds 'NA' (str) in row 0, but the number 1 in row 1" in message
    assert "--set data.missing='NA'" in message
    data = read(table(tmp_path / "x.csv", text, missing=["", "NA", "?"]))
    assert cells(data) == [[-99, -99], [1, 0]]


@pytest.mark.parametrize(
    "values", [("1,5", "2"), ("1.234,5", "7,0"), ("10%", "5 %"), ("1 000", "2 000"), ("12:30", "1:05")]
)
def test_numbers_and_times_of_another_notation_are_no_categories(tmp_path: Path, values: tuple[str, str]):
    text = "a,label\n" + "".join(
        f'"{value}",{label}\n' for value, label in zip((*values, values[0]), "xyx", strict=True)
    )
    if values == ("1,5", "2"):
        assert "holds '1,5' (str) in row 0, but the number 2 in row 1" in refusal(table(tmp_path / "x.csv", text))
        return
    message = refusal(table(tmp_path / "x.csv", text))
    assert f"The column 'a' of '{tmp_path / 'x.csv'}' holds" in message
    assert f"{values[0]!r} (str) in row 0" in message
    data = read(table(tmp_path / "x.csv", text, categories=["a"]))
    assert data.columns[0].categories == tuple(sorted(values))


@pytest.mark.parametrize(
    "dates",
    [
        ["02 Jan 2020", "2 March 2021"],
        ["Jan 2, 2020", "September 30th, 2021"],
        ["Thu, 02 Jan 2020 10:30:00 GMT", "Fri, 03 Jan 2020 10:30:00 GMT"],
        ["02JAN2020", "3dec2021"],
        ["2-Jan-20", "30-SEP-21"],
        ["2. Januar 2020", "3. März 2021"],
        ["Jan-20", "May 2021"],
        ["10:30 pm", "1:05 AM"],
        ["2020-01-31", "2020-02-01", "unknown"],
        ["unknown", "2 Jan 2020", "3 Jan 2020"],
    ],
    ids=str,
)
def test_dates_in_words_are_no_categories(tmp_path: Path, dates: list[str]):
    """Nor are they where a few cells hold something else; they are taken as what they are called to be."""
    text = "a,label\n" + "".join(f'"{date}",{label}\n' for date, label in zip(dates, "xyx", strict=False))
    first = next(date for date in dates if date != "unknown")
    said = f"holds the date or time {first!r} (str) in row {dates.index(first)}, which is neither"
    assert said in refusal(table(tmp_path / "x.csv", text))
    assert read(table(tmp_path / "x.csv", text, categories=["a"])).columns[0].categories == tuple(sorted(dates))


@pytest.mark.parametrize(
    "words",
    [
        ["marker 01", "marker 02"],
        ["may", "june"],
        ["decile 10", "decile 20"],
        ["1:40", "1:80", "1:160"],
        ["T1 2020", "T2 2020"],
        ["Mark 12, 2020", "Jane 12, 2020"],
        ["2020-01-31", "unknown", "never"],
    ],
    ids=str,
)
def test_words_that_resemble_dates_are_categories(tmp_path: Path, words: list[str]):
    text = "a,label\n" + "".join(f'"{word}",{label}\n' for word, label in zip(words, "xyx", strict=False))
    assert read(table(tmp_path / "x.csv", text)).columns[0].categories == tuple(sorted(words))


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


def test_a_parquet_number_is_no_text_of_csv(tmp_path: Path):
    """Its type says that 11 is a number, so a site 01 beside it is a mistake in one of the two."""
    columns = {"a": [1, 2], "site": [11, 12], "label": ["x", "y"]}
    pq.write_table(pa.table(columns), tmp_path / "1.parquet")
    with refuses("domain", "number 11", "text '01'"):
        sites_of(tmp_path, "01|02")


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
    pq.write_table(pa.table(columns | {"label": decimals("10", str(2**63), "10")}), tmp_path / "x.parquet")
    with refuses("'label'", f"{2**63}", "as text"):
        read(TableFile(path=str(tmp_path / "x.parquet"), domain="site"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label,a,b\nx,1,2\ny,3\n", "The row in line 3 of '{}' has 2 values, and there are 3 columns"),
        ('label,a\n"x\nz",1\ny,3,5\n', "The row in line 4 of '{}' has 3 values, and there are 2 columns"),
        ("label,a\nx,1,2\ny,3,4\n", "The row in line 2 of '{}' has 3 values, and there are 2 columns"),
        ('label,"a\nb"\nx,1\ny,3\n', "The name of the column 'a\\nb' of '{}' holds control characters"),
    ],
)
def test_lines_that_are_no_rows_are_named(tmp_path: Path, text: str, words: str):
    assert words.format(tmp_path / "x.csv") in refusal(table(tmp_path / "x.csv", text))


def test_nan_in_csv_stands_for_nothing_where_that_is_said(tmp_path: Path):
    text = "a,label\n1,x\nnan,y\n,x\n"
    message = refusal(table(tmp_path / "x.csv", text, statistics="site"))
    assert "holds 'nan' (str) in row 1, but the number 1 in row 0" in message
    data = read(table(tmp_path / "x.csv", text, statistics="site", missing=["", "nan"]))
    assert cells(data) == [[1], [-99], [-99]]
    assert "Columns with missing cells (how many), which are filled in: 'a' (2)." in data.notes


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
    notes = [f"Columns of '{file}' with missing cells (how many), which are filled in as in training: 'a' (1)."]
    unknown = (
        f"The column 'a' of '{file}' holds categories that the model does not know in 1 rows, the first '8' in row 1; "
        f"they count as none of those that it knows: {', '.join(known)}."
    )
    assert list(found.notes[1:]) == [*notes, *([unknown] if "07" in known else [])]


def test_files_may_write_the_numbers_of_a_category_beside_text(tmp_path: Path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "berlin.csv").write_text("a,label\n01,x\n02,y\n")
    (tmp_path / "all" / "oslo.csv").write_text("a,label\n01,x\nnone,y\n")
    data = read(TableFile(path=str(tmp_path / "all"), statistics="site", categories=("a",)))
    assert data.columns[0].categories == ("01", "02", "none")
    assert cells(data) == [[0], [1], [0], [2]]


def test_a_file_that_lacks_the_classes_with_letters(tmp_path: Path):
    """Its classes alone would be numbers; where another file has other names, numbers are refused as before."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "berlin.csv").write_text("a,label\n1,2\n2,10\n")
    (tmp_path / "all" / "oslo.csv").write_text("a,label\n1,2b\n2,2\n3,10\n")
    data = read(TableFile(path=str(tmp_path / "all")))
    assert data.classes == ("10", "2", "2b")
    assert data.y.tolist() == [1, 0, 2, 1, 0]
    (tmp_path / "all" / "oslo.csv").write_text("a,label\n1,ill\n2,2\n")
    assert "The class is the number 10 in row 1 of" in refusal(TableFile(path=str(tmp_path / "all")))


def test_an_empty_line_of_a_single_column_is_a_cell(tmp_path: Path):
    dataset = table(tmp_path / "x.csv", "a,label\n1,x\n2,y\n", statistics="site")
    file = tmp_path / "new.csv"
    file.write_text("a\n1\n\n3\n")
    assert dataset.samples(file, read(dataset).columns).x.nan_to_num(-9).tolist() == [[1], [-9], [3]]


def test_files_of_sites_agree_on_what_a_column_is(tmp_path: Path):
    table(tmp_path / "oslo.csv", "a,b,label\n,,x\n,,y\n")
    table(tmp_path / "rome.csv", "b,a,label\nu,1,x\n7,2,y\n")
    data = TableFile(path=str(tmp_path), statistics="pooled", categories=["b"])
    assert read(data).columns == (Column("a"), Column("b", ("7", "u")))
    assert "holds 'u' (str) in row 0, but the number 7 in row 1" in refusal(
        TableFile(path=str(tmp_path), statistics="pooled")
    )


def test_today_s_tables_are_read_as_before(tmp_path: Path):
    data = read(table(tmp_path / "x.csv", "a,b,label\n1,2,x\n3,4,y\n", statistics="none"))
    assert (data.x.dtype, data.x.tolist(), data.notes) == (torch.float32, [[1, 2], [3, 4]], ())
    assert data.columns == (Column("a"), Column("b"))


@pytest.mark.parametrize("text", ["a,label\n1,x\n,y\n", "a,label\nu,x\nv,y\n", "a,label\nTrue,x\nFalse,y\n"])
def test_without_statistics_the_error_says_which_setting_to_choose(tmp_path: Path, text: str):
    assert "--set data.statistics=site (or pooled)" in refusal(table(tmp_path / "x.csv", text, statistics="none"))


def test_whole_numbers_that_a_float_rounds_are_said(tmp_path: Path):
    text = f"a,b,label\n{2**24 + 1},1,x\n2,{2**53 + 1},y\n"
    (note,) = read(table(tmp_path / "x.csv", text, statistics="none")).notes
    assert (
        note == "Columns with numbers of 16,777,216 or more, where not every whole number is kept as it is: 'a', 'b'."
    )
    (note,) = read(table(tmp_path / "x.csv", text)).notes
    assert note.endswith("kept as it is: 'b'.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,label\n1,x\ninf,y\n", ["column 'a' of", "holds inf in row 1"]),
        ("a,label\n1,x\n-1e39,y\n", ["column 'a' of", "holds -1e+39 in row 1"]),
        ("a,label\n1,x\nhigh,y\n", ["column 'a' of", "holds 'high' (str) in row 1", "data.categories=a"]),
        (
            "a,label\n2020-01-31,x\n2021-12-01,y\n",
            ["column 'a' of", "the date or time '2020-01-31' (str) in row 0", "days since"],
        ),
        ("a,label\n,x\n3.1.2020 12:30,y\n", ["the date or time '3.1.2020 12:30' (str) in row 1"]),
        ("a,label\nF,x\nf,y\n", ["category of the column 'a'", "differ only in case"]),
        ("a,label\n1,x\n2,\n", ["column 'label' of", "holds nothing in row 1"]),
    ],
)
def test_cells_that_cannot_be_used_are_named(tmp_path: Path, text: str, words: list[str]):
    message = refusal(table(tmp_path / "mine.csv", text))
    assert [word for word in ["mine.csv", *words] if word not in message] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([1, 2], pa.timestamp("ns")), ["the date", "(Timestamp) in row 0", "days since"]),
        (pa.array([b"u", b"v"]), ["(bytes) in row 0", "text or numbers"]),
        (pa.array([[1], [2]]), ["(ndarray) in row 0"]),
    ],
    ids=["timestamp", "bytes", "list"],
)
def test_types_of_parquet_that_cannot_be_used_are_named(tmp_path: Path, values: Any, words: list[str]):
    pq.write_table(pa.table({"a": values, "label": ["x", "y"]}), tmp_path / "mine.parquet")
    message = refusal(TableFile(path=str(tmp_path / "mine.parquet"), statistics="pooled"))
    assert [word for word in ["mine.parquet", "'a'", *words] if word not in message] == []


def test_a_column_that_names_its_rows_is_no_input(tmp_path: Path):
    count = MOST_CATEGORIES + 1
    lines = [f"patient {number},{'xy'[number % 2]}" for number in range(count)]
    assert f"has {count} categories" in refusal(table(tmp_path / "x.csv", "\n".join(["id,label", *lines])))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"impute": "median", "statistics": "pooled"}, ("data.impute = 'median'", "--set data.impute=mean")),
        ({"categories": ["a"], "statistics": "none"}, ("data.statistics = 'none'", "data.categories")),
        ({"columns": ["a"], "categories": ["b"]}, ("data.categories", "'b'")),
        ({"statistics": "all"}, ("data.statistics = 'all'",)),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, given: dict[str, Any], words: tuple[str, ...]):
    with refuses(*words):
        TableFile(**{"path": str(tmp_path), "statistics": "site", **given})


def test_categories_that_name_no_column(tmp_path: Path):
    assert "Unknown column in data.categories 'sexe'" in refusal(table(tmp_path / "x.csv", MIXED, categories=["sexe"]))


def test_rows_that_semicolons_separate(tmp_path: Path):
    dataset = table(tmp_path / "x.csv", "a,b,label\n1,2,x\n2,1,y\n")
    file = tmp_path / "new.csv"
    file.write_text("a;b\n1,5;2\n")
    with refuses("column", "'a'", "commas"):
        dataset.rows(file, read(dataset).columns)


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
    assert make_federation(asked).inputs.preparation is not None
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


def test_a_file_of_too_many_columns_is_refused_by_its_first_line(tmp_path: Path):
    """Also one that nothing else of the file can be read of."""
    header = ",".join([*(f"c{number}" for number in range(200_000)), "label"])
    dataset = table(tmp_path / "wide.csv", f"{header}\n1\n")
    with refuses("200,001 columns", f"{MOST_COLUMNS:,}", "wide.csv"):
        read(dataset)
    with refuses("200,001 columns"):
        read_csv(tmp_path / "wide.csv", ("c1",))


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cells_module, "LONGEST_LINE", 20)
    assert len(read(table(tmp_path / "fine.csv", "a,b,label\n1,2,x\n3,4,y\n")).y) == 2
    with refuses("Line 3", "line break", "20"):
        read(table(tmp_path / "long.csv", f"a,b,label\n1,2,x\n3,{'4' * 20},y\n"))
    with refuses("Line 1", "line break"):
        read(table(tmp_path / "long.csv", f"a,b,{'c' * 20},label\n1,2,3,x\n"))


def test_wide_tables_are_read_and_a_mistyped_column_is_one_short_error(tmp_path: Path):
    names = [f"gene{number}" for number in range(3000)]
    text = "\n".join([",".join([*names, "label"]), *(",".join(["1"] * 3000 + [name]) for name in "xy")])
    assert read(table(tmp_path / "genes.csv", text)).x.shape == (2, 3000)
    with refuses("'lable'", "and 2,801 more") as caught:
        read(table(tmp_path / "genes.csv", text, label="lable"))
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    "column", [np.zeros(200_000), np.zeros(200_000, np.int64), ["x" * 200] * 10_000, [[0.0] * 50] * 10_000]
)
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


def test_images_of_more_rows_than_the_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "bomb.parquet"
    count = 100_000
    columns = {"image": [b""] * count, "domain": ["a"] * count, "label": ["x"] * count}
    pq.write_table(pa.table(columns), file)
    monkeypatch.setattr(memory, "available", lambda: 30_000_000)
    with refuses("bomb.parquet", "100,000 rows", "MB", "fewer rows"):
        ParquetSource(str(file)).parts()
