"""Run folders: what separates runs, what is noticed, who may run, and whose code is imported."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make, a_folder, a_record, a_row, interrupt_after
from fedshift import content
from fedshift.cli.app import app
from fedshift.experiments import Experiment
from fedshift.manifest import digested_json
from fedshift.reporting.comparison import Comparison
from fedshift.runs import runner, scheduling
from fedshift.runs.events import Progress
from fedshift.runs.find import Grid, GridRun, find
from fedshift.runs.origin import EXPERIMENT, RECORDS, RUN, UntrustedError
from fedshift.runs.run import TIMINGS, Run
from fedshift.study import api
from fedshift.study.grid import expand, override
from refusal import refuses

FILES = [
    *(RUN, EXPERIMENT, RECORDS, TIMINGS, "summary.json", "messages.json", "data.json"),
    "weights.safetensors",
]
PLUGIN = '''
import fedshift
from dataclasses import dataclass

@fedshift.METHODS.register("mine")
class Mine(fedshift.FedAvg):
    """FedAvg, {version}."""
'''


def plugged(plugin: Path, out: Path, version: int = 1, **changes: Any) -> Experiment:
    """An experiment whose method stands in a plugin."""
    plugin.parent.mkdir(parents=True, exist_ok=True)
    plugin.write_text(PLUGIN.replace("{version}", str(version)))
    fedshift.METHODS._listed.pop("mine", None)  # as in another process
    content._loaded.cache_clear()
    changes = {"plugins": [str(plugin)], "method.name": "mine", "run.out": str(out), **changes}
    (experiment,) = expand(override(TINY, changes))
    return experiment


# What separates runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "file"),
    [
        ("from beside_{n} import K", "beside_{n}.py"),
        ("from pack_{n} import K", "pack_{n}/inner.py"),  # whose __init__ imports it
    ],
)
def test_what_a_plugin_imports_from_its_folder_is_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, file: str
):
    """Otherwise two experiments are one row, and a finished run stands for another."""
    number = f"{abs(hash((statement, file)))}"
    plugin, beside = tmp_path / "mine.py", tmp_path / file.format(n=number)
    beside.parent.mkdir(exist_ok=True)
    if beside.parent != tmp_path:
        (beside.parent / "__init__.py").write_text("from .inner import K\n")
    beside.write_text("K = 1\n")
    plugin.write_text(statement.format(n=number) + "\n" + PLUGIN)
    fedshift.METHODS._listed.pop("mine", None)
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"plugins": [str(plugin)], "method.name": "mine", "run.out": str(tmp_path / "runs")}
    (first,) = expand(override(TINY, changes))
    before = first.fingerprint, first.series
    beside.write_text("K = 22\n")
    (second,) = expand(override(TINY, changes))
    assert second.fingerprint != before[0]
    assert second.series != before[1]


@pytest.mark.parametrize("differs", ["plugin", "data"])
def test_runs_that_differ_in_the_content_of_a_file_are_rows_of_their_own(tmp_path: Path, differs: str):
    """The same settings, seed 0 with one text and seed 1 with another: 71.7 and 11.7, not 41.7 ± 42.4."""
    data = tmp_path / "photos"
    data.mkdir()
    for seed, accuracy in ((0, 0.717), (1, 0.117)):
        (data / "text").write_text(f"version {seed}")
        changes = {"seed": seed, "data": {"name": "folder", "path": str(data)}, "protocol.hold_out": "a"}
        if differs == "plugin":
            experiment = plugged(tmp_path / "mine.py", tmp_path, version=seed, seed=seed)
        else:
            (experiment,) = expand(override(TINY, changes))
        rows = [a_row("a", "test", accuracy), a_row("gray", "validation", 0.9)]
        a_folder(tmp_path / "runs" / experiment.run_name, experiment, [a_record(2, rows)])
    found = api.load(tmp_path / "runs").rows()
    assert [row.score("test").text(100) for row in found] == ["71.7", "11.7"]
    label = "mine (mine.py=" if differs == "plugin" else "fedavg (path=photos "
    assert all(row.label.startswith(label) for row in found)


# What is noticed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("finished")
    (experiment,) = expand(override(TINY, {"run.out": str(out)}))
    return runner.start(experiment, Progress())


@pytest.fixture
def folder(finished: Run, tmp_path: Path) -> Run:
    """A copy of a finished run."""
    shutil.copytree(finished.path, tmp_path / finished.path.name)
    return Run(tmp_path / finished.path.name)


def reading(folder: Run) -> list[Any]:
    """All that can be requested of a run."""
    run = Run.open(folder.path)
    requested = (run.summary, run.records, run.notes, run.messages, run.table, folder.times, folder.environment)
    return [*requested, {name: tensor.tolist() for name, tensor in run.weights.items()}, run.model()]


@pytest.mark.parametrize("name", sorted(FILES))
@given(data=st.data())
def test_a_change_to_any_byte_of_any_file_is_noticed(finished: Run, name: str, data: Any):
    """A flipped bit, a cut, or random bytes: anyone who reads all of the run receives, with the file's name."""
    whole = (finished.path / name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "noise"]))
    changed = whole[:place]
    if damage == "flip":
        changed += bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :]
    elif damage == "noise":
        changed = data.draw(st.binary(max_size=64))
    same_settings = name == EXPERIMENT and _decides(changed) == _decides(whole)
    try:
        (finished.path / name).write_bytes(changed)
        if same_settings:  # white space, a comment, or [run]
            reading(Run(finished.path))
            return
        with refuses(name):
            reading(Run(finished.path))
    finally:
        (finished.path / name).write_bytes(whole)


@pytest.mark.parametrize("added", [True, False])
def test_lines_of_times_that_were_added_or_removed_are_noticed(folder: Run, added: bool):
    lines = (folder.path / TIMINGS).read_bytes().splitlines(keepends=True)
    (folder.path / TIMINGS).write_bytes(b"".join([lines[0], *lines] if added else lines[:-1]))
    assert TIMINGS in folder.damage()
    with refuses(TIMINGS, "fedshift resume"):
        _ = Run(folder.path).times
    runner.resume(runner.below(folder.path), Progress())
    assert Run(folder.path).damage() == ""
    assert (folder.path / "damaged-1" / TIMINGS).exists()


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_not_overwritten_and_the_error_names_its_state_and_the_command(make: Make, finished: bool):
    folder = runner.start(make(), Progress())
    if not finished:
        (folder.path / "summary.json").unlink()
    state, command = ("is finished", "report") if finished else ("has started", "resume")
    with refuses(f"its run {state}. Use `fedshift {command} "):
        runner.start(make(), Progress())


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", [EXPERIMENT, RUN])
def test_what_was_asked_for_cannot_be_made_again(make: Make, name: str, finished: bool):
    folder = runner.start(make(), Progress())
    if not finished:
        (folder.path / "summary.json").unlink()
    (folder.path / name).unlink()
    for carry_on in (
        lambda: runner.resume(runner.below(folder.path), Progress()),
        lambda: runner.run_all([make()], Progress()),
    ):
        with refuses(name):
            carry_on()


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_an_error_at_once(folder: Run, name: str):
    """In a separate process, since anyone who opens a pipe waits for somebody who writes."""
    (folder.path / name).unlink()
    os.mkfifo(folder.path / name)
    process = multiprocessing.get_context("fork").Process(target=_read_all, args=(folder.path, name))
    process.start()
    process.join(30)
    hanging = process.is_alive()
    process.kill()
    assert (hanging, process.exitcode) == (False, 0)


def _read_all(path: Path, name: str) -> None:
    with refuses(name):
        reading(Run(path))


def _decides(text: bytes) -> Any:
    try:
        table = tomllib.loads(text.decode())
        return {key: sorted(value) if key == "run" else value for key, value in table.items()}
    except (ValueError, TypeError, RecursionError):
        return None


def test_a_damaged_run_is_left_out_of_a_report_and_named(folder: Run, make: Make, tmp_path: Path):
    other = runner.start(make({"seed": 5, "run.out": str(tmp_path / "more")}), Progress())
    (folder.path / "records.jsonl").write_text("")
    comparison = api.load(tmp_path)
    assert [run.path for run in comparison.runs] == [other.path]
    assert any("A run is excluded" in note and "records.jsonl" in note for note in comparison.notes())


# Whose code is imported ---------------------------------------------------------------------------


@pytest.fixture
def from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Path]:
    """An interrupted run whose plugin leaves a mark when it is imported; and that mark. This machine never ran it."""
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "their cache"))
    experiment = plugged(tmp_path / "mine.py", tmp_path / "runs", **{"train.rounds": 3, "run.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = Run(scheduling.run_path(experiment))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "our cache"))
    return folder, tmp_path


def test_a_plugin_that_never_ran_here_needs_trust(from_elsewhere: tuple[Run, Path]):
    folder, there = from_elsewhere
    digest = folder.identity.plugins[folder.table["plugins"][-1]]
    marks = there / "our cache" / "plugins"
    marks.mkdir(parents=True)
    (marks / digest[::-1]).write_text("mine.py")  # a mark of another plugin is none of this one
    with refuses("mine.py'", f"digest {digest[:12]}", "--trust", error=UntrustedError):
        api.resume(folder.path, Progress())
    with pytest.raises(UntrustedError):
        api.load(folder.path).runs[0].experiment  # noqa: B018
    assert "never ran on this machine" in CliRunner().invoke(app, ["resume", str(folder.path)]).exception.args[0]
    assert not folder.finished
    assert not api.resume(folder.path, Progress(), trust=True).failed
    assert folder.finished
    api.load(folder.path).runs[0].experiment  # noqa: B018  # it is known now


def test_who_ran_a_plugin_here_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    experiment = plugged(tmp_path / "mine.py", tmp_path / "runs", **{"train.rounds": 3})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(1))
    assert not api.resume(tmp_path / "runs", Progress()).failed


def test_a_plugin_that_changed_is_named(from_elsewhere: tuple[Run, Path]):
    folder, there = from_elsewhere
    (there / "mine.py").write_text("raise SystemExit('imported')")
    with refuses("mine.py'", "changed (then", "Restore"):
        api.resume(folder.path, Progress(), trust=True)
    (there / "mine.py").unlink()
    with refuses("mine.py'", "is missing", "Restore"):
        api.resume(folder.path, Progress(), trust=True)


def test_reports_import_nothing(from_elsewhere: tuple[Run, Path]):
    folder, there = from_elsewhere
    (there / "mine.py").write_text("raise SystemExit('imported')")
    assert [row.label for row in Comparison.read([folder]).rows()] == ["mine"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_plugin_that_is_hidden_from_the_question_is_not_imported(from_elsewhere: tuple[Run, Path], begun: bool):
    """Digests are no signatures: anyone who made the files can leave the plugin out of what is requested about."""
    folder, there = from_elsewhere
    plugin = there / "mine.py"
    plugin.write_text("raise SystemExit('imported')")
    if begun:
        identity = folder.identity.model_copy(update={"plugins": {}})
        (folder.path / RUN).write_text(digested_json(identity.model_dump()))
    else:
        run = GridRun(folder="a run", fingerprint="f", plugins={}, experiment=folder.table)
        (there / "plan").mkdir()
        (there / "plan/grid-00000000.json").write_text(digested_json(Grid(runs=[run]).model_dump()))
    with refuses("mine.py'", "digest", "Restore"):
        api.resume(folder.path if begun else there / "plan", Progress())


# Where runs lie ------------------------------------------------------------------------------------


def test_runs_behind_links_count_once(folder: Run, tmp_path: Path):
    """A run that was moved, one that is there by two names, a folder of runs, circles, and trials of a study."""
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    runs.mkdir()
    shutil.copytree(folder.path, elsewhere / "moved")
    shutil.copytree(folder.path, elsewhere / "more" / "of a folder")
    folder.path.rename(runs / "here")
    (runs / "a link").symlink_to(elsewhere / "moved")
    (runs / "its other name").symlink_to("here")
    (runs / "more").symlink_to(elsewhere / "more")
    (runs / "circle").symlink_to(runs)
    (runs / "above").symlink_to("..")
    (runs / "nowhere").symlink_to("nothing")
    (elsewhere / "more" / "back").symlink_to(runs)
    shutil.copytree(elsewhere / "moved", elsewhere / "study" / "trial")
    (elsewhere / "study" / "study.journal").write_text("{}")
    (runs / "trial").symlink_to(elsewhere / "study" / "trial")
    (runs / "study").symlink_to(elsewhere / "study")
    names = ["a link", "here", "more/of a folder"]
    assert [str(found.path.relative_to(runs)) for found in find(runs)] == names
    assert len(api.load(runs).runs) == 3
    assert [found.path for found in find(runs / "a link")] == [runs / "a link"]


# What was there is kept ---------------------------------------------------------------------------


def test_what_is_set_aside_replaces_nothing(make: Make):
    folder = runner.start(make(), Progress())
    for number in (1, 2):
        (folder.path / RECORDS).write_text(f"damaged {number}")
        assert folder.set_aside().name == f"damaged-{number}"
    assert (folder.path / "damaged-1" / RECORDS).read_text() == "damaged 1"


# What a report states -------------------------------------------------------------------------------


def test_a_report_says_which_runs_of_a_comparison_have_not_begun(make: Make, tmp_path: Path):
    """Two of three runs are interrupted before their first round; the third's folder is not there yet."""
    experiments = [make({"seed": seed, "run.out": str(tmp_path), "run.together": 1}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(experiments, interrupt_after(2))
    (note,) = api.load(tmp_path).missing
    assert note.startswith("2 of the 3 runs of a comparison have not started (fedavg-light-seed1-")
    runner.resume(runner.below(tmp_path), Progress())
    assert api.load(tmp_path).missing == ()
