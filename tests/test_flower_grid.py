"""Federations on Flower's own objects, in memory: what a site or Flower does wrong ends as the documentation says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from conftest import Make
from federated import SITES, Clock, members, reply_of
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.apps import attend, carry_out
from fedshift.deployment.flower import (
    APP,
    ARRAY,
    CODE,
    MANIFEST,
    RECORD,
    SETTINGS,
    TYPE,
    FlowerLink,
    content,
    is_ours,
    sites_by_key,
)
from fedshift.deployment.keys import site_pair
from fedshift.deployment.link import Away
from fedshift.deployment.rehearsal import rehearse
from fedshift.deployment.wire import Failed, Join, Joined, Session
from fedshift.errors import FedshiftError
from fedshift.files import write
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from flower_grid import BUNDLE, MemoryGrid, bundle, client, registered
from reference import ARCHETYPES, small
from refusal import refuses
from test_coordinate import IN_DOMAIN, alike

SECRET = "patient 4711"


def run(folder: Path, grid: MemoryGrid) -> RunFolder:
    """What the coordinator's executor does with its folder."""
    carry_out(folder / "coordinator", grid, BUNDLE)
    (only,) = (folder / "coordinator" / "runs").iterdir()
    return RunFolder(only)


@pytest.mark.parametrize("name", ARCHETYPES)
def test_a_method_ends_with_the_bits_of_a_simulation(make: Make, tmp_path: Path, name: str):
    folder = members(tmp_path / "trial", make({**small(name), **IN_DOMAIN}))
    alike(run(folder, registered(folder)), rehearse(folder, Progress()))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("fedshift.deployment.flower.time", made := Clock())
    return made


# What an exchange gives ---------------------------------------------------------------------------


@pytest.fixture
def folder(make: Make, tmp_path: Path) -> Path:
    return members(tmp_path / "trial", make({**small("fedavg"), **IN_DOMAIN}))


@pytest.fixture
def grid(folder: Path) -> MemoryGrid:
    return registered(folder)


def link_of(folder: Path, grid: MemoryGrid) -> FlowerLink:
    return FlowerLink(grid, sites_by_key(folder / "coordinator" / "keys", SITES))


def exchanged(folder: Path, grid: MemoryGrid, deadline: float = 1.0) -> dict[str, Any]:
    """What comes of asking every site whether it can take part."""
    agreement = Agreement.read(folder / "coordinator")
    session = Session(agreement.run, agreement.digest)
    requests = {site: Join(session, site, agreement.agreed).to_bytes() for site in SITES}
    came = dict(link_of(folder, grid).exchange(requests, deadline))
    return {site: data if isinstance(data, Away) else reply_of(data) for site, data in came.items()}


def test_a_node_without_heartbeats_is_offline(folder: Path, grid: MemoryGrid):
    grid["gray"].online = False
    assert link_of(folder, grid).online() == {"dark", "light"}
    assert exchanged(folder, grid)["gray"] == Away("offline")


def test_a_key_that_is_not_registered_here_is_no_site(folder: Path, grid: MemoryGrid):
    """Neither the node's name nor what it says counts, its key alone does."""
    write(folder / "coordinator" / "keys" / "gray.pub", site_pair().public)
    assert link_of(folder, grid).online() == {"dark", "light"}
    assert exchanged(folder, grid)["gray"] == Away("offline")
    assert {name for name, _ in grid.came} == {"dark", "light"}


def test_every_site_has_one_key_of_its_own(folder: Path, grid: MemoryGrid):
    keys = folder / "coordinator" / "keys"
    gray = (keys / "gray.pub").read_bytes()
    write(keys / "gray.pub", (keys / "dark.pub").read_bytes())
    with pytest.raises(FedshiftError, match=r"the same key in dark\.pub and gray\.pub: a site is its key"):
        link_of(folder, grid)
    (keys / "gray.pub").unlink()
    with pytest.raises(FedshiftError, match=r"lacks gray\.pub: put the public key of each site there"):
        link_of(folder, grid)
    write(keys / "gray.pub", gray)
    write(keys / "grey.pub", site_pair().public)
    with pytest.raises(FedshiftError, match=r"holds grey\.pub, but the federation's sites are dark, gray, light"):
        link_of(folder, grid)


def test_a_reply_after_the_deadline_does_not(folder: Path, grid: MemoryGrid, clock: Clock):
    grid["gray"].pulls = None
    came = exchanged(folder, grid)
    assert 1 <= clock.now < 1.5
    assert came["gray"] == Away("late", "no answer within 1 seconds")
    assert isinstance(came["dark"], Joined)


def test_a_message_that_flower_does_not_take(folder: Path, grid: MemoryGrid, monkeypatch: pytest.MonkeyPatch):
    """Too large for it, or for a node that has gone: its grid gives no number then, or an empty one."""
    refused = Away("failed", "Flower did not take the message")
    grid.full = True
    assert exchanged(folder, grid) == dict.fromkeys(SITES, refused)
    grid.full = False
    nodes = list(grid.get_nodes())
    monkeypatch.setattr(grid, "get_nodes", lambda: nodes)
    grid.nodes.remove(grid["gray"])
    assert exchanged(folder, grid)["gray"] == refused


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({"other": ArrayRecord({})}),
        RecordDict({RECORD: ArrayRecord({})}),
        RecordDict({"other": content(b"x").array_records[RECORD]}),
    ],
)
def test_a_reply_without_the_record_is_failed(folder: Path, grid: MemoryGrid, record: RecordDict):
    grid["gray"].app = lambda folder, message: Message(record, reply_to=message)
    assert exchanged(folder, grid)["gray"] == Away("failed", "sent a message without fedshift's record")


@pytest.mark.parametrize("code", [value for value in vars(ErrorCode).values() if isinstance(value, int)] + [99])
def test_no_text_of_an_error_is_passed_on(folder: Path, grid: MemoryGrid, code: int):
    grid["gray"].app = lambda folder, message: Message(Error(code, SECRET), reply_to=message)
    came = exchanged(folder, grid)["gray"]
    assert came.what == ("offline" if code == ErrorCode.NODE_UNAVAILABLE else "failed")
    assert SECRET not in str(came)


# What a site's app says ---------------------------------------------------------------------------


def test_a_message_of_another_type_is_an_error(folder: Path, grid: MemoryGrid):
    node = grid["gray"]
    for kind in ("train", "evaluate", "query.other", "query"):
        (number,) = grid.push_messages([Message(content(b"no request"), node.number, kind)])
        (reply,) = grid.pull_messages([number])
        assert reply.has_error() == (kind != TYPE)


def test_bytes_that_are_no_request_are_refused_with_a_word(folder: Path, grid: MemoryGrid):
    for data in (b"", b"no request", b"\xff" * 100):
        (number,) = grid.push_messages([Message(content(data), grid["gray"].number, TYPE)])
        (reply,) = grid.pull_messages([number])
        assert reply_of(bytes(reply.content.array_records[RECORD][ARRAY].data)) == Failed("gray", "error")


def broken(folder: Path, grid: MemoryGrid) -> Iterator[str]:
    """Ways in which a site's own folder is broken, one after the other; each error names something private."""
    site = folder / "sites" / "gray"
    node, whole = grid["gray"], (site / "site.toml").read_bytes()
    for text in (f"[[[{SECRET}", f'name = "gray"\ndomains = ["{SECRET}"]', f'"{SECRET}" = 1', f'device = "{SECRET}"'):
        (site / "site.toml").write_text(text)
        yield text
    (site / "site.toml").unlink()
    moved = site.rename(site.with_name(SECRET))
    node.folder = moved
    yield "no site.toml in a folder with a name"
    (moved / "site.toml").write_bytes(whole)
    (moved / "state" / "trial").mkdir(parents=True, exist_ok=True)
    for name in ("sent.jsonl", "log.jsonl"):
        (moved / name).unlink(missing_ok=True)
        (moved / name).mkdir()
        yield f"{name} cannot be written"
        (moved / name).rmdir()
    (moved / "sent.jsonl").write_text(f"{SECRET}\n")
    yield "sent.jsonl is damaged"
    (moved / "sent.jsonl").unlink()
    (moved / "state").rename(moved / "was state")
    (moved / "state").write_text("in the way")
    yield "state is no folder"


def test_nothing_that_an_error_at_a_site_says_crosses(folder: Path, grid: MemoryGrid):
    """Whatever is wrong with its folder, the coordinator hears one of a few fixed words."""
    for way in broken(folder, grid):
        grid.came.clear()
        came = exchanged(folder, grid)["gray"]
        assert isinstance(came, Away | Failed), way
        assert str(came) in WORDS, (way, came)
        assert not any(SECRET.encode() in data for _, data in grid.came), way


WORDS = {
    "failed: client app raised exception",
    "has failed; its log says why",
    "has data that do not fit: `fedshift federation check` says there why",
}


# Failures in a run --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["offline", "late", "raised", "foreign", "no record"])
def test_a_site_that_fails_in_a_round_is_on_record_and_the_run_goes_on(make: Make, tmp_path: Path, how: str):
    experiment = make({**small("fedavg"), **IN_DOMAIN, "train.rounds": 3})
    folder = members(tmp_path / "trial", experiment)
    grid = registered(folder)
    node, asked = grid["gray"], [0]

    def app(folder: Path, message: Message) -> Message:
        asked[0] += 1
        node.pulls = None if how == "late" and asked[0] == 3 else 0
        if asked[0] != 3:
            return client(folder, message)
        match how:
            case "raised":
                raise RuntimeError(SECRET)
            case "no record":
                return Message(RecordDict(), reply_to=message)
            case "foreign":
                return Message(content(b"\x00" * 50), reply_to=message)
            case "offline":
                return Message(Error(ErrorCode.NODE_UNAVAILABLE, SECRET), reply_to=message)
        return client(folder, message)

    node.app = app
    done = run(folder, grid)
    assert done.finished
    missing = [each for record in done.records() for each in record.get("missing", [])]
    why = {
        "offline": "offline: node unavailable",
        "late": "late: no answer within 600 seconds",
        "raised": "failed: client app raised exception",
        "foreign": "The site 'gray' sent what is no reply",
        "no record": "failed: sent a message without fedshift's record",
    }[how]
    assert [(each["client"], each["round"]) for each in missing] == [("gray", 2)]
    assert why in missing[0]["why"]
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in done.path.iterdir() if file.is_file())


# Another app --------------------------------------------------------------------------------------

EVIL = b'from pathlib import Path\nPath("was-here").touch()\n'


@pytest.mark.parametrize(
    "app",
    [
        bundle(**{CODE: EVIL}),
        bundle(**{"other.py": EVIL}),
        bundle(**{CODE: None, "fedshift_federation/__init__.py": EVIL}),
        bundle(**{SETTINGS: b"[project]"}),
        bundle(**{SETTINGS: b"["}),
        bundle(**{MANIFEST: b" " * 20_000}),
        bundle()[:-30],
        bundle().replace(b"server", b"sarver"),
        b"",
        b"no archive",
    ],
)
def test_another_app_is_refused_and_not_run(
    folder: Path, grid: MemoryGrid, app: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    site = folder / "sites" / "gray"
    grid["gray"].app = lambda own, message: attend(own, message, app)
    assert exchanged(folder, grid)["gray"] == Away("failed", "client app raised exception")
    assert '"what": "refused", "why": "The run was started with another app' in (site / "log.jsonl").read_text()
    assert not (site / "sent.jsonl").exists()
    with refuses("another app", "fedshift federation run"):
        carry_out(folder / "coordinator", grid, app)
    assert not [*folder.rglob("was-here")]


def test_the_installed_app_is_what_flower_packs(folder: Path):
    """Flower writes the settings anew, and may compress in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower asks pathspec for
        from flwr.cli.build import build_fab_from_disk

        assert is_ours(build_fab_from_disk(APP))
    assert is_ours(BUNDLE)
