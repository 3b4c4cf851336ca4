"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1 with option II), as docs/writing-a-method.md builds it.

The c_k of an absent client does not change. The c_k of a late client changes, although c does not.
"""

import fedshift
from fedshift import FedAvg
from fedshift.page import *


@fedshift.METHODS.register("my-scaffold")
class MyScaffold(FedAvg):
    """FedAvg whose local steps are corrected by control variates."""

    uploads = (Upload.like("change", "c", reveals="c_k"),)

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        parts = super().parts(model)
        return {**parts, "c": Part.zeros_like(parts, "down"), "c_k": Part.zeros_like(parts, "client")}

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"correction": Term(self.correction)}

    def correction(self, net: Net, batch: Batch, context: Context) -> Tensor:
        correction = net.of("c") - net.of("c_k")
        return (correction * net.weights).sum()

    def new_c_k(self, work: LocalWork) -> Tensors:
        c_k, c = work.private.of("c_k"), work.received.of("c")
        drift = work.received - work.trained
        return c_k | (c_k - c + drift / (work.steps * work.lr))

    def keep(self, work: LocalWork) -> Tensors:
        return self.new_c_k(work).under("c_k")

    def upload(self, work: LocalWork) -> Tensors:
        return (self.new_c_k(work) - work.private.of("c_k")).under("change")

    def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
        c = state.down.of("c") + len(replies) / state.clients * replies.mean().of("change")
        return c.under("c")

    def check(self, train: Train) -> None:
        train.need("my-scaffold takes (x - y) / (K lr) for a mean gradient", optimiser="sgd", momentum=0.0)
