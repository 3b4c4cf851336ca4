"""SCAFFOLD: every step is corrected by how far the client's gradient is from the federation's.

Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020, Algorithm 1.
Client k steps along grad F_k(w) - c_k + c, K times with the rate eta, from w_t to w_k. Then its control variate becomes

    option I:   c_k <- grad F_k(w_t), over all of its samples
    option II:  c_k <- c_k - c + (w_t - w_k) / (K eta), the mean of the gradients that it stepped along

and the server, of N clients of which S took part, has w_{t+1} = mean_S w_k and c <- c + |S|/N mean_S (c_k' - c_k),
with c_k' the new variate. With variates of zero a round is FedAvg's.

Choices:

- The correction is the gradient of a term <c - c_k, w> of the loss, so that it is minimised as any other.
- Option I by default (``variate = "gradient"``). It measures the gradient itself, in evaluation mode and without
  augmentation, so any optimiser will do; that is one pass more over the client's samples in every round.
- Option II (``variate = "steps"``), which the paper's experiments have, costs nothing more, but takes gradients on the
  way to w_k for gradients at w_t. With L the loss's smoothness that needs a small K eta L, as the paper's rates make
  it; option II diverges at rates at which option I still gains. (w_t - w_k) / (K eta) is a mean of gradients only if
  every step is eta times one: momentum, Adam and clipping are refused.
- Weight decay is a part of every client's objective, the same for all. Option II has it in c_k, option I does not; both
  end where the mean of F_k, with the decay, is least.
- The server's step is 1, as in the paper's experiments.
- With ``weighting = "samples"`` both means are weighted, so with every client c is the weighted mean of c_k.
- Variates are of the trainable parameters that are sent; batch-norm statistics are averaged, and batch norms that stay
  on the client have variates of zero.
- c_k itself is not sent, but it is the sum of the changes that are, so the server can know it: the upload declares that
  it reveals it.
- An absent client's c_k stands still, and c is still the mean of all. That of a client whose answer came too late has
  moved without c, and from then on c is no longer their mean.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class SCAFFOLD(FedAvg):
    """FedAvg whose local steps are corrected by control variates."""

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020, Algorithm 1"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload.like("change", "variate", reveals="own_variate"),)

    variate: Literal["steps", "gradient"] = setting(
        "gradient",
        help="a client's control variate: the gradient over all of its samples at the model received (option I, one "
        "pass more), or the mean gradient of its steps (option II, plain sgd at small rates only)",
        source="Algorithm 1",
        search=("gradient", "steps"),
    )

    def check(self, train: Train) -> None:
        """Option II takes w_t - w_k for a sum of gradients, which it is under plain SGD alone."""
        if self.variate == "steps":
            why = "method.variate = 'steps' needs plain SGD, unlike method.variate = 'gradient'"
            train.need(why, optimiser="sgd", momentum=0.0, clip="off")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the server's control variate c, and each client's c_k, all 0 at first."""
        parts = super().parts(model)
        own = Part.zeros_like(parts, "client")
        return {**parts, "variate": Part.zeros_like(parts, "down"), "own_variate": own}

    def phases(self) -> Phases:
        """Local training; before it, in option I, the gradient at the model received."""
        return (*([Measure("variate", self.gradient)] if self.variate == "gradient" else []), *super().phases())

    def gradient(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """The gradient of F_k at the weights at work, summed over the batch."""
        risk = self.objective("variate", terms=super().terms()).loss
        return (len(batch.y) * net.gradient(lambda net: risk(net, batch, context))).under("gradient")

    def terms(self) -> dict[str, Term]:
        """F_k(w) + <c - c_k, w>, whose gradient is grad F_k - c_k + c."""
        return super().terms() | {"correction": Term(self.correction)}

    def correction(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """<c - c_k, w>."""
        correction = context.received.of("variate") - net.of("own_variate")
        return (correction * net.weights).sum()

    def renewed(self, work: LocalWork) -> Tensors:
        """The new c_k, by option I or II; where nothing is sent it stays 0."""
        c, c_k = work.received.of("variate"), work.private.of("own_variate")
        if self.variate == "gradient":
            return c_k | work.means.of("gradient").only(c_k).only(work.received)
        return c_k | (c_k - c + (work.received - work.trained) / (work.steps * work.lr))

    def keep(self, work: LocalWork) -> Tensors:
        """c_k <- c_k'."""
        return self.renewed(work).under("own_variate")

    def upload(self, work: LocalWork) -> Tensors:
        """c_k' - c_k."""
        return (self.renewed(work) - work.private.of("own_variate")).under("change")

    def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
        """C + |S|/N times the mean change."""
        c = state.down.of("variate") + len(replies) / state.clients * replies.mean().of("change")
        return c.under("variate")
