"""Children for the attacks, and what each scenario comes to when nothing interrupts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from attack.forks import Forks
from attack.harness import SCENARIOS, Reference
from attack.victims import Victim, Victims, made


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    """What begins cases in children."""
    return Forks(tmp_path_factory.mktemp("forks"))


class _References(dict[str, Reference]):
    """Each is made when it is first requested."""

    def __init__(self, forks: Forks, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._forks, self._factory = forks, factory

    def __missing__(self, name: str) -> Reference:
        self[name] = Reference.of(self._forks, SCENARIOS[name], self._factory.mktemp(name))
        return self[name]


@pytest.fixture(scope="session")
def references(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Every scenario, uninterrupted."""
    return _References(forks, tmp_path_factory)


@pytest.fixture(scope="session")
def victims(forks: Forks, references: Mapping[str, Reference], tmp_path_factory: pytest.TempPathFactory) -> Victims:
    """Gives a scenario's runs, finished or killed on the way."""
    found: dict[tuple[str, str], Victim] = {}

    def victim(name: str, state: str) -> Victim:
        if (name, state) not in found:
            found[name, state] = made(forks, references[name], state, tmp_path_factory.mktemp(f"{name}-{state}"))
        return found[name, state]

    return victim


@pytest.fixture(scope="session")
def large(pytestconfig: pytest.Config) -> bool:
    """Whether everything is attacked."""
    return bool(pytestconfig.getoption("attack") == "large")
