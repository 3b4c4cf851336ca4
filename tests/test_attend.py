"""Whatever a coordinator requests, a site refuses with a reason or obeys; its state stays valid."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from typer.testing import CliRunner

from conftest import TINY, Make
from federated import Local, members, reply_of, request_of, set_site
from fedshift import files
from fedshift.cli.app import app
from fedshift.core.messages import Down, Order, metadata, pack
from fedshift.core.setup import Round
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.attend import Attendant
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.flower import Away
from fedshift.deployment.inspection import inspect
from fedshift.deployment.members import Roster
from fedshift.deployment.sent import read_sent
from fedshift.deployment.turns import MOST_REPLACED
from fedshift.deployment.wire import Done, Failed, Join, Joined, Reply, Work
from fedshift.errors import DiskError
from fedshift.rounds.coordinator import Coordinator
from fedshift.runs.events import Progress
from fedshift.study.grid import expand, override
from reference import small
from refusal import refuses
from test_coordinate import IN_DOMAIN, alike, missing

LONG = "x" * 10**6
HELD_OUT = {"protocol": {"name": "leave-one-domain-out", "hold_out": "light"}, "train.min_answers": 0.5}


class Site:
    """A site in the middle of a run, and every request that it was sent so far."""

    def __init__(self, folder: Path, requests: list[bytes]) -> None:
        self.folder, self.requests = folder, requests
        self.attendant = Attendant(folder)

    def ask(self, data: bytes) -> Reply:
        """What it replies, which is written down so that it can be read."""
        before = len(read_sent(self.folder / "sent.jsonl"))
        reply = reply_of(self.attendant.answer(data))
        assert len(read_sent(self.folder / "sent.jsonl")) == before + 1
        return reply

    def kept(self) -> dict[str, bytes]:
        """All files but the two lists, to which a line is added for every message."""
        files = [path for path in self.folder.parent.parent.rglob("*") if path.is_file()]
        lists = ("sent.jsonl", "log.jsonl", ".lock", "turns.json")  # they grow with every message
        return {str(path): path.read_bytes() for path in files if path.name not in lists}

    def orders(self) -> list[bytes]:
        """The requests with an order."""
        return [data for data in self.requests if isinstance(work := request_of(data), Work) and work.order]


Begun = Callable[..., Site]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """A function that makes a copy, in a folder, of a run of three rounds whose coordinator is killed after answers."""
    made: dict[tuple[str, int], tuple[Path, list[bytes]]] = {}

    def copied(folder: Path, method: str = "fraug", answers: int = 9) -> Site:
        if (method, answers) not in made:
            whole = tmp_path_factory.mktemp(method)
            made[method, answers] = whole, killed(whole, method, answers)
        whole, requests = made[method, answers]
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        return Site(folder / "sites" / "dark", [*requests])

    return copied


def killed(folder: Path, method: str, answers: int) -> list[bytes]:
    """Begin a run and kill its coordinator after some answers; the requests of one site."""
    (experiment,) = expand(override(TINY, {**small(method), **IN_DOMAIN, "train.rounds": 3}))
    members(folder, experiment)
    requests: list[bytes] = []

    def change(site: str, request: bytes, reply: bytes) -> bytes | Away:
        if len(requests) * 3 >= answers:
            raise KeyboardInterrupt
        if site == "dark":
            requests.append(request)
        return reply

    with pytest.raises(KeyboardInterrupt):
        coordinate(folder / "coordinator", Local(folder, change), Progress())
    return requests


@pytest.fixture(scope="module")
def shared(begun: Begun, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site that refuses all that tests of this module ask of it, and so stays as it is."""
    return begun(tmp_path_factory.mktemp("begun"))


def altered(request: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A request with other metadata beside its tensors."""
    ((kind, text),) = metadata(request).items()
    about = json.loads(text)
    change(about)
    return pack(load(request), {kind: json.dumps(about)})


def put(*names: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of a request's metadata under some names."""

    def change(about: dict[str, Any]) -> None:
        *outer, last = names
        for name in outer:
            about = about[name]
        about[last] = value

    return change


def work_of(data: bytes) -> Work:
    """A request that requires work."""
    work = request_of(data)
    assert isinstance(work, Work)
    return work


def coming(site: Site) -> bytes:
    """The order that the site waits for: that of the round after its newest."""
    work = work_of(site.orders()[-1])
    assert work.order is not None
    order = replace(work.order, round=work.order.round + 1)
    score = replace(work.order, round=work.position)  # the model of the round before
    session = site.attendant.turns().session
    return replace(work, session=session, position=work.position + 1, order=order, score=score).to_bytes()


ALTERED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another site": (put("site", value="gray"), "order"),
    "a path as run": (put("run", value="../../gray/state"), "order"),
    "a long run": (put("run", value=LONG), "error"),
    "another session": (put("session", value=2**62), "session"),
    "other settings": (put("agreed", value=""), "experiment"),
    "a checkpoint of the future": (put("saved", value=10**9), "order"),
    "an order of another client": (put("order", "client", value=1), "order"),
    "another stage": (put("order", "stage", value="../../x"), "order"),
    "another exchange": (put("order", "exchange", value="../../x"), "order"),
    "another round": (put("order", "round", value=1), "order"),
    "a position after the last": (put("position", value=10**30), "order"),
    "a negative position": (put("position", value=-1), "error"),
    "something more": (put("folder", value="/etc"), "error"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_request_that_says_something_else_changes_nothing(shared: Site, what: str):
    change, reason = ALTERED[what]
    before = shared.kept()
    reply = shared.ask(altered(coming(shared), change))
    assert isinstance(reply, Failed)
    assert reply.reason == reason
    assert shared.kept() == before


def test_a_request_that_came_before_gets_the_reply_of_then(shared: Site):
    """In any order, as often as anyone likes, and nothing is computed or changed."""
    orders = shared.orders()
    before, first = shared.kept(), {request: content(shared.ask(request)) for request in orders}
    assert all(isinstance(reply, Done) for reply in first.values())
    for request in [orders[-1], *reversed(orders), *orders]:
        assert content(shared.ask(request)) == first[request]
    assert shared.kept() == before


def content(reply: Reply) -> Reply:
    """A reply without the proof, which is another for each request; tensors as bytes, which can be compared."""
    if not isinstance(reply, Done) or reply.answer is None:
        return reply
    return replace(reply, answer=reply.answer.to_bytes())  # type: ignore[arg-type]  # to be compared only


def test_a_request_whose_reply_is_no_longer_kept_is_refused(begun: Begun, tmp_path: Path):
    """The coordinator has a checkpoint of two rounds then; a restart gets the result of its first run."""
    site = begun(tmp_path)
    first = content(site.ask(site.orders()[0]))
    work = work_of(coming(site))
    assert isinstance(site.ask(replace(work, saved=work.position - 1).to_bytes()), Done)
    before = site.kept()
    assert site.ask(site.orders()[1]) == Failed("dark", "state")
    assert site.kept() == before
    assert content(site.ask(site.orders()[0])) == first


def test_joining_again_begins_another_session_and_keeps_all(begun: Begun, tmp_path: Path):
    """Also where the run begins again for the coordinator: no message removes anything at a site."""
    site = begun(tmp_path)
    before = site.kept()
    join = next(data for data in site.requests if isinstance(request_of(data), Join))
    numbers = []
    for _ in range(3):
        reply = site.ask(join)
        assert isinstance(reply, Joined)
        numbers.append(reply.session)
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert site.kept() == before


# One order, one model to be scored ----------------------------------------------------------------


def other_weights(order: Order, scale: float) -> Order:
    """The same order with other weights."""
    return replace(order, down=Down({name: scaled(tensor, scale) for name, tensor in order.down.items()}))


def scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """A tensor with other numbers, unless they are whole."""
    return tensor * scale if tensor.is_floating_point() else tensor


@pytest.mark.parametrize(("site", "protocol"), [("dark", IN_DOMAIN), ("light", HELD_OUT)])
def test_a_coordinator_cannot_have_many_models_scored(make: Make, tmp_path: Path, site: str, protocol: dict[str, Any]):
    """The review worked out a validation sample from the losses of 119 models at one position."""
    folder = members(tmp_path, make({**small("fedavg"), **protocol, "train.rounds": 2}))
    scored: list[Reply] = []

    def attack(who: str, request: bytes, reply: bytes) -> bytes:
        work = request_of(request)
        if who == site and isinstance(work, Work) and work.score is not None:
            for scale in (*range(2, 100), *range(101, 122)):
                other = replace(work, order=None, position=work.position - (work.order is not None))
                forged = replace(other, score=other_weights(work.score, scale / 100))
                scored.append(reply_of(link.sites[who].answer(forged.to_bytes())))
        return reply

    link = Local(folder, attack)
    run = coordinate(folder / "coordinator", link, Progress())
    assert len(scored) == 238  # 119 at each of the two positions
    assert set(map(str, scored)) == {str(Failed(site, "order"))}
    assert run.records[-1]["environments"]


def test_a_coordinator_cannot_have_other_weights_trained_at_one_position(shared: Site):
    work = work_of(shared.orders()[-1])
    assert work.order is not None
    before = shared.kept()
    for scale in (0.5, 2.0, 1 + 2**-20):
        forged = replace(work, order=other_weights(work.order, scale), score=None)
        assert shared.ask(forged.to_bytes()) == Failed("dark", "order")
    assert shared.kept() == before
    assert "each is answered once" in (shared.folder / "log.jsonl").read_text()


def test_a_few_orders_that_failed_may_be_replaced_and_no_more(begun: Begun, tmp_path: Path):
    """A failure is one word, but a word for each of many weights would show as much as a number."""
    site = begun(tmp_path)
    work = work_of(coming(site))
    assert work.order is not None
    replies = []
    for scale in range(MOST_REPLACED + 3):
        huge = other_weights(work.order, 1e30 * (1 + scale))
        replies.append(site.ask(replace(work, order=huge, score=None).to_bytes()))
    reasons = [reply.reason for reply in replies if isinstance(reply, Failed)]
    assert reasons == ["diverged"] * (MOST_REPLACED + 1) + ["order"] * 2


def test_a_round_comes_at_one_position_where_stages_may_end_early(make: Make, tmp_path: Path):
    """Round 1 of the second stage may come after one round of the first, or two, or three; but not after each."""
    changes = {**small("head-retraining"), **IN_DOMAIN, "train.rounds": 3, "train.patience": 2}
    attendant = Attendant(members(tmp_path, make(changes)) / "sites" / "dark")
    site = attendant.site
    requested = {"site": "dark", "run": site.agreement.run, "agreed": site.agreement.digest}
    joined = reply_of(attendant.answer(Join(**requested, settings=site.agreement.agreed).to_bytes()))
    assert isinstance(joined, Joined)
    head = Round(site.setup.stages[1], 1)
    (order, *_) = Coordinator(site.setup, site.agreement.clients).orders(head.stage.training, head, [0])
    work = Work(**requested, session=joined.session, position=2, saved=0)
    arrived: dict[str, list[type[Reply]]] = {"order": [], "score": []}
    for position in (2, 3, 4):
        for what, replies in arrived.items():
            again = replace(work, position=position, **{what: other_weights(order, position)})
            replies.append(type(reply_of(attendant.answer(again.to_bytes()))))
    assert arrived == {"order": [Done, Failed, Failed], "score": [Done, Failed, Failed]}
    kept = list(tmp_path.rglob("order@*.safetensors"))  # replies that may be requested again
    assert [stat.S_IMODE(file.stat().st_mode) for file in kept] == [0o600]


def test_scores_have_three_decimals_and_none_is_of_few_samples(make: Make, tmp_path: Path):
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN}))
    set_site(folder, "gray", min_scored=5)  # it contains three samples back for validation, and six for the test
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    last = run.records[-1]
    rows = last["environments"]
    assert all(row[name] == round(row[name], 3) for row in rows for name in ("accuracy", "loss"))
    assert {(row["environment"], row["role"]) for row in rows if row["environment"] == "gray"} == {("gray", "test")}
    assert [each["why"] for each in last["unscored"]] == ["it has too few samples for a score to leave its site"]


def test_a_site_that_scores_fewer_models_ends_the_run_at_its_start(make: Make, tmp_path: Path):
    """What it scores is on its page, and what it allows in its site.toml."""
    folder = members(tmp_path, make({**small("fedavg"), **IN_DOMAIN, "train.rounds": 3, "evaluate.every": 1}))
    assert "A site scores **3 models** in this run at most" in inspect(folder / "sites" / "gray").page
    set_site(folder, "gray", max_models=2)
    with refuses("'gray' scores fewer models than the run requires (2)", "evaluate.every"):
        coordinate(folder / "coordinator", Local(folder), Progress())


# A site's history ---------------------------------------------------------------------------------


def test_a_thief_of_a_sites_key_is_in_quarantine_until_the_operator_confirms_it(make: Make, tmp_path: Path):
    """The thief has the key and all files but what the site keeps; nothing more is sent to it."""
    folder = members(tmp_path / "trial", make({**small("fedavg"), **IN_DOMAIN, "train.rounds": 6}))
    thief = shutil.copytree(folder / "sites" / "dark", tmp_path / "dark", dirs_exist_ok=True)
    honest, requested = Attendant(folder / "sites" / "dark"), list[int]()
    link = Local(folder)
    roster = Roster(folder / "coordinator" / "roster" / Agreement.read(folder / "coordinator").run)

    def change(who: str, request: bytes, reply: bytes) -> bytes:
        work = request_of(request)
        if isinstance(work, Work) and work.order is not None:
            if who == "gray" and work.position == 1:
                link.sites["dark"] = Attendant(thief)
            if who == "gray" and work.position == 4:
                link.sites["dark"] = honest
                roster.confirm("dark")
            if who == "dark":
                requested.append(work.position)
        return reply

    link.change = change
    run = coordinate(folder / "coordinator", link, Progress())
    assert [(each["client"], each["round"]) for each in missing(run)] == [("dark", round) for round in (1, 2, 3, 4)]
    assert all("cannot prove what it replied before" in each["why"] for each in missing(run))
    assert requested == [1, 5, 6]
    assert not roster.entry("dark").quarantine


def test_the_command_confirms_a_site_of_the_federation(make: Make, tmp_path: Path):
    folder = members(tmp_path, make(IN_DOMAIN)) / "coordinator"
    roster = Roster(folder / "roster" / Agreement.read(folder).run)
    roster.quarantine("dark", "cannot prove what it replied before; `fedshift federation confirm dark`")
    said = CliRunner().invoke(app, ["federation", "confirm", "dark", str(folder)], catch_exceptions=False)
    assert "'dark' takes part again" in said.output
    assert not roster.entry("dark").quarantine
    with refuses("'drak'", "dark"):
        CliRunner().invoke(app, ["federation", "confirm", "drak", str(folder)], catch_exceptions=False)


Tensors = dict[str, torch.Tensor]
UNFIT: dict[str, Callable[[Tensors, str], Any]] = {
    "lacks one": lambda tensors, name: tensors.pop(name),
    "another shape": lambda tensors, name: tensors.update({name: tensors[name][:1]}),
    "one more": lambda tensors, name: tensors.update({"order.encoder.more": torch.zeros(3)}),
    "what the client keeps": lambda tensors, name: tensors.update({"order.encoder.1.running_mean": torch.zeros(2)}),
}


@pytest.mark.parametrize("how", UNFIT)
def test_tensors_that_do_not_fit_change_nothing(begun: Begun, tmp_path: Path, how: str):
    """The order is refused before its turn is taken, and run when it comes as it should."""
    site = begun(tmp_path, "fedbn", 6)
    before, request = site.kept(), coming(site)
    tensors = load(request)
    UNFIT[how](tensors, "order.encoder.0.weight")
    assert site.ask(pack(tensors, metadata(request))) == Failed("dark", "error")
    assert site.kept() == before
    assert isinstance(site.ask(request), Done)


def test_an_order_that_would_spoil_what_a_client_keeps_leaves_it_as_it_was(begun: Begun, tmp_path: Path):
    """A variance of outputs that are too large to be squared stays at the site, and is not finite."""
    site = begun(tmp_path, "fedbn", 6)
    work = work_of(coming(site))
    assert work.order is not None
    name = "encoder.0.weight"
    down = Down({**work.order.down, name: torch.full_like(work.order.down[name], 1e25)})
    spoils = replace(work, order=replace(work.order, down=down), score=None)
    assert site.ask(spoils.to_bytes()) == Failed("dark", "diverged")
    kept = [load(path.read_bytes()) for path in site.folder.glob("state/*/0@*.safetensors")]
    assert kept
    assert all(bool(tensor.isfinite().all()) for tensors in kept for tensor in tensors.values())
    assert isinstance(site.ask(work.to_bytes()), Done)


def test_messages_of_a_session_that_has_ended_change_nothing(begun: Begun, tmp_path: Path):
    """A coordinator that was killed continues; then what the first one sent comes again."""
    site = begun(tmp_path)
    late = [*site.requests, coming(site)]
    seen: list[bytes] = []

    def change(who: str, request: bytes, reply: bytes) -> bytes | Away:
        if who == "dark":
            for each in late:
                before = site.kept()
                if isinstance(request_of(each), Work):
                    assert site.ask(each) == Failed("dark", "session")
                    assert site.kept() == before
            seen.append(request)
        return reply

    run = coordinate(tmp_path / "coordinator", Local(tmp_path, change), Progress())
    assert len(seen) > 2
    alike(run, rehearse(tmp_path, Progress()))


def test_bytes_that_are_no_request_change_nothing(shared: Site):
    before, long = shared.kept(), (2**63).to_bytes(8, "little") + b"{}"
    for data in (b"", b"\xff" * 1000, long, pack({}, {"work": "[" * 10**5}), pack({}, {"join": "{}", "work": "{}"})):
        assert shared.ask(data) == Failed("dark", "error")
    assert shared.kept() == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1500), byte=st.integers(0, 255), cut=st.integers(0, 10**6), which=st.integers(0, 10**6))
def test_a_request_that_was_damaged_on_the_way_changes_nothing(
    shared: Site, place: int, byte: int, cut: int, which: int
):
    """One byte of the header differs, or the end is missing: it is refused, or requires what was requested before."""
    request = bytearray(shared.requests[which % len(shared.requests)])
    request[place % len(request)] = byte
    damaged = bytes(request[: cut % (2 * len(request)) or None])
    assume(damaged not in shared.requests)  # a byte may be what it was
    before = shared.kept()
    reply = shared.ask(damaged)
    assert isinstance(reply, Failed | Joined | Done)
    assert shared.kept() == before


def test_a_full_disk_lets_nothing_leave(begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The coordinator gets no reply that is not written down; the next order is answered when there is room again."""
    site = begun(tmp_path)
    append = files.append

    def full(path: Path, line: str, **more: Any) -> None:
        if path.name == "sent.jsonl":
            raise DiskError("No space left on device")
        append(path, line, **more)

    with monkeypatch.context() as patch:
        patch.setattr(files, "append", full)
        with pytest.raises(DiskError):
            site.attendant.answer(coming(site))
    assert isinstance(site.ask(coming(site)), Done)


def test_turns_that_are_damaged_are_refused(begun: Begun, tmp_path: Path):
    site = begun(tmp_path)
    (turns,) = site.folder.glob("state/*/turns.json")
    before, request = site.kept(), coming(site)
    for text in ("", "[]", '{"sessions": 3}', '{"session": -1}', '{"session": 1, "taken": [{}]}'):
        turns.write_text(text)
        assert site.ask(request) == Failed("dark", "state")
        assert site.kept() == before
    assert "is not what was written" in (site.folder / "log.jsonl").read_text()
