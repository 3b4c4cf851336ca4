"""A site that lies can spoil no round and end no run: what it sends is excluded, by name, and the others continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import TINY
from federated import SITES, Local, members, request_of
from fedshift import files
from fedshift.core.contract import Exchange, LocalWork, ServerState, Upload
from fedshift.core.messages import Answer, Telemetry, Up
from fedshift.core.tensors import Replies
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.flower import Away
from fedshift.deployment.wire import Done, Failed, Work
from fedshift.errors import DivergedError
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.study.grid import expand, override
from reference import small
from refusal import refuses
from test_coordinate import IN_DOMAIN, alike, altered

Change = Callable[[str, bytes, bytes], bytes | Away]
Lie = Callable[[Work, dict[str, Tensor]], None]
SAMPLES = {"method.weighting": "samples"}


def carry_out(
    folder: Path, change: Change | None = None, changes: dict[str, Any] | None = None, **federation: Any
) -> Run:
    """FedAvg over three rounds, where what sites reply is changed on the way; a second call continues with the run."""
    (experiment,) = expand(override(TINY, {**small("fedavg"), **IN_DOMAIN, "train.rounds": 3, **(changes or {})}))
    members(folder, experiment, SITES, federation)
    return coordinate(folder / "coordinator", Local(folder, change), Progress())


def orders(request: bytes, position: int) -> Work | None:
    """A request to train in a round of the run; None: it is another."""
    work = request_of(request)
    requested = isinstance(work, Work) and work.order and (work.position, work.order.exchange) == (position, "train")
    return work if requested else None


def liar(lie: Lie, position: int = 2, sites: tuple[str, ...] = ("dark",)) -> Change:
    """Sites that send something else in a round of the run."""

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        work = orders(request, position) if site in sites else None
        return reply if work is None else altered(reply, lambda about, tensors: lie(work, tensors))

    return change


def away(position: int = 2) -> Change:
    """A site that does not answer in a round of the run."""

    def change(who: str, request: bytes, reply: bytes) -> bytes | Away:
        return Away("offline") if who == "dark" and orders(request, position) else reply

    return change


def far(work: Work, tensors: dict[str, Tensor], times: float) -> None:
    """An update that is that many times what it was."""
    assert work.order is not None
    for name, sent in work.order.down.items():
        if sent.is_floating_point() and f"up.{name}" in tensors:
            moved = sent + times * (tensors[f"up.{name}"] - sent)
            tensors[f"up.{name}"] = moved.clamp(min=0) if name.endswith("running_var") else moved


def huge(work: Work, tensors: dict[str, Tensor]) -> None:
    """1e30 in every place."""
    for name in list(tensors):
        if name.startswith("up.") and tensors[name].is_floating_point():
            tensors[name] = torch.full_like(tensors[name], 1e30)


def statement(name: str, value: float, work: Work, tensors: dict[str, Tensor]) -> None:
    """Another number in one place."""
    tensors[name] = torch.full_like(tensors[name], value)


def missing(run: Run) -> list[tuple[str, int, str, str]]:
    """Whose answers are missing from a run: client, round, exchange and why."""
    lines = [each for record in run.records for each in record.get("missing", [])]
    return [(each["client"], each["round"], each["exchange"], each["why"]) for each in lines]


def told(run: Run, what: str) -> list[dict[str, Any]]:
    """The events of one kind that the run's members had."""
    events = map(json.loads, (run.path / "events.jsonl").read_text().splitlines())
    return [each for each in events if each["kind"] == "site" and each["what"] == what]


def blamed(run: Run, without: Run, reason: str) -> None:
    """A run in which one lied in round 2 is as if it had been away, and gives the reason."""
    alike(run, without, records=False)
    ((client, round, _, why),) = missing(run)
    assert (client, round) == ("dark", 2)
    assert reason in why


# Norms --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_dark(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return carry_out(tmp_path_factory.mktemp("away"), away())


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (huge, "times the cohort's median norm; federation.toml allows 20 (norm_factor)"),
        (partial(far, times=100), "81 times the cohort's median norm"),
        (partial(statement, "up.head.bias", torch.nan), "'head.bias' is not finite"),
        (partial(statement, "up.encoder.1.running_var", -0.4), "-0.4 in 'encoder.1.running_var', a variance"),
        (partial(statement, "telemetry.steps", 10**12), "1000000000000 in 'steps'"),
        (partial(statement, "telemetry.term.cross_entropy", 1e300), "term.cross_entropy = 1e+300"),
    ],
)
def test_a_round_goes_on_without_the_liar(tmp_path: Path, without_dark: Run, lie: Lie, reason: str):
    """As if it had been away, and it is named."""
    run = carry_out(tmp_path, liar(lie))
    blamed(run, without_dark, reason)


def test_who_is_left_out_is_an_event_and_the_factor_is_on_record(tmp_path: Path):
    """Also in a run that waits for all: after an error the same answer would come again and end it for good."""
    run = carry_out(tmp_path, liar(huge), {"train.min_answers": "all"}, norm_factor=30.0)
    ((event),) = told(run, "left out")
    assert (event["who"], event["round"], event["exchange"]) == ("dark", 2, "train")
    assert "allows 30" in event["why"]
    assert json.loads((run.path / "data.json").read_text())["norm_factor"] == 30
    assert any("30 times" in note for note in run.final.notes)


def test_too_few_honest_answers_merge_nothing(tmp_path: Path):
    """All three are needed: the round passes and changes nothing, and the next ones continue."""
    run = carry_out(tmp_path, liar(huge), {"train.min_answers": 1.0})
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 2)]
    first, second, third = ([row["loss"] for row in record["environments"]] for record in run.records)
    assert first == second != third


# Counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10**15, -5, 0])
def test_an_impossible_number_of_samples_is_not_merged(tmp_path: Path, count: int):
    run = carry_out(tmp_path / "lies", liar(partial(statement, "up.samples", count)), SAMPLES)
    blamed(run, carry_out(tmp_path / "away", away(), SAMPLES), "'samples'")


def test_impossible_counts_of_classes_are_not_merged(tmp_path: Path):
    run = carry_out(tmp_path, liar(partial(statement, "up.class_counts.value", -7)), small("fedpac"))
    ((client, _, _, why),) = missing(run)
    assert client == "dark"
    assert "class_counts.value" in why


# What passes alone and explodes together ----------------------------------------------------------


class Divides(FedAvg):
    """FedAvg whose merge divides by the least of what clients upload."""

    def exchange(self, name: str, **changes: Any) -> Exchange:
        return super().exchange(name, **{"uploads": (Upload("part"),), "upload": self.part, **changes})

    def part(self, work: LocalWork) -> dict[str, Tensor]:
        return {"part": torch.tensor(1.0)}

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        least = torch.stack([up["part"] for up in replies.ups]).min()
        merged = super().merge(state, replies)
        return merged.updated({name: tensor / least for name, tensor in merged.shared.of("head").under("head").items()})


@pytest.mark.parametrize("part", [0.0, 1e-6, 1e-30])
def test_a_merge_that_explodes_is_made_without_the_answer_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
):
    """Even if that is not the largest: each is excluded in turn."""
    monkeypatch.setitem(METHODS._listed, "divides", Divides)
    divides = {"method.name": "divides"}
    run = carry_out(tmp_path / "lies", liar(partial(statement, "up.part", part)), divides)
    blamed(run, carry_out(tmp_path / "away", away(), divides), "with its answer the aggregation failed")


def test_a_merge_that_fails_whoever_is_left_out_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(METHODS._listed, "divides", Divides)
    lies = liar(partial(statement, "up.part", 0.0), sites=SITES)
    with refuses("aggregate of round 2 is not finite", "[method]", error=DivergedError):
        carry_out(tmp_path, lies, {"method.name": "divides"})
    run = carry_out(tmp_path, None, {"method.name": "divides"})  # nothing of it was saved
    assert missing(run) == []


# What passes, and lets the others diverge ---------------------------------------------------------

ANY: dict[str, Any] = {"norm_factor": 0.0}  # so that 1e30 is merged, for want of a subtler lie


def check_taken_back(run: Run, without: Run) -> None:
    """The second round was repeated without the liar, and nobody else is blamed."""
    blamed(run, without, "most sites could not work with the model")
    assert len(list(run.path.glob("manifest-*.json"))) == 1


def test_a_model_with_which_nobody_can_work_is_taken_back(tmp_path: Path, without_dark: Run):
    run = carry_out(tmp_path, liar(huge), **ANY)
    check_taken_back(run, without_dark)
    ((event),) = told(run, "goes back")
    assert "round 2" in event["why"]
    assert "dark" in event["why"]


def test_a_liar_that_goes_on_as_if_nothing_were_does_not_hinder_it(tmp_path: Path, without_dark: Run):
    """It answers with numbers that are finite where the honest sites diverge; its word does not count."""
    honest = carry_out(tmp_path / "honest")
    ups = load_file(honest.path / "weights.safetensors")

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = orders(request, 3)
        if site == "dark" and work and work.order and float(work.order.down["head.bias"][0]) > 1e9:
            mine = Up({name: ups[name] for name in work.order.down})
            return Done("dark", Answer(**vars(work.order.trip), up=mine, telemetry=Telemetry())).to_bytes()
        return liar(huge)(site, request, reply)

    check_taken_back(carry_out(tmp_path / "lies", change, **ANY), without_dark)


def test_the_first_round_is_taken_back_to_the_start(tmp_path: Path):
    run = carry_out(tmp_path / "lies", liar(huge, position=1), **ANY)
    alike(run, carry_out(tmp_path / "away", away(1)), records=False)
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 1)]


def test_an_earlier_exchange_of_the_same_round_is_taken_back(tmp_path: Path):
    drfa = {**small("drfa"), "train.participation": 1.0}
    run = carry_out(tmp_path, liar(huge, position=3), drfa, **ANY)
    assert [(client, round, exchange) for client, round, exchange, _ in missing(run)] == [("dark", 2, "train")]
    assert len(told(run, "goes back")) == 1


def test_sites_that_diverge_whoever_is_left_out_end_the_run(tmp_path: Path):
    """There is no liar, so each answer is excluded once; then the error is what it would have been."""

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        work = request_of(request)
        late = isinstance(work, Work) and work.order is not None and work.position == 3
        return Failed(site, "diverged").to_bytes() if late else reply

    for _ in range(2):  # also when it is started again
        with refuses("has numbers that are not finite", error=DivergedError):
            carry_out(tmp_path, change)
    (run,) = map(Run, (tmp_path / "coordinator" / "runs").iterdir())
    assert len(told(run, "goes back")) == 3


def test_one_site_that_says_it_diverges_takes_nothing_back(tmp_path: Path):
    def change(site: str, request: bytes, reply: bytes) -> bytes:
        return Failed(site, "diverged").to_bytes() if site == "dark" and orders(request, 3) else reply

    run = carry_out(tmp_path, change)
    assert told(run, "goes back") == []
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 3)]


# Kills --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(8))
def test_a_kill_while_it_goes_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_dark: Run, place: int
):
    """It is killed before each change of a file from the decision on, and started again."""
    left, begun = [place], [False]
    write, remove = files.write, files.remove

    def count() -> None:
        if begun[0]:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt

    def writing(path: Path, data: Any, **more: Any) -> None:
        tried = path.name == "manifest-1.json" and json.loads(data)["host"]["doubts"]["tried"]
        begun[0] |= bool(tried)
        if not more.get("soon"):
            count()
        write(path, data, **more)

    def removing(path: Path) -> None:
        count()
        remove(path)

    monkeypatch.setattr(files, "write", writing)
    monkeypatch.setattr(files, "remove", removing)
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, liar(huge), **ANY)
    run = carry_out(tmp_path, liar(huge), **ANY)
    check_taken_back(run, without_dark)
