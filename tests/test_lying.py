"""A site that lies can spoil no round and end no run: what it sends is left out, by name, and the others go on."""

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
from fedshift.deployment.link import Away
from fedshift.deployment.wire import Done, Failed, Join, Work
from fedshift.errors import DamagedError, DivergedError
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.study.grid import expand, override
from reference import small
from refusal import refuses
from test_coordinate import IN_DOMAIN, alike, altered

Change = Callable[[str, bytes, bytes], bytes | Away]
Lie = Callable[[Work, dict[str, Tensor]], None]
SAMPLES = {"method.weighting": "samples"}


def carry_out(
    folder: Path,
    change: Change | None = None,
    changes: dict[str, Any] | None = None,
    sites: tuple[str, ...] = SITES,
    **federation: Any,
) -> RunFolder:
    """FedAvg over three rounds, where what sites reply is changed on the way; a second call goes on with the run."""
    (experiment,) = expand(override(TINY, {**small("fedavg"), **IN_DOMAIN, "train.rounds": 3, **(changes or {})}))
    members(folder, experiment, sites, federation)
    return coordinate(folder / "coordinator", Local(folder, change), Progress())


def orders(request: bytes, position: int, exchange: str) -> Work | None:
    """A request with the order of an exchange in a round of the run; None: it is another."""
    work = request_of(request)
    if isinstance(work, Join) or work.order is None or (work.position, work.order.exchange) != (position, exchange):
        return None
    return work


def liar(lie: Lie, position: int = 2, exchange: str = "train", sites: tuple[str, ...] = ("dark",)) -> Change:
    """Sites that send something else in a round of the run."""

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        work = orders(request, position, exchange) if site in sites else None
        return reply if work is None else altered(reply, lambda about, tensors: lie(work, tensors))

    return change


def away(position: int = 2, exchange: str = "train", site: str = "dark") -> Change:
    """A site that does not answer in a round of the run."""

    def change(who: str, request: bytes, reply: bytes) -> bytes | Away:
        return Away("offline") if who == site and orders(request, position, exchange) else reply

    return change


def far(work: Work, tensors: dict[str, Tensor], times: float) -> None:
    """An update that is so many times what it was."""
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


def says(name: str, value: float, work: Work, tensors: dict[str, Tensor]) -> None:
    """Another number in one place."""
    tensors[name] = torch.full_like(tensors[name], value)


def missing(run: RunFolder) -> list[tuple[str, int, str, str]]:
    """Whose answers are missing from a run: client, round, exchange and why."""
    lines = [each for record in run.records() for each in record.get("missing", [])]
    return [(each["client"], each["round"], each["exchange"], each["why"]) for each in lines]


def told(run: RunFolder, what: str) -> list[dict[str, Any]]:
    """The events of one kind that the run's members had."""
    events = map(json.loads, (run.path / "events.jsonl").read_text().splitlines())
    return [each for each in events if each["kind"] == "site" and each["what"] == what]


# Norms --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_dark(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return carry_out(tmp_path_factory.mktemp("away"), away())


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (huge, "times the cohort's median norm; federation.toml allows 20 (norm_factor)"),
        (partial(far, times=100), "81 times the cohort's median norm"),
        (partial(far, times=-100), "times the cohort's median norm"),
        (partial(says, "up.head.bias", torch.nan), "'head.bias' is not finite"),
        (partial(says, "telemetry.steps", -1), "-1 in 'steps'"),
        (partial(says, "telemetry.steps", 10**12), "1000000000000 in 'steps'"),
        (partial(says, "telemetry.term.cross_entropy", 1e300), "term.cross_entropy = 1e+300"),
    ],
)
def test_a_round_goes_on_without_the_liar(tmp_path: Path, without_dark: RunFolder, lie: Lie, reason: str):
    """As if it had been away, and it is named."""
    run = carry_out(tmp_path, liar(lie))
    alike(run, without_dark, records=False)
    ((client, round, _, why),) = missing(run)
    assert (client, round) == ("dark", 2)
    assert reason in why


def test_who_is_left_out_is_an_event_and_the_factor_is_on_record(tmp_path: Path):
    run = carry_out(tmp_path, liar(huge), norm_factor=30.0)
    ((event),) = told(run, "left out")
    assert (event["who"], event["round"], event["exchange"]) == ("dark", 2, "train")
    assert "allows 30" in event["why"]
    assert json.loads((run.path / "data.json").read_text())["norm_factor"] == 30
    assert any("30 times" in note for note in run.summary.notes)


def test_a_run_that_waits_for_all_goes_on_without_the_liar(tmp_path: Path, without_dark: RunFolder):
    """A start after an error would hear the same answer again, so an error would end the run for good."""
    run = carry_out(tmp_path, liar(huge), {"train.min_answers": "all"})
    alike(run, without_dark, records=False)


def test_one_of_two_sites_is_left_out(tmp_path: Path):
    two = ("dark", "gray")
    run = carry_out(tmp_path / "lies", liar(huge), sites=two)
    alike(run, carry_out(tmp_path / "away", away(), sites=two), records=False)
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 2)]


def test_too_few_honest_answers_merge_nothing(tmp_path: Path):
    """All three are needed: the round passes and changes nothing, and the next ones go on."""
    run = carry_out(tmp_path, liar(huge), {"train.min_answers": 1.0})
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 2)]
    first, second, third = ([row["loss"] for row in record["environments"]] for record in run.records())
    assert first == second != third


def test_a_liar_in_an_early_exchange_is_not_asked_again_in_its_round(tmp_path: Path):
    drfa = {**small("drfa"), "train.participation": 1.0}
    asked = list[tuple[str, int, str]]()

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work) and work.order is not None:
            asked.append((site, work.position, work.order.exchange))
        return liar(huge, position=3)(site, request, reply)

    run = carry_out(tmp_path, change, drfa)
    assert [(client, round, exchange) for client, round, exchange, _ in missing(run)] == [("dark", 2, "train")]
    assert ("dark", 3, "train") in asked
    assert ("dark", 3, "score") not in asked


# Counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10**15, -5, 0, 2**63 - 1])
def test_an_impossible_number_of_samples_is_not_merged(tmp_path: Path, count: int):
    def lie(work: Work, tensors: dict[str, Tensor]) -> None:
        tensors["up.samples"] = torch.tensor(count)

    run = carry_out(tmp_path / "lies", liar(lie), SAMPLES)
    alike(run, carry_out(tmp_path / "away", away(), SAMPLES), records=False)
    ((client, round, _, why),) = missing(run)
    assert (client, round) == ("dark", 2)
    assert "'samples'" in why


def test_a_negative_variance_of_a_batch_norm_is_not_merged(tmp_path: Path):
    """Its norm is that of any, and every site's loss would be undefined."""

    def lie(work: Work, tensors: dict[str, Tensor]) -> None:
        tensors["up.encoder.1.running_var"] = torch.full_like(tensors["up.encoder.1.running_var"], -0.4)

    run = carry_out(tmp_path, liar(lie))
    ((client, round, _, why),) = missing(run)
    assert (client, round) == ("dark", 2)
    assert "-0.4 in 'encoder.1.running_var', a variance" in why


def test_samples_of_zero_from_every_site_are_a_clear_error(tmp_path: Path):
    with refuses("'samples'", "add up to 0", "from 1"):
        carry_out(tmp_path, liar(partial(says, "up.samples", 0), sites=SITES), SAMPLES)


@pytest.mark.parametrize(("name", "exchange"), [("fedgen", "train"), ("fedpac", "train"), ("fedproc", "train")])
def test_impossible_counts_of_classes_are_not_merged(tmp_path: Path, name: str, exchange: str):
    run = carry_out(tmp_path, liar(partial(says, "up.class_counts.value", -7)), small(name))
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
    """Even if that is not the largest: each is left out in turn."""
    monkeypatch.setitem(METHODS._listed, "divides", Divides)
    divides = {"method.name": "divides"}
    run = carry_out(tmp_path / "lies", liar(partial(says, "up.part", part)), divides)
    alike(run, carry_out(tmp_path / "away", away(), divides), records=False)
    ((client, round, _, why),) = missing(run)
    assert (client, round) == ("dark", 2)
    assert "with its answer the merge failed" in why


def test_a_merge_that_fails_whoever_is_left_out_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(METHODS._listed, "divides", Divides)
    lies = liar(partial(says, "up.part", 0.0), sites=SITES)
    with refuses("round 2 merged is not finite", "[method]", error=DivergedError):
        carry_out(tmp_path, lies, {"method.name": "divides"})
    run = carry_out(tmp_path, None, {"method.name": "divides"})  # nothing of it was saved
    assert missing(run) == []


# What passes, and lets the others diverge ---------------------------------------------------------

ANY: dict[str, Any] = {"norm_factor": 0.0}  # so that 1e30 is merged, for want of a subtler lie


def check_taken_back(run: RunFolder, without: RunFolder) -> None:
    """The second round was repeated without the liar, and nobody else is blamed."""
    alike(run, without, records=False)
    ((client, round, _, why),) = missing(run)
    assert (client, round) == ("dark", 2)
    assert "most sites could not work with the model" in why
    assert len(list(run.path.glob("manifest-*.json"))) == 1


def test_a_model_with_which_nobody_can_work_is_taken_back(tmp_path: Path, without_dark: RunFolder):
    run = carry_out(tmp_path, liar(huge), **ANY)
    check_taken_back(run, without_dark)
    ((event),) = told(run, "goes back")
    assert "round 2" in event["why"]
    assert "dark" in event["why"]


def test_a_liar_that_goes_on_as_if_nothing_were_does_not_hinder_it(tmp_path: Path, without_dark: RunFolder):
    """It answers with numbers that are finite where the honest sites diverge; its word does not count."""
    honest = carry_out(tmp_path / "honest")
    ups = load_file(honest.weights_file)

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = orders(request, 3, "train")
        if (
            site == "dark"
            and work is not None
            and work.order is not None
            and float(work.order.down["head.bias"][0]) > 1e9
        ):
            mine = Up({name: ups[name] for name in work.order.down})
            return Done("dark", Answer(**vars(work.order.trip), up=mine, telemetry=Telemetry())).to_bytes()
        return liar(huge)(site, request, reply)

    check_taken_back(carry_out(tmp_path / "lies", change, **ANY), without_dark)


def test_the_first_round_is_taken_back_to_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also if it is killed when the checkpoint of the first round is removed."""
    remove, killed = files.remove, list[Path]()

    def removing(path: Path) -> None:
        if path.name == "manifest-1.json" and not killed:
            killed.append(path)
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(files, "remove", removing)
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path / "lies", liar(huge, position=1), **ANY)
    run = carry_out(tmp_path / "lies", liar(huge, position=1), **ANY)
    alike(run, carry_out(tmp_path / "away", away(1)), records=False)
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 1)]


def test_the_last_round_is_taken_back_too(tmp_path: Path):
    run = carry_out(tmp_path / "lies", liar(huge, position=3), **ANY)
    alike(run, carry_out(tmp_path / "away", away(3)), records=False)
    assert len(run.records()) == 3


def test_a_round_is_taken_back_where_every_record_has_messages_of_its_own(tmp_path: Path, without_dark: RunFolder):
    run = carry_out(tmp_path, liar(huge), {"train.patience": 3}, **ANY)
    check_taken_back(run, without_dark)


def test_an_earlier_exchange_of_the_same_round_is_taken_back(tmp_path: Path):
    drfa = {**small("drfa"), "train.participation": 1.0}
    run = carry_out(tmp_path, liar(huge, position=3), drfa, **ANY)
    assert [(client, round, exchange) for client, round, exchange, _ in missing(run)] == [("dark", 2, "train")]
    assert len(told(run, "goes back")) == 1


def test_the_only_answer_of_a_round_is_taken_back_too(tmp_path: Path):
    """The others were away; the round is repeated without the liar, and with them if they are there by then."""

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        if site != "dark" and orders(request, 2, "train"):
            return Away("offline")
        return liar(huge)(site, request, reply)

    run = carry_out(tmp_path, change, {"train.min_answers": 0.3}, **ANY)
    ((event),) = told(run, "goes back")
    assert "without the answer of dark" in event["why"]
    assert len(run.records()) == 3


def test_the_next_largest_is_left_out_if_the_largest_was_not_to_blame(tmp_path: Path):
    """The answer of 'gray' is the largest; sites say that they diverge until it is merged and another is not."""
    models = list[bytes]()

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        if (work := orders(request, 3, "train")) and work.order:
            model = work.order.to_bytes()[-200:]  # which is the same for all sites
            models.extend([model] if model not in models else [])
            if models.index(model) < 2:
                return Failed(site, "diverged").to_bytes()
        return liar(partial(far, times=10), sites=("gray",))(site, request, reply)

    run = carry_out(tmp_path, change)
    first, second = (event["why"].rpartition("answer of ")[2] for event in told(run, "goes back"))
    assert first.startswith("gray")
    ((client, round, _, _),) = missing(run)
    assert (client, round) == (second.partition(",")[0], 2)
    assert client != "gray"


def test_sites_that_diverge_whoever_is_left_out_end_the_run(tmp_path: Path):
    """There is no liar, so each answer is left out once; then the error is what it would have been."""

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        work = request_of(request)
        late = isinstance(work, Work) and work.order is not None and work.position == 3
        return Failed(site, "diverged").to_bytes() if late else reply

    with refuses("has numbers that are not finite", error=DivergedError):
        carry_out(tmp_path, change)
    with refuses("has numbers that are not finite", error=DivergedError):
        carry_out(tmp_path, change)
    (run,) = map(RunFolder, (tmp_path / "coordinator" / "runs").iterdir())
    assert len(told(run, "goes back")) == 3


def test_one_site_that_says_it_diverges_takes_nothing_back(tmp_path: Path):
    def change(site: str, request: bytes, reply: bytes) -> bytes:
        return Failed(site, "diverged").to_bytes() if site == "dark" and orders(request, 3, "train") else reply

    run = carry_out(tmp_path, change)
    assert told(run, "goes back") == []
    assert [(client, round) for client, round, _, _ in missing(run)] == [("dark", 3)]


# Kills --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(8))
def test_a_kill_while_it_goes_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_dark: RunFolder, place: int
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


@pytest.mark.parametrize("answers", [8, 10, 12, 15, 17])
def test_a_kill_between_answers_changes_nothing(tmp_path: Path, without_dark: RunFolder, answers: int):
    """Before and after the liar's round is taken back; three of the answers say that a site joins."""
    left = [answers]

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return liar(huge)(site, request, reply)

    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, change, **ANY)
    check_taken_back(carry_out(tmp_path, change, **ANY), without_dark)


def test_a_damaged_manifest_names_itself_and_the_fix(tmp_path: Path):
    def change(site: str, request: bytes, reply: bytes) -> bytes:
        if orders(request, 3, "train"):
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, change, **ANY)
    (path,) = (tmp_path / "coordinator" / "runs").glob("*/manifest-2.json")
    path.write_text(path.read_text().replace('"sound": 1', '"sound": 2'))
    with refuses("manifest-2.json", "Move it away", error=DamagedError):
        carry_out(tmp_path, **ANY)
