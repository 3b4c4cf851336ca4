"""Run folders: what tells runs apart, what is noticed, who may run, and whose code is imported."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make, a_folder, a_record, a_row, interrupt_after, resume
from fedshift import experiments as experiment_module
from fedshift.cli.app import app
from fedshift.content import code_digest, digest
from fedshift.core import plugins
from fedshift.experiments import Experiment
from fedshift.manifest import digested_json
from fedshift.reporting.results import Results
from fedshift.runs import folder as folder_module
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.folder import EXPERIMENT, RECORDS, RUN, TIMINGS, RunFolder, find
from fedshift.runs.run import Run
from fedshift.runs.schema import Grid, GridRun
from fedshift.runs.trust import UntrustedError
from fedshift.study import api
from fedshift.study.grid import expand, override
from refusal import refuses

FILES = [
    *(RUN, EXPERIMENT, RECORDS, TIMINGS, "manifest.json", "summary.json", "messages.json", "data.json"),
    *("environment.json", "weights.safetensors"),
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
    plugins._imported.cache_clear()
    changes = {"plugins": [str(plugin)], "method.name": "mine", "run.out": str(out), **changes}
    (experiment,) = expand(override(TINY, changes))
    return experiment


def judged(domain: str, accuracy: float) -> dict[str, Any]:
    """A record of a single test environment."""
    return a_record(2, [a_row(domain, "test", accuracy), a_row("gray", "validation", 0.9)])


# What tells runs apart ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "file"),
    [
        ("from beside_{n} import K", "beside_{n}.py"),
        ("import beside_{n} as b; K = b.K", "beside_{n}.py"),
        ("def late():\n    from pack_{n}.inner import K\nlate()", "pack_{n}/inner.py"),
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


def test_a_plugin_that_is_imported_again_sees_what_its_folder_now_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a notebook, where the module of before would go by the digest of now."""
    plugin, beside = tmp_path / "again.py", tmp_path / "told_again.py"
    monkeypatch.syspath_prepend(tmp_path)
    beside.write_text("K = 1\n")
    plugin.write_text(
        "import fedshift\nfrom told_again import K\nfedshift.SEEN = getattr(fedshift, 'SEEN', ()) + (K,)\n"
    )
    monkeypatch.setattr(fedshift, "SEEN", (), raising=False)
    experiment_module.load_plugins([str(plugin)])
    beside.write_text("K = 22\n")
    experiment_module.load_plugins([str(plugin)])
    assert fedshift.SEEN == (1, 22)  # type: ignore[attr-defined]  # made by the plugin


def test_a_plugin_alone_counts_as_its_file(tmp_path: Path):
    plugin = tmp_path / "alone.py"
    plugin.write_text("import json\nfrom os import path\nfrom . import nothing\n")
    assert code_digest(plugin) == digest(plugin) != ""
    plugin.write_text("no Python (")
    assert code_digest(plugin) == digest(plugin)
    assert code_digest(tmp_path / "missing.py") == ""
    assert code_digest(tmp_path) == digest(tmp_path)


def test_runs_that_differ_in_a_plugin_are_rows_of_their_own(tmp_path: Path):
    """The same settings, seed 0 with one text of the plugin and seed 1 with another: 71.7 and 11.7, not 41.7 ± 42.4."""
    for seed, accuracy in ((0, 0.717), (1, 0.117)):
        experiment = plugged(tmp_path / "mine.py", tmp_path, version=seed, seed=seed)
        a_folder(runner.run_path(experiment), experiment, [judged("light", accuracy)])
    rows = api.load(tmp_path).results.rows()
    assert [row.score("test").percent() for row in rows] == ["71.7", "11.7"]
    labels = [row.label for row in rows]
    assert len(set(labels)) == 2
    assert all(label.startswith("mine (mine.py=") for label in labels)


def test_runs_that_differ_in_the_content_of_the_data_are_rows_of_their_own(tmp_path: Path):
    for seed, accuracy in ((0, 0.717), (1, 0.117)):
        data = tmp_path / "photos"
        data.mkdir(exist_ok=True)
        (data / "text").write_text(f"version {seed}")
        changes = {"seed": seed, "data": {"name": "folder", "path": str(data)}, "protocol.hold_out": "a"}
        (experiment,) = expand(override(TINY, changes))
        a_folder(tmp_path / experiment.run_name, experiment, [judged("a", accuracy)])
    rows = api.load(tmp_path).results.rows()
    assert [row.score("test").percent() for row in rows] == ["71.7", "11.7"]
    assert all(row.label.startswith("fedavg (path=photos ") for row in rows)


def test_the_same_content_elsewhere_is_the_same_row(tmp_path: Path):
    """A plugin under another path, with the same text: two seeds of one row."""
    for seed in (0, 1):
        experiment = plugged(tmp_path / str(seed) / "mine.py", tmp_path / "runs", seed=seed)
        a_folder(runner.run_path(experiment), experiment, [judged("light", 0.5)])
    (row,) = api.load(tmp_path / "runs").results.rows()
    assert (row.label, len(row.runs)) == ("mine", 2)


CHANGES: dict[str, list[Any]] = {
    "seed": [0, 1, 2],
    "protocol.hold_out": ["dark", "light"],
    "train.lr": [0.1, 0.2],
    "method.weighting": ["uniform", "samples"],
    "model.dim": [8, 9],
    "data.per_class": [10, 11],
    "evaluate.every": [1, 2],
    "name": ["a", "b"],
    "run.checkpoint_every": [1, 2],
}


@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHANGES.items()}), st.data())
def test_rows_tell_apart_what_fingerprints_do_but_for_seed_and_held_out_domain(chosen: dict[str, Any], data: Any):
    other = {name: data.draw(st.sampled_from(values)) for name, values in CHANGES.items()}
    (one,), (two,) = (expand(override(TINY, changes)) for changes in (chosen, other))
    free = {"name", "run.checkpoint_every"}
    same = all(chosen[name] == other[name] for name in CHANGES if name not in free)
    assert (one.fingerprint == two.fingerprint) == same
    rows = {"seed", "protocol.hold_out"} | free
    assert (one.series == two.series) == all(chosen[name] == other[name] for name in CHANGES if name not in rows)


def test_a_dry_run_tells_them_apart_as_well(tmp_path: Path):
    one = plugged(tmp_path / "mine.py", tmp_path, version=1)
    one.series  # noqa: B018  # is worked out before the file changes
    one.contents  # noqa: B018
    two = plugged(tmp_path / "mine.py", tmp_path, version=2, seed=1)
    assert one.series != two.series
    assert len(api.estimate([one, two])) == 2


# What is noticed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("finished")
    (experiment,) = expand(override(TINY, {"run.out": str(out)}))
    return runner.start(experiment, Progress())


@pytest.fixture
def folder(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of a finished run."""
    shutil.copytree(finished.path, tmp_path / finished.path.name)
    return RunFolder(tmp_path / finished.path.name)


def reading(folder: RunFolder) -> list[Any]:
    """All that can be asked of a run."""
    run = Run.open(folder.path)
    asked = (run.summary, run.records, run.notes, run.messages, run.table, folder.times(), folder.environment)
    return [*asked, {name: tensor.tolist() for name, tensor in run.weights.items()}, run.model()]


@pytest.mark.parametrize("name", sorted({*FILES} - {"environment.json"}))
@given(data=st.data())
def test_a_change_to_any_byte_of_any_file_is_noticed(finished: RunFolder, name: str, data: Any):
    """A flipped bit, a cut, or random bytes: whoever reads all of the run is told, with the file's name."""
    whole = (finished.path / name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "noise", "empty"]))
    match damage:
        case "flip":
            changed = bytearray(whole)
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            changed = bytearray(whole[:place])
        case "noise":
            changed = bytearray(data.draw(st.binary(min_size=1, max_size=64)))
        case _:
            changed = bytearray()
    same_settings = name == "experiment.toml" and _decides(bytes(changed)) == _decides(whole)
    try:
        (finished.path / name).write_bytes(changed)
        if same_settings:  # white space, a comment, or [run]
            reading(RunFolder(finished.path))
            return
        with refuses(name):
            reading(RunFolder(finished.path))
    finally:
        (finished.path / name).write_bytes(whole)


@pytest.mark.parametrize("change", ["doubled", "first removed", "last removed"])
def test_lines_of_times_that_were_added_or_removed_are_noticed(folder: RunFolder, change: str):
    lines = (folder.path / TIMINGS).read_bytes().splitlines(keepends=True)
    changed = {"doubled": [lines[0], *lines], "first removed": lines[1:], "last removed": lines[:-1]}
    (folder.path / TIMINGS).write_bytes(b"".join(changed[change]))
    assert TIMINGS in folder.damage()
    with refuses(TIMINGS, "fedshift resume"):
        folder.times()
    runner.resume(runner.below(folder.path), Progress())
    assert RunFolder(folder.path).damage() == ""
    assert (folder.path / "damaged-1" / TIMINGS).exists()


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", [EXPERIMENT, RUN])
def test_what_was_asked_for_cannot_be_made_again(make: Make, name: str, finished: bool):
    folder = runner.start(make(), Progress())
    if not finished:
        (folder.path / "manifest.json").unlink()
    (folder.path / name).unlink()
    for carry_on in (
        lambda: runner.resume(runner.below(folder.path), Progress()),
        lambda: runner.run_all([make()], Progress()),
    ):
        with refuses(name):
            carry_on()


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_an_error_at_once(folder: RunFolder, name: str):
    """In a process of its own, since whoever opens a pipe waits for somebody who writes."""
    (folder.path / name).unlink()
    os.mkfifo(folder.path / name)
    process = multiprocessing.get_context("fork").Process(target=_read_all, args=(folder.path, name))
    process.start()
    process.join(30)
    hanging = process.is_alive()
    process.kill()
    assert not hanging
    assert process.exitcode == 0


def _read_all(path: Path, name: str) -> None:
    with refuses(name):
        reading(RunFolder(path))


def _decides(text: bytes) -> Any:
    import tomllib

    try:
        return {key: value for key, value in tomllib.loads(text.decode()).items() if key != "run"}
    except (ValueError, RecursionError):
        return None


def test_a_damaged_run_is_left_out_of_a_report_and_named(folder: RunFolder, make: Make, tmp_path: Path):
    other = runner.start(make({"seed": 5, "run.out": str(tmp_path / "more")}), Progress())
    (folder.path / "records.jsonl").write_text("")
    comparison = api.load(tmp_path)
    assert comparison.folders == [other.path]
    assert any("A run is left out" in note and "records.jsonl" in note for note in comparison.results.notes)


def test_a_damaged_run_is_made_again_by_a_comparison_too(make: Make):
    experiment = make()
    folder = runner.start(experiment, Progress())
    before = (folder.path / "records.jsonl").read_bytes()
    (folder.path / "records.jsonl").write_bytes(before[:-40])
    runner.run_all([experiment], Progress())
    assert (folder.path / "records.jsonl").read_bytes() == before
    assert (folder.path / "damaged-1" / "records.jsonl").read_bytes() == before[:-40]


# Who may run --------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_refused_process_changes_nothing(make: Make):
    experiment = make({"train.rounds": 4, "run.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = RunFolder(runner.run_path(experiment))
    before = contents(folder.path)
    context = multiprocessing.get_context("fork")
    locked, done = context.Event(), context.Event()

    def hold() -> None:
        with folder.locked():
            locked.set()
            done.wait(60)

    other = context.Process(target=hold)
    other.start()
    try:
        assert locked.wait(60)
        for refused in (lambda: resume(folder), lambda: runner.run_all([experiment], Progress())):
            with refuses("Another process", "wait"):
                refused()
        assert contents(folder.path) == before
    finally:
        done.set()
        other.join()
    resume(folder)
    assert folder.finished


# Whose code is imported ---------------------------------------------------------------------------


@pytest.fixture
def from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunFolder, Path]:
    """An interrupted run whose plugin leaves a mark when it is imported; and that mark. This machine never ran it."""
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "their cache"))
    experiment = plugged(tmp_path / "mine.py", tmp_path / "runs", **{"train.rounds": 3, "run.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = RunFolder(runner.run_path(experiment))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "our cache"))
    return folder, tmp_path


def test_a_plugin_that_never_ran_here_needs_trust(from_elsewhere: tuple[RunFolder, Path]):
    folder, _ = from_elsewhere
    digest = folder.identity.plugins[folder.table()["plugins"][-1]]
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


def test_a_plugin_that_changed_is_named(from_elsewhere: tuple[RunFolder, Path]):
    folder, there = from_elsewhere
    (there / "mine.py").write_text("raise SystemExit('imported')")
    with refuses("mine.py'", "not what it was", "Restore"):
        api.resume(folder.path, Progress(), trust=True)
    (there / "mine.py").unlink()
    with refuses("mine.py'", "is missing", "Restore"):
        api.resume(folder.path, Progress(), trust=True)


def test_reports_import_nothing(from_elsewhere: tuple[RunFolder, Path]):
    folder, there = from_elsewhere
    (there / "mine.py").write_text("raise SystemExit('imported')")
    assert [row.label for row in Results.read([folder]).rows()] == ["mine"]


def test_a_cache_that_cannot_be_written_remembers_no_plugin(from_elsewhere: Any, monkeypatch: pytest.MonkeyPatch):
    folder, there = from_elsewhere
    (there / "a file").write_text("")
    monkeypatch.setenv("FEDSHIFT_CACHE", str(there / "a file"))
    assert not api.resume(folder.path, Progress(), trust=True).failed


@pytest.mark.parametrize("begun", [True, False])
def test_a_plugin_that_is_hidden_from_the_question_is_not_imported(from_elsewhere: tuple[RunFolder, Path], begun: bool):
    """Digests are no signatures: whoever made the files can leave the plugin out of what is asked about."""
    folder, there = from_elsewhere
    plugin = there / "mine.py"
    plugin.write_text("raise SystemExit('imported')")
    if begun:
        identity = folder.identity.model_copy(update={"plugins": {}})
        (folder.path / RUN).write_text(digested_json(identity.model_dump()))
    else:
        run = GridRun(folder="a run", fingerprint="f", plugins={}, experiment=folder.table())
        (there / "plan").mkdir()
        (there / "plan/grid-00000000.json").write_text(digested_json(Grid(runs=[run]).model_dump()))
    with refuses("mine.py'", "digest", "Restore"):
        api.resume(folder.path if begun else there / "plan", Progress())


# Where runs lie ------------------------------------------------------------------------------------


def test_runs_behind_links_count_once(folder: RunFolder, tmp_path: Path):
    """A run that was moved, one that is there by two names, a folder of runs, and links that lead in circles."""
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
    assert [found.path.relative_to(runs) for found in find(runs)] == [
        Path("a link"),
        Path("here"),
        Path("more/of a folder"),
    ]
    assert len(api.load(runs).runs) == 3
    assert [found.path for found in find(runs / "a link")] == [runs / "a link"]


def test_links_to_trials_are_no_results(folder: RunFolder, tmp_path: Path):
    study, runs = tmp_path / "study", tmp_path / "runs"
    study.mkdir()
    runs.mkdir()
    (study / "study.journal").write_text("{}")
    folder.path.rename(study / "trial")
    (runs / "trial").symlink_to(study / "trial")
    (runs / "study").symlink_to(study)
    assert find(runs, least=0) == []


# What was there is kept ---------------------------------------------------------------------------


def test_what_is_set_aside_replaces_nothing(make: Make):
    """Also where the user removed one of the folders that were made before."""
    folder = runner.start(make(), Progress())
    for accuracy in (1, 2):
        (folder.path / RECORDS).write_text(f"damaged {accuracy}")
        assert folder.set_aside().name == f"damaged-{accuracy}"
    shutil.rmtree(folder.path / "damaged-1")
    (folder.path / RECORDS).write_text("damaged 3")
    assert (folder.set_aside() / RECORDS).read_text() == "damaged 3"
    assert (folder.path / "damaged-2" / RECORDS).read_text() == "damaged 2"


# Reading while a run goes on ----------------------------------------------------------------------


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_no_damage(make: Make, monkeypatch: pytest.MonkeyPatch):
    experiment = make({"train.rounds": 4, "run.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = RunFolder(runner.run_path(experiment))
    (newest,) = folder.path.glob("manifest-*.json")
    plain, gone = folder_module.read_checkpoint, folder.path / "manifest-0.json"
    gone.write_bytes(newest.read_bytes())
    newest = newest.rename(folder.path / "kept")

    def meanwhile(*arguments: Any) -> Any:
        if gone.exists():
            gone.unlink()
            newest.rename(folder.path / "manifest-1.json")
        return plain(*arguments)

    monkeypatch.setattr(folder_module, "read_checkpoint", meanwhile)
    assert folder.records()


# What a report says -------------------------------------------------------------------------------


def test_a_report_says_which_runs_of_a_comparison_have_not_begun(make: Make, tmp_path: Path):
    """Two of three runs are interrupted before their first round; the third's folder is not there yet."""
    experiments = [make({"seed": seed, "run.out": str(tmp_path), "run.together": 1}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(experiments, interrupt_after(2))
    (note,) = api.load(tmp_path).results.missing
    assert note.startswith("2 of the 3 runs of a comparison have not begun (fedavg-light-seed1-")
    runner.resume(runner.below(tmp_path), Progress())
    assert api.load(tmp_path).results.missing == ()


@pytest.mark.parametrize("name", ["messages.json", "data.json", "environment.json"])
def test_a_run_whose_facts_are_damaged_is_left_out_before_anything_is_shown(folder: RunFolder, name: str):
    (folder.path / name).write_text("{}")
    with refuses(name):
        api.load(folder.path)
