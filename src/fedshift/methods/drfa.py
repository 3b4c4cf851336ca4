"""DRFA: the model that is best for the worst mixture of clients.

Deng, Kamani and Mahdavi, Distributionally robust federated averaging, NeurIPS 2020, Algorithm 1:
min_w max_lambda sum_k lambda_k F_k(w), lambda in the simplex. Round t:

1. *train*: m clients, drawn by lambda with replacement, take tau steps from w_t. The mean of their models is w_{t+1};
   w' is the mean of what they were after one step, drawn from the tau and the same for all.
2. *score*: another m of the N clients, drawn uniformly without replacement, measure their loss at w' on a batch. With
   v_k = N/m F_k(w'), 0 for the others, lambda <- projection of lambda + gamma_t tau v on the simplex.

Choices:

- lambda starts at n_k / n, which clients say in a stage before (``counts``, one round, nothing else is sent). A client
  that does not answer there starts at 1/N.
- No lambda_k is below ``floor``, so that none is forgotten: the projection is on the simplex less what that takes. The
  public code raises what is too small after the projection, and divides by the sum.
- gamma_t = gamma decay^(t-1); the public code lowers it before its first use as well, to gamma decay^t, and the theory
  has a constant gamma.
- The batches of *score* are drawn for the round; those of training stay what they would be. With
  ``score_batches = "all"`` the loss is that of all of a client's samples.
- Where clients take unequally many steps, each is caught at the same fraction of its own, and tau is their mean.
- w' has batch-norm statistics of its own, the mean of what they were; batch norms that stay are the client's.
- The mean is over draws: who was drawn twice counts twice. lambda weighs clients by their samples already, so that
  ``weighting = "samples"`` is refused.
- With gamma = 0 lambda stays n_k / n, and every w_t is to the bit what FedAvg makes of the same cohorts, since *score*
  moves nothing else. These are drawn by samples and with replacement, those of :class:`FedAvg` uniformly and without.
- A client that is absent from *train* is not in the means and not asked to score; one that is absent from *score* has
  v_k = 0, and m is the number of those who answered. A late one is treated alike, and its state moves on.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from fedshift.methods.risks import RISK, RiskMeasured
from fedshift.page import *

Floor = Annotated[float, Interval(ge=0, lt=1)]


def on_simplex(point: Tensor, floor: float = 0.0) -> Tensor:
    """The nearest point (N,) whose numbers are at least ``floor`` and add up to 1.

    Numbers above the floor all are lower by the same amount, which is found by sorting (Held, Wolfe and Crowder, 1974).

    Args:
        point: any numbers (N,).
        floor: from 0 to 1/N.
    """
    above = point.double() - floor
    left = 1 - floor * len(point)
    ordered = above.sort(descending=True).values
    excess = (ordered.cumsum(dim=0) - left) / torch.arange(1, len(point) + 1, device=point.device)
    kept = int((ordered > excess).sum().clamp_min(1))
    return ((above - excess[kept - 1]).clamp_min(0) + floor).to(point.dtype)


class DRFA(RiskMeasured):
    """FedAvg with clients drawn by weights that grow where the loss is large; gamma = 0 leaves the weights alone."""

    paper: ClassVar[str] = "Deng, Kamani and Mahdavi, NeurIPS 2020, Algorithm 1"

    gamma: NonNegative = setting(0.1, help="step size of the clients' weights", search=Range(1e-3, 1, log=True))
    decay: Fraction = setting(
        0.9, help="factor of gamma from round to round; 1: a constant gamma", source="public code"
    )
    floor: Floor = setting(1e-3, help="smallest weight of a client, below 1 / clients (public code)")
    score_batches: Literal["all"] | Steps = setting(1, help="batches on which a client's loss is measured")

    def check(self, train: Train) -> None:
        """Clients are not weighed by their samples twice."""
        if self.weighting == "samples":
            raise FedshiftError(
                "method.weighting = 'samples' is not for DRFA, which draws clients by weights that start at their part "
                "of the samples: leave it at 'uniform'."
            )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the model w' that is scored, lambda (N,), 1/N each at first, and the steps tau.

        Raises:
            FedshiftError: the floor leaves nothing to distribute.
        """
        if self.floor * model.clients >= 1:
            raise FedshiftError(
                f"method.floor = {self.floor:g} leaves {model.clients:,} clients nothing to differ in: set it below "
                f"1 / {model.clients:,}, such as --set method.floor={0.1 / model.clients:.1g}."
            )
        n, scored = model.clients, nn.ModuleDict({name: part.module for name, part in super().parts(model).items()})
        return {
            **super().parts(model),
            "scored": Part(scored.requires_grad_(False), "down", apart=True),
            "mixture": Part.state({"weights": torch.full((n,), 1 / n), "steps": torch.zeros(())}, "server"),
        }

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """Counting, then rounds of training and scoring."""
        count = Exchange("count", (), self.merge_counts, sends=(), returns=(), counted=True)
        counts = Stage("counts", 1, (count,), participation=1.0, scored=False)
        return (counts, *(self.with_scores(stage) for stage in super().stages(rounds)))

    def with_scores(self, stage: Stage) -> Stage:
        """A stage of training, with clients drawn by lambda, and scoring after it in each round."""
        (train,) = stage.exchanges
        caught = tuple(Upload.like(f"caught.{part}", part) for part in self.moves())
        steps = Upload("steps", dtype=torch.int64, category="count", bound="steps")
        train = replace(train, uploads=(*caught, steps), upload=self.caught)
        batches = None if self.score_batches == "all" else self.score_batches
        score = Exchange(
            "score",
            (Measure(RISK, self.summed_risk, steps=batches),),
            self.merge_scores,
            sends=("scored",),
            returns=(),
            uploads=self.uploads,
            upload=self.upload,
            begin=self.begin_scored,
            select=uniform,
        )
        return replace(stage, exchanges=(train, score))

    # Counting -----------------------------------------------------------------------------------

    def merge_counts(self, state: ServerState, replies: Replies) -> ServerState:
        """lambda_k = n_k / n; of N clients those who did not answer keep 1/N, as if they had the mean number."""
        weights = state.server.of("mixture")["weights"].clone()
        counts = weights.new_tensor(replies.weights)
        weights[replies.clients] = counts / counts.mean() / state.clients
        return state.updated(Tensors({"weights": on_simplex(weights, self.floor)}).under("mixture"))

    # Training -----------------------------------------------------------------------------------

    def select(
        self, state: ServerState, clients: Sequence[int], count: int, generator: torch.Generator
    ) -> Sequence[int]:
        """``count`` draws by lambda, with replacement."""
        weights = state.server.of("mixture")["weights"].cpu()[list(clients)]
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
        return [clients[place] for place in drawn.tolist()]

    def phases(self) -> Phases:
        """Local training, of which a step is caught."""
        return (Phase("train", (self.objective("train"),), snapshot=True),)

    def caught(self, work: LocalWork) -> Mapping[str, Tensor]:
        """The model after the step that was drawn, and how many steps there were."""
        return work.measured.of("snapshot").of_parts(self.moves()).under("caught") | {"steps": torch.tensor(work.steps)}

    def after_mean(self, state: ServerState, replies: Replies) -> Tensors:
        """The mean model at the drawn step, and the mean number of steps."""
        steps = torch.tensor([float(up["steps"]) for up in replies.ups])
        tau = Tensors({"steps": steps.mean().to(state.server.of("mixture")["weights"])}).under("mixture")
        caught = replies.mean().of("caught").under("scored")
        return caught | tau

    # Scoring ------------------------------------------------------------------------------------

    def begin_scored(self, private: Tensors, received: Down) -> Tensors:
        """The model that is scored in the place of the one that trains; batch norms that stay are the client's."""
        scored = received.of("scored")
        return scored.only(scored.keys() - private.keys())

    def merge_scores(self, state: ServerState, replies: Replies) -> ServerState:
        """Lambda <- projection of lambda + gamma_t tau v."""
        mixture = state.server.of("mixture")
        weights, tau = mixture["weights"], mixture["steps"]
        v = torch.zeros_like(weights)
        v[replies.clients] = torch.stack([up[RISK] for up in replies.ups]) * (state.clients / len(replies))
        gamma = self.gamma * self.decay ** (state.round - 1)
        return state.updated(Tensors({"weights": on_simplex(weights + gamma * tau * v, self.floor)}).under("mixture"))
