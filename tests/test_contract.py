"""What coming pages need of the contract: steps and rate, a snapshot, a cohort for an exchange, other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import fedshift
from conftest import Make, attach, first_messages, go_on, names_sent, simulate
from fedshift.core.contract import Exchange, LocalWork, Measure, Optimiser, Part, Phase, ServerState, Stage, Upload
from fedshift.core.model import ModelBuilder
from fedshift.core.tensors import Replies
from fedshift.engines.engine import Engine
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.events import Progress
from fedshift.runs.simulation import Simulation
from refusal import refuses
from test_engines import assert_agree

PLAIN = {"train.momentum": 0.0, "train.steps": 3, "train.lr": 0.05, "train.precision": "float64"}


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_the_rate_that_a_client_knows_is_that_of_the_round(make: Make, engine: type[Engine]):
    """Along half a cosine the second of two rounds has (1 + cos(pi / 2)) / 2, half of the rate."""
    rates: list[float] = []

    class Told(FedAvg):
        """Notes the rate."""

        def exchange(self, name):
            return super().exchange(name, upload=lambda work: rates.append(work.lr) or {})

    simulate(make({**PLAIN, "train.rounds": 2, "train.schedule": "cosine"}).replace(method=Told()), engine=engine())
    assert rates == pytest.approx([0.05, 0.05, 0.025, 0.025])


class Robust(FedAvg):
    """A snapshot at a common drawn step, and an exchange with the last client alone."""

    def parts(self, model):
        parts = super().parts(model)
        requested = Part.state(torch.zeros(model.clients), "server")
        return {**parts, "snapshot": Part.zeros_like(parts, "down"), "asked": requested}

    def phases(self):
        return (Phase("train", (self.objective("train"),), snapshot=True),)

    def stages(self, rounds):
        train = self.exchange("train", uploads=(Upload.like("at", "snapshot"),), upload=self.at)
        score = Exchange("score", (), self.note, sends=(), returns=(), counted=True, select=self.others)
        return (Stage("train", rounds, (train, score)),)

    def at(self, work):
        return work.measured.of("snapshot").only(work.received.of("snapshot")).under("at")

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        mean = replies.mean()
        return state.updated(mean.only(state.shared) | mean.of("at").under("snapshot"))

    def others(self, state: ServerState, clients: Sequence[int], count: int, generator: torch.Generator):
        return [clients[-1]]

    def note(self, state: ServerState, replies: Replies) -> ServerState:
        requested = state.server["asked.value"].clone()
        for client, weight in zip(replies.clients, replies.weights, strict=True):
            requested[client] = weight
        return state.updated({"asked.value": requested})


def test_the_drawn_step_is_the_same_for_all_and_changes_from_round_to_round(make: Make):
    """After s steps of SGD by hand: the snapshot of a round of 6 is where a round of s ends, for some s in 1..6."""
    drawn = []
    for seed in range(6):
        changes = {**PLAIN, "seed": seed, "train.rounds": 1}
        robust = simulate(make({**changes, "train.steps": 6}).replace(method=Robust()))
        snapshot = robust.coordinator.state.down.of("snapshot")
        ends = [simulate(make({**changes, "train.steps": s})).coordinator.state.shared for s in range(1, 7)]
        after = [s for s, end in enumerate(ends, 1) if all(torch.equal(t, end[name]) for name, t in snapshot.items())]
        assert len(after) == 1
        drawn += after
    assert len(set(drawn)) > 1


def test_an_exchange_may_have_a_cohort_of_its_own_whose_reply_is_its_samples(make: Make):
    simulation = simulate(make({**PLAIN, "train.rounds": 1}).replace(method=Robust()))
    assert simulation.coordinator.state.server["asked.value"].tolist() == [0, 27]
    assert names_sent(simulation, "score", "up") == {"samples"}
    assert_agree(simulation, simulate(simulation.experiment, engine=Vectorised()))


class Sampled(FedAvg):
    """Measures how many samples there are of each kind before it trains, on some batches and on all."""

    batches: int = 2
    size: int | None = None

    def phases(self):
        some = Measure("some", self.some, steps=self.batches, batch=self.size)
        return (some, Measure("all", self.every), *super().phases())

    def some(self, net, batch, context):
        return {"sum": batch.x.sum(), "n": torch.ones_like(batch.x.sum()) * len(batch.y)}

    def every(self, net, batch, context):
        return {"every": batch.x.sum()}

    def exchange(self, name):
        uploads = tuple(Upload(each) for each in ("sum", "n", "every", "mean", "mean_of_all"))
        return super().exchange(name, uploads=uploads, upload=self.told)

    def told(self, work: LocalWork):
        assert work.steps == 3
        return work.measured | {"mean": work.means["sum"], "mean_of_all": work.means["every"]}


@pytest.mark.parametrize(("batches", "size", "seen"), [(1, None, 4), (3, 100, 81), (9, None, 36)])
def test_a_measure_may_be_of_some_batches(make: Make, batches: int, size: int | None, seen: int):
    """Of 27 samples whole batches are seen, each of 4 or the measure's number, and at most once before all were."""
    experiment = make({**PLAIN, "train.rounds": 1}).replace(method=Sampled(batches=batches, size=size))
    reply = first_messages(experiment)["train", "up"]
    assert reply["n"].item() == seen
    torch.testing.assert_close(reply["mean"], reply["sum"] / seen)
    torch.testing.assert_close(reply["mean_of_all"], reply["every"] / 27)
    if size == 100:
        torch.testing.assert_close(reply["mean"], reply["mean_of_all"])


def test_engines_agree_on_some_batches(make: Make):
    """Clients of 36, 27 and 18 samples, and batches of 20, which the last does not fill."""
    unequal = {"data.domains": 4, "data.per_class": 13, "data.fewer": 3, "train.rounds": 2}
    experiment = make({**PLAIN, **unequal}).replace(method=Sampled(batches=3, size=20))
    alone = simulate(experiment)
    assert_agree(alone, simulate(experiment, engine=Vectorised()))


def test_the_servers_hooks_know_the_round_also_when_a_run_goes_on(make: Make, tmp_path: Path):
    """Within its stage, from 1; between rounds it is that of the last."""
    known: list[tuple[str, int]] = []

    @fedshift.METHODS.register("knows-the-round")
    class Noting(FedAvg):
        """Two stages of two rounds, whose hooks note the round."""

        def stages(self, rounds):
            def send(state, client):
                known.append(("send", state.round))
                return {}

            def select(state, clients, count, generator):
                known.append(("select", state.round))
                return clients[:count]

            exchange = self.exchange("train", send=send, select=select)
            return tuple(Stage(name, 2, (exchange,)) for name in ("first", "second"))

        def merge(self, state, replies):
            known.append(("merge", state.round))
            return super().merge(state, replies)

    experiment = make(PLAIN).replace(method=Noting())
    simulate(experiment, 3, folder=tmp_path)
    resumed = Simulation(experiment)
    attach(resumed, tmp_path)
    assert resumed.coordinator.state.round == 1
    go_on(resumed)
    assert known == [(hook, number) for number in (1, 2, 1, 2) for hook in ("select", "send", "send", "merge")]


def test_the_rate_of_an_objective_may_fall_from_round_to_round(make: Make):
    """Two rounds of one plain step, the second at half the rate, as along the cosine of two rounds."""

    class Falling(FedAvg):
        """FedAvg whose rate halves."""

        def phases(self):
            return (Phase("train", (self.objective("train", optimiser=Optimiser(decay=0.5)),)),)

    changes = {**PLAIN, "train.steps": 1, "train.rounds": 2}
    falling = simulate(make(changes).replace(method=Falling())).coordinator.state.shared
    cosine = simulate(make({**changes, "train.schedule": "cosine"})).coordinator.state.shared
    for name, tensor in cosine.items():
        torch.testing.assert_close(falling[name], tensor)


def test_the_rate_of_an_objective_may_be_a_multiple_of_the_experiments(make: Make):
    """Two warm-up rounds at three times the rate: what three times ``train.lr`` gives."""

    class Faster(FedAvg):
        """FedAvg at three times the rate."""

        def phases(self):
            return (Phase("train", (self.objective("train", optimiser=Optimiser(factor=3.0)),)),)

    changes = {**PLAIN, "train.rounds": 2, "train.warmup": 1}
    faster = simulate(make({**changes, "train.lr": 0.01}).replace(method=Faster())).coordinator.state.shared
    plain = simulate(make({**changes, "train.lr": 0.03})).coordinator.state.shared
    for name, tensor in plain.items():
        torch.testing.assert_close(faster[name], tensor)


@fedshift.METHODS.register("a-head-for-each")
class HeadForEach(FedAvg):
    """FedPAC's shape: client k is sent a head whose bias is k + 1."""

    def exchange(self, name):
        return super().exchange(name, send=lambda state, client: {"head.bias": torch.full((3,), client + 1.0)})


def test_a_client_that_is_sent_tensors_of_its_own_has_a_model_of_its_own(make: Make):
    """It is called its own in the records, and a run gives it back."""
    changes = {"method.name": "a-head-for-each", "protocol": {"name": "in-domain"}}
    run = fedshift.run(make(changes), progress=Progress())
    assert {row["model"] for row in run.records[-1]["environments"]} == {"own"}
    biases = [run.model(client=client).get_parameter("head.bias").mean().item() for client in (0, 1)]
    assert biases == [1.0, 2.0]


def test_what_is_made_for_each_client_is_the_same_module(make: Make):
    class Other(FedAvg):
        """FedAvg whose clients begin with another part than the one there is."""

        def parts(self, model):
            own = Part(torch.nn.Linear(3, 2), "client", each=lambda _: torch.nn.Linear(4, 2))
            return {**super().parts(model), "own": own}

    with refuses("'own'", "'weight': (2, 3)", "each=", "'weight': (2, 4)"):
        simulate(make(PLAIN).replace(method=Other()))


def test_only_a_private_part_starts_from_draws_of_its_own(make: Make):
    class SharedHead(FedAvg):
        """FedAvg that requires a shared head a client."""

        def parts(self, model):
            return {**super().parts(model), "head": Part(model.head(), each=ModelBuilder.head)}

    with refuses("'head'", "'shared'", "scope 'client'"):
        Simulation(make(PLAIN).replace(method=SharedHead()))
