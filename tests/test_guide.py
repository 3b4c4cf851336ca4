"""The commands of the README and the guide run, with smaller data and fewer rounds."""

from __future__ import annotations

import re
import shlex
import shutil
import xml.etree.ElementTree as ElementTree
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedshift
import fresh

ROOT = Path(__file__).parents[1]
SMALL = ["data.images_per_class=4", "train.batch=4", "train.rounds=1", "train.steps=1", "run.engine=sequential"]
PICTURE = ROOT / "docs" / "_static" / "main-job.svg"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def commands(page: str, marker: str) -> list[str]:
    """The lines of all blocks of a page that follow a marker."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- {marker} -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert blocks
    return "".join(blocks).replace("\\\n", " ").splitlines()


def run(line: str, *settings: str) -> str:
    """The output of a command, with settings where it takes some, in a process with an empty catalogue of plugins."""
    words = shlex.split(line, comments=True)[1:]
    words = [str(next(Path().glob(word))) if "*" in word else word for word in words]
    result = fresh.command(*words, *(word for setting in settings for word in ("--set", setting)))
    assert result.returncode == 0, (line, result.stderr)
    return str(result.stdout)


def trains(line: str) -> bool:
    return line.split()[1] in ("run", "compare", "tune")


def test_quick_start():
    shutil.copy(ROOT / "examples" / "my_prox.py", "my_prox.py")
    printed = {line: run(line, *SMALL if trains(line) else []) for line in commands("quick-start.md", "shell")}
    assert "target best (oracle)" in printed["fedshift compare"]
    assert "my-prox" in list(printed.values())[-1]


def test_experiments():
    lines = commands("experiments.md", "shell")
    assert all(run(line, *SMALL if trains(line) else []) for line in lines)
    assert Path("figures").is_dir()
    assert run(*commands("experiments.md", "resume"))
