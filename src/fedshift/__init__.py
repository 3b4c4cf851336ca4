"""Federated learning when clients' features differ.

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.api import Comparison, Forecast, bench, compare, estimate, experiment, grid, index, load, resume, run
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
        Upload,
    )
    from fedshift.core.net import Net
    from fedshift.core.tensors import Replies, Tensors
    from fedshift.errors import FedshiftError, FedshiftWarning
    from fedshift.federation import PARTITIONS, PROTOCOLS
    from fedshift.methods import METHODS
    from fedshift.methods.client2vec.client2vec import Client2Vec
    from fedshift.methods.ditto import Ditto
    from fedshift.methods.fedavg import FedAvg
    from fedshift.methods.fedavgm import FedAvgM
    from fedshift.methods.fedbn import FedBN
    from fedshift.methods.fedcir import FedCiR
    from fedshift.methods.feddyn import FedDyn
    from fedshift.methods.fediir import FedIIR
    from fedshift.methods.fedlc import FedLC
    from fedshift.methods.fedpin import Anchored, FedPIN
    from fedshift.methods.fedpin_global import FineTuned, GlobalModel
    from fedshift.methods.fedprox import FedProx
    from fedshift.methods.fedsr import FedSR
    from fedshift.methods.fraug import FRAug
    from fedshift.methods.head_retraining import HeadRetraining
    from fedshift.methods.moon import MOON
    from fedshift.methods.personal import FineTuning, PersonalCopy
    from fedshift.methods.references import Centralised, Single
    from fedshift.models import MODELS
    from fedshift.runs.run import Run
    from fedshift.settings.experiment import Experiment
    from fedshift.settings.spec import Range, setting
    from fedshift.streams import Draw

__version__ = "0.1.0"

__all__ = [
    "DATASETS",
    "METHODS",
    "MODELS",
    "MOON",
    "PARTITIONS",
    "PROTOCOLS",
    "Anchored",
    "Batch",
    "Centralised",
    "Client2Vec",
    "Comparison",
    "Context",
    "Ditto",
    "Draw",
    "Exchange",
    "Experiment",
    "FRAug",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCiR",
    "FedDyn",
    "FedIIR",
    "FedLC",
    "FedPIN",
    "FedProx",
    "FedSR",
    "FedshiftError",
    "FedshiftWarning",
    "FineTuned",
    "FineTuning",
    "Forecast",
    "GlobalModel",
    "HeadRetraining",
    "LocalWork",
    "Measure",
    "Method",
    "Net",
    "Objective",
    "Optimiser",
    "Part",
    "PersonalCopy",
    "Phase",
    "Range",
    "Replies",
    "Run",
    "ServerState",
    "Single",
    "Stage",
    "Tensors",
    "Terms",
    "Upload",
    "bench",
    "compare",
    "estimate",
    "experiment",
    "grid",
    "index",
    "load",
    "resume",
    "run",
    "setting",
]

_ROOMS = {
    "api": (
        "Comparison",
        "Forecast",
        "bench",
        "compare",
        "estimate",
        "experiment",
        "grid",
        "index",
        "load",
        "resume",
        "run",
    ),
    "core.contract": (
        "Batch",
        "Context",
        "Exchange",
        "LocalWork",
        "Measure",
        "Objective",
        "Optimiser",
        "Part",
        "Phase",
        "ServerState",
        "Stage",
        "Terms",
        "Upload",
    ),
    "core.method": ("Method",),
    "core.net": ("Net",),
    "core.tensors": ("Replies", "Tensors"),
    "datasets": ("DATASETS",),
    "errors": ("FedshiftError", "FedshiftWarning"),
    "federation": ("PARTITIONS", "PROTOCOLS"),
    "methods": ("METHODS",),
    "methods.client2vec.client2vec": ("Client2Vec",),
    "methods.fedavg": ("FedAvg",),
    "methods.fedavgm": ("FedAvgM",),
    "methods.fedbn": ("FedBN",),
    "methods.fedcir": ("FedCiR",),
    "methods.ditto": ("Ditto",),
    "methods.feddyn": ("FedDyn",),
    "methods.fediir": ("FedIIR",),
    "methods.fedlc": ("FedLC",),
    "methods.fedpin": ("Anchored", "FedPIN"),
    "methods.fedpin_global": ("FineTuned", "GlobalModel"),
    "methods.fedprox": ("FedProx",),
    "methods.fedsr": ("FedSR",),
    "methods.fraug": ("FRAug",),
    "methods.head_retraining": ("HeadRetraining",),
    "methods.moon": ("MOON",),
    "methods.personal": ("FineTuning", "PersonalCopy"),
    "methods.references": ("Centralised", "Single"),
    "runs.run": ("Run",),
    "models": ("MODELS",),
    "settings.experiment": ("Experiment",),
    "settings.spec": ("Range", "setting"),
    "streams": ("Draw",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedshift' has no attribute '{name}'")
    return getattr(import_module(f"fedshift.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
