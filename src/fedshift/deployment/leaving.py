"""The tensors that leave a site in a run, derived from what its method declares, before anything has left.

The same list is an auditor's page, the check at a site, and the basis of a site's policy. Pages for members and files
of containers are made from templates.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from math import prod
from shlex import join
from typing import Any, Literal, get_args

import jinja2
import torch
from torch import Tensor

from fedshift.core.contract import Category, Declared, Exchange, Stage
from fedshift.core.messages import Telemetry
from fedshift.core.metrics import ACCURACY
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Round, Setup, told
from fedshift.core.tensors import counted, part_of
from fedshift.core.uncertainty import with_interval
from fedshift.deployment import shell
from fedshift.deployment.agreement import Agreement, SiteSettings
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.wire import DECIMALS, ENDS, METRIC, REASONS, Done, MessageLimits
from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.written import bytes_text

WIDEST = 100  # columns of a command before it is written on several lines


def render(template: str, **values: Any) -> str:
    """A page from a template in the folder ``templates``, by its name without the suffix."""
    return _templates().get_template(f"{template}.jinja").render(shell=shell, **values)


@cache  # each template is compiled once for all members
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(  # the result is read as text or run by a shell, never as HTML
        loader=jinja2.PackageLoader("fedshift", "deployment/templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["typed"] = _typed
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    environment.filters["code"] = _code
    environment.filters["codes"] = _codes
    return environment


def _typed(command: shell.Command) -> str:
    line = join(command)
    return line if len(line) <= WIDEST else line.replace(" --", " \\\n    --")


def _code(text: str) -> str:
    plain = text.replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def _codes(names: Iterable[str], most: int | None = None) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - most} more" if most is not None and len(distinct) > most else ""
    return ", ".join(map(_code, distinct[:most])) + more


MEGABYTE = 10**6
ABOUT_ONE = 512  # bytes of a header for one tensor: its name, type, shape and place
ABOUT_ALL = 1 << 16  # bytes of a header for everything else

Kind = Literal["join", "reply", "telemetry", "scores"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
SCORES: Mapping[str, Category] = {"accuracy": "statistic", "loss": "statistic", "n": "count"}
"""The numbers of every score, each a tensor of shape (); ``n`` is how many samples were scored."""
METRICS_ARE: Category = "statistic"
MEANING: Mapping[Category, str] = {
    "model update": "The result of local training, or a gradient: parameters, and for batch norms "
    "the running means, variances and numbers of batches too. It is not a sample, but an analyst can learn "
    "something about samples.",
    "statistic": "A number or a vector that is computed from many samples, such as a mean, a loss or an accuracy. "
    "If a site has few samples of a kind, it reveals much about each.",
    "count": "How many samples the site has, or a number from which that follows.",
    "embedding": "Vectors that a network computes from single samples, one for each. They describe the sample, and "
    "samples may be recognised or partly restored from them.",
}


@dataclass(frozen=True)
class Leaves:
    """A tensor that leaves a site."""

    stage: str  # the run's stage
    exchange: str  # its exchange; empty for scores, which leave with the next message
    # the largest number of rounds of the stage in which it leaves; a site that is not selected sends nothing
    rounds: int
    kind: Kind  # whether it is part of a reply, of telemetry, or of a score, which each environment of the site has
    name: str  # its name there
    dtype: str  # its type, such as float32
    shape: tuple[int | None, ...]  # its shape; None stands for any length
    category: Category  # its category
    bytes: int | None  # its size; None if a length is not known beforehand
    needed: bool  # whether the method requires it; a site may refuse what is not needed


WORDS: Mapping[Kind, str] = {
    "join": "at the start",
    "reply": "the reply",
    "telemetry": "telemetry",
    "scores": "scores",
}
JOINED = Leaves("", "", 1, "join", "samples", "int64", (), "count", 8, needed=False)
"""How many samples a site trains on, which bounds the counts that it sends later."""


def leaving(setup: Setup) -> list[Leaves]:
    """Every tensor that may leave a site in a run, in the order of stages and exchanges."""
    return [JOINED, *(each for stage in setup.stages for each in _of_stage(setup, stage))]


def models_scored(setup: Setup) -> int:
    return sum(setup.scored(Round(stage, number)) for stage in setup.stages for number in range(1, stage.rounds + 1))


def category(setup: Setup, exchange: Exchange | None, name: str) -> Category:
    """The category of a message's tensor, by its name there: ``up.NAME``, ``telemetry.NAME`` or ``scores.0.NAME``.

    Args:
        setup: the run's setup.
        exchange: the exchange that the message answers; None for scores alone.
        name: the tensor's name.
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
    ends = [prefix + name for name in (ACCURACY, *with_interval(setup.metrics)) for prefix in ENDS]
    return {**SCORES, **dict.fromkeys([*(METRIC + name for name in setup.metrics), *ends], METRICS_ARE)}


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
    """What the run needs from a site that refuses some categories, in the order in which it would leave."""
    return [each for each in leaving(setup) if each.needed and each.category in refuse]


def without(done: Done, refuse: Collection[Category]) -> Done:
    """A reply without telemetry and scores of refused categories."""
    numbers: dict[str, Any] = {name: None for name, category in SCORES.items() if category in refuse}
    if METRICS_ARE in refuse:
        numbers |= {"metrics": {}, "intervals": {}}
    done = replace(done, scores=tuple(replace(score, **numbers) for score in done.scores))
    if done.answer is None:
        return done
    telemetry = {name: tensor for name, tensor in done.answer.telemetry.items() if told(name) not in refuse}
    return replace(done, answer=replace(done.answer, telemetry=Telemetry(telemetry)))


def refusal(setup: Setup, site: str, refuse: Collection[Category]) -> FedshiftError:
    """The error for a run that needs what a site refuses: site, tensors and fix."""
    needed, what = refused(setup, refuse), []
    for category in CATEGORIES:
        if mine := [each for each in needed if each.category == category]:
            more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
            where = f"in the exchange '{mine[0].exchange}' of the stage '{mine[0].stage}'"
            what.append(f"a tensor of the category '{category}', '{mine[0].name}'{more}, {where}")
    fix = "Choose another method or setting"
    if {each.stage for each in needed} == {PREPARATION}:
        fix = "Set data.statistics = 'site' (or 'none'), with no data.pool, at every member"
    elif "count" in refuse:
        fix += ", such as method.weighting = 'uniform', at every member"
    return FedshiftError(
        f"The site '{site}' refuses what the run needs: {'; '.join(what)}. {fix}, or contact the site, whose site.toml "
        "lists what it refuses."
    )


# The page -----------------------------------------------------------------------------------------


def what_leaves(setup: Setup, federation: FederationSettings) -> str:
    """A page in Markdown for the person who decides whether a site may take part."""
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


def _sent(setup: Setup) -> Iterator[tuple[str, str, str, list[str]]]:
    for stage in setup.stages:
        for exchange in stage.exchanges:
            names = setup.declaration(exchange).sent
            yield stage.name, exchange.name, counted(names, "tensor"), [part_of(name) for name in names]


def _revealed(setup: Setup) -> dict[str, list[str]]:
    """The private parts that can be derived from uploads, with the first words of the reasons."""
    found: dict[str, list[str]] = {}
    uploads = (upload for stage in setup.stages for exchange in stage.exchanges for upload in exchange.uploads)
    for upload in uploads:
        if upload.reveals:
            found.setdefault(upload.reveals, []).append(upload.name)
    return found


# Sizes --------------------------------------------------------------------------------------------


def of_replies(agreement: Agreement, setup: Setup) -> MessageLimits:
    exchanges = [exchange for stage in setup.stages for exchange in stage.exchanges]
    ups = [setup.declaration(exchange).reply | setup.declaration(exchange).telemetry for exchange in exchanges]
    scores = 2 * len(agreement.environments(agreement.federation.sites[0])) * 8 * len(_of_scores(setup))
    tensors = max(map(len, ups), default=0) + scores // 8
    return _limits(agreement, [_bytes(up) for up in ups], scores, tensors)


def of_requests(agreement: Agreement, setup: Setup) -> MessageLimits:
    """The limits of a coordinator's messages: an order and a model to score, or everything agreed on."""
    sent: Mapping[str, Tensor] = setup.initial("shared") | setup.initial("down")
    exchanges = [exchange for stage in setup.stages for exchange in stage.exchanges]
    known = all(exchange.send is None for exchange in exchanges)
    size = 2 * sum(tensor.nbytes for tensor in sent.values()) if known else None
    return _limits(agreement, [size], len(json.dumps(agreement.agreed)), 2 * len(sent) + 2 * len(setup.shapes))


def _bytes(declared: Declared) -> int | None:
    if any(length is None for _, shape in declared.values() for length in shape):
        return None
    return sum(prod(length or 0 for length in shape) * dtype.itemsize for dtype, shape in declared.values())


def _limits(agreement: Agreement, sizes: Iterable[int | None], more: int, tensors: int) -> MessageLimits:
    most = agreement.federation.largest * MEGABYTE
    header = ABOUT_ALL + ABOUT_ONE * tensors + 2 * more
    known = [most if size is None else size for size in sizes]
    return MessageLimits(min(most, max(known, default=0) + more + header), header)
