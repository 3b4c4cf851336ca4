"""Samples on which an exported model is checked: made ones, which are stored, and real ones, which are not."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import UNSEEN, Preparation
from fedshift.core.preparation_part import PREPARATION
from fedshift.errors import FedshiftError
from fedshift.reporting.export.function import Probabilities
from fedshift.runs.run import Run
from fedshift.runs.simulation import read_federated

MADE, REAL = 32, 64  # how many there are of each, at most


def real(run: Run, whole: Probabilities) -> Tensor:
    """Samples of a run's data as the model reads them, evenly spaced; of a table, with the categories of the run."""
    if run.identity.host == "federation":
        raise FedshiftError("they are at the sites")
    _, federated = read_federated(run.experiment)
    x = (federated.clients[0].train if federated.clients else federated.environments[0].samples).pool.x
    x = x[torch.linspace(0, len(x) - 1, min(REAL, len(x))).long()]
    if x.dtype != whole.dtype:
        raise FedshiftError(f"they are of type {x.dtype} now, and the model takes {whole.dtype}")
    return x


def made(whole: Probabilities, shape: tuple[int, ...]) -> Tensor:
    """Samples (MADE, *shape) over the whole range of values, also what is rare: gaps, padding, unknown categories."""
    draw, inputs = torch.Generator().manual_seed(0), whole.inputs
    if whole.dtype == torch.uint8:
        return _images(shape, draw)
    if whole.dtype == torch.int64:
        return _tokens(inputs, shape, draw)
    if inputs.preparation is not None:
        statistics = dict(whole.model.get_submodule(PREPARATION).named_buffers())
        return _rows(inputs.preparation, statistics, draw).to(whole.dtype)
    scale = torch.tensor([0.0, 0.1, 1.0, 3.0]).repeat(MADE // 4).view(-1, *[1] * len(shape))
    return (torch.randn(MADE, *shape, generator=draw) * scale).to(whole.dtype)


def _images(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    x = torch.randint(256, (MADE, *shape), generator=draw, dtype=torch.uint8)
    x[0], x[1] = 0, 255
    x[2] = (torch.arange(x[2].numel()) % 256).view(shape)
    return x


def _tokens(inputs: Inputs, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    x = torch.randint(max(inputs.ids, 1), (MADE, *shape), generator=draw)
    if inputs.tokens and inputs.pad >= 0:
        x[x == inputs.pad] = (inputs.pad + 1) % inputs.ids
        for row in range(1, MADE):  # texts of any length
            x[row, 1 + row % shape[0] :] = inputs.pad
    return x


def _rows(preparation: Preparation, statistics: dict[str, Tensor], draw: torch.Generator) -> Tensor:
    """Rows in which every tenth cell is missing, and in the last of which all are."""
    x = torch.zeros(MADE, len(preparation.columns), dtype=torch.float64)
    spread = torch.where(statistics["scale"] > 0, statistics["scale"], 1.0)
    x[:, preparation.numbers] = statistics["center"] + 3 * spread * torch.randn(
        MADE, len(preparation.numbers), generator=draw, dtype=torch.float64
    )
    for place, column in enumerate(preparation.columns):
        if column.categories is not None:
            codes = torch.arange(MADE) % (len(column.categories) + 1)
            x[:, place] = torch.where(codes == len(column.categories), UNSEEN, codes.double())
    x[torch.rand(x.shape, generator=draw) < 0.1] = torch.nan
    x[-1] = torch.nan
    return x
