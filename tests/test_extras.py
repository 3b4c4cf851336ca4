"""Without its extra, every feature names in one line what to install, before it has worked for long.

CI tries the same features in environments that have one extra each, or none: ``.ci/run core extras``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import extras
import fresh
from test_dependencies import CORE, DECLARED, DISTRIBUTIONS, EXTRAS, normalised

BLOCKED = set().union(*DECLARED.values()) - DECLARED[CORE]


MODULES = [module for module, names in DISTRIBUTIONS.items() if BLOCKED & {normalised(name) for name in names}]


@pytest.mark.parametrize("feature", extras.FEATURES, ids=lambda feature: f"{feature.extra}-{feature.name}")
def test_it_names_the_extra(feature: extras.Feature, tmp_path: Path):
    done = fresh.start(extras.carry_out_without, feature, BLOCKED, MODULES, cwd=tmp_path).completed()
    printed = done.stdout + done.stderr
    assert extras.names_the_extra(feature, printed), printed
    assert "Traceback" not in printed


def test_every_extra_has_a_feature():
    assert {feature.extra for feature in extras.FEATURES} == EXTRAS.keys() - {"dev", "docs"}
