"""Without its extra, every feature says in one line what to install, before it has worked for long.

CI tries the same features in environments that have one extra each, or none: ``.ci/run core extras``.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import extras
import fresh
from test_dependencies import CORE, DECLARED, DISTRIBUTIONS, EXTRAS, normalised

BLOCKED = set().union(*DECLARED.values()) - DECLARED[CORE]


MODULES = [module for module, names in DISTRIBUTIONS.items() if BLOCKED & {normalised(name) for name in names}]


def without_extras(feature: extras.Feature, blocked: set[str], modules: list[str]) -> None:
    """In a fresh process: carry out a feature where nothing of the extras can be imported."""
    sys.modules |= dict.fromkeys(modules)  # None makes an import fail
    from_name = Distribution.from_name

    def found(name: str) -> Distribution:
        if normalised(name) in blocked:
            raise PackageNotFoundError(name)
        return from_name(name)

    Distribution.from_name = found  # type: ignore[method-assign]  # of a process of its own
    extras.make(feature, Path.cwd(), without=True)
    if feature.words[0] == "-c":
        exec(feature.words[1], {})
    else:
        fresh.fedshift(*feature.words)


@pytest.mark.parametrize("feature", extras.FEATURES, ids=lambda feature: f"{feature.extra}-{feature.name}")
def test_it_names_the_extra(feature: extras.Feature, tmp_path: Path):
    done = fresh.start(without_extras, feature, BLOCKED, MODULES, cwd=tmp_path).completed()
    printed = done.stdout + done.stderr
    assert extras.names_the_extra(feature, printed), printed
    assert "Traceback" not in printed


def test_every_extra_has_a_feature():
    assert {feature.extra for feature in extras.FEATURES} == EXTRAS.keys() - {"dev"}
