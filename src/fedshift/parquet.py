"""Reading Parquet, of which a small file may hold a large table: one that does not fit into memory is refused first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift import memory
from fedshift.errors import needs

SAMPLE = 1024  # rows that are decoded to see how long texts and lists are
COPIES = 3  # of a table: in Arrow, in pandas, and as the inputs that it becomes


def read(file: Path, columns: Sequence[str] | None = None) -> Any:
    """A file, or some of its columns, as a table of Arrow.

    Raises:
        FedshiftError: it takes more memory than there is, or pyarrow is not installed.
        pyarrow.ArrowException: the file is damaged, say.
        OSError: it cannot be read.
    """
    check_fits(file, columns)
    return _pyarrow().read_table(file, columns=None if columns is None else list(columns))


def rows(file: Path) -> int:
    """How many rows a file says it has."""
    return int(_pyarrow().read_metadata(file).num_rows)


def columns_of(file: Path) -> list[str]:
    """The names of a file's columns, in order."""
    return list(_pyarrow().read_schema(file).names)


def check_fits(file: Path, columns: Sequence[str] | None = None) -> None:
    """Refuse a table that does not fit into memory, by its number of rows and the size of the first ones.

    Raises:
        FedshiftError: it takes more memory than there is.
    """
    with _pyarrow().ParquetFile(file) as opened:
        rows, groups = opened.metadata.num_rows, range(opened.metadata.num_row_groups)
        said = sum(
            chunk.total_uncompressed_size
            for group in map(opened.metadata.row_group, groups)
            for chunk in map(group.column, range(group.num_columns))
            if columns is None or chunk.path_in_schema.partition(".")[0] in columns
        )
        first = next(opened.iter_batches(SAMPLE, columns=columns), None)
    decoded = 0 if first is None or not len(first) else first.nbytes * rows // len(first)
    memory.check(
        COPIES * max(said, decoded), f"The table '{file}' of {rows:,} rows", "Give fewer rows, or name fewer columns."
    )


def _pyarrow() -> Any:
    """The module ``pyarrow.parquet``.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needs("parquet", "Reading Parquet"):
        from pyarrow import parquet
    return parquet
