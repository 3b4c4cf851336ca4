"""A site's policy: which categories of tensors it refuses to send, and what follows from that."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from fedshift.core.contract import Category
from fedshift.core.messages import Telemetry
from fedshift.core.preparation import PREPARATION
from fedshift.core.setup import Setup, told
from fedshift.deployment.leaving import CATEGORIES, SCORES, Leaves, leaving
from fedshift.errors import FedshiftError
from fedshift.settings.spec import Spec

S = TypeVar("S", bound=Spec)


def refused(setup: Setup, refuse: Collection[Category]) -> list[Leaves]:
    """What the run needs of a site that refuses some categories, in the order in which it would leave."""
    return [each for each in leaving(setup) if each.needed and each.category in refuse]


def without(telemetry: Telemetry, refuse: Collection[Category]) -> Telemetry:
    """Telemetry less what is of a refused category."""
    return Telemetry({name: tensor for name, tensor in telemetry.items() if told(name) not in refuse})


def withheld(refuse: Collection[Category]) -> list[str]:
    """The numbers of a score that a site with refused categories leaves out."""
    return [name for name, category in SCORES.items() if category in refuse]


def refusal(setup: Setup, site: str, refuse: Collection[Category]) -> FedshiftError:
    """The error that ends a run which needs what a site refuses: who, what, and what helps.

    Args:
        setup: the run.
        site: the site's name.
        refuse: categories that it refuses, of which the run needs some.
    """
    needed = refused(setup, refuse)
    said = [_said([each for each in needed if each.category == category]) for category in CATEGORIES]
    settings, uniform = _by_samples(setup), replace(setup, method=_uniform(setup.method))
    fix = "Choose another method or setting"
    if {each.stage for each in needed} == {PREPARATION}:
        fix = "Set data.statistics = 'site' (or 'none') at every member"
    elif settings and not refused(uniform, refuse):
        fix = f"Set {' and '.join(settings)} at every member"
    return FedshiftError(
        f"The site '{site}' refuses what the run needs: {'; '.join(text for text in said if text)}. {fix}, or talk to "
        "the site, whose site.toml says what it refuses."
    )


def _said(leaves: list[Leaves]) -> str:
    """What is needed of one category."""
    if not leaves:
        return ""
    first, more = leaves[0], len(leaves) - 1
    others = f" (and {more} more)" if more else ""
    where = f"in the exchange '{first.exchange}' of the stage '{first.stage}'"
    return f"a tensor of the category '{first.category}', '{first.name}'{others}, {where}"


def _by_samples(setup: Setup) -> list[str]:
    """What to write in the place of settings that weigh clients by their numbers of samples."""
    specs: Iterable[tuple[tuple[str, ...], Spec]] = setup.method.specs()
    return [
        f"{'.'.join(('method', *names, 'weighting'))} = 'uniform'"
        for names, spec in specs
        if "weighting" in spec.settings() and vars(spec)["weighting"] == "samples"
    ]


def _uniform(spec: S) -> S:
    """The same settings, but that all clients weigh the same."""
    changes: dict[str, Any] = {name: _uniform(getattr(spec, name)) for name in spec.nested()}
    if "weighting" in spec.settings():
        changes["weighting"] = "uniform"
    return replace(spec, **changes) if changes else spec
