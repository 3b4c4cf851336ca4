"""FRAug as its authors' public code has it, whose losses are not those of their paper.

https://github.com/HaokunChen245/FRAug (``users/user_FRAug.py``, ``main.py``), read line by line. Beside the paper
(:mod:`fedshift.methods.fraug`):

- The head's loss is a mixture: (1 - r) CE(h(u), y) + r/2 (CE(h(u^), y) + the mean over c of CE(h(u^_c), c)) with
  r = min(1/2, exp(gamma (t - T))), where Eq. 1-2 add 2 + C cross-entropies up. u^_c are as many as the batch.
- g never sees its residuals: CE(h(v), c) - alpha D(v) of its own output v = g(z, c), with D the MMD with the batch or
  the mean squared distance from the prototypes (Digits). m has half the sum of its two entropies and distances, and
  the distance of all u^_c from their prototypes is one of sets, or a mean squared one (PACS).
- z is uniform in [0, 1). The residual has its full weight where ``smoothing`` is off (Digits), else exp(gamma (t - T)).
- Prototypes move by 0.3 from the start. Scale and shift of batch norm are averaged, its statistics stay on the client;
  clients weigh by samples, and momentum is kept from round to round.
- Images are augmented (Digits: ``data.augment = true``). A client keeps the model of the round that was best on its
  validation part, and is scored on that same part: so are the published rows. Here the last rounds count.

Choices: the labels of u^_c and v are 0, 1, ... in turn, where the code begins elsewhere in every step. A class's first
batch sets its prototype (there: 0, moved by 0.3) and m takes the batch and the u^_c together. Its OfficeHome keeps
g's batch norm on the client; here it is averaged, as there in PACS and Digits. Of a grid the presets have the first
number that is not 0.

Who is absent misses what it misses in :mod:`fedshift.methods.fraug`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fraug import FRAug
from fedshift.methods.fraug_networks import entropy, mmd, noise_dim
from fedshift.page import *

Distance = Literal["mmd", "squared"]


class FRAugCode(FRAug):
    """FRAug with the losses, draws and averages of its public code."""

    paper: ClassVar[str] = "Chen et al., ICCV 2023, public code"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "pacs": {"alpha": 10.0, "beta": 1.0, "rtnet_distance": "squared"},
        "office-home": {"lr_rtnet": 0.025, "alpha": 0.75, "beta": 0.75},
        "digits": {
            "alpha": 1.0,
            "beta": 0.1,
            "gamma": 0.002,
            "smoothing": False,
            "generator_distance": "squared",
        },
    }

    weighting: Literal["uniform", "samples"] = setting("samples", help="how clients weigh in the average")
    optimiser_state: Literal["fresh", "kept"] = setting("kept", help="momentum from round to round")
    bn: Literal["local", "statistics"] = setting(
        "statistics", help="what of batch norm stays on the client: all, or its statistics"
    )
    prototype_rate: Fraction = setting(0.3, help="how far a batch moves the prototypes, in (0, 1]")
    prototype_ramp: WholeNumber = setting(0, help="rounds in which that rises; 0: none")
    generator_distance: Distance = setting(
        "mmd", help="what the generator maximises: the MMD with the batch, or the mean squared distance from prototypes"
    )
    rtnet_distance: Distance = setting("mmd", help="what RTNet minimises: an MMD, or the mean squared residual")

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            FedshiftError: a distance is from prototypes that there are not.
        """
        super().__post_init__()
        if self.generator_distance == "squared" and not self.ema_term:
            raise FedshiftError(
                "method.generator_distance = 'squared' is a distance from prototypes, which method.ema_term = False "
                "leaves out: set generator_distance to 'mmd'."
            )

    def latents(self, model: ModelBuilder, batch: int) -> Draws:
        """Uniform z for each sample, and as many z' for classes."""
        shape = (batch, noise_dim(model.dim))
        return {"z": Draw(shape, "uniform"), "z_classes": Draw(shape, "uniform")}

    @property
    def kinds(self) -> int:
        """How many kinds of synthetic representations there are, whose losses count in the mean."""
        return 2 if self.ema_term else 1

    def ratio(self, batch: Batch, context: Context) -> Tensor:
        """R = min(1/2, exp(gamma (t - T))), the part of the synthetic in the head's loss, if there are any."""
        if not self.synthetic:
            return torch.zeros((), dtype=batch.z.dtype)
        return torch.as_tensor(self.rising(context), dtype=batch.z.dtype).clamp(max=0.5)

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """(1 - r) CE(h(u), y)."""
        return (1 - self.ratio(batch, context)) * super().risk(net, batch, context)

    def risk_of_synthetic(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """r/2 CE(h(u^), y)."""
        return self.ratio(batch, context) / self.kinds * super().risk_of_synthetic(net, batch, context)

    def risk_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """r/2 times the mean over c of CE(h(u^_c), c)."""
        share = self.ratio(batch, context) / self.kinds
        return share * super().risk_of_classes(net, batch, context) / len(batch.y)

    def made_alone(self, net: Net, batch: Batch, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """What g gives, v = g(z, c), its classes c, and D(v)."""
        z = context.noise["z"]
        labels = torch.arange(len(z), device=z.device) % len(context.counts)
        made = net.generator(z, labels)
        if self.generator_distance == "mmd":
            return made, labels, mmd(made, batch.z)
        prototypes, _ = net.prototypes(batch.z, batch.y, self.l_c(context))
        return made, labels, F.mse_loss(made, prototypes[labels])

    def risk_of_g(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CE(h(v), c)."""
        made, labels, _ = batch.once(self.made_alone, net, batch, context)
        return F.cross_entropy(net.head(made), labels)

    def mmd_of_g(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """D(v)."""
        return batch.once(self.made_alone, net, batch, context)[2]

    def rtnet_terms(self) -> dict[str, Term]:
        """Half of -(H(h(u^)) + mean over c of H(h(u^_c))) + beta (D(u^, u) + D(u^_c, u_c))."""
        terms = super().rtnet_terms()
        return {name: replace(term, weight=term.weight / self.kinds) for name, term in terms.items()}

    def rtnet_mmd(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """D(u^, u)."""
        return self.gap(batch.once(self.synthesise, net, batch, context, True).batch, batch.z)

    def rtnet_entropy_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """The mean over c of H(h(u^_c))."""
        synthetic = batch.once(self.synthesise, net, batch, context, True)
        return entropy(net.head(synthetic.classes)).mean()

    def rtnet_mmd_of_classes(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """D(u^_c, u_c)."""
        synthetic = batch.once(self.synthesise, net, batch, context, True)
        return self.gap(synthetic.classes, synthetic.prototypes)

    def gap(self, made: Tensor, real: Tensor) -> Tensor:
        """What RTNet minimises between representations (B, d) and what they were made of."""
        return mmd(made, real) if self.rtnet_distance == "mmd" else F.mse_loss(made, real)
