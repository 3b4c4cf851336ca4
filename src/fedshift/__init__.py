"""Federated learning when clients' features differ.

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.api import Comparison, compare, load, resume
    from fedshift.core.contract import (
        Batch,
        Context,
        Exchange,
        LocalWork,
        Measure,
        Objective,
        Optimiser,
        Part,
        Phase,
        ServerState,
        Stage,
        Terms,
    )
    from fedshift.core.method import Method
    from fedshift.core.net import Net
    from fedshift.datasets import DATASETS
    from fedshift.errors import FedshiftError
    from fedshift.federation import PARTITIONS, PROTOCOLS
    from fedshift.methods import METHODS
    from fedshift.methods.fedavg import FedAvg
    from fedshift.models import MODELS
    from fedshift.settings.spec import Range, setting
    from fedshift.streams import Draw

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "api",
    "compare": "api",
    "load": "api",
    "resume": "api",
    "DATASETS": "datasets",
    "METHODS": "methods",
    "MODELS": "models",
    "PARTITIONS": "federation",
    "PROTOCOLS": "federation",
    "Range": "settings.spec",
    "setting": "settings.spec",
    "Batch": "core.contract",
    "Context": "core.contract",
    "Exchange": "core.contract",
    "LocalWork": "core.contract",
    "Measure": "core.contract",
    "Method": "core.method",
    "Objective": "core.contract",
    "Optimiser": "core.contract",
    "Part": "core.contract",
    "Phase": "core.contract",
    "ServerState": "core.contract",
    "Stage": "core.contract",
    "Terms": "core.contract",
    "Net": "core.net",
    "Draw": "streams",
    "FedAvg": "methods.fedavg",
    "FedshiftError": "errors",
}

__all__ = [
    "DATASETS",
    "METHODS",
    "MODELS",
    "PARTITIONS",
    "PROTOCOLS",
    "Batch",
    "Comparison",
    "Context",
    "Draw",
    "Exchange",
    "FedAvg",
    "FedshiftError",
    "LocalWork",
    "Measure",
    "Method",
    "Net",
    "Objective",
    "Optimiser",
    "Part",
    "Phase",
    "Range",
    "ServerState",
    "Stage",
    "Terms",
    "compare",
    "load",
    "resume",
    "setting",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedshift' has no attribute '{name}'")
    return getattr(import_module(f"fedshift.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
