"""What prepares rows of a table, as a part of a run beside its method's: whose statistics, and how they are come by.

It is no method's: no page, no wrapper and no table of results knows of it. :class:`fedshift.core.setup.Setup` puts the
part beside the method's and the stage before the method's, and a batch is prepared where samples become inputs.

Statistics of each site alone need no exchange: a client begins with those of its own training rows. Those of all sites
together are merged by the server from what each uploads in the stage ``preparation``, and then sent in every exchange.
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


def preparation_part(preparation: Preparation | None) -> dict[str, Part]:
    """The part with the statistics, which are those of nobody yet; none where rows are not prepared."""
    if preparation is None:
        return {}
    scope: Scope = "client" if preparation.statistics == "site" else "down"
    return {PREPARATION: Part.state(preparation.of_nobody(), scope)}


def prepared_first(preparation: Preparation | None, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """A method's stages, after the one that merges statistics of all sites, which every exchange then sends."""
    if preparation is None or preparation.statistics == "site":
        return stages
    return (_stage(preparation), *(replace(each, exchanges=_sending(each.exchanges)) for each in stages))


def _sending(exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    return tuple(each if each.sends is None else replace(each, sends=(*each.sends, PREPARATION)) for each in exchanges)


def _stage(preparation: Preparation) -> Stage:
    numbers, categories = len(preparation.numbers), len(preparation.codes)
    uploads = (
        Upload("rows", (), dtype=torch.int64, category="count", bound="total"),
        Upload("present", (numbers,), dtype=torch.int64, category="count", bound="each"),
        Upload("mean", (numbers,), dtype=torch.float64),
        Upload("squares", (numbers,), dtype=torch.float64),
        Upload("frequencies", (categories,), dtype=torch.int64, bound="each"),
    )

    def upload(work: LocalWork) -> Mapping[str, Tensor]:
        return preparation.measured(work.train.x)

    def merge(state: ServerState, replies: Replies) -> ServerState:
        statistics = preparation.statistics_of(preparation.merged(replies.ups))
        return state.updated(Tensors(statistics).under(PREPARATION))

    exchange = Exchange(PREPARATION, merge=merge, sends=(), returns=(), uploads=uploads, upload=upload)
    return Stage(PREPARATION, 1, (exchange,), participation=1.0, scored=False)
