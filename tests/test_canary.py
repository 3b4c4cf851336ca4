"""What is private at a site is in no byte that reaches the coordinator, read at the socket in clear.

test_coordinate.py shows it of every method, in the bytes of all replies; here are Flower's own bytes around them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Message

from canary import Watched, assert_noticed, assert_private, local
from conftest import Make
from federated import members
from fedshift.deployment import flower
from fedshift.deployment.flower import content, data_of
from flower_grid import client
from in_clear import InClear, in_clear
from reference import ARCHETYPES
from test_coordinate import IN_DOMAIN

pytestmark = pytest.mark.federation

SITE, OTHER = "dark", "gray"


@pytest.fixture(scope="module")
def running() -> Iterator[InClear]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_TELEMETRY_ENABLED", "0")
        patch.setattr(flower, "SECONDS_BETWEEN_PULLS", 0.05)
        log = logging.getLogger("flwr")
        patch.setattr(log, "level", logging.WARNING)
        with in_clear((SITE, OTHER)) as started:
            yield started


@pytest.mark.parametrize("name", ARCHETYPES)
def test_nothing_private_reaches_the_coordinator(make: Make, running: InClear, tmp_path: Path, name: str):
    """Neither two neighbouring numbers of a sample or of a private tensor, nor labels, nor a path."""
    folder = members(tmp_path / "trial", make({**local(name), **IN_DOMAIN}), sites=(SITE, OTHER))
    watched = Watched(folder / "sites" / SITE)
    sent = running.run(folder, lambda site: watched.look() if site == SITE else None)
    assert_private(name, watched, sent, [data_of(reply) for reply in running.replies])


def test_what_should_stay_would_be_noticed(make: Make, running: InClear, tmp_path: Path):
    """A site that adds something private to its answer is caught, so the test above can fail."""
    changes = {**local("fedavg"), **IN_DOMAIN, "train.rounds": 1}
    folder = members(tmp_path / "trial", make(changes), sites=(SITE, OTHER))
    watched = Watched(folder / "sites" / SITE)

    def leaking(folder: Path, message: Message) -> Message:
        reply = client(folder, message)
        watched.look()
        if folder.name != SITE or not watched.kept:
            return reply
        return Message(content(data_of(reply) + watched.leak("a row of a sample")), reply_to=message)

    assert_noticed("a row of a sample", watched, running.run(folder, lambda site: None, leaking))
