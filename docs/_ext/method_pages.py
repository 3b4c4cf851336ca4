"""The pages of the methods: docstring, settings, presets, exchanged tensors and measured results."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import torch
from markup import cell, markdown, table
from settings_tables import settings_table

from fedshift.catalogue import built_in
from fedshift.cli.catalogues import describe_value
from fedshift.core.method import Averaging, Method
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Setup
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.runs.simulation import Simulation
from fedshift.study import api
from fedshift.study.benchmark import Benchmark
from fedshift.study.benchmark_plan import BASE

Shape = tuple[int | None, ...]  # None: a size that differs between clients

DOWN, UP, TELEMETRY = "to the client", "from the client", "telemetry"
FAMILIES = {
    "One global model": "fedavg fedavgm fedadagrad fedadam fedyogi fedprox scaffold feddyn moon fedlc fedproc fedgen "
    "fpl fixbn fedsr fedl2r fedcmi fedcir fedreg fedalign client2vec",
    "A global model for unseen domains": "fediir drfa feddg-ga fedfa fedadg irm vrex groupdro coral mixup",
    "Personalised models": "fraug fraug-code head-retraining fedpin fedpin-lambda-0 fedpin-gamma-0 fedpin-gm "
    "fedpin-gm-ft fedpin-gm-l2 fedbn silobn ditto pfedavg pfedme ftfa fedrep fedper fedbabu lg-fedavg apfl knn-per "
    "partialfed partialfed-adaptive fedala fedrod fedpac fedsdr fedproto",
    "References": "single centralised pooled-irm pooled-vrex pooled-groupdro pooled-coral pooled-mixup fedavg-again",
}


@dataclass(frozen=True)
class Crossing:
    """A tensor that an exchange declares."""

    exchange: str
    direction: str
    tensor: str
    shape: Shape
    category: str = ""


def pages() -> dict[str, list[str]]:
    """The methods of each page by the page's name, which is the module's; the module's variants share its page."""
    by_module: dict[str, list[str]] = {}
    for name in filter(lambda name: built_in(METHODS.get(name)), METHODS):
        by_module.setdefault(METHODS.get(name).__module__.rpartition(".")[2], []).append(name)
    return {page: sorted(names, key=lambda name: name.replace("-", "_") != page) for page, names in by_module.items()}


def methods_index() -> Iterator[str]:
    """The page with the table of methods by family."""
    page_of = {name: page for page, names in pages().items() for name in names}
    yield from (
        "# Methods",
        "",
        "Every method is one file that follows its paper. `fedshift show NAME` prints its settings in the terminal.",
        "[Which method for my data](which-method.md) compares measured results.",
    )
    for family, names in FAMILIES.items():
        rows = [(f"[`{name}`](methods/{page_of[name]}.md)", _paper(name), _summary(name)) for name in names.split()]
        yield from ("", f"## {family}", "", *table(("method", "paper", "description"), rows))
    yield from ("", "```{toctree}", ":hidden:", "", *(f"methods/{page}" for page in sorted(pages())), "```")


def method_page(page: str, names: list[str], docs: Path) -> Iterator[str]:
    """The page of a module's methods."""
    module = sys.modules[METHODS.get(names[0]).__module__]
    first, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n")
    title, _, summary = first.partition(": ")
    options = ", ".join(f"`--method {name}`" for name in names)
    source = f"src/{module.__name__.replace('.', '/')}.py"
    choose, rest = _when_to_choose(rest)
    yield from (f"# {title}", "", f"{summary[:1].upper()}{summary[1:]}", "")
    yield from ("```{eval-rst}", choose, "```", "") if choose else ()
    if (docs / "results" / f"{page}.md").exists():
        yield from (f"[Results of {title}](../results/{page}.md): tables, controls and commands.", "")
    yield from (f"Use {options}; source: `{source}`.", "", "```{eval-rst}", rest, "```", "")
    level = "##" if len(names) == 1 else "###"
    for name in names:
        cls = METHODS.get(name)
        if len(names) > 1:
            yield from (f"## `{name}`", "", f"{markdown(cls.help())} ({cls.paper})", "")
        like = None if name == names[0] else names[0]
        yield from (f"{level} Settings", "", *_settings(name, like), "")
        yield from _presets(cls, like and METHODS.get(like), level)
        yield from _exchanges(name, like, level)
        yield from _measured(name, level)
    yield from _further(title, page, names, docs)


def crossings(name: str) -> list[Crossing]:
    """Every tensor that a method's exchanges declare on the example model."""
    setup = _setup(name)
    found = []
    for stage in setup.stages:
        if stage.name == PREPARATION:
            continue
        for exchange in stage.exchanges:
            declaration = setup.declaration(exchange)
            label = exchange.name if len(setup.stages) == 1 else f"{stage.name}: {exchange.name}"
            found += [Crossing(label, DOWN, tensor, tuple(setup.shapes[tensor].shape)) for tensor in declaration.sent]
            found += [
                Crossing(label, UP, tensor, shape, declaration.categories[tensor])
                for tensor, (_, shape) in declaration.reply.items()
            ]
            found += [
                Crossing(label, UP, tensor, shape, TELEMETRY) for tensor, (_, shape) in declaration.telemetry.items()
            ]
    return found


def _when_to_choose(text: str) -> tuple[str, str]:
    """The paragraph for those who choose a method, if there is one, and the others."""
    paragraphs = text.strip().split("\n\n")
    (choose, *_) = [each for each in paragraphs if each.startswith("**When to choose it.**")] or [""]
    return choose, "\n\n".join(each for each in paragraphs if each != choose)


def _paper(name: str) -> str:
    return cell(METHODS.get(name).paper.partition(", Eq")[0])


def _summary(name: str) -> str:
    return cell(METHODS.get(name).help().partition("\n\n")[0])


def _settings(name: str, like: str | None) -> Iterator[str]:
    cls = METHODS.get(name)
    if like is None:
        yield from settings_table(cls, without=Averaging) or ["No settings beyond those of every method."]
        return
    base = METHODS.get(like)
    missing = ", ".join(f"`{setting}`" for setting in base.settings() if setting not in cls.settings())
    yield f"Those of `{like}`{f', except for {missing}' if missing else ''}."
    yield ""
    yield from settings_table(cls, without=base)


def _presets(cls: type[Method], base: type[Method] | None, level: str) -> Iterator[str]:
    known = base.published() if base else {}
    presets = {
        data: preset for data, preset in cls.published().items() if not preset.items() <= known.get(data, {}).items()
    }
    rows = [
        (f"`{data}`", ", ".join(f"`{key} = {describe_value(value)}`" for key, value in preset.items()))
        for data, preset in presets.items()
    ]
    if rows:
        text = "Published values, the defaults when `data.name` is the preset's name; `method.preset` chooses another."
        yield from (f"{level} Presets", "", text, "", *table(("preset", "settings"), rows), "")


@cache
def _example(name: str) -> Experiment:
    return api.experiment({}, method=name, hold_out="0", rounds=3, settings={"run.device": "cpu"})


@cache
def _blueprint() -> Simulation:
    return Simulation(_example("fedavg"))


def _setup(name: str) -> Setup:
    return _blueprint().blueprint.setup(_example(name), name, torch.device("cpu"))


def _exchanges(name: str, like: str | None, level: str) -> Iterator[str]:
    yield from (f"{level} What leaves a client", "")
    found = crossings(name)
    if like and _without_telemetry(found) == _without_telemetry(crossings(like)):
        yield from (f"The same tensors as with `{like}`; telemetry: {_telemetry(found)}.", "")
        return
    text = "The exchanges of a round on the example model, a small CNN for RotatedMNIST. "
    text += "No other tensor of training leaves a client."
    head = ("exchange", "direction", "part", "tensors", "numbers", "category")
    yield from (text, "", *table(head, _by_part(found)), "")
    every = [(c.exchange, c.direction, f"`{c.tensor}`", _size(c.shape), c.category) for c in found]
    yield from (":::{dropdown} All tensors with their shapes", "")
    yield from (*table(("exchange", "direction", "tensor", "shape", "category"), every), "", ":::", "")


def _without_telemetry(found: Iterable[Crossing]) -> list[Crossing]:
    return [crossing for crossing in found if crossing.category != TELEMETRY]


def _telemetry(found: Iterable[Crossing]) -> str:
    return ", ".join(f"`{crossing.tensor}`" for crossing in found if crossing.category == TELEMETRY)


def _by_part(found: Iterable[Crossing]) -> list[tuple[str, ...]]:
    """A row for each part, direction and category; telemetry by its names."""
    rows: dict[tuple[str, str, str, str], list[Crossing]] = {}
    for crossing in found:
        part = "" if crossing.category == TELEMETRY else f"`{crossing.tensor.partition('.')[0]}`"
        rows.setdefault((crossing.exchange, crossing.direction, part, crossing.category), []).append(crossing)
    return [
        (exchange, direction, part or _telemetry(its), f"{len(its)}", _count([c.shape for c in its]), category)
        for (exchange, direction, part, category), its in rows.items()
    ]


def _count(shapes: Iterable[Shape]) -> str:
    """How many numbers tensors have; a shape with a size that differs between clients stays a product."""
    fixed = sum(prod(map(int, filter(None, shape))) for shape in shapes if None not in shape)
    varying = [_size(shape) for shape in shapes if None in shape]
    return " + ".join([*([f"{fixed:,}"] if fixed else []), *varying])


def _size(shape: Shape) -> str:
    return " × ".join("n" if size is None else str(size) for size in shape) or "1"


@cache
def _benchmark() -> Benchmark:
    return Benchmark.published()


def _measured(name: str, level: str) -> Iterator[str]:
    done, rows = _benchmark(), []
    for scenario in done.columns if name != BASE else ():
        ours, base = (done.mean(scenario.name, each, "accuracy") for each in (name, BASE))
        lacking = done.lacking.get((scenario.name, name, ""))
        if base and ours:
            difference = str(done.difference(scenario.name, name) or "did not train")
            rows.append((scenario.title, ours.text(), base.text(), difference))
        elif base and lacking and lacking.kind == "diverged":
            rows.append((scenario.title, "diverged in a seed", base.text(), ""))
    if rows:
        text = "Accuracy in % on the [benchmark](../benchmark.md), tuned like every row, and the difference to FedAvg, "
        text += "paired by seed, with an interval that [null rows calibrate](../benchmark.md#statistics)."
        head = ("federation", f"`{name}`", "`fedavg`", "difference")
        yield from (f"{level} Results", "", text, "", *table(head, rows), "")


def _further(title: str, page: str, names: list[str], docs: Path) -> Iterator[str]:
    """Links to the pages of results that name the method; every page names FedAvg."""
    if page == "fedavg":
        return
    words = re.compile("|".join([rf"\b{re.escape(title)}\b", *(f"`{re.escape(name)}`" for name in names)]))
    links = []
    for path in sorted((docs / "results").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if words.search(text):
            links.append(f"[{text.partition(chr(10))[0].lstrip('# ')}](../results/{path.name})")
    if links:
        yield f"Pages of results with this method: {', '.join(links)}."
