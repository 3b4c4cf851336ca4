"""A model of a client's own beside the global one, written once for every method that keeps one.

:class:`PersonalCopy` is trained on the client, may be pulled towards the model received, and is replaced by the global
model for a client that never trained; :class:`PersonalModel` predicts with it. :class:`FineTuning` makes a copy of the
global model once, after training. :class:`Divided` keeps a part of the one model on the client.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

COPIED = ("encoder", "head")


@dataclass(frozen=True)
class PersonalCopy:
    """An encoder and a head that stay on the client, as parts named ``<name>_encoder`` and ``<name>_head``."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parts."""
        return tuple(f"{self.name}_{part}" for part in COPIED)

    def parts(self, encoder: nn.Module, head: nn.Module) -> dict[str, Part]:
        """Its parts, which start as these modules; the unseen have the shared ones."""
        modules = zip(COPIED, (encoder, head), strict=True)
        return {f"{self.name}_{name}": Part(module, "client", unseen=name) for name, module in modules}

    def features(self, net: Net, batch: Batch) -> Tensor:
        """Its representation (B, d) of a batch."""
        return batch.once(net[self.names[0]], batch.x)

    def logits(self, net: Net, batch: Batch) -> Tensor:
        """Its logits (B, classes) for a batch."""
        return batch.once(net[self.names[1]], self.features(net, batch))

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Its cross-entropy, mean over the batch."""
        return batch.cross_entropy(self.logits(net, batch))

    def named(self, tensors: Tensors) -> Tensors:
        """Tensors of the shared encoder and head under the names of the copy's."""
        return Tensors({f"{self.name}_{name}": tensor for name, tensor in tensors.of_parts(COPIED).items()})

    def distance(self, net: Net, received: Tensors) -> Tensor:
        """||v - w||^2 between its weights v and the weights w received; batch norms that stay are not in it."""
        return (net.weights - self.named(received)).squared_norm()


class Divided(FedAvg):
    """FedAvg of some parts of the model; the other stays on the client, and the unseen have the clients' mean."""

    personal: Literal["head", "encoder", "none"] = setting(
        "head", help="the part that stays on the client; none: all are averaged"
    )

    @property
    def own(self) -> tuple[str, ...]:
        """The parts that stay on the client."""
        return () if self.personal == "none" else (self.personal,)

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's, of which one stays on the client."""
        parts = super().parts(model)
        return parts | {name: replace(parts[name], scope="client") for name in self.own}


class PersonalModel(FedAvg):
    """FedAvg's global model, and beside it the client's own, with which it predicts; the unseen have the global one.

    Attributes:
        own: the client's model, which starts as the global one.
    """

    own: ClassVar[PersonalCopy] = PersonalCopy("personal")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts, and the client's own model."""
        return {**super().parts(model), **self.own.parts(model.encoder(), model.head())}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the client's own model."""
        return self.own.logits(net, Batch(x)).log_softmax(dim=1)


class Tuned(nn.Module):
    """A client's copy of the global model, kept and not trained in place; ``done`` is 0 until there is one."""

    done: Tensor

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.register_buffer("done", torch.zeros(()))
        self.requires_grad_(False)

    def forward(self, x: Tensor, otherwise: Tensor) -> Tensor:
        """The copy's logits (B, classes) of inputs x (B, ...), or the logits given where there is no copy yet."""
        return torch.where(self.done > 0, self.head(self.encoder(x)), otherwise)


class FineTuning(FedAvg):
    """A last stage, ``finetune``: one round with everyone, in which each client tunes a copy of the global model.

    Nothing is sent back. A client predicts with its copy once it has one, and with the global model before.
    """

    finetune_steps: OptionalSteps = setting(
        50, help="steps of fine-tuning; 0: none; not in the paper", search=(10, 50, 200)
    )
    finetune_lr: LearningRate | None = setting(
        None,
        help="learning rate of fine-tuning; by default that of [train]",
        search=Range(1e-4, 0.1, log=True),
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts and the place of the client's copy."""
        return {**super().parts(model), "tuned": Part(Tuned(model.encoder(), model.head()), "client", unseen="initial")}

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """Training, then one round of fine-tuning with everyone, if it has steps."""
        if self.finetune_steps == 0:
            return super().stages(rounds)
        own = Optimiser(lr=self.finetune_lr)
        plain = Objective("finetune", FedAvg.terms(self), COPIED, optimiser=own, encode=self.encode)
        phases = (self.tuning_phase(plain),)
        tune = self.exchange("finetune", phases=phases, keep=self.promote, returns=(), merge=leave)
        return (*super().stages(rounds), Stage("finetune", 1, (tune,), participation=1.0))

    def tuning_phase(self, objective: Objective) -> Phase:
        """``finetune_steps`` of an objective."""
        return Phase("finetune", (objective,), steps=self.finetune_steps)

    def promote(self, work: LocalWork) -> Tensors:
        """The tuned model as the client's copy."""
        tuned = (work.private | work.trained).of_parts(COPIED)
        return (tuned | {"done": torch.ones_like(work.private.of("tuned")["done"])}).under("tuned")

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the client's copy, or of the global model."""
        return net.tuned(x, net.head(self.encode(net, Batch(x), {}).z)).log_softmax(dim=1)
