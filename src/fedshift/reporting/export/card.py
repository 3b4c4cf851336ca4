"""The model card (Mitchell et al., Model cards for model reporting, FAT* 2019) and the input for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jinja2
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedshift.clients import PROTOCOLS
from fedshift.clients.inputs import Inputs
from fedshift.core.contract import Category
from fedshift.core.method import tensor_scopes
from fedshift.core.metrics import ACCURACY
from fedshift.core.setup import telemetry_category
from fedshift.core.tensors import part_of
from fedshift.reporting.export.formats import FORMATS, Format
from fedshift.reporting.export.function import Probabilities
from fedshift.reporting.table import Table, marked
from fedshift.runs.run import Picked, Run
from fedshift.runs.schema import Blueprint, Record
from fedshift.written import bytes_text

USED = ("fedshift", "torch", "numpy", "safetensors", "onnx", "onnxscript", "onnxruntime")
MOST_COUNTS = 10  # classes whose samples are counted one by one
OF_MODEL = {"global": "the global model", "own": "the client's own", "unseen": "made for a client that never trained"}


@dataclass(frozen=True)
class Card:
    """The description of an exported model, for people and for programs."""

    run: Run  # where it comes from
    whole: Probabilities  # the model
    client: int | str | None  # whose it is, by name or id; None: everybody's
    round: Picked  # of which round it is
    differences: Mapping[Format, float]  # by format, how far a probability lies from that of the run's model
    made: Tensor  # the samples that are handed out with it
    real: int  # on how many samples of the data it was compared
    note: str  # why on none

    @property
    def blueprint(self) -> Blueprint:
        return self.whole.model.blueprint

    @cached_property
    def record(self) -> Record:
        if self.round == "last":
            return self.run.records[-1]
        position = self.run.summary["source_validation"]["position"]
        return next(record for record in self.run.records if record["position"] == position)

    @property
    def owner(self) -> str:
        """The client's name; empty: it is everybody's."""
        return "" if self.client is None else self.blueprint.clients[self.blueprint.client(self.client)]

    def json(self) -> str:
        """What a program must know to prepare samples and to name classes."""
        preparation = self.whole.inputs.preparation
        columns: list[dict[str, Any]] = [{"name": name} for name in self.blueprint.columns]
        if preparation is not None:
            columns = [{"name": each.name, "categories": each.categories} for each in preparation.columns]
        about = {
            "classes": self.blueprint.classes,
            "input": {"shape": ["batch", *self.made.shape[1:]], "type": str(self.made.dtype).removeprefix("torch.")},
            "columns": columns,
            "vocabulary": self.whole.inputs.vocabulary,
            "name": self.run.experiment.run_name,
            "metrics": self.run.experiment.evaluate.metrics,
            "data": self._data(),
            "inputs": TypeAdapter(Inputs).dump_python(self.whole.inputs, mode="json"),
        }
        return json.dumps({name: value for name, value in about.items() if value}, indent=2, ensure_ascii=False) + "\n"

    def _data(self) -> dict[str, Any]:
        data = self.run.experiment.data
        known, table = data.settings(), self.run.experiment.table()["data"]
        kept = {name: value for name, value in table.items() if name not in known or not known[name].path}
        return kept | ({"frozen": "none"} if self.whole.front is not None else {})

    def markdown(self) -> str:
        environment = jinja2.Environment(  # Markdown, and no page
            loader=jinja2.PackageLoader("fedshift", "reporting"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters["marked"] = marked
        table, method = self.run.experiment.table(), self.run.experiment.method
        return environment.get_template("model_card.md.jinja").render(
            card=self,
            table=table,
            blueprint=self.blueprint,
            paper=method.cited(),
            question=PROTOCOLS.get(table["protocol"]["name"]).question,
            input=json.loads(self.json())["input"],
            formats={name: FORMATS[name] for name in self.differences},
            versions=_versions(self.run),
            private=self.private(),
        )

    def private(self) -> list[str]:
        """The parts of a client's model of which tensors never left it in the run."""
        if not self.owner:
            return []
        _, parts = self.blueprint.modules(self.run.experiment)
        scopes, there = tensor_scopes(self.run.experiment.method, parts), dict(self.whole.model.named_children())
        kept = (part_of(name) for name, scope in scopes.items() if scope == "client")
        return [name for name in dict.fromkeys(kept) if name in there]

    def accuracies(self) -> Table:
        """What was scored in the model's round, a row for each site or environment."""
        names = list(self.record["environments"][0].get("metrics", {}))
        rows = [
            [
                row["environment"],
                row["role"],
                OF_MODEL[row["model"]] + (f" ({row['models']} models)" if row["models"] > 1 else ""),
                _percent(row["accuracy"], row.get("intervals", {}).get(ACCURACY)),
                *(_percent(row["metrics"][name], row.get("intervals", {}).get(name)) for name in names),
                str(row.get("n") or "unknown"),
                self._support(row["role"], row["environment"]),
            ]
            for row in self.record["environments"]
        ]
        moment = f"round {self.record['round']} of the stage {self.record['stage']}"
        title = f"Scores in percent with 95 % intervals, after {moment}"
        return Table(title, ["environment", "role", "model", "accuracy", *names, "n", "n of a class"], rows, words=2)

    def _support(self, role: str, environment: str) -> str:
        counts = self.blueprint.scored_classes.get(role, {}).get(environment, ())
        return ", ".join(map(str, counts)) if len(counts) <= MOST_COUNTS else f"{min(counts)} to {max(counts)}"

    def categories(self) -> Table:
        preparation = self.whole.inputs.preparation
        columns = () if preparation is None else preparation.columns
        rows = [
            [str(place), each.name, "a number" if each.categories is None else _coded(each.categories)]
            for place, each in enumerate(columns)
        ]
        rows = rows or [[str(place), name, "a number"] for place, name in enumerate(self.blueprint.columns)]
        return Table(
            "Columns, in this order; NaN where a cell is missing", ["place", "column", "values"], rows, words=2
        )

    def sent(self) -> Table:
        """What left the clients in the run, by exchange and category."""
        setup = self.blueprint.setup(self.run.experiment, "", torch.device("cpu"))
        declared = {each.name: setup.declaration(each) for stage in setup.stages for each in stage.exchanges}
        rows = []
        for exchange, ways in self.run.messages.items():
            for way in ("up", "telemetry"):
                tensors = ways.get(way, {}).get("tensors", {})
                by_category: dict[Category, list[str]] = {}
                for name in tensors:
                    category: Category = (
                        telemetry_category(name) if way == "telemetry" else declared[exchange].categories[name]
                    )
                    by_category.setdefault(category, []).append(name)
                for category, names in by_category.items():
                    heads = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
                    count = str(max(tensors[name]["messages"] for name in names))
                    rows.append([exchange, category, heads, count, bytes_text(ways[way]["bytes"])])
        return Table(
            "What clients sent, all together",
            ["exchange", "category", "parts", "messages", "bytes of these messages"],
            rows,
            words=2,
        )


def _coded(categories: tuple[str, ...]) -> str:
    return ", ".join(f"{code}: {name}" for code, name in enumerate(categories)) + "; anything else: -1"


def _percent(value: float | None, ends: Sequence[float] | None) -> str:
    if value is None:
        return "undefined"
    within = f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else ""
    return f"{100 * value:.1f}{within}"


def _versions(run: Run) -> dict[str, str]:
    """Of what trained the model and of what wrote it."""
    found = {f"{name}, in training": number for name, number in run.environment["packages"].items()}
    for name in USED:
        try:
            found[f"{name}, in export"] = version(name)
        except PackageNotFoundError:
            continue
    return found
