r"""Client2Vec: describe every client by a vector before training, and use the vectors in three ways.

Guo et al., Client2Vec: improving federated learning by distribution shifts aware client indexing, 2024, Eq. 1, 3 and
4. It wraps any method that trains an encoder and a head (``base``); ``index`` selects how the vectors are created.

With the index :math:`\beta_i` of client i, the cohort :math:`C^t` with :math:`N_j` samples on client j, and the mean
of the cosines of feature and label index, the similarity to a cohort is

.. math::

    S(\beta_i, C) = \frac{1}{\sum_{j \in C} N_j} \sum_{j \in C} N_j
        \frac{\cos(\beta^f_i, \beta^f_j) + \cos(\beta^l_i, \beta^l_j)}{2}.

Use 1 samples clients that are similar to the last cohort (Eq. 1), use 2 weights updates by similarity to all cohorts
so far (Eq. 3), and use 3 trains features orthogonal to the feature indices :math:`B_f` (Eq. 4):

.. math::

    p_i &\propto \exp(S(\beta_i, C^{t-1}) / \tau) \\
    p_i &\propto q_i \exp\Big( \frac{1}{\lambda_1} \sum_{s \le t} \gamma^{t - s} S(\beta_i, C^s) \Big),
        \qquad q_i = N_i / N \\
    L &= L_{base} + w \|z_P B_f\|_1
        + w\, \mathrm{KL}(\sigma(h(z)) \,\|\, \sigma(h_P(z_P))), \qquad z_P = P z

with :math:`\sigma` the softmax.

**When to choose it.** The index shows domains of clients without their data. No gain of the three uses was measured:
use 3 is level with random directions, use 1 is 0.8 points below FedAvg on CIFAR-10 and 0.7 above on PACS, neither
clear, and all three together, tuned, are -0.2 on held-out domains of frozen PACS features, -1.9 on Heart, +0.2 on
OPT and +0.8 on a held-out angle, none clear; under a colour shortcut +0.7, where an invariant penalty gains 19.
It sends 1.4 to 2.5 times FedAvg's bytes for images, 8 to 12 times for the small models of Heart and OPT.

**Unavailable clients.** A client that misses the index has zeros as vectors and counts as one sample, so it is sampled
and weighted as if equally far from all. A client absent from training is not in the last cohort and may be sampled
again at once.

**Choices.**

- The first cohort is uniform. Sampling without replacement uses Gumbel noise (Kool et al., ICML 2019), which is exact
  at any temperature. Clients of the last :math:`M / (2 |C|)` rounds are excluded, with M clients.
- An index with one part is compared by its single cosine.
- Use 2 replaces sample counts by the weights of Eq. 3 in every exchange of a round; the sum includes the present
  round. The base's server phases read the replies without these weights. For Eq. 3's :math:`q_i` compare with a base
  of ``weighting = "samples"``.
- Use 3: :math:`B_f` has the feature vectors of all clients, and the norm is a mean over the batch of the mean absolute
  entry with normalised rows, or with ``local_form = "sum"`` the paper's sum (220 times as large on CIFAR-10). The KL
  has gradients into both arguments. The terms join every objective that trains encoder and head, and read the mean of
  a probabilistic encoder.
- P and :math:`h_P` are shared; FedDyn and server optimisers average them plainly. With ``projection_scope = "client"``
  they stay on the client, with common initial values. Prediction does not read them.
- A rotation of the vectors is a rotation of P, so use 3 depends only on their lengths and angles: ``index = "random"``
  is the control.
- ``local_weight`` is 1 with a federated index and 5 with a global one (Tables 1 and 7).
- The remembered cohort is the clients that answered.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from fedshift.methods import METHODS
from fedshift.methods.client2vec import INDICES
from fedshift.methods.client2vec.index import COUNTS, FEATURE, LABEL, ClientIndex
from fedshift.methods.client2vec.vectors import similarity
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

PROJECTION = ("projector", "projector_head")  # P and h_P
# one number for each client: past similarity, similarity to the last cohort, rounds since it took part
HISTORY, LAST, SINCE = "history", "last_cohort", "rounds_since"


class Client2Vec(Method):
    """A base method whose clients are sampled, weighted and trained by their index vectors."""

    paper: ClassVar[str] = "Guo et al., 2024, Eq. 1, 3 and 4"

    base: Annotated[FedAvg, From(METHODS)] = setting("fedavg", help="the wrapped method")
    index: Annotated[ClientIndex, From(INDICES)] = setting("dsa-ign", help="the index that describes clients")
    sampling: bool = setting(True, help="use 1: sample clients that are similar to the last cohort", source="Eq. 1")
    aggregation: bool = setting(True, help="use 2: weight clients by similarity to past cohorts", source="Eq. 3")
    local_training: bool = setting(True, help="use 3: features orthogonal to the clients' indices", source="Eq. 4")
    tau: Positive = setting(1.0, help="temperature of sampling", source="Eq. 1", search=(0.1, 0.5, 1.0, 2.0))
    heat: Positive = setting(1.0, help="lambda_1: larger values are closer to sample counts", source="Eq. 3")
    gamma: NonNegative = setting(0.5, help="decay of past cohorts", source="Eq. 3", search=(0.1, 0.5, 0.9))
    local_loss: Literal["both", "orth", "dist"] = setting("both", help="terms of use 3", source="Eq. 4, Table 2")
    local_form: Literal["mean", "sum"] = setting(
        "mean", help="||z_P B_f||_1: mean over normalised clients, or sum over clients as they are", source="Eq. 4: sum"
    )
    projection_scope: Literal["shared", "client"] = setting(
        "shared", help="P and its head: averaged with the model, or kept on each client"
    )
    local_weight: NonNegative | None = setting(
        None, help="weight of use 3; by default 1 with a federated index and 5 with a global one", source="Tables 1, 7"
    )
    compared: Literal["both", "feature", "label"] = setting(
        "both", help="vectors that similarity compares", source="Table 2"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.base, FedAvg) or type(self.base).regroup is not Method.regroup:
            raise self._base_error()
        if self.compared == "label" and not self.index.has_labels():
            raise FedshiftError(
                f"method.compared = 'label', but the index '{INDICES.name_of(self.index)}' has no label vectors: "
                "set method.compared = 'feature', or method.index = 'dsa-ign'."
            )

    def _base_error(self) -> FedshiftError:

        return FedshiftError(
            f"method.base = '{METHODS.name_of(self.base)}': Client2Vec needs a method whose clients share an encoder "
            "and a head, such as 'fedavg'."
        )

    # Parts --------------------------------------------------------------------------------------

    @property
    def prepares(self) -> ClientIndex:
        """The client index."""
        return self.index

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The base's parts, the index, the history of cohorts (clients,), and P with its head."""
        feature_scope: Scope = "down" if self.local_training else "server"
        added = {name: Part.state(torch.zeros(model.clients), "server") for name in (HISTORY, LAST, SINCE)}
        base = all_parts(self.base, model)
        if any(name not in base or base[name].scope != "shared" for name in ("encoder", "head")):
            raise self._base_error()
        index = self.index.parts(model, base, feature_scope)
        if self.local_training:
            length = index[FEATURE].module.state_dict()["value"].shape[1]
            features = base["head"].module.state_dict()["weight"].shape[1]
            projector = model.initialised("projector", lambda: nn.Linear(features, length, bias=False))
            head = model.initialised("projector_head", lambda: nn.Linear(length, model.classes))
            scope = self.projection_scope
            added |= {"projector": Part(projector, scope), "projector_head": Part(head, scope)}
        return base | index | added

    # Stages -------------------------------------------------------------------------------------

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The index, then the base's stages with the three uses."""
        stages = (*self.index.stages(self.base), *(self._wrap_stage(stage) for stage in self.base.stages(rounds)))
        return tuple(self._with_sampling(stage) for stage in stages) if self.sampling else stages

    def _with_sampling(self, stage: Stage) -> Stage:
        first, *later = stage.exchanges
        return replace(stage, exchanges=(replace(first, select=self.select), *later))

    def _wrap_stage(self, stage: Stage) -> Stage:
        return replace(
            stage, exchanges=tuple(self._wrap_exchange(exchange, stage.exchanges[-1]) for exchange in stage.exchanges)
        )

    def _wrap_exchange(self, base: Exchange, last: Exchange) -> Exchange:
        """The base's exchange with uses 2 and 3; the last one of a round stores its cohort."""

        def merge(state: ServerState, replies: Replies) -> ServerState:
            merged = base.merge(state, self.reweight(state, replies) if self.aggregation else replies)
            return self.remember(merged, replies.clients) if base is last else merged

        phases = tuple(self._extend_phase(phase) if isinstance(phase, Phase) else phase for phase in base.phases)
        if phases == base.phases:
            return replace(base, merge=merge)
        averaged = PROJECTION if self.projection_scope == "shared" else ()
        sends = base.sends and (*base.sends, *averaged, FEATURE)
        returns = base.returns and (*base.returns, *averaged)
        return replace(base, phases=phases, sends=sends, returns=returns, merge=merge)

    # Use 1 and 2: similarity to cohorts ---------------------------------------------------------

    def cohort_similarity(self, state: ServerState, cohort: Sequence[int]) -> Tensor:
        """S(beta_i, C) of every client i, (K,)."""
        feature = state.tensors[FEATURE] if self.compared != "label" else None
        label = state.tensors.get(LABEL) if self.compared != "feature" else None
        cosines = similarity(feature, label)
        counts = sample_counts(state, cohort)
        return cosines[:, list(cohort)] @ counts / counts.sum()

    def select(
        self, state: ServerState, clients: Sequence[int], count: int, generator: torch.Generator
    ) -> Sequence[int]:
        """Sample ``count`` clients by Eq. 1, without replacement and without clients of recent rounds."""
        present = torch.tensor(clients)
        scores = state.server[LAST].cpu()[present].double() / self.tau
        recent = state.server[SINCE].cpu()[present]
        resting = (recent > 0) & (recent <= len(clients) / (2 * count))
        uniform = torch.rand(len(clients), generator=generator, dtype=torch.float64)
        gumbel = -(-uniform.log()).log()
        places = (scores + gumbel).masked_fill(resting, -torch.inf).topk(count).indices
        return [clients[i] for i in places.tolist()]

    def reweight(self, state: ServerState, replies: Replies) -> Replies:
        """The replies with the weights of Eq. 3."""
        counts = sample_counts(state, replies.clients)
        similarity = self.history(state, replies.clients)[replies.clients]
        weights = (counts.log() + similarity / self.heat).double().softmax(dim=0)
        return replies.weighted(weights.tolist())

    def history(self, state: ServerState, cohort: Sequence[int]) -> Tensor:
        """The sum of gamma^(t-s) S(beta_i, C^s) over rounds s <= t, (K,)."""
        return self.gamma * state.server[HISTORY] + self.cohort_similarity(state, cohort)

    def remember(self, state: ServerState, cohort: Sequence[int]) -> ServerState:
        """Update the history, the similarity to the cohort and the rounds since participation, (K,) each."""
        since = torch.where(state.server[SINCE] > 0, state.server[SINCE] + 1, 0)
        since[list(cohort)] = 1
        return state.updated(
            {HISTORY: self.history(state, cohort), LAST: self.cohort_similarity(state, cohort), SINCE: since}
        )

    # Use 3: local training ----------------------------------------------------------------------

    def _extend_phase(self, phase: Phase) -> Phase:

        if not self.local_training:
            return phase
        return replace(phase, objectives=tuple(self._extend_objective(objective) for objective in phase.objectives))

    def _extend_objective(self, objective: Objective) -> Objective:
        if not {"encoder", "head"} <= set(objective.moves):
            return objective
        terms = {**objective.terms, **self.local_terms()}
        return replace(objective, terms=terms, moves=(*objective.moves, *PROJECTION))

    def local_terms(self) -> dict[str, Term]:
        """The terms that Eq. 4 adds."""
        by_index = 5.0 if getattr(self.index, "strategy", "") == "global" else 1.0
        weight = by_index if self.local_weight is None else self.local_weight
        terms = {"orth": Term(self.orthogonality, weight), "dist": Term(self.divergence, weight)}
        return {f"index_{name}": term for name, term in terms.items() if self.local_loss in (name, "both")}

    def orthogonality(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||z_P B_f||_1, mean over the batch."""
        projected, indices = batch.once(net.projector, batch.features), net.value(FEATURE)
        if self.local_form == "sum":
            return (projected @ indices.T).abs().sum(dim=1).mean()
        return (projected @ F.normalize(indices, dim=1).T).abs().mean()

    def divergence(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """KL(softmax(h(z)) || softmax(h_P(z_P))), mean over the batch."""
        projected = batch.once(net.projector, batch.features)
        target = net.projector_head(projected).log_softmax(dim=1)
        original = net.head(batch.features).log_softmax(dim=1)
        return (original.exp() * (original - target)).sum(dim=1).mean()


def sample_counts(state: ServerState, cohort: Sequence[int]) -> Tensor:
    """Sample counts of a cohort; 1 where no index was created, as in a dry run of training alone."""
    return state.tensors[COUNTS][list(cohort)].clamp_min(1)
