"""A site's data as its part of the federation, and its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from fedshift.clients.data_checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import recoded
from fedshift.clients.protocols import PersonalUnderShift
from fedshift.core.frozen import Embedding, Front, embedded, silent
from fedshift.core.messages import unpack
from fedshift.core.setup import Setup
from fedshift.datasets.column_files import InputColumns
from fedshift.datasets.dataset import ImageDataset, feature_columns
from fedshift.deployment.agreement import Agreement, SiteSettings, read_site
from fedshift.engines.choice import Choice, requested_engine
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.runs.simulation import choose_device, load_data
from fedshift.runs.trained import Trained, rebuilt
from fedshift.streams import Streams

STATE, MODEL = "state", "model.safetensors"


class SiteFolder:
    """A site's folder: the agreement, the site's settings, its samples and its model."""

    def __init__(self, path: Path, agreement: Agreement | None = None) -> None:
        self.path = path
        self._loaded: tuple[dict[str, str], FederatedData] | None = None
        if agreement is not None:
            self.agreement = agreement

    @cached_property
    def agreement(self) -> Agreement:
        return Agreement.read(self.path)

    @cached_property
    def _own(self) -> tuple[SiteSettings, dict[str, Any]]:
        return read_site(self.path)

    @property
    def settings(self) -> SiteSettings:
        return self._own[0]

    @property
    def client(self) -> int | None:
        """The number of the site's client; None for the target."""
        return self.agreement.client(self.settings.name)

    @cached_property
    def setup(self) -> Setup:
        return self.agreement.setup(choose_device(self.settings.device))

    @cached_property
    def engine(self) -> Choice:
        options = self.agreement.experiment.run.replace(engine="sequential", threads=self.settings.threads)
        return requested_engine(self.setup, options)

    @property
    def experiment(self) -> Experiment:
        """The experiment with the site's [data]."""
        return self.agreement.with_data(self._own[1])

    def loaded(self) -> FederatedData:
        """The site's samples on its device, read again only if their files have changed."""
        now = self.experiment.contents
        if self._loaded is None or self._loaded[0] != now:
            self._loaded = now, self.federated(self.samples()).to(self.setup.device)
        return self._loaded[1]

    def samples(self, notify: Embedding = silent) -> DomainData:
        """The site's samples as one environment, with the site's name as domain and the federation's classes.

        Args:
            notify: receives the progress of embedding images.
        """
        settings, sites = self.settings, self.agreement.federation.sites
        if settings.name not in sites:
            raise UnknownNameError("site (name in site.toml)", settings.name, sites)
        experiment = self.experiment
        _check_inputs(self.agreement, experiment)
        dataset, streams = experiment.data, Streams(experiment.seed_of_data)
        with streams.as_global("global draws in data"):
            loaded = dataset.load(streams)
        check_data(loaded, dataset.inputs(), one_class=True)
        with streams.as_global("global draws in federation"):
            mine = dataset.embedded(_of_domains(loaded, settings.domains), notify)
            mine = embedded(mine, experiment.model.frozen_network(), notify=notify)
        problems = Problems("things about the samples are not as agreed")
        with problems.gathered():
            _check_shape(tuple(mine.x.shape[1:]), self.agreement.federation.shape)
        with problems.gathered():
            mine = _relabelled(mine, self.agreement.federation.classes)
        with problems.gathered():
            mine = _of_columns(mine, self.agreement.inputs, listed="columns" in self._own[1])
        problems.check()
        domain = torch.full_like(mine.y, sites.index(settings.name))
        return replace(mine, domain=domain, domains=sites, train_environment=None, train_environments=())

    def federated(self, data: DomainData) -> FederatedData:
        """The site's client, if it trains, with its number in the federation, and the environments that it scores.

        The experiment's protocol splits the samples, with random numbers that every site draws locally.
        """
        experiment, number = self.agreement.experiment, self.client
        streams = Streams(experiment.seed_of_data)
        with streams.as_global("global draws in federation"):
            alone = experiment.protocol.federate(data, experiment.partition, self.agreement.inputs, streams)
            alone = replace(
                alone,
                clients=tuple(replace(client, id=number) for client in alone.clients) if number is not None else (),
                environments=tuple(
                    environment if environment.client is None else replace(environment, client=number)
                    for environment in alone.environments
                    if len(environment.samples)
                ),
            )
            return experiment.method.regroup(replace(alone.checked(), notes=(*data.notes, *alone.notes)))


def _of_domains(data: DomainData, domains: tuple[str, ...]) -> DomainData:
    """The samples of some domains, or all if none is named."""
    if not domains:
        return data
    for domain in domains:
        if domain not in data.domains:
            raise UnknownNameError("domain in site.toml", domain, data.domains)
    rows = torch.isin(data.domain, torch.tensor([data.domains.index(domain) for domain in domains]))
    if not rows.any():
        raise FedshiftError(f"domains = {list(domains)} in site.toml: no sample is of them.")
    kept = rows.nonzero().flatten().tolist()
    return replace(
        data,
        x=data.x[rows],
        y=data.y[rows],
        domain=data.domain[rows],
        group=data.group[rows],
        environment=None if data.environment is None else data.environment[rows],
        train_environment=None,
        where=None if data.where is None else lambda row: data.place(kept[row]),
    )


def _check_shape(own: tuple[int, ...], agreed: tuple[int, ...]) -> None:
    if own == agreed:
        return
    images = len(own) == len(agreed) == 3
    alike = "give its images the size and channels that the others have, in [data] of site.toml"
    fix = alike if images else "bring them to that shape"
    raise FedshiftError(
        f"The site's samples have the shape {list(own)}; the federation agreed on {list(agreed)}: {fix}, or agree on "
        "another shape in federation.toml."
    )


def _relabelled(data: DomainData, classes: tuple[str, ...]) -> DomainData:
    """The same samples with the federation's class numbers; classes without samples are ignored."""
    present = [data.classes[number] for number in torch.unique(data.y).tolist()]
    problems = Problems("classes of the site's data are unknown to the federation")
    for name in present:
        if name not in classes:
            problems.add(UnknownNameError("class in the site's data", name, classes))
    problems.check()
    number = torch.tensor([classes.index(name) if name in classes else 0 for name in data.classes])
    return replace(data, y=number[data.y], classes=classes)


def _of_columns(data: DomainData, inputs: Inputs, listed: bool) -> DomainData:
    """The same rows with the federation's columns and codes of categories; a note lists unknown categories.

    Columns that the site has ``listed`` may have other names, in the federation's order.
    """
    if inputs.preparation is None:
        return data
    agreed, notes = inputs.preparation.columns, list(data.notes)
    own, theirs = ([column.name for column in columns] for columns in (data.columns, agreed))
    mixed = any(mine != its and mine in theirs for mine, its in zip(own, theirs, strict=False))
    if own != theirs and (mixed or not listed or len(own) != len(theirs)):
        raise FedshiftError(
            f"The site's columns are {', '.join(own)}; the federation agreed on {', '.join(theirs)}: list the site's "
            "in that order below [data] of site.toml, columns = [...]."
        )
    kinds = {True: "numbers", False: "categories"}
    for column, other in zip(data.columns, agreed, strict=True):
        if (column.categories is None) != (other.categories is None) and not _nothing(data, own.index(column.name)):
            raise FedshiftError(
                f"The site's column '{column.name}' contains {kinds[column.categories is None]}, but the federation "
                f"agreed on {kinds[other.categories is None]}: correct it, or name it in data.categories "
                "everywhere."
            )
        unknown = [name for name in column.categories or () if name not in (other.categories or ())]
        if unknown:
            notes.append(
                f"The federation has no category {', '.join(map(repr, unknown[:3]))} of the column '{column.name}': "
                "every input of this column is 0 in such a row."
            )
    return replace(data, x=recoded(data.x, data.columns, agreed), columns=agreed, notes=tuple(notes))


def _nothing(data: DomainData, place: int) -> bool:
    return bool(data.x[:, place].isnan().all())


def _check_inputs(agreement: Agreement, experiment: Experiment) -> None:
    """Check that samples become inputs in the same way as in the federation."""
    own, agreed = experiment.data.inputs(), agreement.experiment.data.inputs()
    if own != agreed:
        names = [each.name for each in fields(Inputs) if getattr(own, each.name) != getattr(agreed, each.name)]
        said = "; ".join(f"{name} = {getattr(own, name)!r:.100}, not {getattr(agreed, name)!r:.100}" for name in names)
        raise FedshiftError(
            f"[data] of site.toml prepares samples differently from the agreement ({said}): leave augment, "
            "flip, normalise, tokens, statistics and impute as in experiment.toml, or give data of such a kind."
        )
    experiment.model.check(agreed)


# Its model ----------------------------------------------------------------------------------------


def site_model(folder: str | Path) -> Trained:
    """The final model of a site, as a module in evaluation mode, from the site's folder alone.

    For a method with personalised models it is the site's, otherwise the global model.

    Args:
        folder: the site's folder.

    Raises:
        FedshiftError: the folder is not a site's, or the run has not ended there.
    """
    site = SiteFolder(Path(folder))
    path = site.path / STATE / site.agreement.run / MODEL
    try:
        weights = unpack(path.read_bytes())
    except FileNotFoundError as error:
        raise FedshiftError(f"'{path}' does not exist: a site has its model when the run has ended.") from error
    except (OSError, SafetensorError) as error:
        raise FedshiftError(f"'{path}' is damaged ({error}).") from error
    return rebuilt(site.agreement.experiment, site.agreement.blueprint, weights, site.client)


class Schema(NamedTuple):
    """The form of a sample, as in :class:`FederationSettings`, and the domains of the data, if they were read."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    columns: tuple[tuple[str, ...], ...] = ()
    domains: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()


def schema(
    experiment: Experiment,
    classes: Sequence[str] = (),
    shape: Sequence[int] = (),
    columns: Sequence[Sequence[str]] = (),
    environments: Sequence[str] = (),
) -> Schema:
    """The form of an experiment's samples: given values, completed from the data, which then have to be here.

    Args:
        experiment: the experiment.
        classes: the classes' names.
        shape: the shape of a sample as a model gets it.
        columns: for prepared rows, each column's name and the categories of a column that is not numeric.
        environments: the test environments that every site scores, if the protocol needs data that define them.
    """
    shifted = isinstance(experiment.protocol, PersonalUnderShift)
    prepared = experiment.data.inputs().preparation is not None
    said = tuple(map(tuple, columns))
    unnamed = isinstance(experiment.data, InputColumns) and not (experiment.data.columns or said)
    shape = tuple(shape) or _shape_of_images(experiment) or ((len(said),) if said else ())
    if prepared and isinstance(experiment.data, ImageDataset):
        said = said or tuple((column.name,) for column in feature_columns(shape[0]))
    requested = {
        "--classes cat,dog": not classes,
        "--columns 'age,sex=f|m'": prepared and not said,
        "--shape 3,64,64": not prepared and not shape,
        "--set data.columns=age,marker": not prepared and unnamed,
        "--environments p=0.1,p=0.9": shifted and not environments,
    }
    lacking = [option for option, lacks in requested.items() if lacks]
    if not lacking:
        return Schema(tuple(classes), shape, said, environments=tuple(environments))
    network = experiment.model.frozen_network()
    try:
        data = load_data(experiment.data, network, experiment.seed_of_data, str(experiment.contents))
    except FedshiftError as error:
        raise FedshiftError(
            f"{error}\nThe data would define a sample. If only the sites have them, describe it: {' '.join(lacking)}"
        ) from error
    if prepared:
        said = said or tuple((column.name, *(column.categories or ())) for column in data.columns)
    environments = tuple(environments) or (data.environments[1:] if shifted else ())
    return Schema(tuple(classes) or data.classes, shape or tuple(data.x.shape[1:]), said, data.domains, environments)


def _shape_of_images(experiment: Experiment) -> tuple[int, ...]:
    """The shape that the settings give to images, or to the features of a frozen network; empty for other data."""
    data = experiment.data
    if not isinstance(data, ImageDataset):
        return ()
    image = torch.zeros(1, data.channels, data.size, data.size, dtype=torch.uint8)
    for network, size in ((data.frozen_network(), data.frozen_size), (experiment.model.frozen_network(), 0)):
        if network is not None:
            image = Front(network, size)(image)
    return tuple(image.shape[1:])
