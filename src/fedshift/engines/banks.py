"""Where the tensors of clients at work are: in resident modules, or stacked, client beside client.

A loop that trains sees a bank of lanes, one for each client. The tensors at work have the lanes in front:
(lanes, ...); those of the resident modules have a single client and no such dimension. Outside a bank every tensor is
contiguous, whatever layout suits the machine inside, so that no layout is lost on the wire or the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedshift.core.contract import Batch, Context
from fedshift.core.net import Net, Whole
from fedshift.core.setup import Setup
from fedshift.core.tensors import Tensors
from fedshift.engines.graphs import Step, replayed
from fedshift.engines.kernels import Kernels, prepare
from fedshift.engines.merging import Varying

Function = Callable[[Net, Batch, Context], Mapping[str, Tensor]]
Given = Callable[[Function], Mapping[str, Tensor]]
"""What the lanes at work are given in one step: it answers what a pure function gives in each lane, by name."""

DRAWN = ("x", "y", "environment", "weight")  # what a batch is drawn with


def drawn(batches: Sequence[Batch]) -> dict[str, Tensor]:
    """What batches were drawn with, by name, side by side; environments and weights only where there are any."""
    first = batches[0]
    there = {"environment": len(first.environment) > 0, "weight": first.weight is not None}
    return {name: torch.stack([getattr(b, name) for b in batches]) for name in DRAWN if there.get(name, True)}


def batch_of(tensors: Mapping[str, Tensor]) -> Batch:
    """The inverse of :func:`drawn` for one batch."""
    return Batch(**{name: tensors[name] for name in DRAWN if name in tensors})


@dataclass(frozen=True)
class SideBySide:
    """What stacked lanes are given.

    Attributes:
        bank: the lanes.
        context: a context whose round is everybody's.
        tensors: ``x``, ``y`` and, where there are any, ``environment`` and ``weight`` of the batch; ``client`` and
            ``counts``, ``noise.<name>``, ``received.<name>`` and ``measured.<name>``.
        dims: where each tensor has its lanes; None: all lanes share it.
    """

    bank: Stacked
    context: Context
    tensors: dict[str, Tensor]
    dims: dict[str, int | None]

    @property
    def changing(self) -> dict[str, Tensor]:
        """What is another in every step."""
        return {name: t for name, t in self.tensors.items() if name in DRAWN or name.startswith("noise.")}

    def copied(self) -> Self:
        """The same, with memory of its own for what is another in every step."""
        return replace(self, tensors=self.tensors | {name: t.clone() for name, t in self.changing.items()})

    def __call__(self, function: Function) -> Mapping[str, Tensor]:
        """Call a function once, under vmap."""
        return self.bank.evaluate(function, self)

    def of_lane(self, tensors: Mapping[str, Tensor]) -> tuple[Batch, Context]:
        """Batch and context of one lane, from its part of the tensors."""

        def below(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        own: dict[str, Any] = {name: Tensors(below(f"{name}.")) for name in ("received", "measured")}
        own |= {"noise": below("noise.")}
        own |= {name: tensors[name] for name in ("client", "counts")}
        return batch_of(tensors), replace(self.context, **own)


class Bank:
    """One lane: the tensors of a client or the server at work, in modules that stay.

    Attributes:
        net: the parts as an objective sees them; modes are set on its modules.
        at_work: the tensors that are read and trained now, by full name.
    """

    def __init__(self, net: Net) -> None:
        self.net, self.at_work = net, dict(net.tensors())

    def choose(self, lanes: slice | Sequence[int]) -> None:
        """Put some lanes to work; of a slice the tensors themselves, of a list copies, which are only read."""

    def rows(self, tensor: Tensor) -> Tensor:
        """A tensor shaped as one at work, with the lanes in front; a view."""
        return tensor.unsqueeze(0)

    def gather(self, batches: Sequence[Batch], contexts: Sequence[Context]) -> Given:
        """What the lanes at work are given in one step."""
        return lambda function: function(self.net, batches[0], contexts[0])

    def recorded(self, step: Step) -> Step:
        """The same step, recorded where that makes it faster; see :mod:`fedshift.engines.graphs`."""
        return step

    @torch.no_grad()
    def load(self, lane: int, tensors: Mapping[str, Tensor]) -> None:
        """Replace tensors of one lane; names that are not here are left alone."""
        here = self._of_lane(lane)
        for name, tensor in tensors.items():
            if name in here:
                here[name].copy_(tensor)

    @torch.no_grad()
    def copy(self, lane: int, names: Sequence[str]) -> dict[str, Tensor]:
        """Copies of tensors of one lane."""
        here = self._of_lane(lane)
        return {name: here[name].detach().clone(memory_format=torch.contiguous_format) for name in names}

    def _of_lane(self, lane: int) -> Mapping[str, Tensor]:
        return self.at_work


class Resident:
    """A run's modules, prepared for this machine, as a client and as the server works with them."""

    def __init__(self, setup: Setup, kernels: Kernels) -> None:
        modules: dict[str, nn.Module] = deepcopy({name: part.module for name, part in setup.parts.items()})
        for module in modules.values():
            prepare(module.to(setup.device), kernels, setup.train.precision)

        def without(scope: str) -> Bank:
            return Bank(Net({name: module for name, module in modules.items() if setup.parts[name].scope != scope}))

        self.client, self.server = without("server"), without("client")


class Stacked(Bank):
    """Lanes of one shape, client beside client; a function runs once for all of them, under vmap."""

    def __init__(self, resident: Resident, lanes: int, varying: Mapping[str, Varying] | None = None) -> None:
        self.net = resident.client.net
        self._varying = varying or {}
        self._whole = Whole(self.net.parts)
        mine = dict(self.net.tensors())
        self._all = {name: tensor.detach().expand(lanes, *tensor.shape).clone() for name, tensor in mine.items()}
        like = next(tensor for tensor in mine.values() if tensor.is_floating_point())
        self._numbers = {name: like.new_tensor(one.values) for name, one in self._varying.items()}
        self.choose(slice(lanes))

    def choose(self, lanes: slice | Sequence[int]) -> None:
        """Put some lanes to work; of a slice the tensors themselves, of a list copies, which are only read."""
        self._constant: tuple[dict[str, Tensor], dict[str, int | None]] | None = None
        self._lanes = index = lanes if isinstance(lanes, slice) else list(lanes)
        self.at_work = {name: tensor[index] for name, tensor in self._all.items()}
        for name in self.net.trainable:
            self.at_work[name].requires_grad_()

    def rows(self, tensor: Tensor) -> Tensor:
        """It has the lanes in front."""
        return tensor

    def gather(self, batches: Sequence[Batch], contexts: Sequence[Context]) -> Given:
        """Batches and noise side by side; what stays the same from step to step is stacked once."""
        if self._constant is None:
            received, dims = _side_by_side([context.received for context in contexts], "received.")
            measured, of_measured = _side_by_side([context.measured for context in contexts], "measured.")
            received, dims = received | measured, dims | of_measured
            received["client"] = torch.stack([context.client for context in contexts])
            received["counts"] = torch.stack([context.counts for context in contexts])
            dims["client"] = dims["counts"] = 0
            self._constant = received, dims
        constant, dims = self._constant
        tensors = drawn(batches)
        for name in contexts[0].noise:
            tensors[f"noise.{name}"] = torch.stack([context.noise[name] for context in contexts])
        return SideBySide(self, contexts[0], tensors | constant, {**dict.fromkeys(tensors, 0), **dims})

    def recorded(self, step: Step) -> Step:
        """The step as a CUDA graph, where the lanes are on such a device."""
        on_cuda = any(tensor.is_cuda for tensor in self._all.values())
        return replayed(step) if on_cuda else step

    def evaluate(self, function: Function, given: SideBySide) -> dict[str, Tensor]:
        """What a pure function gives in each lane, (lanes, ...), by name."""

        def of_one(
            tensors: Mapping[str, Tensor], own: dict[str, Tensor], numbers: dict[str, Tensor]
        ) -> dict[str, Tensor]:
            for name, number in numbers.items():
                self._varying[name].now = number
            arguments = (function, self.net, *given.of_lane(own))
            return dict(functional_call(self._whole, dict(tensors), arguments))  # vmap knows no other mapping

        numbers = {name: self._numbers[name][self._lanes] for name in self._varying}
        try:
            return dict(vmap(of_one, in_dims=(0, given.dims, 0))(self.at_work, given.tensors, numbers))
        finally:
            for varying in self._varying.values():
                varying.now = None

    def _of_lane(self, lane: int) -> Mapping[str, Tensor]:
        return {name: tensor[lane] for name, tensor in self._all.items()}


def _side_by_side(
    mappings: Sequence[Mapping[str, Tensor]], prefix: str
) -> tuple[dict[str, Tensor], dict[str, int | None]]:
    """Tensors stacked by name, and where their lanes are; one that all lanes share is not stacked (None)."""
    tensors: dict[str, Tensor] = {}
    dims: dict[str, int | None] = {}
    for name, first in mappings[0].items():
        each = [mapping[name] for mapping in mappings]
        shared = all(same(first, other) for other in each[1:])
        tensors[prefix + name] = first if shared else torch.stack(each)
        dims[prefix + name] = None if shared else 0
    return tensors, dims


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same memory seen alike."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )
