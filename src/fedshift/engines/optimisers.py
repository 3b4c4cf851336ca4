"""torch's optimisers, without torch's compiler, which they load in every process that makes one: a second of work.

A site's process trains for a single message, and would spend most of its time on that. Nothing is compiled here, and
the compiler has no part in what an optimiser does otherwise.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch


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
