"""One run, fully described: every table of an experiment with every value resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import util
from pathlib import Path
from typing import Any, Literal, Self, cast

from fedshift.catalogue import (
    DATASETS,
    METHODS,
    MODELS,
    PROTOCOLS,
    Catalogue,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Spec,
    setting,
)
from fedshift.core.contract import Method
from fedshift.data.dataset import Dataset
from fedshift.errors import FedshiftError, UnknownNameError
from fedshift.models.model import Model
from fedshift.protocols import Protocol


@dataclass(frozen=True, kw_only=True)
class Train(Spec):
    """Local training, common to all methods."""

    rounds: Count = setting(300, help="communication rounds T")
    steps: Count = setting(5, help="local steps E a round (or epochs, see unit)")
    unit: Literal["steps", "epochs"] = setting("steps", help="what 'steps' counts")
    batch: Count = setting(64, help="samples in a batch; an epoch's incomplete last batch is left out")
    optimiser: Literal["sgd", "adam"] = setting("sgd", help="the local optimiser")
    lr: Positive = setting(0.01, help="learning rate")
    momentum: NonNegative = setting(0.9, help="momentum of sgd (unused by adam)")
    weight_decay: NonNegative = setting(0.0, help="weight decay")
    participation: Fraction = setting(1.0, help="part of the clients sampled in a round, at least one")


@dataclass(frozen=True, kw_only=True)
class Evaluate(Spec):
    """When models are scored."""

    every: Count = setting(10, help="rounds between evaluations; the last round is always scored")
    batch: Count = setting(512, help="samples predicted at a time")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Spec):
    """Where and how a run is carried out; none of it is part of what the experiment is."""

    device: str = setting("auto", help="'auto' (an accelerator if there is one), 'cpu', 'cuda', 'cuda:1', 'mps'")
    out: str = setting("runs", help="the folder that holds run folders")
    checkpoint_every: Count = setting(10, help="rounds between checkpoints")


@dataclass(frozen=True, kw_only=True)
class Experiment(Spec):
    """One run: one method, one seed, one federation."""

    name: str = setting("experiment", help="a label; run folders lie in a folder of this name")
    seed: int = setting(0, help="every random stream starts from it; a list makes a run for each")
    plugins: tuple[str, ...] = setting((), help="Python files that register methods, models or data sets of yours")
    data: Dataset
    protocol: Protocol
    model: Model
    method: Method
    train: Train
    evaluate: Evaluate
    run: RunOptions

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Build and check every table of one run.

        Raises:
            FedshiftError: a name, field or value is wrong; the message says which and what is right.
        """
        cls.check_names(table, "experiment")
        load_plugins(table.get("plugins", ()))
        values: dict[str, Any] = {name: table[name] for name in ("name", "seed", "plugins") if name in table}
        values |= {name: catalogue.build(table[name]) for name, catalogue in NAMED.items()}
        values |= {name: _plain(name, table.get(name, {})) for name in PLAIN}
        return cls(**values)

    def table(self) -> dict[str, Any]:
        """Everything, as a table that :meth:`from_table` reads back."""
        named = {
            name: {"name": catalogue.name_of(type(getattr(self, name))), **getattr(self, name).table()}
            for name, catalogue in NAMED.items()
        }
        plain = {name: getattr(self, name).table() for name in PLAIN}
        return {"name": self.name, "seed": self.seed, "plugins": list(self.plugins), **named, **plain}

    @property
    def method_name(self) -> str:
        """The method's name in the catalogue."""
        return METHODS.name_of(type(self.method))

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides the result: not the label, nor where and how it is run."""
        decides = {key: value for key, value in self.table().items() if key not in ("name", "run", "plugins")}
        digest = blake2b(json.dumps(decides, sort_keys=True).encode(), digest_size=16)
        for path in self.plugins:
            digest.update(Path(path).read_bytes())
        return digest.hexdigest()

    @property
    def run_name(self) -> str:
        """The name of the run's folder."""
        held_out = getattr(self.protocol, "hold_out", None)
        words = [self.method_name, *([held_out] if held_out is not None else []), f"seed{self.seed}"]
        return "-".join([*(word.replace("/", "_") for word in words), self.fingerprint[:8]])


NAMED: dict[str, Catalogue[Any]] = {
    "data": DATASETS,
    "protocol": PROTOCOLS,
    "model": MODELS,
    "method": METHODS,
}
PLAIN: dict[str, type[Spec]] = {"train": Train, "evaluate": Evaluate, "run": RunOptions}


def _plain(name: str, values: Mapping[str, Any]) -> Spec:
    PLAIN[name].check_names(values, name)
    return PLAIN[name](**values)


def section(table: str, name: str | None) -> type[Spec]:
    """The class whose settings a table of the experiment holds.

    Raises:
        UnknownNameError: there is no such table, or the catalogue has no such name.
    """
    if table in PLAIN:
        return PLAIN[table]
    if table not in NAMED:
        raise UnknownNameError("table", table, [*NAMED, *PLAIN])
    return cast(type[Spec], NAMED[table].get(str(name)))


def load_plugins(paths: tuple[str, ...] | list[str]) -> None:
    """Import the user's files once each, so that what they register is known.

    Raises:
        FedshiftError: a file is missing or fails when imported.
    """
    for path in paths:
        _load_plugin(str(Path(path).expanduser().resolve()))


@cache
def _load_plugin(path: str) -> None:
    import sys

    if not Path(path).is_file():
        raise FedshiftError(f"The plugin '{path}' does not exist; give the path of a Python file.")
    name = f"fedshift_plugin_{Path(path).stem}_{blake2b(path.encode(), digest_size=4).hexdigest()}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FedshiftError(f"The plugin '{path}' is no Python file.")
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except FedshiftError:
        raise
    except Exception as error:
        raise FedshiftError(f"The plugin '{path}' fails when imported: {type(error).__name__}: {error}") from error
