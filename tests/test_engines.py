"""Every engine gives what the reference engine gives, but for rounding, for every method and model.

In float64 that is shown to 1e-9: an engine that trained on another batch, merged another reply or kept another moment
would be off by a part in ten, not in a billion.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import cycle, permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from conftest import CNN_WITH_BN, Make, go_on, simulate, states
from fedshift.core.contract import Batch, Context, Phase, Term
from fedshift.core.net import Net
from fedshift.engines import lane, vectorised
from fedshift.engines.engine import Engine, Question
from fedshift.engines.kernels import Kernels
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.engines.workers import Workers, can_fork
from fedshift.errors import DivergedError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.lockstep import advance
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.simulation import Simulation
from fedshift.spec import setting
from fedshift.study.grid import expand, override
from reference import ARCHETYPES, EVERY_METHOD, POOLED, Heard, kept_moments, small
from test_methods import assert_same, tensors_of

ENGINES = ["sequential", "vectorised", *(["workers"] if can_fork() else [])]

# Two clients for each of three domains, with 15, 9 and 3 samples where "dark" is held out: in an epoch of batches of 4
# they take 3, 2 and 1 steps, the last with a batch of 3. Four of the six take part in a round.
UNEQUAL: dict[str, Any] = {
    "data.domains": 4,
    "data.per_class": 16,
    "data.fewer": 4,
    "partition": {"name": "iid", "clients": 2},
    "protocol.hold_out": "dark",
    "train.rounds": 3,
    "train.unit": "epochs",
    "train.steps": 1,
    "train.participation": 0.67,
    "train.lr": 0.02,
    "train.precision": "float64",
    "evaluate.every": 3,
}
# Adam divides a gradient by its own size, so that what rounding leaves of a gradient that is 0 by the rules of
# calculus, such as that of a bias before batch norm, moves it by whole steps: no such bias may be there.
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd with batch norm": {"train.momentum": 0.9},
    "adam without, clients absent or late": {
        "train.optimiser": "adam",
        "model.norm": "none",
        "train.absent": 0.1,
        "train.late": 0.15,
    },
}


@contextmanager
def engine_named(name: str, told: list[str] | None = None, kernels: Kernels | None = None) -> Iterator[Engine]:
    """An engine, closed at the end; ``told`` gets what it shows."""
    kernels, told = kernels or Kernels(), [] if told is None else told
    engines: dict[str, Callable[[], Engine]] = {
        "sequential": lambda: Sequential(kernels),
        "vectorised": lambda: Vectorised(kernels, told.append),
        "workers": lambda: Workers(kernels, 2),
    }
    with closing(engines[name]()) as engine:
        yield engine


class Carried(NamedTuple):
    """A run that is done: its end, its records and what was received it."""

    end: Simulation
    records: list[Record]
    heard: Heard


def carried(experiments: Sequence[Experiment], engine: Engine) -> list[Carried]:
    """All rounds of some runs, together, which take the steps that they plan."""
    runs = [Carried(Simulation(experiment), [], Heard()) for experiment in experiments]
    listeners = {run.end: run.heard for run in runs}
    for when in runs[0].end.coordinator.schedule:
        for error in advance([run.end for run in runs], engine, listeners).values():
            raise error
        for run in runs:
            if when.stage.scored:
                run.records.append(run.end.record(when, engine))
    for run in runs:
        run.heard.assert_as_planned()
    return runs


def assert_alike_and_agree(one: Carried, other: Carried) -> None:
    """All that two runs contain, their records and their steps."""
    assert_agree(one.end, other.end)
    assert_alike(one.records, other.records)
    mine, theirs = ([(task.round.key, task.exchange, task.steps) for task in run.heard.tasks] for run in (one, other))
    assert mine == theirs


def far(mine: Tensor, theirs: Tensor, relative: float, floor: float) -> bool:
    """Whether tensors differ by more than a part of the largest absolute value, or the floor."""
    if not mine.numel():
        return mine.shape != theirs.shape
    one, other = mine.double(), theirs.double()
    return not bool(((one - other).abs() <= relative * one.abs().max() + floor).all())


def assert_agree(one: Simulation, other: Simulation, relative: float = 1e-9, floor: float = 1e-12) -> None:
    """Everything that two runs contain agrees.

    The floor is for what is zero but for rounding, such as a bias before batch norm: its gradient is 0, and what
    arithmetic leaves of that depends on the order of sums.
    """
    mine, theirs = tensors_of(one), tensors_of(other)
    assert mine.keys() == theirs.keys()
    assert {name: tensor.dtype for name, tensor in mine.items()} == {name: t.dtype for name, t in theirs.items()}
    assert not [name for name in mine if far(mine[name], theirs[name], relative, floor)]
    assert [state.drawn for _, state in states(one)] == [state.drawn for _, state in states(other)]
    assert [state.optimisers.keys() for _, state in states(one)] == [s.optimisers.keys() for _, s in states(other)]
    mine, theirs = ((end.coordinator.sent, end.coordinator.position) for end in (one, other))
    assert mine == theirs


def assert_alike(one: Any, other: Any, relative: float = 1e-9) -> None:
    """Records agree: equal names and whole numbers, and nearly equal terms and scores."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key], relative)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_alike(mine, theirs, relative)
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=relative, abs=1e-12)
    else:
        assert one == other


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each call of the local loop had side by side, in the vectorised engine."""
    sizes: list[int] = []

    def counted(bank: Any, lanes: Any, phases: Any = None) -> None:
        sizes.append(len(lanes))
        plain(bank, lanes, phases)

    plain = vectorised.run_phases
    monkeypatch.setattr(vectorised, "run_phases", counted)
    return sizes


# A batch norm over two units of three samples divides by nearly nothing; at its own rates FRAug amplifies that.
TAMED: dict[str, dict[str, Any]] = {
    name: {"model.dim": 8, "method.lr_generator": 0.001, "method.lr_rtnet": 0.001, "method.alpha": 0.1}
    for name in ("fraug", "fraug-code")
}

# Every method -------------------------------------------------------------------------------------

# Both optimisers for the archetypes, and one of them, by turns, for the others.
TRAINED_BY = [
    (name, optimiser)
    for name, turn in zip(EVERY_METHOD, cycle(OPTIMISERS), strict=False)
    for optimiser in OPTIMISERS
    if name in ARCHETYPES or optimiser == turn
]


def unequal(document: dict[str, Any], name: str, optimiser: str, changes: dict[str, Any] | None = None) -> Experiment:
    """A run of clients of several sizes.

    Moments are kept, so that clients that took part more often have counted more of Adam's steps.
    """
    own = {**small(name), **TAMED.get(name, {}), **UNEQUAL, **OPTIMISERS[optimiser], **kept_moments(name)}
    (experiment,) = expand(override(document, {**own, **(changes or {})}))
    return experiment


def assert_stackable(name: str, told: list[str]) -> None:
    """Nothing receives of clients that cannot be stacked, but for those of Client2Vec's index."""
    assert not told or name == "client2vec"
    for text in told:
        assert "The clients of Client2Vec with the model CNN cannot be stacked in the exchange 'vectors'" in text
        assert "batching rule for aten::_transformer_encoder_layer_fwd" in text


@pytest.mark.parametrize(("name", "optimiser"), TRAINED_BY)
def test_every_engine_agrees_for_every_method(
    tiny_document: dict[str, Any], stacks: list[int], name: str, optimiser: str
):
    """Sequential, stacked cohorts and workers: everything that a run contains and records, to 1e-9.

    Clients have 15, 15, 9, 9, 3 and 3 samples, and take 3, 2 or 1 steps a round. Workers compute
    nothing differently, so they agree bit for bit.
    """
    experiment, told = unequal(tiny_document, name, optimiser), list[str]()
    (alone,) = carried([experiment], Sequential())
    with engine_named("vectorised", told) as engine:
        (cohort,) = carried([experiment], engine)
    assert_alike_and_agree(alone, cohort)
    if name not in POOLED:
        assert [len(client.train) for client in alone.end.federated.clients] == [15, 15, 9, 9, 3, 3]
        assert max(stacks) > 1
    assert_stackable(name, told)
    if can_fork():
        with engine_named("workers") as engine:
            (spread,) = carried([experiment], engine)
        assert_alike_and_agree(alone, spread)
        assert_same(alone.end, spread.end)
        assert alone.records == spread.records


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", ARCHETYPES)
def test_runs_of_a_method_agree_in_a_stack(tiny_document: dict[str, Any], stacks: list[int], name: str, optimiser: str):
    """Of two seeds, held-out domains, learning rates and values of each of the method's numbers."""
    first, told = unequal(tiny_document, name, optimiser), list[str]()
    numbers = {key: getattr(first.method, key) for key in METHODS.get(name).settings()}
    halved = {f"method.{key}": n / 2 for key, n in numbers.items() if isinstance(n, float) and n > 0}
    others: list[dict[str, Any]] = [{"seed": 1, "protocol.hold_out": "light", **halved}, {"train.lr": 0.01, "seed": 1}]
    experiments = [first, *(unequal(tiny_document, name, optimiser, other) for other in others)]
    alone = [carried([experiment], Sequential())[0] for experiment in experiments]
    with engine_named("vectorised", told) as engine:
        together = carried(experiments, engine)
    for one, other in zip(alone, together, strict=True):
        assert_alike_and_agree(one, other)
    assert max(stacks) > 4  # as many clients of one run take part in a round
    assert_stackable(name, told)


# Every model, float32 -----------------------------------------------------------------------------

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "mlp with batch norm": {"model.norm": "batch"},
    "cnn": {**CNN_WITH_BN, "model.norm": "none"},
    "cnn with batch norm": CNN_WITH_BN,
    "cnn with group norm": {**CNN_WITH_BN, "model.norm": "group", "model.groups": 1},
    "digits-cnn": {"model": {"name": "digits-cnn", "channels": [2, 2, 3], "hidden": 4, "dim": 4}},
    "cct": {"model": {"name": "cct-7-3x1", "layers": 1, "heads": 2, "width": 4, "dim": 4}},
}
# Parts of each tensor's largest value. A float32 has 6e-8; stacked products and convolutions add up in another order,
# which a sum of a hundred terms shows in its last bits, a few 1e-7, and up to nine steps add to that.
CLOSE = {
    "mlp": 5e-6,
    "mlp with batch norm": 1e-5,  # batch norm divides by a deviation that is smaller than the activations
    "cnn": 5e-6,
    "cnn with group norm": 1e-5,
    "cnn with batch norm": 2e-5,  # its biases are small differences of large sums
    "digits-cnn": 2e-2,  # the last batch norm sees one pixel of three or four images: what they share cancels
    "cct": 1e-5,  # a softmax over tokens, and layer norms of four values
}
FLOAT32 = {**UNEQUAL, "train.precision": "float32", "train.momentum": 0.9}


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
@pytest.mark.parametrize("model", MODELS)
def test_float32_agrees_to_rounding(make: Make, model: str, method: str):
    """After three rounds, to the tolerance above for the model, and in float64 to 1e-9.

    The floor is for tensors that are zero but for rounding, such as moments of a bias before batch norm.
    """
    told: list[str] = []
    for precision, relative, floor in (("float32", CLOSE[model], 1e-6), ("float64", 1e-9, 1e-12)):
        experiment = make({**FLOAT32, **MODELS[model], "method.name": method, "train.precision": precision})
        with engine_named("vectorised", told) as engine:
            assert_agree(simulate(experiment), simulate(experiment, engine=engine), relative, floor)
    assert not told


@pytest.mark.parametrize("engine", ENGINES)
def test_kernels_change_rounding_only(make: Make, monkeypatch: pytest.MonkeyPatch, engine: str):
    """The same as in the test before, since kernels add up in another order, too; workers are exact."""
    monkeypatch.setattr("fedshift.engines.onednn.SMALLEST_PRODUCT", 1)
    monkeypatch.setattr("fedshift.engines.onednn.NARROWEST_PRODUCT", 1)
    experiment, kernels = make({**FLOAT32, **MODELS["cct"]}), Kernels(True, "onednn")
    plain, prepared = simulate(experiment), simulate(experiment, engine=Sequential(kernels))
    with engine_named(engine, kernels=kernels) as other:
        same = simulate(experiment, engine=other)
    assert_agree(plain, prepared, CLOSE["cct"], floor=1e-6)
    if engine == "vectorised":
        assert_agree(prepared, same, CLOSE["cct"], floor=1e-6)
    else:
        assert_same(prepared, same)


# Shapes -------------------------------------------------------------------------------------------


def test_batches_that_are_gathered_at_once_are_those_gathered_one_by_one(make: Make, monkeypatch: pytest.MonkeyPatch):
    """Not a bit of float32 weights differs; a phase of FedSDR requires environments."""
    changes = {"method": {"name": "fedsdr"}, "train.class_weights": "balanced", "train.rounds": 3}
    experiment = make({"model": {"name": "mlp", "dim": 4}, **changes})
    together = simulate(experiment)
    monkeypatch.setattr(lane, "GATHERED", 1)
    assert_same(together, simulate(experiment))


class DivergesFor(FedAvg):
    """The loss of client 1 is infinite as soon as it has taken a step."""

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        stepped = (net.head.bias != context.received["head.bias"]).any()
        sick = (context.client == 1) & stepped
        return super().risk(net, batch, context) / (~sick).to(torch.float64)


def answers(experiment: Experiment, engine: Engine) -> list[Any]:
    """What results from every client's first work."""
    simulation = Simulation(experiment)
    when = simulation.coordinator.schedule[0]
    orders = simulation.coordinator.orders(when.stage.exchanges[0], when, simulation.federated.ids)
    return list(engine.train([simulation.site.job(order) for order in orders]))


@pytest.mark.parametrize("name", ENGINES)
def test_a_client_that_diverges_names_itself_and_no_other(make: Make, stacks: list[int], name: str):
    changes = {"train.precision": "float64", "train.lr": 0.05, "protocol": {"name": "in-domain"}}
    experiment = make(changes).replace(method=DivergesFor())
    healthy, error, also = answers(experiment, Sequential())
    with engine_named(name) as engine:
        one, failed, other = answers(experiment, engine)
    assert isinstance(error, DivergedError)
    assert isinstance(failed, DivergedError)
    where = "client 'gray', round 1, phase 'train', step 2, objective 'train' ({'cross_entropy': inf})"
    assert f"The loss is not finite at {where}" in str(failed)
    assert str(failed) == str(error)
    for mine, theirs in ((healthy, one), (also, other)):
        assert not [key for key in mine.up if far(mine.up[key], theirs.up[key], 1e-9, 1e-12)]
        assert_alike(mine.terms, theirs.terms)
    assert stacks == ([3] if name == "vectorised" else [])


# What does not stack ------------------------------------------------------------------------------


class Branching(FedAvg):
    """Its loss requests a tensor which way to go."""

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        ce = super().risk(net, batch, context)
        return ce if ce > 0.5 else 2 * ce


def test_what_does_not_stack_is_told_once_and_works_all_the_same(make: Make, stacks: list[int]):
    experiment, told = make().replace(method=Branching()), list[str]()
    with engine_named("vectorised", told) as engine:
        assert_same(simulate(experiment), simulate(experiment, engine=engine))
    (text,) = told
    assert "The clients of Branching with the model MLP cannot be stacked in the exchange 'train'" in text
    assert "data-dependent control flow" in text
    assert stacks == [2]


class Faulty(FedAvg):
    """Its loss has a mistake."""

    error: type[Exception] = KeyError

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        raise self.error("no such thing")


@pytest.mark.parametrize("error", [KeyError, RuntimeError])
def test_a_mistake_in_a_loss_is_each_clients_answer_and_says_where(make: Make, error: type[Exception]):
    """As in the sequential engine; and no message blames stacking."""
    told: list[str] = []
    with engine_named("vectorised", told) as engine:
        failed = answers(make().replace(method=Faulty(error=error)), engine)
    for name, answer in zip(("dark", "gray"), failed, strict=True):
        assert (type(answer), str(answer)) == (error, str(error("no such thing")))
        place = f"This happened at client '{name}', round 1, phase 'train', step 1, objective 'train'."
        assert answer.__notes__ == [place]
    assert not told


class Weighted(FedAvg):
    """Reads a number that runs may differ in as runs side by side cannot."""

    alpha: float = setting(1.0, help="a number")
    in_loss: bool = setting(True, help="whether its loss compares it")

    def phases(self) -> tuple[Phase, ...]:
        (phase,) = super().phases()
        return (phase if self.in_loss else replace(phase, steps=int(self.alpha)),)

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        ce = super().risk(net, batch, context)
        return ce / 2 if self.in_loss and self.alpha < 1.5 else ce


@pytest.mark.parametrize("in_loss", [True, False])
def test_runs_that_cannot_be_merged_are_stacked_apart(make: Make, stacks: list[int], in_loss: bool):
    """Two runs of two clients each; from the second round on nobody tries what did not work."""
    changes = {"train.precision": "float64", "train.lr": 0.05, "train.momentum": 0.0}
    experiments = [make(changes).replace(method=Weighted(alpha=alpha, in_loss=in_loss)) for alpha in (1.0, 2.0)]
    alone, told = [carried([experiment], Sequential())[0] for experiment in experiments], list[str]()
    with engine_named("vectorised", told) as engine:
        together = carried(experiments, engine)
    for one, other in zip(alone, together, strict=True):
        assert_alike_and_agree(one, other)
    (text,) = told
    assert "The runs of Weighted with the model MLP cannot be stacked in the exchange 'train'" in text
    assert stacks == [*([4] if in_loss else []), 2, 2, 2, 2]


# Going on with another engine ---------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), list(permutations(ENGINES, 2)))
def test_a_run_goes_on_with_another_engine(make: Make, tmp_path: Path, first: str, second: str):
    """Two rounds with one and two with another are four with the reference; client states lie on the disk between."""
    own = {"reference_scope": "client", "bn": "local", "optimiser_state": "kept"}
    experiment = make({**CNN_WITH_BN, **UNEQUAL, "method": {"name": "fedsr", **own}, "train.rounds": 4})
    with engine_named(first) as engine:
        assert simulate(experiment, 2, engine, tmp_path).coordinator.position == 2
    with engine_named(second) as engine:
        resumed = simulate(experiment, engine=engine, folder=tmp_path)
    assert_agree(simulate(experiment), resumed)


# Runs of a table ----------------------------------------------------------------------------------

TABLE = {
    **{key: value for key, value in UNEQUAL.items() if not key.startswith("protocol")},
    "seed": [0, 1, 2],
    "run.together": 3,
    "run.checkpoint_every": 2,
    "run.workers": 2,
    "train.rounds": 4,
}


def table_of(document: dict[str, Any], out: Path, changes: dict[str, Any]) -> list[Experiment]:
    return expand(override(document, {**TABLE, "run.out": str(out), **changes}))


def lines(folder: Run, name: str) -> list[Record]:
    return [json.loads(line) for line in (folder.path / name).read_text().splitlines()]


def test_runs_of_a_table_advance_together(tiny_document: dict[str, Any], tmp_path: Path):
    """As each does alone: by the bit, but for rounding where they are stacked."""
    alone, failed = runner.run_all(table_of(tiny_document, tmp_path / "alone", {"run.together": 1}), Progress())
    assert not failed
    for name in ENGINES:
        folders, failed = runner.run_all(table_of(tiny_document, tmp_path / name, {"run.engine": name}), Progress())
        assert not failed
        for one, other in zip(alone, folders, strict=True):
            assert other.finished
            assert {line["together"] for line in lines(other, "timings.jsonl")} == {3}
            assert_alike(lines(one, "records.jsonl"), lines(other, "records.jsonl"))
            if name != "vectorised":
                assert (one.path / "weights.safetensors").read_bytes() == (
                    other.path / "weights.safetensors"
                ).read_bytes()


@pytest.mark.parametrize("name", ["sequential", "vectorised"])
def test_a_run_that_diverges_leaves_the_others_of_its_group_alone(
    tiny_document: dict[str, Any], tmp_path: Path, name: str
):
    """Infinite losses in one of three: it is reported, and the other two end as they would alone."""
    rates = {"seed": 0, "train.lr": [0.02, 1000.0, 0.01], "train.rounds": 6, "train.precision": "float32"}
    group = table_of(tiny_document, tmp_path / "together", {**rates, "run.engine": name})
    healthy = table_of(tiny_document, tmp_path / "alone", {**rates, "train.lr": [0.02, 0.01], "run.together": 1})
    alone, none = runner.run_all(healthy, Progress())
    folders, failed = runner.run_all(group, Progress())
    assert not none
    (error,) = failed.values()
    assert isinstance(error, DivergedError)
    assert "not finite" in str(error)
    assert [folder.finished for folder in folders] == [True, False, True]
    for one, other in zip(alone, [folders[0], folders[2]], strict=True):
        assert_alike(lines(one, "records.jsonl"), lines(other, "records.jsonl"), relative=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {**CNN_WITH_BN, "method.bn": "reestimate"}], ids=["plain", "measured batch norm"]
)
def test_environments_are_scored_together_as_alone(make: Make, changes: dict[str, Any]):
    simulation = simulate(make({"train.precision": "float64", **changes}), rounds=1)
    model, when = simulation.coordinator.state.shared, simulation.coordinator.schedule[0]
    inputs = simulation.federated.inputs
    questions = [Question(simulation.setup, model, e, inputs, when) for e in simulation.federated.environments]
    with engine_named("sequential") as engine:
        alone = [next(engine.score([question])) for question in questions]
        scores = list(engine.score(questions))
    assert [(score.accuracy, score.n) for score in scores] == [(score.accuracy, score.n) for score in alone]
    assert [score.loss for score in scores] == pytest.approx([score.loss for score in alone], rel=1e-12)


# Memory -------------------------------------------------------------------------------------------


ROUNDS = 25  # between one count and the next


def held() -> int:
    """How many tensors this process keeps."""
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


class Counting(FedAvg):
    """FedAvg that shows, every that many rounds, how many tensors the process keeps in which a client trains."""

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"tensors": Term(self.tensors)}

    def tensors(self, net: Net, batch: Batch, context: Context) -> Tensor:
        count = held() if context.round % ROUNDS == 0 else 0
        return torch.tensor(count, dtype=batch.x.dtype)


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_left_of_a_round(make: Make, name: str):
    """Neither here nor where clients work: one tensor that stayed of each round would show."""
    changes = {"train.rounds": 3 * ROUNDS, "train.steps": 1, "train.precision": "float64", **CNN_WITH_BN}
    simulation = Simulation(make(changes).replace(method=Counting(bn="local", optimiser_state="kept")))
    counts: list[list[float]] = []
    gc.freeze()  # what tests before have left
    with engine_named(name) as engine:
        for position in range(1, 3 * ROUNDS + 1):
            go_on(simulation, engine)
            if position % ROUNDS == 0:
                terms = simulation.coordinator.terms
                counts.append([held(), *(terms[client]["tensors"] for client in ("dark", "gray"))])
    _, before, after = counts  # by the first all is there that is made once
    assert all(0 < later <= earlier for earlier, later in zip(before, after, strict=True))
