"""Every method of the catalogue on the tiny experiment, and one run of each that many checks read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from conftest import CNN_WITH_BN, TINY, Remembering, evaluated, go_on
from fedshift.catalogue import built_in
from fedshift.core.setup import Round
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.methods.references import Centralised
from fedshift.runs.events import RunEvents
from fedshift.runs.schema import Record
from fedshift.runs.simulation import Simulation
from fedshift.study.grid import expand, override

BUILT_IN = [name for name in METHODS if built_in(METHODS.get(name))]
# A variant is another method with numbers fixed, which stands for it, but in the check that each can be run.
VARIANTS = ["fedl2r", "fedcmi", "fedreg", "fedalign", "fedpin-lambda-0", "fedpin-gamma-0"]
EVERY_METHOD = [name for name in BUILT_IN if name not in VARIANTS]
POOLED = [name for name in BUILT_IN if issubclass(METHODS.get(name), Centralised)]  # which have one client
# These use all that a method may: state of clients, parts that are sent down, phases of the server, private parts, a
# model for each client, stages, and phases of several kinds.
ARCHETYPES = ("fedavg", "scaffold", "fedcir", "fraug", "fedpac", "client2vec", "fedpin")

# What methods need to be small, or to stay finite under plain SGD with a large learning rate.
SMALL = {
    "client2vec": {"index": {"name": "dsa-ign", "epochs": 2, "feedforward": 16, "encoder": {"size": 64}}},
    "fedpac": {"lam": 0.1, "head_steps": 2, "encoder_steps": 2, "unit": "steps"},
    **{
        name: {"alpha": 1e-4, "global_steps": 2, "personal_steps": 1}
        for name in ("fedpin", "fedpin-lambda-0", "fedpin-gamma-0", "fedpin-gm-l2")
    },
    "fedpin-gm": {"alpha": 1e-4, "global_steps": 2},
    "fedpin-gm-ft": {"alpha": 1e-4, "global_steps": 2, "finetune_steps": 2},
    "fedbabu": {"finetune_steps": 3},
    "fedrep": {"head_steps": 2, "unit": "steps"},
    "ftfa": {"finetune_steps": 3},
    "fedproc": {"projection": "mlp", "projection_dim": 8},
    "moon": {"projection": "mlp"},
    "knn-per": {"capacity": 20},
    "irm": {"lam": 0.1},
    "pooled-irm": {"lam": 0.1},
    "fedgen": {"alpha": 1.0, "beta": 1.0, "generator_steps": 2, "generator_hidden": 8, "generator_noise": 3},
    "fedadg": {
        "classification_steps": 2,
        "adversarial_steps": 2,
        "unit": "steps",
        "generator_noise": 3,
        "generator_hidden": 8,
        "discriminator_projection": 6,
        "discriminator_hidden": 5,
    },
}


def small(name: str) -> dict[str, Any]:
    """The changes that make the tiny experiment one of a method, on a model with batch norm."""
    own = {f"method.{key}": value for key, value in SMALL.get(name, {}).items()}
    return {"method.name": name, **own, **CNN_WITH_BN}


def kept_moments(name: str) -> dict[str, Any]:
    """The change after which clients keep their optimisers' moments from round to round."""
    return {f"method.{'base.' if name == 'client2vec' else ''}optimiser_state": "kept"}


class Task(NamedTuple):
    """What a run requests an engine for."""

    round: Round
    exchange: str
    clients: int
    steps: int
    bytes_down: int
    bytes_up: int


class Heard(RunEvents):
    """Writes down what it is notified of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[Round] = []
        self.tasks: list[Task] = []
        self.taken: defaultdict[int, int] = defaultdict(int)  # steps, by task
        self.answers: defaultdict[int, int] = defaultdict(int)

    def begin_round(self, round: Round) -> None:
        self.rounds.append(round)

    def begin_task(self, *about: Any) -> None:
        self.tasks.append(Task(self.rounds[-1], *about))

    def steps(self, count: int) -> None:
        self.taken[len(self.tasks) - 1] += count

    def answered(self) -> None:
        self.answers[len(self.tasks) - 1] += 1

    def assert_as_planned(self) -> None:
        """Each task took its planned steps, and each of its clients answered."""
        places = range(len(self.tasks))
        assert [task.steps for task in self.tasks] == [self.taken[place] for place in places]
        assert [task.clients for task in self.tasks] == [self.answers[place] for place in places]


@dataclass(frozen=True)
class Reference:
    """A run of a method by the sequential engine, which must not be resumed or changed.

    Attributes:
        experiment: what ran.
        simulation: the run at its end.
        ledger: the sizes of all messages as they were sent, and the first of each kind.
        received: what was stated within its rounds.
        records: those of the rounds that are scored.
        counted: the bytes down and up after each round, as the coordinator counts them and as they were sent.
    """

    experiment: Experiment
    simulation: Simulation
    ledger: Remembering
    heard: Heard
    records: list[Record] = field(default_factory=list)
    counted: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)


def reference_experiment(name: str, changes: dict[str, Any] | None = None) -> Experiment:
    """What a method's reference run runs: three rounds in float64, with moments that are kept and the audit on.

    Layers are large enough for the audit to separate them.
    """
    larger = {"model.channels": [8, 8], "model.dim": 12}
    three = {"train.rounds": 3, "train.lr": 0.02, "train.precision": "float64", "run.audit": True}
    (experiment,) = expand(override(TINY, {**small(name), **kept_moments(name), **larger, **three, **(changes or {})}))
    return experiment


@cache
def reference(name: str) -> Reference:
    """A method's reference run, made when it is first requested."""
    experiment = reference_experiment(name)
    simulation = Simulation(experiment)
    simulation.coordinator.ledger = ledger = Remembering()
    run = Reference(experiment, simulation, ledger, Heard())
    for when in simulation.coordinator.schedule:
        go_on(simulation, events=run.heard)
        coordinator = simulation.coordinator
        run.counted.append((coordinator.sent, (ledger.sizes["down"], ledger.sizes["up"])))
        if when.stage.scored:
            run.records.append(evaluated(simulation, when))
    return run
