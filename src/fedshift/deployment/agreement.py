"""What the members of a federation agree on before a run: two files that are the same everywhere, and each site's own.

``federation.toml`` says who takes part and what a sample is, ``experiment.toml`` what is carried out. Both lie in the
coordinator's folder and in every site's. ``site.toml`` is the site's alone: where its data are, and what it refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from annotated_types import Ge, Le

from fedshift.clients.inputs import Inputs
from fedshift.clients.names import check_names as check_spelling
from fedshift.clients.partitions import Domains
from fedshift.clients.preparation import Column
from fedshift.clients.protocols import InDomain, PersonalUnderShift
from fedshift.core.contract import Category
from fedshift.core.method import make_parts
from fedshift.core.model import ModelBuilder
from fedshift.core.preparation import preparation_part
from fedshift.core.setup import Setup
from fedshift.datasets.column_files import InputColumns
from fedshift.datasets.dataset import Dataset
from fedshift.deployment.shell import check_address
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.files import digest_of
from fedshift.spec import FolderName, NonNegative, Processors, Spec, as_toml, check_names, setting
from fedshift.streams import Streams
from fedshift.written import read_toml

FEDERATION, EXPERIMENT, SITE = "federation.toml", "experiment.toml", "site.toml"
NOT_AGREED = ("run", "plugins")  # where and how each member carries the experiment out
_AGREED = ("name", "sites", "shape", "classes", "columns", "environments")  # of federation.toml
Seconds = Annotated[float, Ge(1), Le(10**7)]
Megabytes = Annotated[int, Ge(1), Le(2000)]


class FederationSettings(Spec):
    """federation.toml: who takes part, what a sample is, and how long is waited for whom."""

    name: FolderName = setting(help="what the federation is called")
    sites: tuple[FolderName, ...] = setting(help="the institutions' names; their order numbers the clients")
    shape: tuple[int, ...] = setting(help="the shape of a sample, such as [1, 28, 28]")
    classes: tuple[str, ...] = setting(help="the classes' names; a site may lack some")
    columns: tuple[tuple[str, ...], ...] = setting(
        (), help="of a table that is prepared, each column's name, and after it the categories of one that is no number"
    )
    address: str = setting(help="host and port at which sites reach the coordinator's SuperLink")
    deadline: Seconds = setting(600.0, help="seconds that sites have for an exchange; a later answer is not merged")
    wait: Seconds = setting(600.0, help="seconds that the coordinator waits for sites to connect before a run")
    largest: Megabytes = setting(1000, help="megabytes of a message at most")
    environments: tuple[str, ...] = setting(
        (), help="the environments that every site scores, where the data bring their own; none: each site's is its own"
    )
    norm_factor: NonNegative = setting(
        20.0, help="how many times the median norm of its cohort an update may have to be merged; 0: any"
    )

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: one is wrong.
        """
        super().__post_init__()
        check_spelling("site", dict.fromkeys(self.sites, "in federation.toml"))
        check_spelling("class", dict.fromkeys(self.classes, "in federation.toml"))
        check_spelling("environment", dict.fromkeys(self.environments, "in federation.toml"))
        if len(set(self.sites)) < len(self.sites) or not self.sites:
            raise FedshiftError(f"sites = {list(self.sites)}: give at least one site, each once.")
        if 0 < self.norm_factor <= 1:
            raise FedshiftError(
                f"norm_factor = {self.norm_factor:g} in federation.toml would leave out every update above the median: "
                "give a factor above 1, such as 20, or 0 for no comparison."
            )
        if len(self.classes) < 2 or not self.shape or min(self.shape) < 1:
            raise FedshiftError("federation.toml needs two classes at least, and a shape of numbers from 1.")
        if self.columns and (not all(self.columns) or self.shape != (len(self.columns),)):
            raise FedshiftError(
                f"federation.toml: shape = {list(self.shape)}, but columns names {len(self.columns)} of them; name "
                "each column of a sample."
            )
        check_address(self.address, "address")

    @property
    def names_of_columns(self) -> tuple[str, ...]:
        """The columns' names, where they are said."""
        return tuple(name for name, *_ in self.columns)


class SiteSettings(Spec):
    """site.toml: what a site says of itself; its [data] stand over those of the experiment."""

    name: FolderName = setting(help="which of the federation's sites it is")
    domains: tuple[str, ...] = setting((), help="the domains of the data set that are this site's; none: all")
    refuse: tuple[Category, ...] = setting((), help="categories of tensors that never leave this site")
    threads: Processors = setting(0, help="threads of local training; 0: one for each core")
    device: str = setting("auto", help="'auto' (an accelerator if there is one), 'cpu', 'cuda', 'cuda:1', 'mps'")
    min_scored: Annotated[int, Ge(1)] = setting(10, help="no score of fewer samples leaves this site")
    max_models: Annotated[int, Ge(0)] = setting(
        0, help="the most models that this site scores in a run; 0: as many as the run declares in what-leaves.md"
    )


@dataclass(frozen=True)
class Agreement:
    """A federation and its experiment, as a member's folder says them.

    Attributes:
        folder: the member's.
        federation: who takes part.
        table: the experiment as it is written, with paths relative to the folder.
    """

    folder: Path
    federation: FederationSettings
    table: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a member's folder.

        Raises:
            FedshiftError: a file is missing or wrong.
        """
        path = folder / FEDERATION
        federation = FederationSettings(**_settings(path, _toml(path), FederationSettings))
        return cls(folder, federation, _toml(folder / EXPERIMENT))

    def __post_init__(self) -> None:
        """Check that institutions can carry the experiment out.

        Raises:
            FedshiftError: they cannot; the message says why.
        """
        experiment = self.experiment
        name = experiment.method_name
        if type(experiment.partition) is not Domains:
            raise FedshiftError("Each site is a client of its own here: --set partition.name=domains")
        if experiment.train.absent or experiment.train.late:
            raise FedshiftError("train.absent and train.late are for simulations; here sites are late by themselves.")
        if getattr(experiment.protocol, "scored", "unseen") != "unseen":
            raise FedshiftError("protocol.scored = 'clients' needs the target's samples at every site: use 'unseen'.")
        if name == "centralised":
            raise FedshiftError("The method 'centralised' pools all sites' data, which stay where they are here.")
        if self.inputs.preparation is not None and not self.federation.columns:
            raise FedshiftError(
                f"data.statistics = '{self.inputs.preparation.statistics}', but federation.toml does not say what "
                'the columns are. Write the same at every member: columns = [["age"], ["sex", "f", "m"]], say, for a '
                "column of numbers and one of two categories."
            )
        data = experiment.data
        if isinstance(data, InputColumns) and not data.columns and self.inputs.preparation is None:
            raise FedshiftError(
                f"data.columns names no {data.kind}, so each site's would be those of its own files, in their order: "
                'name them in every experiment.toml, as [data] columns = ["age", "marker"] (at `fedshift federation '
                "init`, --set data.columns=age,marker)."
            )
        if isinstance(experiment.protocol, PersonalUnderShift) and not self.federation.environments:
            raise FedshiftError(
                "protocol.name = 'personal-under-shift' scores environments that the data name, and federation.toml "
                'names none. Write the same at every member: environments = ["p=0.1", "p=0.9"], say (at `fedshift '
                "federation init`, --environments p=0.1,p=0.9)."
            )
        sites = self.federation.sites
        if self.target is not None and self.target not in sites:
            raise FedshiftError(
                f"protocol.hold_out = '{self.target}' is none of the sites {', '.join(sites)}. Here a site is held "
                f"out: it never trains and is only scored. Name it (--hold-out {sites[-1]}), or let every site train "
                "and be scored on its own data (--set protocol.name=in-domain)."
            )
        if sites == (self.target,):
            raise FedshiftError(f"The only site, '{self.target}', is held out, so that none would train; give more.")

    def at(self, folder: Path) -> Self:
        """The same agreement in another member's folder on this machine, with the plugins that are loaded already.

        Raises:
            FedshiftError: the files there say something else.
        """
        for file, mine in ((FEDERATION, self.federation.table()), (EXPERIMENT, self.table)):
            theirs = _toml(folder / file)
            names = sorted(name for name in theirs if name not in NOT_AGREED and theirs[name] != mine.get(name))
            if names:
                raise FedshiftError(f"'{folder / file}' differs from the coordinator's in {', '.join(names)}.")
        return replace(self, folder=folder, table={**self.table, "plugins": list(self.experiment.plugins)})

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment without the files of the data, of which every site has others.

        Raises:
            FedshiftError: something in it is wrong.
        """
        named = Experiment.from_table(self._table(self.table.get("data", {}))).data
        of_site = [name for name, words in own_files(named).items() if getattr(named, name) not in words]
        return self.with_data(dict.fromkeys(of_site, ""))

    @cached_property
    def inputs(self) -> Inputs:
        """How samples become inputs, at every member alike."""
        columns = (Column(name, tuple(categories) or None) for name, *categories in self.federation.columns)
        return self.experiment.inputs.of_columns(tuple(columns))

    def with_data(self, data: Mapping[str, Any]) -> Experiment:
        """The experiment with other settings of [data], all of them where ``data`` names a data set.

        Files are looked for in the member's folder first.
        """
        table = self._table(data if "name" in data else {**self.table.get("data", {}), **data})
        for names, path in Experiment.from_table(table).paths():
            if path and (self.folder / path).exists():
                put_setting(table, names, str((self.folder / path).resolve()))
        return Experiment.from_table(table)

    def _table(self, data: Mapping[str, Any]) -> dict[str, Any]:
        plugins = [str((self.folder / path).resolve()) for path in self.table.get("plugins", ())]
        return {**self.table, "data": dict(data), "plugins": plugins}

    @property
    def target(self) -> str | None:
        """The site that never trains, and is only scored; None where there is none."""
        return getattr(self.experiment.protocol, "hold_out", None)

    @cached_property
    def clients(self) -> dict[int, str]:
        """The sites that train, by the number of their client."""
        return dict(enumerate(site for site in self.federation.sites if site != self.target))

    def client(self, site: str) -> int | None:
        """The number of a site's client; None of the target."""
        return next((number for number, name in self.clients.items() if name == site), None)

    def environments(self, site: str) -> tuple[str, ...]:
        """The names of the environments that a site may send scores of."""
        protocol = self.experiment.protocol
        if isinstance(protocol, PersonalUnderShift):
            return (*self.federation.environments, protocol.validation)
        return (protocol.environment(site) if isinstance(protocol, InDomain) else site, *self.federation.environments)

    @cached_property
    def run(self) -> str:
        """What messages call the run."""
        return self.experiment.run_name

    def setup(self, device: torch.device) -> Setup:
        """What coordinator and sites need to work together.

        Raises:
            FedshiftError: the model cannot be made, or the method cannot work with this training.
        """
        experiment, streams = self.experiment, Streams(self.experiment.seed)
        experiment.check()
        classes, clients = len(self.federation.classes), len(self.clients)
        shape, preparation = self.inputs.shape(self.federation.shape), self.inputs.preparation
        model = ModelBuilder(experiment.model, shape, classes, streams, clients, environments=clients)
        parts = make_parts(experiment.method, model) | preparation_part(preparation)
        train, evaluate = experiment.train, experiment.evaluate
        names = tuple(self.federation.classes)
        return Setup(self.run, experiment.method, model, parts, train, evaluate, streams, device, names, preparation)

    # What must be equal everywhere ---------------------------------------------------------------

    @cached_property
    def agreed(self) -> dict[str, Any]:
        """All that must be equal at every member, by dotted name; files count by what they hold."""
        experiment = {key: value for key, value in self.experiment.table().items() if key not in NOT_AGREED}
        for names, path in self.experiment.paths():
            if ".".join(names) in self.experiment.contents:
                put_setting(experiment, names, Path(path).name)
        federation = {name: getattr(self.federation, name) for name in _AGREED}
        return _flat({"experiment": experiment, "files": self.experiment.contents, "federation": federation})

    @cached_property
    def digest(self) -> str:
        """A digest of it."""
        return digest_of(json.dumps(self.agreed, sort_keys=True).encode())

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """The dotted names of what another member has otherwise."""
        mine = self.agreed
        return sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))


def own_files(data: Dataset) -> dict[str, tuple[str, ...]]:
    """The settings that name files of a site's own, and the words that may stand in their place.

    These hold samples; what samples are read with (a frozen network, a tokenizer) every member has.
    """
    return {name: each.words for name, each in data.settings().items() if name not in data.readers and each.path}


def read_site(folder: Path) -> tuple[SiteSettings, dict[str, Any]]:
    """What a site says of itself, and its own settings of [data].

    Raises:
        FedshiftError: site.toml is missing or wrong.
    """
    table = _toml(folder / SITE)
    data = table.pop("data", {})
    if not isinstance(data, dict):
        raise FedshiftError(f"'{folder / SITE}': data = {data!r} is a value where a table belongs; write [data]")
    return SiteSettings(**_settings(folder / SITE, table, SiteSettings)), data


def _settings(path: Path, table: dict[str, Any], cls: type[Spec]) -> dict[str, Any]:
    """The settings in a file.

    Raises:
        FedshiftError: it lacks one, or has another.
    """
    check_names(table, cls.settings(), path.name)
    missing = [name for name, about in cls.settings().items() if about.required and name not in table]
    if missing:
        raise FedshiftError(f"'{path}' lacks {', '.join(missing)}.")
    return table


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FedshiftError(
            f"'{path}' does not exist: give the folder of a member, as `fedshift federation init` makes them."
        )
    return read_toml(path)


def put_setting(table: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Replace a setting of a nested table, which is copied on the way."""
    *outer, last = names
    for name in outer:
        table[name] = dict(table.get(name, {}))
        table = table[name]
    table[last] = value


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A nested table by dotted names, with lists for tuples."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": as_toml(value)}
        flat |= inner
    return flat
