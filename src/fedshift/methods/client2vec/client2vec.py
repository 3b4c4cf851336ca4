"""Client2Vec: describe every client by a vector before training, and use the vectors three times.

Guo et al., Client2Vec: improving federated learning by distribution shifts aware client indexing, 2024: sampling
(Eq. 1), aggregation (Eq. 3), local training (Eq. 4). It is a wrapper: ``base`` is any method of the catalogue that
trains an encoder and a head, and ``index`` says how the vectors are made (:mod:`fedshift.methods.client2vec.index`).

Choices, where the paper leaves something open:

- The first cohort is drawn uniformly: there is no cohort before it to be similar to.
- An index of one part is compared by its one cosine instead of the mean of two.
- Aggregation (use 2) gives the base's merge the weights p of Eq. 3 in place of sample counts, in every exchange of
  the round; the sum over rounds includes the present one.
- The base's own server phases (FedCiR's generator) see the replies as they came, without those weights.
- Sampling without replacement draws one client after the other among those left, by Gumbel noise (Kool et al., ICML
  2019), which stays exact at any temperature.
- Local training (use 3): B_f holds the feature vectors of all clients, and ||z_P B_f||_1 is a mean over the batch: of
  the mean absolute entry, with rows of norm 1, or, with ``local_form = "sum"``, of the paper's sum over clients, with
  rows as they are. There are as many of them as clients, and their norm was 2.2 on CIFAR-10 in 100 clients (the mean of
  vectors of norm 11 that differ), so the sum weighs 220 times as much there. The divergence is KL(softmax(h(z)) ||
  softmax(h_P(z_P))), as written, with gradients into both. The terms join every objective of the base that moves
  encoder and head; of a probabilistic encoder they read the mean.
- P and h_P are shared, and what the base does to all shared parameters (FedProx's term) holds for them, but FedDyn and
  server optimisers, which name theirs, average them plainly. With ``projection_scope = "client"`` they never leave the
  client: all begin alike, each trains its own, and one that is absent keeps what it had. No prediction reads them.
- All clients have the same B_f, and a rotation of its vectors is one of P and h_P, which are drawn at random, so use 3
  knows of the index only the lengths of its vectors and the angles between them. ``index = "random"`` is the control.
- q_i = N_i / N in Eq. 3 weighs clients by their samples, as all rows of the paper do: put it on, and compare it with, a
  base of ``weighting = "samples"``.
- ``local_weight``: 1 with a federated index and 5 with a global one (Tables 1 and 7).
- The cohort that is remembered is the one that answered. A client that missed the index has zeros for vectors and
  counts as one sample: similar to nobody, it is sampled and weighed as if all were equally far.
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
# A number for every client: past similarity, similarity to the last cohort, rounds since it took part.
HISTORY, LAST, SINCE = "history", "last_cohort", "rounds_since"


class Client2Vec(Method):
    """Any base method, with clients sampled, weighed and trained by what their vectors say."""

    paper: ClassVar[str] = "Guo et al., 2024, Eq. 1, 3 and 4"

    base: Annotated[FedAvg, From(METHODS)] = setting("fedavg", help="the method it is put on")
    index: Annotated[ClientIndex, From(INDICES)] = setting("dsa-ign", help="how clients are described")
    sampling: bool = setting(True, help="use 1: sample clients that are similar to the last cohort", source="Eq. 1")
    aggregation: bool = setting(True, help="use 2: weigh clients by similarity to past cohorts", source="Eq. 3")
    local_training: bool = setting(True, help="use 3: features orthogonal to the clients' indices", source="Eq. 4")
    tau: Positive = setting(1.0, help="temperature of sampling", source="Eq. 1", search=(0.1, 0.5, 1.0, 2.0))
    heat: Positive = setting(1.0, help="lambda_1: the larger, the closer to sample counts", source="Eq. 3")
    gamma: NonNegative = setting(0.5, help="how much past cohorts count", source="Eq. 3", search=(0.1, 0.5, 0.9))
    local_loss: Literal["both", "orth", "dist"] = setting("both", help="terms of use 3", source="Eq. 4, Table 2")
    local_form: Literal["mean", "sum"] = setting(
        "mean", help="||z_P B_f||_1: mean over clients, of norm 1, or sum over clients as they are", source="Eq. 4: sum"
    )
    projection_scope: Literal["shared", "client"] = setting(
        "shared", help="P and its head: averaged as the rest of the model is, or kept on each client"
    )
    local_weight: NonNegative | None = setting(
        None, help="weight of use 3; by default 1 with a federated index and 5 with a global one", source="Tables 1, 7"
    )
    compared: Literal["both", "feature", "label"] = setting("both", help="what similarity compares", source="Table 2")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.base, FedAvg) or type(self.base).regroup is not Method.regroup:
            raise self.unfit()
        if self.compared == "label" and not self.index.has_labels():
            raise FedshiftError(
                f"method.compared = 'label', but the index '{INDICES.name_of(self.index)}' has no label vectors: "
                "set method.compared = 'feature', or method.index = 'dsa-ign'."
            )

    def unfit(self) -> FedshiftError:
        """The error of a base that it cannot be put on."""
        return FedshiftError(
            f"method.base = '{METHODS.name_of(self.base)}': Client2Vec needs a method whose clients share an encoder "
            "and a head, such as 'fedavg'."
        )

    # What it is made of -------------------------------------------------------------------------

    @property
    def prepares(self) -> ClientIndex:
        """The index."""
        return self.index

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The base's parts, the index, the memory of past cohorts, and P with its head."""
        feature_scope: Scope = "down" if self.local_training else "server"
        own = {name: Part.state(torch.zeros(model.clients), "server") for name in (HISTORY, LAST, SINCE)}
        base = all_parts(self.base, model)
        if any(name not in base or base[name].scope != "shared" for name in ("encoder", "head")):
            raise self.unfit()
        index = self.index.parts(model, base, feature_scope)
        if self.local_training:
            length = index[FEATURE].module.state_dict()["value"].shape[1]
            features = base["head"].module.state_dict()["weight"].shape[1]
            projector = model.initialised("projector", lambda: nn.Linear(features, length, bias=False))
            head = model.initialised("projector_head", lambda: nn.Linear(length, model.classes))
            scope = self.projection_scope
            own |= {"projector": Part(projector, scope), "projector_head": Part(head, scope)}
        return base | index | own

    # How it federates ---------------------------------------------------------------------------

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The index, then the base's own stages with the three uses around them."""
        stages = (*self.index.stages(self.base), *(self._wrapped(stage) for stage in self.base.stages(rounds)))
        return tuple(self._sampled(stage) for stage in stages) if self.sampling else stages

    def _sampled(self, stage: Stage) -> Stage:
        first, *later = stage.exchanges
        return replace(stage, exchanges=(replace(first, select=self.select), *later))

    def _wrapped(self, stage: Stage) -> Stage:
        return replace(stage, exchanges=tuple(self._around(each, stage.exchanges[-1]) for each in stage.exchanges))

    def _around(self, base: Exchange, last: Exchange) -> Exchange:
        """The base's exchange with uses 2 and 3; after the last of a round its cohort is remembered."""

        def merge(state: ServerState, replies: Replies) -> ServerState:
            merged = base.merge(state, self.weighed(state, replies) if self.aggregation else replies)
            return self.remembering(merged, replies.clients) if base is last else merged

        phases = tuple(self._extended(phase) if isinstance(phase, Phase) else phase for phase in base.phases)
        if phases == base.phases:
            return replace(base, merge=merge)
        merged = PROJECTION if self.projection_scope == "shared" else ()
        sends = base.sends and (*base.sends, *merged, FEATURE)
        returns = base.returns and (*base.returns, *merged)
        return replace(base, phases=phases, sends=sends, returns=returns, merge=merge)

    # Use 1 and 2: similarity to cohorts ---------------------------------------------------------

    def to_cohort(self, state: ServerState, cohort: Sequence[int]) -> Tensor:
        """S(beta_i, C) of every client i (K,): its similarity to a cohort, weighed by sample counts."""
        feature = state.tensors[FEATURE] if self.compared != "label" else None
        label = state.tensors.get(LABEL) if self.compared != "feature" else None
        cosines = similarity(feature, label)
        counts = sample_counts(state, cohort)
        return cosines[:, list(cohort)] @ counts / counts.sum()

    def select(
        self, state: ServerState, clients: Sequence[int], count: int, generator: torch.Generator
    ) -> Sequence[int]:
        """Eq. 1: p_i ~ exp(S_i / tau), without replacement; 0 for clients of the last M / (2 count) rounds."""
        present = torch.tensor(clients)
        scores = state.server[LAST].cpu()[present].double() / self.tau
        recent = state.server[SINCE].cpu()[present]
        resting = (recent > 0) & (recent <= len(clients) / (2 * count))
        uniform = torch.rand(len(clients), generator=generator, dtype=torch.float64)
        gumbel = -(-uniform.log()).log()
        places = (scores + gumbel).masked_fill(resting, -torch.inf).topk(count).indices
        return [clients[i] for i in places.tolist()]

    def weighed(self, state: ServerState, replies: Replies) -> Replies:
        """Eq. 3: p_i ~ q_i exp(history_i / lambda_1), in the place of the numbers of samples."""
        counts = sample_counts(state, replies.clients)
        profit = self.history(state, replies.clients)[replies.clients]
        weights = (counts.log() + profit / self.heat).double().softmax(dim=0)
        return replies.weighted(weights.tolist())

    def history(self, state: ServerState, cohort: Sequence[int]) -> Tensor:
        """The sum over rounds s <= t of gamma^(t-s) S(beta_i, C^s), for every client i (K,)."""
        return self.gamma * state.server[HISTORY] + self.to_cohort(state, cohort)

    def remembering(self, state: ServerState, cohort: Sequence[int]) -> ServerState:
        """The state after a round: history, similarity to its cohort, and rounds since each client took part."""
        since = torch.where(state.server[SINCE] > 0, state.server[SINCE] + 1, 0)
        since[list(cohort)] = 1
        return state.updated({HISTORY: self.history(state, cohort), LAST: self.to_cohort(state, cohort), SINCE: since})

    # Use 3: local training ----------------------------------------------------------------------

    def _extended(self, phase: Phase) -> Phase:
        """A phase whose objectives that move encoder and head have the terms of Eq. 4 as well."""
        if not self.local_training:
            return phase
        return replace(phase, objectives=tuple(self._with_local_terms(objective) for objective in phase.objectives))

    def _with_local_terms(self, objective: Objective) -> Objective:
        if not {"encoder", "head"} <= set(objective.moves):
            return objective
        terms = {**objective.terms, **self.local_terms()}
        return replace(objective, terms=terms, moves=(*objective.moves, *PROJECTION))

    def local_terms(self) -> dict[str, Term]:
        """Eq. 4 without its first term."""
        by_index = 5.0 if getattr(self.index, "strategy", "") == "global" else 1.0
        weight = by_index if self.local_weight is None else self.local_weight
        terms = {"orth": Term(self.orthogonality, weight), "dist": Term(self.divergence, weight)}
        return {f"index_{name}": term for name, term in terms.items() if self.local_loss in (name, "both")}

    def orthogonality(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||z_P B_f||_1."""
        projected, indices = batch.once(net.projector, batch.features), net.value(FEATURE)
        if self.local_form == "sum":
            return (projected @ indices.T).abs().sum(dim=1).mean()
        return (projected @ F.normalize(indices, dim=1).T).abs().mean()

    def divergence(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """KL(softmax(h(z)) || softmax(h_P(z_P)))."""
        projected = batch.once(net.projector, batch.features)
        kept = net.projector_head(projected).log_softmax(dim=1)
        original = net.head(batch.features).log_softmax(dim=1)
        return (original.exp() * (original - kept)).sum(dim=1).mean()


def sample_counts(state: ServerState, cohort: Sequence[int]) -> Tensor:
    """The cohort's numbers of samples; 1 each where no index was made, as in a dry run of training alone."""
    return state.tensors[COUNTS][list(cohort)].clamp_min(1)
