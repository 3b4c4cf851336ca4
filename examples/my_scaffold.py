"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1 with option II), as docs/tutorial.md builds it.

An absent client's c_k stands still. That of a client whose answer came too late has moved, although c has not.
"""

from typing import Any

import fedshift
from fedshift import FedAvg
from fedshift.page import *


@fedshift.METHODS.register("my-scaffold")
class MyScaffold(FedAvg):
    """FedAvg whose local steps are corrected by control variates."""

    terms = (*FedAvg.terms, "correction")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        parts = super().parts(model)
        return {**parts, "c": Part.zeros_like(parts, "down"), "c_k": Part.zeros_like(parts, "client")}

    def loss(self, net: Net, batch: Batch, context: Context) -> Terms:
        correction = net.of("c") - net.of("c_k")
        return super().loss(net, batch, context) | {"correction": (correction * net.weights).sum()}

    def new_c_k(self, work: LocalWork) -> Tensors:
        c_k, c = work.private.of("c_k"), work.received.of("c")
        drift = work.received - work.trained
        return c_k | (c_k - c + drift / (work.steps * work.lr))

    def keep(self, work: LocalWork) -> Tensors:
        return self.new_c_k(work).under("c_k")

    def change(self, work: LocalWork) -> Tensors:
        return (self.new_c_k(work) - work.private.of("c_k")).under("change")

    def exchange(self, name: str, **changes: Any) -> Exchange:
        change = Upload.like("change", "c", reveals="c_k")
        return super().exchange(name, **{"uploads": (change,), "upload": self.change, **changes})

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        change = replies.mean().of("change")
        c = state.down.of("c") + len(replies) / state.clients * change
        return super().merge(state, replies).updated(c.under("c"))

    def check(self, train: Train) -> None:
        if train.optimiser != "sgd" or train.momentum:
            raise FedshiftError(
                f"my-scaffold needs SGD without momentum, not train.optimiser = '{train.optimiser}' with "
                f"train.momentum = {train.momentum:g}: --set train.optimiser=sgd --set train.momentum=0"
            )
