"""FedPIN: personalised invariant learning, with the global invariant features as anchor.

Tang et al., Causally motivated personalized federated invariant learning with shortcut-averse
information-theoretic regularization, ICML 2024. Global objective: Eq. 4 and Proposition 4.2; local
objective: Eq. 7 and Proposition 4.6; schedule: Algorithm 1; settings: Appendix E.3.

With R the cross-entropy, Phi an encoder and omega a head, a round at client u is

1. ``shortcut``, K steps: Psi_u, omega_psi minimise R(omega_psi(Psi_u));
2. ``personal``, K steps: Phi_u, omega_u minimise R(omega_u(Phi_u)) + lam * L_con + gamma * Var(Phi_u(x)), where
   L_con = -log(e^{s(Phi_u(x), Phi_g(x))} / (e^{s(Phi_u(x), Phi_g(x))} + sum_{x' in B} e^{s(Phi_u(x), Psi_u(x'))})),
   s = cosine / temperature, Phi_g as received and Psi_u fixed;
3. ``global``, R steps of R(omega_g(Phi_g)) + alpha (R(omega_g(Phi_g)) - min over omega_a of R(omega_a(Phi_g, u))).

Phi_g and omega_g are averaged, all that is u's own stays, and u predicts with omega_u(Phi_u).

Choices, where the paper leaves something open:

- The global phase and its choices are those of :mod:`fedshift.methods.fedpin_global`.
- Batch statistics: what a step moves is in training mode, the rest in evaluation mode, Phi_g as an anchor too.
- ``anchor``: the cosine compares features z, as printed ("features"), or class probabilities softmax(omega(z))
  ("predictions", ours). Features can stay within an angle e of the anchor's, which the cosine sees as e^2 / 2 only,
  while a head makes all of a shortcut that lies in that angle; predictions leave no such room.
- Var is the sum over dimensions of the biased batch variance; temperature 0.5.
- ``personal_unit``: K counts steps in Algorithm 1 and epochs in E.3; steps by default, a thirtieth of the work.
- ``personal_lr`` is the personalised learning rate eta; the global one, beta, is that of ``[train]``.
- ``start``: Phi_u and Psi_u start from the values that Phi_g starts from, or from a draw for each of the two, equal
  for all clients. It is Phi_g of round 1 whenever the client first takes part.
- A client that never trained is predicted for with the global model, and the mean is uniform.
- A term whose weight is 0 is left out with all that only it needs: with
  lam = 0 neither Psi_u nor the shortcut phase. With alpha = lam = gamma = 0 it is FedAvg beside local training.
- Everything private of an absent client stands still, while Phi_g moves on.

The paper trains everything by Adam at one learning rate, 1e-4 (PACS: 1e-2): ``[train] optimiser = "adam"``. Plain SGD
at usual rates diverges under such an alpha. :class:`Anchored` is the row GM-L2 of Table 2; its rows lambda = 0 and
gamma = 0 are variants in the list of methods.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedpin_global import GlobalModel
from fedshift.methods.personal import PersonalCopy
from fedshift.page import *

PERSONAL, SHORTCUT = PersonalCopy("personal"), PersonalCopy("shortcut")


def contrast(personal: Tensor, anchor: Tensor, shortcut: Tensor, temperature: float) -> Tensor:
    """L_con (Proposition 4.6), mean over the batch.

    Args:
        personal: Phi_u(x), (B, d).
        anchor: Phi_g(x), (B, d): row i is the positive of row i.
        shortcut: Psi_u(x'), (B', d): every row is a negative of every row.
        temperature: tau, above 0.
    """
    z = F.normalize(personal, dim=1)
    positive = (z * F.normalize(anchor, dim=1)).sum(dim=1, keepdim=True) / temperature
    negative = z @ F.normalize(shortcut, dim=1).T / temperature
    return (torch.cat([positive, negative], dim=1).logsumexp(dim=1, keepdim=True) - positive).mean()


def total_variance(z: Tensor) -> Tensor:
    """Var(z): the biased variance over the batch z (B, d), summed over dimensions."""
    return z.var(dim=0, correction=0).sum()


class Personalised(GlobalModel):
    """The global model, and beside it a personal model of each client, which predicts for that client."""

    personal_steps: Steps = setting(10, help="K: steps of each model of the client's own a round", source="Alg. 1, E.3")
    personal_unit: Literal["steps", "epochs"] = setting("steps", help="what K counts", source="Alg. 1; E.3")
    personal_lr: LearningRate | None = setting(
        None,
        help="eta: learning rate of a client's own models; by default that of [train]",
        source="Alg. 1, E.3",
        search=Range(1e-5, 1e-2, log=True),
    )
    start: Literal["global", "own"] = setting(
        "global", help="a client's own encoders start from the global one's initial values, or draws of their own"
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The global parts, and Phi_u and omega_u."""
        return {**super().parts(model), **self.copied(PERSONAL, model)}

    def copied(self, copy: PersonalCopy, model: ModelBuilder) -> dict[str, Part]:
        """An encoder and a head that stay on the client, from the initial values that ``start`` says."""
        if self.start == "global":
            return copy.parts(model.encoder(), model.head())
        return copy.parts(model.encoder(f"{copy.name} encoder"), model.head(f"{copy.name} head"))

    def phases(self) -> Phases:
        """The personal phase, with the global model as received, then the global one."""
        return (self.personal_phase(PERSONAL, self.personal_terms()), *super().phases())

    def personal_phase(self, copy: PersonalCopy, terms: dict[str, Term]) -> Phase:
        """K steps or epochs of a loss over a copy."""
        objective = Objective(copy.name, terms, copy.names, optimiser=Optimiser(lr=self.personal_lr))
        return Phase(copy.name, (objective,), steps=lasting(self.personal_steps, self.personal_unit))

    def personal_terms(self) -> dict[str, Term]:
        """What Phi_u and omega_u minimise."""
        return {"personal": Term(PERSONAL.risk)}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of omega_u(Phi_u(x))."""
        return PERSONAL.logits(net, Batch(x)).log_softmax(dim=1)


class FedPIN(Personalised):
    """A personal model near the global invariant features and far from what the client's shortcut model sees."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Algorithm 1"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "colored-mnist": {"alpha": 1e5, "lam": 10.0, "gamma": 6e-6},
        "colored-fashion-mnist": {"alpha": 1e5, "lam": 10.0, "gamma": 6e-6},
        "waterbird": {"lam": 9.0, "gamma": 4e-6},
        "pacs": {"lam": 3.0, "gamma": 1e-5},
    }

    lam: NonNegative = setting(
        10.0, help="weight of the contrast L_con", source="Eq. 7, E.3", search=Range(0.1, 30, log=True)
    )
    gamma: NonNegative = setting(
        6e-6, help="weight of Var(Phi_u(X))", source="Eq. 7, E.3", search=Range(1e-7, 1e-3, log=True)
    )
    anchor: Literal["predictions", "features"] = setting(
        "predictions", help="what the contrast compares: class probabilities or representations", source="ours; Eq. 7"
    )
    temperature: Positive = setting(0.5, help="tau of the contrast; not in the paper", search=(0.1, 0.5, 1.0))

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The global and the personal parts, and Psi_u and omega_psi where the contrast weighs."""
        return {**super().parts(model), **(self.copied(SHORTCUT, model) if self.lam > 0 else {})}

    def phases(self) -> Phases:
        """Shortcut, personal, global."""
        later = super().phases()
        if self.lam == 0:
            return later
        return (self.personal_phase(SHORTCUT, {"shortcut": Term(SHORTCUT.risk)}), *later)

    def personal_terms(self) -> dict[str, Term]:
        """R(omega_u(Phi_u)) + lam * L_con + gamma * Var (Eq. 7)."""
        own = {"contrast": Term(self.contrast, self.lam), "variance": Term(self.variance, self.gamma)}
        return super().personal_terms() | own

    def contrast(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L_con, with the global model as received."""
        own = PERSONAL.features(net, batch) if self.anchor == "features" else PERSONAL.logits(net, batch).softmax(dim=1)
        anchor = self.compared(net, "", context.received, batch.x)
        shortcut = self.compared(net, "shortcut_", Tensors(), batch.x)
        return contrast(own, anchor, shortcut, self.temperature)

    def variance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Var(Phi_u)."""
        return total_variance(PERSONAL.features(net, batch))

    def compared(self, net: Net, which: str, tensors: Tensors, x: Tensor) -> Tensor:
        """What the contrast sees of another model: the features (B, d) or the predictions (B, classes) of inputs x."""
        z = net.frozen(f"{which}encoder", tensors.of("encoder"), x)
        if self.anchor == "features":
            return z
        logits = net.frozen(f"{which}head", tensors.of("head"), z)
        return logits.softmax(dim=1)


class Anchored(Personalised):
    """GM-L2: a personal model kept near the global invariant model's parameters, without a shortcut model.

    Choices: mu is not in the paper; batch-norm parameters that stay on the client are not held.
    """

    paper: ClassVar[str] = "Tang et al., ICML 2024, Table 2 (GM-L2)"
    mu: NonNegative = setting(
        1.0, help="weight of mu/2 ||theta_u - theta_g||^2; not in the paper", search=Range(1e-3, 10, log=True)
    )

    def personal_terms(self) -> dict[str, Term]:
        """R(theta_u) + mu/2 ||theta_u - theta_g||^2."""
        return super().personal_terms() | {"anchor": Term(self.distance, self.mu / 2)}

    def distance(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """||theta_u - theta_g||^2, with theta_g as received."""
        return PERSONAL.distance(net, context.received)


class FedPINLambda0(FedPIN):
    """FedPIN with lambda = 0: a personal model on its own, but for the variance of its features."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Table 2 (lambda = 0)"

    lam: NonNegative = fixed(0.0)
    anchor: Literal["predictions", "features"] = fixed("predictions")
    temperature: Positive = fixed(0.5)


class FedPINGamma0(FedPIN):
    """FedPIN with gamma = 0: the contrast alone."""

    paper: ClassVar[str] = "Tang et al., ICML 2024, Table 2 (gamma = 0)"

    gamma: NonNegative = fixed(0.0)
