"""What prints as tables, wherever it is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedshift.errors import needs
from fedshift.reporting.table import Table, markdown, text
from fedshift.runs.schema import Record

if TYPE_CHECKING:
    import pandas as pd


class Tabled:
    """Tables with notes: plain in a text, HTML in a notebook, Markdown by :meth:`table`.

    A data class of these says ``repr=False``.
    """

    WIDTH: ClassVar[int] = 120  # of a text, in characters

    def tables(self) -> list[Table]:
        """The tables, in order."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        raise NotImplementedError

    def table(self) -> str:
        """The tables and notes as Markdown."""
        return markdown(self.tables(), self.notes())

    def __str__(self) -> str:
        return text(self.tables(), self.notes(), self.WIDTH)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from fedshift.reporting.page import render  # with matplotlib

        return render("tables.html.jinja", tables=self.tables(), notes=self.notes())


class Measurements(Tabled):
    """Tables of numbers, which are also there one by one."""

    def measurements(self) -> list[Record]:
        """Every number, with what it is of."""
        raise NotImplementedError

    def frame(self) -> pd.DataFrame:
        """The :meth:`measurements` as a pandas table, a row for each.

        Raises:
            FedshiftError: pandas is not installed.
        """
        with needs("pandas", "A pandas table (measurements() gives the same as a list)"):
            import pandas as pd
        return pd.DataFrame(self.measurements())
