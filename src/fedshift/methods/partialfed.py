"""PartialFed: a client begins a round with some layers as it left them, and the others as the server averaged them.

Sun, Huo, Yang and Bai, PartialFed: cross-domain personalized federated learning via partial initialization, NeurIPS
2021. Every client trains and sends the whole model and the server averages all layers; what differs is what a client
begins with, and so also what it predicts with: for each layer the average, or its own last values.

- Fix: the layers that are its own are named (:class:`PartialFed`).
- Adaptive: each client learns the choice, layer by layer, on its own data (:class:`PartialFedAdaptive`).

Choices:

- Since all layers are averaged, a client that has none of its own yet begins with the average of everyone else's. In
  FedBN it would begin with the run's initial batch norms; that aside, Fix of batch norm alone is FedBN for the client,
  as long as moments begin afresh in each round, or there are none.
- A layer is a module that has tensors itself; batch-norm statistics go with scale and shift.
- An unseen client is predicted for with the average of all layers.
- Statistics are not measured again (``bn = "reestimate"``): they would no longer be the client's own.
- Adaptive: the paper samples the choice by Gumbel-softmax; its code is not public. Ours: each layer has a logit s, 0
  at first. A phase before the local training draws a = sigmoid((s + l) / temperature) for each layer, with l logistic
  noise (the difference of two Gumbel ones), takes the cross-entropy of the layers a own + (1 - a) w_t in evaluation
  mode, and moves s alone, for as many steps as the training after it. Layers with s > 0 are the client's own: in the
  next round's beginning, and in predictions.
- An absent client's layers and choices stand still; a late one's have moved.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.core.method import tensor_scopes
from fedshift.methods.fedavg import FedAvg
from fedshift.page import *

MOST_LAYERS = 1024  # for which noise is drawn, whose length must be known without the model; ResNet-152 has 312


def layer_of(name: str) -> str:
    """The layer that a tensor belongs to: ``encoder.0`` of ``encoder.0.weight``."""
    return name.rpartition(".")[0]


class Partial(FedAvg):
    """What both forms have in common: the client's last values, and a model that is partly made of them."""

    paper: ClassVar[str] = "Sun et al., NeurIPS 2021"

    bn: Literal["shared", "local"] = setting("shared", help="batch norm: averaged, or never sent at all")

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """FedAvg's parts, and the client's last values of layers that may be its own; ``done`` once it has them."""
        parts = super().parts(model)
        sent = {name for name, scope in tensor_scopes(self, parts).items() if scope == "shared"}
        modules = {name: part.module for name, part in parts.items()}
        last = Tensors(dict(Net(modules).tensors())).only(self.local_tensors(modules) & sent)
        return {**parts, "last": Part.state(last | {"done": torch.zeros(())}, "client", unseen="initial")}

    def local_tensors(self, modules: Mapping[str, nn.Module]) -> set[str]:
        """The names of the tensors, of these parts, whose last values a client keeps."""
        raise NotImplementedError

    def is_own(self, private: Tensors) -> Tensors:
        """Of each of these tensors, by name, whether the client has its own, bool of shape ()."""
        last = private.of("last")
        return Tensors({name: last["done"] > 0 for name in last if name != "done"})

    def begin(self, private: Tensors, shared: Tensors) -> Tensors:
        """The client's own tensors, and of the others that might be the shared ones, as far as they are given."""
        last, own = private.of("last"), self.is_own(private)
        return Tensors({name: torch.where(own[name], last[name], shared[name]) for name in own if name in shared})

    def keep(self, work: LocalWork) -> Tensors:
        """The values that training has left."""
        last = work.private.of("last")
        return (work.trained.only(last) | {"done": torch.ones_like(last["done"])}).under("last")

    def predict(self, net: Net, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Log-softmax of the model with which the client would begin now."""
        private, shared = (
            Tensors({name: tensor for part in parts for name, tensor in net.of(part).under(part).items()})
            for parts in (self.private_parts(), self.moves())
        )
        return self.logits(net, self.begin(private, shared), x).log_softmax(dim=1)

    def private_parts(self) -> tuple[str, ...]:
        """The parts that stay on the client."""
        return ("last",)

    def logits(self, net: Net, tensors: Tensors, x: Tensor) -> Tensor:
        """Logits (B, classes) for inputs x (B, ...), with some tensors in the place of those at work."""
        z = net.call("encoder", tensors.of("encoder"), x)
        return net.call("head", tensors.of("head"), z)


class PartialFed(Partial):
    """FedAvg whose clients begin with named layers as they left them (PartialFed-Fix)."""

    own: tuple[str, ...] = setting(
        ("bn", "head"),
        help="what a client begins with as it left it: bn, a part such as head, or layers such as encoder.0",
        source="Sec. 3.2; which layers: ours",
    )

    def local_tensors(self, modules: Mapping[str, nn.Module]) -> set[str]:
        """The tensors of the named layers.

        Raises:
            FedshiftError: there is no layer of a name.
        """
        names = [name for name, _ in Net(modules).tensors()]
        norms = {f"{part}.{name}" for part, module in modules.items() for name in batch_norm_tensors(module)}
        found: set[str] = set()
        for word in self.own:
            own = norms if word == "bn" else {name for name in names if name.startswith(f"{word}.")}
            if not own and word != "bn":
                layers = ", ".join(dict.fromkeys(map(layer_of, names)))
                raise FedshiftError(
                    f"method.own names '{word}', which the model does not have: name bn, {' or '.join(modules)}, or "
                    f"layers of {layers}."
                )
            found |= own
        return found


class PartialFedAdaptive(Partial):
    """FedAvg whose clients learn, layer by layer, whether to begin with the average or as they left it."""

    temperature: Positive = setting(1.0, help="of the Gumbel-softmax; ours", search=(0.1, 0.5, 1.0))
    choice_lr: LearningRate | None = setting(
        None, help="learning rate of the choices; by default that of [train]", search=Range(1e-3, 1, log=True)
    )

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """Also a logit for each layer, 0 at first.

        Raises:
            FedshiftError: there are too many layers.
        """
        parts = super().parts(model)
        layers = {layer_of(name) for name in parts["last"].module.state_dict() if name != "done"}
        if len(layers) > MOST_LAYERS:
            raise FedshiftError(
                f"The model has {len(layers)} layers; partialfed-adaptive chooses among {MOST_LAYERS} at most: take a "
                "smaller model, or partialfed."
            )
        return {
            **parts,
            "choice": Part(
                nn.ParameterDict({"logit": nn.Parameter(torch.zeros(len(layers)))}), "client", unseen="initial"
            ),
        }

    def private_parts(self) -> tuple[str, ...]:
        """The last values and the choices."""
        return (*super().private_parts(), "choice")

    def local_tensors(self, modules: Mapping[str, nn.Module]) -> set[str]:
        """Every tensor."""
        return {name for name, _ in Net(modules).tensors()}

    def is_own(self, private: Tensors) -> Tensors:
        """Of each tensor, whether the client has last values and has chosen them for its layer."""
        own = super().is_own(private)
        return Tensors(
            {name: own[name] & (logit > 0) for name, logit in by_layer(own, private.of("choice")["logit"]).items()}
        )

    def phases(self) -> Phases:
        """The choice, then the local training."""
        optimiser = Optimiser(lr=self.choice_lr)
        choice = Objective("choice", {"choice": Term(self.mixed_risk)}, ("choice",), self.choice_draws, optimiser)
        return (Phase("choice", (choice,)), *super().phases())

    def choice_draws(self, model: ModelBuilder, batch: int) -> Draws:
        """A uniform number for each layer, and more that are not read."""
        return {"uniform": Draw((MOST_LAYERS,), "uniform")}

    def mixed_risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """Cross-entropy of the layers a own + (1 - a) w_t."""
        last, logit = net.of("last"), net.of("choice")["logit"]
        logistic = torch.logit(context.noise["uniform"][: len(logit)], eps=1e-6)
        a = torch.sigmoid((logit + logistic) / self.temperature)
        received = context.received.only(name for name, tensor in last.items() if tensor.is_floating_point())
        weight = by_layer(received, a * last["done"])  # without last values w_t alone
        fixed = weight.map(Tensor.detach) | weight.only(net.trainable)  # no gradient goes through batch statistics
        mixed = received + fixed * (last.only(received) - received)
        return batch.cross_entropy(self.logits(net, mixed, batch.x))


def by_layer(tensors: Tensors, values: Tensor) -> Tensors:
    """Of each tensor the value, of shape (), that its layer has among values (layers,), by the layers' sorted names."""
    place = {layer: number for number, layer in enumerate(sorted(set(map(layer_of, tensors))))}
    return Tensors({name: values[place[layer_of(name)]] for name in tensors})
