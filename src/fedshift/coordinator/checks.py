"""What crosses the wire is held against what was declared, before it is sent or merged."""

from __future__ import annotations

import torch

from fedshift.core.contract import Exchange
from fedshift.core.messages import Answer, Message
from fedshift.core.setup import Setup
from fedshift.core.tensors import Tensors
from fedshift.errors import DivergedError, FedshiftError


def check_scopes(setup: Setup, message: Message, exchange: Exchange, hook: str, where: str = "") -> None:
    """Nothing of client or server scope crosses the wire.

    Args:
        setup: the run.
        message: what would cross.
        exchange: when.
        hook: what of the exchange made the message.
        where: a client and a round, for messages.

    Raises:
        FedshiftError: the message names such a tensor.
    """
    for name in message:
        if setup.scopes.get(name) in ("client", "server"):
            raise FedshiftError(
                f"The exchange '{exchange.name}'{f' ({where})' if where else ''} would send '{name}', which never "
                f"leaves the {setup.scopes[name]}. "
                f"Leave it out of {hook}(), or give its part another scope."
            )


def check_answer(setup: Setup, answer: Answer, exchange: Exchange, where: str) -> None:
    """An answer has the names, types and shapes that its exchange declares, and every number is finite.

    Args:
        setup: the run.
        answer: what a client sent.
        exchange: what it was asked for.
        where: the client and the round, for messages.

    Raises:
        DivergedError: a number is not finite.
        FedshiftError: the reply is not what the exchange declares.
    """
    check_scopes(setup, answer.up, exchange, "upload", where)
    declared, up = setup.declared(exchange), answer.up
    about = f"The reply of {where} in the exchange '{exchange.name}'"
    missing, unknown = sorted(declared.keys() - up.keys()), sorted(up.keys() - declared.keys())
    if missing:
        raise FedshiftError(f"{about} lacks '{missing[0]}'{_more(missing)}, which the exchange declares.")
    if unknown:
        raise FedshiftError(
            f"{about} holds '{unknown[0]}'{_more(unknown)}, which the exchange does not declare: name it in its "
            "uploads, or leave it out."
        )
    for name, (dtype, shape) in declared.items():
        tensor = up[name]
        fits = len(shape) == tensor.ndim and all(
            want in (None, has) for want, has in zip(shape, tensor.shape, strict=False)
        )
        if tensor.dtype != dtype or not fits:
            wanted = f"{dtype} [{', '.join('any' if want is None else str(want) for want in shape)}]"
            raise FedshiftError(f"{about} has '{name}' as {tensor.dtype} {list(tensor.shape)}, declared as {wanted}.")
    if name := first_not_finite(up):
        raise DivergedError(
            f"'{name}' is not finite after the last step of {where}, exchange '{exchange.name}'. The last checkpoint, "
            f"if there is one, is kept. A smaller learning rate usually helps: --set train.lr={setup.train.lr / 10:g}"
        )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def first_not_finite(tensors: Tensors) -> str:
    """The name of the first tensor with a number that is not finite; empty if there is none."""
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    # A sum is finite only if all are; it may overflow, and then they are looked at one by one.
    if not floating or bool(torch.stack([tensor.sum().double() for tensor in floating.values()]).isfinite().all()):
        return ""
    return next((name for name, tensor in floating.items() if not tensor.isfinite().all()), "")


def signature(message: Message) -> dict[str, str]:
    """Type and shape of each tensor, in words."""
    return {name: f"{str(dtype).removeprefix('torch.')} {list(shape)}" for name, dtype, shape in message.signature}


def enough(setup: Setup, asked: int, answered: int) -> bool:
    """Whether a round may merge what came."""
    if not answered:
        return False
    least = setup.train.min_answers
    return least == "all" or answered / asked >= least  # so rounded, 55 of 100 are 0.55
