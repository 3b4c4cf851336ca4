"""The model of the round that source validation picks is kept as a run goes, whatever happens to the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import CNN_WITH_BN, TINY, Make, interrupt_after
from federated import Local, as_sent, kill_after, members
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.errors import DamagedError, FedshiftError
from fedshift.experiments import Experiment
from fedshift.runs import runner
from fedshift.runs.checkpoint import selected_name
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.selection import source_validation
from fedshift.study.grid import expand, override
from reference import small
from refusal import refuses

# A rate at which validation goes up and down, and is best before the last round.
ROUGH = {"train.rounds": 12, "train.lr": 0.3, "train.steps": 1, "train.momentum": 0.0}
MORE = {"data.per_class": 20}
IN_DOMAIN = {"protocol": {"name": "in-domain"}, "train.min_answers": 0.5, "evaluate.batch": 6}
PERSONAL = CNN_WITH_BN | {"method": {"name": "fedsr", "reference_scope": "client", "bn": "local"}}


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
    """No method here looks at how many rounds there are, so a run of so many rounds ends with the selected model."""
    run = carried_out(make, {**changes, **ROUGH})
    position = picked(run)
    assert position < 12, "it would say nothing"
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
    with pytest.raises(FedshiftError, match=r"no global model: 'fedsr' leaves every client with a model\. Give client"):
        run.model(round="selected")
    with pytest.raises(FedshiftError, match="There is no client 'north'"):
        run.model("north", "selected")
    with pytest.raises(FedshiftError, match="best"):
        run.model("dark", "best")  # type: ignore[arg-type]  # what a user may give


def test_damage_is_noticed(make: Make):
    """A finished run's is; one that goes on notices as well, and is made again."""
    run = carried_out(make, {})
    file = selected_file(run)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with refuses(file.name, "is damaged", error=DamagedError):
        Run.open(run.path).model(round="selected")
    assert file.name in run.damage()


def test_runs_that_advance_together_keep_their_own(make: Make, tmp_path: Path):
    """As a stack, interrupted and resumed; each has the weights of its own best round."""
    changes = {**ROUGH, "run.engine": "vectorised", "run.together": 3}
    asked = [make({**changes, "seed": seed}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(asked, interrupt_after(7))
    for folder in runner.resume(runner.below(runner.run_path(asked[0]).parent), Progress())[0]:
        run = Run(folder.path)
        assert selected_file(folder).name == selected_name(picked(run))
        run.model(round="selected")
    whole = [make({**changes, "seed": seed, "run.out": str(tmp_path / "whole")}) for seed in (0, 1, 2)]
    for one, other in zip(asked, runner.run_all(whole, Progress())[0], strict=True):
        again = Run(runner.run_path(one))
        assert selected_file(again).read_bytes() == selected_file(other).read_bytes()


# A federation across sites ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A coordinator's run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    members(folder, fedavg(folder))
    return coordinate(folder / "coordinator", Local(folder), Progress())


def fedavg(folder: Path) -> Experiment:
    """What that coordinator carries out."""
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
        with pytest.raises(FedshiftError, match="None is here: in a federation each stays at its site"):
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
