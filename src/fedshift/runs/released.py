"""A trained model and labelled samples from elsewhere: how they are read, what they must be, and predictions for them.

A :class:`Released` is scored. :func:`released` creates it from a run's folder, :meth:`Released.of` from a module that
:meth:`Run.model` or ``fedshift.site_model`` returns, and ``exported``, in a higher room, from an exported folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedshift.clients.data_checks import check_data
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column, recoded
from fedshift.core.preparation_part import PREPARATION
from fedshift.datasets import DATASETS
from fedshift.datasets.column_files import ColumnFiles, InputColumns
from fedshift.datasets.dataset import Dataset
from fedshift.datasets.table_file import TableFile
from fedshift.errors import FedshiftError, Problems, UnknownNameError
from fedshift.experiments import Experiment
from fedshift.runs.run import Picked, Run
from fedshift.runs.simulation import make_federated
from fedshift.runs.trained import Trained
from fedshift.streams import Streams

DOMAIN = "domain"  # of the subgroups that are the data set's domains
MISSING = "(missing)"
MOST_SUBGROUPS = 20


@dataclass(frozen=True, eq=False)
class Released:
    """A trained model, and what is needed to score it on files."""

    name: str  # for messages
    # samples (B, *shape), as the data set stores them, to log-probabilities (B, classes)
    predict: Callable[[Tensor], Tensor]
    dataset: Dataset  # reads files of the kind that it was trained on
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()  # of rows of a table, in order; None for other samples
    inputs: Inputs = field(default_factory=Inputs)  # how samples become inputs
    type: str = ""  # of samples, such as "uint8"; empty: any
    batch: int = 256  # how many samples it predicts for at once
    # of its training rows, where they prepare rows; see :data:`fedshift.clients.preparation.Statistics`
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    trained_classes: tuple[int, ...] = ()  # training samples per class; empty if unknown
    # reads its training and validation samples again, or raises an error; None: unknown
    reread: Callable[[], FederatedData] | None = None
    client: int | None = None  # the id of the client whose model it is
    metrics: tuple[str, ...] = ()  # that its experiment declares

    @classmethod
    def of(cls, model: Trained, name: str = "", client: int | str | None = None, **more: Any) -> Released:
        experiment, blueprint = model.experiment, model.blueprint
        inputs, counts = blueprint.inputs, [*blueprint.trained_classes.values()]
        prepared = inputs.preparation
        own = blueprint.client(client) if client is not None else None
        if own is not None and own in blueprint.trained_classes:
            counts = [blueprint.trained_classes[own]]
        return cls(
            name=name or experiment.run_name,
            predict=model,
            dataset=experiment.data,
            classes=blueprint.classes,
            shape=blueprint.shape,
            columns=tuple(map(Column, blueprint.columns)) if prepared is None else prepared.columns,
            inputs=inputs,
            type=blueprint.type if model.front is None else "",
            batch=1 if model.draws else experiment.evaluate.batch,
            statistics={} if prepared is None else dict(model.get_submodule(PREPARATION).named_buffers()),
            trained_classes=tuple(map(sum, zip(*counts, strict=True))),
            client=own,
            metrics=experiment.evaluate.metrics,
            **more,
        )

    def log_probabilities(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.predict(part).double().log_softmax(dim=1) for part in torch.split(x, self.batch)])


def released(path: Path, client: int | str | None, round: Picked, trust: bool) -> Released:
    """The model of a run's folder, of a client by name or id (None: global), final or selected by validation.

    ``trust`` allows plugins that never ran on this machine. Raises a FedshiftError if there is no such model.
    """
    run = Run.open(path, trust)
    run.check_readers()
    return Released.of(run.model(client, round), path.resolve().name, client, reread=partial(_reread, run))


def _reread(run: Run) -> FederatedData:
    if run.identity.host == "federation":
        raise FedshiftError("it ran between institutions, where its samples are")
    experiment: Experiment = run.resumable_experiment()
    return make_federated(experiment)


# Labelled samples -------------------------------------------------------------------------------------


class Subgroups(NamedTuple):
    """The subgroup of each sample."""

    by: str  # what defines them; empty: there are no subgroups
    names: Sequence[str]
    which: Tensor  # the index of each sample's subgroup in ``names``, (n,), int64


def read_labelled(
    model: Released, path: str, settings: Mapping[str, Any], by: str = ""
) -> tuple[DomainData, Subgroups]:
    """The labelled samples of a file or folder, as a model takes them, and their subgroups.

    ``settings`` differ from the data set's settings, such as the column of the label; ``by`` is a column of the file,
    or ``domain`` (empty: no subgroups). Raises a FedshiftError if the samples cannot be read or do not fit the model;
    the message names them and the fix.
    """
    places = [column.name for column in model.columns]
    grouping = {DOMAIN: by} if by and by != DOMAIN and by not in places else {}
    dataset = _reader(model, path, settings, by, grouping)
    streams = Streams(0)
    with streams.as_global("global draws in data"):
        data = dataset.load(streams)
    check_data(data, dataset.inputs(), one_class=True)
    with streams.as_global("global draws in federation"):
        data = dataset.embedded(data)
    data = _of_columns(_of_classes(data, model), model)
    shape, kind = tuple(data.x.shape[1:]), str(data.x.dtype).removeprefix("torch.")
    if kind != (model.type or kind) or (model.type and shape != model.shape):
        takes = f"{model.type} of shape {model.shape}"
        raise FedshiftError(f"'{path}' has samples of {kind} and shape {shape}; the model takes {takes}.")
    if by in places:
        return data, _by_column(data, model.columns[places.index(by)], places.index(by))
    return data, Subgroups(by, data.domains if by else (), data.domain)


def _reader(model: Released, path: str, settings: Mapping[str, Any], by: str, grouping: Mapping[str, str]) -> Dataset:
    """The model's data set with other files, but the model's columns; ``grouping`` names the subgroups' setting."""
    dataset, name = model.dataset, DATASETS.name_of(model.dataset)
    known = dataset.settings()
    own = [each for each, about in known.items() if about.path and each not in dataset.readers]
    if own != ["path"]:
        raise FedshiftError(
            f"The data set '{name}' does not read a single file or folder (data.path), so it cannot read '{path}'; "
            "in Python score run.model() on your samples."
        )
    changes: dict[str, Any] = {"path": path}
    if isinstance(dataset, ColumnFiles) and DOMAIN in known and by != DOMAIN:
        changes[DOMAIN] = ""  # the file of one site need not name the site
    if "missing_classes" in known:
        changes["missing_classes"] = "allow"
    if isinstance(dataset, InputColumns) and "columns" in known and model.columns:
        changes["columns"] = tuple(column.name for column in model.columns)
    if isinstance(dataset, TableFile) and "categories" in known:
        changes["categories"] = tuple(column.name for column in model.columns if column.categories is not None)
    if grouping and not (isinstance(dataset, ColumnFiles) and DOMAIN in known):
        raise FedshiftError(
            f"--by {grouping[DOMAIN]}: the data set '{name}' does not read such a column; give --by domain"
            + (f", or a column of the inputs: {', '.join(each.name for each in model.columns)}." * bool(model.columns))
        )
    return dataset.replace(**{**changes, **settings, **grouping})


def _of_classes(data: DomainData, model: Released) -> DomainData:
    problems = Problems("labels are not classes of the model")
    for number in torch.unique(data.y).tolist():
        if (name := data.classes[number]) not in model.classes:
            first = int((data.y == number).nonzero()[0])
            hint = "Write the model's classes, or name the column that contains them: --set data.label=COLUMN"
            problems.add(UnknownNameError(f"class of {data.place(first)}:", name, model.classes, hint))
    problems.check()
    number = torch.tensor([model.classes.index(name) if name in model.classes else 0 for name in data.classes])
    return replace(data, y=number[data.y], classes=model.classes)


def _of_columns(data: DomainData, model: Released) -> DomainData:
    if model.inputs.preparation is None:
        return data
    words = {True: "numbers", False: "categories"}
    for place, (own, other) in enumerate(zip(data.columns, model.columns, strict=True)):
        if (own.categories is None) != (other.categories is None) and not bool(data.x[:, place].isnan().all()):
            raise FedshiftError(
                f"The column '{own.name}' contains {words[own.categories is None]}, but the model takes "
                f"{words[other.categories is None]}: correct the file."
            )
    return replace(data, x=recoded(data.x, data.columns, model.columns), columns=model.columns)


def _by_column(data: DomainData, column: Column, place: int) -> Subgroups:
    cells = data.x[:, place].double()
    values = torch.unique(cells[~cells.isnan()])
    if len(values) > MOST_SUBGROUPS:
        raise FedshiftError(
            f"--by {column.name}: the column contains {len(values)} values, {MOST_SUBGROUPS} at most can be subgroups. "
            "Name a column of few values, such as age groups."
        )
    known = column.categories
    names = [f"{value:g}" if known is None else known[int(value)] if value >= 0 else "(unknown)" for value in values]
    which = torch.searchsorted(values, cells.nan_to_num(float("inf")))
    return Subgroups(column.name, (*names, MISSING) if cells.isnan().any() else tuple(names), which)
