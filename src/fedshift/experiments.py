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
        "by default the run's own",
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
    run: RunOptions = setting(RunOptions(), help="where and how a run is carried out; no part of its fingerprint")

    def __post_init__(self) -> None:
        if self.train.patience != "off":
            self.protocol.check_choosing()

    def check(self) -> None:
        """Raise an error if the method cannot work with this training, so that the run cannot be carried out."""
        self.method.core.check(self.train)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Build and check one run, with absolute paths; tables that are not given have their defaults.

        Raises:
            FedshiftError: a name, field or value is wrong; the message says which and what is right.
        """
        check_names(table, cls.settings(), "experiment")
        load_plugins(table.get("plugins", ()))
        return cls(**table).with_absolute_paths()

    @property
    def seed_of_data(self) -> int:
        """From which data, their division and their splits are drawn."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def method_name(self) -> str:
        """The method's name in the catalogue."""
        return METHODS.name_of(self.method)

    @property
    def held_out(self) -> str | None:
        """The domain that the protocol holds out; None where it holds out none."""
        return getattr(self.protocol, "hold_out", None)

    @property
    def case(self) -> tuple[str, str]:
        """The method's name and the held-out domain (empty where none is), for which settings are tuned."""
        return self.method_name, self.held_out or ""

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that decides the result: not the label, nor where and how it is run.

        Files count by what they hold, not by where they lie (:attr:`contents`).
        """
        return _digest(self._decides(), self.contents)

    @cached_property
    def series(self) -> str:
        """As the fingerprint, but equal for runs that differ only in their seed and held-out domain.

        These are a row of a table. An index of clients is made for a seed, so its file does not count either.
        """
        decides = self._decides()
        for names in OF_ONE_RUN:
            _put(decides, names, "")
        there = {what: content for what, content in self.contents.items() if tuple(what.split(".")) not in OF_ONE_RUN}
        return _digest(decides, there)

    @cached_property
    def contents(self) -> dict[str, str]:
        """Digests of what decides the result and is no setting, by what it is called.

        That is what local files hold, by the setting that names them; plugins with what they import from
        their folder, by the file's name; and the source of classes from elsewhere (a script, a notebook), by the
        class's name.
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
        """Digests of the files whose code a run carries out, by path: plugins, and those that settings name."""
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
        """How samples become inputs of what is trained; what frozen stages make of them is read as it is."""
        return Inputs() if self.model.freezes else self.data.inputs()

    @property
    def run_name(self) -> str:
        """The name of the run's folder."""
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
    """Import the user's files, so that what they register is known; again only when one or what it imports changed.

    Raises:
        FedshiftError: a file is missing or fails when imported.
    """
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise FedshiftError(f'plugins = {shown(paths)}: give a list of paths, such as ["my_method.py"].')
    for path in paths:
        module_of(path)
