"""FedFA's augmentation and its variances by hand, where it is, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from conftest import Make, local_work, simulate, states
from fedshift.core.contract import Batch, ServerState
from fedshift.core.messages import Up
from fedshift.core.model import Model, ModelBuilder
from fedshift.core.net import Net, holder
from fedshift.core.tensors import Replies, Tensors
from fedshift.methods.fedfa import FedFA
from fedshift.models.backbones import ResNet18
from fedshift.models.small import CNN, MLP, CNN1d, DigitsCNN, ResNet10
from fedshift.models.staged import InStages, in_stages, widths_of_stages
from fedshift.streams import Streams
from refusal import refuses

NAMES = ("mu0", "sigma0")


def net(**spread: list[float]) -> Net:
    own = {"mu0": torch.zeros(2), "sigma0": torch.ones(2)}
    shared = {name: torch.tensor(values) for name, values in spread.items()}
    return Net({"encoder": InStages(), "statistics": holder(own), "spread": holder(shared)})


# Two samples of two channels of two places: mu (1, 4) and (3, 6), sigma (1, 2) and (1, 4).
X = torch.tensor([[[0.0, 2.0], [2.0, 6.0]], [[2.0, 4.0], [2.0, 10.0]]])


@pytest.mark.parametrize("coin", [0.4, 0.6])
def test_a_stage_by_hand(coin: float):
    """Over the batch mu varies by (1, 1), sigma by (0, 1). S' of mu is (1, 1/3), so g = (1/2, 1/4), gamma = (4/3, 2/3).

    So mu^ varies by (7/3, 5/3), whose roots are 1.527525 and 1.290994, and with gamma = 1 sigma^ by (0, 2), whose root
    is 1.414214. With the noise below mu^ is (2.527525, 4) and (3, 4.709006), sigma^ (1, 3.414214) and (1, 4).
    With a momentum of 1/2 the client's mu is (0 + 2, 0 + 5) / 2, and sigma (1 + 1, 1 + 3) / 2.
    """
    ours, method = net(mu0=[1, 1 / 3], sigma0=[1, 1]), FedFA(momentum=0.5)
    noise = {"mu0": torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "sigma0": torch.tensor([[0.0, 1.0], [0.0, 0.0]])}
    changed = method.augment(ours, noise | {"coins": torch.tensor([coin])}, 0, X)
    own = ours.of("statistics")
    if coin > 0.5:
        assert torch.equal(changed, X)
        assert [own[name].tolist() for name in NAMES] == [[0, 0], [1, 1]]
        return
    expected = [[[1.527525, 3.527525], [0.585786, 7.414214]], [[2.0, 4.0], [0.709006, 8.709006]]]
    torch.testing.assert_close(changed, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert [own[name].tolist() for name in NAMES] == [
        pytest.approx([1, 2.5], abs=1e-5),
        pytest.approx([1, 2], abs=1e-5),
    ]


def test_without_noise_nothing_is_augmented():
    assert torch.equal(FedFA().encode(net(mu0=[1, 1], sigma0=[1, 1]), Batch(X), {}).z, X)


def test_the_server_sends_the_variances_over_clients():
    """Of mu (1, 2) and (3, 2): 1 and 0; of sigma (1, 1) and (1, 5): 0 and 4. Of a single client: 0."""
    state = ServerState(down=Tensors({f"spread.{name}": torch.ones(2) for name in NAMES}))
    ups = [
        (n, Up({f"batches.{name}": torch.tensor(value) for name, value in zip(NAMES, values, strict=True)}))
        for n, values in enumerate([([1.0, 2.0], [1.0, 1.0]), ([3.0, 2.0], [1.0, 5.0])])
    ]
    after = FedFA().after_mean(state, Replies(ups))
    assert {name: tensor.tolist() for name, tensor in after.items()} == {"spread.mu0": [1, 0], "spread.sigma0": [0, 4]}
    assert FedFA().after_mean(state, Replies(ups[:1]))["spread.mu0"].tolist() == [0, 0]


def builder(model: Model, shape: tuple[int, ...] = (3, 32, 32)) -> ModelBuilder:
    return ModelBuilder(model, shape, 10, Streams(0), clients=2)


@pytest.mark.parametrize(
    ("model", "shape", "widths"),
    [
        (CNN(channels=(4, 6)), (3, 32, 32), (4, 6)),
        (DigitsCNN(channels=(4, 5, 6)), (3, 32, 32), (4, 5, 6)),
        (CNN1d(channels=(4, 6), norm="batch"), (3, 32), (4, 6)),
        (ResNet10(width=4), (3, 64, 64), (4, 4, 8, 16, 32)),  # behind the stem's ReLU and the four blocks
        (ResNet18(), (3, 64, 64), (64, 64, 128, 256)),  # its last stage pools
    ],
)
def test_where_it_is(model: Model, shape: tuple[int, ...], widths: tuple[int, ...]):
    """In stages an encoder is the same function."""
    assert widths_of_stages(builder(model, shape)) == widths
    encoder = builder(model, shape).encoder().eval()
    x = torch.rand(2, *shape, generator=Streams(0).generator("x"))
    assert torch.equal(in_stages(encoder)(x), encoder(x))


def test_a_network_without_feature_maps_is_refused():
    with refuses("'mlp'", "model.name=cnn"):
        FedFA().parts(builder(MLP()))


def test_training_augments_and_clients_upload_their_moving_statistics(make: Make):
    """With probability 1 mu leaves 0 at every client; what they upload is what they have, to the bit."""
    method = {"name": "fedfa", "probability": 1.0}
    cnn = {"model.name": "cnn", "model.channels": [2, 3], "model.dim": 4}
    private = [Tensors(state.tensors) for _, state in states(simulate(make({**cnn, "method": method})))]
    assert all(own["statistics.mu0"].any() for own in private)
    uploaded = FedFA().upload(local_work(Tensors(), private[0], Tensors()))
    assert torch.equal(uploaded["batches.mu0"], private[0]["statistics.mu0"])
