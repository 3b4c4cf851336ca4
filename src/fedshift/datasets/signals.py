"""A user's own signals, as CSV or Parquet in long form: a row for each step of time, a column for each channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fedshift.clients.domains import DomainData, Unlabelled
from fedshift.clients.preparation import Column
from fedshift.datasets.column_files import Cells, InputColumns, column_of, names_in, not_looked_at
from fedshift.datasets.labelled import Array, Labelled, Names, beside, each_read, joined
from fedshift.datasets.windows import FILLED, GAPS, WIDE, Recording, WindowedDataset, Windows
from fedshift.errors import FedshiftError, needs
from fedshift.spec import setting
from fedshift.streams import Streams


class Signals(InputColumns, WindowedDataset):
    """Windows of recordings in CSV (a line of names first) or Parquet, with a column of labels.

    *Choices.* A recording's rows stand in the order of time and in one file; between them may be rows of others. All
    channels of a window are of the same steps, and steps count equally however long they last.
    """

    kind: ClassVar[str] = "channels"
    apart: ClassVar[tuple[str, ...]] = ("recording", "domain", "group", "time", "exclude")

    label: str = setting("label", help="the column of the class, at each step")
    recording: tuple[str, ...] = setting(
        (), help="the columns that together name a recording within its site; none: a file is one recording"
    )
    group: str = setting("", help="the column of groups that a split keeps whole, such as patients; empty: recordings")
    time: str = setting("", help="the column of the time, which increases within a recording; may be empty")
    missing: tuple[str, ...] = setting(("",), help="texts that mean a missing cell, such as NA")
    impute: Literal["none", "interpolate"] = setting(
        "none",
        help="how a missing number is filled in; none: error; interpolate: linearly in time between its "
        "neighbours in the recording, the nearest at its ends",
    )

    def load(self, streams: Streams) -> DomainData:
        """Read every recording and cut it into windows; ``x`` is (N, channels, window), float32."""
        files, channels, counts = self.files(), self.input_columns(), Counter[str]()
        parts = each_read(
            lambda file: self._part(file, channels, counts), files, f"things are wrong with the signals '{self.path}'"
        )
        notes = (*beside(self.path, files), *self.notes(counts))
        data = replace(joined(parts, notes=notes), channels=tuple(channels))
        windows = torch.bincount(data.domain, minlength=len(data.domains)).tolist()
        empty = [name for name, count in zip(data.domains, windows, strict=True) if not count]
        without = f"No window is left of the sites {', '.join(empty)}."
        return replace(data, notes=(*notes, without)) if empty else data

    def samples(self, file: Path, columns: Sequence[Column] = ()) -> Unlabelled:
        """The windows of a file's recordings, each called by its recording and the step at which it begins.

        Where channels are not named, they are those of the first file that was trained on.
        """
        channels = self.input_columns()
        used = self.named("recording", "time")
        counts = Counter[str]()
        recordings = self._recordings(file, self.read(file, channels, used), channels, counts)
        windows = self.cut(recordings, counts)
        notes = (f"{note.removesuffix('.')} (of '{file}')." for note in self.notes(counts))
        others = not_looked_at(file, (*channels, *used), self.form)
        return Unlabelled(windows.x, _names(windows, recordings), (*others, *notes))

    def _part(self, file: Path, channels: Sequence[str], counts: Counter[str]) -> Labelled:
        frame = self.read(file, channels, self.other_columns)
        self.check_same_columns(file, channels)
        label, domain = self.label_of(file, frame), self.domain_of(file, frame)
        group = names_in(frame, self.group, file) if self.group else None
        recordings = self._recordings(file, frame, channels, counts, label.which.numpy())
        for recording in recordings:
            _check_one(domain, recording, self.domain, "set data.recording to the columns that name it")
            if group is not None:
                _check_one(group, recording, self.group, "name each recording separately")
        windows = self.cut(recordings, counts)
        begin = [int(recording.rows[0]) for recording in recordings]
        first = torch.tensor(begin)[windows.recording]  # a row of each window's recording
        kept = Names([recording.where for recording in recordings], begin, windows.recording)
        if group is not None:
            kept = group._replace(which=group.which[first])
        y, site = label._replace(which=windows.y), domain._replace(which=domain.which[first])
        return Labelled(str(file), windows.x, y, site, kept, _names(windows, recordings))

    def _recordings(
        self, file: Path, frame: Any, channels: Sequence[str], counts: Counter[str], labels: Array | None = None
    ) -> list[Recording]:
        """The recordings of a file, with missing values filled in.

        Args:
            file: the file.
            frame: its rows, as a table of pandas.
            channels: its columns of channels.
            counts: the counts that :meth:`notes` reports, added to.
            labels: the class's number in each row; None: they are not known.
        """
        cells = [Cells.of(frame, name, file, self.missing) for name in channels]
        for channel in cells if self.impute == "none" else ():
            channel.check_whole(
                "fill it in, or have it filled in between its neighbours: --set data.impute=interpolate"
            )
        values = np.stack([channel.checked() for channel in cells], axis=1)
        labels = np.zeros(len(frame), np.int64) if labels is None else labels
        time = times(frame[self.time], column_of(self.time, file)) if self.time else None
        named = [names_in(frame, name, file) for name in self.recording]
        which, keys = np.zeros(len(frame), np.int64), np.empty((1, 0), np.int64)
        if named:
            together = np.stack([each.which.numpy() for each in named], axis=1)
            keys, which = np.unique(together, axis=0, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        found = np.split(order, np.flatnonzero(np.diff(which.reshape(-1)[order])) + 1)
        recordings = []
        for key, rows in zip(keys.tolist(), found, strict=True):
            names = zip(self.recording, named, key, strict=True)
            called = ", ".join(f"{column} '{each.values[place]}'" for column, each, place in names)
            where = f"The recording ({called}) of '{file}'" if called else f"'{file}'"
            if time is not None and len(rows) > 1:
                self._check_time(frame[self.time], time, rows, file, counts)
            self._fill(values, time, rows, where, channels, counts)
            recordings.append(Recording(where, values[rows], labels[rows], called, rows))
        return recordings

    def _check_time(self, cells: Any, time: Array, rows: Array, file: Path, counts: Counter[str]) -> None:
        steps = np.diff(time[rows])
        wrong = np.flatnonzero(~(steps > 0))
        if len(wrong):
            row, before = int(rows[wrong[0] + 1]), int(rows[wrong[0]])
            raise FedshiftError(
                f"{column_of(self.time, file)} contains {cells.iloc[row]} in row {row}, after {cells.iloc[before]} in "
                f"row {before} of the same recording; sort its rows by time, exclude those that are there twice, or "
                "name the recording separately (data.recording)."
            )
        usual = float(np.median(steps))
        counts[GAPS] += int((steps > WIDE * usual).sum())

    def _fill(
        self, values: Array, time: Array | None, rows: Array, where: str, channels: Sequence[str], counts: Counter[str]
    ) -> None:
        """Numbers in the place of missing ones of a recording."""
        for number, name in enumerate(channels):
            own = values[rows, number]
            gone = np.isnan(own)
            if gone.all():
                raise FedshiftError(f"{where} has no number in the column '{name}', so none can be interpolated.")
            if gone.any():
                at = np.arange(len(rows)) if time is None else time[rows]
                values[rows[gone], number] = np.interp(at[gone], at[~gone], own[~gone])
                counts[FILLED] += int(gone.sum())


def _names(windows: Windows, recordings: Sequence[Recording]) -> list[str]:
    pairs = zip(windows.recording.tolist(), windows.start.tolist(), strict=True)
    return [", ".join(filter(None, (recordings[place].called, f"step {start}"))) for place, start in pairs]


def _check_one(names: Names, recording: Recording, column: str, fix: str) -> None:
    rows, own = recording.rows, names.which.numpy()[recording.rows].tolist()
    other = next((place for place, name in enumerate(own) if name != own[0]), None)
    if other is not None:
        raise FedshiftError(
            f"{recording.where} has '{names.values[own[0]]}' in row {rows[0]} of the column '{column}' and "
            f"'{names.values[own[other]]}' in row {rows[other]}; a recording has one: {fix}."
        )


def times(column: Any, where: str) -> Array:
    """A column of times, from the first of them on, (N,), float64.

    Args:
        column: numbers of any unit, or durations, dates and times (in text as ISO 8601), which become seconds.
        where: what errors call it, with its file.
    """
    with needs("pandas", "Reading CSV and Parquet"):
        import pandas as pd

    numeric = column.dtype.kind in "iuf"
    moments = column
    if not numeric and column.dtype.kind != "m":
        moments = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
    wrong = np.flatnonzero(moments.isin([np.inf, -np.inf]) | moments.isna())
    if len(wrong):
        raise FedshiftError(
            f"{where} contains {str(column.iloc[wrong[0]])!r:.100} in row {wrong[0]}; give numbers, or dates and "
            "times as ISO 8601 writes them (2024-01-31T12:00:00.5)."
        )
    since = moments - moments.min()  # before it becomes a float, which cannot represent nanoseconds since 1970
    seconds: Array = since.to_numpy(np.float64) if numeric else since.dt.total_seconds().to_numpy()
    return seconds
