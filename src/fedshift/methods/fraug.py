r"""FRAug: augment the representations of small clients with a shared generator and a local transformation.

Chen, Frikha, Krompass and Tresp, FRAug: tackling federated learning with non-IID features via representation
augmentation, ICCV 2023, Eq. 1-6 of its preprint and Algorithm 1. ``fraug-code`` has the losses of the public code.

Encoder f, head h and generator g are shared; the transformation m (RTNet), batch norm and class prototypes
:math:`\bar u_c` stay on the client. With u = f(x), synthetic representations are (Eq. 3)

.. math::

    \hat u = u + \lambda_{syn}\, m(g(z, y)), \qquad \hat u_c = \bar u_c + \lambda_{syn}\, m(g(z', c)).

On each batch f and h, then g, then m minimise (Eq. 1-2, 5, 6), with H the entropy of the softmax; the synthetic terms
of the first line train the head alone:

.. math::

    L_{f,h} &= \mathrm{CE}(h(u), y) + \mathrm{CE}(h(\hat u), y) + \sum_c \mathrm{CE}(h(\hat u_c), c) \\
    L_g &= \mathrm{CE}(h(\hat u), y) - \alpha\, \mathrm{MMD}(\hat u, u) \\
    L_m &= -H(h(\hat u)) - \sum_c H(h(\hat u_c)) \\
        &\quad + \beta \Big( \mathrm{MMD}(\hat u, u) + \sum_c \mathrm{MMD}(\hat u_c, \bar u_c) \Big)

Prototypes are moving averages of batch means (Eq. 4):
:math:`\bar u_c \leftarrow (1 - \lambda_c) \bar u_c + \lambda_c u_c`.

**When to choose it.** When clients have very few images of each class and are scored on their domain. With 5 images it
is 1.4 points above FedBN on PACS features, but noise of the same norm and a higher learning rate gain as much; with 2
images it is below FedAvg. Elsewhere it is level with ``fedbn`` or, on Digits, up to 4 points below, at many times the
cost.

**Unavailable clients.** Batch norm, RTNet and prototypes of an absent client do not change while the generator does; a
late client has trained them.

**Choices.**

- :math:`\lambda_{syn}` is exp(gamma (t - T)) in round t of T (public code; the paper: an exponential schedule).
- :math:`\lambda_c` is ``prototype_rate`` times exp(-5 (1 - t/R)^2) in the first R = 80 rounds (Laine and Aila, ICLR
  2017), then ``prototype_rate``; the public code's is 0.3 throughout.
- Eq. 4: a class's first batch sets its prototype, a class that is not in the batch keeps it, and a class never seen is
  in no sum. The current batch is included.
- In the steps of g and m :math:`\lambda_{syn}` is 1, since they would barely learn at its small early values. There
  all fixed networks are in evaluation mode (public code); g is trained before m.
- MMD is squared and biased, with five Gaussian kernels around the mean squared distance of both batches, which is not
  differentiated; a single representation uses the bandwidth of the batch.
- m reads the batch and the C class vectors together, so its batch norm covers both. Each of the three objectives draws
  z and z' separately.
- g is averaged with its batch norm. Linear layers before batch norm have no bias. RTNets have different initial
  values.
- Table 3's ablations are ``rtnet``, ``ema_term`` and ``smoothing``. Ours are ``label_smoothing`` of the head's
  cross-entropies, and the controls of ``residual``: Gaussian noise with the norm of each residual in the head's loss,
  or no synthetic representations (FedBN).
- The paper prints no weights and rates; presets have the public code's, of a grid the first that is not 0.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal

from fedshift.methods.classes import smoothed_cross_entropy
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fraug_networks import (
    Prototypes,
    Synthetic,
    bandwidth,
    entropy,
    initial_rtnet,
    make_generator,
    mmd,
    noise_dim,
    pairwise_mmd,
)
from fedshift.page import *


class FRAug(FedAvg):
    """FedBN whose head also learns from representations of a shared generator and a local RTNet."""

    paper: ClassVar[str] = "Chen et al., ICCV 2023, Eq. 1-6"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "pacs": {"alpha": 10.0, "beta": 1.0, "gamma": 0.01},
        "office-home": {"lr_rtnet": 0.025, "alpha": 0.75, "beta": 0.75, "gamma": 0.01},
        "digits": {"alpha": 1.0, "beta": 0.1, "gamma": 0.002},
    }

    bn: Literal["local", "statistics"] = setting(
        "local", help="what stays on the client: all of batch norm, or its statistics; the generator's is averaged"
    )
    alpha: NonNegative = setting(
        1.0,
        help="weight of the MMD that the generator maximises",
        source="Eq. 5",
        search=(0.0, 0.75, 1.0, 1.25, 1.5, 10.0),
    )
    beta: NonNegative = setting(
        1.0,
        help="weight of the MMD that RTNet minimises",
        source="Eq. 6",
        search=(0.0, 0.1, 0.75, 1.0, 1.25, 1.5, 10.0),
    )
    lr_generator: LearningRate = setting(
        0.05, help="learning rate of the generator", source="appendix", search=(0.025, 0.05)
    )
    lr_rtnet: LearningRate = setting(0.05, help="learning rate of RTNet", source="appendix", search=(0.025, 0.05))
    syn_weight: NonNegative = setting(1.0, help="l_syn at the end of its schedule", source="Eq. 3")
    gamma: NonNegative = setting(
        0.01,
        help="l_syn rises as exp(gamma (t - T)) to round T",
        source="Sec. 3.3.2",
        search=Range(0.001, 0.1, log=True),
    )
    prototype_rate: Fraction = setting(1.0, help="l_c after its ramp-up, in (0, 1]", source="Eq. 4")
    prototype_ramp: WholeNumber = setting(
        80, help="rounds R in which l_c rises as exp(-5 (1 - t/R)^2); 0 for none", source="Sec. 3.3.2, reference 21"
    )
    rtnet: bool = setting(True, help="transform the generator's output for each client", source="Table 3")
    ema_term: bool = setting(True, help="synthetic representations around class prototypes", source="Table 3")
    smoothing: bool = setting(True, help="l_syn follows its schedule; false: it is syn_weight", source="Table 3")

    residual: Literal["generated", "noise", "none"] = setting(
        "generated",
        help="what is added to representations for the head: the output of g and m; Gaussian noise of the same norm (a "
        "control); or none: no synthetic representations, which is FedBN",
    )
    label_smoothing: Probability = setting(
        0.0, help="label smoothing of the head: the share of all other classes", search=(0.0, 0.1, 0.2)
    )

    @property
    def synthetic(self) -> bool:
        """Whether there are synthetic representations."""
        return self.residual != "none"

    @property
    def has_prototypes(self) -> bool:
        """Whether there are prototypes."""
        return self.ema_term and self.synthetic

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedBN's parts, the shared generator, and the local RTNet and prototypes."""
        if not self.synthetic:
            return super().parts(model)
        generator = model.initialised("generator", lambda: make_generator(model.classes, model.dim))
        parts = {**super().parts(model), "generator": Part(generator, follows_bn=False)}
        if self.rtnet:
            parts["rtnet"] = Part(initial_rtnet(model), "client", each=initial_rtnet)
        if self.ema_term:
            parts["prototypes"] = Part(Prototypes(model.classes, model.dim), "client")
        return parts

    def moves(self) -> tuple[str, ...]:
        """Encoder and head, and the prototypes, whose buffers each batch updates."""
        return (*super().moves(), *(("prototypes",) if self.has_prototypes else ()))

    def phases(self) -> Phases:
        """Steps of the model, the generator and RTNet on each batch (Algorithm 1)."""
        if not self.synthetic:
            return super().phases()
        objectives = [self.objective("model"), self.step("generator", self.generator_terms(), self.lr_generator)]
        if self.rtnet:
            objectives.append(self.step("rtnet", self.rtnet_terms(), self.lr_rtnet))
        return (Phase("train", tuple(objectives)),)

    def step(self, part: str, terms: dict[str, Term], lr: float) -> Objective:
        """A step of one part on the terms."""
        return Objective(part, terms, (part,), self.latents, Optimiser(lr=lr), encode=self.encode_fixed)

    @torch.no_grad()
    def encode_fixed(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with its representation u (B, d), without gradient."""
        return self.encode(net, batch, noise)

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """Noise z and z' of the head's step, and directions for noise in place of residuals."""
        if not self.synthetic:
            return super().draws(model, batch)
        latents = self.latents(model, batch)
        rows = sum(draw.shape[0] for draw in latents.values())
        return latents | ({"directions": Draw((rows, model.dim))} if self.residual == "noise" else {})

    def latents(self, model: ModelBuilder, batch: int) -> Draws:
        """Standard normal z (B, d/2) and z' (classes, d/2)."""
        k = noise_dim(model.dim)
        return {"z": Draw((batch, k)), "z_classes": Draw((model.classes, k))}

    # The two schedules --------------------------------------------------------------------------

    def ramp(self, context: Context) -> float:
        """The schedule exp(gamma (t - T)) in (0, 1]."""
        weight: float = math.e ** (self.gamma * (context.round - context.rounds))  # a tensor if runs are stacked
        return weight

    def l_syn(self, context: Context) -> float:
        """Weight lambda_syn of the residual in the head's loss."""
        return self.syn_weight * (self.ramp(context) if self.smoothing else 1.0)

    def l_c(self, context: Context) -> float:
        """Weight lambda_c of the batch in the prototypes."""
        if context.round >= self.prototype_ramp:
            return self.prototype_rate
        return self.prototype_rate * math.exp(-5 * (1 - context.round / self.prototype_ramp) ** 2)

    # The three losses ---------------------------------------------------------------------------

    def residuals(self, net: Net, z: Tensor, y: Tensor) -> Tensor:
        """m(g(z, y)), or g(z, y) without RTNet: (B, d)."""
        generated = net.generator(z, y)
        return net.rtnet(generated, y) if self.rtnet else generated

    def perturbation(self, context: Context, net: Net, z: Tensor, y: Tensor) -> Tensor:
        """lambda_syn times the residuals, or times noise of the same norms: (B, d)."""
        residuals = self.residuals(net, z, y)
        if self.residual == "noise":
            direction = context.noise["directions"][: len(residuals)]
            residuals = direction * (residuals.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True))
        return self.l_syn(context) * residuals

    def synthesise(self, net: Net, batch: Batch, context: Context, whole: bool) -> Synthetic:
        """Synthetic representations and prototypes (Eq. 3), with lambda_syn = 1 if ``whole``; u gets no gradient."""
        u, y, z = batch.z.detach(), batch.y, context.noise["z"]
        add = self.residuals if whole else partial(self.perturbation, context)
        if not self.ema_term:
            empty = u[:0]
            return Synthetic(u + add(net, z, y), empty, y[:0], empty, empty.sum(dim=1))
        means, seen = net.prototypes(u, y, self.l_c(context))
        z_classes = context.noise["z_classes"]
        labels = torch.arange(len(z_classes), device=y.device) % len(seen)
        prototypes, seen = means[labels], seen[labels].to(u.dtype)
        residuals = add(net, torch.cat([z, z_classes]), torch.cat([y, labels]))
        return Synthetic(u + residuals[: len(y)], prototypes + residuals[len(y) :], labels, prototypes, seen)

    def terms(self) -> dict[str, Term]:
        """The terms of Eq. 1-2; the synthetic terms train the head alone."""
        if not self.synthetic:
            return super().terms()
        classes = {"synthetic_classes": Term(self.risk_of_classes)} if self.ema_term else {}
        return super().terms() | {"synthetic": Term(self.risk_of_synthetic)} | classes

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(u), y), mean over the batch."""
        return self.risk_of_head(batch, batch.once(net.head, batch.z))

    def risk_of_head(self, batch: Batch, logits: Tensor) -> Tensor:
        """Cross-entropy of logits (B, classes) on the smoothed labels, mean over the batch."""
        return batch.weighted(smoothed_cross_entropy(logits, batch.y, self.label_smoothing))

    def risk_of_synthetic(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(u^), y)."""
        return self.risk_of_head(batch, net.head(batch.once(self.synthesise, net, batch, context, False).batch))

    def risk_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Sum of CE(h(u^_c), c) over classes with a prototype."""
        synthetic = batch.once(self.synthesise, net, batch, context, False)
        risks = smoothed_cross_entropy(net.head(synthetic.classes), synthetic.labels, self.label_smoothing)
        return synthetic.over_classes(risks)

    def generator_terms(self) -> dict[str, Term]:
        """The terms of Eq. 5."""
        return {"generator_cross_entropy": Term(self.risk_of_g), "generator_mmd": Term(self.mmd_of_g, -self.alpha)}

    def augment(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """u^ (B, d) with lambda_syn = 1."""
        return batch.z + self.residuals(net, context.noise["z"], batch.y)

    def risk_of_g(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(u^), y)."""
        return batch.cross_entropy(net.head(batch.once(self.augment, net, batch, context)))

    def mmd_of_g(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """MMD(u^, u)."""
        return mmd(batch.once(self.augment, net, batch, context), batch.z)

    def rtnet_terms(self) -> dict[str, Term]:
        """The terms of Eq. 6."""
        terms = {"rtnet_entropy": Term(self.rtnet_entropy, -1.0), "rtnet_mmd": Term(self.rtnet_mmd, self.beta)}
        if self.ema_term:
            terms["rtnet_entropy_classes"] = Term(self.rtnet_entropy_of_classes, -1.0)
            terms["rtnet_mmd_classes"] = Term(self.rtnet_mmd_of_classes, self.beta)
        return terms

    def rtnet_entropy(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """H(h(u^)), mean over the batch."""
        return entropy(net.head(batch.once(self.synthesise, net, batch, context, True).batch)).mean()

    def rtnet_mmd(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """MMD(u^, u)."""
        return mmd(batch.once(self.synthesise, net, batch, context, True).batch, batch.z)

    def rtnet_entropy_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Sum of H(h(u^_c)) over classes with a prototype."""
        synthetic = batch.once(self.synthesise, net, batch, context, True)
        return synthetic.over_classes(entropy(net.head(synthetic.classes)))

    def rtnet_mmd_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Sum of MMD(u^_c, u_c) over classes with a prototype."""
        synthetic = batch.once(self.synthesise, net, batch, context, True)
        width = bandwidth(synthetic.batch, batch.z)
        return synthetic.over_classes(pairwise_mmd(synthetic.classes, synthetic.prototypes, width))
