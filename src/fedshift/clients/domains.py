"""A loaded data set: samples with a label and a domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.clients.preparation import Column
from fedshift.errors import FedshiftError

KINDS = (torch.uint8, torch.int64, torch.float32)


@dataclass(frozen=True)
class DomainData:
    """A loaded data set; a FedshiftError names a field with a wrong type, shape, length or number.

    Attributes:
        x: inputs (N, ...), uint8 images (channels, height, width), int64 token ids (length,) or float32. They may
            be mapped from a file (``torch.from_file``): only the samples of batches are read, whatever their
            number.
        y: labels (N,), int64.
        domain: the domain of each sample, (N,), int64.
        domains: the domains' names.
        classes: the classes' names.
        group: samples from one original share a group, (N,); a split keeps groups whole.
        environment: of a data set with custom environments, the environment of each sample, (N,); 0 is what clients
            train on. None: a protocol splits samples.
        environments: the environments' names; clients train on the first.
        train_environment: the environment in which each sample was collected, (N,), int64, if that is not its
            domain; samples that no client trains on may have any number. None: each domain is an environment.
        train_environments: the names of these environments.
        notes: notes for readers on how the data were read.
        where: for messages, maps a sample to its file or row; None: unknown.
        columns: of a table, the columns of x (N, columns). Where rows are prepared, x is float64, NaN is a missing
            cell, and a category is its number among the column's.
        channels: of signals x (N, channels, time), the channels' names; empty if unknown.
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    group: Tensor
    environment: Tensor | None = None
    environments: tuple[str, ...] = ()
    train_environment: Tensor | None = None
    train_environments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    where: Callable[[int], str] | None = None
    columns: tuple[Column, ...] = ()
    channels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_fields()

    def check_fields(self) -> None:
        """Raise an error if a field has a wrong type, shape, length or number."""
        _check_inputs(self.x, len(self.columns))
        for name in ("domains", "classes", "environments", "train_environments", "channels"):
            _check_strings(name, getattr(self, name))
        if len(self.channels) not in (0, count := self.x.shape[1]):
            raise FedshiftError(f"channels has {len(self.channels)} names, but x has {count}; name all or none.")
        numbered = {"y": self.classes, "domain": self.domains, "group": None}
        if self.environment is not None:
            numbered["environment"] = self.environments
        if self.train_environment is not None:
            numbered["train_environment"] = self.train_environments
        for name, names in numbered.items():
            _check_numbers(name, getattr(self, name), len(self.x), names)

    def __repr__(self) -> str:
        shape = tuple(self.x.shape[1:])
        return f"DomainData({len(self.y)} of shape {shape}, domains: {len(self.domains)}, classes: {len(self.classes)})"

    def place(self, row: int) -> str:
        """A sample's name in messages."""
        return f"sample {row}" if self.where is None else self.where(row)

    def missing(self) -> list[tuple[str, str]]:
        """Every (domain, class) without a sample."""
        counts = torch.zeros(len(self.domains), len(self.classes), dtype=torch.int64)
        counts.index_put_((self.domain, self.y), torch.ones_like(self.y), accumulate=True)
        return [(self.domains[d], self.classes[c]) for d, c in (counts == 0).nonzero().tolist()]


@dataclass(frozen=True)
class Unlabelled:
    """Samples of a file without labels, to predict for.

    Attributes:
        x: inputs (N, ...), as in :class:`DomainData`.
        rows: each sample's row in the file, from 0, or its name there; empty if the file is one sample.
        notes: notes for readers on how the file was read.
    """

    x: Tensor
    rows: Sequence[int | str] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Unlabelled({len(self.x)} of shape {tuple(self.x.shape[1:])})"


def _check_inputs(x: object, columns: int) -> None:
    if not isinstance(x, Tensor):
        raise FedshiftError(f"x is of type {type(x).__name__}; give a tensor (N, ...).")
    if columns and x.shape[1:] != (columns,):
        raise FedshiftError(
            f"x has the shape {tuple(x.shape)}, but there are {columns} columns; give ({len(x)}, {columns})."
        )
    if x.dtype not in KINDS and not (columns and x.dtype == torch.float64):
        raise FedshiftError(f"x is {x.dtype}; give uint8 (images), int64 (tokens) or float32.")
    if x.ndim < 2 or not x.numel():
        raise FedshiftError(f"x has the shape {tuple(x.shape)}, so it contains no sample with a number; give (N, ...).")


def _check_strings(name: str, words: object) -> None:
    if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
        raise FedshiftError(f"{name} = {words!r:.200}; give a tuple of strings.")
    twice = next((word for word in words if words.count(word) > 1), None) if len(set(words)) < len(words) else None
    if twice is not None:
        raise FedshiftError(f"{name} contains {twice!r} twice; give each name once.")


def _check_numbers(name: str, numbers: object, samples: int, names: tuple[str, ...] | None) -> None:
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or tuple(numbers.shape) != (samples,):
        found = f"{numbers.dtype} {tuple(numbers.shape)}" if isinstance(numbers, Tensor) else type(numbers).__name__
        raise FedshiftError(f"{name} is {found}; x contains {samples} samples, so give an int64 tensor ({samples},).")
    if names is None:
        return
    wrong = ((numbers < 0) | (numbers >= len(names))).nonzero().flatten().tolist()
    if wrong:
        raise FedshiftError(
            f"{name} is {numbers[wrong[0]].item()} for sample {wrong[0]}, and wrong for {len(wrong)} in all: there are "
            f"{len(names)} names, so it should be from 0 to {len(names) - 1}."
        )
