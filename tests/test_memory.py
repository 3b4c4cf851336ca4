"""How much memory is free: the machine's, a container's limit, and what is refused."""

from __future__ import annotations

import resource
from pathlib import Path

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


def group(system: Path, path: str, **files: str) -> None:
    folder = system / "sys" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_kernel_says_what_is_free(system: Path):
    assert memory.available() == 8 * GB


def test_a_limit_counts_less_cached_files(system: Path):
    (system / "cgroup").write_text("0::/job\n")
    group(
        system, "job", memory__max=f"{2 * GB}\n", memory__current=f"{GB}\n", memory__stat=f"inactive_file {GB // 2}\n"
    )
    assert memory.available() == 3 * GB // 2


def test_the_group_above_limits_too(system: Path):
    (system / "cgroup").write_text("0::/all/job\n")
    group(system, "all", memory__max=f"{GB}\n", memory__current="0\n")
    group(system, "all/job", memory__max="max\n", memory__current="0\n")
    assert memory.available() == GB


def test_a_container_sees_its_own_group_at_the_root(system: Path):
    (system / "cgroup").write_text("0::/../outside\n")
    group(system, ".", memory__max=f"{GB}\n", memory__current="0\n")
    assert memory.available() == GB


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="this system has no such limit")
def test_the_limit_of_a_process_counts(system: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "PAGES", system / "statm")
    (system / "statm").write_text("10 5 5 0 0 0 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (GB, GB))
    assert memory.available() == GB - 10 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.available() == 8 * GB


@pytest.mark.parametrize("text", ["", "MemAvailable:\n", "MemAvailable: x kB\n", "\0\0\n:::\n"])
def test_where_it_is_unknown_nothing_is_refused(system: Path, text: str):
    (system / "meminfo").write_text(text)
    (system / "cgroup").write_text(text)
    assert memory.available() is None
    memory.check(10**18, "A model", "Make it smaller.")


def test_what_cannot_fit_is_refused_with_sizes_and_the_fix(system: Path):
    memory.check(8 * GB, "A model", "Make it smaller.")
    with refuses("A model takes 8.0 GB", "only 8.0 GB", "Make it smaller."):
        memory.check(8 * GB + 1, "A model", "Make it smaller.")


def test_this_machine_is_read():
    free = memory.available()
    assert free is None or 0 < free < 2**60
