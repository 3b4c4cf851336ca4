"""FedGen: a generator on the server learns from the clients' heads, and teaches the clients.

Zhu, Hong and Zhou, Data-free knowledge distillation for heterogeneous federated learning, ICML 2021, Algorithm 1, with
the losses of the public code, which are not those of the paper's Eq. 4 and 5. The server moves G, after the clients'
training and before the averaging, with the heads h_k that came: for labels y and noise e the mean over samples of

    sum_k (n_{k,y} / sum_j n_{j,y}) CE(h_k(G(y)), y),  plus  eta exp(mean_{ij} -||e_i - e_j||^2 ||G_i - G_j||_1).

From the second round on a client minimises CE + a CE(h(G(y~)), y~) + b KL(sg softmax(h(G(y))) || p(.|x)), with y the
batch's labels and y~ drawn anew.

Choices:

- The first sum is of each head's own cross-entropy (public code). The paper's Eq. 4 has that of the softmax of the mean
  logits, with labels drawn by their frequency, and its Eq. 5 has no term with b.
- a and b are alpha and beta times 0.98^(t-1) in round t (public code). It takes plain SGD
  steps at 0.01; with weights of 10, steps that FedAvg can take (0.05 with momentum 0.9) diverge.
- The diversity term takes means over dimensions (public code). With the norms as they are printed it is about e^-130
  for a fresh G with d = 64, which leaves no gradient.
- n_{k,c} counts all of a client's training samples; the public code counts those of a round's batches, and one more.
- Labels y of the server are uniform over the classes that the round's clients have, labels y~ of a client over those
  that any client was seen to have (public code). There are as many y~ as the batch has samples.
- G reads noise that is uniform in [0, 1), is in evaluation mode on the clients, and its Adam goes on from round to
  round. There is no other decay of a client's learning rate (the public code's is 0.99 a round).
- In the first round G is untrained and both of its terms are off. If nobody answered then, the second meets it so.
- Absent clients, and late ones, are not among the teachers, nor in the mean; nothing of a client's is kept.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.classes import CLASS_COUNTS, COUNTS, newest_counts, no_counts, of_each
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.generator import BatchNormSize, labels_among, logits_of_each, make_generator
from fedshift.page import *


def taught(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """The mean over samples of sum_k (n_{k,y} / sum_j n_{j,y}) CE(logits_k, y).

    Args:
        logits: of every client's head, (clients, B, classes).
        y: labels (B,).
        counts: samples of each client of each class, (clients, classes); nobody teaches a class that nobody has.
    """
    shares = counts / counts.sum(dim=0).clamp(min=1)
    risks = -logits.log_softmax(dim=2)[:, torch.arange(len(y), device=y.device), y]
    return (shares.to(risks)[:, y] * risks).sum(dim=0).mean()


def likeness(noise: Tensor, z: Tensor) -> Tensor:
    """exp(mean_{ij} -||e_i - e_j||^2 ||z_i - z_j||_1), with means over dimensions, in (0, 1].

    Args:
        noise: e, (B, k).
        z: what was made of it, (B, d).
    """
    apart, made_apart = (rows.unsqueeze(0) - rows.unsqueeze(1) for rows in (noise, z))
    return (-apart.square().mean(dim=2) * made_apart.abs().mean(dim=2)).mean().exp()


class FedGen(FedAvg):
    """FedAvg whose clients learn from a generator that the clients' heads taught; alpha = beta = 0 is FedAvg."""

    paper: ClassVar[str] = "Zhu, Hong and Zhou, ICML 2021, Algorithm 1"
    uploads: ClassVar[tuple[Upload, ...]] = (CLASS_COUNTS,)
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "domainnet": {"generator_steps": 5, "beta": 1.0, "alpha": 0.5},
        "pacs": {"generator_steps": 5, "beta": 1.0, "alpha": 0.5},
        "office-caltech-10": {"generator_steps": 5, "beta": 0.5, "alpha": 1.0},
        "camelyon17": {"generator_steps": 5, "beta": 1.0, "alpha": 1.0},
        "iwildcam": {"generator_steps": 5, "beta": 1.0, "alpha": 1.0},
    }

    alpha: NonNegative = setting(
        10.0,
        help="weight of the cross-entropy on generated representations, before its decay",
        source="public code; presets: FedCiR's baselines",
        search=Range(0.1, 10, log=True),
    )
    beta: NonNegative = setting(
        10.0,
        help="weight of the divergence from what generated representations predict, before its decay",
        source="public code; presets: FedCiR's baselines",
        search=Range(0.1, 10, log=True),
    )
    decay: Fraction = setting(
        0.98, help="what alpha and beta are multiplied by after every round", source="public code"
    )
    eta: NonNegative = setting(1.0, help="weight of the generator's diversity term", source="public code")
    generator_steps: Steps = setting(50, help="server steps on the generator a round", source="public code")
    generator_batch: BatchNormSize = setting(32, help="labels and noise vectors a server step", source="public code")
    generator_lr: LearningRate = setting(
        3e-4, help="learning rate of the generator's Adam", source="public code", search=Range(1e-5, 1e-2, log=True)
    )
    generator_decay: Fraction = setting(
        0.98, help="what that learning rate is multiplied by after every round", source="public code"
    )
    generator_weight_decay: NonNegative = setting(
        1e-2, help="weight decay of the generator's Adam", source="public code"
    )
    generator_hidden: Width = setting(256, help="width of the generator's hidden layer", source="public code")
    generator_noise: Width = setting(32, help="dimension of the generator's noise", source="public code")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, the generator, and how many samples of each class there are."""
        sizes = model.classes, self.generator_noise, self.generator_hidden, model.dim
        generator = model.initialised("generator", lambda: make_generator(*sizes))
        own = {"generator": Part(generator, "down"), COUNTS: no_counts(model)}
        return super().parts(model) | own

    # On a client --------------------------------------------------------------------------------

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """Noise for the batch's labels; as many labels, and noise for them."""
        return {"noise_of_batch": Draw((batch, self.generator_noise), "uniform"), **self.generated(model, batch)}

    def generated(self, model: ModelBuilder, count: int) -> Draws:
        """What labels (count,) are made of, and the noise (count, k) that G reads beside them."""
        return {"labels": Draw((count,), "uniform"), "noise": Draw((count, self.generator_noise), "uniform")}

    def terms(self) -> dict[str, Term]:
        """CE + a CE(h(G(y~)), y~) + b KL(sg softmax(h(G(y))) || p(.|x)); the first alone in the first round."""
        own = {"generated": Term(self.generated_risk, since=2), "distilled": Term(self.divergence, since=2)}
        return super().terms() | own

    def generated_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """A CE(h(G(y~)), y~)."""
        labels = labels_among(net.value(COUNTS), context.noise["labels"])
        with torch.no_grad():
            z = net.generator(context.noise["noise"], labels)
        return self.alpha * self.decay ** (context.round - 1) * F.cross_entropy(net.head(z), labels)

    def divergence(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """B KL(sg softmax(h(G(y))) || p(.|x))."""
        with torch.no_grad():
            predicted = net.head(net.generator(context.noise["noise_of_batch"], batch.y)).log_softmax(dim=1)
        logits = batch.once(net.head, batch.z)
        divergence = (predicted.exp() * (predicted - logits.log_softmax(dim=1))).sum(dim=1).mean()
        return self.beta * self.decay ** (context.round - 1) * divergence

    def upload(self, work: LocalWork) -> Mapping[str, Tensor]:
        """How many training samples of each class the client has."""
        return {COUNTS: work.counts}

    # On the server ------------------------------------------------------------------------------

    def server_phases(self) -> Phases:
        """Steps on the generator."""
        adam = Optimiser(
            "adam", lr=self.generator_lr, weight_decay=self.generator_weight_decay, decay=self.generator_decay
        )
        terms = {"taught": Term(self.taught), "diversity": Term(self.diversity, self.eta)}
        ensemble = Objective("ensemble", terms, ("generator",), self.generated, adam)
        return (Phase("generator", (ensemble,), steps=self.generator_steps, batch=self.generator_batch),)

    def given(self, net: Net, context: Context) -> tuple[Tensor, Tensor]:
        """G(y), and labels y among those that the round's clients have."""
        counts = of_each(context.replies, COUNTS).sum(dim=0)
        y = labels_among(counts, context.noise["labels"])
        return net.generator(context.noise["noise"], y), y

    def taught(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The cross-entropy of each uploaded head, weighed by how many of the class it saw."""
        z, y = batch.once(self.given, net, context)
        logits = logits_of_each(net.parts["head"], context.replies, z)
        return taught(logits, y, of_each(context.replies, COUNTS))

    def diversity(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The likeness of what G gives."""
        return likeness(context.noise["noise"], batch.once(self.given, net, context)[0])

    def after_mean(self, state: ServerState, replies: Replies) -> Mapping[str, Tensor]:
        """The counts of labels."""
        return {COUNTS: newest_counts(replies, state.down[COUNTS])}
