"""Why a loss is not finite, and what helps: inputs that are too large, a network that gives no number, or the rate."""

from __future__ import annotations

import torch

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.contract import Objective
from fedshift.core.setup import Setup

LARGE = 1e4  # an input, where networks begin with weights for numbers around 1
USUAL = 0.1  # a rate that is suggested, at most
SMALL = 1e-5  # a rate that hardly is the cause
PIECE = 1024  # samples that are inspected together
KEPT = "The last checkpoint, if there is one, is kept."


def too_large(setup: Setup, inputs: Inputs, samples: Samples | None) -> tuple[str, str]:
    """Which inputs of some samples are too large, and what to do; empty where none is."""
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
        f"Correct it, standardise it (data.statistics, of a table), or leave it out: --set data.exclude={name}",
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
    """What happened with its likely cause, and what helps.

    Args:
        setup: the run.
        what: what happened, a clause without its full stop.
        inputs: how samples become inputs.
        samples: on which it happened; None: on a server's.
        objective: that of the loss, if it is one of training.
        untouched: whether no step was taken before.
    """
    cause, fix = too_large(setup, inputs, samples)
    if cause:
        return f"{what}: {cause}.", f"{KEPT} {fix}"
    if untouched:
        return (
            f"{what}, before any step was taken.",
            "So no rate is the cause: the network, as it begins, or a term of the loss gives no number for these "
            "samples. Look for a logarithm, a root or a division in the module, and at the settings of [method].",
        )
    return f"{what}.", f"{KEPT} {smaller_rate(setup, objective)}"


def smaller_rate(setup: Setup, objective: Objective | None = None) -> str:
    """What helps where the rate is the likely cause; a rate far above the usual ones is not only made smaller."""
    if objective is not None and objective.optimiser.lr is not None:
        return f"A smaller rate than this objective's own, {objective.optimiser.lr:g}, usually helps."
    if setup.train.lr <= SMALL:
        return f"train.lr = {setup.train.lr:g} is small already: inspect the settings of [method] and the module."
    return f"A smaller learning rate usually helps: --set train.lr={min(setup.train.lr / 10, USUAL):g}"
