"""FedADG: representations of every domain are drawn to one reference distribution, which a generator learns.

Zhang, Lei, Shi, Huang and Chen, Federated learning with domain generalization, arXiv:2111.10487, 2021. A client has
an encoder F, a classifier C, a distribution generator G and a discriminator D. In each round it takes epochs on its
classification alone, then adversarial ones, in which on each batch (x, y), with least squares and noise e,

1. D minimises (1 - D(y, G(e, y)))^2 + D(y, F(x))^2,
2. F and C minimise alpha CE(C(F(x)), y) + (1 - alpha) (1 - D(y, F(x)))^2, the cross-entropy being smoothed,
3. G minimises D(y, G(e, y))^2.

F, C and G are averaged; D never leaves the client.

Choices; the public code was read from a copy, https://github.com/Haoxiang-Wang/FedADG (``pacs-ours``, and ``src`` for
VLCS):

- The signs are those of the code for PACS. In that for VLCS D maximises D(y, G)^2 + (1 - D(y, F))^2, and G's loss is
  (1 - D(y, G))^2 of a detached G, which therefore never moves.
- D and G read the one-hot code of the class times ``code`` and e is uniform in [0, 1) (public code). D's first layer is
  linear, without bias, from [z || code], as in the code for VLCS; that for PACS projects z alone and joins the code
  behind it. All layers start as PyTorch's do.
- The preset for VLCS has what its code sets of the method. F and C have a rate of 0.001 there, momentum 0.9, batches of
  16 and a decay of 1e-5, which are for ``[train]``.
- Smoothing gives the true class 1 - s and each of the others s / (classes - 1) (public code).
- C is a linear head, as everywhere here (the public code has two linear layers). G's outputs are >= 0; whether z is
  depends on the model.
- What does not move is in evaluation mode; steps 1 and 3 draw e each for itself (the public code draws it once).
- The adversarial epochs begin with fresh moments of F and C. Warm-up and decay of rates, and the choice of a round's
  best epoch on validation, are left out (public code).
- ``classification_steps``, ``adversarial_steps``: three epochs and then seven, whatever ``train.steps`` says;
  ``unit = "steps"`` makes them as many steps.
- An absent client's D stands still, while F, C and G move on; a late one's D has moved, and nothing of it was merged.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import smoothed_cross_entropy
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.generator import Conditional
from fedshift.page import *


class FedADG(FedAvg):
    """FedAvg whose encoder learns to pass for a generator of class-conditional representations."""

    paper: ClassVar[str] = "Zhang et al., arXiv:2111.10487, 2021"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "pacs": {"classification_steps": 3, "adversarial_steps": 7},
        "vlcs": {
            "classification_steps": 5,
            "adversarial_steps": 10,
            "adversarial_lr": 7e-4,
            "smoothing": 0.2,
            "code": 0.6,
        },
    }

    alpha: Probability = setting(
        0.85,
        help="share of the cross-entropy in the adversarial epochs; the rest is D's term",
        source="public code",
        search=(0.5, 0.85, 0.95),
    )
    smoothing: Probability = setting(0.1, help="label smoothing s", source="public code")
    classification_steps: WholeNumber = setting(
        3, help="on the cross-entropy alone, first in a round, as 'unit' counts them", source="public code, PACS"
    )
    adversarial_steps: Steps = setting(
        7, help="adversarial ones of a round, as 'unit' counts them", source="public code, PACS"
    )
    unit: Literal["steps", "epochs"] = setting("epochs", help="what a phase's steps count", source="public code")
    adversarial_lr: LearningRate = setting(
        0.007, help="learning rate of D and G", source="public code", search=Range(7e-4, 0.07, log=True)
    )
    code: Positive = setting(0.7, help="the number that stands for the class in its code", source="public code, PACS")
    generator_noise: Width = setting(2048, help="dimension of G's noise", source="public code")
    generator_hidden: Width = setting(4096, help="width of G's hidden layer", source="public code")
    discriminator_projection: Width = setting(1024, help="outputs of D's first, linear layer", source="public code")
    discriminator_hidden: Width = setting(1024, help="width of D's hidden layer", source="public code")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """F and C, which are FedAvg's, and G, shared; D on the client."""
        generator = model.initialised("generator", lambda: self.generator(model))
        discriminator = model.initialised("discriminator", lambda: self.discriminator(model))
        return {
            **super().parts(model),
            "generator": Part(generator),
            "discriminator": Part(discriminator, "client"),
        }

    def generator(self, model: ModelBuilder) -> Conditional:
        """G: noise (B, k) and classes (B,) to representations (B, d), all of them >= 0."""
        first = nn.Linear(self.generator_noise + model.classes, self.generator_hidden)
        body = nn.Sequential(first, nn.LeakyReLU(), nn.Linear(self.generator_hidden, model.dim), nn.ReLU())
        return Conditional(model.classes, body)

    def discriminator(self, model: ModelBuilder) -> Conditional:
        """D: representations (B, d) and classes (B,) to how much they are like G's, (B, 1), in (0, 1)."""
        body = nn.Sequential(
            nn.Linear(model.dim + model.classes, self.discriminator_projection, bias=False),
            nn.Linear(self.discriminator_projection, self.discriminator_hidden),
            nn.LeakyReLU(),
            nn.Linear(self.discriminator_hidden, 1),
            nn.Sigmoid(),
        )
        return Conditional(model.classes, body)

    def phases(self) -> Phases:
        """Epochs on the cross-entropy alone, then epochs in which D, the model and G move in turn on each batch.

        There the model minimises alpha times the cross-entropy + (1 - alpha) (1 - D(y, F(x)))^2.
        """
        own = {"cross_entropy": Term(self.risk, self.alpha), "encoder": Term(self.told_apart, 1 - self.alpha)}
        adversarial = (
            self.step("discriminator", self.discrimination),
            self.objective("model", terms=own),
            self.step("generator", self.generation),
        )
        return (
            Phase("classification", (self.objective("model"),), steps=lasting(self.classification_steps, self.unit)),
            Phase("adversarial", adversarial, steps=lasting(self.adversarial_steps, self.unit)),
        )

    def step(self, part: str, loss: Callable[[Net, Batch, Context], Tensor]) -> Objective:
        """A step of one part on a loss of its own, whose single term has the part's name."""
        return Objective(part, {part: Term(loss)}, (part,), self.noise, Optimiser(lr=self.adversarial_lr))

    def noise(self, model: ModelBuilder, batch: int) -> Draws:
        """Uniform e for each sample."""
        return {"noise": Draw((batch, self.generator_noise), "uniform")}

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The smoothed cross-entropy."""
        return batch.weighted(smoothed_cross_entropy(net.head(batch.z), batch.y, self.smoothing))

    def told_apart(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(1 - D(y, F(x)))^2."""
        return (1 - self.judged(net, batch.z, batch.y)).square().mean()

    def reference(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """G(e, y) for the batch's labels, (B, d)."""
        return net.generator(context.noise["noise"], batch.y, self.code)

    def judged(self, net: Net, z: Tensor, y: Tensor) -> Tensor:
        """D(y, z): how much representations z (B, d) of the classes y (B,) are like G's, (B, 1)."""
        return net.discriminator(z, y, self.code)

    def discrimination(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(1 - D(y, G(e, y)))^2 + D(y, F(x))^2."""
        with torch.no_grad():
            reference, z = self.reference(net, batch, context), self.encode(net, batch, {}).z
        errors = (1 - self.judged(net, reference, batch.y)).square() + self.judged(net, z, batch.y).square()
        return errors.mean()

    def generation(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """D(y, G(e, y))^2."""
        return self.judged(net, self.reference(net, batch, context), batch.y).square().mean()
