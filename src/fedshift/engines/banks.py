"""Storage for the tensors of clients in use: resident modules, or tensors stacked over clients.

A training loop sees a bank of lanes, one per client. Stacked tensors have the shape (lanes, ...); resident modules have
a single client and no such dimension. Outside a bank every tensor is contiguous, whatever layout suits the machine
inside, so that the wire and the disk lose no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self, TypeGuard

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
"""The inputs of the lanes in use in one step: maps a pure function to its values in each lane, by name."""


@dataclass(frozen=True)
class SideBySide:
    """The inputs of stacked lanes in a step; ``batch`` is (lanes, B, ...), noise has the lanes in front."""

    bank: Stacked
    context: Context
    batch: Batch
    noise: dict[str, Tensor]

    @property
    def changing(self) -> list[Tensor]:
        """The tensors that change in every step."""
        return [tensor for tensor in (*self.batch, *self.noise.values()) if _there(tensor)]

    def copied(self) -> Self:
        """The same, with separate memory for tensors that change in every step."""
        own = {name: tensor.clone() for name, tensor in self.batch._asdict().items() if _there(tensor)}
        batch = self.batch._replace(**own)
        return replace(self, batch=batch, noise={name: tensor.clone() for name, tensor in self.noise.items()})

    def __call__(self, function: Function) -> Mapping[str, Tensor]:
        return self.bank.evaluate(function, self)


class Bank:
    """One lane: the tensors of a client or the server, in resident modules.

    Attributes:
        lanes: their number.
        all: the tensors of all lanes, by full name.
        in_use: those of the lanes in use.
    """

    def __init__(self, net: Net) -> None:
        self.net, self.lanes = net, 1
        self.all = self.in_use = dict(net.tensors())

    def choose(self, lanes: slice | Sequence[int]) -> None:
        """Select lanes: a slice as views, a list as copies, which are read only."""

    def rows(self, tensor: Tensor) -> Tensor:
        """A view of a tensor shaped as one in use, with the lanes in front."""
        return tensor.unsqueeze(0)

    def gather(self, batches: Sequence[Batch], contexts: Sequence[Context]) -> Given:
        """The inputs of the lanes in use in one step."""
        return lambda function: function(self.net, batches[0], contexts[0])

    def recorded(self, step: Step) -> Step:
        """The same step, recorded if that makes it faster; see :mod:`fedshift.engines.graphs`."""
        return step

    @torch.no_grad()
    def load(self, tensors: Sequence[Mapping[str, Tensor]]) -> None:
        """Replace tensors of all lanes, which have the same names; unknown names are ignored."""
        for name in tensors[0].keys() & self.all.keys():
            self.fill(self.all[name], [each[name] for each in tensors])

    def fill(self, tensor: Tensor, rows: Sequence[Tensor]) -> None:
        """Write the rows of a tensor shaped as one in use."""
        tensor.copy_(rows[0])

    def copy(self, names: Iterable[str]) -> list[dict[str, Tensor]]:
        """Copies of tensors, for each lane."""
        lanes: list[dict[str, Tensor]] = [{} for _ in range(self.lanes)]
        for name in names:
            for lane, tensor in zip(lanes, self.separate(self.all[name]), strict=True):
                lane[name] = tensor
        return lanes

    @torch.no_grad()
    def separate(self, tensor: Tensor) -> list[Tensor]:
        """Copies of the rows of a tensor shaped as one in use, each with separate memory; on a GPU in few launches."""
        rows = [*self.rows(tensor.detach())]
        copies = [torch.empty_like(row, memory_format=torch.contiguous_format) for row in rows]
        torch._foreach_copy_(copies, rows)
        return copies


class Resident:
    """A run's modules, prepared for this machine, as a client and as the server uses them."""

    def __init__(self, setup: Setup, kernels: Kernels) -> None:
        modules: dict[str, nn.Module] = deepcopy({name: part.module for name, part in setup.parts.items()})
        for module in modules.values():
            prepare(module.to(setup.device), kernels, setup.train.precision)

        def without(scope: str) -> Bank:
            return Bank(Net({name: module for name, module in modules.items() if setup.parts[name].scope != scope}))

        self.client, self.server = without("server"), without("client")


class Stacked(Bank):
    """Lanes of one shape, stacked; a function runs once for all of them, under vmap."""

    def __init__(self, resident: Resident, lanes: int, varying: Mapping[str, Varying] | None = None) -> None:
        self.net, self.lanes = resident.client.net, lanes
        self._varying = varying or {}
        self._whole = Whole(self.net.parts)
        mine = dict(self.net.tensors())
        self.all = {name: tensor.detach().expand(lanes, *tensor.shape).clone() for name, tensor in mine.items()}
        like = next(tensor for tensor in mine.values() if tensor.is_floating_point())
        self._numbers = {name: like.new_tensor(one.values) for name, one in self._varying.items()}
        self.choose(slice(lanes))

    def choose(self, lanes: slice | Sequence[int]) -> None:
        self._constant: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None  # vmap's arguments, and their lanes
        self._lanes = index = lanes if isinstance(lanes, slice) else list(lanes)
        self.in_use = {name: tensor[index] for name, tensor in self.all.items()}
        for name in self.net.trainable:
            self.in_use[name].requires_grad_()

    def rows(self, tensor: Tensor) -> Tensor:
        return tensor

    def fill(self, tensor: Tensor, rows: Sequence[Tensor]) -> None:
        tensor.copy_(torch.stack([*rows]))

    def gather(self, batches: Sequence[Batch], contexts: Sequence[Context]) -> Given:
        if self._constant is None:
            received, of_received = _side_by_side([context.received for context in contexts])
            measured, of_measured = _side_by_side([context.measured for context in contexts])
            own = [torch.stack([getattr(context, name) for context in contexts]) for name in ("client", "counts")]
            self._constant = (received, measured, *own), (of_received, of_measured, 0, 0)
        columns = zip(*batches, strict=True)
        batch = Batch(*(torch.stack(column) if _there(column[0]) else column[0] for column in columns))
        noise = {name: torch.stack([context.noise[name] for context in contexts]) for name in contexts[0].noise}
        return SideBySide(self, contexts[0], batch, noise)

    def recorded(self, step: Step) -> Step:
        on_cuda = any(tensor.is_cuda for tensor in self.all.values())
        return replayed(step) if on_cuda else step

    def evaluate(self, function: Function, given: SideBySide) -> dict[str, Tensor]:
        """The values of a pure function in each lane, (lanes, ...), by name."""

        def in_one_lane(
            tensors: dict[str, Tensor],
            numbers: dict[str, Tensor],
            batch: Batch,
            noise: dict[str, Tensor],
            received: dict[str, Tensor],
            measured: dict[str, Tensor],
            client: Tensor,
            counts: Tensor,
        ) -> dict[str, Tensor]:
            for name, number in numbers.items():
                self._varying[name].now = number
            more: dict[str, Any] = {"received": Tensors(received), "measured": Tensors(measured)}
            context = replace(given.context, noise=noise, client=client, counts=counts, **more)
            return dict(functional_call(self._whole, tensors, (function, self.net, batch, context)))

        assert self._constant is not None
        constant, dims = self._constant
        numbers = {name: self._numbers[name][self._lanes] for name in self._varying}
        of_batch: list[Any] = [0 if _there(tensor) else None for tensor in given.batch]
        try:
            every = vmap(in_one_lane, in_dims=(0, 0, Batch(*of_batch), 0, *dims))
            return dict(every(self.in_use, numbers, given.batch, given.noise, *constant))
        finally:
            for varying in self._varying.values():
                varying.now = None


def _there(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None and len(tensor) > 0


def _side_by_side(mappings: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, int | None]]:
    """Tensors stacked by name, and the dimension of their lanes; None if all lanes share one tensor."""
    tensors: dict[str, Tensor] = {}
    dims: dict[str, int | None] = {}
    for name, first in mappings[0].items():
        each = [mapping[name] for mapping in mappings]
        shared = all(same_memory(first, other) for other in each[1:])
        tensors[name] = first if shared else torch.stack(each)
        dims[name] = None if shared else 0
    return tensors, dims


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors view the same memory in the same way."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )
