"""What leaves a site in a run, worked out from what its method declares, before anything has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Literal, get_args

import torch

from fedshift.core.contract import Category, Declared, Exchange, Round, Stage
from fedshift.core.setup import Setup, told
from fedshift.core.tensors import counted, part_of
from fedshift.deployment.agreement import FederationSettings, SiteSettings
from fedshift.deployment.wire import DECIMALS, METRIC, REASONS
from fedshift.errors import FedshiftError
from fedshift.methods import METHODS
from fedshift.reporting.units import bytes_text

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
    if exchange is not None and kind == "up" and own in setup.categories(exchange):
        return setup.categories(exchange)[own]
    if exchange is not None and kind == "telemetry" and own in setup.telemetry(exchange):
        return told(own)
    where = f"the exchange '{exchange.name}'" if exchange is not None else "scoring"
    raise FedshiftError(f"'{name}' was not sent: {where} does not declare it.")


def _of_stage(setup: Setup, stage: Stage) -> Iterator[Leaves]:
    for exchange in stage.exchanges:
        yield from _of_kind(stage, exchange.name, "reply", setup.declared(exchange), setup.categories(exchange))
        if setup.evaluate.telemetry:
            telemetry = setup.telemetry(exchange)
            yield from _of_kind(stage, exchange.name, "telemetry", telemetry, {name: told(name) for name in telemetry})
    if stage.scored:
        scores = _of_scores(setup)
        numbers: Declared = {name: (torch.int64 if name == "n" else torch.float64, ()) for name in scores}
        evaluations = -(-stage.rounds // setup.evaluate.every_in(stage.rounds))
        yield from _of_kind(stage, "", "scores", numbers, scores, evaluations)


def _of_scores(setup: Setup) -> dict[str, Category]:
    """The numbers of a score in a run, the metrics that it measures among them."""
    return {**SCORES, **{METRIC + name: METRICS_ARE for name in setup.metrics}}


def _of_kind(
    stage: Stage,
    exchange: str,
    kind: Kind,
    declared: Declared,
    categories: Mapping[str, Category],
    rounds: int | None = None,
) -> Iterator[Leaves]:
    for name, (dtype, shape) in declared.items():
        known = [length for length in shape if length is not None]
        size = prod(known) * dtype.itemsize if len(known) == len(shape) else None
        word = str(dtype).removeprefix("torch.")
        often = stage.rounds if rounds is None else rounds
        needed = kind == "reply"
        yield Leaves(stage.name, exchange, often, kind, name, word, shape, categories[name], size, needed)


# The page -----------------------------------------------------------------------------------------


def what_leaves(setup: Setup, federation: FederationSettings) -> str:
    """A page in Markdown, for whoever must decide whether a site may take part."""
    leaves, largest = leaving(setup), bytes_text(federation.largest * 10**6)
    groups = [list(group) for _, group in groupby(leaves, key=lambda each: (each.stage, each.exchange, each.kind))]
    sections = [
        _introduction(setup, federation),
        "## What the words mean",
        _table(["category", "what it is"], [[one, MEANING[one]] for one in CATEGORIES]),
        "## What never leaves",
        _stays(setup),
        "## What the coordinator sends",
        _comes(setup),
        "## What leaves, in short",
        _table(
            ["stage", "exchange", "how often", "what", "bytes a round at most", "category"],
            [row for group in groups for row in _rows(group, largest)],
        ),
        "Bytes are those of the numbers alone; names, types and shapes add a few hundred to a few thousand to each "
        f"message. No message has more than {largest} (`largest` in federation.toml).",
        "## Scores",
        _scores(setup),
        "## Every tensor",
        *(_in_full(group) for group in groups),
        "## To refuse a category",
        _refusing(leaves),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _introduction(setup: Setup, federation: FederationSettings) -> str:
    return (
        f"# What leaves a site of {_code(federation.name)}\n\n"
        f"In this run sites train with the method {_code(METHODS.name_of(setup.method))}. Each works on its own "
        "samples and sends back tensors: named tables of numbers. This page lists all of them. It is not written by "
        "hand but worked out from what the method declares, and a site sends no tensor that is not declared. Every "
        "message that leaves is written down before, in `sent.jsonl` in the site's folder: when, in which "
        "exchange, and of each tensor its name, type, shape, bytes, category and a hash.\n\n"
        "Beside tensors these words leave: the site's name, the names of its environments and whose model was scored "
        "on them, the versions of the software that computes there, the number of its session, a digest that proves "
        "that the site is the one which replied before, and, where something fails, one of these words: "
        f"{_list(REASONS)}, with names of tensors or settings that the coordinator has itself."
    )


def _stays(setup: Setup) -> str:
    private = {name for name, scope in setup.scopes.items() if scope == "client"}
    whole = [name for name, part in setup.parts.items() if part.scope == "client"]
    norms = sorted({part_of(name) for name in private} - set(whole))
    embeds = any(each.category == "embedding" for each in leaving(setup))
    lines = [
        "Samples, their labels, file names and paths, and predictions for single samples."
        + (" In this run embeddings of samples do leave, and what they stand for: see below." if embeds else ""),
        "The texts of errors, which could quote samples: they are in the site's `log.jsonl` alone.",
        "The state of optimisers.",
    ]
    if whole:
        lines.append(f"Private parts of the model: {_list(whole)}. They are kept in the site's folder `state`.")
    revealed = _revealed(setup)
    for part in revealed:
        lines.append(
            f"{_code(part)}, one of these, is not sent itself, but it follows from what is: {_list(revealed[part])}."
        )
    if norms:
        lines.append(f"The batch norms of {_list(norms)}, which are kept there too.")
    return _bullets(lines)


def _revealed(setup: Setup) -> dict[str, list[str]]:
    """The private parts that follow from uploads, with the first words of these."""
    found: dict[str, list[str]] = {}
    for exchange in (exchange for stage in setup.stages for exchange in stage.exchanges):
        for upload in exchange.uploads:
            if upload.reveals and upload.name not in found.setdefault(upload.reveals, []):
                found[upload.reveals].append(upload.name)
    return found


def _comes(setup: Setup) -> str:
    lines = []
    for stage in setup.stages:
        for exchange in stage.exchanges:
            sent = setup.sent(exchange)
            parts = list(dict.fromkeys(part_of(name) for name in sent))
            what = f"{counted(sent, 'tensor')} of {_list(parts)}" if sent else "no tensors"
            lines.append(f"In the exchange {_code(exchange.name)} of the stage {_code(stage.name)}: {what}.")
    scored = "A model that the site is to score on its own samples, where a round is scored."
    return _bullets([*lines, *([scored] if any(stage.scored for stage in setup.stages) else [])])


def _scores(setup: Setup) -> str:
    models = models_scored(setup)
    return (
        f"A site scores **{counted(range(models), 'model')}** in this run at most, each once. Of a model it sends one "
        "score for each of its environments, the samples that it holds back for validation or for a test. "
        f"Accuracy, loss and metrics are rounded to {DECIMALS} decimals, and an environment of fewer than `min_scored` "
        f"samples (`site.toml`, {SiteSettings.settings()['min_scored'].default} by default) is not scored. With "
        "`max_models` in its `site.toml` a site refuses a run that scores more models."
    )


def _rows(group: Sequence[Leaves], largest: str) -> Iterator[list[str]]:
    """A row for each category of what leaves together."""
    for one in CATEGORIES:
        mine = [each for each in group if each.category == one]
        if not mine:
            continue
        first, sizes = mine[0], [each.bytes for each in mine if each.bytes is not None]
        size = bytes_text(sum(sizes)) if len(sizes) == len(mine) else f"as long as it is, up to {largest}"
        what = f"{_WHAT[first.kind]}: {counted(mine, 'tensor')}"
        often = f"{first.rounds} times" if first.rounds > 1 else "at each start" if first.kind == "join" else "once"
        each = " for each environment" if first.kind == "scores" else ""
        yield [_code(first.stage) or "any", _code(first.exchange) or "any", often, what, f"{size}{each}", one]


_WHAT: Mapping[Kind, str] = {
    "join": "at the start",
    "reply": "the reply",
    "telemetry": "told beside it",
    "scores": "scores",
}


def _in_full(group: Sequence[Leaves]) -> str:
    first = group[0]
    where = f"the exchange {_code(first.exchange)}, {_WHAT[first.kind]}" if first.exchange else _WHAT[first.kind]
    rows = [
        [
            _code(each.name),
            each.dtype,
            str(["any" if length is None else length for length in each.shape]).replace("'", ""),
            "by its length" if each.bytes is None else f"{each.bytes:,}",
            each.category,
            "yes" if each.needed else "no",
        ]
        for each in group
    ]
    title = f"### Stage {_code(first.stage)}: {where}" if first.stage else "### When the site joins"
    return f"{title}\n\n{_table(['tensor', 'type', 'shape', 'bytes', 'category', 'needed'], rows)}"


def _refusing(leaves: Sequence[Leaves]) -> str:
    rows = []
    for one in CATEGORIES:
        mine = [each for each in leaves if each.category == one]
        needed, optional = [e.name for e in mine if e.needed], [e.name for e in mine if not e.needed]
        if needed:
            then = f"The method needs {_first(needed)}: the run ends at its start, before anything is trained."
        elif optional:
            then = f"The site leaves out {_first(optional)}; the run goes on without."
        else:
            then = "Nothing changes: nothing of the kind leaves in this run."
        rows.append([one, then])
    return (
        "A site refuses categories in its own `site.toml`, and nobody else can change that:\n\n"
        f'```toml\nrefuse = ["{rows[-1][0]}"]\n```\n\n'
        "What the method needs and a site refuses ends the run at its start: the coordinator is told which "
        "categories the site refuses, and nothing else. What is not needed is simply left "
        "out. Who refuses counts alone should know that an accuracy, being a share of samples, and the numbers of "
        "batches in a model with batch norms hint at them.\n\n" + _table(["category", "if the site refuses it"], rows)
    )


def _first(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return ", ".join(map(_code, distinct[:3])) + more


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(_code, names))


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def _code(text: str) -> str:
    """A name as Markdown shows it letter by letter, also in a table."""
    plain = text.replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
