"""The model of the round that source validation picks is kept as a run goes, whatever happens to the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import fedshift
import fresh
from conftest import CNN_WITH_BN, TINY, Make, interrupt_after, results, resume
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


def picked(run: Run) -> int:
    return int(source_validation(run.records)["position"])


@pytest.mark.parametrize(
    "changes",
    [
        {**MORE, "method.name": "fedavg"},
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
    assert run.selected_weights.stat().st_size < run.weights_file.stat().st_size / 2


def test_which_model_is_asked_for_is_checked(make: Make):
    run = carried_out(make, {**PERSONAL, "protocol": {"name": "in-domain"}})
    with pytest.raises(FedshiftError, match=r"no global model: 'fedsr' leaves every client with a model\. Give client"):
        run.model(round="selected")
    with pytest.raises(FedshiftError, match="There is no client 'north'"):
        run.model("north", "selected")
    with pytest.raises(FedshiftError, match="best"):
        run.model("dark", "best")  # type: ignore[arg-type]  # what a user may give
    assert torch.equal(
        fedshift.load(run.path).runs[0].model("dark", "selected")(torch.ones(1, 1, 10, 10)),
        run.model(0, "selected")(torch.ones(1, 1, 10, 10)),
    )


def test_an_unfinished_run_has_none_yet(make: Make):
    with pytest.raises(KeyboardInterrupt):
        runner.start(make(ROUGH), interrupt_after(3))
    with pytest.raises(FedshiftError, match="is not finished, so it has no model yet"):
        Run.open(runner.run_path(make(ROUGH))).model(round="selected")


def test_damage_is_noticed(make: Make):
    """A finished run's is; one that goes on notices as well, and is made again."""
    run = carried_out(make, {})
    file = run.selected_weights
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with refuses(file.name, "is damaged", error=DamagedError):
        Run.open(run.path).model(round="selected")
    assert file.name in run.damage()


def test_what_goes_on_with_a_damaged_file_is_made_again(make: Make, tmp_path: Path):
    whole = carried_out(make, {**ROUGH, "run.out": str(tmp_path / "whole")})
    with pytest.raises(KeyboardInterrupt):
        runner.start(make({**ROUGH, "run.checkpoint_every": 1}), interrupt_after(9))
    folder = Run(runner.run_path(make(ROUGH)))
    (file,) = folder.path.glob("selected@*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    resume(folder)
    assert (folder.path / "damaged-1" / file.name).is_file()
    assert folder.selected_weights.read_bytes() == whole.selected_weights.read_bytes()


# A run that is killed -----------------------------------------------------------------------------


def killed_with_new_weights(times: int, step: str, file: str) -> None:
    """Carry a run out, and kill this process before a step after new weights, the first or a later time."""
    from fedshift.runs.recorder import Recorder

    records, act, new = Recorder.record, getattr(Recorder, step), [0]

    def recording(self: Any, *args: Any) -> None:
        before = self._selected
        records(self, *args)
        new[0] += self._selected != before

    def dying(self: Any, *args: Any, **options: Any) -> Any:
        if new[0] >= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(self, *args, **options)

    Recorder.record = recording  # type: ignore[method-assign]  # in this child only
    setattr(Recorder, step, dying)
    fresh.fedshift("run", file)


# What cannot be seen at once: shared and client tensors, a cohort, and checkpoints behind the records.
EVERYTHING = {
    **ROUGH,
    **MORE,
    **PERSONAL,
    "plugins": [str(Path(__file__).parent / "tiny.py")],
    "protocol": {"name": "in-domain"},
    "train.participation": 0.7,
}


def everything(folder: Path, every: int) -> Experiment:
    """That experiment, its runs below a folder."""
    (experiment,) = expand(override(TINY, EVERYTHING | {"run.checkpoint_every": every, "run.out": str(folder)}))
    return experiment


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """Whole runs, by how often they make a checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    return {every: runner.start(everything(folder / str(every), every), Progress()) for every in (1, 3)}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("step", ["save", "keep_only"])
@pytest.mark.parametrize("times", [1, 2])
def test_killed_with_new_weights_and_resumed_it_has_the_same(
    references: dict[int, Run], tmp_path: Path, step: str, times: int, every: int
):
    """Killed between the selected weights and the checkpoint, and before the one before goes."""
    reference, killed = references[every], everything(tmp_path / "killed", every)
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(killed.table()))
    child = fresh.start(killed_with_new_weights, times, step, str(file))
    assert child.wait() == -signal.SIGKILL, child
    folder = Run.open(runner.run_path(killed))
    resume(folder)
    assert results(folder) == results(reference)
    (kept,) = folder.path.glob("selected@*.safetensors")
    assert kept.name == selected_name(picked(Run(folder.path)))
    assert kept.read_bytes() == reference.selected_weights.read_bytes()


def test_runs_that_advance_together_keep_their_own(make: Make, tmp_path: Path):
    """As a stack, interrupted and resumed; each has the weights of its own best round."""
    changes = {**ROUGH, "run.engine": "vectorised", "run.together": 3}
    asked = [make({**changes, "seed": seed}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(asked, interrupt_after(7))
    for folder in runner.resume(runner.below(runner.run_path(asked[0]).parent), Progress())[0]:
        run = Run(folder.path)
        assert folder.selected_weights.name == selected_name(picked(run))
        run.model(round="selected")
    whole = [make({**changes, "seed": seed, "run.out": str(tmp_path / "whole")}) for seed in (0, 1, 2)]
    for one, other in zip(asked, runner.run_all(whole, Progress())[0], strict=True):
        again = Run(runner.run_path(one))
        assert again.selected_weights.read_bytes() == other.selected_weights.read_bytes()


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
    ours, theirs = load_file(run.selected_weights), load_file(whole.selected_weights)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("before", ["append", "amend"])
def test_a_coordinator_that_stops_between_weights_and_checkpoint(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
):
    """Before a record is added, and before a checkpoint knows of it."""
    from fedshift.manifest import GrowingFile
    from fedshift.runs.recorder import Recorder

    folder = members(tmp_path, fedavg(tmp_path))
    cls = {"append": GrowingFile, "amend": Recorder}[before]
    act, left = getattr(cls, before), [4]

    def stopping(self: Any, *args: Any, **options: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        act(self, *args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cls, before, stopping)
        coordinate(folder / "coordinator", Local(folder), Progress())
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    assert run.records == whole.records
    assert run.selected_weights.read_bytes() == whole.selected_weights.read_bytes()
