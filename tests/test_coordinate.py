"""A coordinator and its sites over a link: the bits of a simulation, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
from fedshift.core.messages import Answer, Down, Order, Telemetry, Up, metadata, pack
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.flower import Away
from fedshift.deployment.journal import Scoring
from fedshift.deployment.leaving import of_replies
from fedshift.deployment.wire import Done, Failed, Join, Reply, SiteScore, Work, read_reply
from fedshift.errors import FedshiftError
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.study.grid import expand, override
from reference import EVERY_METHOD, POOLED, small
from refusal import refuses

# A batch of one environment's samples: a product of more rows at once is rounded differently.
IN_DOMAIN = {"protocol": {"name": "in-domain"}, "train.min_answers": 0.5, "evaluate.batch": 6}
Change = Callable[[str, bytes, bytes], bytes | Away]


def alike(run: Run, other: Run, records: bool = True) -> None:
    """Two runs end with the same shared weights, and have the same records."""
    ours, theirs = load_file(run.path / "weights.safetensors"), load_file(other.path / "weights.safetensors")
    assert {name for name in theirs if name not in ours} <= {name for name in theirs if name.startswith("client.")}
    apart = {name: (tensor - theirs[name]).abs().max().item() for name, tensor in ours.items()}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()), f"numbers differ by {apart}"
    if records:
        assert as_sent(run.records) == as_sent(other.records)
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
    assert list(map(of_both, as_sent(run.records))) == list(map(of_both, as_sent(simulated.records)))
    assert run.messages == simulated.messages
    assert_private(name, watched, b"\0".join(replies), replies)


def ordered(request: bytes, position: int) -> bool:
    """Whether a request brings the order of a round."""
    work = request_of(request)
    return isinstance(work, Work) and work.position == position and work.order is not None


def coordinated(folder: Path, change: Change | None = None) -> Run:
    """The run of a federation whose sites reply what a function makes of it."""
    return coordinate(folder / "coordinator", Local(folder, change), Progress())


def interrupted(folder: Path, change: Change) -> None:
    """Such a run, whose coordinator is killed."""
    with pytest.raises(KeyboardInterrupt):
        coordinated(folder, change)


def missing(run: Run) -> list[dict[str, Any]]:
    """Every answer that a run continued without."""
    return [each for record in run.records for each in record.get("missing", [])]


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("fedshift.deployment.members.time", made := Clock())
    return made


FLOAT = partial(torch.tensor, dtype=torch.float64)

# Whatever a site sends ----------------------------------------------------------------------------


def altered(reply: bytes, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> bytes:
    """A reply with another header or other tensors, written as any site could write it."""
    ((kind, text),) = metadata(reply).items()
    about, tensors = json.loads(text), load(reply)
    change(about, tensors)
    return pack(tensors, {kind: json.dumps(about)})


def scored(name: str, value: torch.Tensor) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], object]:
    """A reply with another number in its first score."""
    return lambda about, tensors: tensors.update({f"scores.0.{name}": value})


def nan(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    name = min(name for name in tensors if name.startswith("up.") and tensors[name].is_floating_point())
    tensors[name].view(-1)[0] = torch.nan


def nameless(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    about["scores"][0]["environment"] = "dark\x1b[2J"


LIES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nan": (lambda reply: altered(reply, nan), "is not finite"),
    "client": (lambda reply: altered(reply, lambda about, _: about["answer"].update(client=2)), "is from client 2"),
    "site": (lambda reply: altered(reply, lambda about, _: about.update(site="gray")), "a reply of the site 'gray'"),
    "score": (lambda reply: altered(reply, scored("accuracy", FLOAT(1.5))), "accuracy = 1.5"),
    "noise": (lambda reply: b"\xff" * 100, "sent what is no message"),
    "another kind": (lambda reply: pack({}, {"other": "{}"}), "sent what is no reply"),
    "no name": (lambda reply: altered(reply, nameless), "sent what is no reply"),
    "too large": (lambda reply: bytes(1_200_000), "sent 1,200,000 bytes, of "),
}


@pytest.fixture(scope="module")
def without_dark(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in whose second round the site 'dark' does not answer."""
    return lying(tmp_path_factory.mktemp("away"), absent("dark", 2))


@pytest.mark.parametrize("name", LIES)
def test_a_site_that_lies_is_not_merged_and_the_run_goes_on(without_dark: Run, tmp_path: Path, name: str):
    """The others' answers alone make the model, as if the liar had been absent; it is on record, with the reason."""
    lie, reason = LIES[name]
    run = lying(tmp_path, lambda site, request, reply: lie(reply) if site == "dark" and ordered(request, 2) else reply)
    alike(run, without_dark, records=False)
    check_missing(run, reason)


@pytest.mark.parametrize("proven", [False, True], ids=["as it was", "with a new proof"])
def test_a_reply_that_was_sent_before_is_not_merged(tmp_path: Path, proven: bool):
    """Who repeats a reply has no proof, and is in quarantine; a site that lies has, but it answers another order."""
    before: dict[str, Reply] = {}

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        if site != "dark" or not any(ordered(request, position) for position in (1, 2, 3)):
            return reply
        old = before.setdefault("reply", reply_of(reply))
        new = replace(old, proof=reply_of(reply).proof) if proven else old
        return new.to_bytes() if ordered(request, 2) else reply

    run = lying(tmp_path, change)
    if proven:
        check_missing(run, "exchange 'train' of round 1 of the stage 'train'")
    else:
        assert [(each["client"], each["round"]) for each in missing(run)] == [("dark", 2), ("dark", 3)]
        assert all("fedshift federation confirm dark" in each["why"] for each in missing(run))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("loss", torch.zeros(2, 2, dtype=torch.float64), "Scalar"),
        ("loss", torch.tensor(0.5), "scores.0.loss: .* of torch.float32, not"),
        ("loss", FLOAT(torch.nan), "loss = nan"),
        ("loss", FLOAT(-1e300), "loss = -1e"),
        ("accuracy", FLOAT(torch.nan), "accuracy = nan"),
        ("n", torch.tensor(True), "n = True"),
        ("n", torch.tensor(2**62), "n = 4611686018427387904"),
        ("n", torch.tensor(0), "n = 0"),
        ("secret", torch.tensor(1), "secret = 1"),
    ],
)
def test_a_number_of_a_score_that_is_none_makes_no_reply(name: str, value: torch.Tensor, reason: str):
    reply = Done("dark", scores=(SiteScore("dark", "test", "global", 1, 0.5, 1.0, 3),)).to_bytes()
    with pytest.raises(FedshiftError, match=f"sent what is no reply.*{reason}"):
        reply_of(altered(reply, scored(name, value)))


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
    last = run.records[-1]
    assert {row["environment"] for row in last["environments"]} == set(SITES)
    refused = [each for each in last["unscored"] if each["environment"].startswith("ward-")]
    assert len(refused) == 20
    assert "not in the agreement (dark)" in refused[0]["why"]


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


def absent(site: str, position: int) -> Change:
    """A site that does not answer an order of one round."""
    return lambda who, request, reply: Away("offline") if who == site and ordered(request, position) else reply


def lying(folder: Path, change: Change) -> Run:
    """FedAvg over three rounds, where what one site replies is changed on the way."""
    (experiment,) = expand(override(TINY, {**small("fedavg"), **IN_DOMAIN, "train.rounds": 3}))
    members(folder, experiment, federation={"largest": 1})
    return coordinated(folder, change)


def check_missing(run: Run, reason: str) -> None:
    """Exactly one answer is missing, that of the site 'dark' in the second round, for a reason."""
    (one,) = missing(run)
    assert (one["client"], one["round"]) == ("dark", 2)
    assert reason in one["why"]
    assert run.finished


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "answers"), [("fraug", 4), ("client2vec", 11)])
def test_a_coordinator_that_is_killed_goes_on_to_the_same_bits(make: Make, tmp_path: Path, name: str, answers: int):
    """Stopped after any answer and started again, it ends in the same results, clients' states included."""
    experiment = make({**small(name), **IN_DOMAIN, "train.rounds": 3})
    folder, other = members(tmp_path / "killed", experiment), members(tmp_path / "whole", experiment)
    kill_after(answers, folder)
    run = coordinated(folder)
    alike(run, coordinated(other))
    assert newest(folder) == newest(other)


def test_a_coordinator_that_is_killed_within_a_round_merges_the_same_answers(make: Make, tmp_path: Path):
    """Without those of a site that was away then: the next exchange brings the merged ones, which others have seen."""
    experiment = make({**small("drfa"), **IN_DOMAIN, "train.rounds": 3})
    folder, other = members(tmp_path / "killed", experiment), members(tmp_path / "whole", experiment)

    def away(site: str, request: bytes, reply: bytes) -> bytes | Away:
        gone = site == "gray" and ordered(request, 2) and place_of(request_of(request).order) == 0
        return Away("offline") if gone else reply

    def killed(site: str, request: bytes, reply: bytes) -> bytes | Away:
        if ordered(request, 2) and place_of(request_of(request).order) == 1:
            seen.append(site)
            if len(seen) == 2:
                raise KeyboardInterrupt
        return away(site, request, reply)

    seen: list[str] = []
    setup = Agreement.read(folder / "coordinator").setup(torch.device("cpu"))

    def place_of(order: Order) -> int:
        stage, exchange = setup.find(order.stage, order.exchange)
        return stage.exchanges.index(exchange)

    interrupted(folder, killed)
    run = coordinated(folder)
    alike(run, coordinated(other, away))
    assert not list(run.path.glob("exchange-*"))


def test_a_run_that_is_begun_anew_with_other_answers_is_an_error(make: Make, tmp_path: Path):
    """Each site has answered its orders, and would refuse them to the end of the run."""
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN, "train.rounds": 3}))
    shutil.rmtree(coordinated(folder, absent("dark", 1)).path)
    with refuses("dark, gray, light refuse the orders of round 2", "move"):
        coordinated(folder)


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


def test_a_site_that_comes_back_is_an_event(without_dark: Run):
    events = [json.loads(line) for line in (without_dark.path / "events.jsonl").read_text().splitlines()]
    told = [each["what"] for each in events if each["kind"] == "site" and each["who"] == "dark"]
    assert told.index("offline") < told.index("back")


def test_too_few_sites_end_the_run_with_their_names(make: Make, tmp_path: Path, clock: Clock):
    folder = members(tmp_path, make({**IN_DOMAIN}), federation={"wait": 20.0})
    link = Local(folder)
    link.away = {"dark", "light"}
    with refuses("1 of 3 sites are connected after 20 seconds, 2 at least", "dark, light are"):
        coordinate(folder / "coordinator", link, Progress())


# What a site refuses ------------------------------------------------------------------------------


def test_a_refused_category_ends_the_run_at_its_start(make: Make, tmp_path: Path):
    folder = members(tmp_path, make({**small("client2vec"), **IN_DOMAIN}))
    set_site(folder, "gray", refuse=["embedding"])
    with refuses("The site 'gray' refuses", "embedding", "pairs"):
        coordinate(folder / "coordinator", link := Local(folder), Progress())
    assert {type(request_of(request)) for _, request, _ in link.messages} == {Join}
    (line,) = (folder / "sites/gray/sent.jsonl").read_text().splitlines()
    assert json.loads(line)["what"] == "failure"


def test_a_site_that_refuses_and_does_not_say_what_is_named_all_the_same(make: Make, tmp_path: Path):
    folder = members(tmp_path, make(IN_DOMAIN))

    def change(site: str, request: bytes, reply: bytes) -> bytes:
        return Failed("gray", "policy").to_bytes() if site == "gray" else reply

    with refuses("The site 'gray' refuses what the method needs."):
        coordinated(folder, change)


def test_what_is_optional_is_left_out_by_a_site_that_refuses_it(make: Make, tmp_path: Path):
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN}))
    set_site(folder, "gray", refuse=["count", "statistic", "embedding"])
    run = coordinated(folder)
    last = run.records[-1]
    assert {row["environment"] for row in last["environments"]} == {"dark", "light"}
    assert set(last["terms"]) == {"dark", "light"}
    assert {each["site"] for each in last["unscored"]} == {"gray"}
    sent = [json.loads(line) for line in (folder / "sites/gray/sent.jsonl").read_text().splitlines()]
    assert {tensor["category"] for line in sent for tensor in line["tensors"]} == {"model update"}


def test_another_experiment_at_a_site_ends_the_run_at_its_start(make: Make, tmp_path: Path):
    folder = members(tmp_path / "a", make(IN_DOMAIN))
    other = members(tmp_path / "b", make({**IN_DOMAIN, "train.lr": 0.2}))
    (folder / "sites/dark/experiment.toml").write_bytes((other / "sites/dark/experiment.toml").read_bytes())
    with pytest.raises(FedshiftError, match=r"The site 'dark' has agreed on something else .*train\.lr"):
        coordinated(folder)


@pytest.mark.parametrize("name", ["fedsr", "fedpac"])  # fedpac sends each client a separate head
def test_a_target_site_is_scored_and_never_trains(make: Make, tmp_path: Path, name: str):
    held_out = {"protocol": {"name": "leave-one-domain-out", "hold_out": "light"}, "train.min_answers": 0.5}
    folder = members(tmp_path, make({**small(name), **held_out, "evaluate.batch": 6}))
    run = coordinate(folder / "coordinator", link := Local(folder), Progress())
    alike(run, rehearse(folder, Progress()))
    assert {row["environment"]: row["role"] for row in run.records[-1]["environments"]} == {
        "dark": "validation",
        "gray": "validation",
        "light": "test",
    }
    for site, request, _ in link.messages:
        work = request_of(request)
        assert site != "light" or isinstance(work, Join) or work.order is None
    x = torch.randn(5, 1, 10, 10, generator=torch.Generator().manual_seed(1))
    if name == "fedsr":  # it has the final model as well
        assert torch.equal(
            fedshift.site_model(folder / "sites" / "light")(x), fedshift.load(run.path).runs[0].model()(x)
        )


@pytest.mark.parametrize("policy", [{"min_scored": 1000}, {"refuse": ["statistic"]}, {"refuse": ["count"]}])
def test_a_target_site_tells_no_more_than_its_policy_allows(make: Make, tmp_path: Path, policy: dict[str, Any]):
    """Where it withholds its scores there is no record, as no environment is tested."""
    held_out = {"protocol": {"name": "leave-one-domain-out", "hold_out": "light"}, "evaluate.metrics": ["macro-f1"]}
    folder = members(tmp_path, make({**small("fedavg"), **held_out, "train.min_answers": 0.5}))
    set_site(folder, "light", **policy)
    run = coordinate(folder / "coordinator", link := Local(folder), Progress())
    done = [reply_of(reply) for site, _, reply in link.messages if site == "light" and isinstance(reply, bytes)]
    told = [score for reply in done if isinstance(reply, Done) for score in reply.scores]
    if policy == {"refuse": ["count"]}:
        assert {(score.n, score.metrics.keys() == {"macro-f1"}) for score in told} == {(None, True)}
        assert [row.get("n") for row in run.records[-1]["environments"] if row["role"] == "test"] == [None]
    else:
        assert all(score.accuracy is None and score.loss is None and not score.metrics for score in told)
        assert run.records == []


def test_a_method_whose_models_are_the_sites_own_cannot_score_a_target(make: Make, tmp_path: Path):
    held_out = {"protocol": {"name": "leave-one-domain-out", "hold_out": "light"}}
    folder = members(tmp_path, make({**small("fedbn"), **held_out}))
    with refuses("'fedbn' predicts with parts that clients keep", "'light', which never trains"):
        coordinated(folder)


def test_a_simulation_does_not_touch_a_federations_run(make: Make, tmp_path: Path):
    folder = members(tmp_path, make(IN_DOMAIN))

    kill_after(5, folder)
    with pytest.raises(FedshiftError, match="is a federation's run, which its coordinator alone can resume"):
        fedshift.resume(folder / "coordinator" / "runs")


@pytest.mark.parametrize("name", ["fedsr", "fedbn"])
def test_every_site_has_its_model_when_the_run_has_ended(make: Make, tmp_path: Path, name: str):
    """It predicts as the simulation's model of its client; the coordinator has the one that is shared."""
    folder = members(tmp_path, make({**small(name), **IN_DOMAIN}))
    run = coordinated(folder)
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
    run = coordinated(folder)
    assert run.finished
    assert run.records == []
    assert any("there is no record" in note for note in run.final.notes)
    alike(run, rehearse(folder, Progress()), records=False)


def test_half_of_the_sites_take_part_in_a_round(make: Make, tmp_path: Path):
    """The cohort is that of a simulation; the others only score."""
    folder = members(tmp_path, make({**small("feddyn"), **IN_DOMAIN, "train.participation": 0.4, "train.rounds": 4}))
    run = coordinated(folder)
    alike(run, rehearse(folder, Progress()))
    assert not missing(run)
