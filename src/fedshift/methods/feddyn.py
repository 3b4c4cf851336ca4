"""FedDyn: a regulariser that moves with the client, so that its optimum is the federation's.

Acar et al., Federated learning based on dynamic regularization, ICLR 2021, Algorithm 1 and Eq. 1.
Client k minimises F_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2, then g_k <- g_k - alpha (w_k - w_t). The server,
of m clients of which S took part: h <- h - (alpha/m) sum_S (w_k - w_t), w_{t+1} = mean_S w_k - h/alpha. A
client's stationary point has g_k = grad F_k(w_k), and all stand still only where h = mean_k g_k = 0.

Choices:

- h is divided by *all* clients, as in Algorithm 1. With ``weighting = "samples"`` the sum over S becomes
  |S| times the weighted mean, in h as in w.
- The terms cover the trainable parameters that are sent; batch-norm statistics are averaged, and batch
  norms that stay on the client have no g_k.
- The public code scales alpha by mean(n)/n_k. That is left out: a client does not know the mean count.
- ``max_norm`` clips the gradient of the whole objective, regularisers included, as the public code does.
- w_{t+1} does not depend on alpha's scale once the clients' w_k are given, so alpha -> 0 is not FedAvg: after one
  round with every client it is w_0 + 2 (mean w_k - w_0).
- An absent client's g_k stands still. That of a client whose answer came too late has moved, although h has not;
  a round in which it answers again does not mend the difference.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *


class FedDyn(FedAvg):
    """FedAvg with a dynamic regulariser on each client and its correction on the server."""

    paper: ClassVar[str] = "Acar et al., ICLR 2021, Algorithm 1"

    alpha: Positive = setting(
        0.1, help="weight of the dynamic regulariser", source="Eq. 1", search=Range(1e-3, 1, log=True)
    )
    max_norm: Positive = setting(10.0, help="largest norm of a step's gradient (public code)")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, each client's dual g_k, and the server's correction h, both 0 at first."""
        parts = super().parts(model)
        h = Part.zeros_like(parts, "server")
        return {**parts, "dual": Part.zeros_like(parts, "client"), "correction": h}

    def phases(self) -> Phases:
        """Local training of every part, with clipped gradients."""
        return (Phase("train", (self.objective("train", optimiser=Optimiser(clip=self.max_norm)),)),)

    def terms(self) -> dict[str, Term]:
        """F_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2 (Eq. 1)."""
        own = {"linear": Term(self.linear, -1.0), "proximal": Term(self.proximal, self.alpha / 2)}
        return super().terms() | own

    def linear(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """<g_k, w>."""
        return (net.of("dual") * self.sent(net, context)).sum()

    def proximal(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||w - w_t||^2."""
        return (self.sent(net, context) - context.received).squared_norm()

    def sent(self, net: Net, context: Context) -> Tensors:
        """The weights w at work that have a g_k and are sent."""
        return net.weights.only(net.of("dual").only(context.received))

    def keep(self, work: LocalWork) -> Tensors:
        """g_k <- g_k - alpha (w_k - w_t), which is the gradient of F_k at w_k where training has converged."""
        g = work.private.of("dual")
        return (g - self.alpha * (work.trained - work.received)).under("dual")

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean of the sampled clients less h/alpha; tensors without a correction: the mean."""
        mean, share = replies.mean(), len(replies) / state.clients
        h = state.server.of("correction") - self.alpha * share * (mean - state.shared)
        return state.updated(mean | (mean - h / self.alpha) | h.under("correction"))
