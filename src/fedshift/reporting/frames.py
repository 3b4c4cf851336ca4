"""Measurements as a pandas table, for which pandas is needed and nothing else is, or as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from fedshift.errors import needs

if TYPE_CHECKING:
    import pandas as pd


def as_frame(measurements: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each measurement.

    Raises:
        FedshiftError: pandas is not installed.
    """
    with needs("pandas", "A pandas table (measurements() gives the same as a list)"):
        import pandas as pd
    return pd.DataFrame(measurements)


def as_csv(measurements: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Measurements as CSV, a line for each under the names of the columns."""
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(measurements)
    return text.getvalue()
