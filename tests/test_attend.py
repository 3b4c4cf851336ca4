"""Whatever a coordinator asks, a site answers with a word, or does what it should: its state is never spoilt."""

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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from conftest import TINY, Make
from federated import Local, members, reply_of, request_of
from fedshift import files
from fedshift.core.messages import metadata, pack
from fedshift.deployment.agreement import Agreement, read_site
from fedshift.deployment.attend import Attendant
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.link import Away
from fedshift.deployment.local import prepared
from fedshift.deployment.rehearsal import rehearse
from fedshift.deployment.sent import read_sent
from fedshift.deployment.wire import Done, Failed, Join, Joined, Reply, Work
from fedshift.errors import DamagedError, DiskError, FedshiftError
from fedshift.runs.progress import Progress
from fedshift.settings.grid import expand, override
from reference import small
from test_coordinate import IN_DOMAIN, alike

LONG = "x" * 10**6


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
        lists = ("sent.jsonl", "log.jsonl", ".lock", "turns.json")
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
    """A request that says something else beside its tensors."""
    ((kind, text),) = metadata(request).items()
    about = json.loads(text)
    change(about)
    return pack(load(request), {kind: json.dumps(about)})


def put(*names: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of what a request says under some names."""

    def change(about: dict[str, Any]) -> None:
        *outer, last = names
        for name in outer:
            about = about[name]
        about[last] = value

    return change


def coming(site: Site) -> bytes:
    """The order that the site waits for: that of the round after its newest."""
    work = request_of(site.orders()[-1])
    assert isinstance(work, Work)
    assert work.order is not None
    order = replace(work.order, round=work.order.round + 1)
    score = replace(work.order, round=work.position)  # the model of the round before
    return replace(work, position=work.position + 1, order=order, score=score).to_bytes()


def test_the_order_that_it_waits_for_is_carried_out(begun: Begun, tmp_path: Path):
    """What the other tests alter is refused for what they altered."""
    site = begun(tmp_path)
    before = site.kept()
    reply = site.ask(coming(site))
    assert isinstance(reply, Done)
    assert reply.answer is not None
    assert site.kept() != before


ALTERED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another site": (put("site", value="gray"), "order"),
    "no site": (put("site", value=""), "order"),
    "another run": (put("session", "run", value="another"), "order"),
    "a path as run": (put("session", "run", value="../../gray/state"), "order"),
    "an absolute path as run": (put("session", "run", value="/tmp"), "order"),
    "a long run": (put("session", "run", value=LONG), "error"),
    "no run": (put("session", "run", value=None), "error"),
    "a long session": (put("session", "id", value=LONG), "error"),
    "a session that is a table": (put("session", "id", value={}), "error"),
    "a session that starts before the run": (put("session", "start", value=-1), "error"),
    "a session that starts nowhere": (put("session", "start", value="0"), "error"),
    "an order of another run": (put("order", "run", value="another"), "order"),
    "an order of another client": (put("order", "client", value=1), "order"),
    "an order of no client": (put("order", "client", value=-1), "order"),
    "an order of a client in words": (put("order", "client", value="0"), "error"),
    "another stage": (put("order", "stage", value="../../x"), "order"),
    "a long stage": (put("order", "stage", value=LONG), "error"),
    "another exchange": (put("order", "exchange", value="../../x"), "order"),
    "an exchange that is a list": (put("order", "exchange", value=["train"]), "error"),
    "another round": (put("order", "round", value=1), "order"),
    "a round after the last": (put("order", "round", value=10**12), "order"),
    "round 0": (put("order", "round", value=0), "error"),
    "another position": (put("position", value=1), "order"),
    "a position after the last": (put("position", value=10**30), "order"),
    "position 0": (put("position", value=0), "order"),
    "a negative position": (put("position", value=-1), "error"),
    "a position that is a fraction": (put("position", value=1.5), "error"),
    "a checkpoint that is a word": (put("saved", value="all"), "error"),
    "something more": (put("folder", value="/etc"), "error"),
    "something more in the order": (put("order", "path", value="/etc"), "error"),
    "no order and no score": (lambda about: about.update(order=3, score=[]), "error"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_request_that_says_something_else_changes_nothing(shared: Site, what: str):
    change, reason = ALTERED[what]
    before = shared.kept()
    reply = shared.ask(altered(coming(shared), change))
    assert isinstance(reply, Failed)
    assert reply.reason == reason
    assert shared.kept() == before


def test_a_request_that_came_before_changes_nothing(shared: Site):
    """In any order, as often as anyone likes: one before the newest is refused, the newest is answered as it was."""
    before, (*earlier, newest) = shared.kept(), shared.orders()
    replies = set()
    for request in [newest, *reversed(earlier), newest, *earlier, newest]:
        reply = shared.ask(request)
        if request == newest:
            assert isinstance(reply, Done)
            assert reply.answer is not None
            replies.add(reply.answer.to_bytes())
        else:
            assert reply == Failed("dark", "order")
    assert len(replies) == 1
    assert shared.kept() == before


def test_asking_again_whether_it_can_take_part_changes_nothing(shared: Site):
    before = shared.kept()
    join = next(data for data in shared.requests if isinstance(request_of(data), Join))
    assert isinstance(shared.ask(join), Joined)
    assert shared.kept() == before


Tensors = dict[str, torch.Tensor]
UNFIT: dict[str, Callable[[Tensors, str], Any]] = {
    "lacks one": lambda tensors, name: tensors.pop(name),
    "lacks all": lambda tensors, name: tensors.clear(),
    "another type": lambda tensors, name: tensors.update({name: tensors[name].double()}),
    "another shape": lambda tensors, name: tensors.update({name: tensors[name][:1]}),
    "one more": lambda tensors, name: tensors.update({"order.encoder.more": torch.zeros(3)}),
    "what the client keeps": lambda tensors, name: tensors.update({"order.encoder.1.running_mean": torch.zeros(2)}),
}


@pytest.mark.parametrize("how", UNFIT)
def test_tensors_that_do_not_fit_change_nothing(begun: Begun, tmp_path: Path, how: str):
    """The order is refused before its turn is taken, and carried out when it comes as it should."""
    site = begun(tmp_path, "fedbn", 6)
    before, request = site.kept(), coming(site)
    tensors = load(request)
    UNFIT[how](tensors, "order.encoder.0.weight")
    assert site.ask(pack(tensors, metadata(request))) == Failed("dark", "error")
    assert site.kept() == before
    assert isinstance(site.ask(request), Done)


def test_a_last_model_that_does_not_fit_is_not_kept(begun: Begun, tmp_path: Path):
    """A site keeps the model that it scores at the end of a run; it must be whole."""
    site = begun(tmp_path, "fedbn", 6)
    work = request_of(coming(site))
    assert isinstance(work, Work)
    assert work.order is not None
    last = replace(work, order=None, position=3, score=replace(work.order, round=3))
    tensors, before = load(last.to_bytes()), site.kept()
    for how in UNFIT.values():
        unfit = {name.replace("score.", "order."): tensor for name, tensor in tensors.items()}
        how(unfit, "order.encoder.0.weight")
        renamed = {name.replace("order.", "score."): tensor for name, tensor in unfit.items()}
        assert site.ask(pack(renamed, metadata(last.to_bytes()))) == Failed("dark", "error")
        assert site.kept() == before
    assert isinstance(site.ask(last.to_bytes()), Done)
    assert site.kept().keys() != before.keys()


def test_messages_of_a_session_that_has_ended_change_nothing(begun: Begun, tmp_path: Path):
    """A coordinator that was killed goes on; then what the first one sent comes once more."""
    site = begun(tmp_path)
    folder = tmp_path / "coordinator"
    late = [*site.requests, coming(site)]
    seen: list[bytes] = []

    def change(who: str, request: bytes, reply: bytes) -> bytes | Away:
        if who == "dark":
            for each in late:
                before = site.kept()
                assert site.ask(each) == Failed("dark", "order")
                assert site.kept() == before
            seen.append(request)
        return reply

    run = coordinate(folder, Local(tmp_path, change), Progress())
    assert len(seen) > 2
    alike(run, rehearse(tmp_path, Progress()))


@pytest.mark.parametrize("method", ["fedcir", "client2vec", "feddyn"])
def test_a_run_whose_requests_all_come_twice_ends_with_the_same_bits(make: Make, tmp_path: Path, method: str):
    """As where the process that carries an order out is killed: it is carried out again, with the same answer."""
    folder = members(tmp_path / "trial", make({**small(method), **IN_DOMAIN}))
    again = {site: Attendant(folder / "sites" / site) for site in ("dark", "gray", "light")}

    def change(who: str, request: bytes, reply: bytes) -> bytes | Away:
        work = request_of(request)
        if isinstance(work, Work) and work.order is not None:
            second = reply_of(again[who].answer(request))
            assert isinstance(second, Done)
            assert second.to_bytes() == reply_of(reply).to_bytes()
        return reply

    alike(coordinate(folder / "coordinator", Local(folder, change), Progress()), rehearse(folder, Progress()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff" * 1000,
        (2**63).to_bytes(8, "little") + b"{}",
        pack({}, {"work": "[" * 10**5}),
        pack({}, {"join": "null"}),
        pack({}, {"join": "{}", "work": "{}"}),
        pack({}, {"__class__": "{}"}),
        pack({}, {"work": json.dumps({"session": "x"})}),
        pack({}, {"work": '{"session": NaN}'}),
    ],
    ids=range(10),  # bytes differ from process to process, as safetensors writes metadata in any order
)
def test_bytes_that_are_no_request_change_nothing(shared: Site, data: bytes):
    before = shared.kept()
    assert shared.ask(data) == Failed("dark", "error")
    assert shared.kept() == before


def same_session(data: bytes, site: Site) -> bool:
    """Whether a request is none, or of a session that the site knows; Flower compares a digest of every message."""
    with suppress(FedshiftError):
        return request_of(data).session.id == request_of(site.requests[0]).session.id
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1500), byte=st.integers(0, 255), cut=st.integers(0, 10**6), which=st.integers(0, 10**6))
def test_a_request_that_was_damaged_on_the_way_changes_nothing(
    shared: Site, place: int, byte: int, cut: int, which: int
):
    """One byte of the header differs, or the end is missing: it is refused, or asks whether the site can take part."""
    request = bytearray(shared.requests[which % len(shared.requests)])
    request[place % len(request)] = byte
    damaged = bytes(request[: cut % (2 * len(request)) or None])
    assume(damaged not in shared.requests)  # a byte may be what it was
    assume(same_session(damaged, shared))
    before = shared.kept()
    reply = shared.ask(damaged)
    assert isinstance(reply, Failed | Joined) or (isinstance(reply, Done) and reply.answer is None)
    assert shared.kept() == before


def test_a_full_disk_lets_nothing_leave(begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The coordinator gets no reply that is not written down; the next order is answered when there is room again."""
    site = begun(tmp_path)
    append = files.append

    def full(path: Path, line: str) -> None:
        if path.name == "sent.jsonl":
            raise DiskError("No space left on device")
        append(path, line)

    with monkeypatch.context() as patch:
        patch.setattr(files, "append", full)
        with pytest.raises(DiskError):
            site.attendant.answer(coming(site))
    assert isinstance(site.ask(coming(site)), Done)
    run = coordinate(tmp_path / "coordinator", Local(tmp_path), Progress())
    alike(run, rehearse(tmp_path, Progress()))


def test_a_list_of_what_left_that_is_damaged_lets_nothing_leave(begun: Begun, tmp_path: Path):
    site = begun(tmp_path)
    with (site.folder / "sent.jsonl").open("a") as file:
        file.write("something else\n")
    with pytest.raises(DamagedError, match="The last line"):
        site.attendant.answer(coming(site))


def test_prepared_samples_are_their_owners_and_of_one_release(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody else reads them; they are made again by another release, and read only if inputs are as agreed."""
    site = members(tmp_path, make(IN_DOMAIN)) / "sites" / "dark"
    agreement, (settings, _) = Agreement.read(site), read_site(site)
    own = agreement.table["data"]
    made = prepared(agreement, settings, own, site)
    file = site / "prepared.safetensors"
    assert file.stat().st_mode & 0o077 == 0

    def never(*_: object) -> None:
        raise AssertionError("made again")

    with monkeypatch.context() as patch:
        patch.setattr("fedshift.deployment.local.site_data", never)
        assert torch.equal(prepared(agreement, settings, own, site).x, made.x)
        normalised = {"name": "folder", "path": "images", "size": 10, "channels": 3, "normalise": True}
        with pytest.raises(FedshiftError, match=r"agreed on \(normalise = False, not True\): leave"):
            prepared(replace(agreement, table={**agreement.table, "data": normalised}), settings, own, site)
        patch.setattr("fedshift.deployment.local.version", lambda package: f"the next {package}")
        with pytest.raises(AssertionError, match="made again"):
            prepared(agreement, settings, own, site)


def test_turns_that_are_damaged_are_refused(begun: Begun, tmp_path: Path):
    site = begun(tmp_path)
    (turns,) = site.folder.glob("state/*/turns.json")
    before = site.kept()
    for text in ("", "[]", '{"sessions": 3}', '{"sessions": [], "position": -1}'):
        turns.write_text(text)
        assert site.ask(coming(site)) == Failed("dark", "state")
        assert site.kept() == before
    assert "is not what was written" in (site.folder / "log.jsonl").read_text()


def test_a_request_as_long_as_a_page_of_names_is_no_line_in_the_lists(shared: Site):
    """What a site writes down of a request is short, whatever the request says."""
    sizes = {name: (shared.folder / name).stat().st_size for name in ("sent.jsonl", "log.jsonl")}
    for change in (put("session", "run", value=LONG), put("order", "stage", value=LONG), put("site", value=LONG)):
        shared.ask(altered(coming(shared), change))
    assert all((shared.folder / name).stat().st_size - size < 5000 for name, size in sizes.items())


def test_what_is_read_of_a_request_is_what_was_written():
    with pytest.raises(FedshiftError, match="A message of the coordinator cannot be read"):
        request_of(pack({}, {"order": "{}"}))
