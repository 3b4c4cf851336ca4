"""The commands and blocks of the pages on federations, engines, clusters and attacks run, or at least exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tomli_w
from torch import nn

import fedshift
import fresh
from federated import Local
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.sent import read_sent
from fedshift.runs.events import Progress

ROOT = Path(__file__).parents[1]
EXPERIMENT = {
    "name": "my-experiment",
    "data": {"name": "rotated-mnist", "images_per_class": 20},
    "protocol": {"hold_out": "0"},
    "method": {"name": "fedavg"},
    "model": {"name": "mlp", "dim": 4, "hidden": [8]},
    "train": {"rounds": 1, "steps": 1, "batch": 4},
    "evaluate": {"every": 1},
    "run": {"device": "cpu", "engine": "sequential", "threads": 1},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with the experiment that the pages name."""
    (tmp_path / "my-experiment.toml").write_text(tomli_w.dumps(EXPERIMENT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(page: str, marker: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"<!-- {marker} -->\n```\w+\n(.*?)```", text, re.DOTALL)


def lines(page: str, marker: str = "shell") -> list[str]:
    return "".join(blocks(page, marker)).replace("\\\n", "").splitlines()


def run(line: str, *more: str) -> str:
    """Run a line of a page in this process and return its output."""
    return fresh.ok(*shlex.split(line, comments=True)[1:], *more)


def test_a_federation_from_its_folders_to_its_models(folder: Path):
    """Every command in the page's order; messages of the run travel in this process."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    demo, init, check, *connect, start, watch, report, sent, full, rehearse = lines("federation.md")
    assert demo == "fedshift federation demo"  # tests/test_demo.py runs it with real processes
    run(init)
    assert "| model update |" in run(check)
    for line in (*connect, start):
        assert re.search("flower-|flwr ", run(line, "--dry-run"))
    coordinate(folder / "lungs/coordinator", Local(folder / "lungs"), Progress())
    assert "berlin validation" in run(watch)
    assert "fedavg" in run(report)
    count = len(read_sent(folder / "lungs/sites/berlin/sent.jsonl"))
    assert all(f"Messages: {count} of" in run(line) for line in (sent, full))
    assert "bit for bit" in run(rehearse)
    names = {"fedshift": fedshift}
    exec(compile("".join(blocks("federation.md", "models")), "federation.md", "exec"), names)
    assert isinstance(names["model"], nn.Module)
    assert isinstance(names["shared"], nn.Module)


def test_shards_and_a_job_array(folder: Path):
    *shards, slurm, sbatch = lines("cluster.md")
    outputs = [run(line) for line in shards]
    tables = {output[output.index("Accuracy") :] for output in outputs}
    assert (len(outputs), len(tables)) == (3, 1)
    run(slurm)
    assert (folder / sbatch.removeprefix("sbatch ")).is_file()
    assert "--array=1-16" in (folder / sbatch.removeprefix("sbatch ")).read_text()


def test_batch_systems_count_shards_from_1():
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    commands = re.findall(r"exec (fedshift compare .*?16)\"?\n", page)
    shown = 'fedshift() { echo "$@"; }\n'
    for command, variable in zip(commands, ("PBS_ARRAY_INDEX=3", "JOB_COMPLETION_INDEX=2"), strict=True):
        code = f"{shown}{variable}\n{command.replace(chr(34), '')}"
        printed = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, check=True).stdout
        assert printed.split()[-1] == "3/16"


def test_the_engines_can_be_measured():
    (bench,) = lines("engines.md")
    assert "fedavg" in run(bench, "--dry-run")  # tests/test_cli.py measures


@pytest.mark.cluster
def test_a_ray_cluster():
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    one, many = (line for line in lines("cluster.md", "ray") if line.startswith("fedshift"))
    try:
        for line in (one, many):
            run(line, "--set", "run.address=local", "--set", "run.workers=2")
    finally:
        ray.shutdown()  # other tests have clusters of their own


@pytest.mark.parametrize("page", ["federation.md", "engines.md", "cluster.md"])
def test_benchmarks_take_the_options_that_a_page_gives_them(page: str):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"python (?:benchmarks/)?(\w+\.py)([^`\n]*)", text)
    assert commands
    for script, arguments in commands:
        source = (ROOT / "benchmarks" / script).read_text(encoding="utf-8")
        assert [option for option in re.findall(r"--[a-z-]+", arguments) if f'"{option}"' not in source] == []
