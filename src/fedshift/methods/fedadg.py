r"""FedADG: align the representations of every domain with one reference distribution, which a generator learns.

Zhang, Lei, Shi, Huang and Chen, Federated learning with domain generalization, arXiv:2111.10487, 2021.

A client has an encoder F, a classifier C, a generator G of the reference distribution and a discriminator D. Each
round starts with epochs of classification alone; in the adversarial epochs that follow, D, then F and C, then G
minimise on each batch (x, y), with noise e and the smoothed cross-entropy CE:

.. math::

    L_D &= (1 - D(y, G(e, y)))^2 + D(y, F(x))^2 \\
    L_{F,C} &= \alpha\, \mathrm{CE}(C(F(x)), y) + (1 - \alpha) (1 - D(y, F(x)))^2 \\
    L_G &= D(y, G(e, y))^2

The server averages F, C and G; D never leaves the client.

**When to choose it.** There is no measured gain over FedAvg (-0.1 points on Heart and on OPT, +0.2 on held-out domains
of frozen PACS features, -1.1 on a held-out angle, -1.0 on Digits), at 3 to 4 times the time and 4 to 5 times the
bytes on the hospitals.

**Unavailable clients.** The D of an absent client does not change while F, C and G do. The D of a late client has been
trained, although nothing else of its round was aggregated.

**Choices.** The public code was read from a copy, https://github.com/Haoxiang-Wang/FedADG (``pacs-ours``, and ``src``
for VLCS).

- The signs follow the code for PACS. In the code for VLCS, G is detached in its loss and never learns.
- D and G read a one-hot class code times ``code``, and e is uniform in [0, 1) (public code). The first layer of D is
  linear without bias on [z, code], as in the code for VLCS. Layers have PyTorch's initialisation.
- The preset ``vlcs`` contains the method's settings only; its code trains F and C at 0.001, momentum 0.9, batch 16 and
  weight decay 1e-5, which belong in ``[train]``.
- Smoothing gives the true class 1 - s and each other class s / (classes - 1) (public code).
- C is linear, as in all methods here (public code: two linear layers). The outputs of G are not negative.
- Fixed networks are in evaluation mode; D and G draw e separately (public code: one draw).
- Adversarial epochs start with fresh moments of F and C. The public code's warm-up, decay of rates and choice of the
  best epoch on validation data are omitted.
- A round has three classification and seven adversarial epochs, whatever ``train.steps`` is; ``unit = "steps"`` counts
  steps.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.classes import smoothed_cross_entropy
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.generator import Conditional
from fedshift.page import *


class FedADG(FedAvg):
    """FedAvg whose encoder is trained adversarially to match a class-conditional generator."""

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
        3, help="steps or epochs of classification at the start of a round", source="public code, PACS"
    )
    adversarial_steps: Steps = setting(7, help="adversarial steps or epochs in a round", source="public code, PACS")
    unit: Literal["steps", "epochs"] = setting(
        "epochs", help="unit of classification_steps and adversarial_steps", source="public code"
    )
    adversarial_lr: LearningRate = setting(
        0.007, help="learning rate of D and G", source="public code", search=Range(7e-4, 0.07, log=True)
    )
    code: Positive = setting(0.7, help="value of the class in its one-hot code", source="public code, PACS")
    generator_noise: Width = setting(2048, help="dimension of G's noise", source="public code")
    generator_hidden: Width = setting(4096, help="width of G's hidden layer", source="public code")
    discriminator_projection: Width = setting(1024, help="outputs of D's first, linear layer", source="public code")
    discriminator_hidden: Width = setting(1024, help="width of D's hidden layer", source="public code")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Shared F, C and G; D on the client."""
        generator = model.initialised("generator", lambda: self.make_generator(model))
        discriminator = model.initialised("discriminator", lambda: self.make_discriminator(model))
        return {
            **super().parts(model),
            "generator": Part(generator),
            "discriminator": Part(discriminator, "client"),
        }

    def make_generator(self, model: ModelBuilder) -> Conditional:
        """G: noise (B, k) and classes (B,) to representations (B, d) >= 0."""
        first = nn.Linear(self.generator_noise + model.classes, self.generator_hidden)
        body = nn.Sequential(first, nn.LeakyReLU(), nn.Linear(self.generator_hidden, model.dim), nn.ReLU())
        return Conditional(model.classes, body)

    def make_discriminator(self, model: ModelBuilder) -> Conditional:
        """D: representations (B, d) and classes (B,) to scores (B, 1) in (0, 1); 1 for the output of G."""
        body = nn.Sequential(
            nn.Linear(model.dim + model.classes, self.discriminator_projection, bias=False),
            nn.Linear(self.discriminator_projection, self.discriminator_hidden),
            nn.LeakyReLU(),
            nn.Linear(self.discriminator_hidden, 1),
            nn.Sigmoid(),
        )
        return Conditional(model.classes, body)

    def phases(self) -> Phases:
        """Classification epochs, then adversarial epochs that train D, the model and G on each batch."""
        terms = {"cross_entropy": Term(self.risk, self.alpha), "encoder": Term(self.encoder_loss, 1 - self.alpha)}
        adversarial = (
            self.step("discriminator", self.discriminator_loss),
            self.objective("model", terms=terms),
            self.step("generator", self.generator_loss),
        )
        return (
            Phase("classification", (self.objective("model"),), steps=lasting(self.classification_steps, self.unit)),
            Phase("adversarial", adversarial, steps=lasting(self.adversarial_steps, self.unit)),
        )

    def step(self, part: str, loss: Callable[[Net, Batch, Context], Tensor]) -> Objective:
        """A step of one part on a single loss term with the part's name."""
        return Objective(part, {part: Term(loss)}, (part,), self.noise, Optimiser(lr=self.adversarial_lr))

    def noise(self, model: ModelBuilder, batch: int) -> Draws:
        """Uniform noise e (B, k)."""
        return {"noise": Draw((batch, self.generator_noise), "uniform")}

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Smoothed cross-entropy, mean over the batch."""
        return batch.weighted(smoothed_cross_entropy(net.head(batch.z), batch.y, self.smoothing))

    def encoder_loss(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(1 - D(y, F(x)))^2, mean over the batch."""
        return (1 - self.discriminate(net, batch.z, batch.y)).square().mean()

    def generate(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """G(e, y) for the labels of the batch, (B, d)."""
        return net.generator(context.noise["noise"], batch.y, self.code)

    def discriminate(self, net: Net, z: Tensor, y: Tensor) -> Tensor:
        """D(y, z) for representations z (B, d) of the classes y (B,): (B, 1)."""
        return net.discriminator(z, y, self.code)

    def discriminator_loss(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(1 - D(y, G(e, y)))^2 + D(y, F(x))^2, mean over the batch."""
        with torch.no_grad():
            reference, z = self.generate(net, batch, context), self.encode(net, batch, {}).z
        errors = (1 - self.discriminate(net, reference, batch.y)).square() + self.discriminate(net, z, batch.y).square()
        return errors.mean()

    def generator_loss(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """D(y, G(e, y))^2, mean over the batch."""
        return self.discriminate(net, self.generate(net, batch, context), batch.y).square().mean()
