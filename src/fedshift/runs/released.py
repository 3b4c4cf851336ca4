"""A trained model beside labelled samples from elsewhere: what reads them, what they must be, and what it predicts.

What is scored is a :class:`Released`. A run's folder is one by :func:`released`, a module that :meth:`Run.model` or
``fedshift.site_model`` gives by :meth:`Released.of`, and an exported folder by ``exported``, which lies higher.
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

DOMAIN = "domain"  # of the subgroups that are the data set's own domains
MISSING = "(missing)"
MOST_SUBGROUPS = 20


@dataclass(frozen=True, eq=False)
class Released:
    """A trained model, and what it takes to score it on files.

    Attributes:
        name: what it is called.
        predict: samples (B, *shape), as the data set stores them, to log-probabilities (B, classes).
        dataset: reads files of the kind that it was trained on.
        classes: the classes' names.
        shape: of a sample.
        columns: of rows of a table, in order; None where they are none.
        inputs: how samples become inputs.
        type: of samples, such as "uint8"; empty where any are taken.
        batch: how many samples it predicts for at once.
        statistics: of the rows that it was trained on, where they prepare rows; see
            :data:`fedshift.clients.preparation.Statistics`.
        trained_classes: how many samples of each class it was trained on; empty if unknown.
        reread: reads the samples again that it was trained and validated on, or raises an error; None: none are known.
        client: the id of the client whose model it is.
        metrics: that its experiment declares.
    """

    name: str
    predict: Callable[[Tensor], Tensor]
    dataset: Dataset
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()
    inputs: Inputs = field(default_factory=Inputs)
    type: str = ""
    batch: int = 256
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    trained_classes: tuple[int, ...] = ()
    reread: Callable[[], FederatedData] | None = None
    client: int | None = None
    metrics: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Trained, name: str = "", client: int | str | None = None, **more: Any) -> Released:
        """What a module is that a run or a site gave."""
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
        """The log-probabilities (n, classes), float64, of samples (n, *shape)."""
        with torch.no_grad():
            return torch.cat([self.predict(part).double().log_softmax(dim=1) for part in torch.split(x, self.batch)])


def released(path: Path, client: int | str | None, round: Picked, trust: bool) -> Released:
    """The model that a folder contains.

    Args:
        path: a run's folder.
        client: whose model, by name or id; None: the global one.
        round: the final model, or that of the round which validation picks.
        trust: whether plugins may be imported that never ran on this machine.

    Raises:
        FedshiftError: there is no such model.
    """
    run = Run.open(path, trust)
    run.check_readers()
    return Released.of(run.model(client, round), path.resolve().name, client, reread=partial(_reread, run))


def _reread(run: Run) -> FederatedData:
    if run.identity.host == "federation":
        raise FedshiftError("it ran between institutions, where its samples are")
    experiment: Experiment = run.experiment_to_go_on()
    return make_federated(experiment)


# Labelled samples -------------------------------------------------------------------------------------


class Subgroups(NamedTuple):
    """Which subgroup each sample is of.

    Attributes:
        by: what they are subgroups by; empty: there are none.
        names: the subgroups' names.
        which: the place of each sample's among them, (n,), int64.
    """

    by: str
    names: Sequence[str]
    which: Tensor


def read_labelled(
    model: Released, path: str, settings: Mapping[str, Any], by: str = ""
) -> tuple[DomainData, Subgroups]:
    """The labelled samples of a file or folder, as a model takes them, and their subgroups.

    Args:
        model: the model, whose data set reads them.
        path: the file or folder.
        settings: what differs from the data set's settings, such as the column of the label.
        by: a column of the file, or ``domain``; empty: there are no subgroups.

    Raises:
        FedshiftError: they cannot be read, or are none of the model's; the message names them and the fix.
    """
    places = [column.name for column in model.columns]
    apart = {DOMAIN: by} if by and by != DOMAIN and by not in places else {}
    dataset = _reader(model, path, settings, by, apart)
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


def _reader(model: Released, path: str, settings: Mapping[str, Any], by: str, apart: Mapping[str, str]) -> Dataset:
    """The model's data set with other files, whose columns are the model's; ``apart`` names that of subgroups."""
    dataset, name = model.dataset, DATASETS.name_of(model.dataset)
    known = dataset.settings()
    own = [each for each, about in known.items() if about.path and each not in dataset.readers]
    if own != ["path"]:
        raise FedshiftError(
            f"The data set '{name}' reads no single file or folder (data.path), so it cannot read '{path}'; in Python "
            "score run.model() on your samples."
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
    if apart and not (isinstance(dataset, ColumnFiles) and DOMAIN in known):
        raise FedshiftError(
            f"--by {apart[DOMAIN]}: the data set '{name}' reads no such column; give --by domain"
            + (f", or a column of the inputs: {', '.join(each.name for each in model.columns)}." * bool(model.columns))
        )
    return dataset.replace(**{**changes, **settings, **apart})


def _of_classes(data: DomainData, model: Released) -> DomainData:
    """The same samples with the model's class numbers.

    Raises:
        FedshiftError: a sample has a label that the model does not know.
    """
    problems = Problems("labels are no classes of the model")
    for number in torch.unique(data.y).tolist():
        if (name := data.classes[number]) not in model.classes:
            first = int((data.y == number).nonzero()[0])
            hint = "Write the model's classes, or name the column that contains them: --set data.label=COLUMN"
            problems.add(UnknownNameError(f"class of {data.place(first)}:", name, model.classes, hint))
    problems.check()
    number = torch.tensor([model.classes.index(name) if name in model.classes else 0 for name in data.classes])
    return replace(data, y=number[data.y], classes=model.classes)


def _of_columns(data: DomainData, model: Released) -> DomainData:
    """The same rows with the model's codes of categories.

    Raises:
        FedshiftError: a column contains numbers in one and categories in the other.
    """
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
    """The subgroups that have one value each of a column of inputs.

    Raises:
        FedshiftError: there are many.
    """
    cells = data.x[:, place].double()
    values = torch.unique(cells[~cells.isnan()])
    if len(values) > MOST_SUBGROUPS:
        raise FedshiftError(
            f"--by {column.name}: the column contains {len(values)} values, {MOST_SUBGROUPS} at most can be subgroups. "
            "Name a column of few, such as one of age groups."
        )
    known = column.categories
    names = [f"{value:g}" if known is None else known[int(value)] if value >= 0 else "(unknown)" for value in values]
    which = torch.searchsorted(values, cells.nan_to_num(float("inf")))
    return Subgroups(column.name, (*names, MISSING) if cells.isnan().any() else tuple(names), which)
