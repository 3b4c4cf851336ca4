"""How an objective is minimised: its settings, and torch's optimisers without torch's compiler.

That is loaded in every process that makes one of torch's own: a second of work. A site's process trains for a single
message, and would spend most of its time on that. Nothing is compiled here, and the compiler has no part in what an
optimiser does otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from fedshift.core.contract import Objective, Round
from fedshift.core.setup import Setup


class _Light(torch.optim.Optimizer):
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, less the decorator."""
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _patch_step_function(self) -> None:
        """Torch's records every step for its profiler, which takes a tenth of a small step."""


class SGD(_Light, torch.optim.SGD):
    """As torch's."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(_Light, torch.optim.Adam):
    """As torch's."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


@dataclass(frozen=True)
class Settings:
    """How an objective is minimised, all said."""

    name: str
    lr: float
    momentum: float
    weight_decay: float
    fused: bool

    def optimiser(self, targets: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimiser of some tensors."""
        if self.name == "adam":
            on_gpu = targets[0].is_cuda  # where the count of steps must be, too, for a step to be recorded
            return Adam(targets, self.lr, weight_decay=self.weight_decay, fused=self.fused, capturable=on_gpu)
        # Fused SGD passes over memory once, but on a CPU takes ten times as long where a layout is not row by row.
        fused = self.fused and all(target.is_contiguous() for target in targets)
        kind = {"fused": True} if fused else {"foreach": True}
        return SGD(targets, self.lr, self.momentum, weight_decay=self.weight_decay, **kind)


def settings_of(setup: Setup, objective: Objective, round: Round) -> Settings:
    """The settings of an objective in a round: its own, and otherwise the experiment's."""
    own, train = objective.optimiser, setup.train
    return Settings(
        own.name or train.optimiser,
        (train.lr_in(round.number, round.stage.rounds) if own.lr is None else own.lr) * own.decay ** (round.number - 1),
        train.momentum if own.momentum is None else own.momentum,
        train.weight_decay if own.weight_decay is None else own.weight_decay,
        fused=setup.device.type in ("cpu", "cuda"),
    )


def counted(state: Mapping[str, Mapping[str, Tensor]]) -> tuple[tuple[str, float], ...]:
    """How many steps Adam has counted for each tensor, on which its rate depends."""
    return tuple((name, float(kinds["step"])) for name, kinds in sorted(state.items()) if "step" in kinds)
