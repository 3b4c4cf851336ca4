"""Exercises of the shoulder, as a smartwatch records them (Burns et al., Physiological Measurement 39(7), 2018).

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
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedshift.clients.domains import DomainData
from fedshift.datasets.windows import Recording, WindowedDataset
from fedshift.errors import FedshiftError, needs
from fedshift.files import digest_of
from fedshift.spec import Count, WholeNumber, setting
from fedshift.streams import Streams

DIGEST = "a5d9193c027e0cdec71071048aa0fd16"
SIDES = ("left", "right")
PERSONS = 10


class Watch(WindowedDataset):
    """Seven exercises of the shoulder in six channels of a smartwatch at 50 Hz; sites are arms or persons."""

    domain: Literal["side", "subject"] = setting("side", help="what a site is: the left or the right arm, or a person")
    window: Count = setting(200, help="steps of 1/50 second in a window")
    stride: WholeNumber = setting(100, help="steps from the beginning of a window to that of the next; 0: as window")

    def domain_names(self) -> tuple[str, ...]:
        """The arms, or the persons by number."""
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
    """The file of recordings; the package is not imported, which would take seconds.

    Raises:
        FedshiftError: it is not installed.
    """
    with needs("signals", "The data set 'watch'"):
        file = distribution("seglearn").locate_file("seglearn/data/watch_dataset.npy")
    return Path(str(file))


def _read(file: Path) -> dict[str, Any]:
    """What the file holds, as seglearn's ``load_watch`` gives it.

    It is a pickle, which could run code, so no file is loaded but the one whose content is known.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FedshiftError(
            f"'{file}' cannot be read ({error.strerror}): pip install --force-reinstall seglearn"
        ) from error
    if digest_of(data) != DIGEST:
        raise FedshiftError(
            f"'{file}' is not the file that seglearn 1.2.5 ships, and is not opened, since it could run code: "
            "pip install --force-reinstall seglearn==1.2.5"
        )
    held: dict[str, Any] = np.load(BytesIO(data), allow_pickle=True).item()
    return held
