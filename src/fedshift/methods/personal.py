"""Local models beside the global one, shared by the methods that keep them.

:class:`PersonalCopy` is a local model, possibly pulled towards the received one, and :class:`PersonalModel` predicts
with it. :class:`FineTuning` creates a copy of the global model after training. :class:`Divided` keeps a part of the
model on the client. Clients that never trained predict with the global model.
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
        """Its parts, initialised as these modules; unseen clients use the shared parts."""
        modules = zip(COPIED, (encoder, head), strict=True)
        return {f"{self.name}_{name}": Part(module, "client", unseen=name) for name, module in modules}

    def features(self, net: Net, batch: Batch) -> Tensor:
        """Representations (B, d) of a batch."""
        return batch.once(net[self.names[0]], batch.x)

    def logits(self, net: Net, batch: Batch) -> Tensor:
        """Logits (B, classes) of a batch."""
        return batch.once(net[self.names[1]], self.features(net, batch))

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Cross-entropy, mean over the batch."""
        return batch.cross_entropy(self.logits(net, batch))

    def renamed(self, tensors: Tensors) -> Tensors:
        """Tensors of the shared encoder and head under the names of the copy."""
        return Tensors({f"{self.name}_{name}": tensor for name, tensor in tensors.of_parts(COPIED).items()})

    def distance(self, net: Net, received: Tensors) -> Tensor:
        """||v - w||^2 between its weights v and the received weights w, without local batch norms; a scalar."""
        return (net.weights - self.renamed(received)).squared_norm()


class Divided(FedAvg):
    """FedAvg of some parts; one part stays on the client, and unseen clients get the clients' mean of it."""

    personal: Literal["head", "encoder", "none"] = setting(
        "head", help="the part that stays on the client; none averages all parts"
    )

    @property
    def local_parts(self) -> tuple[str, ...]:
        """The parts that stay on the client."""
        return () if self.personal == "none" else (self.personal,)

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, of which one stays on the client."""
        parts = super().parts(model)
        return parts | {name: replace(parts[name], scope="client") for name in self.local_parts}


class PersonalModel(FedAvg):
    """FedAvg's global model, and a local model of each client, which predicts; unseen clients use the global one."""

    local: ClassVar[PersonalCopy] = PersonalCopy("personal")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts and the local model, which starts as the global one."""
        return {**super().parts(model), **self.local.parts(model.encoder(), model.head())}

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the local model, (B, classes)."""
        return self.local.logits(net, Batch(x)).log_softmax(dim=1)


class Tuned(nn.Module):
    """A client's stored copy of the global model; ``done`` is 0 until there is one."""

    done: Tensor

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.register_buffer("done", torch.zeros(()))
        self.requires_grad_(False)

    def forward(self, x: Tensor, fallback: Tensor) -> Tensor:
        """Logits (B, classes) of the copy for inputs x (B, ...), or ``fallback`` before there is a copy."""
        return torch.where(self.done > 0, self.head(self.encoder(x)), fallback)


class FineTuning(FedAvg):
    """A last stage ``finetune`` of one round, in which every client tunes a copy of the global model.

    Clients upload nothing in it, and predict with the copy once it exists.
    """

    finetune_steps: OptionalSteps = setting(
        50, help="steps of fine-tuning; 0 for none; not in the paper", search=(10, 50, 200)
    )
    finetune_lr: LearningRate | None = setting(
        None,
        help="learning rate of fine-tuning; by default train.lr",
        search=Range(1e-4, 0.1, log=True),
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """The shared parts and the client's copy."""
        return {**super().parts(model), "tuned": Part(Tuned(model.encoder(), model.head()), "client", unseen="initial")}

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """Training, then one round of fine-tuning on every client."""
        if self.finetune_steps == 0:
            return super().stages(rounds)
        optimiser = Optimiser(lr=self.finetune_lr)
        plain = Objective("finetune", FedAvg.terms(self), COPIED, optimiser=optimiser, encode=self.encode)
        phases = (self.tuning_phase(plain),)
        tune = self.exchange("finetune", phases=phases, keep=self.keep_tuned, returns=(), merge=leave)
        return (*super().stages(rounds), Stage("finetune", 1, (tune,), participation=1.0))

    def tuning_phase(self, objective: Objective) -> Phase:
        """``finetune_steps`` of an objective."""
        return Phase("finetune", (objective,), steps=self.finetune_steps)

    def keep_tuned(self, work: LocalWork) -> Tensors:
        """The tuned model as the client's copy."""
        tuned = (work.private | work.trained).of_parts(COPIED)
        return (tuned | {"done": torch.ones_like(work.private.of("tuned")["done"])}).under("tuned")

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the client's copy, or of the global model; (B, classes)."""
        return net.tuned(x, net.head(self.encode(net, Batch(x), {}).z)).log_softmax(dim=1)
