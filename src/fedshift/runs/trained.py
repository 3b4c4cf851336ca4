"""A trained model as a module, rebuilt from a run's folder without the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn

from fedshift.core.contract import Part, ServerState
from fedshift.core.frozen import Front
from fedshift.core.method import tensor_scopes
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net, batch_norms
from fedshift.core.preparation_part import COMMON, PREPARATION
from fedshift.core.setup import DTYPES
from fedshift.core.tensors import Tensors, part_of
from fedshift.engines.kernels import Kernels, prepare
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.models import MODELS
from fedshift.models.own import Own
from fedshift.models.probed import log_probabilities
from fedshift.rounds.evaluation import parts_predicted
from fedshift.runs.checkpoint import check_same_layout
from fedshift.runs.schema import Blueprint
from fedshift.streams import sample_draws

SAMPLES = 4  # on which it is seen whether a module predicts as a run does


def rebuilt(
    experiment: Experiment, blueprint: Blueprint, weights: Mapping[str, Tensor], client: int | str | None
) -> Trained:
    method = experiment.method
    model, parts = blueprint.modules(experiment)
    read = parts_predicted(method, model, parts, blueprint.inputs, blueprint.inputs.like(blueprint.shape))
    parts = {name: part for name, part in parts.items() if name in read}
    scopes = tensor_scopes(method, parts)
    unseen = _preparation_of_unseen(blueprint, parts, weights) if client is None else Tensors()
    weights = {**weights, **unseen}
    kept = {name for name, scope in scopes.items() if scope == "client"} - unseen.keys()
    id = None if client is None else blueprint.client(client)
    if kept:
        have = [number for number in blueprint.clients if f"client.{number}.{min(kept)}" in weights]
        if id not in have:
            whose = "There is no global model" if id is None else f"Client {blueprint.named([id])} never trained"
            fix = (
                f"Name a client (client=, or --client) by name or id: {blueprint.named(have)}."
                if have
                else "No model is here: in a federation each stays at its site, in fedshift.site_model(FOLDER)."
            )
            raise FedshiftError(f"{whose}: {_reason_personalised(experiment, kept)} {fix}")
    # What a client keeps, or is sent in the place of what others are, comes before what all have.
    names = {name: f"client.{id}.{name}" for name in scopes}
    found = {name: mine if mine in weights else name for name, mine in names.items()}
    tensors = {name: weights[where] for name, where in found.items() if where in weights}
    return _loaded(experiment, blueprint, model, parts, tensors, unseen=id is None)


def of_unseen(experiment: Experiment, blueprint: Blueprint, weights: Mapping[str, Tensor]) -> list[Trained]:
    """The models that the method gives a client that never trained, where every client has a personalised model.

    They follow :class:`fedshift.core.contract.Part`'s ``unseen``, as on a held-out domain: one model, or every
    client's. Rows of a table are not prepared. Raises a DamagedError if the weights lack what is needed.
    """
    setup = blueprint.setup(experiment, "unseen", torch.device("cpu"))
    modules = setup.model, setup.parts, blueprint.inputs, blueprint.inputs.like(blueprint.shape)
    read = parts_predicted(experiment.method, *modules)
    sent = Tensors(
        {name: weights[name] for name, scope in setup.scopes.items() if scope != "client" and name in weights}
    )
    clients = [
        Tensors({name: weights[its] for name in setup.scopes if (its := f"client.{number}.{name}") in weights})
        for number in blueprint.clients
    ]
    private = setup.unseen(ServerState(sent), [kept for kept in clients if kept] or [setup.initial("client")], read)
    found = []
    for own in private:
        model, parts = blueprint.modules(experiment)
        parts = {name: part for name, part in parts.items() if name in read}
        found.append(_loaded(experiment, blueprint, model, parts, (sent | own).of_parts(read), unseen=True))
    return found


def _loaded(
    experiment: Experiment,
    blueprint: Blueprint,
    model: ModelBuilder,
    parts: Mapping[str, Part],
    tensors: Mapping[str, Tensor],
    unseen: bool,
) -> Trained:
    for part in parts.values():
        prepare(part.module, Kernels(), experiment.train.precision)
    held = {name: part.module.state_dict() for name, part in parts.items()}
    check_same_layout(
        {f"{name}.{own}": like for name, state in held.items() for own, like in state.items()}, tensors, "weights file"
    )
    for name, part in parts.items():
        part.module.load_state_dict({own: tensors[f"{name}.{own}"] for own in held[name]})
    network = experiment.model.frozen_network()
    front = None if network is None else Front(network)
    modules = {name: part.module for name, part in parts.items()}
    return Trained(experiment, blueprint, model, modules, front, unseen)


def _preparation_of_unseen(blueprint: Blueprint, parts: Mapping[str, Part], weights: Mapping[str, Tensor]) -> Tensors:
    """What prepares rows of a site that never trained, if that follows from shared tensors; if not, nothing."""
    preparation = blueprint.inputs.preparation
    if preparation is None or preparation.statistics != "combat":
        return Tensors()
    common = Tensors(weights).of(COMMON)
    check_same_layout(parts[COMMON].module.state_dict(), common, "weights file")
    return Tensors(preparation.of_unseen((), common)).under(PREPARATION)


def _reason_personalised(experiment: Experiment, kept: Iterable[str]) -> str:
    if {part_of(name) for name in kept} == {PREPARATION}:
        return "each client's rows are prepared by its local statistics (data.statistics = 'site')."
    return f"'{experiment.method_name}' leaves every client with a model."


class Trained(nn.Module):
    """Predicts as a run did: the parts that its method's prediction reads, in evaluation mode.

    Its parameters and buffers have the names of the run's files, such as ``encoder.conv1.weight``. Frozen stages of its
    network (``model.freeze_until``) come first, as ``front``.

    Attributes:
        experiment: the run's
        blueprint: describes a sample
        draws: whether it draws noise for a batch, so that the output for a sample depends on the sample's place
    """

    def __init__(
        self,
        experiment: Experiment,
        blueprint: Blueprint,
        model: ModelBuilder,
        modules: Mapping[str, nn.Module],
        front: Front | None,
        unseen: bool,
    ) -> None:
        """Combine trained modules, by the parts' names; ``unseen``: it is not a client's model."""
        super().__init__()
        self.experiment, self.blueprint = experiment, blueprint
        self._method, self._model = experiment.method, model
        self._dtype = DTYPES[experiment.train.precision]
        self._reestimates = experiment.method.core.reestimates(unseen)
        self.draws = bool(self._method.core.prediction_draws(model, 1))
        self._parts = tuple(modules)
        for name, module in modules.items():
            self.add_module(name, module)
        self.front = front
        self.eval()

    def double(self) -> Self:
        """Predict in float64 from now on, so that a sample's prediction hardly depends on its batch.

        In float32 the order of sums, and so the last digits, differ with the batch size and the processor. Frozen
        stages keep the precision of the run's features.
        """
        for name in self._parts:
            prepare(self.get_submodule(name), Kernels(), "float64")
        self._dtype = torch.float64
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Samples (B, *shape) as the data set stores them to log-probabilities (B, classes).

        Where stages are frozen these are uint8 images or token ids, or the output of :func:`embed` for these stages.

        Images of uint8 are scaled and normalised as in the run; floating inputs must be scaled already, but rows
        of a table are prepared as in the run: NaN is a missing cell, and a category its number in ``blueprint``. The
        noise of a probabilistic method comes from a stream named by the batch's size, so that equal
        samples get equal answers. Batch-norm statistics that the method measures again are measured on this batch.

        Raises:
            FedshiftError: samples have another shape.
        """
        given = tuple(x.shape)
        x = self._embedded(x)
        if tuple(x.shape[1:]) != self.blueprint.shape:
            instead = ""
            if self.front is not None:
                read = "images, uint8" if self.front.reads == "images" else "token ids"
                instead = f", or {read}, of which the frozen stages make that"
            raise FedshiftError(
                f"Give samples of shape (B, {', '.join(map(str, self.blueprint.shape))}){instead}, not {given}."
            )
        x, noise = self._inputs(x), self.noise(len(x), x.device)
        with self._model.streams.as_global("global draws in prediction", "model", len(x)):
            if not self._reestimates:
                return self._predicted(x, noise)
            with _measured_again([self.get_submodule(name) for name in self._parts]):
                with torch.no_grad():
                    self._predicted(x, noise)
                self.eval()
                return self._predicted(x, noise)

    def given_noise(self, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """As :meth:`forward`, with given noise: nothing is checked, drawn or measured, so it can be traced."""
        return self._predicted(self._inputs(self._embedded(x)), noise)

    def noise(self, batch: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """The noise for a batch of that size; empty for most methods."""
        draws = self._method.core.prediction_draws(self._model, batch)
        if not draws:
            return {}
        generator = self._model.streams.generator("prediction", "model", batch)
        drawn = sample_draws(draws, generator, device or torch.device("cpu"))
        return {name: self._typed(tensor) for name, tensor in drawn.items()}

    @property
    def measures(self) -> bool:
        """Whether each batch gives its batch-norm statistics, so that a prediction depends on the other samples."""
        return self._reestimates and any(True for name in self._parts for _ in batch_norms(self.get_submodule(name)))

    def _embedded(self, x: Tensor) -> Tensor:
        return x if self.front is None or x.is_floating_point() else self.front(x)

    def _inputs(self, x: Tensor) -> Tensor:
        statistics = dict(self.get_submodule(PREPARATION).named_buffers()) if PREPARATION in self._parts else {}
        return self._typed(self.blueprint.inputs.fitted(statistics).evaluation(x))

    def _predicted(self, x: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        net = Net({name: self.get_submodule(name) for name in self._parts})
        return self._method.core.predict(net, x, noise)

    def own_module(self) -> nn.Module:
        """Your module (``own_model``) as the run trained it, with your names of its parameters.

        In a whole classifier (``head``) the method's classifier replaces the head, so that it gives logits; an encoder
        gives features. It takes network inputs: images of 0..1, normalised as in the run, and prepared rows of a table.

        Raises:
            FedshiftError: the model is not a user's module, or the method predicts with more than it.
        """
        model, own = self._model.model, {name: self.get_submodule(name) for name in self._parts}
        if not isinstance(model, Own) or "encoder" not in own:
            raise FedshiftError(
                "own_module() is of a module that fedshift.own_model kept, as the part 'encoder'; this run has the "
                f"model '{MODELS.name_of(model)}' and the parts {', '.join(own)}, whose state_dict() has their names."
            )
        module = model.filled(own["encoder"], own.get("head"), self._model.shape)
        if model.head:
            self._check_predicts(module, own)
        return module

    @torch.no_grad()
    def _check_predicts(self, module: nn.Module, own: Mapping[str, nn.Module]) -> None:
        """Raise an error unless a module that gives logits predicts as the run does, but for rounding."""
        drawn = torch.rand(SAMPLES, *self._model.shape, generator=torch.Generator().manual_seed(0))
        x = drawn.to(self.blueprint.inputs.like(self.blueprint.shape).dtype)
        draws = self._method.core.prediction_draws(self._model, SAMPLES)
        noise = sample_draws(draws, torch.Generator().manual_seed(0), x.device)
        noise = {name: self._typed(each) for name, each in noise.items()}
        expected = self._method.core.predict(Net(dict(own)), self._typed(x), noise)
        if not torch.allclose(log_probabilities(module(x)), expected.float(), atol=1e-4):
            raise FedshiftError(
                f"The method predicts with more than {type(module).__name__} and its head, so the module alone does "
                "not predict as the run does; run.model() does."
            )

    def _typed(self, x: Tensor) -> Tensor:
        return x.to(self._dtype) if x.is_floating_point() else x


@contextmanager
def _measured_again(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Measure batch norms in training mode, each batch with equal weight, and restore the mode afterwards."""
    layers = [layer for module in modules for _, layer in batch_norms(module)]
    before = [(layer.momentum, {name: tensor.clone() for name, tensor in layer.named_buffers()}) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    try:
        yield
    finally:
        for layer, (momentum, buffers) in zip(layers, before, strict=True):
            layer.momentum = momentum
            for name, tensor in buffers.items():
                layer.get_buffer(name).copy_(tensor)
            layer.eval()
