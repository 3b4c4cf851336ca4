"""What is private at a site is in no byte of Flower's messages that it sends.

test_coordinate.py shows it of every method, in the bytes of all replies; here are Flower's own bytes around them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Message

from canary import Watched, assert_noticed, assert_private, local
from conftest import Make
from federated import members
from fedshift.deployment.apps import carry_out
from fedshift.deployment.flower import content, data_of
from flower_grid import BUNDLE, client, registered
from reference import ARCHETYPES
from test_coordinate import IN_DOMAIN

SITE, OTHER = "dark", "gray"


def sent(folder: Path, watched: Watched, replies: list[bytes], leak: str = "") -> bytes:
    """Carry out a run on Flower's messages; every byte that sites sent."""
    grid = registered(folder)

    def app(folder: Path, message: Message) -> Message:
        reply = client(folder, message)
        if folder.name == SITE:
            watched.look()
        if leak and folder.name == SITE and watched.kept:
            reply = Message(content(data_of(reply) + watched.leak(leak)), reply_to=message)
        replies.append(data_of(reply))
        return reply

    for node in grid.nodes:
        node.app = app
    carry_out(folder / "coordinator", grid, BUNDLE)
    return b"\0".join(data for _, data in grid.came)


@pytest.mark.parametrize("name", ARCHETYPES)
def test_nothing_private_reaches_the_coordinator(make: Make, tmp_path: Path, name: str):
    """Neither two neighbouring numbers of a sample or of a private tensor, nor labels, nor a path."""
    folder = members(tmp_path / "trial", make({**local(name), **IN_DOMAIN}), sites=(SITE, OTHER))
    watched, replies = Watched(folder / "sites" / SITE), list[bytes]()
    whole = sent(folder, watched, replies)
    assert_private(name, watched, whole, replies)


def test_what_should_stay_would_be_noticed(make: Make, tmp_path: Path):
    """A site that adds something private to its answer is caught, so the test above can fail."""
    changes = {**local("fedavg"), **IN_DOMAIN, "train.rounds": 1, "train.min_answers": 0.5}
    folder = members(tmp_path / "trial", make(changes), sites=(SITE, OTHER))
    watched = Watched(folder / "sites" / SITE)
    assert_noticed("a row of a sample", watched, sent(folder, watched, [], "a row of a sample"))
