"""Federations on Flower's own objects, in memory: what a site or Flower does wrong ends as documented."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from canary import Watched, assert_private, local
from conftest import Make
from federated import SITES, Clock, members, reply_of
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.attend import Attendant
from fedshift.deployment.demo import rehearse
from fedshift.deployment.executor import attend, carry_out
from fedshift.deployment.flower import (
    APP,
    CODE,
    MANIFEST,
    RECORD,
    SETTINGS,
    Away,
    FlowerLink,
    data_of,
    is_ours,
    sites_by_key,
)
from fedshift.deployment.keys import site_pair
from fedshift.deployment.wire import Failed, Join, Joined
from fedshift.files import write
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from flower_grid import BUNDLE, MemoryGrid, bundle, client, registered
from reference import ARCHETYPES, small
from refusal import refuses
from test_coordinate import IN_DOMAIN, alike

SECRET = "patient 4711"


def run(folder: Path, grid: MemoryGrid) -> Run:
    """What the coordinator's executor does with its folder."""
    carry_out(folder / "coordinator", grid, BUNDLE)
    (only,) = (folder / "coordinator" / "runs").iterdir()
    return Run(only)


@pytest.mark.parametrize("name", ARCHETYPES)
def test_a_method_ends_with_the_bits_of_a_simulation(make: Make, tmp_path: Path, name: str):
    """And what is private at a site is in no byte of Flower's messages, as in none of its replies."""
    folder = members(tmp_path / "trial", make({**local(name), **IN_DOMAIN}))
    grid, watched, replies = registered(folder), Watched(folder / "sites" / "dark"), list[bytes]()

    def app(folder: Path, message: Message) -> Message:
        reply = client(folder, message)
        watched.look()
        replies.append(data_of(reply))
        return reply

    for node in grid.nodes:
        node.app = app
    done, simulated = run(folder, grid), rehearse(folder, Progress())
    alike(done, simulated, records=False)
    assert done.messages == simulated.messages
    assert_private(name, watched, b"\0".join(data for _, data in grid.arrived), replies)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("fedshift.deployment.flower.time", made := Clock())
    return made


@pytest.fixture
def folder(make: Make, tmp_path: Path) -> Path:
    return members(tmp_path / "trial", make({**small("fedavg"), **IN_DOMAIN}))


@pytest.fixture
def grid(folder: Path) -> MemoryGrid:
    return registered(folder)


def link_of(folder: Path, grid: MemoryGrid) -> FlowerLink:
    return FlowerLink(grid, sites_by_key(folder / "coordinator" / "keys", SITES))


def exchanged(folder: Path, grid: MemoryGrid, deadline: float = 1.0) -> dict[str, Any]:
    """What results from requesting every site whether it can take part."""
    agreement = Agreement.read(folder / "coordinator")
    requested = {"run": agreement.run, "agreed": agreement.digest, "settings": agreement.agreed}
    requests = {site: Join(site=site, **requested).to_bytes() for site in SITES}
    arrived = dict(link_of(folder, grid).exchange(requests, deadline))
    return {site: data if isinstance(data, Away) else reply_of(data) for site, data in arrived.items()}


def test_a_key_that_is_not_registered_here_is_no_site(folder: Path, grid: MemoryGrid):
    """Neither the node's name nor its message counts, only its key."""
    write(folder / "coordinator" / "keys" / "gray.pub", site_pair().public)
    assert link_of(folder, grid).online() == {"dark", "light"}
    assert exchanged(folder, grid)["gray"] == Away("offline")
    grid["light"].status = "offline"  # it sends no heartbeats
    assert link_of(folder, grid).online() == {"dark"}
    assert {name for name, _ in grid.arrived} == {"dark", "light"}


def test_every_site_has_one_key_of_its_own(folder: Path, grid: MemoryGrid):
    keys = folder / "coordinator" / "keys"
    write(keys / "gray.pub", (keys / "dark.pub").read_bytes())
    with refuses("the same key in dark.pub and gray.pub"):
        link_of(folder, grid)
    (keys / "gray.pub").unlink()
    with refuses("lacks gray.pub"):
        link_of(folder, grid)


def test_a_reply_after_the_deadline_does_not(folder: Path, grid: MemoryGrid, clock: Clock):
    grid["gray"].late = True
    arrived = exchanged(folder, grid)
    assert 1 <= clock.now < 1.5
    assert arrived["gray"] == Away("late", "no answer within 1 seconds")
    assert isinstance(arrived["dark"], Joined)


def test_a_reply_that_is_lost_on_its_way_is_asked_for_again(folder: Path, grid: MemoryGrid):
    """As where a connection broke while a site's SuperNode uploaded its reply; one that is lost each time is late."""
    lost = [2]

    def app(folder: Path, message: Message) -> Message:
        reply = client(folder, message)
        lost[0] -= 1
        return reply if lost[0] < 0 else Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, SECRET), reply_to=message)

    grid["gray"].app = app
    assert isinstance(exchanged(folder, grid)["gray"], Joined)
    assert [name for name, _ in grid.arrived].count("gray") == 3
    lost[0] = 10**9
    assert exchanged(folder, grid)["gray"] == Away("late", "no answer within 1 seconds")


@pytest.mark.parametrize("record", [RecordDict(), RecordDict({RECORD: ArrayRecord({})})])
def test_a_reply_without_the_record_is_failed(folder: Path, grid: MemoryGrid, record: RecordDict):
    grid["gray"].app = lambda folder, message: Message(record, reply_to=message)
    assert exchanged(folder, grid)["gray"] == Away("failed", "sent a message without fedshift's record")


@pytest.mark.parametrize("code", [ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, 99])
def test_no_text_of_an_error_is_passed_on(folder: Path, grid: MemoryGrid, code: int):
    grid["gray"].app = lambda folder, message: Message(Error(code, SECRET), reply_to=message)
    arrived = exchanged(folder, grid)["gray"]
    assert arrived.what == ("offline" if code == ErrorCode.NODE_UNAVAILABLE else "failed")
    assert SECRET not in str(arrived)


def broken(folder: Path, grid: MemoryGrid) -> Iterator[str]:
    """Ways in which a site's own folder is broken, one after the other; each error names something private."""
    site = folder / "sites" / "gray"
    whole = (site / "site.toml").read_bytes()
    for text in (f"[[[{SECRET}", f'name = "gray"\ndomains = ["{SECRET}"]', f'"{SECRET}" = 1', f'device = "{SECRET}"'):
        (site / "site.toml").write_text(text)
        yield text
    (site / "site.toml").unlink()
    grid["gray"].folder = moved = site.rename(site.with_name(SECRET))
    yield "no site.toml in a folder with a name"
    (moved / "site.toml").write_bytes(whole)
    (moved / "sent.jsonl").write_text(f"{SECRET}\n")
    yield "sent.jsonl is damaged"


def test_nothing_that_an_error_at_a_site_says_crosses(folder: Path, grid: MemoryGrid):
    """Whatever is wrong with its folder, the coordinator is notified of one of a few fixed words."""
    words = {
        "failed: client app raised exception",
        "has failed; its log has the reason",
        "has data that do not fit: `fedshift federation check` explains it there",
    }
    for way in broken(folder, grid):
        grid.arrived.clear()
        arrived = exchanged(folder, grid)["gray"]
        assert isinstance(arrived, Away | Failed), way
        assert str(arrived) in words, (way, arrived)
        assert not any(SECRET.encode() in data for _, data in grid.arrived), way


# Another app --------------------------------------------------------------------------------------

EVIL = b'from pathlib import Path\nPath("was-here").touch()\n'


@pytest.mark.parametrize(
    "app",
    [
        bundle(**{CODE: EVIL}),
        bundle(**{CODE: None, "fedshift_federation/__init__.py": EVIL}),
        bundle(**{SETTINGS: b"[project]"}),
        bundle(**{MANIFEST: b" " * 20_000}),
        bundle().replace(b"server", b"sarver"),
        b"no archive",
    ],
)
def test_another_app_is_refused_and_not_run(
    folder: Path, grid: MemoryGrid, app: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    site = folder / "sites" / "gray"
    grid["gray"].app = lambda own, message: attend(Attendant(own), message, app)
    assert exchanged(folder, grid)["gray"] == Away("failed", "client app raised exception")
    assert '"what": "refused", "why": "The run was started with another app' in (site / "log.jsonl").read_text()
    assert not (site / "sent.jsonl").exists()
    with refuses("another app", "fedshift federation run"):
        carry_out(folder / "coordinator", grid, app)
    assert not [*folder.rglob("was-here")]


def test_the_installed_app_is_what_flower_packs(folder: Path):
    """Flower writes the settings again, and may compress in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower requests pathspec for
        from flwr.cli.build import build_fab_from_disk

        assert is_ours(build_fab_from_disk(APP))
    assert is_ours(BUNDLE)
