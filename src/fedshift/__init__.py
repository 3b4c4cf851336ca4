"""Federated learning when clients' features differ.

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.api import (
        Comparison,
        Forecast,
        bench,
        benchmark,
        compare,
        estimate,
        experiment,
        grid,
        index,
        inspect_data,
        load,
        predict,
        reproduce,
        reproductions,
        resume,
        run,
        tune,
    )
    from fedshift.core.contract import (
        Batch,
        Category,
        Context,
        Exchange,
        LocalWork,
        Loss,
        Measure,
        Objective,
        Optimiser,
        Part,
        Phase,
        Phases,
        Round,
        Scope,
        ServerState,
        Stage,
        Terms,
        Upload,
        keep_nothing,
        leave,
        no_draws,
        no_upload,
        send_nothing_else,
        start_as_received,
    )
    from fedshift.core.frozen import FrozenNetwork, embed, frozen_network
    from fedshift.core.messages import Down, Up
    from fedshift.core.method import Method, tensor_scopes
    from fedshift.core.model import Model, ModelBuilder
    from fedshift.core.net import Net, batch_norm_tensors
    from fedshift.core.servers import SERVERS
    from fedshift.core.servers.server import ServerOptimiser
    from fedshift.core.tensors import SAMPLES, Replies, Tensors, weighted_mean
    from fedshift.core.training import Train
    from fedshift.datasets import DATASETS
    from fedshift.datasets.dataset import Dataset, ImageDataset
    from fedshift.datasets.in_memory import in_memory
    from fedshift.deployment.model import site_model
    from fedshift.errors import FedshiftError, FedshiftWarning
    from fedshift.federation import PARTITIONS, PROTOCOLS
    from fedshift.federation.clients import Client
    from fedshift.federation.domains import DomainData, Unlabelled
    from fedshift.federation.federation import Federation
    from fedshift.federation.inputs import Inputs
    from fedshift.federation.partitions import Partition
    from fedshift.federation.preparation import Column, Preparation
    from fedshift.federation.protocols import Protocol
    from fedshift.federation.samples import Samples
    from fedshift.methods import METHODS
    from fedshift.methods.client2vec import ENCODERS, INDICES
    from fedshift.methods.client2vec.client2vec import Client2Vec
    from fedshift.methods.client2vec.encoder import Encoder
    from fedshift.methods.client2vec.index import ClientIndex
    from fedshift.methods.ditto import Ditto
    from fedshift.methods.drfa import DRFA
    from fedshift.methods.fedadg import FedADG
    from fedshift.methods.fedavg import FedAvg
    from fedshift.methods.fedavgm import FedAvgM
    from fedshift.methods.fedbn import FedBN
    from fedshift.methods.fedcir import FedCiR
    from fedshift.methods.feddyn import FedDyn
    from fedshift.methods.fedgen import FedGen
    from fedshift.methods.fediir import FedIIR
    from fedshift.methods.fedlc import FedLC
    from fedshift.methods.fedopt import FedAdagrad, FedAdam, FedYogi
    from fedshift.methods.fedpac import FedPAC
    from fedshift.methods.fedpin import Anchored, FedPIN
    from fedshift.methods.fedpin_global import FineTuned, GlobalModel
    from fedshift.methods.fedproc import FedProc
    from fedshift.methods.fedprox import FedProx
    from fedshift.methods.fedrep import FedRep
    from fedshift.methods.fedrod import FedRoD
    from fedshift.methods.fedsdr import FedSDR
    from fedshift.methods.fedsr import FedSR
    from fedshift.methods.fraug import FRAug
    from fedshift.methods.fraug_code import FRAugCode
    from fedshift.methods.ftfa import FTFA
    from fedshift.methods.head_retraining import HeadRetraining
    from fedshift.methods.moon import MOON
    from fedshift.methods.partialfed import PartialFed, PartialFedAdaptive
    from fedshift.methods.personal import FineTuning, PersonalCopy
    from fedshift.methods.pfedavg import PFedAvg
    from fedshift.methods.pfedme import PFedMe
    from fedshift.methods.references import Centralised, Single
    from fedshift.methods.scaffold import SCAFFOLD
    from fedshift.models import MODELS
    from fedshift.models.own import own_model
    from fedshift.models.staged import Staged
    from fedshift.reporting.data_report.report import DataReport
    from fedshift.runs.predictions import Predictions
    from fedshift.runs.run import Run
    from fedshift.settings.catalogue import From
    from fedshift.settings.experiment import Experiment
    from fedshift.settings.spec import (
        IN_MEMORY,
        BatchSize,
        Count,
        Fraction,
        Layers,
        LearningRate,
        Momentum,
        NonNegative,
        OptionalSteps,
        OptionalWidth,
        Positive,
        Probability,
        ProperFraction,
        Range,
        Spec,
        Steps,
        WholeNumber,
        Width,
        setting,
    )
    from fedshift.sklearn import FederatedClassifier
    from fedshift.streams import Draw, Draws, Streams
    from fedshift.study.benchmark import Benchmark
    from fedshift.study.reproduction import Reproduction
    from fedshift.study.states import States

__version__ = "0.1.0"

# Threads that wait for work sleep instead of spinning: beside another busy process spinning makes two threads ten times
# slower. It stands here because OpenMP reads it once, when torch is loaded; a user's own value is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "DATASETS",
    "DRFA",
    "ENCODERS",
    "FTFA",
    "INDICES",
    "IN_MEMORY",
    "METHODS",
    "MODELS",
    "MOON",
    "PARTITIONS",
    "PROTOCOLS",
    "SAMPLES",
    "SCAFFOLD",
    "SERVERS",
    "Anchored",
    "Batch",
    "BatchSize",
    "Benchmark",
    "Category",
    "Centralised",
    "Client",
    "Client2Vec",
    "ClientIndex",
    "Column",
    "Comparison",
    "Context",
    "Count",
    "DataReport",
    "Dataset",
    "Ditto",
    "DomainData",
    "Down",
    "Draw",
    "Draws",
    "Encoder",
    "Exchange",
    "Experiment",
    "FRAug",
    "FRAugCode",
    "FedADG",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCiR",
    "FedDyn",
    "FedGen",
    "FedIIR",
    "FedLC",
    "FedPAC",
    "FedPIN",
    "FedProc",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSDR",
    "FedSR",
    "FedYogi",
    "FederatedClassifier",
    "Federation",
    "FedshiftError",
    "FedshiftWarning",
    "FineTuned",
    "FineTuning",
    "Forecast",
    "Fraction",
    "From",
    "FrozenNetwork",
    "GlobalModel",
    "HeadRetraining",
    "ImageDataset",
    "Inputs",
    "Layers",
    "LearningRate",
    "LocalWork",
    "Loss",
    "Measure",
    "Method",
    "Model",
    "ModelBuilder",
    "Momentum",
    "Net",
    "NonNegative",
    "Objective",
    "Optimiser",
    "OptionalSteps",
    "OptionalWidth",
    "PFedAvg",
    "PFedMe",
    "Part",
    "PartialFed",
    "PartialFedAdaptive",
    "Partition",
    "PersonalCopy",
    "Phase",
    "Phases",
    "Positive",
    "Predictions",
    "Preparation",
    "Probability",
    "ProperFraction",
    "Protocol",
    "Range",
    "Replies",
    "Reproduction",
    "Round",
    "Run",
    "Samples",
    "Scope",
    "ServerOptimiser",
    "ServerState",
    "Single",
    "Spec",
    "Stage",
    "Staged",
    "States",
    "Steps",
    "Streams",
    "Tensors",
    "Terms",
    "Train",
    "Unlabelled",
    "Up",
    "Upload",
    "WholeNumber",
    "Width",
    "batch_norm_tensors",
    "bench",
    "benchmark",
    "compare",
    "embed",
    "estimate",
    "experiment",
    "frozen_network",
    "grid",
    "in_memory",
    "index",
    "inspect_data",
    "keep_nothing",
    "leave",
    "load",
    "no_draws",
    "no_upload",
    "own_model",
    "predict",
    "reproduce",
    "reproductions",
    "resume",
    "run",
    "send_nothing_else",
    "setting",
    "site_model",
    "start_as_received",
    "tensor_scopes",
    "tune",
    "weighted_mean",
]

_ROOMS = {
    "api": (
        "Comparison",
        "Forecast",
        "bench",
        "benchmark",
        "compare",
        "estimate",
        "experiment",
        "grid",
        "index",
        "inspect_data",
        "load",
        "predict",
        "reproduce",
        "reproductions",
        "resume",
        "run",
        "tune",
    ),
    "study.benchmark": ("Benchmark",),
    "core.contract": (
        "Batch",
        "Category",
        "Context",
        "Exchange",
        "LocalWork",
        "Loss",
        "Measure",
        "Objective",
        "Optimiser",
        "Part",
        "Phase",
        "Phases",
        "Round",
        "Scope",
        "ServerState",
        "Stage",
        "Terms",
        "Upload",
        "keep_nothing",
        "leave",
        "no_draws",
        "no_upload",
        "send_nothing_else",
        "start_as_received",
    ),
    "core.frozen": ("FrozenNetwork", "embed", "frozen_network"),
    "core.messages": ("Down", "Up"),
    "core.method": ("Method", "tensor_scopes"),
    "core.model": ("Model", "ModelBuilder"),
    "core.net": ("Net", "batch_norm_tensors"),
    "core.servers": ("SERVERS",),
    "core.servers.server": ("ServerOptimiser",),
    "core.tensors": ("Replies", "SAMPLES", "Tensors", "weighted_mean"),
    "core.training": ("Train",),
    "deployment.model": ("site_model",),
    "datasets": ("DATASETS",),
    "datasets.dataset": ("Dataset", "ImageDataset"),
    "datasets.in_memory": ("in_memory",),
    "errors": ("FedshiftError", "FedshiftWarning"),
    "federation": ("PARTITIONS", "PROTOCOLS"),
    "federation.clients": ("Client",),
    "federation.domains": ("DomainData", "Unlabelled"),
    "federation.federation": ("Federation",),
    "federation.inputs": ("Inputs",),
    "federation.partitions": ("Partition",),
    "federation.preparation": ("Column", "Preparation"),
    "federation.protocols": ("Protocol",),
    "federation.samples": ("Samples",),
    "methods": ("METHODS",),
    "methods.client2vec": ("ENCODERS", "INDICES"),
    "methods.client2vec.client2vec": ("Client2Vec",),
    "methods.client2vec.encoder": ("Encoder",),
    "methods.client2vec.index": ("ClientIndex",),
    "methods.ditto": ("Ditto",),
    "methods.fedadg": ("FedADG",),
    "methods.fedavg": ("FedAvg",),
    "methods.fedavgm": ("FedAvgM",),
    "methods.fedopt": ("FedAdagrad", "FedAdam", "FedYogi"),
    "methods.fedbn": ("FedBN",),
    "methods.fedcir": ("FedCiR",),
    "methods.feddyn": ("FedDyn",),
    "methods.fedgen": ("FedGen",),
    "methods.fediir": ("FedIIR",),
    "methods.fedlc": ("FedLC",),
    "methods.fedpin": ("Anchored", "FedPIN"),
    "methods.fedpin_global": ("FineTuned", "GlobalModel"),
    "methods.fedproc": ("FedProc",),
    "methods.fedprox": ("FedProx",),
    "methods.fedsr": ("FedSR",),
    "methods.fraug": ("FRAug",),
    "methods.fraug_code": ("FRAugCode",),
    "methods.head_retraining": ("HeadRetraining",),
    "methods.moon": ("MOON",),
    "methods.personal": ("FineTuning", "PersonalCopy"),
    "methods.references": ("Centralised", "Single"),
    "models": ("MODELS",),
    "reporting.data_report.report": ("DataReport",),
    "runs.predictions": ("Predictions",),
    "study.reproduction": ("Reproduction",),
    "study.states": ("States",),
    "models.own": ("own_model",),
    "models.staged": ("Staged",),
    "runs.run": ("Run",),
    "settings.catalogue": ("From",),
    "settings.experiment": ("Experiment",),
    "settings.spec": (
            "BatchSize",
        "Count",
        "Fraction",
        "IN_MEMORY",
        "Layers",
        "LearningRate",
        "Momentum",
        "NonNegative",
        "OptionalWidth",
        "Positive",
        "ProperFraction",
        "Range",
        "Spec",
        "Steps",
        "WholeNumber",
        "Width",
        "setting",
        "OptionalSteps",
        "Probability",
    ),
    "sklearn": ("FederatedClassifier",),
    "streams": ("Draw", "Draws", "Streams"),
    "methods.drfa": ("DRFA",),
    "methods.ftfa": ("FTFA",),
    "methods.fedpac": ("FedPAC",),
    "methods.fedrep": ("FedRep",),
    "methods.fedrod": ("FedRoD",),
    "methods.fedsdr": ("FedSDR",),
    "methods.pfedavg": ("PFedAvg",),
    "methods.pfedme": ("PFedMe",),
    "methods.partialfed": ("PartialFed", "PartialFedAdaptive"),
    "methods.scaffold": ("SCAFFOLD",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedshift' has no attribute '{name}'")
    return getattr(import_module(f"fedshift.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
