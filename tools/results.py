"""Write what the results pages generate: the benchmark's tables as CSV, the papers' tables, the methods that differ.

    python tools/results.py              write the files and the generated parts of pages
    python tools/results.py --check      list those that are out of date, with exit code 1
    python tools/results.py --add FILE   first add the cells of a benchmark.csv of scale short to the published ones

Every number comes from ``src/fedshift/study/data/benchmark/published/short.csv``, which the package contains. A
generated part of a page stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from fedshift.manifest import write_file
from fedshift.reporting.table import Table
from fedshift.study.benchmark import Benchmark
from fedshift.study.benchmark_plan import BASE, plan_benchmark
from fedshift.study.papers import exhibits
from fedshift.study.records import LACKING

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PUBLISHED = ROOT / "src" / "fedshift" / "study" / "data" / "benchmark" / "published" / "short.csv"
FILES = {  # the title of a table of the benchmark starts with the words on the left
    "Accuracy in %": "short-accuracy",
    "Accuracy minus": "short-differences",
    "Seconds": "short-cost",
    "Chosen settings": "short-settings",
}
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def contents() -> dict[Path, str]:
    """The text of every generated file and of every page with a generated part."""
    done = Benchmark.published()
    tables = [*done.tables(), *done.more_tables()]
    files = {}
    for start, name in FILES.items():
        (table,) = (each for each in tables if each.title.startswith(start))
        files[DOCS / "benchmark" / f"{name}.csv"] = table.csv()
    files[DOCS / "benchmark" / "short-papers.csv"] = beside_papers(tables).csv()
    files[DOCS / "reproduce.csv"] = of_papers().csv()
    parts = {"clear": clear(done), "plateau": plateau(tables)}
    for page in (DOCS / "which-method.md", DOCS / "benchmark" / "short.md"):
        text = page.read_text(encoding="utf-8")
        files[page] = PART.sub(lambda found: f"{found[1]}{parts[found[2]]}\n{found[3]}", text)
    return files


def clear(done: Benchmark) -> str:
    """For each federation, the methods whose interval of the difference to FedAvg excludes 0, as Markdown."""
    lines = ["| federation | rows | FedAvg | above FedAvg | below FedAvg |", "|---|---|---|---|---|"]
    methods = [name for name in done.mean_ranks() if name != BASE and name not in done.null_rows]
    for scenario in done.columns:
        found = {name: its for name in methods if (its := done.difference(scenario.name, name)) and its.clear}
        ordered = sorted(found.items(), key=lambda item: -item[1].mean)
        base = done.mean(scenario.name, BASE, "accuracy")
        assert base is not None
        cells = (
            "<br>".join(
                f"`{name}`{done.label(name).removeprefix(name)} {its}"
                for name, its in ordered
                if (its.mean > 0) == above
            )
            or "-"
            for above in (True, False)
        )
        count = sum(done.difference(scenario.name, name) is not None for name in methods)
        lines.append(f"| {scenario.title} | {count} | {base.text()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plateau(tables: list[Table]) -> str:
    """What FedAvg gained in the last third, as Markdown."""
    (table,) = (each for each in tables if each.title.startswith("What"))
    rows = [" | ".join(row) for row in (table.columns, ["---"] * 2, *table.rows)]
    return "\n".join(f"| {row} |" for row in rows)


def beside_papers(tables: list[Table]) -> Table:
    """The papers' rows beside ours, of all federations in one table."""
    columns = ["comparison", "method", "ours", "paper", "ours, worst", "paper, worst"]
    rows = [
        [table.title.partition(". ")[0], *row, *["-"] * (5 - len(row))]
        for table in tables
        if " compared with " in table.title
        for row in table.rows
    ]
    return Table("The papers' rows beside ours", columns, rows)


def of_papers() -> Table:
    """Every table and figure of the papers, with its data or why it is not reproduced."""
    columns, rows = ["table", "what it shows", "data, or why it is not reproduced"], []
    for name, exhibit in exhibits().items():
        data = "; ".join(scenario.title for scenario in exhibit.scenarios) or f"not reproduced: {exhibit.why}"
        rows.append([name, exhibit.what, data])
    return Table("The papers' tables and figures", columns, rows)


def cells_of(text: str) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The lines of a CSV file of the benchmark, by federation and row."""
    cells: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in csv.DictReader(StringIO(text)):
        cells.setdefault((line["scenario"], line["row"]), []).append(line)
    return cells


def merged(known: str, new: str) -> str:
    """The published cells with new ones, which replace those of the same federation and row, in the benchmark's order.

    Raises a ValueError for a federation or row that the benchmark lacks, and for missing seeds.
    """
    plan = plan_benchmark("short")
    federations, rows = [each.name for each in plan.scenarios], {row.name for row in plan.rows}
    added = cells_of(new)
    for (federation, row), lines in added.items():
        if federation not in federations or row not in rows:
            raise ValueError(f"{federation}, {row}: no cell of the benchmark; a method must be in the catalogue.")
        seeds = {int(line["seed"]) for line in lines if line["column"] == "accuracy" and line["seed"]}
        if seeds != set(plan.scale.seeds) and not LACKING.keys() & {line["column"] for line in lines}:
            raise ValueError(f"{federation}, {row}: seeds {sorted(seeds)} instead of {list(plan.scale.seeds)}.")
    cells = cells_of(known) | added
    out = StringIO()
    writer = csv.DictWriter(out, known.splitlines()[0].split(","), lineterminator="\n")
    writer.writeheader()
    for cell in sorted(cells, key=lambda cell: (federations.index(cell[0]), cell[1])):
        writer.writerows(cells[cell])
    return out.getvalue()


def outdated() -> Iterator[Path]:
    """The generated files that differ from what this tool writes."""
    for path, text in contents().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield path


def main() -> None:
    """Write or check the files, or add cells."""
    if sys.argv[1:] == ["--check"]:
        wrong = [str(path.relative_to(ROOT)) for path in outdated()]
        sys.exit("\n".join(["Out of date; run python tools/results.py:", *wrong]) if wrong else 0)
    if sys.argv[1:2] == ["--add"]:
        if len(sys.argv) != 3:
            sys.exit("Give the file: python tools/results.py --add benchmark.csv")
        known, new = (Path(file).read_text(encoding="utf-8") for file in (PUBLISHED, sys.argv[2]))
        try:
            text = merged(known, new)
        except ValueError as error:
            sys.exit(f"Nothing was added. {error}")
        write_file(PUBLISHED, text.encode())
    for path, text in contents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
