"""What data sets in CSV and Parquet files have in common: columns that name classes, sites and inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedshift.datasets.cells import SUFFIXES, check_named, check_present, column_names, names_in, read_columns
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.parts import Names, domain_names, files_in
from fedshift.errors import FedshiftError
from fedshift.settings.spec import setting


@dataclass(frozen=True, kw_only=True)
class ColumnFiles(Dataset):
    """A file, or a folder of them, with a column of classes and, if a file is not a site, one of sites."""

    path: str = setting(help="a file that ends in .csv or .parquet, or a folder of them", path=True)
    label: str = setting("label", help="the column of the class")
    domain: str = setting("", help="the column of the domain (site); empty: a file is one domain, named like the file")

    def domain_names(self) -> tuple[str, ...]:
        """The values of the domain's column, or the files' names."""
        return domain_names([(str(file), self._domains(file)) for file in files_in(self.path, SUFFIXES)])

    def suffixes(self) -> tuple[str, ...]:
        """CSV and Parquet."""
        return SUFFIXES

    @property
    def as_written(self) -> list[str]:
        """The columns of names that are read as they are written: 01 is not 1."""
        return [self.domain] if self.domain else []

    @property
    def named_apart(self) -> dict[str, str]:
        """The columns that are no inputs, and the setting that names each."""
        return {self.label: "data.label"} | ({self.domain: "data.domain"} if self.domain else {})

    def domain_of(self, file: Path, frame: Any) -> Names:
        """What the domains of a file's rows are called, of which some columns are in a table of pandas."""
        if not self.domain:
            return Names.all(file.stem, len(frame))
        names = names_in(frame[self.domain], column_of(self.domain, file))
        return names._replace(untyped=file.suffix.lower() != ".parquet")

    def _domains(self, file: Path) -> Names:
        """What the domains of a file's rows are called, read alone."""
        if not self.domain:
            return Names.all(file.stem, 0)
        check_named(file, column_names(file), self.named_apart)
        return self.domain_of(file, read_columns(file, [self.domain], names=[self.domain]))


@dataclass(frozen=True, kw_only=True)
class InputColumns(ColumnFiles):
    """Files in which all columns that have no other use are inputs, unless they are named."""

    kind: ClassVar[str] = "inputs"  # what these columns are, for messages

    columns: tuple[str, ...] = setting((), help="the columns of the inputs, in order; none: all others")

    def input_columns(self) -> tuple[str, ...]:
        """The columns of the inputs: those that are named, or all others of the first file."""
        return self.columns or tuple(self.others(files_in(self.path, SUFFIXES)[0]))

    def others(self, file: Path) -> list[str]:
        """The columns of a file that have no other use.

        Raises:
            FedshiftError: there is none, one has no name, or a column that a setting names is not there.
        """
        present = column_names(file)
        check_named(file, present, self.named_apart)
        others = [name for name in present if name not in self.named_apart]
        index = next((name for name in others if not name.strip() or name.startswith("__index_level_")), None)
        if index is not None:
            raise FedshiftError(
                f"'{file}' has a column without a name ('{index}'), as pandas writes the index of its rows: write the "
                f"file with index=False, or name the {self.kind}: --set data.columns=..."
            )
        if not others:
            raise FedshiftError(f"'{file}' has no column of {self.kind} beside {', '.join(self.named_apart)}.")
        return others

    def check_columns(self, file: Path, inputs: Sequence[str]) -> None:
        """Raise an error unless every column that is read is there and, where inputs are not named, no other."""
        present = column_names(file)
        check_named(file, present, self.named_apart)
        check_present(file, present, inputs, self.kind)
        known = {*inputs}
        more = [] if self.columns else [name for name in self.others(file) if name not in known]
        if more:
            raise FedshiftError(
                f"'{file}' has the column '{more[0]}', which files before it lack; make them alike, or name the "
                f"{self.kind}: --set data.columns=..."
            )


def column_of(column: str, file: Path) -> str:
    """What a column is called in messages."""
    return f"The column '{column}' of '{file}'"


def not_looked_at(file: Path, used: Collection[str]) -> tuple[str, ...]:
    """A note on the columns of a file that are not used, if there are any."""
    others = [name for name in column_names(file) if name not in used]
    return (f"Columns that are not looked at: {', '.join(others)} (of '{file}').",) if others else ()
