"""Reading Parquet by pyarrow; a small file may contain a table that does not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift import memory
from fedshift.errors import FedshiftError, needs

SAMPLE = 1024  # rows decoded to see how long texts and lists are
COPIES = 3  # of a table: in Arrow, in pandas, and as the inputs that it becomes
MOST_COLUMNS = 100_000


def read(file: Path, columns: Sequence[str] | None = None) -> Any:
    """A file, or some of its columns, as an Arrow table with decimals as float64.

    Raises:
        MissingExtraError: pyarrow is not installed.
        FedshiftError: it has too many columns, or needs more memory than is available.
        pyarrow.ArrowException: the file is damaged.
        OSError: it cannot be read.
    """
    _check_fits(file, columns)
    table = _pyarrow().read_table(file, columns=None if columns is None else list(columns))
    for place, field in enumerate(table.schema):
        if str(field.type).startswith("decimal"):
            table = table.set_column(place, field.name, table[field.name].cast("float64"))
    table.validate(full=True)  # that text is UTF-8
    return table


def columns_of(file: Path) -> list[str]:
    return list(opened(file).schema_arrow.names)


def opened(file: Path) -> Any:
    parquet = _pyarrow().ParquetFile(file, buffer_size=1 << 20)
    check_width(file, parquet.metadata.num_columns)
    return parquet


def check_width(file: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise FedshiftError(
            f"'{file}' has {columns:,} columns, and at most {MOST_COLUMNS:,} are read: write fewer, or turn columns "
            "and rows around."
        )


def _check_fits(file: Path, columns: Sequence[str] | None) -> None:
    """Refuse a table that does not fit into memory, judged by its metadata and first rows."""
    parquet = opened(file)
    rows, groups = parquet.metadata.num_rows, range(parquet.metadata.num_row_groups)
    described = sum(
        chunk.total_uncompressed_size
        for group in map(parquet.metadata.row_group, groups)
        for chunk in map(group.column, range(group.num_columns))
        if columns is None or chunk.path_in_schema.partition(".")[0] in columns
    )
    first = next(parquet.iter_batches(SAMPLE, columns=columns), None)
    decoded = first.nbytes * rows // len(first) if first else 0
    memory.check(
        COPIES * max(described, decoded),
        f"The table '{file}' of {rows:,} rows",
        "Give fewer rows, or name fewer columns.",
    )


def _pyarrow() -> Any:
    with needs("parquet", "Reading Parquet"):
        from pyarrow import parquet
    return parquet
