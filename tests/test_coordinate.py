"""A coordinator and its sites over a link: the bits of a simulation, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file

import fedshift
from canary import LEAKS, Watched, assert_noticed, assert_private, local
from conftest import TINY, Make, a_record
from federated import SITES, Clock, Local, as_sent, kill_after, members, reply_of, request_of, set_site
from fedshift.core.contract import ServerState
from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, metadata, pack
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.limits import of_replies
from fedshift.deployment.link import Away
from fedshift.deployment.rehearsal import rehearse
from fedshift.deployment.scoring import Scoring
from fedshift.deployment.wire import Done, Failed, Join, Joined, Reply, SiteScore, Work, read_reply
from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.runs.schema import Record
from fedshift.study.grid import expand, override
from reference import EVERY_METHOD, small
from refusal import refuses

# A batch of one environment's samples: a product of more rows at once is rounded differently.
IN_DOMAIN = {"protocol": {"name": "in-domain"}, "train.min_answers": 0.5, "evaluate.batch": 6}
POOLED = ("centralised",)  # which no federation can carry out


def alike(run: RunFolder, other: RunFolder, records: bool = True) -> None:
    """Two runs end with the same shared weights, and have the same records."""
    ours, theirs = load_file(run.weights_file), load_file(other.weights_file)
    assert {name for name in theirs if name not in ours} <= {name for name in theirs if name.startswith("client.")}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    if records:
        assert as_sent(run.records()) == as_sent(other.records())
        assert run.messages == other.messages


@pytest.mark.parametrize("name", [name for name in EVERY_METHOD if name not in POOLED])
def test_every_method_ends_with_the_bits_of_a_simulation(make: Make, tmp_path: Path, name: str):
    """And what is private at a site, which keeps its own batch norm at least, is in no byte of a reply."""
    folder = members(tmp_path / "trial", make({**local(name), **IN_DOMAIN}))
    watched, replies = Watched(folder / "sites" / "dark"), list[bytes]()

    def watch(site: str, request: bytes, reply: bytes) -> bytes:
        replies.append(reply)
        watched.look()
        return reply

    run, simulated = coordinate(folder / "coordinator", Local(folder, watch), Progress()), rehearse(folder, Progress())
    alike(run, simulated, records=False)
    assert list(map(of_both, as_sent(run.records()))) == list(map(of_both, as_sent(simulated.records())))
    assert run.messages == simulated.messages
    assert_private(name, watched, b"\0".join(replies), replies)


def of_both(record: Record) -> Record:
    """A record without the scores of a site that has not trained yet: its model needs what other sites keep."""
    rows = [row for row in record["environments"] if row["model"] != "unseen"]
    return {**record, "environments": rows, "unscored": [], "only_in_simulation": []}


@pytest.mark.parametrize("what", LEAKS)
def test_what_should_stay_would_be_noticed(make: Make, tmp_path: Path, what: str):
    """A reply with something private in it is caught, so the test above can fail."""
    folder = members(tmp_path / "trial", make({**local("fedavg"), **IN_DOMAIN, "train.rounds": 1}), ("dark", "gray"))
    watched, sent = Watched(folder / "sites" / "dark"), list[bytes]()

    def watch(site: str, request: bytes, reply: bytes) -> bytes:
        sent.append(reply)
        watched.look()
        if watched.kept:
            sent.append(watched.leak(what))
        return reply

    coordinate(folder / "coordinator", Local(folder, watch), Progress())
    assert_noticed(what, watched, b"".join(sent))


class Noting(FedAvg):
    """FedAvg that has something to say of the end."""

    def notes(self, state: ServerState) -> tuple[str, ...]:
        return (f"It ends with {len(state.shared)} shared tensors.",)


def test_what_a_method_says_of_the_end_is_said_in_a_federation(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(METHODS._listed, "noting", Noting)
    folder = members(tmp_path / "trial", make({**IN_DOMAIN, "method": {"name": "noting"}}))
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    said = f"It ends with {len(load_file(run.weights_file))} shared tensors."
    assert said in run.summary.notes
    assert said in rehearse(folder, Progress()).summary.notes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("fedshift.deployment.members.time", made := Clock())
    return made


# Whatever a site sends ----------------------------------------------------------------------------


def altered(reply: bytes, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> bytes:
    """A reply with another header or other tensors, written as any site could write it."""
    ((kind, text),) = metadata(reply).items()
    about, tensors = json.loads(text), load(reply)
    change(about, tensors)
    return pack(tensors, {kind: json.dumps(about)})


def up(tensors: dict[str, torch.Tensor]) -> str:
    """The first floating tensor of a reply."""
    return next(
        name for name, tensor in sorted(tensors.items()) if name.startswith("up.") and tensor.is_floating_point()
    )


def nan(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors[up(tensors)].view(-1)[0] = torch.nan


def shape(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors[up(tensors)] = torch.zeros(2, 2, 2, 2)


def kind(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors[up(tensors)] = tensors[up(tensors)].double()


def more(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["up.samples_of_mine"] = torch.zeros(3)


def fewer(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    del tensors[up(tensors)]


def another_client(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    about["answer"]["client"] = 2


def another_run(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    about["answer"]["run"] = "another"


def another_site(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    about["site"] = "gray"


Lie = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def scored(name: str, value: torch.Tensor) -> Lie:
    """A reply with another number in its first score."""
    return lambda about, tensors: tensors.update({f"scores.0.{name}": value})


def telemetry(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["telemetry.term.secret"] = torch.tensor(1.0, dtype=torch.float64)


def nameless(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    about["scores"][0]["environment"] = "dark\x1b[2J"


LIES: dict[str, tuple[Lie, str]] = {
    "nan": (nan, "is not finite"),
    "shape": (shape, "declared as"),
    "type": (kind, "declared as"),
    "more": (more, "does not declare"),
    "fewer": (fewer, "lacks"),
    "client": (another_client, "is that of client 2"),
    "run": (another_run, "of the run another"),
    "site": (another_site, "sent a reply of the site 'gray'"),
    "score": (
        scored("accuracy", torch.tensor(1.5, dtype=torch.float64)),
        "accuracy = 1.5",
    ),
    "score of a shape": (scored("loss", torch.ones(3, dtype=torch.float64)), "sent what is no reply"),
    "environment": (nameless, "sent what is no reply"),
    "telemetry": (telemetry, "no objective of the exchange declares"),
}


@pytest.fixture(scope="module")
def without_dark(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in whose second round the site 'dark' does not answer."""
    return lying(tmp_path_factory.mktemp("away"), absent("dark", 2))


@pytest.mark.parametrize("name", LIES)
def test_a_site_that_lies_is_not_merged_and_the_run_goes_on(without_dark: RunFolder, tmp_path: Path, name: str):
    """The others' answers alone make the model, as if the liar had been absent; it is on record, with the reason."""
    lie, reason = LIES[name]

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        lies = site == "dark" and isinstance(work, Work) and work.position == 2 and work.order is not None
        return altered(reply, lie) if lies else reply

    run = lying(tmp_path, change)
    alike(run, without_dark, records=False)
    check_missing(run, reason)


NO_REPLIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "sent what is no reply"),
    "text": (b"no safetensors", "sent what is no message"),
    "noise": (b"\xff" * 100, "sent what is no message"),
    "nested": (pack({}, {"done": "[[" * 5000}), "sent what is no reply"),
    "another kind": (pack({}, {"other": "{}"}), "sent what is no reply"),
    "too large": (bytes(1_200_000), "sent 1,200,000 bytes, of "),
}


@pytest.mark.parametrize("name", NO_REPLIES)
def test_bytes_that_are_no_reply_are_not_merged(tmp_path: Path, name: str):
    data, reason = NO_REPLIES[name]

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        return data if site == "dark" and isinstance(work, Work) and work.position == 2 else reply

    check_missing(lying(tmp_path, change), reason)


@pytest.mark.parametrize("proven", [False, True], ids=["as it was", "with a new proof"])
def test_a_reply_that_was_sent_before_is_not_merged(tmp_path: Path, proven: bool):
    """Who repeats a reply has no proof, and is in quarantine; a site that lies has, but it answers another order."""
    before: dict[str, Reply] = {}

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if site != "dark" or not isinstance(work, Work) or work.order is None:
            return reply
        old = before.setdefault("reply", reply_of(reply))
        new = replace(old, proof=reply_of(reply).proof) if proven else old
        return new.to_bytes() if work.position == 2 else reply

    run = lying(tmp_path, change)
    if proven:
        check_missing(run, "exchange 'train' of round 1 of the stage 'train'")
    else:
        missing = [each for record in run.records() for each in record.get("missing", [])]
        assert [(each["client"], each["round"]) for each in missing] == [("dark", 2), ("dark", 3)]
        assert all("fedshift federation confirm dark" in each["why"] for each in missing)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("loss", torch.zeros(2, 2, dtype=torch.float64), "Scalar"),
        ("loss", torch.zeros(1, dtype=torch.float64), r"scores.0.loss: \[1\]"),
        ("loss", torch.tensor(0.5), "scores.0.loss: .* of torch.float32, not"),
        ("loss", torch.tensor(torch.nan, dtype=torch.float64), "loss = nan"),
        ("loss", torch.tensor(torch.inf, dtype=torch.float64), "loss = inf"),
        ("accuracy", torch.tensor(True), "accuracy = True"),
        ("accuracy", torch.tensor(1), "of torch.int64"),
        ("accuracy", torch.tensor(torch.nan, dtype=torch.float64), "accuracy = nan"),
        ("n", torch.tensor(True), "n = True"),
        ("n", torch.tensor(3.0, dtype=torch.float64), "n = 3.0"),
        ("loss", torch.tensor(-1e300, dtype=torch.float64), "loss = -1e"),
        ("n", torch.tensor(2**62), "n = 4611686018427387904"),
        ("n", torch.tensor(0), "n = 0"),
        ("secret", torch.tensor(1), "secret = 1"),
    ],
)
def test_a_number_of_a_score_that_is_none_makes_no_reply(name: str, value: torch.Tensor, reason: str):
    reply = Done("dark", scores=(SiteScore("dark", "test", "global", 1, 0.5, 1.0, 3),)).to_bytes()
    with pytest.raises(FedshiftError, match=f"sent what is no reply.*{reason}"):
        reply_of(altered(reply, scored(name, value)))


@pytest.mark.parametrize(
    "reply",
    [
        Joined("x" * 256, {}),
        Joined("dark", {"torch": "2\n3"}),
        Joined("dark", {str(number): "1" for number in range(21)}),
        Failed("dark", "policy", ("a\x1b[2J",)),
        Done("dark", unscored={str(number): "few" for number in range(10_001)}),
        Done("dark", scores=(SiteScore("x" * 256, "test", "global", 1, None, None, None),)),
    ],
)
def test_texts_of_a_reply_are_few_short_and_printable(reply: Joined | Failed | Done):
    with pytest.raises(FedshiftError, match="sent what is no reply"):
        reply_of(reply.to_bytes())


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 10**6))
def test_any_damage_of_a_reply_gives_a_reply_or_an_error(place: int, byte: int, cut: int):
    """Whatever bytes come, they are read as a reply or refused with a FedshiftError, nothing else."""
    answer = Answer("r", "train", 1, "train", 0, Up({"w": torch.ones(3)}), Telemetry.from_numbers({"x": 0.5}, 2))
    score = SiteScore("dark", "test", "global", 1, 0.5, 1.0, 3)
    data = bytearray(Done("dark", answer, (score,)).to_bytes())
    data[place % len(data)] = byte
    damaged = bytes(data[: cut % (len(data) + 1) or None])
    with suppress(FedshiftError):
        reply_of(damaged)


def test_a_header_that_would_fill_the_memory_is_not_parsed(make: Make, tmp_path: Path):
    """100 MB of JSON took 2.8 GB; the limit follows from the tensors that are declared."""
    agreement = Agreement.read(members(tmp_path, make(IN_DOMAIN)) / "coordinator")
    limits = of_replies(agreement, agreement.setup(torch.device("cpu")))
    assert limits.header < 200_000
    text = b'{"__metadata__":{"done":"' + b"x" * 300_000 + b'"}}'
    with refuses("a header of 300,", "at most"):
        read_reply(len(text).to_bytes(8, "little") + text, limits._replace(message=10**9))


def invented(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Twenty environments that nobody agreed on, in which no sample is classified."""
    about["scores"] = about["scores"][:1]
    for number in range(1, 21):
        about["scores"].append({**about["scores"][0], "environment": f"ward-{number}", "role": "test"})
        for name in ("accuracy", "loss", "n"):
            tensors[f"scores.{number}.{name}"] = tensors[f"scores.0.{name}"] * (0 if name == "accuracy" else 1)


def test_environments_that_nobody_agreed_on_are_not_scored(tmp_path: Path):
    """They turned an accuracy of 1.000 into 0.130."""

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        done = reply_of(reply)
        return altered(reply, invented) if site == "dark" and isinstance(done, Done) and done.scores else reply

    run = lying(tmp_path, change)
    last = run.records()[-1]
    assert {row["environment"] for row in last["environments"]} == set(SITES)
    refused = [each for each in last["unscored"] if each["environment"].startswith("ward-")]
    assert len(refused) == 20
    assert "none of those agreed on (dark)" in refused[0]["why"]


def test_many_scores_are_matched_in_a_moment(tmp_path: Path):
    """Each is looked up; compared with all others, ten thousand took minutes."""
    score = SiteScore("dark", "test", "global", 1, 0.5, 1.0, 3)
    done = Done("dark", scores=tuple(replace(score, environment=f"ward-{number}") for number in range(10_000)))
    order = Order("run", "train", 1, "train", 0, Down())
    looked_up = Counted({"dark"})
    record = Scoring({"dark": order}, {"dark": looked_up}, a_record(1, []), (), 1).completed({"dark": done})
    assert len(record["unscored"]) == looked_up.looks == 10_000


class Counted(frozenset[str]):
    """Names that count how often one is looked up."""

    looks = 0

    def __contains__(self, name: object) -> bool:
        self.looks += 1
        return super().__contains__(name)


def absent(site: str, position: int) -> Callable[[str, bytes, bytes], bytes | Away]:
    """A site that does not answer an order of one round."""

    def change(who: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        gone = who == site and isinstance(work, Work) and work.position == position and work.order is not None
        return Away("offline") if gone else reply

    return change


def lying(folder: Path, change: Callable[[str, bytes, bytes], bytes | Away]) -> RunFolder:
    """FedAvg over three rounds, where what one site replies is changed on the way."""
    (experiment,) = expand(override(TINY, {**small("fedavg"), **IN_DOMAIN, "train.rounds": 3}))
    members(folder, experiment, federation={"largest": 1})
    return coordinate(folder / "coordinator", Local(folder, change), Progress())


def check_missing(run: RunFolder, reason: str) -> None:
    """Exactly one answer is missing, that of the site 'dark' in the second round, for a reason."""
    missing = [each for record in run.records() for each in record.get("missing", [])]
    (one,) = missing
    assert (one["client"], one["round"]) == ("dark", 2)
    assert reason in one["why"]
    assert run.finished


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answers"), [("fedavg", 7), ("fraug", 4), ("fedcir", 9), ("client2vec", 11), ("feddyn", 1)]
)
def test_a_coordinator_that_is_killed_goes_on_to_the_same_bits(make: Make, tmp_path: Path, name: str, answers: int):
    """It is stopped after any answer; started again, all is as if nothing had happened, clients' states included."""
    experiment = make({**small(name), **IN_DOMAIN, "train.rounds": 3})
    folder, other = members(tmp_path / "killed", experiment), members(tmp_path / "whole", experiment)
    kill_after(answers, folder)
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    alike(run, coordinate(other / "coordinator", Local(other), Progress()))
    assert newest(folder) == newest(other)


def test_a_coordinator_that_is_killed_within_a_round_merges_the_same_answers(make: Make, tmp_path: Path):
    """Without those of a site that was away then: the next exchange brings the merged ones, which others have seen."""
    experiment = make({**small("drfa"), **IN_DOMAIN, "train.rounds": 3})
    folder, other = members(tmp_path / "killed", experiment), members(tmp_path / "whole", experiment)

    def away(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        first = isinstance(work, Work) and work.order is not None and place_of(work.order) == 0
        return Away("offline") if site == "gray" and first and work.position == 2 else reply

    def killed(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work) and work.order is not None and work.position == 2 and place_of(work.order) == 1:
            seen.append(site)
            if len(seen) == 2:
                raise KeyboardInterrupt
        return away(site, request, reply)

    seen: list[str] = []
    setup = Agreement.read(folder / "coordinator").setup(torch.device("cpu"))

    def place_of(order: Order) -> int:
        stage, exchange = setup.find(order.stage, order.exchange)
        return stage.exchanges.index(exchange)

    with pytest.raises(KeyboardInterrupt):
        coordinate(folder / "coordinator", Local(folder, killed), Progress())
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    alike(run, coordinate(other / "coordinator", Local(other, away), Progress()))
    assert not list(run.path.glob("exchange-*"))


def test_a_coordinator_that_is_killed_while_sites_score_has_the_same_model_scored(make: Make, tmp_path: Path):
    """A site that was away in the round is there again, but the model that others have scored must not change."""
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN, "train.rounds": 3, "train.patience": 3}))
    killed = list[str]()

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work) and work.position == 2 and not killed and site == "dark":
            if work.order is not None:
                return Away("offline")
            killed.append(site)
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        coordinate(folder / "coordinator", Local(folder, change), Progress())
    run = coordinate(folder / "coordinator", Local(folder, change), Progress())
    assert [each["client"] for record in run.records() for each in record.get("missing", [])] == ["dark"]
    assert [record.get("unscored") for record in run.records()] == [None] * 3


def test_a_run_that_is_begun_anew_with_other_answers_is_an_error(make: Make, tmp_path: Path):
    """Each site has answered its orders, and would refuse them to the end of the run."""
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN, "train.rounds": 3}))

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        first = isinstance(work, Work) and work.position == 1 and work.order is not None
        return Away("offline") if first and site == "dark" else reply

    shutil.rmtree(coordinate(folder / "coordinator", Local(folder, change), Progress()).path)
    with refuses("dark, gray, light refuse the orders of round 2", "move"):
        coordinate(folder / "coordinator", Local(folder), Progress())


def test_a_message_of_an_earlier_session_that_comes_late_changes_nothing(make: Make, tmp_path: Path):
    """The site has heard of the coordinator's new start; what a client keeps is not gone back to the old one's."""
    experiment = make({**small("fraug"), **IN_DOMAIN, "train.rounds": 3})
    folder, other = members(tmp_path / "killed", experiment), members(tmp_path / "whole", experiment)
    late: dict[str, bytes] = {}

    def stop(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work) and work.position == 2:
            late[site] = request
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        coordinate(folder / "coordinator", Local(folder, stop), Progress())

    link = Local(folder)

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        if request := late.pop(site, b""):
            assert reply_of(link.sites[site].answer(request)) == Failed(site, "session")
        return reply

    link.change = change
    alike(
        coordinate(folder / "coordinator", link, Progress()),
        coordinate(other / "coordinator", Local(other), Progress()),
    )
    assert newest(folder) == newest(other)


def newest(folder: Path) -> dict[str, bytes]:
    """What each site's client keeps after the last round."""
    found = {}
    for site in SITES:
        states = sorted((folder / "sites" / site / "state").glob("*/*@*.safetensors"), key=position_of)
        if states:
            found[site] = states[-1].read_bytes()
    return found


def position_of(path: Path) -> tuple[int, ...]:
    """How many rounds were done after the one that left a state, and the place of its exchange."""
    return tuple(int(number) for number in path.stem.partition("@")[2].split("-"))


def test_a_site_that_comes_back_goes_on_from_its_own_state(make: Make, tmp_path: Path):
    """Absent in round 2 of 4, it has what a simulation gives a client that was absent then."""
    experiment = make({**small("fraug"), **IN_DOMAIN, "train.rounds": 4})
    folder = members(tmp_path / "trial", experiment)
    seen: list[str] = []
    link = Local(folder)

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work):
            link.away = {"gray"} if work.position == 1 and len(seen) == 2 else set()
            seen.append(site)
        return reply

    link.change = change
    run = coordinate(folder / "coordinator", link, Progress())
    missing = [each for record in run.records() for each in record.get("missing", [])]
    assert [(each["client"], each["round"], each["why"]) for each in missing] == [("gray", 2, "offline")]
    states = sorted((folder / "sites" / "gray" / "state").glob("*/*@*.safetensors"), key=position_of)
    assert position_of(states[-1]) == (4, 0)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    told = [(each["who"], each["what"]) for each in events if each["kind"] == "site" and each["who"] == "gray"]
    assert ("gray", "offline") in told
    assert told.index(("gray", "offline")) < told.index(("gray", "back"))


def test_too_few_sites_end_the_run_with_their_names(make: Make, tmp_path: Path, clock: Clock):
    folder = members(tmp_path, make({**IN_DOMAIN}), federation={"wait": 20.0})
    link = Local(folder)
    link.away = {"dark", "light"}
    with pytest.raises(
        FedshiftError, match=r"1 of 3 sites are connected after 20 seconds, 2 at least .* dark, light are"
    ):
        coordinate(folder / "coordinator", link, Progress())
    (told,) = (folder / "coordinator" / "runs").glob("*/events.jsonl")
    waiting = [each for each in map(json.loads, told.read_text().splitlines()) if each["kind"] == "site"]
    assert [(each["what"], each["why"]) for each in waiting] == [("waiting", "for dark, light, at most 20 seconds")]


# What a site refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "category", "named"),
    [
        ({"method.name": "fedavg", "method.weighting": "samples"}, "count", "samples"),
        (small("client2vec"), "embedding", "pairs"),
        (small("fedavg"), "model update", "encoder."),
        (small("client2vec"), "statistic", "feature"),
    ],
)
def test_a_refused_category_ends_the_run_at_its_start(
    make: Make, tmp_path: Path, changes: dict[str, Any], category: str, named: str
):
    folder = members(tmp_path, make({**changes, **IN_DOMAIN}))
    set_site(folder, "gray", refuse=[category])
    with pytest.raises(FedshiftError, match=f"The site 'gray' refuses .*{category}.*{named}"):
        coordinate(folder / "coordinator", link := Local(folder), Progress())
    assert {type(request_of(request)) for _, request, _ in link.messages} == {Join}
    assert [line["what"] for line in map(json.loads, (folder / "sites/gray/sent.jsonl").read_text().splitlines())] == [
        "failure"
    ]


def test_a_site_that_refuses_and_does_not_say_what_is_named_all_the_same(make: Make, tmp_path: Path):
    folder = members(tmp_path, make(IN_DOMAIN))

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        return Failed("gray", "policy").to_bytes() if site == "gray" else reply

    with refuses("The site 'gray' refuses what the method needs."):
        coordinate(folder / "coordinator", Local(folder, change), Progress())


def test_what_is_optional_is_left_out_by_a_site_that_refuses_it(make: Make, tmp_path: Path):
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN}))
    set_site(folder, "gray", refuse=["count", "statistic", "embedding"])
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    last = run.records()[-1]
    assert {row["environment"] for row in last["environments"]} == {"dark", "light"}
    assert set(last["terms"]) == {"dark", "light"}
    assert {each["site"] for each in last["unscored"]} == {"gray"}
    sent = [json.loads(line) for line in (folder / "sites/gray/sent.jsonl").read_text().splitlines()]
    assert {tensor["category"] for line in sent for tensor in line["tensors"]} == {"model update"}


def test_another_experiment_at_a_site_ends_the_run_at_its_start(make: Make, tmp_path: Path):
    folder, other = (
        members(tmp_path / "a", make(IN_DOMAIN)),
        members(tmp_path / "b", make({**IN_DOMAIN, "train.lr": 0.2})),
    )
    (folder / "sites/dark/experiment.toml").write_bytes((other / "sites/dark/experiment.toml").read_bytes())
    with pytest.raises(FedshiftError, match=r"The site 'dark' has agreed on something else .*train\.lr"):
        coordinate(folder / "coordinator", Local(folder), Progress())


def test_what_an_error_says_stays_at_the_site(make: Make, tmp_path: Path):
    folder = members(tmp_path, make(IN_DOMAIN))
    set_site(folder, "dark", domains=["the name of a patient"])
    with pytest.raises(FedshiftError, match="The site 'dark' has data that do not fit") as caught:
        coordinate(folder / "coordinator", link := Local(folder), Progress())
    assert "patient" not in str(caught.value)
    assert not any(b"patient" in came for _, _, came in link.messages if isinstance(came, bytes))
    assert "the name of a patient" in (folder / "sites/dark/log.jsonl").read_text()


def test_a_target_site_is_scored_and_never_trains(make: Make, tmp_path: Path):
    held_out = {"protocol": {"name": "leave-one-domain-out", "hold_out": "light"}, "train.min_answers": 0.5}
    folder = members(tmp_path, make({**small("fedsr"), **held_out, "evaluate.batch": 6}))
    run = coordinate(folder / "coordinator", link := Local(folder), Progress())
    alike(run, rehearse(folder, Progress()))
    assert {row["environment"]: row["role"] for row in run.records()[-1]["environments"]} == {
        "dark": "validation",
        "gray": "validation",
        "light": "test",
    }
    for site, request, _ in link.messages:
        work = request_of(request)
        assert site != "light" or isinstance(work, Join) or work.order is None


def test_a_method_whose_models_are_the_sites_own_cannot_score_a_target(make: Make, tmp_path: Path):
    held_out = {"protocol": {"name": "leave-one-domain-out", "hold_out": "light"}}
    folder = members(tmp_path, make({**small("fedbn"), **held_out}))
    with pytest.raises(
        FedshiftError, match=r"'fedbn' predicts with what each client keeps .* 'light', which never trains"
    ):
        coordinate(folder / "coordinator", Local(folder), Progress())


def test_a_simulation_does_not_touch_a_federations_run(make: Make, tmp_path: Path):
    folder = members(tmp_path, make(IN_DOMAIN))

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work) and work.position == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        coordinate(folder / "coordinator", Local(folder, change), Progress())
    with pytest.raises(FedshiftError, match="is a federation's run, which its coordinator alone can carry on"):
        fedshift.resume(folder / "coordinator" / "runs")


@pytest.mark.parametrize("name", ["fedsr", "fedbn", "fedpin"])
def test_every_site_has_its_model_when_the_run_has_ended(make: Make, tmp_path: Path, name: str):
    """It predicts as the simulation's model of its client; the coordinator has the one that is shared."""
    folder = members(tmp_path, make({**small(name), **IN_DOMAIN}))
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    (simulated,) = fedshift.load(rehearse(folder, Progress()).path).runs
    x = torch.randn(5, 1, 10, 10, generator=torch.Generator().manual_seed(1))
    for site in SITES:
        assert torch.equal(fedshift.site_model(folder / "sites" / site)(x), simulated.model(site)(x))
    (federated,) = fedshift.load(run.path).runs
    if name == "fedsr":
        assert torch.equal(federated.model()(x), simulated.model()(x))
    else:
        with pytest.raises(FedshiftError, match="leaves every client with a model"):
            federated.model()


def test_a_run_that_nobody_scores_ends_with_its_weights(make: Make, tmp_path: Path):
    """All sites withhold statistics: there is no record, and the model is there all the same."""
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN}))
    for site in SITES:
        set_site(folder, site, refuse=["statistic"])
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    assert run.finished
    assert run.records() == []
    assert any("there is no record" in note for note in run.summary.notes)
    alike(run, rehearse(folder, Progress()), records=False)


def test_a_site_scores_its_own_samples_alone(make: Make, tmp_path: Path):
    """A score that a site sends for another's environment, or twice, is in no record, which says so."""

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        def as_gray(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
            for score in about.get("scores", []):
                score["environment"] = "gray"

        return altered(reply, as_gray) if site == "dark" else reply

    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN}))
    last = coordinate(folder / "coordinator", Local(folder, change), Progress()).records()[-1]
    assert sorted(row["environment"] for row in last["environments"]) == ["gray", "gray", "light", "light"]
    assert {each["site"] for each in last["unscored"]} == {"dark"}


def test_a_site_that_was_not_asked_at_first_compares_what_was_agreed_too(make: Make, tmp_path: Path, clock: Clock):
    """It was away when the run began; its classes are in another order, which no name of a run tells."""
    folder = members(tmp_path, make({**IN_DOMAIN, "train.rounds": 3}), federation={"wait": 20.0})
    theirs = folder / "sites" / "gray" / "federation.toml"
    theirs.write_text(theirs.read_text().replace('"class 0",\n    "class 1"', '"class 1",\n    "class 0"'))
    link = Local(folder)
    link.away = {"gray"}

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        link.away = set() if isinstance(request_of(request), Work) else link.away
        return reply

    link.change = change
    run = coordinate(folder / "coordinator", link, Progress())
    why = [each["why"] for record in run.records() for each in record.get("missing", []) if each["client"] == "gray"]
    assert len(why) == 3
    assert all("has agreed on something else" in each for each in why[1:])


def test_half_of_the_sites_take_part_in_a_round(make: Make, tmp_path: Path):
    """The cohort is that of a simulation; the others only score."""
    folder = members(tmp_path, make({**small("feddyn"), **IN_DOMAIN, "train.participation": 0.4, "train.rounds": 4}))
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    alike(run, rehearse(folder, Progress()))
    assert not any(record.get("missing") for record in run.records())
