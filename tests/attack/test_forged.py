"""Run folders whose digests were all made anew, as only somebody could who wants to.

Digests know no forger, so numbers may be another's. But nothing ends with a traceback, hangs, fills the memory or
touches what lies outside of the folder.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from attack.damage import TENSORS, TEXT
from attack.forgery import FORGERIES, sealed_anew
from attack.forks import Forks
from attack.harness import RESUME, Problems, contents, copied, none_of, run_folders
from attack.victims import MEMORY, STATES, Victim, Victims

MADE_ANEW = (
    "run.json",
    "experiment.toml",
    "records.jsonl",
    "messages.json",
    "federation.json",
    "environment.json",
    "timings.jsonl",
    "events.jsonl",
    "summary.json",
    "weights.safetensors",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """How many forgeries of each file."""
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", range(60 if metafunc.config.getoption("attack") == "large" else 1))


def tried(forks: Forks, victim: Victim, folder: Path) -> Problems:
    """Try everything; returns what is neither an answer nor one clear error, and what lies outside and was touched."""
    outside = contents(folder.parent, but=folder)
    outcomes = forks.run(*victim.steps(folder), cwd=folder, memory=MEMORY)
    problems = [str(outcome) for outcome in outcomes if not outcome.clean]
    after = contents(folder.parent, but=folder)
    touched = (name for name in outside.keys() | after.keys() if outside.get(name) != after.get(name))
    return problems + [f"touches {name}" for name in touched if name != "out.html"]


@pytest.mark.parametrize("state", STATES)
def test_forged(forks: Forks, victims: Victims, tmp_path: Path, large: bool, state: str, variant: int):
    victim, problems = victims("run", state), []
    draw = random.Random(f"forged {state} {variant}")
    (run,) = (path.relative_to(victim.folder) for path in run_folders(victim.folder))
    there = [name for name in MADE_ANEW if (victim.folder / run / name).is_file()]
    for name in there if large else draw.sample(there, 2):
        before = (victim.folder / run / name).read_bytes()
        hows = {how: TEXT[how] for how in FORGERIES} if Path(name).suffix != ".safetensors" else TENSORS
        how = draw.choice(sorted(hows))
        data = hows[how](before, draw)
        if data is None:
            continue
        folder = copied(victim.folder, tmp_path / "case" / "forged")
        (folder / run / name).write_bytes(data)
        sealed_anew(folder / run)
        problems += [f"{name}, {how}: {problem}" for problem in tried(forks, victim, folder)]
    none_of(problems)


def test_the_forger_is_good(forks: Forks, victims: Victims, tmp_path: Path):
    """Where nothing else is said, the digests made anew are those that were there, and the run goes on."""
    for state in STATES:
        victim = victims("run", state)
        folder = copied(victim.folder, tmp_path / state)
        (before,), (run,) = run_folders(victim.folder), run_folders(folder)
        sealed_anew(run)
        for name in MADE_ANEW:
            if (run / name).exists():
                found, again = (re.findall(rb'"[0-9a-f]{32}"', (path / name).read_bytes()) for path in (before, run))
                assert found == again, name
        (outcome,) = forks.run(RESUME, cwd=folder)
        assert outcome.fine, outcome
        assert "made again" not in outcome.out + outcome.err
