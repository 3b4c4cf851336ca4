"""What the tests share: a tiny federation and short ways to run it."""

from __future__ import annotations

import os

# Read when torch is loaded: threads that wait for one another sleep, since on busy cores they spin for seconds.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import gc
import json
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported; two threads on a busy core wait by spinning

import hypothesis
import pytest
import torch
from torch import Tensor, nn

import fresh
from fedshift import files
from fedshift.clients.samples import Client, Environment, Samples
from fedshift.core.contract import Batch, Context, Exchange, LocalWork, Objective, Term
from fedshift.core.messages import Down, Message, Up
from fedshift.core.method import Method
from fedshift.core.net import Net
from fedshift.core.setup import Round
from fedshift.core.state import ClientState
from fedshift.core.tensors import Replies, Tensors
from fedshift.engines.banks import Resident
from fedshift.engines.engine import Engine, Outcome, Question, Score
from fedshift.engines.sequential import Sequential
from fedshift.experiments import Experiment, load_plugins
from fedshift.manifest import write_file
from fedshift.rounds.ledger import Direction, Ledger
from fedshift.runs import runner
from fedshift.runs.checkpoint import Summary
from fedshift.runs.events import AnyEvent, Progress, RunEvents
from fedshift.runs.lockstep import advance
from fedshift.runs.recorder import Recorder
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.selection import summary
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand, override

load_plugins([str(Path(__file__).parent / "tiny.py")])
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background job, and in all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
# One thread, as workers have, with which results are compared bit for bit; also where a run counts the cores itself.
# Tests go side by side on all cores, where threads of one wait for those of another: 2 s become 40.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
fresh.without_syncing()

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {"name": "tiny"},
    "protocol": {"name": "leave-one-domain-out", "hold_out": "light"},
    "model": {"name": "mlp", "dim": 4, "hidden": [8]},
    "method": {"name": "fedavg"},
    "train": {"rounds": 2, "steps": 2, "batch": 4, "lr": 0.1},
    "evaluate": {"every": 1},
    "run": {"device": "cpu", "engine": "sequential", "threads": 1},
}
CNN_WITH_BN = {"model.name": "cnn", "model.norm": "batch", "model.channels": [2, 3], "model.dim": 4}

Make = Callable[..., Experiment]


# The same examples in every run, so that what passes here passes elsewhere.
hypothesis.settings.register_profile("default", derandomize=True, deadline=None, max_examples=15)
hypothesis.settings.register_profile("large", derandomize=True, deadline=None, max_examples=100)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of tests/attack is run, and how many examples Hypothesis makes."""
    parser.addoption("--attack", choices=("small", "large"), default="small", help="how much is attacked")


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis's own option ``--hypothesis-profile`` comes first."""
    config.addinivalue_line("markers", "large: run with --attack large only")
    large = config.getoption("--attack") == "large"
    profile = os.environ.get("HYPOTHESIS_PROFILE", "large" if large else "default")
    hypothesis.settings.load_profile(config.getoption("--hypothesis-profile", None) or profile)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Exclude what only the large attack runs."""
    if config.getoption("--attack") != "large":
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("large")])
        items[:] = [item for item in items if not item.get_closest_marker("large")]


def pytest_collection_finish() -> None:
    """What is there before any test, modules and the tests themselves, is not looked through for garbage again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tiny_document(tmp_path: Path) -> dict[str, Any]:
    """The tiny experiment as a table, its runs below a temporary folder."""
    return override(TINY, {"run.out": str(tmp_path / "runs")})


@pytest.fixture
def make(tiny_document: dict[str, Any]) -> Make:
    """A function that makes one tiny experiment, with dotted changes."""

    def build(changes: dict[str, Any] | None = None) -> Experiment:
        (experiment,) = expand(override(tiny_document, changes or {}))
        return experiment

    return build


def linear(*rows: float | list[float]) -> nn.Linear:
    """A linear layer without bias that has these weights, a row for each output."""
    weight = torch.tensor(rows).view(len(rows), -1)
    layer = nn.Linear(weight.shape[1], len(rows), bias=False)
    layer.weight.data = weight
    return layer


def at(
    round: int = 1,
    rounds: int = 1,
    received: Mapping[str, Tensor] | None = None,
    noise: Mapping[str, Tensor] | None = None,
    client: int = 0,
    counts: Sequence[int] = (),
    replies: Sequence[tuple[int, Tensors]] = (),
) -> Context:
    """What an objective may know, for a test that calls its loss by hand."""
    known = Tensors(received), Tensors(), torch.tensor(counts)
    return Context(*known, round, rounds, noise or {}, torch.tensor(client), Replies(replies))


def local_work(trained: Tensors, private: Tensors, received: Tensors, **more: Any) -> LocalWork:
    """What a client of 5 samples of one class has after a step, or as many as are given, at 0.1."""
    known = {"received": Down(received), "measured": Tensors(), "counts": torch.tensor([5, 0])}
    train = Samples(torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64))
    return LocalWork(trained=trained, private=private, train=train, **{**known, "steps": 1, "lr": 0.1, **more})


def losses(terms: Mapping[str, Term], net: Net, batch: Batch, context: Context) -> dict[str, Tensor]:
    """The weighted terms of a batch that is not encoded."""
    return Objective("by hand", terms, ()).evaluate(net, batch, context)


def values(terms: Mapping[str, Tensor]) -> dict[str, float]:
    """Terms as numbers."""
    return {name: term.item() for name, term in terms.items()}


class Begun(Progress):
    """The names of the runs that begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def handle(self, run: str, event: AnyEvent) -> None:
        if event.kind == "begin":
            self.begun.append(run)


class AfterRound(Progress):
    """Calls a function with the number of rounds done after each round."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call

    def after_round(self, run: str, position: int) -> None:
        self.call(position)


def interrupt_after(last: int) -> Progress:
    """Ctrl-C after that many rounds."""

    def call(position: int) -> None:
        if position == last:
            raise KeyboardInterrupt

    return AfterRound(call)


_ENGINES: WeakKeyDictionary[Simulation, Sequential] = WeakKeyDictionary()


def engine_of(simulation: Simulation) -> Sequential:
    """The reference engine that these helpers use for a simulation."""
    return _ENGINES.setdefault(simulation, Sequential())


def resident(simulation: Simulation) -> Resident:
    """The modules in which that engine trains."""
    return engine_of(simulation).resident(simulation.setup)


def net_of(simulation: Simulation) -> Net:
    """The net of a client in that engine."""
    return resident(simulation).client.net


def go_on(simulation: Simulation, engine: Engine | None = None, events: RunEvents | None = None) -> None:
    """Run the next round."""
    for error in advance([simulation], engine or engine_of(simulation), {simulation: events or RunEvents()}).values():
        raise error


def names_sent(simulation: Simulation, exchange: str, direction: str) -> set[str]:
    """The names of all tensors that ever crossed the wire in one direction of an exchange."""
    return set(simulation.coordinator.ledger.declaration()[exchange][direction]["tensors"])


class Remembering(Ledger):
    """A ledger that keeps, for tests that inspect values, the first message of each exchange and direction."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[tuple[str, str], Message] = {}
        self.sizes: Counter[str] = Counter()  # the bytes of all messages of a direction, as they are sent

    def add(self, exchange: str, direction: Direction, message: Message, client: int, round: int) -> None:
        self.first.setdefault((exchange, direction), message)
        self.sizes[direction] += len(message.to_bytes())
        super().add(exchange, direction, message, client, round)


def first_messages(experiment: Experiment, rounds: int = 1) -> dict[tuple[str, str], Message]:
    """The first message of each exchange and direction in a run's first rounds."""
    simulation = Simulation(experiment)
    simulation.coordinator.ledger = ledger = Remembering()
    for _ in range(rounds):
        go_on(simulation)
    return ledger.first


def states(simulation: Simulation) -> list[tuple[int, ClientState]]:
    """What every client that took part keeps, in id order."""
    held = [(client, simulation.site.store.get(client)) for client in simulation.site.store.ids()]
    return [(client, state) for client, state in held if state is not None]


def exchanged(
    simulation: Simulation, exchange: Exchange, when: Round, clients: Sequence[Client], engine: Engine | None = None
) -> dict[int, Up]:
    """Make one exchange with some clients, without the server's part."""
    orders = simulation.coordinator.orders(exchange, when, [client.id for client in clients])
    jobs = [
        replace(simulation.site.job(order), client=client, exchange=exchange)
        for order, client in zip(orders, clients, strict=True)
    ]
    ups = {}
    for job, outcome in zip(jobs, (engine or engine_of(simulation)).train(jobs), strict=True):
        if not isinstance(outcome, Outcome):
            raise outcome
        ups[outcome.client] = simulation.site.keep(job, outcome).up
    return ups


def evaluated(simulation: Simulation, when: Round) -> Record:
    """Score every environment."""
    return simulation.record(when, engine_of(simulation))


def models_of(simulation: Simulation, environment: Environment) -> list[Tensors]:
    """The models with which an environment would be scored now."""
    coordinator, last = simulation.coordinator, simulation.coordinator.schedule[-1].stage.training
    send = partial(coordinator.down, last)
    return simulation.evaluation.models(environment, coordinator.state, send)


def scored(
    simulation: Simulation, model: Tensors, environment: Environment, when: Round, method: Method | None = None
) -> Score:
    """Score one model on one environment, as the run's method predicts or as another does."""
    setup = replace(simulation.setup, method=method) if method else simulation.setup
    (score,) = engine_of(simulation).score([Question(setup, model, environment, simulation.federated.inputs, when)])
    return score


def simulate(
    experiment: Experiment, rounds: int | None = None, engine: Engine | None = None, folder: Path | None = None
) -> Simulation:
    """Run a run's rounds in memory; with a folder, from the checkpoint there to one of its last round."""
    simulation = Simulation(experiment)
    recorder = None if folder is None else attach(simulation, folder)
    for _ in simulation.coordinator.schedule[simulation.coordinator.position : rounds]:
        go_on(simulation, engine)
    if recorder is not None:
        save(recorder)
    return simulation


def attach(simulation: Simulation, path: Path) -> Recorder:
    """Keep client states and checkpoints in a folder, and continue from the newest one there."""
    folder = Run(path)
    if not folder.has_started:
        Run.create(simulation.experiment, path)
    recorder = Recorder(folder, simulation.coordinator, simulation.evaluation.read, simulation.site)
    recorder.begin(simulation.blueprint)
    return recorder


def save(recorder: Recorder) -> None:
    """A checkpoint of a run that records nothing."""
    recorder.save({}, ())
    recorder.keep_only(recorder.position)


def resume(folder: Run, progress: Progress | None = None) -> None:
    """Carry a run on; what goes wrong is raised."""
    _, failed = runner.resume(runner.below(folder.path), progress or Progress())
    for error in failed.values():
        raise error


def results(folder: Run) -> tuple[Any, ...]:
    """What must be equal of runs that are: records, messages, weights, and all state of the last checkpoint."""
    checkpoint = folder.checkpoint
    assert checkpoint is not None
    unequal = ("timings.jsonl",)  # what a run took
    named = {name: each.digest for name, each in checkpoint.files.items() if name not in unequal}
    counted = checkpoint.model_dump(exclude={"engine", "together", "files"})  # which decide nothing but the last bits
    names = ("records.jsonl", "messages.json", "weights.safetensors")
    return *((folder.path / name).read_bytes() for name in names), named, counted


def a_row(environment: str, role: str, accuracy: float, **changes: Any) -> dict[str, Any]:
    """A row of a record."""
    row = {"environment": environment, "role": role, "model": "global", "models": 1, "n": 9}
    return row | {"accuracy": accuracy, "loss": 1.0} | changes


def a_record(position: int, rows: Sequence[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A record with made-up rows."""
    counts = {"bytes_down": 1, "bytes_up": 1, "bytes_telemetry": 0}
    record = {"position": position, "stage": "train", "round": position, **counts, "terms": {}}
    return record | {"environments": list(rows)} | changes


def add_record(folder: Run, record: dict[str, Any]) -> None:
    """Record something in the folder of a run that is not finished."""
    files.append(folder.path / "records.jsonl", json.dumps(record))


def a_folder(path: Path, experiment: Experiment, records: Sequence[dict[str, Any]]) -> Run:
    """A finished run with made-up records."""
    folder = Run.create(experiment, path)
    inputs = {"augment": False, "normalise": False, "vocabulary": []}
    nobody: dict[str, Any] = {"clients": {}, "domains": {}, "samples": {}, "environments": []}
    about = {"shape": [], "classes": [], "columns": [], "type": "Inputs", "inputs": inputs, **nobody}
    texts = {
        "data.json": json.dumps(about),
        "messages.json": "{}",
        "records.jsonl": "".join(json.dumps(record) + "\n" for record in records),
        "timings.jsonl": "",
    }
    named = {name: write_file(path / name, text.encode()) for name, text in texts.items()}
    done = Summary(run=folder.identity.fingerprint, files=named, selected=summary(records) if records else {}, notes=[])
    done.write(path / "summary.json")
    return folder
