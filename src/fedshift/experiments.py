"""One run, fully described: every table of an experiment with every value resolved."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from fedshift.catalogue import Catalogue, From, built_in
from fedshift.clients import PARTITIONS, PROTOCOLS
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import Partition
from fedshift.clients.protocols import Protocol
from fedshift.content import digest, module_of
from fedshift.core.method import Method
from fedshift.core.model import Model
from fedshift.core.training import Evaluate, RunOptions, Train
from fedshift.datasets import DATASETS
from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.files import digest_of
from fedshift.methods import METHODS
from fedshift.models import MODELS
from fedshift.spec import Seed, Spec, check_names, setting
from fedshift.written import FolderName, shown

OF_ONE_RUN = (("seed",), ("protocol", "hold_out"), ("method", "index", "path"))  # what runs of a row may differ in


class Experiment(Spec):
    """One run: one method, one seed, one federation."""

    name: FolderName = setting("experiment", help="a label; run folders lie in a folder of this name")
    seed: Seed = setting(0, help="every random stream starts from it; a list makes a run for each")
    data_seed: Seed | None = setting(
        None,
        help="seed of the data, of who has which, and of what is held out, so that runs of several seeds share them; "
        "by default the run's seed",
    )
    plugins: tuple[str, ...] = setting((), help="Python files that register methods, models or data sets of yours")
    data: Annotated[Dataset, From(DATASETS)] = setting("rotated-mnist", help="the data set")
    partition: Annotated[Partition, From(PARTITIONS)] = setting("domains", help="how domains become clients")
    protocol: Annotated[Protocol, From(PROTOCOLS)] = setting(
        "leave-one-domain-out", help="what is held out, and who is scored on what"
    )
    model: Annotated[Model, From(MODELS)] = setting("cnn", help="the network")
    method: Annotated[Method, From(METHODS)] = setting("fedavg", help="the method")
    train: Train = setting(Train(), help="local training, common to all methods")
    evaluate: Evaluate = setting(Evaluate(), help="when models are scored")
    run: RunOptions = setting(RunOptions(), help="where and how a run executes; not part of its fingerprint")

    def __post_init__(self) -> None:
        if self.train.patience != "off":
            self.protocol.check_choosing()

    def check(self) -> None:
        """Raise an error if the method cannot be trained with these settings."""
        self.method.core.check(self.train)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Build and check a run with absolute paths; missing tables have their defaults.

        Raises:
            FedshiftError: a name, field or value is wrong; the message names the right one.
        """
        check_names(table, cls.settings(), "experiment")
        load_plugins(table.get("plugins", ()))
        return cls(**table).with_absolute_paths()

    @property
    def seed_of_data(self) -> int:
        """The seed of the data, their division and their splits."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def method_name(self) -> str:
        return METHODS.name_of(self.method)

    @property
    def held_out(self) -> str | None:
        """The domain that the protocol holds out, if any."""
        return getattr(self.protocol, "hold_out", None)

    @property
    def case(self) -> tuple[str, str]:
        """The method's name and the held-out domain (may be empty): settings are tuned per case."""
        return self.method_name, self.held_out or ""

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides the result, without the label and the run options.

        Files count by their content, not by their path (:attr:`contents`).
        """
        return _digest(self._decides(), self.contents)

    @cached_property
    def series(self) -> str:
        """The fingerprint without the seed and the held-out domain; the runs of a table row have the same series.

        A client index is built per seed, so its file does not count either.
        """
        decides = self._decides()
        for names in OF_ONE_RUN:
            _put(decides, names, "")
        there = {what: content for what, content in self.contents.items() if tuple(what.split(".")) not in OF_ONE_RUN}
        return _digest(decides, there)

    @cached_property
    def contents(self) -> dict[str, str]:
        """Digests of inputs that decide the result but are not settings, by name.

        They cover local files (by the setting that names them), plugins with what they import from their folder (by
        file name), and the source of classes from a script or notebook (by class name).
        """
        found = {".".join(names): digest(path) for names, path in self.paths() if path}
        for path in self.plugins:
            name = Path(path).name
            found[f"{name} ({list(self.plugins).index(path)})" if name in found else name] = digest(path)
        for cls in {type(spec) for _, spec in self.specs()}:
            if built_in(cls) or _file_of(cls) in self.plugins:
                continue
            found[cls.__qualname__] = digest_of(_source(cls).encode())
        return {what: content for what, content in sorted(found.items()) if content}

    @property
    def code(self) -> dict[str, str]:
        """Digests of the files whose code a run executes, by path: plugins, and files that settings name."""
        specs = [spec for _, spec in self.specs()]
        named = [getattr(spec, name) for spec in specs for name, about in spec.settings().items() if about.code]
        return {path: digest(path) for path in (*self.plugins, *named)}

    def _decides(self) -> dict[str, Any]:
        decides = {key: value for key, value in self.table().items() if key not in ("name", "run", "plugins")}
        for names, path in self.paths():
            if digest(path):
                _put(decides, names, "local")
        return decides

    @property
    def inputs(self) -> Inputs:
        """How samples become the trained network's inputs; outputs of frozen stages are read unchanged."""
        return Inputs() if self.model.freezes else self.data.inputs()

    @property
    def run_name(self) -> str:
        words = [self.method_name, *([self.held_out] if self.held_out is not None else []), f"seed{self.seed}"]
        return "-".join([*map(_file_name, words), self.fingerprint[:8]])


NAMED: dict[str, Catalogue[Any]] = {
    name: nested.catalogue for name, nested in Experiment.nested().items() if isinstance(nested, From)
}
DEFAULT_NAMES: dict[str, str] = {name: str(Experiment.settings()[name].default) for name in NAMED}
PLAIN: dict[str, type[Spec]] = {name: nested.cls for name, nested in Experiment.nested().items() if name not in NAMED}


def _digest(*what: Any) -> str:
    return digest_of(json.dumps(what, sort_keys=True).encode())


def _file_name(name: str) -> str:
    plain = "".join(
        "_" if character in '/\\:*?"<>|' or not character.isprintable() else character for character in name
    )
    return plain.encode()[:80].decode(errors="ignore").lstrip(".")


def _put(table: dict[str, Any], names: Sequence[str], value: Any) -> None:
    for name in names[:-1]:
        table = table.get(name, {})
    if names[-1] in table:
        table[names[-1]] = value


def _file_of(cls: type) -> str | None:
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return cls.__qualname__


def load_plugins(paths: Sequence[str]) -> None:
    """Import the user's files, so that their entries are registered; again only if one or what it imports changed."""
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise FedshiftError(f'plugins = {shown(paths)}: give a list of paths, such as ["my_method.py"].')
    for path in paths:
        module_of(path)
