"""Caches that cannot be kept: whatever the reason, work goes on, and it is said once what would change that."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedshift import files
from fedshift.core.frozen import FrozenNetwork, embed

Break = Callable[[pytest.MonkeyPatch, Path], None]


def a_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("FEDSHIFT_CACHE", str(folder / "file"))


def a_file_in_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(folder / "cache"))
    (folder / "cache").mkdir()
    (folder / "cache" / "features").write_text("")


def no_place(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A folder in which nobody can make another, not even who may do everything."""
    monkeypatch.setenv("FEDSHIFT_CACHE", "/proc/fedshift")


def _homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user whom the system does not know, without HOME."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


def no_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("FEDSHIFT_CACHE", raising=False)
    _homeless(monkeypatch)


def below_no_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", "~/cache")
    _homeless(monkeypatch)


def a_failing_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(folder / "cache"))
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        if str(folder / "cache") in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(number, os.strerror(number))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def a_full_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    a_failing_disk(monkeypatch, folder, errno.ENOSPC)


def a_quota(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    a_failing_disk(monkeypatch, folder, errno.EDQUOT)


BREAKS = [a_file, a_file_in_it, no_home, below_no_home]
if Path("/proc/self/fd").exists():
    BREAKS += [no_place, a_full_disk, a_quota]
broken = pytest.mark.parametrize("spoil", BREAKS, ids=lambda spoil: spoil.__name__)


@pytest.fixture(autouse=True)
def unsaid() -> None:
    """Nothing was said yet."""
    files._log_uncached.cache_clear()


@broken
def test_features_are_computed_anew_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Break
):
    spoil(monkeypatch, tmp_path)
    loaded: list[Any] = []

    def load() -> nn.Module:
        loaded.append(1)
        return nn.Flatten()

    network, images = FrozenNetwork("flat", "v1", load), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert torch.equal(embed(images, network), embed(images, network))
    assert len(loaded) == 2
    (said,) = caplog.messages
    assert said.startswith("Nothing is kept in the cache of features (")
