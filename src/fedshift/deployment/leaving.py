"""What leaves a site in a run, worked out from what its method declares, before anything has left.

The same list is the page for an auditor, the check at a site, and what a site's policy refuses from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any, Literal, TypeVar, get_args

import torch

from fedshift.core.contract import Category, Declared, Exchange, Round, Stage
from fedshift.core.messages import Telemetry
from fedshift.core.preparation import PREPARATION
from fedshift.core.setup import Setup, told
from fedshift.core.tensors import counted, part_of
from fedshift.deployment.agreement import FederationSettings, SiteSettings
from fedshift.deployment.pages import render
from fedshift.deployment.wire import DECIMALS, METRIC, REASONS, Done
from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.reporting.units import bytes_text
from fedshift.spec import Spec

S = TypeVar("S", bound=Spec)

Kind = Literal["join", "reply", "telemetry", "scores"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
SCORES: Mapping[str, Category] = {"accuracy": "statistic", "loss": "statistic", "n": "count"}
"""The numbers of every score, each a tensor of shape (); ``n`` is how many samples were scored."""
METRICS_ARE: Category = "statistic"
MEANING: Mapping[Category, str] = {
    "model update": "What training at the site made of the model, or a gradient of it: parameters, and of batch norms "
    "the running means, variances and numbers of batches too. It is no sample, but whoever analyses it can learn "
    "something about samples.",
    "statistic": "A number or a vector that is computed from many samples, such as a mean, a loss or an accuracy. "
    "Where a site has few samples of a kind, it tells much about each.",
    "count": "How many samples the site has, or a number from which that follows.",
    "embedding": "Vectors that a network makes of single samples, one for each. They say what is in the sample, and "
    "samples may be recognised or partly restored from them.",
}


@dataclass(frozen=True)
class Leaves:
    """A tensor that leaves a site.

    Attributes:
        stage: of the run.
        exchange: in which it leaves; empty for scores, which go with whatever message is due.
        rounds: in how many rounds of the stage, at most: a site that is not selected sends nothing.
        kind: whether it is part of a reply, of what is told beside one, or of a score, of which each environment of
            the site has one.
        name: what it is called there.
        dtype: its type, such as float32.
        shape: its shape; None stands for any length.
        category: what it says.
        bytes: how many it has; None where a length is not known before.
        needed: whether the method cannot do without it. What is not needed is left out by a site that refuses it.
    """

    stage: str
    exchange: str
    rounds: int
    kind: Kind
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    category: Category
    bytes: int | None
    needed: bool


WORDS: Mapping[Kind, str] = {
    "join": "at the start",
    "reply": "the reply",
    "telemetry": "told beside it",
    "scores": "scores",
}
JOINED = Leaves("", "", 1, "join", "samples", "int64", (), "count", 8, needed=False)
"""How many samples a site trains on, which bounds the counts that it sends later."""


def leaving(setup: Setup) -> list[Leaves]:
    """Every tensor that may leave a site in a run, in the order of stages and exchanges."""
    return [JOINED, *(each for stage in setup.stages for each in _of_stage(setup, stage))]


def models_scored(setup: Setup) -> int:
    """How many models a site scores in a run, at most."""
    return sum(setup.scored(Round(stage, number)) for stage in setup.stages for number in range(1, stage.rounds + 1))


def category(setup: Setup, exchange: Exchange | None, name: str) -> Category:
    """What a tensor of a message says, by the name it has there: ``up.NAME``, ``telemetry.NAME`` or ``scores.0.NAME``.

    Args:
        setup: the run.
        exchange: what the message answers; None where it carries scores alone.
        name: the tensor's.

    Raises:
        FedshiftError: nothing of that name may leave.
    """
    kind, _, own = name.partition(".")
    if name == JOINED.name:
        return JOINED.category
    if kind == "scores" and (number := own.partition(".")[2]) in (scores := _of_scores(setup)):
        return scores[number]
    if exchange is not None and kind == "up" and own in setup.declaration(exchange).categories:
        return setup.declaration(exchange).categories[own]
    if exchange is not None and kind == "telemetry" and own in setup.declaration(exchange).telemetry:
        return told(own)
    where = f"the exchange '{exchange.name}'" if exchange is not None else "scoring"
    raise FedshiftError(f"'{name}' was not sent: {where} does not declare it.")


def _of_stage(setup: Setup, stage: Stage) -> Iterator[Leaves]:
    for exchange in stage.exchanges:
        often = stage.name, exchange.name, stage.rounds
        yield from _leaves(*often, "reply", setup.declaration(exchange).reply, setup.declaration(exchange).categories)
        if setup.evaluate.telemetry:
            telemetry = setup.declaration(exchange).telemetry
            yield from _leaves(*often, "telemetry", telemetry, {name: told(name) for name in telemetry})
    if stage.scored:
        scores = _of_scores(setup)
        numbers: Declared = {name: (torch.int64 if name == "n" else torch.float64, ()) for name in scores}
        evaluations = -(-stage.rounds // setup.evaluate.every_in(stage.rounds))
        yield from _leaves(stage.name, "", evaluations, "scores", numbers, scores)


def _of_scores(setup: Setup) -> dict[str, Category]:
    """The numbers of a score in a run, the metrics that it measures among them."""
    return {**SCORES, **{METRIC + name: METRICS_ARE for name in setup.metrics}}


def _leaves(
    stage: str, exchange: str, rounds: int, kind: Kind, declared: Declared, categories: Mapping[str, Category]
) -> Iterator[Leaves]:
    for name, (dtype, shape) in declared.items():
        known = [length for length in shape if length is not None]
        size = prod(known) * dtype.itemsize if len(known) == len(shape) else None
        word = str(dtype).removeprefix("torch.")
        yield Leaves(stage, exchange, rounds, kind, name, word, shape, categories[name], size, kind == "reply")


# What a site refuses ------------------------------------------------------------------------------


def refused(setup: Setup, refuse: Collection[Category]) -> list[Leaves]:
    """What the run needs of a site that refuses some categories, in the order in which it would leave."""
    return [each for each in leaving(setup) if each.needed and each.category in refuse]


def without(done: Done, refuse: Collection[Category]) -> Done:
    """A reply less the telemetry and the numbers of scores that are of refused categories."""
    numbers: dict[str, Any] = {name: None for name, category in SCORES.items() if category in refuse}
    if METRICS_ARE in refuse:
        numbers["metrics"] = {}
    done = replace(done, scores=tuple(replace(score, **numbers) for score in done.scores))
    if done.answer is None:
        return done
    telemetry = {name: tensor for name, tensor in done.answer.telemetry.items() if told(name) not in refuse}
    return replace(done, answer=replace(done.answer, telemetry=Telemetry(telemetry)))


def refusal(setup: Setup, site: str, refuse: Collection[Category]) -> FedshiftError:
    """The error that ends a run which needs what a site refuses: who, what, and what helps.

    Args:
        setup: the run.
        site: the site's name.
        refuse: categories that it refuses, of which the run needs some.
    """
    needed, what = refused(setup, refuse), []
    for category in CATEGORIES:
        if mine := [each for each in needed if each.category == category]:
            more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
            where = f"in the exchange '{mine[0].exchange}' of the stage '{mine[0].stage}'"
            what.append(f"a tensor of the category '{category}', '{mine[0].name}'{more}, {where}")
    settings, uniform = _by_samples(setup), replace(setup, method=_uniform(setup.method))
    fix = "Choose another method or setting"
    if {each.stage for each in needed} == {PREPARATION}:
        fix = "Set data.statistics = 'site' (or 'none') at every member"
    elif settings and not refused(uniform, refuse):
        fix = f"Set {' and '.join(settings)} at every member"
    return FedshiftError(
        f"The site '{site}' refuses what the run needs: {'; '.join(what)}. {fix}, or talk to the site, whose site.toml "
        "says what it refuses."
    )


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
    return spec.replace(**changes) if changes else spec


# The page -----------------------------------------------------------------------------------------


def what_leaves(setup: Setup, federation: FederationSettings) -> str:
    """A page in Markdown, for whoever must decide whether a site may take part."""
    leaves = leaving(setup)
    groups = [list(group) for _, group in groupby(leaves, key=lambda each: (each.stage, each.exchange, each.kind))]
    private = [name for name, part in setup.parts.items() if part.scope == "client"]
    kept = {part_of(name) for name, scope in setup.scopes.items() if scope == "client"}
    return render(
        "what-leaves.md",
        federation=federation,
        method=METHODS.name_of(setup.method),
        reasons=REASONS,
        meaning=MEANING,
        words=WORDS,
        leaves=leaves,
        groups=[(group[0], group) for group in groups],
        short=[row for group in groups for row in _short(group)],
        private=private,
        norms=sorted(kept - set(private)),
        revealed=_revealed(setup),
        sent=_sent(setup),
        scored=any(stage.scored for stage in setup.stages),
        models=counted(range(models_scored(setup)), "model"),
        decimals=DECIMALS,
        min_scored=SiteSettings.settings()["min_scored"].default,
        largest=bytes_text(federation.largest * 10**6),
    )


def _short(group: Sequence[Leaves]) -> Iterator[dict[str, str]]:
    """A row for each category of what leaves together."""
    for category in CATEGORIES:
        mine = [each for each in group if each.category == category]
        if not mine:
            continue
        first, sizes = mine[0], [each.bytes for each in mine if each.bytes is not None]
        yield {
            "stage": first.stage,
            "exchange": first.exchange,
            "kind": first.kind,
            "often": f"{first.rounds} times" if first.rounds > 1 else "at each start" if first == JOINED else "once",
            "tensors": counted(mine, "tensor"),
            "bytes": bytes_text(sum(sizes)) if len(sizes) == len(mine) else "",
            "category": category,
        }


def _sent(setup: Setup) -> Iterator[tuple[str, str, str, list[str]]]:
    """For each exchange what the coordinator sends: how many tensors, and of which parts."""
    for stage in setup.stages:
        for exchange in stage.exchanges:
            names = setup.declaration(exchange).sent
            yield stage.name, exchange.name, counted(names, "tensor"), [part_of(name) for name in names]


def _revealed(setup: Setup) -> dict[str, list[str]]:
    """The private parts that follow from uploads, with the first words of these."""
    found: dict[str, list[str]] = {}
    uploads = (upload for stage in setup.stages for exchange in stage.exchanges for upload in exchange.uploads)
    for upload in uploads:
        if upload.reveals:
            found.setdefault(upload.reveals, []).append(upload.name)
    return found
