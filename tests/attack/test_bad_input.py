"""Bad input at the command line, in experiment files, plugins and data: one clear error that names it, or it works."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attack.forks import GIB, Forks, Outcome
from attack.harness import Scenario, none_of
from attack.inputs import PLUGINS, ROWS, Row, finished
from fedshift.study.grid import expand

MEMORY = 2 * GIB
CASE = Scenario("run", {"train.rounds": 2})


@pytest.fixture(scope="module")
def base(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment and its finished run."""
    folder = CASE.write(tmp_path_factory.mktemp("base"))
    (outcome,) = forks.run(CASE.step, cwd=folder)
    assert outcome.fine, outcome
    return folder


def alone(row: Row) -> bool:
    """Whether a row needs a separate process: for its environment, or for what it leaves in the catalogues."""
    return bool(row.environment or row.closed or row in PLUGINS or row.probe == "nameless")


TOGETHER = [row for row in ROWS if not alone(row)]
CASES = [[row] for row in ROWS if alone(row)] + [TOGETHER[at : at + 30] for at in range(0, len(TOGETHER), 30)]


@pytest.mark.parametrize("rows", CASES, ids=lambda rows: rows[0].name if len(rows) == 1 else f"{rows[0].name} and on")
def test_bad_input(forks: Forks, base: Path, tmp_path: Path, rows: list[Row]):
    """Rows share a process, each with a separate folder."""
    folders = [tmp_path / str(number) for number in range(len(rows))]
    for row, folder in zip(rows, folders, strict=True):
        CASE.write(folder)
        if row.files is finished:
            shutil.copytree(base / "runs", folder / "runs")
        else:
            row.files(folder)
    steps = [(row.probe, *row.arguments) for row in rows]
    kept = {name: value for row in rows for name, value in row.environment.items()}
    closed = any(row.closed for row in rows)
    outcomes = forks.run(*steps, cwd=folders, memory=MEMORY, environment=kept, closed=closed)
    problems = [
        f"{row.name}: {problem}"
        for row, outcome, folder in zip(rows, outcomes, folders, strict=False)
        for problem in wrong(row, outcome, folder)
    ]
    none_of(problems)
    assert len(outcomes) == len(rows)


def wrong(row: Row, outcome: Outcome, folder: Path) -> Iterator[str]:
    """What is wrong with how a row ended."""
    fine = outcome.fine or (row.closed and outcome.code == 1 and "Error" not in outcome.err)
    if not {"error": outcome.refused, "fine": fine, "clean": outcome.clean}[row.expects]:
        yield str(outcome)
    if lacking := [word for word in row.words if word not in outcome.out + outcome.err]:
        yield f"it does not state {', '.join(lacking)}: {outcome}"
    if row.closed and not list((folder / "runs").rglob("report.html")):
        yield "there is no report"
    if any("NaN" in file.read_text() for file in (folder / "runs").rglob("records.jsonl")):
        yield f"it recorded NaN: {outcome}"


GREEDY = '''
import os
from dataclasses import dataclass

import fedshift
import torch

@fedshift.METHODS.register("greedy")
class Greedy(fedshift.FedAvg):
    """FedAvg that requires more memory than there is, in its second round."""

    def risk(self, net, batch, context):
        if "GREEDY" in os.environ and context.round == 2:
            torch.empty(2**42)
        return super().risk(net, batch, context)
'''


def test_a_round_beyond_the_memory(forks: Forks, tmp_path: Path):
    """One line that states what to lower, and the run continues where there is enough."""
    CASE.write(tmp_path)
    (tmp_path / "greedy.py").write_text(GREEDY)
    step = ("fedshift", "run", "case.toml", "--plugin", "greedy.py", "--method", "greedy")
    more = ("--set", "run.checkpoint_every=1", "--set", "run.engine=sequential")
    (outcome,) = forks.run((*step, *more), cwd=tmp_path, memory=MEMORY, environment={"GREEDY": "1"})
    assert (outcome.code, outcome.err.count("Error: ")) == (1, 1), outcome
    assert "train.batch" in outcome.err
    assert "Traceback" not in outcome.err
    (outcome,) = forks.run(("resume", "runs"), cwd=tmp_path, memory=MEMORY)
    assert outcome.fine, outcome


# Any setting, any value --------------------------------------------------------------------------


def settings_of(table: dict[str, Any], way: str = "") -> Iterator[str]:
    """Every setting that contains no table, but those of which rows show, and what belongs to the tests."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from settings_of(value, f"{way}{name}.")
        elif way + name not in ("run.workers", "run.engine", "data.per_class"):
            yield way + name


VALUES = st.one_of(
    st.sampled_from(
        ["0", "-3", "1e308", "nan", "-inf", str(2**70), "true", '""', "[]", "[[]]", "{}", "{a=1}", "1979-05-27"]
    ),
    st.integers(-10, 10**12).map(str),
    st.floats(allow_nan=False).filter(math.isfinite).map(repr),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30),
)


def test_any_setting_may_be_anything(forks: Forks, tmp_path: Path, large: bool):
    """Planned, as it would run for too long: a plan or one clear error, soon and within memory."""
    CASE.write(tmp_path)
    problems: list[str] = []
    (experiment,) = expand({"data": {"name": "tiny"}, "protocol": {"hold_out": "light"}, "model": {"name": "mlp"}})

    @settings(max_examples=2000 if large else 12, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from([*settings_of(experiment.table())]), VALUES)
    def attack(name: str, value: str) -> None:
        step = ("plain", "run", "case.toml", "--dry-run", "--set", f"{name}={value}")
        (outcome,) = forks.run(step, cwd=tmp_path, memory=MEMORY)
        if not outcome.clean:
            problems.append(str(outcome))

    attack()
    none_of(problems)
