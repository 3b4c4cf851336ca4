"""Properties of a user's module found by running it: its width, and the layer that gives its logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift.core.model import Shape
from fedshift.errors import FedshiftError

BATCH = 2  # of zeros, by which it is found what a module gives
DRAWN = 16  # inputs, by which it is found which layer gives it


def check_output(module: nn.Module, shape: Shape) -> int:
    """The module's number of features for inputs (B, *shape)."""
    return int(output(module, shape).shape[1])


def _probe(shape: Shape, drawn: bool) -> Tensor:
    if not drawn:
        return torch.zeros(BATCH, *shape)
    return 10 * torch.randn(DRAWN, *shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def output(module: nn.Module, shape: Shape, drawn: bool = False) -> Tensor:
    """The module's output (B, F) in evaluation mode for two inputs of zeros, or for sixteen drawn inputs."""
    name, was_training = type(module).__name__, module.training
    for called, tensor in module.named_parameters():
        if tensor.dtype is not torch.float32 and tensor.is_floating_point():
            raise FedshiftError(
                f"The parameter '{called}' of the module {name} is {str(tensor.dtype).removeprefix('torch.')}: make it "
                "float32 (module.float()); a run that computes in another precision states it (train.precision)."
            )
    module.eval()
    x, given, refused = _probe(shape, drawn), None, list[str]()
    dtypes = (torch.float32, torch.int64) if len(shape) == 1 else (torch.float32,)  # sequences may be of tokens
    for dtype in dtypes:
        try:
            given = module(x.to(dtype) if dtype.is_floating_point else torch.zeros_like(x, dtype=dtype))
            break
        except Exception as error:  # whatever the user's code raises
            refused.append(f"as {dtype}: {type(error).__name__}: {error}".splitlines()[0])
    module.train(was_training)
    if given is None:
        sample = ", ".join(["B", *map(str, shape)])
        raise FedshiftError(f"Inputs ({sample}) do not fit the module {name}, {'; '.join(refused)}")
    if not isinstance(given, Tensor) or given.ndim != 2 or len(given) != len(x) or given.dtype is not torch.float32:
        shaped = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise FedshiftError(
            f"The module {name} gives {shaped} for {len(x)} inputs; it should give features (B, F) in float32: end it "
            "with pooling or nn.Flatten()."
        )
    return given


def logits_of(module: nn.Module, shape: Shape) -> str:
    """The linear layer that gives the logits, for inputs (B, *shape); empty: there is no such layer.

    It is the last linear layer that runs, if the module returns its output or a softmax or log-softmax of it.
    """
    ran: list[tuple[str, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda _, values, given, name=name: ran.append((name, given)))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and name
    ]
    try:
        given = output(module, shape, drawn=True)
    finally:
        for hook in hooks:
            hook.remove()
    if not ran or ran[-1][1].shape != given.shape:
        return ""
    name, logits = ran[-1]
    ends = (logits.softmax(dim=1), logits.log_softmax(dim=1))
    return name if given.equal(logits) or any(torch.allclose(given, each, atol=1e-6) for each in ends) else ""


def log_probabilities(given: Tensor) -> Tensor:
    """Log-probabilities (B, F) of logits, or of a softmax or log-softmax of them."""
    return given.log() if is_normalised(given) and bool((given >= 0).all()) else given.log_softmax(dim=1)


def is_normalised(given: Tensor) -> bool:
    """Whether rows (B, F) are probabilities or their logarithms, as after a softmax."""
    return given.shape[1] > 1 and any(
        bool((each >= 0).all()) and torch.allclose(each.sum(dim=1), torch.ones(len(each)), atol=1e-4)
        for each in (given, given.exp())
    )
