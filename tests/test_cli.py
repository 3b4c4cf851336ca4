"""The command line as a user meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer
from typer.testing import CliRunner

import fresh
from conftest import interrupt_after, resume
from fedshift.cli.app import app
from fedshift.engines import timings
from fedshift.engines.choice import Choice
from fedshift.engines.kernels import Kernels
from fedshift.engines.workers import can_fork
from fedshift.errors import FedshiftError, FedshiftWarning
from fedshift.methods import METHODS
from fedshift.runs import runner, scheduling
from fedshift.runs import simulation as simulation_module
from fedshift.runs.run import Run
from fedshift.study import api
from fedshift.study.grid import expand, override
from fresh import ok

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def experiment_file(tiny_document: dict[str, Any], tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(tiny_document))
    return file


def test_every_command_helps_with_examples():
    for command in typer.main.get_command(app).commands:  # type: ignore[attr-defined]  # it is a group
        if command != "federation":
            assert f"fedshift {command}" in ok(command, "--help").split("Examples:")[1]


def test_run_writes_a_folder_a_table_and_a_report(experiment_file: Path, tmp_path: Path):
    output = ok("run", str(experiment_file), "--method", "fedsr", "--set", "method.l2r=0.05")
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    assert {"experiment.toml", "records.jsonl", "summary.json", "messages.json", "run.json", "report.html"} <= {
        path.name for path in folder.iterdir()
    }
    assert "l2r = 0.05" in (folder / "experiment.toml").read_text()
    assert "target light" in output
    assert "oracle" in output
    assert str(folder) in output


def test_compare_makes_one_table_and_does_not_repeat(experiment_file: Path):
    arguments = [
        "compare",
        str(experiment_file),
        *["--method", "fedavg,fedsr", "--hold-out", "dark,light", "--seed", "0,1"],
    ]
    first = ok(*arguments)
    assert first.count("done: ") == 8
    assert "target mean" in first
    second = ok(*arguments)
    assert second.count("finished before") == 8
    assert "done: " not in second


def test_protocol_is_an_option_and_means_what_it_does_in_python(experiment_file: Path):
    output = ok("compare", str(experiment_file), "--protocol", "in-domain", "--method", "fedavg", "--rounds", "1")
    assert "hold_out" in output.split("Note: ")[1]  # of the file's protocol, which is stated not to be used
    (run,) = api.load(experiment_file.parent / "runs").runs
    with pytest.warns(FedshiftWarning, match="hold_out"):
        (requested,) = api.grid(str(experiment_file), protocol="in-domain", method="fedavg", rounds=1)
    assert run.identity.fingerprint == requested.fingerprint
    assert run.table["protocol"]["name"] == "in-domain"
    assert "in-domain" in refused("run", str(experiment_file), "--protocol", "indomain", "--dry-run")


def test_bench_measures_each_method_once(experiment_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timings, "TURN", 0.0)
    monkeypatch.setattr(timings, "LAPS", 0)
    arguments = ("bench", str(experiment_file), "--method", "fedavg,fedsr", "--seed", "0,1")
    assert "Nothing was measured" in ok(*arguments, "--dry-run")
    output = ok(*arguments)
    assert output.count("Engine: ") == 2
    assert "sequential on 1 thread" in output
    assert not (tmp_path / "runs").exists()


def test_auto_is_chosen_once_and_a_resumed_run_keeps_it(
    tiny_document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The choice is made by whatever was measured; here the slowest looks fastest, and later another does."""
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    kernels = Kernels()
    choices = iter([Choice("vectorised", 1, 1, kernels), Choice("sequential", 1, 1, kernels)])
    monkeypatch.setattr(simulation_module, "choose", lambda jobs, options, notify: next(choices))
    (experiment,) = expand(
        override(tiny_document, {"run.engine": "auto", "train.rounds": 3, "run.checkpoint_every": 1})
    )
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    folder = Run.open(scheduling.run_path(experiment))
    resume(folder)
    assert folder.times.engines == ("vectorised on 1 thread",)
    assert next(choices).engine == "sequential"  # nobody requested again


def test_a_plugin_is_listed_and_shown_with_defaults_ranges_and_sources():
    example = str(Path(__file__).parents[1] / "examples" / "my_prox.py")
    assert "my-prox" in ok("list", "methods", "--plugin", example)
    assert "mu = 0.1" in ok("show", "my-prox", "--plugin", example)
    lines = " ".join(ok("show", "fedsr").split())
    assert "l2r = 0.01 weight of the norm of z number >= 0; search: 0.0001 to 1 (log); source: Eq. 9, 10-11" in lines


@pytest.mark.parametrize("words", [["--help"], ["list", "methods"], ["run", "--method", "fedsr", "--dry-run"]])
def test_what_answers_at_once_imports_little(words: list[str]):
    """In a separate interpreter, as imports are the claim; pages import torch, so that a list does as well."""
    heavy = {
        "matplotlib",
        "pandas",
        "scipy",
        "sklearn",
        "transformers",
        "datasets",
        "optuna",
        "flwr",
        "ray",
        "torch._dynamo",
    }
    heavy |= {"fedshift.study.tune"}
    heavy |= {"torch"} if words == ["--help"] else set()
    code = f"""
import sys
from fedshift.cli.main import main
sys.argv = ["fedshift", *{words}]
try:
    main()
except SystemExit as end:
    assert not end.code
print(sorted({heavy} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_names_complete_after_the_last_comma():
    from fedshift.cli.options import complete, experiment_names, names_of, setting_names

    assert names_of("METHODS")("fedavg,fedsr") == ["fedavg,fedsr"]
    assert set(names_of("METHODS")("fedavg,fed")) >= {"fedavg,fedprox", "fedavg,fedsr"}
    assert complete(setting_names)("train.step_") == ["train.step_every=", "train.step_at=", "train.step_factor="]
    assert names_of("PROTOCOLS")("in-d") == ["in-domain"]
    assert "data.sep=" in complete(setting_names)("data.se")
    assert complete(experiment_names)("rotated-mnist-i") == ["rotated-mnist-in-domain"]


def test_an_option_of_one_value_is_given_once():
    """Click would silently take the last."""
    assert "--method is given 3 times" in refused("run", "-m", "fedavg", "--method=fedsr", "-mfedbn")


@pytest.mark.skipif(not can_fork(), reason="processes cannot be forked here")
@pytest.mark.parametrize(
    ("sent", "end", "engine", "code", "word"),
    [
        (signal.SIGTERM, os.kill, "sequential", 143, "Terminated."),
        (signal.SIGTERM, os.killpg, "workers", 143, "Terminated."),  # as a service manager does
        (signal.SIGINT, os.killpg, "workers", 130, "Interrupted."),  # as a terminal does
    ],
)
def test_a_command_that_is_asked_to_end_says_how_to_go_on(
    tiny_document: dict[str, Any],
    tmp_path: Path,
    sent: signal.Signals,
    end: Callable[[int, int], None],
    engine: str,
    code: int,
    word: str,
):
    """A real process running: a message, the exit code of the signal, no worker left, no traceback."""
    file = tmp_path / "slow.toml"
    changes = {"method.name": "slow-fedsr", "train.rounds": 1000, "run.checkpoint_every": 1, "run.workers": 2}
    document = override(tiny_document, {**changes, "run.engine": engine})
    file.write_text(tomli_w.dumps(document))
    plugin = Path(__file__).parent / "tiny.py"
    child = fresh.start(fresh.fedshift, "run", str(file), "--plugin", str(plugin))
    fresh.until(lambda: list(tmp_path.glob("runs/tiny/*/manifest-*.json")), child)
    end(child.pid, sent)
    assert child.wait() == code, child
    errors = child.stderr
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    assert word in errors
    assert f"`fedshift resume {folder}` continues" in errors.replace("\n", "")
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):  # nobody of its group is left
        os.killpg(child.pid, 0)


# One method, and several of which one cannot run ------------------------------------------------


def refused(*arguments: str) -> str:
    """The one error of a command."""
    with pytest.raises(FedshiftError) as raised:
        RUNNER.invoke(app, list(arguments), catch_exceptions=False)
    return str(raised.value)


def test_a_run_takes_the_first_method_of_the_experiment_and_says_so(tiny_document: dict[str, Any], tmp_path: Path):
    file = tmp_path / "two.toml"
    file.write_text(tomli_w.dumps({**tiny_document, "method": {"name": ["fedprox", "fedavg"]}}))
    for options in (["--dry-run"], []):
        result = RUNNER.invoke(app, ["run", str(file), *options], catch_exceptions=False)
        assert result.exit_code == 0
        (note,) = (line for line in result.stderr.splitlines() if line.startswith("Note: "))
        assert "fedprox" in note
        assert "--method fedavg" in note
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    assert folder.name.startswith("fedprox-")
    for given in (["--method", "fedprox,fedavg"], ["--set", "method.name=fedprox,fedavg"]):
        assert "`fedshift compare`" in refused("run", str(file), *given)


@pytest.mark.parametrize("words", [("rn",), ("federation", "ini")])
def test_a_mistyped_command_has_one_suggestion(words: tuple[str, ...]):
    message = refused(*words)
    assert f"'{words[-1]}'" in message
    assert message.count("Did you mean") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--method", "fedavg,,fedsr"),
        ("compare", "--seed", "0,,1"),
        ("tune", "--search", "method.mu=0.1,,1", "--method", "fedprox", "--dry-run"),
        ("federation", "init", "x", "--sites", "a,,b"),
    ],
)
def test_nothing_between_two_commas_is_refused(words: tuple[str, ...]):
    given = next(word.split("=")[-1] for word in words if "," in word)
    message = refused(*words)
    assert f"'{given}'" in message
    assert "comma" in message


def test_a_method_that_cannot_run_is_a_row_with_its_reason(
    experiment_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """SCAFFOLD under momentum comes first, and a method whose extra is not installed last; the one between runs."""

    def lacking(self: Any, model: Any) -> Any:
        raise FedshiftError("FedLC needs the 'logit' extra: pip install it")

    monkeypatch.setattr(METHODS.get("fedlc"), "parts", lacking)
    words = ["compare", str(experiment_file), "--method", "scaffold,fedavg,fedlc", "--set", "train.momentum=0.9"]
    words += ["--set", "method.scaffold.variate=steps"]
    forecast = ok(*words, "--dry-run")
    assert not (tmp_path / "runs").exists()
    result = RUNNER.invoke(app, words)
    assert isinstance(result.exception, FedshiftError)  # as after a run that diverged
    assert "2 of 3 runs failed" in str(result.exception)
    folders = (path for path in (tmp_path / "runs" / "tiny").iterdir() if path.is_dir())
    assert len([folder for folder in folders if Run(folder).finished]) == 1
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text()
    for output in (forecast, result.output):
        for method, reason in (("scaffold", "train.momentum = 0.9"), ("fedlc", "'logit' extra")):
            row = next(line.split() for line in output.splitlines() if line.strip().startswith(method))
            assert row.count("-") >= 4
            assert f"Note: {method}: " in output
            assert reason in output.replace("\n", " ")
            assert f"{method}: " in page


def test_where_no_method_can_run_the_reason_is_the_error(experiment_file: Path, tmp_path: Path):
    words = ["compare", str(experiment_file), "--method", "scaffold", "--set", "train.momentum=0.9,0.5"]
    words += ["--set", "method.variate=steps"]
    for options in ([], ["--dry-run"]):
        assert refused(*words, *options).startswith("train.momentum = 0.9: ")
    assert "'nowhere'" in refused("compare", str(experiment_file), "--hold-out", "nowhere")
    assert not (tmp_path / "runs").exists()


# A folder that cannot be written ----------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("run", "EXPERIMENT", "--out", "file/runs"),
        ("tune", "EXPERIMENT", "--out", "file/runs"),
        ("reproduce", "fedsr-table1", "--out", "file/runs"),
        ("federation", "init", "trial", "--to", "file", "--sites", "a,b", "--method", "fedavg"),
    ],
)
def test_a_folder_that_cannot_be_made_is_noticed_before_data_are_read(
    experiment_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    """And so before engines are measured, which takes a loaded run."""

    def read(*arguments: Any) -> Any:
        raise AssertionError("data are read")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    simulation_module.load_data.cache_clear()
    monkeypatch.setattr(simulation_module, "read_data", read)
    message = refused(*(str(experiment_file) if word == "EXPERIMENT" else word for word in words))
    assert "file" in message
    assert "give another folder" in message
