"""Which model is scored on which client's samples, and what a record contains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Environment, Lazy
from fedshift.core.contract import Part, ServerState
from fedshift.core.method import Method
from fedshift.core.metrics import Values, mean_of
from fedshift.core.model import ModelBuilder
from fedshift.core.net import Net, parts_read
from fedshift.core.preparation_part import COMMON, PREPARATION
from fedshift.core.setup import Round
from fedshift.core.tensors import Tensors, part_of
from fedshift.engines.banks import same_memory
from fedshift.engines.engine import Engine, Question, Score
from fedshift.rounds.site import Site
from fedshift.streams import sample_draws

Row = dict[str, Any]
Send = Callable[[int], Tensors]  # the tensors that the server sends to a client


class Evaluation:
    """Scores the environments of a site: with a client's model, the global model, or an unseen client's."""

    def __init__(self, site: Site) -> None:
        self.site, self.setup = site, site.setup
        self.simulated = False  # whether a model used what several clients keep, as only a simulation can
        self._unseen: tuple[Tensors, Tensors] | None = None  # an unseen site's preparation, with the shared statistics

    def rows(
        self,
        state: ServerState,
        send: Send,
        round: Round,
        engine: Engine,
        environments: Sequence[Environment] | None = None,
    ) -> list[Row]:
        """Score environments (None: all of the site's); each row names the model and the data.

        ``send`` returns what the server would send to a client.
        """
        self.simulated = False
        about: list[tuple[Row, int]] = []
        requested = self.site.federated.environments if environments is None else environments
        scores = iter(list(engine.score(self._questions(requested, state, send, round, about))))
        return [row | _mean([next(scores) for _ in range(models)]) for row, models in about]

    def _questions(
        self,
        environments: Sequence[Environment],
        state: ServerState,
        send: Send,
        round: Round,
        about: list[tuple[Row, int]],
    ) -> Iterator[Question]:
        """Every model on its environment; ``about`` collects each row's description and its number of models."""
        strangers: list[Tensors] = []
        last: list[Tensors] = []
        federated = self.site.federated
        for environment in environments:
            models = self.models(environment, state, send, strangers)
            if not _same_models(models, last):
                last = models  # models that are the same object predict together
            row = {"environment": environment.name, "role": environment.role, "model": self.model_of(environment)}
            about.append((row, len(last)))
            for model in last:
                inputs = federated.inputs.fitted(model.of(PREPARATION))
                yield Question(self.setup, model, environment, inputs, round)

    def models(
        self, environment: Environment, state: ServerState, send: Send, strangers: list[Tensors] | None = None
    ) -> list[Tensors]:
        """The tensors of each model that is scored on an environment.

        A client's model consists of what the server would send and what the client keeps. A client that never trained,
        or whose model is not requested, uses the method's tensors for unseen clients, cached in ``strangers``.
        """
        client, strangers = environment.client, [] if strangers is None else strangers
        sent = state.shared | state.down if environment.scored_as is None else send(environment.scored_as)
        match self.model_of(environment):
            case "global":
                return [sent | self._preparation_of_unseen(sent)]
            case "own":
                assert client is not None
                kept = self.site.store.peek(client)
                return [sent | (kept.tensors if kept else {}) | self.site.prepared_by(client, sent)]
        if not strangers:
            strangers += self.setup.unseen(state, self._kept_by_clients(), self.read - {PREPARATION})
        if client is None:
            prepared = self._preparation_of_unseen(sent)
            self.simulated |= bool(prepared) and not self._harmonised
        else:
            prepared = self.site.prepared_by(client, sent)
        return [sent | private | prepared for private in strangers]

    def model_of(self, environment: Environment) -> str:
        """The model of an environment: the global model, the client's, or an unseen client's."""
        client = environment.scored_as
        if not self.private:
            return "own" if self.setup.individual and client is not None else "global"
        if self.private == {PREPARATION} and (environment.client is not None or self._harmonised):
            return "global" if environment.client is None else "own"
        return "own" if client is not None and self.site.has_trained(client) else "unseen"

    @cached_property
    def read(self) -> frozenset[str]:
        federated = self.site.federated
        x, _ = federated.environments[0].samples.batch(torch.zeros(1, dtype=torch.int64, device=self.setup.device))
        return parts_predicted(self.setup.method, self.setup.model, self.setup.parts, federated.inputs, x)

    @property
    def _harmonised(self) -> bool:
        return self.setup.preparation is not None and self.setup.preparation.statistics == "combat"

    def _preparation_of_unseen(self, sent: Tensors) -> Tensors:
        """The statistics for rows of a site that never trained, if statistics are local; else empty."""
        preparation = self.setup.preparation
        if preparation is None or preparation.statistics == "pooled":
            return Tensors()
        common = sent.of(COMMON)
        if self._unseen is None or not _same_models([self._unseen[1]], [common]):
            ids = () if self._harmonised else self.site.federated.ids
            sites = [self.site.prepared_by(client, sent).of(PREPARATION) for client in ids]
            self._unseen = Tensors(preparation.of_unseen(sites, common)).under(PREPARATION), common
        return self._unseen[0]

    @cached_property
    def private(self) -> frozenset[str]:
        """The parts that a prediction reads and of which clients keep tensors."""
        return frozenset(map(part_of, self.site.initial)) & self.read

    def _kept_by_clients(self) -> Sequence[Tensors]:
        trained = [client for client in self.site.store.ids() if self.site.has_trained(client)]
        return Lazy(self._kept_by, trained) if trained else [self.site.initial]

    def _kept_by(self, client: int) -> Tensors:
        self.simulated = True
        state = self.site.store.peek(client)
        assert state is not None
        return Tensors(state.tensors)


def parts_predicted(
    method: Method, model: ModelBuilder, parts: Mapping[str, Part], inputs: Inputs, x: Tensor
) -> frozenset[str]:
    """The names of the parts that the prediction of a sample x (1, ...) reads."""
    x = inputs.evaluation(x)
    net = Net({name: deepcopy(part.module).to(x.device).eval() for name, part in parts.items()})
    with model.streams.as_global("global draws in parts that are read"):
        draws = method.core.prediction_draws(model, 1)
        noise = sample_draws(draws, model.streams.generator("parts that are read"), x.device)
        return parts_read(net, lambda net: method.core.predict(net, x, noise)) | ({PREPARATION, COMMON} & parts.keys())


def _mean(scores: Sequence[Score]) -> Row:
    """A row's numbers for an environment that one or several models were scored on."""
    return {
        "models": len(scores),
        "accuracy": sum(score.accuracy for score in scores) / len(scores),
        "loss": sum(score.loss for score in scores) / len(scores),
        "n": scores[0].n,
        **metrics_of([score.metrics for score in scores]),
        **(intervals_of(scores[0].intervals) if len(scores) == 1 else {}),  # a mean has no model's interval
    }


def metrics_of(values: Sequence[Values]) -> Row:
    """A row's metrics, the means over models, by name, and why some are undefined."""
    if not values[0]:
        return {}
    means, undefined = mean_of(values)
    return {"metrics": means, **({"undefined": undefined} if undefined else {})}


def intervals_of(bounds: Mapping[str, Sequence[float]]) -> Row:
    """A row's intervals: the ends of each, by metric."""
    return {"intervals": {name: [*ends] for name, ends in bounds.items()}} if bounds else {}


def _same_models(models: Sequence[Tensors], others: Sequence[Tensors]) -> bool:
    return len(models) == len(others) and all(
        one is other
        or (one.keys() == other.keys() and all(same_memory(tensor, other[name]) for name, tensor in one.items()))
        for one, other in zip(models, others, strict=True)
    )
