"""Table preprocessing as a part of a run beside its method's parts, and where its statistics come from.

No page, wrapper or table of results depends on it: :class:`fedshift.core.setup.Setup` adds the parts and the stage to
the method's. Statistics of each site need no exchange: a client computes them from its training rows. Statistics of all
sites are aggregated from uploads in the stage ``preparation``, and sent in every later exchange; where a site adapts
them (ComBat, or a mix of pooled and local columns), they are the part ``common_preparation``, and the client keeps its
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedshift.clients.preparation import Preparation
from fedshift.core.contract import Exchange, LocalWork, Part, Scope, ServerState, Stage, Upload
from fedshift.core.tensors import Replies, Tensors

PREPARATION = "preparation"
COMMON = "common_preparation"


def preparation_part(preparation: Preparation | None) -> dict[str, Part]:
    """The parts with the statistics, initially empty; no parts where rows are not prepared."""
    if preparation is None:
        return {}
    scope: Scope = "down" if preparation.statistics == "pooled" else "client"
    parts = {PREPARATION: Part.state(preparation.empty_statistics(), scope)}
    if scope == "client" and preparation.common is not None:
        parts[COMMON] = Part.state(preparation.common.empty_shared_statistics(), "down")
    return parts


def prepared_first(preparation: Preparation | None, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """A method's stages, after a stage that aggregates statistics of all sites, which every exchange then sends."""
    if preparation is None or preparation.common is None:
        return stages
    part = PREPARATION if preparation.statistics == "pooled" else COMMON
    first = _stage(preparation, preparation.common, part)
    return (first, *(replace(each, exchanges=_sending(each.exchanges, part)) for each in stages))


def _sending(exchanges: tuple[Exchange, ...], part: str) -> tuple[Exchange, ...]:
    return tuple(each if each.sends is None else replace(each, sends=(*each.sends, part)) for each in exchanges)


def _stage(preparation: Preparation, common: Preparation, part: str) -> Stage:
    numbers, categories, effects = len(common.numbers), len(common.codes), common.effects
    uploads = (
        Upload("rows", (), dtype=torch.int64, category="count", bound="total"),
        Upload("present", (numbers,), dtype=torch.int64, category="count", bound="each"),
        Upload("mean", (numbers,), dtype=torch.float64),
        Upload("squares", (numbers,), dtype=torch.float64),
        Upload("frequencies", (categories,), dtype=torch.int64, bound="each"),
    )
    of_covariates = (
        Upload("covariates", (numbers, effects), dtype=torch.float64),
        Upload("covariate_squares", (numbers, effects, effects), dtype=torch.float64),
        Upload("covariate_products", (numbers, effects), dtype=torch.float64),
    )
    places = [preparation.columns.index(column) for column in common.columns]

    def upload(work: LocalWork) -> Mapping[str, Tensor]:
        return common.measured(work.train.x[:, places])

    def merge(state: ServerState, replies: Replies) -> ServerState:
        return state.updated(Tensors(common.shared_by(replies.ups)).under(part))

    declared = (*uploads, *of_covariates) if effects else uploads
    exchange = Exchange(PREPARATION, merge=merge, sends=(), returns=(), uploads=declared, upload=upload)
    return Stage(PREPARATION, 1, (exchange,), participation=1.0, scored=False)
