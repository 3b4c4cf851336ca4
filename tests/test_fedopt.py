"""Server optimisers: two rounds by hand, reductions, on quadratics, and on whatever method merges by a mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedshift
from conftest import CNN_WITH_BN, Make, names_sent, simulate
from fedshift.core.contract import ServerState
from fedshift.core.method import Averaging, Method
from fedshift.core.servers import SERVERS
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods import METHODS
from fedshift.methods.client2vec.client2vec import Client2Vec
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedavgm import FedAvgM
from fedshift.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedshift.study.benchmark import rows
from quadratics import OnQuadratics, Quadratics, at_rest, on_quadratics, quadratics
from reference import EVERY_METHOD, reference, reference_experiment, small
from refusal import refuses

__all__ = ["on_quadratics"]  # a fixture

M, V, W = "first_moment.encoder.w", "second_moment.encoder.w", "encoder.w"
AVERAGING = [name for name in EVERY_METHOD if issubclass(METHODS.get(name), Averaging)]
BY_MEAN = [name for name in AVERAGING if METHODS.get(name).merge is Averaging.merge]
NOT_BY_MEAN = [name for name in AVERAGING if name not in BY_MEAN]
ADAPTIVE = {"fedadagrad": FedAdagrad, "fedadam": FedAdam, "fedyogi": FedYogi}


def one(number: float) -> torch.Tensor:
    """A tensor of one number."""
    return torch.tensor([number], dtype=torch.float64)


def begun(method: Method, w: float) -> ServerState:
    """One parameter w and one batch-norm statistic of 10, with what the server keeps at first."""
    shared = Tensors(
        {W: torch.tensor([w], dtype=torch.float64), "encoder.running_mean": torch.tensor([10.0], dtype=torch.float64)}
    )
    kept = {f"{part}.{W}": torch.tensor([start], dtype=torch.float64) for part, start in method.server.starts().items()}
    return ServerState(shared, server=Tensors(kept), clients=2)


def merged(method: Method, state: ServerState, mean: float) -> ServerState:
    """After a round in which two clients end 0.1 on either side of a mean."""
    ends = [one(mean + off) for off in (-0.1, 0.1)]
    return method.merge(state, Replies(enumerate(Tensors({W: w, "encoder.running_mean": w}) for w in ends)))


def test_two_rounds_of_fedadam_by_hand():
    """beta1 = beta2 = 0.5, tau = 0.1, lr = 0.6, w = 1; at first m = 0 and v = tau^2 = 0.01.

    Round 1: the mean is 0.3, so Delta = -0.7, m = -0.35, v = (0.01 + 0.49) / 2 = 0.25, and w goes by
    0.6 * -0.35 / (0.5 + 0.1) = -0.35 to 0.65.
    Round 2: the mean is 0.15, so Delta = -0.5, m = (-0.35 - 0.5) / 2 = -0.425, v = (0.25 + 0.25) / 2 = 0.25, and w goes
    by 0.6 * -0.425 / 0.6 = -0.425 to 0.225. The statistic is the mean of what came.
    """
    method = FedAdam(server={"beta1": 0.5, "beta2": 0.5, "tau": 0.1, "lr": 0.6})
    once = merged(method, begun(method, 1.0), 0.3)
    assert [once.shared[W].item(), once.server[M].item(), once.server[V].item()] == pytest.approx([0.65, -0.35, 0.25])
    twice = merged(method, once, 0.15)
    assert [twice.shared[W].item(), twice.server[M].item()] == pytest.approx([0.225, -0.425])
    assert twice.server[V].item() == pytest.approx(0.25)
    assert twice.shared["encoder.running_mean"].item() == pytest.approx(0.15)


def test_two_rounds_of_fedadagrad_by_hand():
    """beta1 = 0, tau = 0.3, lr = 0.8, w = 1; at first v = 0.09.

    Round 1: the mean is 0.6, so Delta = m = -0.4, v = 0.09 + 0.16 = 0.25, and w goes by
    0.8 * -0.4 / (0.5 + 0.3) = -0.4 to 0.6.
    Round 2: the mean is -0.6, so Delta = m = -1.2, v = 0.25 + 1.44 = 1.69, and w goes by
    0.8 * -1.2 / (1.3 + 0.3) = -0.6 to 0.
    """
    method = FedAdagrad(server={"tau": 0.3, "lr": 0.8})
    once = merged(method, begun(method, 1.0), 0.6)
    assert [once.shared[W].item(), once.server[M].item(), once.server[V].item()] == pytest.approx([0.6, -0.4, 0.25])
    twice = merged(method, once, -0.6)
    assert [twice.shared[W].item(), twice.server[M].item()] == pytest.approx([0.0, -1.2], abs=1e-9)
    assert twice.server[V].item() == pytest.approx(1.69)


def test_two_rounds_of_fedyogi_by_hand():
    """beta1 = beta2 = 0.5, tau = 0.1, lr = 0.4, w = 1; at first v = 0.01.

    Round 1: the mean is 0.6, so Delta = -0.4 and m = -0.2. Delta^2 = 0.16 is above v, which rises by half of it to
    0.09, and w goes by 0.4 * -0.2 / (0.3 + 0.1) = -0.2 to 0.8.
    Round 2: the mean is 0.6 again, so Delta = -0.2 and m = -0.2. Delta^2 = 0.04 is below v, which falls by half of it
    to 0.07, and w goes by 0.4 * -0.2 / (sqrt(0.07) + 0.1).
    """
    method = FedYogi(server={"beta1": 0.5, "beta2": 0.5, "tau": 0.1, "lr": 0.4})
    once = merged(method, begun(method, 1.0), 0.6)
    assert [once.shared[W].item(), once.server[M].item(), once.server[V].item()] == pytest.approx([0.8, -0.2, 0.09])
    twice = merged(method, once, 0.6)
    assert twice.shared[W].item() == pytest.approx(0.8 - 0.08 / (math.sqrt(0.07) + 0.1))
    assert [twice.server[M].item(), twice.server[V].item()] == pytest.approx([-0.2, 0.07])


def test_two_rounds_of_momentum_with_a_rate_by_hand():
    """At first w = 1 and v = 0; beta = 0.5, lr = 0.1.

    Round 1: the mean is 0.6, v = 0.4 and w = 0.96. Round 2: the mean is 0.56, v = 0.2 + 0.4 = 0.6 and w = 0.9.
    """
    method = FedAvgM(server={"beta": 0.5, "lr": 0.1})
    once = merged(method, begun(method, 1.0), 0.6)
    assert [once.shared[W].item(), once.server[f"velocity.{W}"].item()] == pytest.approx([0.96, 0.4])
    twice = merged(method, once, 0.56)
    assert [twice.shared[W].item(), twice.server[f"velocity.{W}"].item()] == pytest.approx([0.9, 0.6])


def test_the_defaults_are_those_of_the_papers_experiments():
    for name, beta1 in (("fedadagrad", 0.0), ("fedadam", 0.9), ("fedyogi", 0.9)):
        server: Any = ADAPTIVE[name]().server
        assert (server.beta1, server.tau, server.starts()["second_moment"]) == (beta1, 1e-3, 1e-6)
        assert name == "fedadagrad" or server.beta2 == 0.99
        assert "Reddi et al., ICLR 2021" in METHODS.get(name).paper


# Where they end -----------------------------------------------------------------------------------

TWO = Quadratics()
TRAIN = {"train.rounds": 50, "train.steps": 2, "train.lr": 0.2}
SETTLED = {  # server rates at which they come to rest in so many rounds
    "fedavgm": {"beta": 0.5, "lr": 1.0},
    "fedadagrad": {"lr": 1.0, "tau": 0.5},
    "fedadam": {"beta1": 0.5, "lr": 0.5, "tau": 0.5},
    "fedyogi": {"beta1": 0.5, "lr": 0.5, "tau": 0.5},
}


@pytest.mark.parametrize("name", SETTLED)
def test_they_rest_where_the_mean_of_the_clients_does_not_move(on_quadratics: OnQuadratics, name: str):
    """Delta = 0 is where FedAvg rests, whatever the steps to it.

    That is at -0.45455 with two local steps, and with one at the federation's optimum, -0.6.
    """
    method = METHODS.get(name)(server=SETTLED[name])
    assert at_rest(on_quadratics.run(method, TRAIN)) == pytest.approx(quadratics(TWO).rest(2, 0.2), abs=1e-6)
    one_step = {**TRAIN, "train.steps": 1}
    assert at_rest(on_quadratics.run(method, one_step)) == pytest.approx(-0.6, abs=1e-6)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_first_step_on_quadratics(on_quadratics: OnQuadratics, name: str):
    """One local step from 0 ends at 0.1 and -0.4, so Delta = -0.15.

    Then v = 1e-6 + 0.0225 (Adagrad) or, with beta2 = 0.99, 0.99e-6 + 0.000225 (Adam) and 1e-6 + 0.000225 (Yogi), and
    w = 0.1 (1 - beta1) Delta / (sqrt(v) + 0.001).
    """
    v = {"fedadagrad": 1e-6 + 0.0225, "fedadam": 0.99e-6 + 0.000225, "fedyogi": 1e-6 + 0.000225}[name]
    beta1 = 0.0 if name == "fedadagrad" else 0.9
    method = METHODS.get(name)(server={"lr": 0.1})
    simulation = on_quadratics.run(method, {**TRAIN, "train.steps": 1, "train.rounds": 1, "train.lr": 0.1})
    assert at_rest(simulation) == pytest.approx(0.1 * (1 - beta1) * -0.15 / (math.sqrt(v) + 0.001), abs=1e-12)


# On any method --------------------------------------------------------------------------------------


def takes_a_server_optimiser(name: str) -> bool:
    """Whether a method is given one; FedAvgM and its like have their own."""
    cls = METHODS.get(name)
    return not (issubclass(cls, FedAvg) and "server" in vars(cls)["__annotations__"])


@pytest.mark.parametrize("name", [*filter(takes_a_server_optimiser, BY_MEAN)])
def test_without_momentum_and_at_rate_one_every_method_is_itself(name: str):
    """To the bit, although the server has been through its step: so its merge is a mean, and nothing goes past it."""
    plain = reference(name).simulation
    ours = simulate(reference_experiment(name, {"method.server": {"name": "momentum", "beta": 0.0}}))
    one, other = plain.coordinator.state.tensors, ours.coordinator.state.tensors
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    velocity = ours.coordinator.state.server.of("velocity").only(one)
    assert any(tensor.any() for tensor in velocity.values())


@pytest.mark.parametrize("name", NOT_BY_MEAN)
def test_a_method_whose_merge_is_no_mean_is_refused_with_the_reason(make: Make, name: str):
    with refuses("method.server = 'adam'", "'mean'"):
        make(small(name) | {"method.server": "adam"})


def test_the_methods_that_are_refused():
    assert set(NOT_BY_MEAN) == {"feddyn", "pfedme", "fedsdr", "single", "head-retraining"}


def test_a_page_with_a_merge_of_its_own_takes_no_server_optimiser():
    class Halves(FedAvg):
        def merge(self, state: ServerState, replies: Replies) -> ServerState:
            return state.updated(0.5 * replies.mean(state.shared))

    class Adds(FedAvg):
        def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
            return 0.5 * replies.mean(state.shared)

    with refuses("method.server = 'yogi'", "Halves", "merge", "'mean'"):
        Halves(server="yogi")
    Adds(server="yogi")


def test_fedadam_on_fedsr(make: Make, monkeypatch: pytest.MonkeyPatch):
    """Three rounds with batch norm, computed again from the replies: every trained shared parameter, and no buffer."""
    rounds = []
    changes = {"method": {"name": "fedsr", "server": {"name": "adam", "lr": 0.1}}, "train.precision": "float64"}
    experiment = make({"train.rounds": 3} | CNN_WITH_BN | changes)
    merge = Averaging.merge

    def recorded(self, state, replies):
        after = merge(self, state, replies)
        rounds.append((state, replies.mean(), after))
        return after

    monkeypatch.setattr(Averaging, "merge", recorded)
    simulation = simulate(experiment)
    kept = simulation.coordinator.state.server
    m, v = {}, {}
    for before, mean, after in rounds:
        for name, tensor in after.shared.items():
            if f"first_moment.{name}" not in kept:
                assert torch.equal(tensor, mean[name])
                continue
            delta = mean[name] - before.shared[name]
            m[name] = 0.9 * m.get(name, 0.0) + 0.1 * delta
            v[name] = 0.99 * v.get(name, float(torch.tensor(1e-6))) + 0.01 * delta**2
            step = 0.1 * m[name] / (v[name].sqrt() + 1e-3)
            torch.testing.assert_close(tensor, before.shared[name] + step, rtol=1e-12, atol=1e-12)
    buffers = [name for name in rounds[0][2].shared if f"first_moment.{name}" not in kept]
    assert buffers
    assert all("running" in name or "num_batches" in name for name in buffers)
    assert m.keys() == {name.removeprefix("first_moment.") for name in kept if name.startswith("first_moment.")}


def test_client2vec_is_put_on_it(make: Make):
    """The base's tensors step, and what Client2Vec adds is averaged; the index's own network has no moments."""
    method = {**small("client2vec"), "method.base": {"name": "fedadam", "server": {"lr": 0.1}}}
    simulation = simulate(make(method | {"train.rounds": 2}))
    server = simulation.coordinator.state.server
    assert {name.split(".")[1] for name in server if name.startswith("second_moment.")} == {"encoder", "head"}
    assert isinstance(simulation.experiment.method, Client2Vec)
    assert server.of("first_moment.head")["weight"].any()


def test_what_the_server_keeps_is_never_sent_and_is_resumed(make: Make, tmp_path: Path):
    experiment = make({"method.name": "fedyogi", "train.rounds": 4} | CNN_WITH_BN)
    whole = simulate(experiment)
    simulate(experiment, rounds=2, folder=tmp_path)
    again = simulate(experiment, folder=tmp_path)
    mine, theirs = whole.coordinator.state.tensors, again.coordinator.state.tensors
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    crossed = names_sent(whole, "train", "down") | names_sent(whole, "train", "up")
    assert not {name for name in crossed if "moment" in name}
    assert {name for name in mine if "moment" in name}


def test_a_method_of_that_name_takes_no_other_server_optimiser():
    with refuses("method.server = 'yogi'", "FedAdam", "method.name = 'fedavg'"):
        FedAdam(server="yogi")
    assert SERVERS.name_of(FedAdam(server={"lr": 0.5}).server) == "adam"


def test_another_method_does_not_inherit_the_server_optimiser_that_makes_one(make: Make):
    """FedAvg on FedAdam's server would go by FedAvg's name."""
    adam = make({"method": {"name": "fedadam", "server": {"lr": 0.5}}})
    with pytest.warns(fedshift.FedshiftWarning, match="not used: server"):
        assert fedshift.experiment(adam, method="fedavg").method == FedAvg()
    assert fedshift.experiment(make(), method="fedadam").method == FedAdam()


def test_parts_that_are_made_without_the_servers_are_an_error():
    with refuses("'first_moment'", "all_parts()"):
        state = begun(FedAvg(), 1.0)
        merged(FedAvg(server="adam"), state, 0.5)


def test_the_published_benchmark_has_the_rows_it_had():
    assert not {"fedadagrad", "fedadam", "fedyogi"} & {*rows()}
    assert rows(["all", "fedadam"]) == [*rows(), "fedadam"]
    assert "fedavgm" in rows()
