"""FedSDR: find the shortcut features together, then keep each client's own model from them.

Tang, Guo and Zhang, Learning personalized causally invariant representations for heterogeneous federated clients,
ICLR 2024. First all clients together learn features Psi(x) that tell the training environments E apart given the label
y; what does so is a shortcut, as causal features relate to y in the same way everywhere. Then each client's own model
Phi minimises its risk while it is to be independent of Psi given y. Its theory is of linear feature spaces
(FedPIN, Sec. 1).

The paper's public code is an empty repository, so the form of both steps is ours:

1. *Discovery*: Psi and a head e are shared and minimise the cross-entropy of e(Psi(x), y) against the environment,
   which maximises I(E; Psi(X) | Y). e is linear in Psi(x), for each class by itself, so that y and Psi(x) interact. Psi
   has no head for labels: that would take in what is invariant, too.
2. *Removal*: Phi and its head stay on the client and minimise CE + lam D(logits, e(Psi(x), y) | y), with D the linear
   centred kernel alignment within classes, :func:`dependence`: squared covariances, summed over classes, over the same
   of each with itself. It is in [0, 1], does not change with a scale, by which a covariance alone could be dodged, does
   not cancel between classes, and needs products of the batch with itself only. It is taken of what both heads say: of
   features, directions of larger variance that no head reads would hide the shortcut from it (on Colored Fashion-MNIST
   D of Phi(x) and Psi(x) comes near 0 while the model keeps most of the colour).

Choices, also ours:

- A sample's environment is :attr:`Samples.environment`: its domain, or what the data set knows better (the p with which
  colours or backgrounds agree). Clients may have several, and several clients one.
- What leaves a client besides the model says which environments its samples are of: the part of them in each
  (``environments``). By it the server averages Psi and e so that each environment of the round weighs the same, as the
  clients that have it share its weight. With one environment a client and one client an environment it is the mean.
- A client of one environment only sees the label of that one, so its steps alone lead to a constant; what tells
  environments apart is in the mean of the steps. Few local steps a round and many rounds help.
- Psi in the second step is as received, in evaluation mode; its batch norms are therefore averaged with it, also where
  those of the models stay (``bn = "local"``). In round 1 nobody has learned one, so the second step is without D.
- A global model is trained by FedAvg beside them. Phi starts from its initial values, and a client that never trained
  is predicted for with it. All three take the steps that ``[train]`` says, on batches of their own.
- An absent client's own model stands still, while Psi moves on; that of a client whose answer came too late has moved.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import one_hot, stack_replies
from fedshift.methods.personal import PersonalModel
from fedshift.page import *

SHORTCUT = ("shortcut", "environment_head")
ENVIRONMENTS = "environments"  # in a reply: the part of the client's samples that is of each environment


class EnvironmentHead(nn.Module):
    """e(z, y): a linear classifier of environments for each class."""

    def __init__(self, dim: int, classes: int, environments: int) -> None:
        super().__init__()
        self.classes = classes
        self.of_each = nn.Linear(dim, classes * environments)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Logits (B, environments) of features z (B, d) of the classes y (B,)."""
        logits = self.of_each(z).unflatten(1, (self.classes, -1))
        return torch.einsum("bce,bc->be", logits, one_hot(y, self.classes, z))


def dependence(phi: Tensor, psi: Tensor, y: Tensor) -> Tensor:
    """How far phi (B, d) and psi (B, k) depend on each other given y (B,), in [0, 1]: linear CKA within classes.

    With both centred within classes, n_c samples of class c and Cov_c = sum over them of phi psi' / n_c, it is
    sum_c n_c ||Cov_c(phi, psi)||^2 over the root of the same for (phi, phi) and (psi, psi), squared Frobenius norms;
    ||Cov_c||^2 is the mean over pairs of (phi_i . phi_j)(psi_i . psi_j). 0 where one is constant within classes.

    It is 0 only where no linear functions of both are correlated within a class. A batch of n samples a class gives
    independent normal features of d dimensions about 1 / (1 + n / d), so it is the larger the smaller the batch.
    """
    same = (y.unsqueeze(0) == y.unsqueeze(1)).to(phi)
    share = same / same.sum(dim=1)  # takes the mean over a sample's class

    def gram(z: Tensor) -> Tensor:
        centred = z - share @ z
        return (share.sqrt() * (centred @ centred.T)).flatten()

    return F.cosine_similarity(gram(phi), gram(psi), dim=0)


class FedSDR(PersonalModel):
    """A personal model that is independent, given y, of shortcuts that all clients discover together."""

    paper: ClassVar[str] = "Tang et al., ICLR 2024, in a form of ours: it has no public code"
    uploads: ClassVar[tuple[Upload, ...]] = (Upload(ENVIRONMENTS, (None,)),)

    lam: Positive = setting(
        1.0,
        help="weight of the dependence on shortcut features given y",
        source="ours",
        search=Range(0.01, 10, log=True),
    )

    # What it is made of -------------------------------------------------------------------------

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the client's own encoder and head, and Psi and e.

        Raises:
            FedshiftError: clients train in a single environment, in which no shortcut can be told.
        """
        if model.environments < 2:
            raise FedshiftError(
                f"{self.label} tells shortcuts by how environments differ, but all clients train in one: give data "
                "of several (for colored-mnist and waterbird another seed, or more data.train_p)."
            )
        sizes = model.dim, model.classes, model.environments
        head = model.initialised("environment head", lambda: EnvironmentHead(*sizes))
        psi = model.encoder("shortcut encoder")
        return {**super().parts(model), "shortcut": Part(psi, follows_bn=False), "environment_head": Part(head)}

    # On a client --------------------------------------------------------------------------------

    def phases(self) -> Phases:
        """Discovery, removal, and FedAvg's training."""
        removal = Phase("removal", (Objective("removal", self.personal_terms(), self.own.names),))
        discovery = Objective("discovery", {"environment": Term(self.environment_risk)}, SHORTCUT)
        return (Phase("discovery", (discovery,), environments=True), removal, *super().phases())

    def environment_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy of e(Psi(x), y) against the environment."""
        logits = net.environment_head(net.shortcut(batch.x), batch.y)
        return F.cross_entropy(logits, batch.environment)

    def personal_terms(self) -> dict[str, Term]:
        """The risk of Phi + lam D(logits, e(Psi(x), y) | y); the first alone in the first round."""
        return {"personal": Term(self.own.risk), "dependence": Term(self.dependence, self.lam, since=2)}

    def dependence(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """D(logits, e(Psi(x), y) | y), with Psi and e as received."""
        z = net.frozen("shortcut", context.received.of("shortcut"), batch.x)
        shortcut = net.frozen("environment_head", context.received.of("environment_head"), z, batch.y)
        return dependence(self.own.logits(net, batch), shortcut, batch.y)

    def upload(self, work: LocalWork) -> Tensors:
        """The part of the client's samples that is of each environment, (environments,)."""
        like, *_ = work.trained.of("environment_head").values()
        count = torch.bincount(work.train.environment, minlength=len(like) // len(work.counts))
        return Tensors({ENVIRONMENTS: count.to(like) / work.samples})

    # On the server ------------------------------------------------------------------------------

    def merge(self, state: ServerState, replies: Replies) -> ServerState:
        """The mean of the models; in that of Psi and e each environment of the round's clients weighs the same."""
        held = stack_replies(replies, ENVIRONMENTS).cpu().double() * torch.tensor(replies.weights).double().unsqueeze(1)
        weights = (held / held.sum(dim=0).clamp(min=torch.finfo(held.dtype).tiny)).sum(dim=1)
        shortcut = state.shared.of_parts(SHORTCUT)
        return super().merge(state, replies).updated(replies.weighted(weights.tolist()).mean(shortcut))
