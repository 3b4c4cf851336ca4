"""A job array of Slurm, with a stand-in for sbatch that starts its tasks here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

import fedshift
from conftest import TINY
from fedshift.cli.app import app
from fedshift.cli.before import write_slurm
from fedshift.core.training import RunOptions
from fedshift.runs.dry_run import Estimate
from fedshift.runs.find import find
from fedshift.study.slurm import Slurm
from fedshift.study.study_plan import Forecast
from refusal import refuses

PLUGIN = str(Path(__file__).parent / "tiny.py")


def forecast(runs: int, seconds: float, memory: int) -> Forecast:
    cost = Estimate(
        name="a", rounds=1, steps=1, bytes_down=0, bytes_up=0, scored=1, seconds=seconds, clients=(1, 1), stages=(),
        memory=memory, notes=[],
    )  # fmt: skip
    return Forecast("a", runs, cost)


def sbatch(script: Path) -> list[str]:
    """Run every task of an array, side by side; the output of each."""
    text = script.read_text()
    first, last = map(int, re.findall(r"^#SBATCH --array=(\d+)-(\d+)$", text, re.M)[0])
    tasks = [
        subprocess.Popen(
            ["bash", str(script)],
            env={**os.environ, "SLURM_ARRAY_TASK_ID": str(task)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for task in range(first, last + 1)
    ]
    outputs = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0] * len(tasks), outputs
    return outputs


def test_a_comparison_as_an_array_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the script's tasks print in the end is the table of one process, and every run was run once."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a b.toml"
    file.write_text(tomli_w.dumps(TINY | {"seed": [0, 1, 2], "plugins": [PLUGIN]}))
    words = ["compare", str(file), "--method", "fedavg,fedprox", "--slurm", "2", "--out", "out"]
    monkeypatch.setattr("sys.argv", ["fedshift", *words])
    found = CliRunner().invoke(app, words, catch_exceptions=False)
    script = Path("out/tiny/slurm.sh")
    assert found.exit_code == 0
    assert f"sbatch {script}" in found.output
    assert not [*Path("out").glob("tiny/*seed*")]
    outputs = sbatch(script)
    runs = fedshift.load("out/tiny")
    assert sum(run.finished for run in find(Path("out/tiny"))) == 6
    alone = fedshift.compare(str(file), method=["fedavg", "fedprox"], out=str(tmp_path / "alone"))
    for method in ("fedavg", "fedprox"):
        assert runs.accuracy(method) == alone.accuracy(method)
        assert all(re.search(rf"^\s+{method}\s+\d", output, re.M) for output in outputs)
    done = re.findall(r"^\d+/6 (\S+)  done", "\n".join(outputs), re.M)
    assert len(done) == len({*done}) == 6


@pytest.mark.parametrize(("shards", "minutes"), [(1, 90), (4, 45), (100, 45)])
def test_limits_by_hand(tmp_path: Path, shards: int, minutes: int):
    """Two runs of 15 minutes: 30 in all, 15 for each of four, and no task has less than one run; three times that."""
    job = Slurm.of([forecast(2, 900.0, 2**31)], tmp_path, ["a"], shards, RunOptions())
    assert (job.minutes, job.runs) == (minutes, 2)
    assert "#SBATCH --mem=4096M\n" in job.script  # 1.5 x 2 GiB + 1 GiB
    assert "--gpus" not in job.script
    assert "#SBATCH --gpus=1\n" in Slurm.of([forecast(1, 1.0, 1)], tmp_path, ["a"], 1, RunOptions(device="cuda")).script


def test_a_shard_writes_no_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["fedshift", "compare", "--shard=1/2", "--slurm", "2"])
    with refuses("--slurm", "--shard"):
        write_slurm([forecast(1, 1.0, 1)], tmp_path, 2, RunOptions())


def test_what_is_finished_needs_no_script(tmp_path: Path):
    with refuses("nothing to run"):
        Slurm.of([Forecast("a", 0, None)], tmp_path, ["a"], 1, RunOptions())
