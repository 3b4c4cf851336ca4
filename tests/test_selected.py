"""A run's models, of its end and of the round that validation picks, are kept and predict what was recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedshift
from conftest import CNN_WITH_BN, TINY, Make, interrupt_after
from federated import Local, as_sent, kill_after, members
from fedshift.clients.inputs import Inputs
from fedshift.core.contract import Part, ServerState
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net
from fedshift.core.tensors import Replies
from fedshift.datasets.dataset import Dataset
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.errors import DamagedError, FedshiftError
from fedshift.experiments import Experiment
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import runner, scheduling
from fedshift.runs.checkpoint import selected_name
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.schema import Blueprint
from fedshift.runs.selection import source_validation
from fedshift.runs.simulation import Simulation
from fedshift.runs.trained import of_unseen
from fedshift.study.grid import expand, override
from reference import small
from refusal import refuses

# A rate at which validation goes up and down, and is best before the last round.
ROUGH = {"train.rounds": 12, "train.lr": 0.3, "train.steps": 1, "train.momentum": 0.0}
MORE = {"data.per_class": 20}
IN_DOMAIN = {"protocol": {"name": "in-domain"}, "train.min_answers": 0.5, "evaluate.batch": 6}
STRONG = {"l2r": 0.1, "cmi": 0.3}  # so that the last round is not the best
PERSONAL = CNN_WITH_BN | {"method": {"name": "fedsr", "reference_scope": "client", "bn": "local", **STRONG}}


def carried_out(make: Make, changes: dict[str, Any]) -> Run:
    return runner.start(make(changes), Progress())


def selected_file(run: Run) -> Path:
    """The file with the weights that validation picks."""
    (file,) = run.path.glob("selected@*.safetensors")
    return file


def picked(run: Run) -> int:
    return int(source_validation(run.records)["position"])


@pytest.mark.parametrize(
    "changes",
    [
        {**MORE, "method.name": "scaffold"},
        {**small("fedpac"), "protocol": {"name": "in-domain"}},
        {**MORE, **PERSONAL, "protocol": {"name": "in-domain"}},
        {**MORE, "method.name": "fedrep", "protocol": {"name": "in-domain"}, "train.participation": 0.5},
    ],
    ids=lambda changes: changes.get("method.name", "personal"),
)
def test_it_is_the_model_of_a_run_that_ends_there(make: Make, tmp_path: Path, changes: dict[str, Any]):
    """No method here inspects how many rounds there are, so a run of that many rounds ends with the selected model."""
    run = carried_out(make, {**changes, **ROUGH})
    position = picked(run)
    assert position < 12, "it would state nothing"
    short = carried_out(make, {**changes, **ROUGH, "train.rounds": position, "run.out": str(tmp_path / "short")})
    assert {name: tensor.tolist() for name, tensor in run.selected.items()} == {
        name: short.weights[name].tolist() for name in run.selected
    }
    x = torch.randn(5, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    own = [run.data_facts["clients"][name.split(".")[1]] for name in run.selected if name.startswith("client.")]
    for client in dict.fromkeys([*own, *([] if own else [None])]):
        selected = run.model(client, round="selected")
        assert torch.equal(selected(x), short.model(client)(x))
        assert not torch.equal(selected(x), run.model(client)(x))


def test_only_what_a_prediction_reads_is_kept(make: Make):
    """SCAFFOLD's control variates, of a model's size for every client, are in the final weights and not here."""
    run = carried_out(make, {**ROUGH, "method.name": "scaffold"})
    assert any(name.startswith("client.") for name in run.weights)
    assert {name.split(".")[0] for name in run.selected} == {"encoder", "head"}
    assert selected_file(run).stat().st_size < (run.path / "weights.safetensors").stat().st_size / 2


def test_which_model_is_asked_for_is_checked(make: Make):
    run = carried_out(make, {**PERSONAL, "protocol": {"name": "in-domain"}})
    with pytest.raises(
        FedshiftError, match=r"no global model: .fedsr. leaves every client with a model\. Name a client"
    ):
        run.model(round="selected")
    with pytest.raises(FedshiftError, match="There is no client 'north'"):
        run.model("north", "selected")
    with pytest.raises(FedshiftError, match="best"):
        run.model("dark", "best")  # type: ignore[arg-type]  # what a user may give


def test_damage_is_noticed(make: Make):
    """A finished run's is; one that continues notices as well, and is made again."""
    run = carried_out(make, {})
    file = selected_file(run)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with refuses(file.name, "is damaged", error=DamagedError):
        Run.open(run.path).model(round="selected")
    assert file.name in run.damage()


def test_runs_that_advance_together_keep_their_own(make: Make, tmp_path: Path):
    """As a stack, interrupted and resumed; each has the separate weights best round."""
    changes = {**ROUGH, "run.engine": "vectorised", "run.together": 3}
    requested = [make({**changes, "seed": seed}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(requested, interrupt_after(7))
    for folder in runner.resume(runner.below(scheduling.run_path(requested[0]).parent), Progress())[0]:
        run = Run(folder.path)
        assert selected_file(folder).name == selected_name(picked(run))
        run.model(round="selected")
    whole = [make({**changes, "seed": seed, "run.out": str(tmp_path / "whole")}) for seed in (0, 1, 2)]
    for one, other in zip(requested, runner.run_all(whole, Progress())[0], strict=True):
        again = Run(scheduling.run_path(one))
        assert selected_file(again).read_bytes() == selected_file(other).read_bytes()


# A federation across sites ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A coordinator's run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    members(folder, fedavg(folder))
    return coordinate(folder / "coordinator", Local(folder), Progress())


def fedavg(folder: Path) -> Experiment:
    """What that coordinator runs."""
    (experiment,) = expand(override(TINY, {**small("fedavg"), **IN_DOMAIN, **ROUGH, "run.out": str(folder)}))
    return experiment


@pytest.mark.parametrize("name", ["fedavg", "fedpac", "fedbn"])
def test_a_coordinator_keeps_what_it_may(make: Make, tmp_path: Path, name: str):
    """The weights of a simulation, but for what clients keep: that stays at the sites."""
    experiment = make({**small(name), **IN_DOMAIN, **ROUGH})
    folder = members(tmp_path / "trial", experiment)
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    simulated = rehearse(folder, Progress())
    assert as_sent(run.records) == as_sent(simulated.records)
    kept = {name: tensor.tolist() for name, tensor in simulated.selected.items()}
    ours = {name: tensor.tolist() for name, tensor in run.selected.items()}
    assert ours == {name: kept[name] for name in ours}
    if name == "fedbn":
        assert not any(each.startswith("client.") for each in ours)
        with pytest.raises(FedshiftError, match="No model is here: in a federation each stays at its site"):
            run.model("dark", "selected")
    else:
        assert ours == kept


@pytest.mark.parametrize("answers", [5, 17])
def test_a_coordinator_that_is_killed_has_the_same(whole: Run, tmp_path: Path, answers: int):
    folder = members(tmp_path, fedavg(tmp_path))
    kill_after(answers, folder)
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    assert run.records == whole.records
    ours, theirs = load_file(selected_file(run)), load_file(selected_file(whole))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert ours.keys() == theirs.keys()


FEDPIN = {"method.name": "fedpin", "method.alpha": 0.001, "method.lam": 0.1, "method.gamma": 0.0, "train.lr": 0.01}
OFFLINE = {"name": "client2vec", "index": {"name": "dsa-ign", "epochs": 1, "encoder": {"name": "offline", "size": 64}}}


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
    """Nor one that only reported how many samples it has, as all of DRFA's do."""
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


@pytest.mark.parametrize("name", ["fedrep", "ditto", "fedproto", "fedrod", "apfl", "lg-fedavg", "fedbn"])
def test_the_models_of_a_client_that_never_trained_are_those_that_a_held_out_domain_is_scored_with(
    make: Make, name: str
):
    changes = {**small(name), "train.rounds": 2, "evaluate.every": 2, "run.device": "cpu"}
    done = runner.start(make(changes), Progress())
    (row,) = [row for row in done.records[-1]["environments"] if row["role"] == "test"]
    models = of_unseen(done.experiment, Blueprint.model_validate(done.data_facts), done.weights)
    (environment,) = [each for each in Simulation(done.experiment).federated.environments if each.role == "test"]
    x, y = environment.samples.batch(torch.arange(len(environment.samples)))
    with torch.no_grad():
        found = [float((model(x).argmax(dim=1) == y).double().mean()) for model in models]
    assert (row["model"], row["models"]) == ("unseen", len(models))
    assert np.mean(found) == pytest.approx(row["accuracy"])
