"""Code of others that draws from global generators is lent the run's streams, in every hook, and disturbs nobody's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedshift
from conftest import Make, evaluated, go_on
from fedshift.clients.partitions import IID
from fedshift.clients.samples import Samples
from fedshift.core.contract import Epochs, Measure, Part, Phase, uniform
from fedshift.core.tensors import Tensors
from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.kernels import Kernels
from fedshift.experiments import Experiment
from fedshift.methods.fedavg import FedAvg
from fedshift.models.small import MLP
from fedshift.runs import runner
from fedshift.runs import simulation as simulation_module
from fedshift.runs.events import Progress
from fedshift.runs.simulation import Simulation
from test_methods import assert_same

GLOBAL: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": np.random.rand,  # what users call
    "python": random.random,
}
DRAWN: list[tuple[str, float, ...]] = []


def draw_all(of: str) -> None:
    """Draw from every global generator."""
    DRAWN.append((of, *(draw() for draw in GLOBAL.values())))


class Drawing(FedAvg):
    """FedAvg, one hook of which draws."""

    hook: str = ""

    def drawn(self, name: str, value: Callable[..., Any]) -> Callable[..., Any]:
        """The same hook, which draws if it is the one."""

        def function(*arguments: Any, **named: Any) -> Any:
            if self.hook == name:
                draw_all(name)
            return value(*arguments, **named)

        return function

    def parts(self, model):
        own = Part(nn.Linear(2, 2), "client")
        return {**self.drawn("parts", super().parts)(model), "own": own}

    def predict(self, net, x, noise):
        return self.drawn("predict", super().predict)(net, x, noise) + 0 * net.own.weight.sum()

    def server_phases(self):
        made = self.drawn("samples", lambda replies: Samples(torch.zeros(4, 1, 10, 10), torch.zeros(4).long()))
        return (Phase("server", (), steps=Epochs(1), samples=self.drawn("server_phases", lambda: made)()),)

    def exchange(self, name, **changes):
        sums = Measure("sums", self.drawn("measure", lambda net, batch, context: {"n": batch.y.sum()}))
        hooks = {
            "send": self.drawn("send", lambda state, client: {}),
            "begin": self.drawn("begin", lambda private, received: {}),
            "upload": self.drawn("upload", lambda work: {}),
            "keep": self.drawn("keep", lambda work: {}),
            "select": self.drawn("select", uniform),
            "phases": (*self.phases(), sums),
        }
        return self.drawn("exchange", super().exchange)(name, **hooks, **changes)

    def stages(self, rounds):
        (stage,) = self.drawn("stages", super().stages)(rounds)
        return (replace(stage, view=self.drawn("view", lambda federation, streams: federation)),)


OVERRIDDEN = ("phases", "objective", "encode", "risk", "draws", "merge", "prediction_draws", "regroup")


def overridden(name: str) -> Callable[..., Any]:
    """FedAvg's own method, which may draw."""
    return lambda self, *arguments, **named: self.drawn(name, getattr(FedAvg, name))(self, *arguments, **named)


for each in OVERRIDDEN:
    setattr(Drawing, each, overridden(each))
HOOKS = [*OVERRIDDEN, "parts", "predict", "server_phases", "samples", "exchange", "stages", "view"]
HOOKS += ["measure", "send", "begin", "upload", "keep", "select"]


def other_generators(seed: int) -> None:
    """Set the global generators to something."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def states() -> list[Any]:
    numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return [torch.get_rng_state().tolist(), numpy["pos"], numpy["key"].tolist(), random.getstate()]


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    random.setstate(before[2])


def carried_out(experiment: Experiment, seed: int, engine: str = "sequential") -> tuple[Simulation, list[Any]]:
    """A run and what was drawn in it, under some global generators, which it must leave alone."""
    DRAWN.clear()
    simulation_module.load_data.cache_clear()
    other_generators(seed)
    before = states()
    simulation = Simulation(experiment)
    with open_engine(Choice(engine, 2 if engine == "workers" else 1, 1, Kernels()), lambda text: None) as working:
        for when in simulation.coordinator.schedule:
            go_on(simulation, working)
            simulation.record(when, working)
    assert states() == before
    return simulation, sorted(DRAWN)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("hook", HOOKS)
def test_whatever_a_hook_draws_is_the_runs_own(make: Make, hook: str, engine: str):
    """Two runs under other global generators draw the same; another seed of the run draws something else."""
    experiment = make({"train.participation": 0.6}).replace(method=Drawing(hook=hook))
    one, drawn = carried_out(experiment, 1, engine)
    other, again = carried_out(experiment, 2, engine)
    assert drawn
    assert drawn == again
    assert_same(one, other)
    _, different = carried_out(experiment.replace(seed=1), 1, engine)
    assert drawn != different


@fedshift.METHODS.register("noisy")
class Noisy(FedAvg):
    """Its loss, what it keeps and what it predicts depend on what it draws from global generators."""

    def parts(self, model):
        own = nn.Module()
        own.register_buffer("value", torch.zeros(()))
        return {**super().parts(model), "own": Part(own, "client")}

    def risk(self, net, batch, context):
        return super().risk(net, batch, context) * (1 + GLOBAL["numpy"]())

    def keep(self, work):
        return Tensors({"own.value": torch.tensor(random.random())})

    def predict(self, net, x, noise):
        return (super().predict(net, x, noise) * (1 + torch.rand(()))).log_softmax(dim=1)


def test_engines_agree_on_a_page_that_draws_and_its_model_touches_no_global_generator(make: Make):
    experiment = make({"protocol": {"name": "in-domain"}}).replace(method=Noisy(), name="noisy")
    one, _ = carried_out(experiment, 1)
    records = evaluated(one, one.coordinator.schedule[-1])
    for engine in ("vectorised", "workers"):
        other, _ = carried_out(experiment, 2, engine)
        assert_same(one, other)
        assert evaluated(other, other.coordinator.schedule[-1]) == records
    model = runner.start(experiment, Progress()).model(client=0)
    before = states()
    first = model(torch.zeros(2, 1, 10, 10))
    assert states() == before
    other_generators(4)
    assert torch.equal(model(torch.zeros(2, 1, 10, 10)), first)


@pytest.mark.parametrize(
    "place",
    [(fedshift.DATASETS.get("tiny"), "load"), (IID, "divide"), (MLP, "encoder")],
    ids=lambda place: place[1],
)
def test_data_partitions_and_models_that_draw(make: Make, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]):
    function = getattr(*place)

    def call(*arguments: Any) -> Any:
        draw_all("data")
        return function(*arguments)

    monkeypatch.setattr(*place, call)
    experiment = make({"partition": {"name": "iid", "clients": 2}})
    (_, one), (_, other) = carried_out(experiment, 1), carried_out(experiment, 2)
    assert one
    assert one == other
