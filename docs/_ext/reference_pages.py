"""Sphinx extension that generates the reference pages: methods, commands and settings, from the package itself.

Before a build it writes ``methods/NAME.md`` for every method, ``methods.md``, ``commands.md`` and ``settings.md`` into
the documentation's folder. Each method page has the module's docstring, the settings, the presets, what is exchanged
in a round on an example model, and the measured differences from FedAvg.
"""

from __future__ import annotations

import csv
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import typer.main
from sphinx.application import Sphinx

from fedshift.cli.app import app as command_line
from fedshift.cli.catalogues import described, listed, plain, type_in_words, value_in_words
from fedshift.core.method import Averaging, Method
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Setup
from fedshift.experiments import PLAIN, Experiment
from fedshift.methods import METHODS
from fedshift.reporting.intervals import Interval, paired
from fedshift.runs.simulation import Simulation
from fedshift.spec import Spec
from fedshift.study import api

Shape = tuple[int | None, ...]  # None: a size that differs between clients

EXAMPLE = {"rounds": 3, "settings": {"run.device": "cpu"}}  # of the experiment whose exchanges a page shows
FAMILIES = {
    "One global model": "fedavg fedavgm fedadagrad fedadam fedyogi fedprox scaffold feddyn moon fedlc fedproc fedgen "
    "fpl fixbn fedsr fedl2r fedcmi fedcir fedreg fedalign client2vec",
    "A global model for unseen domains": "fediir drfa feddg-ga fedfa fedadg irm vrex groupdro coral mixup",
    "Personalised models": "fraug fraug-code head-retraining fedpin fedpin-lambda-0 fedpin-gamma-0 fedpin-gm "
    "fedpin-gm-ft fedpin-gm-l2 fedbn silobn ditto pfedavg pfedme ftfa fedrep fedper fedbabu lg-fedavg apfl knn-per "
    "partialfed partialfed-adaptive fedala fedrod fedpac fedsdr fedproto",
    "References": "single centralised pooled-irm pooled-vrex pooled-groupdro pooled-coral pooled-mixup fedavg-again",
}
SCENARIOS = {
    "rotated-mnist-0": "RotatedMNIST, 0° held out",
    "rotated-mnist-0-other": "the same with other digits at each angle",
    "digits": "Digits, in-domain",
    "colored-fashion-mnist": "Colored Fashion-MNIST",
    "pacs-leave-one-out": "PACS (frozen features), held out",
    "heart": "Heart (four hospitals)",
    "opt": "OPT (four clinics)",
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True}


def generate(app: Sphinx) -> None:
    """Write all generated pages."""
    docs = Path(app.srcdir)
    _write(docs / "methods.md", methods_index())
    for page, names in pages().items():
        _write(docs / "methods" / f"{page}.md", method_page(names))
    _write(docs / "commands.md", commands_page())
    _write(docs / "settings.md", settings_page())


def pages() -> dict[str, list[str]]:
    """The methods of each page, by the page's name, which is the module's; variants in a module share its page."""
    by_module: dict[str, list[str]] = {}
    for name in METHODS:
        by_module.setdefault(METHODS.get(name).__module__.rpartition(".")[2], []).append(name)
    return {page: sorted(names, key=lambda name: name.replace("-", "_") != page) for page, names in by_module.items()}


def methods_index() -> str:
    """The table of methods by family."""
    page_of = {name: page for page, names in pages().items() for name in names}
    lines = [
        "# Methods",
        "",
        "Every method is one file that follows its paper. `fedshift show NAME` prints its settings in the terminal.",
        "[Which method for my data](which-method.md) compares measured results.",
    ]
    known = {name for names in FAMILIES.values() for name in names.split()}
    families = {family: names.split() for family, names in FAMILIES.items()}
    families["Further methods"] = [name for name in METHODS if name not in known]
    for family, names in families.items():
        rows = [
            (f"[`{name}`](methods/{page_of[name]}.md)", METHODS.get(name).paper.partition(", Eq")[0], _summary(name))
            for name in names
        ]
        if rows:
            lines += ["", f"## {family}", "", *_table(("method", "paper", "what it does"), rows)]
    lines += ["", "```{toctree}", ":hidden:", "", *(f"methods/{page}" for page in sorted(pages())), "```"]
    return "\n".join(lines)


def method_page(names: list[str]) -> str:
    """The page of a module's methods."""
    module = sys.modules[METHODS.get(names[0]).__module__]
    title, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n")
    name, _, summary = title.partition(": ")
    parts = [f"# {name}", "", f"{summary[:1].upper()}{summary[1:]}", "", "```{eval-rst}", rest.strip(), "```", ""]
    source = f"src/{module.__name__.replace('.', '/')}.py"
    parts += [f"The source is `{source}`. In an experiment: {', '.join(f'`--method {name}`' for name in names)}.", ""]
    for name in names:
        cls = METHODS.get(name)
        if len(names) > 1:
            parts += [f"## `{name}`", "", f"{_markdown(cls.help())} ({cls.paper})", ""]
        level = "###" if len(names) > 1 else "##"
        parts += [
            f"{level} Settings",
            "",
            *_settings(cls, METHODS.get(names[0]) if name != names[0] else Averaging),
            "",
        ]
        parts += [*_presets(cls, level), *_exchanges(name, level), *_measured(name, level)]
    return "\n".join(parts)


def commands_page() -> str:
    """Every command of the command line with its options."""
    lines = ["# Commands", "", "`fedshift COMMAND --help` prints the same with examples.", ""]
    _command(typer.main.get_command(command_line), "fedshift", lines)
    return "\n".join(lines)


def settings_page() -> str:
    """Every table of an experiment and every entry's settings, except those of methods."""
    lines = [
        "# Settings",
        "",
        "An experiment is a TOML file that lists only the settings that differ from the defaults;",
    ]
    lines += ["a list in place of a single value makes a run for each. Method settings are on the [methods' pages]"]
    lines[-1] += "(methods.md)."
    tables: dict[str, type[Spec]] = {"Before any table": Experiment}
    tables |= {f"[{name}]": cls for name, cls in PLAIN.items()}
    for title, cls in tables.items():
        lines += ["", f"## `{title}`" if title[0] == "[" else f"## {title}", "", *_settings(cls)]
    for catalogue in listed().values():
        if catalogue.kind == "method":
            continue
        lines += ["", f"## {catalogue.kind.capitalize()}", ""]
        for name in catalogue:
            cls = catalogue.get(name)
            lines += ["", f"### {catalogue.kind} `{name}`", "", _markdown(cls.help().partition("\n\n")[0]), ""]
            lines += _settings(cls)
    return "\n".join(lines)


def _command(command: Any, path: str, lines: list[str]) -> None:
    for name, sub in getattr(command, "commands", {}).items():
        if hasattr(sub, "commands"):
            _command(sub, f"{path} {name}", lines)
            continue
        text = inspect.cleandoc(sub.help or "").replace("\b", "")
        lines += [f"## `{path} {name}`", "", _markdown(text.partition("Examples:")[0]), ""]
        rows = []
        for option in sub.params:
            words = ", ".join(f"`{word}`" for word in option.opts) if option.opts[0][0] == "-" else f"`{option.name}`"
            if words != "`--help`":
                rows.append((words, _cell(getattr(option, "help", "") or "")))
        lines += [*_table(("argument or option", "meaning"), rows), ""]


def _settings(cls: type[Spec], base: type[Spec] | None = None) -> list[str]:
    """A table of the settings, without those that are the base's."""
    shared = base.settings() if base else {}
    rows = []
    for name, about in cls.settings().items():
        if shared.get(name) == about:
            continue
        default = "required" if about.required else f"`{value_in_words(about.default)}`"
        search = about.search and (
            value_in_words(about.search) if isinstance(about.search, tuple) else str(about.search)
        )
        meaning = _cell(about.help) + (f" ({_cell(about.source)})" if about.source else "")
        rows.append((f"`{name}`", default, meaning, _cell(type_in_words(described(cls, name))), _cell(search or "")))
    table = _table(("setting", "default", "meaning (source)", "values", "search"), rows) if rows else []
    if base is None or base is Averaging:
        return table or ["No settings beyond those of every method." if base else "No settings."]
    fixed = [f"`{name}`" for name in shared if name not in cls.settings()]
    lines = [f"As above, but without {', '.join(fixed)}." if fixed else "As above."]
    return [*lines, "", *table]


def _presets(cls: type[Method], level: str) -> list[str]:
    rows = [
        (f"`{data}`", ", ".join(f"`{key} = {value_in_words(value)}`" for key, value in preset.items()))
        for data, preset in cls.published().items()
    ]
    if not rows:
        return []
    text = "Published values, used when `data.name` has this name, or with `--set method.preset=NAME`."
    return [f"{level} Presets", "", text, "", *_table(("preset", "settings"), rows), ""]


@cache
def _blueprint() -> Simulation:
    return Simulation(api.experiment("rotated-mnist", method="fedavg", **EXAMPLE))


def _setup(name: str) -> Setup:
    experiment = api.experiment("rotated-mnist", method=name, **EXAMPLE)
    return _blueprint().blueprint.setup(experiment, name, torch.device("cpu"))


def declared(name: str) -> list[tuple[str, str, str, str, str, str]]:
    """What each exchange of a method declares on the example model, a row for each part and direction."""
    setup = _setup(name)
    rows = []
    for stage in setup.stages:
        for exchange in stage.exchanges:
            declaration = setup.declaration(exchange)
            label = exchange.name if len(setup.stages) == 1 else f"{stage.name}: {exchange.name}"
            down = {name: tuple(setup.shapes[name].shape) for name in declaration.sent}
            up = {name: shape for name, (_, shape) in declaration.reply.items()}
            rows += [(label, "to the client", *row, "") for row in _by_part(down)]
            for category in dict.fromkeys(declaration.categories[name] for name in up):
                chosen = {name: shape for name, shape in up.items() if declaration.categories[name] == category}
                rows += [(label, "from the client", *row, category) for row in _by_part(chosen)]
            told = {name: shape for name, (_, shape) in declaration.telemetry.items()}
            rows += [(label, "from the client", *row, "telemetry") for row in _by_part(told)]
    return [row for row in rows if PREPARATION not in row[0]]


def _by_part(tensors: Mapping[str, Shape]) -> list[tuple[str, str, str]]:
    by_part: dict[str, list[Shape]] = {}
    for name, shape in tensors.items():
        by_part.setdefault(name.partition(".")[0], []).append(shape)
    return [(f"`{part}`", f"{len(shapes)}", _numbers(shapes)) for part, shapes in by_part.items()]


def _numbers(shapes: Iterable[Shape]) -> str:
    fixed = [shape for shape in shapes if None not in shape]
    count = f"{sum(prod(shape) for shape in fixed):,}" if fixed else ""
    return " + ".join(
        filter(None, (count, *("x".join(str(size or "n") for size in shape) for shape in shapes if None in shape)))
    )


def _exchanges(name: str, level: str) -> list[str]:
    head = ("exchange", "direction", "part", "tensors", "numbers", "category")
    text = "In each round, on the example model (a small CNN on RotatedMNIST). Everything else stays on the client."
    return [f"{level} What is exchanged", "", text, "", *_table(head, declared(name)), ""]


@cache
def _scores() -> dict[tuple[str, str], dict[int, float]]:
    path = files("fedshift.study") / "data" / "benchmark" / "published" / "short.csv"
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if row["column"] == "accuracy" and row["value"]:
            scores.setdefault((row["scenario"], row["row"]), {})[int(row["seed"])] = float(row["value"])
    return scores


def _measured(name: str, level: str) -> list[str]:
    rows = []
    for scenario, title in SCENARIOS.items():
        ours, base = _scores().get((scenario, name)), _scores().get((scenario, "fedavg"))
        if ours and base and name != "fedavg":
            difference = Interval.of(list(paired(ours, base).values()))
            if difference and difference.half is not None:
                low, high = difference.mean - difference.half, difference.mean + difference.half
                text = f"{difference.mean:+.1f} [{low:.1f}, {high:.1f}]"
                rows.append((title, f"{mean(ours.values()):.1f}", f"{mean(base.values()):.1f}", text))
    if not rows:
        return []
    about = (
        "Accuracy in % on the [benchmark](../benchmark.md), and the mean paired difference from FedAvg over the seeds "
    )
    about += "with its 95 % interval."
    return [f"{level} Results", "", about, "", *_table(("federation", name, "FedAvg", "difference"), rows), ""]


def _summary(name: str) -> str:
    return _cell(plain(METHODS.get(name).help()).partition("\n\n")[0])


def _markdown(text: str) -> str:
    return plain(text).replace("\n", " ").replace("<", "\\<").strip()


def _cell(text: str) -> str:
    return plain(text).replace("\n", " ").replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text + "\n":  # unchanged pages are not built again
        path.write_text(text + "\n", encoding="utf-8")
