"""Checks of messages against their declarations, before they are sent or aggregated."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor
from torch.nn.utils import get_total_norm

from fedshift.core.contract import Bound, Declared, Exchange, Phase
from fedshift.core.messages import Answer, Message, Order, Telemetry
from fedshift.core.setup import STEPS, Setup
from fedshift.core.tensors import Tensors
from fedshift.engines.divergence import KEPT, smaller_rate
from fedshift.engines.lane import steps_of
from fedshift.errors import DivergedError, FedshiftError

MOST_SAMPLES = 10**9  # samples of a client that has declared no number
LARGEST_TERM = 1e30  # bound of a loss

VARIANCE = ".running_var"  # tensor of a batch norm


def check_scopes(setup: Setup, message: Message, exchange: Exchange, hook: str, where: str = "") -> None:
    """Raise a FedshiftError if a message contains a tensor of client or server scope; ``hook`` created it."""
    for name in message:
        if setup.scopes.get(name) in ("client", "server"):
            raise FedshiftError(
                f"The exchange '{exchange.name}'{f' ({where})' if where else ''} would send '{name}', which never "
                f"leaves the {setup.scopes[name]}. "
                f"Remove it from {hook}(), or give its part another scope."
            )


def check_order(setup: Setup, order: Order, exchange: Exchange) -> None:
    """Raise a FedshiftError unless an order contains what its exchange declares, and nothing private."""
    check_scopes(setup, order.down, exchange, "send")
    declared, down = _declared_down(setup, exchange), order.down
    about = f"The order of round {order.round} in the exchange '{exchange.name}'"
    if missing := sorted(declared.keys() - down.keys()):
        raise FedshiftError(f"{about} lacks '{missing[0]}'{_more(missing)}.")
    unknown = sorted(down.keys() - declared.keys())
    if unknown and exchange.send is None:
        raise FedshiftError(f"{about} contains '{unknown[0]}'{_more(unknown)}, which it does not declare.")
    _check_types(down.only(declared), declared, about)


def check_answer(setup: Setup, answer: Answer, exchange: Exchange, where: str) -> None:
    """Raise an error unless an answer has the declared names, types and shapes, and every number is finite.

    Its telemetry contains only declared loss terms, and is empty if telemetry is off. DivergedError: a number is not
    finite; FedshiftError: anything else.
    """
    check_scopes(setup, answer.up, exchange, "upload", where)
    declared, up = setup.declaration(exchange).reply, answer.up
    about = f"The reply of {where} in the exchange '{exchange.name}'"
    missing, unknown = sorted(declared.keys() - up.keys()), sorted(up.keys() - declared.keys())
    if missing:
        raise FedshiftError(f"{about} lacks '{missing[0]}'{_more(missing)}, which the exchange declares.")
    if unknown:
        raise FedshiftError(
            f"{about} contains '{unknown[0]}'{_more(unknown)}, which the exchange does not declare: add it to its "
            "uploads, or omit it."
        )
    _check_types(up, declared, about)
    _check_telemetry(setup, answer.telemetry, exchange, where)
    if name := first_not_finite(up):
        raise DivergedError(
            f"'{name}' is not finite after the last step of {where}, exchange '{exchange.name}'.",
            f"{KEPT} {smaller_rate(setup)}",
        )


def check_numbers(setup: Setup, answer: Answer, exchange: Exchange, where: str, samples: int | None) -> None:
    """Raise a FedshiftError unless an answer's counts are possible, variances at least 0 and loss terms at most 1e30.

    ``samples`` is the client's declared number of training samples; None: undeclared, and a billion is the bound.
    """
    about = f"The reply of {where} in the exchange '{exchange.name}'"
    n = MOST_SAMPLES if samples is None else samples
    for name, bound in setup.declaration(exchange).bounds.items():
        _check_counts_in(name, answer.up[name].cpu().double(), _most(bound, setup, exchange, n), bound, about)
    for name, tensor in answer.up.items():
        if name.endswith(VARIANCE) and (tensor < 0).any():
            raise FedshiftError(f"{about} has {float(tensor.min()):g} in '{name}', a variance: 0 is the minimum.")
    for name, value in answer.telemetry.items():
        if name == STEPS:
            _check_counts_in(name, value.cpu().double(), _most("steps", setup, exchange, n), "steps", about)
        elif abs(float(value)) > LARGEST_TERM:
            raise FedshiftError(f"{about} has {name} = {float(value):g}, beyond {LARGEST_TERM:g}.")


def _most(bound: Bound, setup: Setup, exchange: Exchange, samples: int) -> int:
    if bound in ("total", "each"):
        return samples
    steps = drawn = 0
    for phase in exchange.phases:
        if isinstance(phase, Phase):
            of_phase = steps_of(phase, setup.train, samples)
            steps += of_phase
            drawn += of_phase * max(1, min(phase.batch or setup.train.batch, samples))
    return steps if bound == "steps" else max(samples, drawn)


def _check_counts_in(name: str, counts: Tensor, most: int, bound: Bound, about: str) -> None:
    """Raise an error unless counts, as float64, are from 0 to ``most``; a total is their sum, at least 1."""
    wrong = counts[(counts < 0) | (counts > most)]
    if wrong.numel():
        raise FedshiftError(
            f"{about} has {float(wrong[0]):.17g} in '{name}', a count: from 0 to {most:,} are possible, by what the "
            "site declared when it joined."
        )
    total = float(counts.sum())
    if bound == "total" and not 1 <= total <= most:
        raise FedshiftError(
            f"{about} has counts in '{name}' that sum to {total:.17g}: from 1 to {most:,} are possible, by what the "
            "site declared when it joined."
        )


def _check_telemetry(setup: Setup, telemetry: Telemetry, exchange: Exchange, where: str) -> None:
    about = f"The telemetry of {where} in the exchange '{exchange.name}'"
    if telemetry and not setup.evaluate.telemetry:
        raise FedshiftError(f"{about} contains '{min(telemetry)}', though evaluate.telemetry = false: send none.")
    declared = setup.declaration(exchange).telemetry
    if unknown := sorted(telemetry.keys() - declared.keys()):
        raise FedshiftError(
            f"{about} contains '{unknown[0]}'{_more(unknown)}, which no objective of the exchange declares: add it to "
            "an objective's terms, or omit it."
        )
    _check_types(telemetry, declared, about)
    if name := first_not_finite(telemetry):
        raise DivergedError(f"{about} has '{name}', which is not finite.")


def _check_types(tensors: Tensors, declared: Declared, about: str) -> None:
    for name, tensor in tensors.items():
        dtype, shape = declared[name]
        if tensor.dtype != dtype or not _fits(tuple(tensor.shape), shape):
            wanted = f"{dtype} [{', '.join('any' if want is None else str(want) for want in shape)}]"
            raise FedshiftError(f"{about} has '{name}' as {tensor.dtype} {list(tensor.shape)}, declared as {wanted}.")


def _fits(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    return len(shape) == len(declared) and all(want in (None, has) for want, has in zip(declared, shape, strict=True))


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def first_not_finite(tensors: Tensors) -> str:
    """The name of the first tensor with a number that is not finite, else empty."""
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if are_finite(floating.values()):
        return ""
    return next((name for name, tensor in floating.items() if not tensor.isfinite().all()), "")


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether the norm over all tensors is finite: then every number is, but large numbers may overflow."""
    return math.isfinite(get_total_norm(tensors))


def _declared_down(setup: Setup, exchange: Exchange) -> Declared:
    like = setup.shapes.only(setup.declaration(exchange).sent)
    return {name: (setup.kept_as(name, tensor), tuple(tensor.shape)) for name, tensor in like.items()}


def enough(setup: Setup, requested: int, answered: int) -> bool:
    if not answered:
        return False
    least = setup.train.min_answers
    return least == "all" or answered / requested >= least  # rounded, so that 55 of 100 are 0.55
