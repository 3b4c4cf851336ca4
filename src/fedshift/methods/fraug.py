"""FRAug: more representations for small clients, made by a shared generator and a private transformation.

Chen, Frikha, Krompass and Tresp, FRAug: tackling federated learning with non-IID features via representation
augmentation, ICCV 2023; numbers are those of its preprint. Head on synthetic representations: Eq. 1-3; prototypes:
Eq. 4; generator g: Eq. 5; RTNet m: Eq. 6; order of the steps: Algorithm 1. Batch norm stays on the client, as in
FedBN. The study that motivates it is :mod:`fedshift.methods.head_retraining`.

Choices, where the paper leaves something open or its public code does otherwise:

- The residual's weight l_syn is exp(gamma (t - T)) in round t of T ("an exponential schedule throughout training"; the
  formula is the public code's), so 1 in round T.
- The prototypes' rate l_c follows the ramp-up of Laine and Aila (ICLR 2017): exp(-5 (1 - t/R)^2) in the first R = 80
  rounds, which are epochs there, and 1 from then on, times ``prototype_rate``; the public code's is 0.3 throughout.
- Eq. 4: a class's first batch sets its prototype (from 0 it would be 0.7 % of the mean), a class that is not in the
  batch keeps its own, and a class never seen takes no part in any sum. The mean is over the class's samples
  themselves, without an epsilon. The batch at work counts in the prototypes that it is used with.
- Eq. 5 and 6 with Eq. 3's u^ would multiply the residual by l_syn, which is small in early rounds, so that g and m
  barely learn: it is whole there. As in the public code the encoder and the head are in evaluation mode there, and
  whichever of g and m does not move as well; g learns before m does.
- MMD is squared and biased, with five Gaussian kernels around the mean squared distance of both batches, which
  is not differentiated. A single representation's MMD with its prototype uses the bandwidth of the batch.
- In m's own step the batch and the C class vectors go through m together, so its batch-norm statistics are of both;
  g's own step (Eq. 5) has the batch alone.
- Each of a step's three objectives draws z and z' anew (Algorithm 1 draws them once a step).
- g, its batch norm included, is averaged. Linear layers before a batch norm have no bias, which it would cancel.
  Each client's RTNet starts from a draw of its own (Algorithm 1); the prototypes have nothing to draw.
- Table 3's ablations: without RTNet u^ = u + l_syn g(z, y) and there is no Eq. 6; without the EMA term its sums are
  left out of Eq. 2 and 6; without smoothing l_syn = 1.
- ``label_smoothing`` of the head's three cross-entropies, not of Eq. 5's, is ours: entropy, by which m makes residuals,
  has no gradient at a head that is sure, while the MMD that shrinks them has.
- ``residual`` gives controls, which are ours: Gaussian noise that has the norm of each residual, in the head's loss
  alone, so that g and m learn as they do; and no synthetic representations at all, which is FedBN, smoothed or not.
- The paper does not print its weights and rates: the presets take those that the public code fixes, and of a grid
  there the first that is not 0. The public code's losses differ from the paper's: :mod:`fedshift.methods.fraug_code`.
- An absent client's batch norm, RTNet and prototypes stand still, while the generator moves on.
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
    make_generator,
    mmd,
    mmd_of_each,
    noise_dim,
    own_rtnet,
)
from fedshift.page import *


class FRAug(FedAvg):
    """FedBN whose head also learns from representations made by a shared generator and a private RTNet."""

    paper: ClassVar[str] = "Chen et al., ICCV 2023, Eq. 1-6"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "pacs": {"alpha": 10.0, "beta": 1.0, "gamma": 0.01},
        "office-home": {"lr_rtnet": 0.025, "alpha": 0.75, "beta": 0.75, "gamma": 0.01},
        "digits": {"alpha": 1.0, "beta": 0.1, "gamma": 0.002},
    }

    bn: Literal["local", "statistics"] = setting(
        "local", help="batch norm stays on the client, whole or its statistics alone; but for the generator's own"
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
    syn_weight: NonNegative = setting(1.0, help="l_syn at the end of its ramp", source="Eq. 3")
    gamma: NonNegative = setting(
        0.01,
        help="l_syn rises as exp(gamma (t - T)) to round T",
        source="Sec. 3.3.2",
        search=Range(0.001, 0.1, log=True),
    )
    prototype_rate: Fraction = setting(1.0, help="l_c after its ramp-up, in (0, 1]", source="Eq. 4")
    prototype_ramp: WholeNumber = setting(
        80, help="rounds in which l_c rises as exp(-5 (1 - t/R)^2); 0: none", source="Sec. 3.3.2 and its reference 21"
    )
    rtnet: bool = setting(True, help="transform what the generator makes for each client", source="Table 3")
    ema_term: bool = setting(True, help="synthetic representations around class prototypes", source="Table 3")
    smoothing: bool = setting(True, help="l_syn follows the ramp; otherwise it is syn_weight", source="Table 3")

    residual: Literal["generated", "noise", "none"] = setting(
        "generated",
        help="what representations get for the head: what g and m make; Gaussian noise of the same norm, a control; or "
        "none: no synthetic representations, which is FedBN",
    )
    label_smoothing: Probability = setting(
        0.0, help="of the head's labels, the part that all other classes share", search=(0.0, 0.1, 0.2)
    )

    @property
    def synthetic(self) -> bool:
        """Whether there are synthetic representations."""
        return self.residual != "none"

    @property
    def remembers(self) -> bool:
        """Whether there are prototypes."""
        return self.ema_term and self.synthetic

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedBN's parts, the shared generator, and what stays at home: RTNet and the prototypes."""
        if not self.synthetic:
            return super().parts(model)
        made = model.initialised("generator", lambda: make_generator(model.classes, model.dim))
        parts = {**super().parts(model), "generator": Part(made, follows_bn=False)}
        if self.rtnet:
            parts["rtnet"] = Part(own_rtnet(model), "client", each=own_rtnet)
        if self.ema_term:
            parts["prototypes"] = Part(Prototypes(model.classes, model.dim), "client")
        return parts

    def moves(self) -> tuple[str, ...]:
        """Encoder and head, and the prototypes, whose buffers follow the batch."""
        return (*super().moves(), *(("prototypes",) if self.remembers else ()))

    def phases(self) -> Phases:
        """On each batch: model, then generator, then RTNet (Algorithm 1)."""
        if not self.synthetic:
            return super().phases()
        objectives = [self.objective("model"), self.step("generator", self.generator_terms(), self.lr_generator)]
        if self.rtnet:
            objectives.append(self.step("rtnet", self.rtnet_terms(), self.lr_rtnet))
        return (Phase("train", tuple(objectives)),)

    def step(self, part: str, terms: dict[str, Term], lr: float) -> Objective:
        """A step of one part on a loss of its own."""
        return Objective(part, terms, (part,), self.latents, Optimiser(lr=lr), encode=self.fixed)

    @torch.no_grad()
    def fixed(self, net: Net, batch: Batch, noise: Mapping[str, Tensor]) -> Batch:
        """The batch with its representation u, which nobody moves."""
        return self.encode(net, batch, noise)

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """The head's: z and z', and a direction for each where noise takes the residual's place."""
        if not self.synthetic:
            return super().draws(model, batch)
        latents = self.latents(model, batch)
        rows = sum(draw.shape[0] for draw in latents.values())
        return latents | ({"directions": Draw((rows, model.dim))} if self.residual == "noise" else {})

    def latents(self, model: ModelBuilder, batch: int) -> Draws:
        """Standard normal z for each sample, and z' for each class."""
        k = noise_dim(model.dim)
        return {"z": Draw((batch, k)), "z_classes": Draw((model.classes, k))}

    # The two ramps ------------------------------------------------------------------------------

    def rising(self, context: Context) -> float:
        """exp(gamma (t - T)) in round t of T, in (0, 1]."""
        weight: float = math.e ** (self.gamma * (context.round - context.rounds))  # of a tensor, where runs are stacked
        return weight

    def l_syn(self, context: Context) -> float:
        """The weight of the residual in the head's loss."""
        return self.syn_weight * (self.rising(context) if self.smoothing else 1.0)

    def l_c(self, context: Context) -> float:
        """The weight of the batch in the prototypes."""
        if context.round >= self.prototype_ramp:
            return self.prototype_rate
        return self.prototype_rate * math.exp(-5 * (1 - context.round / self.prototype_ramp) ** 2)

    # The three losses ---------------------------------------------------------------------------

    def residuals(self, net: Net, z: Tensor, y: Tensor) -> Tensor:
        """m(g(z, y)), or g(z, y) without RTNet: (B, d)."""
        made = net.generator(z, y)
        return net.rtnet(made, y) if self.rtnet else made

    def added(self, context: Context, net: Net, z: Tensor, y: Tensor) -> Tensor:
        """What the head's representations get: l_syn times the residuals, or times noise of the same norms: (B, d)."""
        made = self.residuals(net, z, y)
        if self.residual == "noise":
            direction = context.noise["directions"][: len(made)]
            made = direction * (made.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True))
        return self.l_syn(context) * made

    def synthesise(self, net: Net, batch: Batch, context: Context, whole: bool) -> Synthetic:
        """u^ and u^_c around the batch u (B, d), through which no gradient goes, and the prototypes (Eq. 3).

        The residual is whole, or the head's.
        """
        u, y, z = batch.z.detach(), batch.y, context.noise["z"]
        added = self.residuals if whole else partial(self.added, context)
        if not self.ema_term:
            none = u[:0]
            return Synthetic(u + added(net, z, y), none, y[:0], none, none.sum(dim=1))
        every, seen = net.prototypes(u, y, self.l_c(context))
        z_classes = context.noise["z_classes"]
        labels = torch.arange(len(z_classes), device=y.device) % len(seen)
        prototypes, seen = every[labels], seen[labels].to(u.dtype)
        residuals = added(net, torch.cat([z, z_classes]), torch.cat([y, labels]))
        return Synthetic(u + residuals[: len(y)], prototypes + residuals[len(y) :], labels, prototypes, seen)

    def terms(self) -> dict[str, Term]:
        """CE(h(u), y) + CE(h(u^), y) + sum over c of CE(h(u^_c), c), the last two for the head only (Eq. 1-2)."""
        if not self.synthetic:
            return super().terms()
        classes = {"synthetic_classes": Term(self.risk_of_classes)} if self.ema_term else {}
        return super().terms() | {"synthetic": Term(self.risk_of_synthetic)} | classes

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(u), y)."""
        return self.risk_of_head(batch, batch.once(net.head, batch.z))

    def risk_of_head(self, batch: Batch, logits: Tensor) -> Tensor:
        """The cross-entropy of the head's logits (B, classes) on the batch's labels, which may be smoothed."""
        return batch.weighted(smoothed_cross_entropy(logits, batch.y, self.label_smoothing))

    def risk_of_synthetic(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(u^), y)."""
        return self.risk_of_head(batch, net.head(batch.once(self.synthesise, net, batch, context, False).batch))

    def risk_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The sum over c of CE(h(u^_c), c)."""
        synthetic = batch.once(self.synthesise, net, batch, context, False)
        of_each = smoothed_cross_entropy(net.head(synthetic.classes), synthetic.labels, self.label_smoothing)
        return synthetic.over_classes(of_each)

    def generator_terms(self) -> dict[str, Term]:
        """CE(h(u^), y) - alpha MMD(u^, u) (Eq. 5)."""
        return {"generator_cross_entropy": Term(self.risk_of_g), "generator_mmd": Term(self.mmd_of_g, -self.alpha)}

    def generated(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """u^ with the whole residual."""
        return batch.z + self.residuals(net, context.noise["z"], batch.y)

    def risk_of_g(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(u^), y)."""
        return batch.cross_entropy(net.head(batch.once(self.generated, net, batch, context)))

    def mmd_of_g(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """MMD(u^, u)."""
        return mmd(batch.once(self.generated, net, batch, context), batch.z)

    def rtnet_terms(self) -> dict[str, Term]:
        """-(H(h(u^)) + sum_c H(h(u^_c))) + beta (MMD(u^, u) + sum_c MMD(u^_c, u_c)) (Eq. 6)."""
        terms = {"rtnet_entropy": Term(self.rtnet_entropy, -1.0), "rtnet_mmd": Term(self.rtnet_mmd, self.beta)}
        if self.ema_term:
            terms["rtnet_entropy_classes"] = Term(self.rtnet_entropy_of_classes, -1.0)
            terms["rtnet_mmd_classes"] = Term(self.rtnet_mmd_of_classes, self.beta)
        return terms

    def rtnet_entropy(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """H(h(u^))."""
        return entropy(net.head(batch.once(self.synthesise, net, batch, context, True).batch)).mean()

    def rtnet_mmd(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """MMD(u^, u)."""
        return mmd(batch.once(self.synthesise, net, batch, context, True).batch, batch.z)

    def rtnet_entropy_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The sum over c of H(h(u^_c))."""
        synthetic = batch.once(self.synthesise, net, batch, context, True)
        return synthetic.over_classes(entropy(net.head(synthetic.classes)))

    def rtnet_mmd_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The sum over c of MMD(u^_c, u_c)."""
        synthetic = batch.once(self.synthesise, net, batch, context, True)
        width = bandwidth(synthetic.batch, batch.z)
        return synthetic.over_classes(mmd_of_each(synthetic.classes, synthetic.prototypes, width))
