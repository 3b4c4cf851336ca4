"""Whether class weights reach a page's losses, checked when an objective takes its first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedshift.core.contract import Batch
from fedshift.core.setup import Setup
from fedshift.errors import FedshiftError

LOSSES = (F.cross_entropy, F.nll_loss)  # nn.CrossEntropyLoss and nn.NLLLoss call these
REMEDY = (
    "Write batch.cross_entropy(logits) in place of F.cross_entropy(logits, batch.y), or batch.weighted(losses) for "
    "other losses (B,); or omit the setting."
)


class Weighing(TorchFunctionMode):
    """A mode in which a cross-entropy on labels that is reduced before its samples are weighted is an error.

    Integers derived from labels (rows of them, several joined) are labels as well; other values, such as prototypes by
    class, are not. ``read`` collects "y" and "weight" when torch uses labels and weights.
    """

    def __init__(self, setup: Setup, objective: str, batch: Batch, read: set[str]) -> None:
        super().__init__()
        self.setup, self.objective, self.read = setup, objective, read
        self.labels, self.weight = [batch.y], batch.weight

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Check one call of torch, and run it."""
        kwargs = kwargs or {}
        given = list(_tensors((args, tuple(kwargs.values()))))
        if func in LOSSES:
            self._check(func, args, kwargs)
        result = func(*args, **kwargs)
        if any(tensor is self.weight for tensor in given):
            self.read.add("weight")
        if any(map(self._knows, given)):
            self.read.add("y")
            self.labels += [made for made in _tensors(result) if made.dtype in (torch.int64, torch.int32)]
        return result

    def _check(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = signature(func).bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments["reduction"] != "none" and self._knows(given.arguments["target"]):
            raise FedshiftError(
                f"train.class_weights = {self.setup.train.class_weights!r} does not reach every loss of "
                f"{self.setup.method.label}: its objective '{self.objective}' calls F.{func.__name__} on a batch's "
                f"labels with reduction='{given.arguments['reduction']}', before samples are weighted. {REMEDY}"
            )

    def _knows(self, tensor: Tensor) -> bool:
        return any(tensor is label for label in self.labels)


def check_read(read: set[str], setup: Setup) -> None:
    """Refuse a page whose objectives read labels and never weights; nothing read is nothing to weight."""
    if "y" in read and "weight" not in read:
        raise FedshiftError(
            f"train.class_weights = {setup.train.class_weights!r} reaches no loss of {setup.method.label}: its "
            f"objectives read a batch's labels and never its weights. {REMEDY}"
        )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
