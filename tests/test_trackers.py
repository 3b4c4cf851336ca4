"""Trackers get every evaluation of a run once, whenever it is tracked, and nothing of the run changes."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fedshift
import fresh
from conftest import AfterRound, Make, a_record, a_row, results
from fedshift import files
from fedshift.errors import FedshiftError, LockedError, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.reporting.trackers import TRACKERS
from fedshift.reporting.trackers.mlflow import MLflow
from fedshift.reporting.trackers.prometheus import Prometheus
from fedshift.reporting.trackers.tracker import TrackedRun, Tracker
from fedshift.runs import runner, scheduling
from fedshift.runs.events import PlannedStage, Progress, RunEvents
from fedshift.runs.origin import STUDY
from fedshift.runs.run import EVENTS, Run
from fedshift.runs.selection import scalars
from fedshift.spec import setting
from fresh import ok
from refusal import refuses

Steps = dict[int, dict[str, float]]
EXPERIMENT = {"train.rounds": 6, "run.checkpoint_every": 3}
KILLED_AFTER = 5


@TRACKERS.register("recording")
class Recording(Tracker):
    """Writes down what is called."""

    file: str = setting("calls.jsonl", help="the file")

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self._write(["begin", self.run.name, self.run.id, self.run.logged, values["train.lr"]])

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        self._write(["log", step, dict(values)])

    def finish(self, state: str) -> None:
        self._write(["finish", state])

    def _write(self, call: list[Any]) -> None:
        files.append(Path(self.file), json.dumps(call))


def calls(tracker: Recording) -> list[Any]:
    path = Path(tracker.file)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def logged(tracker: Recording) -> list[tuple[int, dict[str, float]]]:
    return [(step, values) for kind, step, *rest in calls(tracker) if kind == "log" for values in rest]


@pytest.fixture
def tracker(tmp_path: Path) -> Recording:
    return Recording(file=str(tmp_path / "calls.jsonl"))


def recorded(run: Run) -> list[tuple[int, dict[str, float]]]:
    """What a tracker must get."""
    return [(record["position"], scalars(record)) for record in run.records]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run but those of trackers."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith("trackers")}


def unlike_times(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without the files that contain times."""
    dated = ("events.jsonl", "timings.jsonl", "summary.json", "run.json", "experiment.toml", "manifest", ".lock")
    return {name: data for name, data in found.items() if not name.startswith(dated)}


def carry_out(experiment: Experiment, progress: Progress | None = None) -> Run:
    return runner.start(experiment, progress or Progress())


def test_scalars_are_the_means_of_a_record():
    """Of light two clients are scored, of dark one: accuracy (0.2 + 0.4) / 2 = 0.3, and (0.3 + 0.9) / 2 = 0.6.

    Two clients have the term nll, (1 + 2) / 2 = 1.5, and the server's is separate. AUROC is defined in dark alone.
    """
    rows = [
        a_row("light", "test", 0.2, model="own", loss=1.0, metrics={"auroc": None}),
        a_row("light", "test", 0.4, model="unseen", loss=3.0, metrics={"auroc": None}),
        a_row("dark", "test", 0.9, loss=math.inf, metrics={"auroc": 0.5}),
        a_row("a/b", "validation", 0.5, loss=0.0, metrics={"auroc": None}),
    ]
    terms = {"one": {"nll": 1.0}, "two": {"nll": 2.0, "l2r": 4.0}, "server": {"nll": 7.0}}
    found = scalars(a_record(3, rows, terms=terms, bytes_down=10, bytes_up=20))
    assert found == {
        **{"bytes/down": 10, "bytes/up": 20, "terms/nll": 1.5, "terms/l2r": 4.0, "terms/server/nll": 7.0},
        **{"test/accuracy": pytest.approx(0.6), "test/accuracy/light": pytest.approx(0.3), "test/accuracy/dark": 0.9},
        **{"test/loss": math.inf, "test/loss/light": 2.0, "test/loss/dark": math.inf},
        **{"test/auroc": 0.5, "test/auroc/dark": 0.5},
        **{"validation/accuracy": 0.5, "validation/accuracy/a/b": 0.5},
        **{"validation/loss": 0.0, "validation/loss/a/b": 0.0},
    }


def test_a_run_is_tracked_afterwards_and_each_evaluation_once(make: Make, tracker: Recording):
    run = carry_out(make())
    before = contents(run.path)
    assert fedshift.track(run.path, tracker) == {run.path: 2}
    begin, *_, finish = calls(tracker)
    assert begin == ["begin", run.path.name, begin[2], -1, 0.1]
    assert finish == ["finish", "finished"]
    assert logged(tracker) == recorded(run)
    assert fedshift.track(run.path.parent, tracker) == {run.path: 0}
    assert len(calls(tracker)) == 4
    assert contents(run.path) == before


def test_a_loss_that_is_infinite_is_tracked(make: Make, tracker: Recording, tmp_path: Path):
    run = Run.create(make(), tmp_path / "run")
    rows = [a_row("light", "test", 0.5, loss=math.inf), a_row("dark", "validation", 0.5)]
    RunEvents("run", path=run.path / EVENTS).evaluated(a_record(0, rows))
    RunEvents("run", path=run.path / EVENTS).end()
    fedshift.track(run.path, tracker)
    ((step, values),) = logged(tracker)
    assert (step, values["test/loss"]) == (0, math.inf)


def test_a_run_that_ends_without_another_evaluation_keeps_its_scores(make: Make, tmp_path: Path):
    run = Run.create(make(), tmp_path / "run")
    events, folder = RunEvents("run", path=run.path / EVENTS), tmp_path / "out"
    events.begin([PlannedStage(name="train", rounds=2, steps=1)])
    events.evaluated(a_record(0, [a_row("light", "test", 0.5)]))
    fedshift.track(run.path, "prometheus", folder=str(folder))
    (file,) = folder.iterdir()
    before = file.read_text()
    events.failed("why")
    fedshift.track(run.path, "prometheus", folder=str(folder))
    assert file.read_text() == before.replace('state="running"', 'state="failed"') != before


def test_tracking_a_run_while_it_goes_on_changes_nothing_of_it(make: Make, tracker: Recording):
    alone = carry_out(make({**EXPERIMENT, "run.out": str(Path(tracker.file).parent / "alone")}))
    experiment, seen = make(EXPERIMENT), list[int]()
    path = scheduling.run_path(experiment)

    def look(position: int) -> None:
        fedshift.track(path, tracker)
        seen.append(len(logged(tracker)))

    run = carry_out(experiment, AfterRound(look))
    assert seen == [0, 1, 2, 3, 4, 5]  # the evaluation of a round follows it
    fedshift.track(path, tracker)
    assert logged(tracker) == recorded(alone)
    assert len({call[2] for call in calls(tracker) if call[0] == "begin"}) == 1
    assert [call[1] for call in calls(tracker) if call[0] == "finish"] == ["running"] * 6 + ["finished"]
    assert results(run) == results(alone)
    assert unlike_times(contents(run.path)) == unlike_times(contents(alone.path))


def kill_itself(experiment: Experiment) -> None:
    """A run in whose fifth round the process is killed."""

    def call(position: int) -> None:
        if position == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)

    carry_out(experiment, AfterRound(call))


def test_after_a_kill_and_a_resume_every_step_is_there_once(make: Make, tracker: Recording):
    """The checkpoint is after round 3, and round 4 is evaluated before the kill: its evaluation comes twice."""
    whole = carry_out(make({**EXPERIMENT, "run.out": str(Path(tracker.file).parent / "whole")}))
    experiment = make(EXPERIMENT)
    path = scheduling.run_path(experiment)
    process = fresh.start(kill_itself, experiment)
    assert process.wait() == -signal.SIGKILL
    assert fedshift.track(path, tracker) == {path: 4}
    assert calls(tracker)[-1] == ["finish", "running"]
    fedshift.resume(path, progress=Progress())
    lines = [json.loads(line) for line in (path / EVENTS).read_text().splitlines()]
    positions = [line["position"] for line in lines if line["kind"] == "evaluated"]
    assert positions == [1, 2, 3, 4, 4, 5, 6]
    afterwards = tracker.replace(file=f"{tracker.file}.2")
    assert fedshift.track(path, [tracker, afterwards]) == {path: 6}
    assert logged(tracker) == logged(afterwards) == recorded(whole)
    assert [call[3] for call in calls(tracker) if call[0] == "begin"] == [-1, 4]


def test_it_waits_for_a_run_until_that_is_over(make: Make, tracker: Recording):
    experiment = make(EXPERIMENT)
    process = fresh.start(carry_out, experiment)
    path = scheduling.run_path(experiment)
    assert fedshift.track(path, tracker, wait=True) == {path: 6}
    assert process.wait() == 0
    assert logged(tracker) == recorded(Run(path))
    assert [call[0] for call in calls(tracker)].count("begin") == 1


def test_nobody_sees_the_test_scores_of_trials(make: Make, tracker: Recording):
    run = carry_out(make())
    (run.path.parent / STUDY).touch()
    fedshift.track(run.path, tracker)
    names = {name.partition("/")[0] for _, values in logged(tracker) for name in values}
    assert names == {"bytes", "terms", "validation"}


def test_what_cannot_be_tracked_is_named_after_the_others_were(make: Make, tracker: Recording):
    runs = [carry_out(make({"seed": seed})) for seed in range(3)]
    runs[0].experiment_file.write_text("name = 1")
    (runs[1].path / "trackers").touch()
    with refuses("2 runs cannot be tracked", "describes a different experiment", "Copy the run's folder"):
        fedshift.track(runs[0].path.parent, tracker)
    assert logged(tracker) == recorded(runs[2])


def test_two_processes_do_not_log_the_same(make: Make, tracker: Recording):
    run = carry_out(make())

    @TRACKERS.register("second")
    class Second(Recording):
        def store_init_configuration(self, values: Mapping[str, Any]) -> None:
            with refuses("Another process tracks", error=LockedError):
                fedshift.track(run.path, self.replace())

    fedshift.track(run.path, Second(file=tracker.file))
    assert logged(tracker) == recorded(run)


@pytest.mark.parametrize(
    ("to", "settings", "kind", "words"),
    [
        ("tensorbord", {}, UnknownNameError, "Did you mean 'tensorboard'"),
        ("prometheus", {"uri": "x"}, UnknownNameError, "Unknown field of [tracker] 'uri'"),
        ("wandb", {"mode": "on"}, FedshiftError, "tracker.mode = 'on'"),
        ("prometheus", {}, FedshiftError, "No run folder"),
    ],
)
def test_what_is_asked_for_is_checked_first(to: str, settings: dict[str, str], kind: Any, words: str, tmp_path: Path):
    with refuses(words, error=kind):
        fedshift.track(tmp_path, to, **settings)


def test_the_command_tracks_with_trackers_of_plugins(make: Make, tmp_path: Path):
    run = carry_out(make())
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import fedshift\n\n\n"
        '@fedshift.TRACKERS.register("mine")\n'
        "class Mine(fedshift.Tracker):\n"
        '    """Prints."""\n\n'
        "    def log(self, values, step, when):\n"
        '        print(self.run.name, step, values["test/accuracy"])\n'
    )
    command = ["track", str(run.path), "--to", "mine,prometheus", "--set", f"tracker.folder={tmp_path}"]
    lines = ok(*command, "--plugin", str(plugin)).splitlines()
    assert lines == [
        *(f"{run.path.name} {step} {values['test/accuracy']}" for step, values in recorded(run)),
        "1 run, 2 new evaluations: mine,prometheus",
    ]
    assert len([*tmp_path.glob("*.prom")]) == 1
    assert "prometheus" in ok("list", "trackers")
    assert "--set tracker.NAME=VALUE" in ok("show", "tensorboard")


# The pages --------------------------------------------------------------------------------------


def test_prometheus_has_the_last_scores_in_its_text_format(tmp_path: Path):
    """Quotes, backslashes and line ends in labels are escaped; a later pass without scores keeps those there are."""
    run = TrackedRun(tmp_path / "r", 'a"\\\n', "fedavg", 1, "id", -1)
    prometheus = Prometheus(folder=str(tmp_path / "out"))
    tracked = prometheus.of(run)
    tracked.store_init_configuration({})
    tracked.log({"bytes/up": 1, "test/loss": 5.0}, 1, 2.0)
    tracked.log({"bytes/up": 3, "terms/l2r": math.nan, "test/loss": math.inf, "test/loss/x/y": 0.25}, 2, 4.5)
    tracked.flush()
    again = prometheus.of(run)
    again.store_init_configuration({})
    again.finish("failed")
    of_run = 'experiment="a\\"\\\\\\n",run="r",id="id",method="fedavg",seed="1"'
    lines = [line for line in tracked.file.read_text().splitlines() if not line.startswith("#")]
    assert lines == [
        f"fedshift_rounds{{{of_run}}} 2",
        f"fedshift_evaluated_seconds{{{of_run}}} 4.5",
        f'fedshift_score{{{of_run},role="test",metric="loss",environment="x/y"}} 0.25',
        f'fedshift_mean_score{{{of_run},role="test",metric="loss"}} +Inf',
        f'fedshift_loss_term{{{of_run},term="l2r"}} NaN',
        f'fedshift_bytes{{{of_run},direction="up"}} 3',
        f'fedshift_state{{{of_run},state="failed"}} 1',
    ]
    heads = [line.split(" ", 3)[1:3] for line in tracked.file.read_text().splitlines() if line.startswith("#")]
    assert heads == [[kind, line.partition("{")[0]] for line in lines for kind in ("HELP", "TYPE")]


def from_tensorboard(folder: Path) -> Steps:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "runs"))
    (below,) = {path.parent for path in Path(events.path).rglob("*.tfevents.*")}
    events = EventAccumulator(str(below)).Reload()
    found: Steps = {}
    for name in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(name)]
        assert len(steps) == len({*steps})
        for event in events.Scalars(name):
            found.setdefault(event.step, {})[name] = event.value
    return found


def from_mlflow(folder: Path) -> Steps:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert (run.info.status, run.data.params["train.lr"]) == ("FINISHED", "0.1")
    found: Steps = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        assert len(history) == len({each.step for each in history})
        for each in history:
            found.setdefault(each.step, {})[name] = each.value
    return found


def records_of(data: bytes) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format, after a head of seven bytes, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := -place % 2**15) and left < 7:
            place += left
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def from_wandb(folder: Path) -> Steps:
    found: Steps = {}
    parts = sorted(folder.rglob("run-*.wandb"))
    assert len({part.name for part in parts}) == 1  # the id
    for part in parts:
        for record in records_of(part.read_bytes()):
            if record.WhichOneof("record_type") == "history":
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                step = row.pop("_step")
                assert step not in found
                found[step] = {name: value for name, value in row.items() if not name.startswith("_")}
    return found


def test_names_that_mlflow_refuses_are_escaped():
    from fedshift.reporting.trackers.mlflow import _key

    assert _key("test/loss/Köln, 50%") == "test/loss/Köln_2c_ 50_25_"
    assert MLflow(uri="sqlite:///here.db").uri == f"sqlite:///{Path.cwd() / 'here.db'}"


@pytest.mark.parametrize(
    ("name", "read"), [("tensorboard", from_tensorboard), ("mlflow", from_mlflow), ("wandb", from_wandb)]
)
def test_what_a_tracker_stored_is_read_back(name: str, read: Callable[[Path], Steps], make: Make, tmp_path: Path):
    """In two goes, the first during the run; the package's own reader then has every step once."""
    if find_spec(name) is None:
        pytest.skip(f"the extra {name} is not installed")
    experiment = make({**EXPERIMENT, "evaluate.metrics": ["macro-f1"]})
    path, words = scheduling.run_path(experiment), ("track", tmp_path / "runs", "--to", name)

    def look(position: int) -> None:
        if position == 4:
            done = fresh.command(*words, cwd=tmp_path)
            assert done.stdout == f"1 run, 3 new evaluations: {name}\n", done.stderr

    run = carry_out(experiment, AfterRound(look))
    assert fresh.command(*words, cwd=tmp_path).stdout == f"1 run, 3 new evaluations: {name}\n"
    assert path == run.path
    found, least = fresh.call(read, tmp_path), 1e-6  # TensorBoard has single precision
    assert found == {step: pytest.approx(values, rel=least) for step, values in recorded(run)}
