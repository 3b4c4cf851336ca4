"""The tutorial of three hospitals runs as it stands, and shows what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fedshift
import fresh
from fedshift.runs.run import Run
from test_examples import block

PAGE = "tutorial-hospitals.md"
FLOAT, WORD = r"[-+]?\d+(\.\d+)?", r"\b(better|worse|not clear)$"


def words(text: str) -> list[str]:
    """Lines without numbers, whose last digits are a processor's, verdicts, rules and repeated spaces."""
    plain = (" ".join(re.sub(f"{FLOAT}|{WORD}", "0", line.strip(" ─")).split()) for line in text.splitlines())
    return [line for line in plain if line]


def executed(marker: str, **names: Any) -> None:
    """Execute a block; ``names`` are those that blocks before have made."""
    code = compile(block(PAGE, marker), f"{marker} of {PAGE}", "exec")
    exec(code, {"__name__": "example", "fedshift": fedshift, **names})  # the point of the test


def command(marker: str) -> str:
    """What the command of a block prints, one line each whatever the terminal's width."""
    (line,) = block(PAGE, marker).splitlines()
    return fresh.ok(*line.split()[1:])


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Its numbers are those of one processor; its sites' answers, where clear of 0, are those of any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    executed("make")
    experiment = block(PAGE, "experiment")
    Path("hospitals.toml").write_text(experiment)
    checked = words(command("check"))
    assert all(line in checked for line in words(block(PAGE, "alone")) + words(block(PAGE, "found")))
    Path("hospitals.toml").write_text(experiment.replace("[protocol]", block(PAGE, "exclude") + "[protocol]"))
    compared = words(command("compare"))
    assert all(any(line in shown for shown in compared) for line in words(block(PAGE, "compared")))
    executed("read")
    answers = capsys.readouterr().out
    assert _sites(answers) == _sites(block(PAGE, "answers"))
    assert [_verdicts(answers)[each] for each in ((0, "fedavg"), (2, "fedavg"), (2, "ditto"))] == [
        "loses",
        "gains",
        "gains",
    ]
    analysed = words(command("analyse"))
    assert all(line in analysed for line in words(block(PAGE, "analysed")))
    Path("new.csv").write_text("\n".join(Path("hospitals/west.csv").read_text().splitlines()[:4]))
    executed("hand-out")
    assert words(capsys.readouterr().out) == words(block(PAGE, "handed"))
    assert Path("west.pt").is_file()
    executed("export", run=Run.open(next(Path("runs/hospitals").glob("fedavg-seed0-*"))))
    assert Path("common-model/README.md").is_file()
    executed("validate", run=Run.open(next(Path("runs/hospitals").glob("fedavg-seed0-*"))))
    validated = words(capsys.readouterr().out)
    assert all(line in validated for line in words(block(PAGE, "validated")))
    assert Path("south-report/validation.html").is_file()


def _sites(answers: str) -> list[str]:
    return [line for line in answers.splitlines() if not line.startswith(" ")]


def _verdicts(answers: str) -> dict[Any, str]:
    """By the site's place and the method."""
    found, place = {}, -1
    for line in answers.splitlines():
        if line.startswith(" "):
            method, *_, verdict = line.split()
            found[place, method] = verdict
        else:
            place += 1
    return found
