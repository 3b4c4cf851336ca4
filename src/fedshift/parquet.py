"""Reading Parquet by pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.errors import needs


def read(file: Path, columns: Sequence[str] | None = None) -> Any:
    """A file, or some of its columns, as a table of Arrow, with decimals as float64.

    Raises:
        MissingExtraError: pyarrow is not installed.
        pyarrow.ArrowException: the file is damaged, say.
        OSError: it cannot be read.
    """
    table = _pyarrow().read_table(file, columns=None if columns is None else list(columns))
    for place, field in enumerate(table.schema):
        if str(field.type).startswith("decimal"):
            table = table.set_column(place, field.name, table[field.name].cast("float64"))
    table.validate(full=True)  # that text is UTF-8
    return table


def columns_of(file: Path) -> list[str]:
    """The names of a file's columns, in order."""
    return list(opened(file).schema_arrow.names)


def opened(file: Path) -> Any:
    """A file of which only the description is read yet."""
    return _pyarrow().ParquetFile(file, buffer_size=1 << 20)


def _pyarrow() -> Any:
    with needs("parquet", "Reading Parquet"):
        from pyarrow import parquet
    return parquet
