"""The names that a method's module needs: ``from fedshift.page import *`` imports them all."""

from __future__ import annotations

from collections.abc import Callable as Callable
from collections.abc import Mapping as Mapping
from collections.abc import Sequence as Sequence
from dataclasses import dataclass as dataclass
from dataclasses import replace as replace

import torch as torch
from annotated_types import Interval as Interval
from annotated_types import Le as Le
from torch import Tensor as Tensor
from torch import nn as nn

from fedshift.catalogue import From as From
from fedshift.clients.federated import FederatedData as FederatedData
from fedshift.clients.samples import Samples as Samples
from fedshift.core.contract import Batch as Batch
from fedshift.core.contract import Category as Category
from fedshift.core.contract import Context as Context
from fedshift.core.contract import Epochs as Epochs
from fedshift.core.contract import Exchange as Exchange
from fedshift.core.contract import LocalWork as LocalWork
from fedshift.core.contract import Measure as Measure
from fedshift.core.contract import Objective as Objective
from fedshift.core.contract import Optimiser as Optimiser
from fedshift.core.contract import Part as Part
from fedshift.core.contract import Phase as Phase
from fedshift.core.contract import Phases as Phases
from fedshift.core.contract import Scope as Scope
from fedshift.core.contract import ServerState as ServerState
from fedshift.core.contract import Stage as Stage
from fedshift.core.contract import Term as Term
from fedshift.core.contract import Upload as Upload
from fedshift.core.contract import lasting as lasting
from fedshift.core.contract import leave as leave
from fedshift.core.contract import uniform as uniform
from fedshift.core.messages import Down as Down
from fedshift.core.messages import Up as Up
from fedshift.core.method import Averaging as Averaging
from fedshift.core.method import Method as Method
from fedshift.core.method import all_parts as all_parts
from fedshift.core.model import ModelBuilder as ModelBuilder
from fedshift.core.net import Net as Net
from fedshift.core.net import batch_norm_tensors as batch_norm_tensors
from fedshift.core.tensors import SAMPLES as SAMPLES
from fedshift.core.tensors import Replies as Replies
from fedshift.core.tensors import Tensors as Tensors
from fedshift.core.tensors import weighted_mean as weighted_mean
from fedshift.core.training import Train as Train
from fedshift.errors import FedshiftError as FedshiftError
from fedshift.errors import needs as needs
from fedshift.spec import BatchSize as BatchSize
from fedshift.spec import Count as Count
from fedshift.spec import Fraction as Fraction
from fedshift.spec import Layers as Layers
from fedshift.spec import LearningRate as LearningRate
from fedshift.spec import Momentum as Momentum
from fedshift.spec import NonNegative as NonNegative
from fedshift.spec import OptionalSteps as OptionalSteps
from fedshift.spec import OptionalWidth as OptionalWidth
from fedshift.spec import Percent as Percent
from fedshift.spec import Positive as Positive
from fedshift.spec import Probability as Probability
from fedshift.spec import Range as Range
from fedshift.spec import Spec as Spec
from fedshift.spec import Steps as Steps
from fedshift.spec import WholeNumber as WholeNumber
from fedshift.spec import Width as Width
from fedshift.spec import fixed as fixed
from fedshift.spec import setting as setting
from fedshift.streams import Draw as Draw
from fedshift.streams import Draws as Draws
from fedshift.streams import Streams as Streams

F = nn.functional
