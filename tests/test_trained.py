"""A trained model, rebuilt from its run's folder, predicts what was recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedshift
from conftest import CNN_WITH_BN, Make
from fedshift.clients.inputs import Inputs
from fedshift.core.contract import Part, ServerState
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net
from fedshift.core.tensors import Replies
from fedshift.datasets.dataset import Dataset
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.schema import Blueprint
from fedshift.runs.simulation import Simulation
from refusal import refuses

FEDPIN = {"method.name": "fedpin", "method.alpha": 0.001, "method.lam": 0.1, "method.gamma": 0.0, "train.lr": 0.01}
OFFLINE = {"name": "client2vec", "index": {"name": "dsa-ign", "epochs": 1, "encoder": {"name": "offline", "size": 64}}}


def carried_out(make: Make, changes: dict[str, Any]) -> Run:
    return runner.start(make(changes), Progress())


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch):
    """From here on no data set can be loaded."""

    def forbid():
        def load(*_: Any) -> None:
            raise AssertionError("a data set was loaded")

        for cls in (Dataset, *Dataset.__subclasses__()):
            monkeypatch.setattr(cls, "load", load)

    return forbid


@pytest.mark.parametrize(
    "changes",
    [
        {"method.name": "fedavg"},
        {"method.name": "fedavg", "train.precision": "bfloat16"},
        {"method.name": "fedsr", "method.test_samples": 0},
        {"method": OFFLINE, "train.lr": 0.001},
        {"method.bn": "reestimate", **CNN_WITH_BN},  # measured again on an environment, in one batch as in the run
        {"method.name": "centralised"},
        {"method.name": "fedbn", **CNN_WITH_BN, "protocol": {"name": "in-domain"}},
        {**FEDPIN, "protocol": {"name": "in-domain"}},
        {"method.name": "fedpin-gm-ft", "method.alpha": 0.001, "protocol": {"name": "in-domain"}},
    ],
    ids=str,
)
def test_its_accuracy_is_what_was_recorded(make: Make, without_data: Any, changes: dict[str, Any]):
    finished = carried_out(make, {"train.rounds": 3, "train.steps": 6, **changes})
    environments = Simulation(finished.experiment).federated.environments
    without_data()
    run = Run.open(finished.path)
    rows = run.records[-1]["environments"]
    assert len(rows) == len(environments)
    for row, environment in zip(rows, environments, strict=True):
        model = run.model(None if row["model"] == "global" else environment.client)
        assert not model.training
        with torch.no_grad():
            predicted = model(environment.samples.x)
        right = (predicted.argmax(dim=1) == environment.samples.y).double().mean().item()
        assert right == row["accuracy"]
        loss = nn.functional.nll_loss(predicted.double(), environment.samples.y).item()
        assert loss == pytest.approx(row["loss"], rel=1e-3)
        torch.testing.assert_close(predicted.exp().sum(dim=1), torch.ones_like(predicted[:, 0]))


def test_it_is_an_ordinary_module(make: Make):
    run = carried_out(make, {})
    model = run.model()
    state = model.state_dict()
    assert state.keys() == run.weights.keys()
    assert all(torch.equal(tensor, run.weights[name]) for name, tensor in state.items())
    assert len(list(model.parameters())) == len(state)
    assert torch.equal(run.model(client="dark")(torch.ones(1, 1, 10, 10)), model(torch.ones(1, 1, 10, 10)))


def test_images_are_prepared_as_in_the_run(make: Make):
    """A uint8 image of 51 is 0.2 before normalisation, which images of three channels have."""
    model = carried_out(make, {}).model()
    bytes_, floats = torch.full((1, 1, 10, 10), 51, dtype=torch.uint8), torch.full((1, 1, 10, 10), 0.2)
    assert torch.equal(model(bytes_), model(floats))
    with refuses("(B, 1, 10, 10)", "(1, 3, 10, 10)"):
        model(torch.zeros(1, 3, 10, 10))


def test_a_probabilistic_model_repeats_itself(make: Make):
    x = torch.rand(5, 1, 10, 10)
    model = carried_out(make, {"method.name": "fedsr", "method.test_samples": 3}).model()
    before = torch.get_rng_state()
    assert torch.equal(model(x), model(x))
    assert torch.equal(torch.get_rng_state(), before)


def test_which_client_must_be_said_where_each_has_a_model(make: Make):
    run = carried_out(make, {**FEDPIN})
    x = torch.ones(1, 1, 10, 10)
    assert torch.equal(run.model(client="gray")(x), run.model(client=1)(x))
    assert not torch.equal(run.model(client="gray")(x), run.model(client="dark")(x))
    with refuses("global model", "'fedpin'", "0 ('dark')", "1 ('gray')"):
        run.model()
    with refuses("no client 'grey'", "0 ('dark')", "1 ('gray')"):
        run.model(client="grey")


@pytest.mark.parametrize("changes", [FEDPIN, {"method.name": "drfa", "method.bn": "local", **CNN_WITH_BN}])
def test_a_client_that_never_trained_has_no_model(make: Make, changes: dict[str, Any]):
    """Nor one that only told how many samples it has, as all of DRFA's do."""
    run = carried_out(make, {**changes, "train.participation": 0.5, "train.rounds": 1})
    trained = {int(name.split(".")[1]) for name in run.weights if name.startswith("client.")}
    (other,) = {0, 1} - trained
    with refuses(f"Client {other} (", "never trained"):
        run.model(client=other)


@fedshift.METHODS.register("with-offset")
class WithOffset(FedAvg):
    """FedAvg whose prediction reads what only the server changes, and another such part that it does not read."""

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        offset, unread = (nn.Linear(model.classes, model.classes) for _ in range(2))
        nn.init.constant_(offset.bias, 3.0)
        return {**super().parts(model), "offset": Part(offset, "down"), "unread": Part(unread, "down")}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        return net.offset(super().predict(net, x, noise)).log_softmax(dim=1)

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        return super().merge(state, replies).updated(state.down + 1)


def test_down_tensors_that_prediction_reads_are_among_the_weights(make: Make):
    run = carried_out(make, {"method.name": "with-offset"})
    assert run.weights["offset.bias"].tolist() == [5.0] * 3
    assert not any(name.startswith("unread") for name in run.weights)
    assert torch.equal(run.model().state_dict()["offset.bias"], run.weights["offset.bias"])


def test_clients_are_found_by_name_or_id():
    clients = {4: "a", 7: "b", 9: "b", **dict.fromkeys(range(10, 40), "c")}
    blueprint = Blueprint(
        shape=(1, 2, 2), classes=("x", "y"), clients=clients, inputs=Inputs(normalise=True, vocabulary=("p", "q"))
    )
    assert Blueprint.model_validate(json.loads(blueprint.model_dump_json())) == blueprint
    assert (blueprint.client("a"), blueprint.client(7)) == (4, 7)
    with refuses("2 clients", "'b'", "7, 9"):
        blueprint.client("b")
    with refuses("no client '7'", "4 ('a')", "33 in all"):
        blueprint.client("7")
