"""FedCiR: client-invariant representations through a generator that is trained on the server.

Li, Lin, Shao, Mao and Zhang, FedCiR: client-invariant representation learning for federated non-IID
features, IEEE Transactions on Mobile Computing 2024, Algorithm 1. A client minimises Eq. 18: its
cross-entropy, L_reg (Eq. 12) on what the generator G gives, and L_align (Eq. 14, 17), which pulls p(z|x)
towards one Gaussian a class. After the clients' training the server moves G by Eq. 15, and estimates the
class Gaussians from its outputs; then it averages the models.

Choices, where the paper leaves something open:

- L_align is a sum over the d dimensions of z, so a weight says nothing without d. ``l_align`` is a dimension's weight:
  the paper's lambda_align times d. Presets are the paper's times ResNet-18's 512; at these the term is a thousandth of
  the loss and less. What was seen to work is a thousand times as much (0.32, docs/results/fedcir.md); the default lies
  between.
- sigma = softplus(s) and prediction are FedSR's. Eq. 17 prints sigma(y) in one place; it is sigma(x).
- The log in Eq. 15 is of the mixture of the *uploaded local* heads' probabilities: neither the mean of their
  losses nor the averaged head. p(k) is what a client weighs in the average, by default 1/|K_t|.
- G is [noise || one-hot y] -> FC -> batch norm -> ReLU -> FC -> d; its sizes, and Adam with moments that go on
  from round to round, are ours. It is in evaluation mode on the clients and where the Gaussians are estimated.
- The Gaussians are the maximum-likelihood estimate (divided by n) from ``mle_samples`` outputs a class; sigma has
  a floor, so that the divergence stays finite. The mean of sigma is recorded: L_align weighs by 1 / sigma^2.
- In the first round G is untrained and there is no estimate: both regularisers are off.
- A term whose weight is 0 is left out, and clients are not sent what they then do not use. G keeps its place on
  the server for FedAlign, which needs its Gaussians only; without either term there is no G.
- The mixture of Eq. 15 and the mean are over the heads and models that came; absent clients are not in them.
"""

from __future__ import annotations

from typing import ClassVar

from fedshift.methods.gaussian import Probabilistic, gaussian_kl
from fedshift.methods.generator import BatchNormSize, log_mixture, make_generator
from fedshift.page import *

PUBLISHED_DIM = 512  # d of ResNet-18, which the paper's weights are for


class FedCiR(Probabilistic):
    """FedAvg whose clients learn from, and align with, a generator of representations on the server."""

    paper: ClassVar[str] = "Li et al., IEEE TMC 2024, Eq. 12-18"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "domainnet": {"l_align": PUBLISHED_DIM * 1e-6, "l_reg": 0.5},
        "iwildcam": {"l_align": PUBLISHED_DIM * 1e-6, "l_reg": 0.5},
        "pacs": {"l_align": PUBLISHED_DIM * 5e-7, "l_reg": 0.5},
        "office-caltech-10": {"l_align": PUBLISHED_DIM * 5e-7, "l_reg": 0.5},
        "camelyon17": {"l_align": PUBLISHED_DIM * 5e-7, "l_reg": 0.5},
    }

    l_align: NonNegative = setting(
        0.1,
        help="weight of KL(p(z|x) || q(z|y)) a dimension; 0: left out",
        source="Eq. 14, 16-17; App. E and Table 2, times d = 512: 2.56e-4 to 2.56e-2",
        search=Range(0.01, 1, log=True),
    )
    l_reg: NonNegative = setting(
        0.5,
        help="weight of the cross-entropy on generated representations; 0: left out",
        source="Eq. 12, 16, App. E",
        search=Range(0.05, 5, log=True),
    )
    generator_steps: Steps = setting(
        5, help="server steps on the generator a round", source="Algorithm 1, E_g", search=Range(1, 50, log=True)
    )
    generator_batch: BatchNormSize = setting(32, help="labels and noise vectors a server step", source="Section 5.4, B")
    generator_lr: LearningRate = setting(1e-3, help="rate of the generator's Adam", search=Range(1e-5, 1e-2, log=True))
    generator_weight_decay: NonNegative = setting(0.0, help="weight decay of the generator's Adam")
    generator_hidden: OptionalWidth = setting(0, help="width of the generator's hidden layer; 0: d")
    generator_noise: OptionalWidth = setting(0, help="size of the generator's noise; 0: d/2", search=(0, 8, 32, 128))
    mle_samples: BatchNormSize = setting(256, help="generated representations a class, for its Gaussian")
    sigma_floor: Positive = setting(1e-3, help="least deviation of a class Gaussian", search=Range(1e-3, 1, log=True))

    # What it is made of -------------------------------------------------------------------------

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """A Gaussian encoder, a head, and what the active terms need: the generator, and the class Gaussians."""
        parts = super().parts(model)
        if self.l_reg > 0 or self.l_align > 0:
            sizes = model.classes, self.noise_dim(model), self.generator_hidden or model.dim, model.dim
            generator = model.initialised("generator", lambda: make_generator(*sizes))
            parts["generator"] = Part(generator, "down" if self.l_reg > 0 else "server")
        if self.l_align > 0:
            shape = model.classes, model.dim
            parts["gaussians"] = Part.state({"mean": torch.zeros(shape), "sigma": torch.ones(shape)}, "down")
        return parts

    def noise_dim(self, model: ModelBuilder) -> int:
        """The dimension of the noise that G reads."""
        return self.generator_noise or max(1, model.dim // 2)

    # On a client --------------------------------------------------------------------------------

    def draws(self, model: ModelBuilder, batch: int) -> Draws:
        """The noise of z, and as many labels and noise vectors for G."""
        return super().draws(model, batch) | (self.generated(model, batch) if self.l_reg > 0 else {})

    def generated(self, model: ModelBuilder, count: int) -> Draws:
        """Labels (count,), uniform over the classes, and normal noise (count, noise) for G."""
        return {"labels": Draw((count,), "integers", model.classes), "noise": Draw((count, self.noise_dim(model)))}

    def terms(self) -> dict[str, Term]:
        """The cross-entropy + l_reg * L_reg + l_align * L_align (Eq. 18); the first alone in the first round."""
        own = {"reg": Term(self.reg, self.l_reg, since=2), "align": Term(self.align, self.l_align, since=2)}
        return super().terms() | own

    def reg(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L_reg: the cross-entropy on what G gives (Eq. 12)."""
        labels = context.noise["labels"]
        with torch.no_grad():
            z = net.generator(context.noise["noise"], labels)
        return F.cross_entropy(net.head(z), labels)

    def align(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L_align / d: KL(p(z|x) || q(z|y)) (Eq. 17), the mean over dimensions."""
        assert batch.mean is not None and batch.sigma is not None
        q = net.of("gaussians").map(lambda rows: rows[batch.y])
        return gaussian_kl(batch.mean, batch.sigma, q["mean"], q["sigma"]) / batch.mean.shape[1]

    # On the server ------------------------------------------------------------------------------

    def server_phases(self) -> Phases:
        """Steps on the generator, then the estimate of the class Gaussians; what no term needs is left out."""
        adam = Optimiser("adam", lr=self.generator_lr, weight_decay=self.generator_weight_decay)
        terms = {"consensus": Term(self.consensus)}
        consensus = Objective("consensus", terms, ("generator",), self.generated, adam)
        steps = Phase("generator", (consensus,), steps=self.generator_steps, batch=self.generator_batch)
        if self.l_align > 0:
            return (steps, Measure("estimate", self.estimate, self.estimate_draws))
        return (steps,) if self.l_reg > 0 else ()

    def consensus(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Mean of -log sum_k p(k) softmax(h_k(G(y, eps)))_y over the uploaded heads (Eq. 15)."""
        labels = context.noise["labels"]
        z = net.generator(context.noise["noise"], labels)
        return F.nll_loss(log_mixture(net.parts["head"], context.replies, z), labels)

    def estimate_draws(self, model: ModelBuilder, batch: int) -> Draws:
        """``mle_samples`` noise vectors for each class."""
        return {"noise": Draw((model.classes, self.mle_samples, self.noise_dim(model)))}

    @torch.no_grad()
    def estimate(self, net: Net, batch: Batch, context: Context) -> Mapping[str, Tensor]:
        """Mean and standard deviation of G's outputs, each (classes, d): their maximum-likelihood Gaussians.

        Also the mean of all deviations, for the record.
        """
        means, sigmas = [], []
        for label, noise in enumerate(context.noise["noise"]):  # a class at a time, to save memory
            y = torch.full((len(noise),), label, device=noise.device)
            z = net.generator(noise, y)
            means.append(z.mean(dim=0))
            sigmas.append(z.std(dim=0, correction=0).clamp(min=self.sigma_floor))
        sigma = torch.stack(sigmas)
        return Tensors({"mean": torch.stack(means), "sigma": sigma}).under("gaussians") | {"sigma_g": sigma.mean()}


class FedReg(FedCiR):
    """FedCiR without the alignment: clients learn from generated representations alone."""

    paper: ClassVar[str] = "Li et al., IEEE TMC 2024, Eq. 18 with the weight of L_align 0"

    l_align: NonNegative = fixed(0.0)
    mle_samples: BatchNormSize = fixed(256)
    sigma_floor: Positive = fixed(1e-3)


class FedAlign(FedCiR):
    """FedCiR without generated representations: clients align with the class Gaussians alone."""

    paper: ClassVar[str] = "Li et al., IEEE TMC 2024, Eq. 18 with the weight of L_reg 0"

    l_reg: NonNegative = fixed(0.0)
