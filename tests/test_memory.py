"""How much memory is free: the machine's, a container's limit, and what is refused."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from fedshift import memory
from refusal import refuses

GB = 10**9


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 GB without control groups, whose files a test may add to."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "MOUNT", tmp_path / "sys")
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    7812500 kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "groups", "free"),
    [
        ("", {}, 8 * GB),
        ("0::/job", {"job": (2 * GB, GB, GB // 2)}, 3 * GB // 2),  # cached files do not count
        ("0::/all/job", {"all": (GB, 0, 0), "all/job": ("max", 0, 0)}, GB),
        ("0::/../outside", {".": (GB, 0, 0)}, GB),  # a container sees its own group at the root
    ],
)
def test_the_machine_and_the_groups_above_limit(system: Path, cgroup: str, groups: dict[str, Any], free: int):
    (system / "cgroup").write_text(f"{cgroup}\n")
    for name, (most, used, cached) in groups.items():
        folder = system / "sys" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in (("max", most), ("current", used), ("stat", f"inactive_file {cached}")):
            (folder / f"memory.{file}").write_text(f"{text}\n")
    assert memory.available() == free


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="this system has no such limit")
def test_the_limit_of_a_process_counts(system: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "PAGES", system / "statm")
    (system / "statm").write_text("10 5 5 0 0 0 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (GB, GB))
    assert memory.available() == GB - 10 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.available() == 8 * GB


@pytest.mark.parametrize("text", ["", "MemAvailable: x kB\n"])
def test_where_it_is_unknown_nothing_is_refused(system: Path, text: str):
    (system / "meminfo").write_text(text)
    (system / "cgroup").write_text(text)
    assert memory.available() is None
    memory.check(10**18, "A model", "Make it smaller.")


def test_what_cannot_fit_is_refused_with_sizes_and_the_fix(system: Path):
    memory.check(8 * GB, "A model", "Make it smaller.")
    with refuses("A model takes 8 GB", "only 8 GB", "Make it smaller."):
        memory.check(8 * GB + 1, "A model", "Make it smaller.")
