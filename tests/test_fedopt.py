"""Server optimisers: two rounds by hand, reductions, and on whatever method merges by a mean."""

from __future__ import annotations

import math

import pytest
import torch

from conftest import Make, simulate
from fedshift.core.contract import ServerState
from fedshift.core.method import Averaging, Method
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from reference import EVERY_METHOD, reference, reference_experiment, small
from refusal import refuses

W = "encoder.w"
AVERAGING = [name for name in EVERY_METHOD if issubclass(METHODS.get(name), Averaging)]
BY_MEAN = [name for name in AVERAGING if METHODS.get(name).merge is Averaging.merge]
NOT_BY_MEAN = [name for name in AVERAGING if name not in BY_MEAN]


def one(number: float) -> torch.Tensor:
    """A tensor of one number."""
    return torch.tensor([number], dtype=torch.float64)


def begun(method: Method, w: float) -> ServerState:
    """One parameter w and one batch-norm statistic of 10, with what the server keeps at first."""
    kept = {f"{part}.{W}": one(start) for part, start in method.server.starts().items()}
    return ServerState(Tensors({W: one(w), "encoder.running_mean": one(10.0)}), server=Tensors(kept), clients=2)


def merged(method: Method, state: ServerState, mean: float) -> ServerState:
    """After a round in which two clients end 0.1 on either side of a mean."""
    ends = [one(mean + off) for off in (-0.1, 0.1)]
    return method.merge(state, Replies(enumerate(Tensors({W: w, "encoder.running_mean": w}) for w in ends)))


# w, then m and v or the velocity, after each of two rounds.
MOMENTUM = (0.6, 0.4), (0.04, 0.56)
ADAM = (0.65, -0.35, 0.25), (0.225, -0.425, 0.25)
ADAGRAD = (0.6, -0.4, 0.25), (0.0, -1.2, 1.69)
YOGI = (0.8, -0.2, 0.09), (0.8 - 0.08 / (math.sqrt(0.07) + 0.1), -0.2, 0.07)


@pytest.mark.parametrize(
    ("method", "means", "expected"),
    [
        (FedAvgM(server={"beta": 0.9}), (0.6, 0.4), MOMENTUM),
        (FedAdam(server={"beta1": 0.5, "beta2": 0.5, "tau": 0.1, "lr": 0.6}), (0.3, 0.15), ADAM),
        (FedAdagrad(server={"tau": 0.3, "lr": 0.8}), (0.6, -0.6), ADAGRAD),
        (FedYogi(server={"beta1": 0.5, "beta2": 0.5, "tau": 0.1, "lr": 0.4}), (0.6, 0.6), YOGI),
    ],
    ids=["fedavgm", "fedadam", "fedadagrad", "fedyogi"],
)
def test_two_rounds_by_hand(method: Method, means: tuple[float, ...], expected: tuple[tuple[float, ...], ...]):
    """From w = 1, and v = tau^2 or a velocity of 0. The statistic is the mean of what came.

    FedAvgM, beta = 0.9. Round 1: the mean is 0.6, so v = 0.9 * 0 + (1 - 0.6) = 0.4 and w = 1 - 0.4 = 0.6. Round 2: the
    mean is 0.4, so v = 0.9 * 0.4 + (0.6 - 0.4) = 0.56 and w = 0.6 - 0.56 = 0.04.

    FedAdam, beta1 = beta2 = 0.5, tau = 0.1, lr = 0.6. Round 1: the mean is 0.3, so Delta = -0.7, m = -0.35,
    v = (0.01 + 0.49) / 2 = 0.25, and w goes by 0.6 * -0.35 / (0.5 + 0.1) = -0.35 to 0.65. Round 2: the mean is 0.15,
    so Delta = -0.5, m = (-0.35 - 0.5) / 2 = -0.425, v = (0.25 + 0.25) / 2 = 0.25, and w goes by
    0.6 * -0.425 / 0.6 = -0.425 to 0.225.

    FedAdagrad, beta1 = 0, tau = 0.3, lr = 0.8. Round 1: the mean is 0.6, so Delta = m = -0.4, v = 0.09 + 0.16 = 0.25,
    and w goes by 0.8 * -0.4 / (0.5 + 0.3) = -0.4 to 0.6. Round 2: the mean is -0.6, so Delta = m = -1.2,
    v = 0.25 + 1.44 = 1.69, and w goes by 0.8 * -1.2 / (1.3 + 0.3) = -0.6 to 0.

    FedYogi, beta1 = beta2 = 0.5, tau = 0.1, lr = 0.4. Round 1: the mean is 0.6, so Delta = -0.4 and m = -0.2.
    Delta^2 = 0.16 is above v, which rises by half of it to 0.09, and w goes by 0.4 * -0.2 / (0.3 + 0.1) = -0.2 to 0.8.
    Round 2: the mean is 0.6 again, so Delta = -0.2 and m = -0.2. Delta^2 = 0.04 is below v, which falls by half of it
    to 0.07, and w goes by 0.4 * -0.2 / (sqrt(0.07) + 0.1).
    """
    state = begun(method, 1.0)
    for mean, (w, *moments) in zip(means, expected, strict=True):
        state = merged(method, state, mean)
        assert state.shared[W].item() == pytest.approx(w, abs=1e-9)
        assert [moment.item() for moment in state.server.values()] == pytest.approx(moments)
        assert state.shared["encoder.running_mean"].item() == pytest.approx(mean)


# On any method --------------------------------------------------------------------------------------


def takes_a_server_optimiser(name: str) -> bool:
    """Whether a method is given one; FedAvgM and its like have their own."""
    cls = METHODS.get(name)
    return not (issubclass(cls, FedAvg) and "server" in vars(cls).get("__annotations__", {}))


@pytest.mark.parametrize("name", [*filter(takes_a_server_optimiser, BY_MEAN)])
def test_without_momentum_and_at_rate_one_every_method_is_itself(name: str):
    """To the bit, although the server has been through its step: so its merge is a mean, and nothing goes past it."""
    plain = reference(name).simulation.coordinator.state.tensors
    server = {"method.server": {"name": "momentum", "beta": 0.0}}
    ours = simulate(reference_experiment(name, server)).coordinator.state
    assert all(torch.equal(tensor, ours.tensors[name]) for name, tensor in plain.items())
    assert any(tensor.any() for tensor in ours.server.of("velocity").only(plain).values())


@pytest.mark.parametrize("name", NOT_BY_MEAN)
def test_a_method_whose_merge_is_no_mean_is_refused_with_the_reason(make: Make, name: str):
    with refuses("method.server = 'adam'", "'mean'"):
        make(small(name) | {"method.server": "adam"})


def test_a_page_with_a_merge_of_its_own_takes_no_server_optimiser():
    class Halves(FedAvg):
        def merge(self, state: ServerState, replies: Replies) -> ServerState:
            return state.updated(0.5 * replies.mean(state.shared))

    with refuses("method.server = 'yogi'", "Halves", "'mean'"):
        Halves(server="yogi")
    with refuses("method.server = 'yogi'", "FedAdam", "method.name = 'fedavg'"):
        FedAdam(server="yogi")
