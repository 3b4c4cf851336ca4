"""Why a loss is not finite, and remedies: too large inputs, a network that returns no number, or the learning rate."""

from __future__ import annotations

import torch

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.contract import Objective
from fedshift.core.setup import Setup

LARGE = 1e4  # a large input, since initial weights expect numbers around 1
USUAL = 0.1  # the largest rate to suggest
SMALL = 1e-5  # a rate that is hardly the cause
PIECE = 1024  # samples per chunk
KEPT = "The last checkpoint, if there is one, is kept."


def too_large(setup: Setup, inputs: Inputs, samples: Samples | None) -> tuple[str, str]:
    """Which inputs of some samples are too large, and a remedy; empty if none are."""
    if samples is None or not len(samples) or not samples.pool.x.is_floating_point():
        return "", ""
    largest, place = 0.0, tuple[int, ...]()
    for rows in torch.split(torch.arange(len(samples), device=samples.pool.y.device), PIECE):
        x = inputs.evaluation(samples.batch(rows)[0]).abs().amax(dim=0)
        if (most := float(x.max())) > largest:
            largest, place = most, tuple(int(at) for at in torch.unravel_index(x.argmax(), x.shape))
    if largest < LARGE:
        return "", ""
    if len(place) > 1:
        return f"inputs are as large as {largest:.3g}", "Scale inputs to numbers around 1, or correct them."
    name = _column(setup, place[0])
    return (
        f"the column '{name}' has inputs as large as {largest:.3g}",
        f"Correct it, standardise it (data.statistics, of a table), or exclude it: --set data.exclude={name}",
    )


def _column(setup: Setup, place: int) -> str:
    if setup.preparation is not None:
        return setup.preparation.columns[setup.preparation.numbers[place]].name
    return setup.columns[place] if setup.columns else str(place)


def explained(
    setup: Setup,
    what: str,
    inputs: Inputs,
    samples: Samples | None,
    objective: Objective | None = None,
    untouched: bool = False,
) -> tuple[str, str]:
    """What happened, a clause without full stop, with its likely cause and remedies.

    ``samples`` are None on a server's; ``objective`` is the loss's, if it is of training; ``untouched``: no step was
    taken.
    """
    cause, fix = too_large(setup, inputs, samples)
    if cause:
        return f"{what}: {cause}.", f"{KEPT} {fix}"
    if untouched:
        return (
            f"{what}, before any step was taken.",
            "So the rate is not the cause: the initial network or a term of the loss returns no number for these "
            "samples. Check logarithms, roots and divisions in the module, and the settings of [method].",
        )
    return f"{what}.", f"{KEPT} {smaller_rate(setup, objective)}"


def smaller_rate(setup: Setup, objective: Objective | None = None) -> str:
    """A remedy where the rate is the likely cause, at most a usual rate."""
    if objective is not None and objective.optimiser.lr is not None:
        return f"A smaller rate than this objective's {objective.optimiser.lr:g} usually helps."
    if setup.train.lr <= SMALL:
        return f"train.lr = {setup.train.lr:g} is small already: inspect the settings of [method] and the module."
    return f"A smaller learning rate usually helps: --set train.lr={min(setup.train.lr / 10, USUAL):g}"
