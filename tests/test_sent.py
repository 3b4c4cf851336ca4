"""sent.jsonl: what is written down of a message, and which damage is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from struct import pack as packed

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.core.contract import Category
from fedshift.core.messages import Trip, pack
from fedshift.deployment import sent as sent_module
from fedshift.deployment.sent import SentLog, Total, read_sent, totals
from fedshift.errors import DamagedError
from refusal import refuses

WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
CATEGORIES: dict[str, Category] = {
    "up.head.weight": "model update",
    "up.samples": "count",
    "up.mask": "statistic",
    "up.pairs": "embedding",
}
ANSWER = pack({"up.head.weight": WEIGHTS, "up.samples": torch.tensor(7)})


def write(path: Path, messages: int = 3) -> SentLog:
    sent = SentLog(path)
    for number in range(1, messages + 1):
        trip = Trip("a run", "s", number, "train", 0)
        sent.add(ANSWER, CATEGORIES.__getitem__, run="a run", what="answer", trip=trip)
    return sent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sent.jsonl"


def test_a_line_says_what_left(path: Path):
    before = datetime.now(UTC)
    write(path, 1)
    (message,) = read_sent(path)
    trip = message.run, message.what, message.stage, message.round, message.exchange
    assert trip == ("a run", "answer", "s", 1, "train")
    assert abs(datetime.fromisoformat(message.time) - before) < timedelta(seconds=30)
    assert message.bytes == len(ANSWER)
    assert message.sha256 == sha256(ANSWER).hexdigest()
    weights, samples = message.tensors
    assert (weights.name, weights.type, weights.shape, weights.bytes) == ("up.head.weight", "float32", [2, 2], 16)
    assert weights.sha256 == sha256(packed("<4f", 1.0, 2.0, 3.0, -4.0)).hexdigest()
    assert weights.category == "model update"
    assert (samples.type, samples.shape, samples.bytes, samples.category) == ("int64", [], 8, "count")
    assert samples.sha256 == sha256(packed("<q", 7)).hexdigest()
    assert samples.sha256 in path.read_text()


DAMAGE: dict[str, tuple[Callable[[list[str]], object], int]] = {
    "change": (lambda lines: lines.__setitem__(1, lines[1].replace('"answer"', '"denied"')), 2),
    "change the last": (lambda lines: lines.append(lines.pop().replace('"model update"', '"statistic"')), 4),
    "cut": (lambda lines: lines.pop(1), 2),
    "cut the first": (lambda lines: lines.pop(0), 1),
    "shorten": (lambda lines: lines.__setitem__(1, lines[1][:50]), 2),
    "move": (lambda lines: lines.insert(0, lines.pop(1)), 1),
    "repeat": (lambda lines: lines.append(lines[-1]), 5),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_found_and_the_line_named(path: Path, how: str):
    damage, number = DAMAGE[how]
    write(path, 4)
    lines = path.read_text().splitlines()
    damage(lines)
    path.write_text("".join(f"{line}\n" for line in lines))
    with refuses(f"Line {number} of", "sent.jsonl", error=DamagedError):
        read_sent(path)


def test_another_chain_with_the_same_content_is_found(path: Path):
    write(path, 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["run"] = "another"  # its chain is made again, but not that of those after it
    chain = lines[0].pop("chain")
    lines[0]["chain"] = sent_module._link(sent_module.START, dict(lines[0]))
    assert lines[0]["chain"] != chain
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with refuses("Line 2", "sent.jsonl", error=DamagedError):
        read_sent(path)


@given(st.integers(0, 2000))
def test_wherever_a_crash_cuts_the_last_line_the_rest_is_there_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, left: int
):
    path = tmp_path_factory.mktemp("site") / "sent.jsonl"
    write(path, 3)
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole[: len(whole) - len(last) + min(left, len(last) - 1)])
    assert [message.round for message in read_sent(path)] == [1, 2]
    write(path, 1)
    assert [message.round for message in read_sent(path)] == [1, 2, 1]


@pytest.mark.parametrize("line", ["no json", '{"time": "now"}', "\udcff"])
def test_nothing_is_added_after_a_last_line_that_is_none(path: Path, line: str):
    write(path, 1)
    damaged = path.read_bytes() + line.encode(errors="surrogateescape") + b"\n"
    path.write_bytes(damaged)
    with refuses("last line", "sent.jsonl", error=DamagedError):
        write(path, 1)
    assert path.read_bytes() == damaged


def test_totals_by_hand(path: Path):
    sent = write(path, 3)
    pairs = pack({"up.pairs": torch.zeros(5, 2), "up.samples": torch.tensor(5)})
    sent.add(pairs, CATEGORIES.__getitem__, run="a run", what="answer", trip=Trip("a run", "i", 1, "pairs", 0))
    times = [message.time for message in read_sent(path)]
    assert totals(read_sent(path)) == [
        Total("train", "model update", times[0], times[2], 3, 3, 48),
        Total("train", "count", times[0], times[2], 3, 3, 24),
        Total("pairs", "embedding", times[3], times[3], 1, 1, 40),
        Total("pairs", "count", times[3], times[3], 1, 1, 8),
    ]
