"""The agreement between the members of a federation: two shared files, and a file of each site.

``federation.toml`` lists the members and describes a sample, ``experiment.toml`` is the experiment; both are the same
in every member's folder. ``site.toml`` belongs to one site: where its data are, and what it refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge

from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import Domains
from fedshift.clients.preparation import Column
from fedshift.clients.protocols import ALL_CLIENTS, AllClients, PersonalUnderShift
from fedshift.core.contract import Category
from fedshift.core.method import Method
from fedshift.core.preparation_part import PREPARATION
from fedshift.core.setup import Setup
from fedshift.datasets.column_files import InputColumns
from fedshift.datasets.dataset import Dataset
from fedshift.deployment.federation_toml import FEDERATION, FederationSettings, read_federation, read_member_file
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.files import digest_of
from fedshift.reporting.results import flat
from fedshift.rounds.evaluation import parts_predicted
from fedshift.runs.schema import Blueprint
from fedshift.spec import Processors, Spec, setting
from fedshift.written import FolderName, as_toml

EXPERIMENT, SITE = "experiment.toml", "site.toml"
NOT_AGREED = ("run", "plugins")  # where and how each member carries the experiment out
_AGREED = ("name", "sites", "shape", "classes", "columns", "environments")  # of federation.toml


class SiteSettings(Spec):
    """site.toml: a site's settings; its [data] override the experiment's."""

    section: ClassVar[str] = SITE

    name: FolderName = setting(help="which of the federation's sites it is")
    domains: tuple[str, ...] = setting((), help="the domains of the data set that are this site's; none: all")
    refuse: tuple[Category, ...] = setting((), help="categories of tensors that never leave this site")
    threads: Processors = setting(0, help="threads of local training; 0: all cores")
    device: str = setting("auto", help="'auto' (an accelerator if there is one), 'cpu', 'cuda', 'cuda:1', 'mps'")
    min_scored: Annotated[int, Ge(1)] = setting(10, help="no score of fewer samples leaves this site")
    max_models: Annotated[int, Ge(0)] = setting(
        0, help="the most models that this site scores in a run; 0: as many as the run declares in what-leaves.md"
    )


@dataclass(frozen=True)
class Agreement:
    """A federation and its experiment, as read from a member's folder."""

    folder: Path  # the member's folder
    federation: FederationSettings  # federation.toml
    table: Mapping[str, Any]  # experiment.toml, with paths relative to the folder

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a member's folder."""
        return cls(folder, read_federation(folder), read_member_file(folder / EXPERIMENT))

    def __post_init__(self) -> None:
        """Refuse experiments that institutions cannot run."""
        experiment = self.experiment
        name = experiment.method_name
        if type(experiment.partition) is not Domains:
            raise FedshiftError("In a federation each site is one client: --set partition.name=domains")
        if experiment.train.absent or experiment.train.late:
            raise FedshiftError("train.absent and train.late are for simulations; here sites are late by themselves.")
        if getattr(experiment.protocol, "scored", "unseen") != "unseen":
            raise FedshiftError("protocol.scored = 'clients' needs the target's samples at every site: use 'unseen'.")
        if type(experiment.method).regroup is not Method.regroup:
            raise FedshiftError(f"The method '{name}' pools all sites' data, which stay where they are here.")
        if self.inputs.preparation is not None and not self.federation.columns:
            raise FedshiftError(
                f"data.statistics = '{self.inputs.preparation.statistics}', but federation.toml does not describe "
                'the columns. Write the same at every member: columns = [["age"], ["sex", "f", "m"]], for a '
                "column of numbers and a column of two categories."
            )
        data = experiment.data
        if isinstance(data, InputColumns) and not data.columns and self.inputs.preparation is None:
            raise FedshiftError(
                f"data.columns names no {data.kind}, so each site would use the columns of its files, in their order: "
                'name them in every experiment.toml, as [data] columns = ["age", "marker"] (at `fedshift federation '
                "init`, --set data.columns=age,marker)."
            )
        if isinstance(experiment.protocol, PersonalUnderShift) and not self.federation.environments:
            raise FedshiftError(
                "protocol.name = 'personal-under-shift' scores environments that the data name, and federation.toml "
                'names none. Write the same at every member: environments = ["p=0.1", "p=0.9"] (at `fedshift '
                "federation init`, --environments p=0.1,p=0.9)."
            )
        sites = self.federation.sites
        if self.target is not None and self.target not in sites:
            raise FedshiftError(
                f"protocol.hold_out = '{self.target}' is not among the sites {', '.join(sites)}. Here a "
                f"site is held out: it never trains and is only scored. Name it (--hold-out {sites[-1]}), or let "
                "every site train and be scored on its local data (--set protocol.name=in-domain)."
            )
        if getattr(experiment.protocol, "validate_on", ""):
            raise FedshiftError(
                "protocol.validate_on holds out a second site, which simulations alone can: --set protocol.validate_on="
            )
        if sites == (self.target,):
            raise FedshiftError(f"The only site, '{self.target}', is held out, so that none would train; give more.")

    def at(self, folder: Path) -> Self:
        """The same agreement in another member's folder on this machine; plugins stay loaded."""
        for file, mine in ((FEDERATION, self.federation.table()), (EXPERIMENT, self.table)):
            theirs = read_member_file(folder / file)
            names = sorted(name for name in theirs if name not in NOT_AGREED and theirs[name] != mine.get(name))
            if names:
                raise FedshiftError(f"'{folder / file}' differs from the coordinator's in {', '.join(names)}.")
        return replace(self, folder=folder, table={**self.table, "plugins": list(self.experiment.plugins)})

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment without the paths of data files, which differ between sites."""
        named = Experiment.from_table(self._table(self.table.get("data", {}))).data
        of_site = [name for name, words in own_files(named).items() if getattr(named, name) not in words]
        return self.with_data(dict.fromkeys(of_site, ""))

    @cached_property
    def inputs(self) -> Inputs:
        """How samples become inputs, equal at every member."""
        columns = (Column(name, tuple(categories) or None) for name, *categories in self.federation.columns)
        return self.experiment.inputs.of_columns(tuple(columns))

    def with_data(self, data: Mapping[str, Any]) -> Experiment:
        """The experiment with other [data] settings; paths are resolved in the member's folder first.

        If ``data`` names a data set, its table replaces the experiment's.
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
        """The site that is scored but never trains, if any."""
        return getattr(self.experiment.protocol, "hold_out", None)

    @cached_property
    def clients(self) -> dict[int, str]:
        return dict(enumerate(site for site in self.federation.sites if site != self.target))

    def client(self, site: str) -> int | None:
        """The number of a site's client; None for the target."""
        return next((number for number, name in self.clients.items() if name == site), None)

    def environments(self, site: str) -> tuple[str, ...]:
        protocol = self.experiment.protocol
        if isinstance(protocol, PersonalUnderShift):
            return (*self.federation.environments, protocol.validation)
        return (ALL_CLIENTS if isinstance(protocol, AllClients) else site, *self.federation.environments)

    @cached_property
    def run(self) -> str:
        """The run's name in messages."""
        return self.experiment.run_name

    def setup(self, device: torch.device) -> Setup:
        """The setup that coordinator and sites share."""
        self.experiment.check()
        return self.blueprint.setup(self.experiment, self.run, device)

    @cached_property
    def blueprint(self) -> Blueprint:
        """The description from which models are rebuilt without data."""
        federation, sites = self.federation, tuple(self.clients.values())
        columns = tuple(name for name, *_ in federation.columns)
        return Blueprint(
            shape=federation.shape,
            classes=federation.classes,
            clients=self.clients,
            inputs=self.inputs,
            environments=sites,
            columns=columns,
            domains=self.clients,
            norm_factor=federation.norm_factor,
        )

    def parts_of_model(self, setup: Setup) -> frozenset[str]:
        """The parts that a prediction reads."""
        sample = self.inputs.like(self.federation.shape).to(setup.device)
        read = parts_predicted(setup.method, setup.model, setup.parts, self.inputs, sample)
        own = sorted(part for part in read if any(name.startswith(f"{part}.") for name in setup.initial("client")))
        preparation = self.inputs.preparation
        if preparation is not None and preparation.statistics == "combat":
            own = [
                part for part in own if part != PREPARATION
            ]  # which a site that never trains makes of what all share
        if own and self.target is not None:
            shared = "data.statistics = 'pooled'" if own == [PREPARATION] else "a method whose model is shared"
            raise FedshiftError(
                f"'{self.experiment.method_name}' predicts with parts that clients keep ({', '.join(own)}), so the "
                f"site '{self.target}', which never trains, has no model here; only a simulation can make one. Use "
                f"protocol.name = 'in-domain', or {shared}."
            )
        return read

    # What must be equal everywhere ---------------------------------------------------------------

    @cached_property
    def agreed(self) -> dict[str, Any]:
        """Everything that must be equal at every member, by dotted name; files count by content."""
        experiment = {key: value for key, value in self.experiment.table().items() if key not in NOT_AGREED}
        for names, path in self.experiment.paths():
            if ".".join(names) in self.experiment.contents:
                put_setting(experiment, names, Path(path).name)
        federation = {name: getattr(self.federation, name) for name in _AGREED}
        every = flat({"experiment": experiment, "files": self.experiment.contents, "federation": federation})
        return {name: as_toml(value) for name, value in every.items()}

    @cached_property
    def digest(self) -> str:
        return digest_of(json.dumps(self.agreed, sort_keys=True).encode())

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """The dotted names of settings in which another member differs."""
        mine = self.agreed
        return sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))


def own_files(data: Dataset) -> dict[str, tuple[str, ...]]:
    """The settings that name files of samples, which differ between sites, and words that may replace a file.

    Files with which samples are read (a frozen network, a tokenizer) are the same at every member.
    """
    return {name: each.words for name, each in data.settings().items() if name not in data.readers and each.path}


def read_site(folder: Path) -> tuple[SiteSettings, dict[str, Any]]:
    """A site's settings, and its settings of [data]."""
    table = read_member_file(folder / SITE)
    data = table.pop("data", {})
    if not isinstance(data, dict):
        raise FedshiftError(f"'{folder / SITE}': data = {data!r} is a value where a table belongs; write [data]")
    return SiteSettings(**table), data


def put_setting(table: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Replace a setting of a nested table; changed tables are copies."""
    *outer, last = names
    for name in outer:
        table[name] = dict(table.get(name, {}))
        table = table[name]
    table[last] = value
