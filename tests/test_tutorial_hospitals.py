"""The tutorial of three hospitals runs as it stands, and shows what it prints."""

from __future__ import annotations

import json
import re
import shlex
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
    return fresh.ok(*shlex.split(line)[1:])


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Its numbers are those of one processor; its sites' answers, where clear of 0, are those of any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    executed("make")
    experiment = block(PAGE, "experiment")
    Path("hospitals.toml").write_text(experiment)
    findings = fedshift.inspect_data("hospitals.toml").findings
    assert [finding.kind for finding in findings] == [
        "few samples",
        "mostly missing",
        "missing values",
        "feature drift",
    ]
    assert findings[0].sites == ("west",) and findings[1].sites == ("east",)
    assert "lactate" in command("check")
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
    assert "single: west" in command("analyse")
    Path("new.csv").write_text("\n".join(Path("hospitals/west.csv").read_text().splitlines()[:4]))
    executed("hand-out")
    assert len(capsys.readouterr().out.splitlines()) == 5  # a heading, three patients, and an empty line
    assert Path("common-model/README.md").is_file()
    executed("validate", run=Run.open(next(Path("runs/hospitals").glob("fedavg-seed0-*"))))
    capsys.readouterr()
    report = json.loads(Path("south-report/validation.json").read_text())
    assert report
    command("federation")
    assert Path("wounds/sites/west").is_dir()


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
