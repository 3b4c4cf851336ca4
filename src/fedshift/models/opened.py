"""Networks that transformers opens by its Auto classes, from the hub or a folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedshift.clients.inputs import IMAGENET_MEAN, IMAGENET_STD
from fedshift.core.net import BATCH_NORMS
from fedshift.errors import FedshiftError, needs
from fedshift.hub import pretrained, reading

Kind = Literal["images", "tokens", "vectors"]
READS: dict[str, Kind] = {"pixel_values": "images", "input_ids": "tokens"}
SIDE = 64  # of images in pixels, where a network takes any


class Opened(NamedTuple):
    """A network as it was read; it is never changed."""

    network: Any  # in evaluation mode, float32
    kind: Kind  # what it reads
    mean: tuple[float, ...]  # per channel of images in 0..1, as is ``std``
    std: tuple[float, ...]
    content: str  # a digest of its folder, or its commit
    names: tuple[str, ...]  # of its stages


@lru_cache(maxsize=4)
def open_network(source: str, commit: str | None, content: str, part: str) -> Opened:
    """Read a network of a hub id (with a commit) or folder.

    Cached while ``content``, its digest or commit, is the same.

    ``part`` is the submodule to use; empty: the whole network. Raises a FedshiftError if the network cannot be read,
    lacks weights or the part, or reads neither images nor token ids.
    """
    config = config_of(source, commit)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float | int) and not isinstance(value, bool):
            setattr(config, name, 0.0)
    config.use_cache = False
    # In memory, whatever the caller's thread uses; a library's draws affect no other generator.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        whole = pretrained(source, "model.path", commit, "pooler", config=config, attn_implementation="eager")
    try:
        network = whole.float().eval().get_submodule(part)
    except AttributeError as error:
        there = ", ".join(name for name, _ in whole.named_children())
        raise FedshiftError(
            f"model.part = '{part}': {type(whole).__name__} has no such part; it has {there}."
        ) from error
    reads = getattr(network, "main_input_name", None)
    if getattr(network, "config", None) is None or reads not in READS:
        parts = ", ".join(name for name, _ in network.named_children())
        raise FedshiftError(
            f"model.path = '{source}': {type(network).__name__} cannot be an encoder of images or token ids by itself; "
            f"name a part that can: --set model.part=..., of {parts}."
        )
    name, count = layers_of(network)
    names = ("all before them", *(f"{name}.{number}" for number in range(count))) if count else ("the network",)
    mean, std = _normalisation(source, commit) if reads == "pixel_values" else (IMAGENET_MEAN, IMAGENET_STD)
    return Opened(network, READS[reads], mean, std, f"{content} {part}", names)


def _normalisation(source: str, commit: str | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, in 0..1, with which the network's images were normalised."""
    from transformers.utils.hub import cached_file

    with reading(source, "model.path"):
        file = cached_file(
            source, "preprocessor_config.json", revision=commit or "main", _raise_exceptions_for_missing_entries=False
        )
        about: Mapping[str, Any] = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    if not about.get("do_normalize", "image_mean" in about):
        return (IMAGENET_MEAN, IMAGENET_STD) if not file else ((0.0,), (1.0,))
    return tuple(about["image_mean"]), tuple(about["image_std"])


def config_of(source: str, commit: str | None) -> Any:
    """A network's configuration; raises a FedshiftError if it cannot be read."""
    with needs("images", "A network of transformers"):
        from transformers import AutoConfig
    with reading(source, "model.path"):
        return AutoConfig.from_pretrained(source, revision=commit or "main")


def image_shape(config: Any) -> tuple[int, int, int]:
    side = getattr(config, "image_size", SIDE)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    return config.num_channels, height, width


# A network cut at one of its layers -------------------------------------------------------------------


def layers_of(network: nn.Module) -> tuple[str, int]:
    """Name and length of a network's outermost longest list of layers; an empty name if it has no list."""
    lists = {name: len(layer) for name, layer in network.named_modules() if isinstance(layer, nn.ModuleList)}
    outer = {name: size for name, size in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    longest = max(outer.values(), default=0)
    found = [name for name, size in outer.items() if size == longest]
    return (found[0], longest) if len(found) == 1 else ("", 0)


class Reached(Exception):  # noqa: N818  # no error: how a network is left in its middle
    """Raised when a layer is reached, with the layer's input."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def leave(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A forward pre-hook: stop the network at a layer.

    A network that is traced as a graph continues, and its layer keeps the input as ``entered``.
    """
    hidden = args[0] if args else next(iter(kwargs.values()))
    if not torch.compiler.is_compiling():
        raise Reached(hidden)
    layer.entered = hidden


def replace_input(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A forward pre-hook: run a layer on its attribute ``given``, whatever enters it."""
    given, layer.given = layer.given, None
    return ((given, *args[1:]), kwargs) if args else (args, kwargs | {next(iter(kwargs)): given})


# Tensors that are never trained -----------------------------------------------------------------------


class Fixing(nn.Module):
    """A module with fixed tensors, which are never trained and belong to no part; its copies share them.

    Fixed tensors are in no ``state_dict``: a run neither sends, aggregates, stacks nor saves them. All copies share
    their memory, so a large network with small trained adapters is kept once, however many clients there are.

    *Choices*: fixed batch norms are always in evaluation mode.
    """

    def fix(self, trained: Collection[str]) -> None:
        """Fix all parameters except ``trained``, and the buffers of layers without a trained parameter."""
        for path, layer in self.named_modules():
            own = {name: parameter for name, parameter in layer._parameters.items() if parameter is not None}
            kept = [name for name in own if f"{path}.{name}".removeprefix(".") in trained]
            for name in own.keys() - set(kept):
                delattr(layer, name)
                layer.register_buffer(name, own[name].detach(), persistent=False)
            if not kept and isinstance(layer, BATCH_NORMS):
                layer.track_running_stats = False  # those that it has are read all the same
            if not kept:
                layer._non_persistent_buffers_set.update(layer._buffers)
        self.train(self.training)

    def fixed(self) -> Iterator[Tensor]:
        for layer in self.modules():
            for name, buffer in layer._buffers.items():
                if buffer is not None and name in layer._non_persistent_buffers_set:
                    yield buffer

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, BATCH_NORMS) and not layer.state_dict():
                layer.training = False
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made: Self = copied(self, self.fixed(), memo)
        return made


def copied(module: Any, shared: Iterator[Tensor], memo: dict[int, Any] | None = None) -> Any:
    """A deep copy of a module whose tensors among ``shared`` are views of the same memory."""
    memo = {} if memo is None else memo
    for tensor in shared:
        view = tensor.detach()
        memo[id(tensor)] = nn.Parameter(view, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else view
    made = module.__class__.__new__(module.__class__)
    memo[id(module)] = made
    made.__dict__.update(deepcopy(module.__dict__, memo))
    return made
