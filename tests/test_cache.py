"""Caches that cannot be kept: whatever the reason, work continues, and one warning names the fix."""

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


def no_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As for a user whom the system does not know, without HOME."""
    monkeypatch.delenv("FEDSHIFT_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


def a_full_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(folder / "cache"))
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        if str(folder / "cache") in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


BREAKS = [a_file, no_home, *([a_full_disk] if Path("/proc/self/fd").exists() else [])]


@pytest.fixture(autouse=True)
def unsaid() -> None:
    """Nothing was stated yet."""
    files._log_uncached.cache_clear()


@pytest.mark.parametrize("spoil", BREAKS, ids=lambda spoil: spoil.__name__)
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
    assert said.startswith("The cache of features cannot be written (")
