"""Federated learning when clients' features differ.

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.api import Comparison, Forecast, compare, estimate, experiment, grid, index, load, resume, run
    from fedshift.core.contract import (
        Batch,
        Context,
        Exchange,
        LocalWork,
        Measure,
        Method,
        Objective,
        Optimiser,
        Part,
        Phase,
        ServerState,
        Stage,
        Terms,
    )
    from fedshift.core.net import Net
    from fedshift.errors import FedshiftError
    from fedshift.methods.client2vec.client2vec import Client2Vec
    from fedshift.methods.fedavg import FedAvg
    from fedshift.methods.fedavgm import FedAvgM
    from fedshift.methods.fedbn import FedBN
    from fedshift.methods.fedcir import FedAlign, FedCiR, FedReg
    from fedshift.methods.feddyn import FedDyn
    from fedshift.methods.fediir import FedIIR
    from fedshift.methods.fedlc import FedLC
    from fedshift.methods.fedpin import Anchored, FedPIN, WithoutContrast, WithoutVariance
    from fedshift.methods.fedpin_global import FineTuned, GlobalModel
    from fedshift.methods.fedprox import FedProx
    from fedshift.methods.fedsr import FedCMI, FedL2R, FedSR
    from fedshift.methods.fraug import FRAug
    from fedshift.methods.head_retraining import HeadRetraining
    from fedshift.methods.moon import MOON
    from fedshift.methods.references import Centralised, Single
    from fedshift.runs.run import Run
    from fedshift.settings.catalogue import DATASETS, METHODS, MODELS, PARTITIONS, PROTOCOLS, Range, setting
    from fedshift.settings.experiment import Experiment
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
    "Draw",
    "Exchange",
    "Experiment",
    "FRAug",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCMI",
    "FedCiR",
    "FedDyn",
    "FedIIR",
    "FedL2R",
    "FedLC",
    "FedPIN",
    "FedProx",
    "FedReg",
    "FedSR",
    "FedshiftError",
    "FineTuned",
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
    "Phase",
    "Range",
    "Run",
    "ServerState",
    "Single",
    "Stage",
    "Terms",
    "WithoutContrast",
    "WithoutVariance",
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
    "api": ("Comparison", "Forecast", "compare", "estimate", "experiment", "grid", "index", "load", "resume", "run"),
    "core.contract": (
        "Batch",
        "Context",
        "Exchange",
        "LocalWork",
        "Measure",
        "Method",
        "Objective",
        "Optimiser",
        "Part",
        "Phase",
        "ServerState",
        "Stage",
        "Terms",
    ),
    "core.net": ("Net",),
    "errors": ("FedshiftError",),
    "methods.client2vec.client2vec": ("Client2Vec",),
    "methods.fedavg": ("FedAvg",),
    "methods.fedavgm": ("FedAvgM",),
    "methods.fedbn": ("FedBN",),
    "methods.fedcir": ("FedAlign", "FedCiR", "FedReg"),
    "methods.feddyn": ("FedDyn",),
    "methods.fediir": ("FedIIR",),
    "methods.fedlc": ("FedLC",),
    "methods.fedpin": ("Anchored", "FedPIN", "WithoutContrast", "WithoutVariance"),
    "methods.fedpin_global": ("FineTuned", "GlobalModel"),
    "methods.fedprox": ("FedProx",),
    "methods.fedsr": ("FedCMI", "FedL2R", "FedSR"),
    "methods.fraug": ("FRAug",),
    "methods.head_retraining": ("HeadRetraining",),
    "methods.moon": ("MOON",),
    "methods.references": ("Centralised", "Single"),
    "runs.run": ("Run",),
    "settings.catalogue": ("DATASETS", "METHODS", "MODELS", "PARTITIONS", "PROTOCOLS", "Range", "setting"),
    "settings.experiment": ("Experiment",),
    "streams": ("Draw",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedshift' has no attribute '{name}'")
    return getattr(import_module(f"fedshift.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
