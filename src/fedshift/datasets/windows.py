"""Recordings of signals cut into windows; and those of a smartwatch.

*The watch*: exercises of the shoulder, as a smartwatch records them (Burns et al., Physiological Measurement 39(7),
2018).

Ten healthy persons did seven exercises of rehabilitation with the right and with the left arm, twenty times in a row;
each such series is one recording of six channels at 50 Hz: acceleration (ax, ay, az) and angular velocity (wx, wy, wz).
These 140 recordings of 19 to 52 seconds are the part of the study's data that the package seglearn ships, and are read
offline.

The side is a real covariate: on the other arm the watch sees the same exercise mirrored. So is the person.

Choices: windows of 4 seconds that overlap by half. Where sides are sites, a split keeps a person's recordings of both
sides together, so that persons are new to the model that is scored; where persons are sites it keeps recordings whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedshift import memory
from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.labelled import Array, each_read
from fedshift.datasets.listing import reading
from fedshift.errors import FedshiftError, needs
from fedshift.files import digest_of
from fedshift.spec import Count, WholeNumber, setting
from fedshift.streams import Streams

# What is counted.
STEPS, UNUSED, SHORT, MIXED, WINDOWS, FILLED, GAPS = "steps", "unused", "short", "mixed", "windows", "filled", "gaps"
WIDE = 1.5  # a gap is wider than that many of the recording's usual steps of time
DIGEST = "a5d9193c027e0cdec71071048aa0fd16"
SIDES = ("left", "right")
PERSONS = 10


class Recording(NamedTuple):
    """A signal as it was recorded."""

    where: str  # what errors call it, with its file
    values: Array  # (steps, channels), float64, finite
    labels: Array  # the class's number at each step, (steps,), int64
    called: str = ""  # what it is called in its file; nothing, where the file is one recording
    rows: Array = np.empty(0, np.int64)  # its rows in the file, in order


class Windows(NamedTuple):
    """Windows of several recordings."""

    x: Tensor  # (N, channels, window), float32
    y: Tensor  # the class's number of each, (N,), int64
    recording: Tensor  # the place of the recording that each is of, (N,), int64
    start: Tensor  # the step of the recording at which each begins, (N,), int64


class WindowedDataset(Dataset):
    """Signals of any length, of which each sample is a window (channels, time), float32.

    *Choices.* Windows lie in one recording and begin at its steps 0, stride, 2 stride, ...; the steps that are left
    over at its end are in none. Of two labels that are equally frequent in a window, the one that sorts first is taken.
    Standardising subtracts a channel's mean over time and divides by its standard deviation (that of the steps
    themselves, not an estimate for others); a channel that does not change becomes zeros.
    """

    seeded: ClassVar[bool] = False

    window: Count = setting(help="steps of time in a window")
    stride: WholeNumber = setting(0, help="steps between the starts of windows; 0: as window")
    mixed: Literal["drop", "majority"] = setting(
        "drop", help="treatment of a window in which the label changes; majority: its most frequent label"
    )
    short: Literal["error", "drop"] = setting("error", help="treatment of a recording that is shorter than a window")
    standardise: Literal["none", "window", "recording"] = setting(
        "none", help="over which steps each channel gets mean 0 and standard deviation 1"
    )

    def cut(self, recordings: Sequence[Recording], counts: Counter[str]) -> Windows:
        """The windows of recordings, in order.

        Args:
            recordings: all with as many channels.
            counts: the counts that :meth:`notes` reports, added to.
        """
        stride = self.stride or self.window
        what = f"recordings are shorter than data.window = {self.window} steps"
        chosen = each_read(lambda recording: self._chosen(recording, stride, counts), recordings, what)
        total = sum(len(starts) for starts, _ in chosen)
        channels = recordings[0].values.shape[1] if recordings else 0
        memory.check(
            total * channels * self.window * 4,
            f"The data set, {total} windows of {self.window} steps in {channels} channels,",
            "Raise data.stride, or read fewer rows.",
        )
        x = np.empty((total, channels, self.window), np.float32)
        stop = 0
        for recording, (starts, _) in zip(recordings, chosen, strict=True):
            if len(starts):
                whole = standardised(recording.values, axis=0) if self.standardise == "recording" else recording.values
                own = np.lib.stride_tricks.sliding_window_view(whole, self.window, axis=0)[starts]
                stop += len(own)
                with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is refused
                    x[stop - len(own) : stop] = standardised(own, axis=2) if self.standardise == "window" else own
        counts[WINDOWS] += total
        which = np.repeat(np.arange(len(recordings)), [len(starts) for starts, _ in chosen])
        y, start = (
            np.concatenate([own[place] for own in chosen]) if chosen else np.empty(0, np.int64) for place in (1, 0)
        )
        return Windows(*map(torch.from_numpy, (x, y, which, start)))

    def notes(self, counts: Counter[str]) -> tuple[str, ...]:
        """What was excluded, decided or filled in, in sentences."""
        if not counts[WINDOWS]:
            raise FedshiftError(
                f"No window of data.window = {self.window} steps is left: {counts[SHORT]} recordings are shorter, and "
                f"in {counts[MIXED]} windows the label changes (data.mixed = '{self.mixed}')."
            )
        fate = "are excluded" if self.mixed == "drop" else "have the label of most of their steps"
        said = {
            SHORT: f"{counts[SHORT]} recordings are shorter than a window of {self.window} steps and are excluded.",
            MIXED: f"{counts[MIXED]} windows in which the label changes {fate}.",
            UNUSED: f"{counts[UNUSED]} of {counts[STEPS]} steps lie in no window.",
            FILLED: f"{counts[FILLED]} missing numbers were interpolated.",
            GAPS: f"{counts[GAPS]} steps are more than {WIDE} times as long as is usual in their recording; windows go "
            "across them.",
        }
        return tuple(sentence for key, sentence in said.items() if counts[key])

    def _chosen(self, recording: Recording, stride: int, counts: Counter[str]) -> tuple[Array, Array]:
        """The steps at which a recording's windows begin, and their labels."""
        steps = len(recording.values)
        counts[STEPS] += steps
        starts = np.arange(0, steps - self.window + 1, stride)
        if not len(starts):
            if self.short == "error":
                raise FedshiftError(
                    f"{recording.where} has {steps} steps, fewer than data.window = {self.window}: choose a shorter "
                    "window, or leave such recordings out: --set data.short=drop"
                )
            counts[SHORT] += 1
            counts[UNUSED] += steps
            return starts, np.empty(0, np.int64)
        changes = np.concatenate([[0], (np.diff(recording.labels) != 0).cumsum()])  # so far, at each step
        mixed = changes[starts + self.window - 1] > changes[starts]
        labels = recording.labels[starts].astype(np.int64)
        for number in np.flatnonzero(mixed):
            labels[number] = np.bincount(recording.labels[starts[number] : starts[number] + self.window]).argmax()
        counts[MIXED] += int(mixed.sum())
        if self.mixed == "drop":
            starts, labels = starts[~mixed], labels[~mixed]
        begun, ended = np.bincount(starts, minlength=steps), np.bincount(starts + self.window, minlength=steps)
        counts[UNUSED] += int((begun.cumsum() == ended[:steps].cumsum()).sum())
        return starts, labels


def standardised(values: Array, axis: int) -> Array:
    """Values with mean 0 and standard deviation 1 along an axis; zeros where they do not change along it."""
    changes = values.max(axis=axis, keepdims=True) > values.min(axis=axis, keepdims=True)
    result: Array = np.where(changes, values - values.mean(axis=axis, keepdims=True), 0)
    result -= result.mean(axis=axis, keepdims=True)  # what rounding left of a mean that is large beside the changes
    deviation = result.std(axis=axis, keepdims=True)
    result /= np.where(deviation > 0, deviation, 1)
    return result


# The watch ----------------------------------------------------------------------------------------------


class Watch(WindowedDataset):
    """Seven exercises of the shoulder in six channels of a smartwatch at 50 Hz; sites are arms or persons."""

    domain: Literal["side", "subject"] = setting("side", help="what a site is: the left or the right arm, or a person")
    window: Count = setting(200, help="steps of 1/50 second in a window")
    stride: WholeNumber = setting(100, help="steps between the starts of windows; 0: as window")

    def domain_names(self) -> tuple[str, ...]:
        return SIDES if self.domain == "side" else tuple(f"{number:02d}" for number in range(1, PERSONS + 1))

    def check_here(self) -> None:
        """Whether the package that ships the recordings is installed."""
        _file()

    def load(self, streams: Streams) -> DomainData:
        """Cut the recordings into windows; ``x`` is float32 (N, 6, window)."""
        held = _read(_file())
        recordings = [
            Recording(f"The recording {number}", values, np.full(len(values), label))
            for number, (values, label) in enumerate(zip(held["X"], held["y"], strict=True))
        ]
        counts = Counter[str]()
        windows = self.cut(recordings, counts)
        side, person = (torch.from_numpy(held[name].astype(np.int64)) for name in ("side", "subject"))
        return DomainData(
            x=windows.x,
            y=windows.y,
            domain=(side if self.domain == "side" else person - 1)[windows.recording],
            domains=self.domain_names(),
            classes=tuple(held["y_labels"]),
            group=person[windows.recording] if self.domain == "side" else windows.recording,
            notes=self.notes(counts),
            channels=tuple(held["X_labels"]),
        )


def _file() -> Path:
    with needs("signals", "The data set 'watch'"):
        file = distribution("seglearn").locate_file("seglearn/data/watch_dataset.npy")
    return Path(str(file))


def _read(file: Path) -> dict[str, Any]:
    """What the file contains, as seglearn's ``load_watch`` gives it.

    It is a pickle, which could run code, so no file is loaded but the one whose content is known.
    """
    with reading(f"'{file}'", "pip install --force-reinstall seglearn"):
        data = file.read_bytes()
    if digest_of(data) != DIGEST:
        raise FedshiftError(
            f"'{file}' is not the file that seglearn 1.2.5 ships, and is not opened, since it could run code: "
            "pip install --force-reinstall seglearn==1.2.5"
        )
    held: dict[str, Any] = np.load(BytesIO(data), allow_pickle=True).item()
    return held
