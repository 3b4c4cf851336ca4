"""Scoring a model that a net holds: small environments of one model are predicted for together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.core.net import Net, batch_norms
from fedshift.core.streams import sample_draws
from fedshift.engines.engine import Question, Score, Setup
from fedshift.engines.local import advice, even_chunks, set_modes
from fedshift.errors import DivergedError


def alike(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Questions in a row that have one model and fit into one batch."""
    held: list[Question] = []
    for question in questions:
        if held and not (_one_model(held[0], question) and _size(held) + _size([question]) <= _limit(question)):
            yield held
            held = []
        held.append(question)
    if held:
        yield held


def _one_model(one: Question, other: Question) -> bool:
    if one.model is not other.model or one.setup is not other.setup:
        return False
    # Statistics that are measured again are an environment's own.
    return not any(one.setup.method.reestimates(unseen) for unseen in (True, False))


def _size(questions: Sequence[Question]) -> int:
    return sum(len(question.environment.samples) for question in questions)


def _limit(question: Question) -> int:
    return question.setup.evaluate.batch


@torch.no_grad()
def score(net: Net, questions: Sequence[Question]) -> list[Score]:
    """Score the model that a net holds on one environment, or on several that fit into one batch."""
    set_modes(net, ())
    first = questions[0]
    if len(questions) == 1:
        environment = first.environment
        if first.setup.method.reestimates(unseen=environment.client is None):
            _reestimate(net, first)
        return [_sum_up(first, list(_predictions(net, first)))]
    asked = [_asked(question, 0, torch.arange(len(question.environment.samples))) for question in questions]
    axes = _batch_axes(first.setup)
    x = torch.cat([one.x for one in asked])
    noise = {name: torch.cat([one.noise[name] for one in asked], dim=axis) for name, axis in axes.items()}
    predicted = torch.split(first.setup.method.predict(net, x, noise), [len(one.y) for one in asked])
    return [_sum_up(question, [(p, one.y)]) for question, p, one in zip(questions, predicted, asked, strict=True)]


@dataclass(frozen=True)
class _Asked:
    """A chunk of an environment: inputs, noise and labels."""

    x: Tensor
    noise: dict[str, Tensor]
    y: Tensor


def _asked(question: Question, number: int, rows: Tensor) -> _Asked:
    setup, environment, moment = question.setup, question.environment, question.moment
    x, y = environment.samples.batch(rows.to(setup.device))
    draws = setup.method.prediction_draws(setup.spec, len(y))
    key = (*moment.key, environment.name, environment.role, number)
    noise = sample_draws(draws, setup.streams.generator("prediction", *key), setup.device) if draws else {}
    x = setup.federation.inputs.evaluation(x)
    return _Asked(_typed(x, setup), {name: _typed(value, setup) for name, value in noise.items()}, y)


def _typed(x: Tensor, setup: Setup) -> Tensor:
    return x.to(setup.dtype) if x.is_floating_point() else x


def _predictions(net: Net, question: Question) -> Iterator[tuple[Tensor, Tensor]]:
    setup = question.setup
    chunks = even_chunks(len(question.environment.samples), setup.evaluate.batch)
    for number, rows in enumerate(chunks):
        asked = _asked(question, number, rows)
        yield setup.method.predict(net, asked.x, asked.noise), asked.y


def _sum_up(question: Question, predictions: Sequence[tuple[Tensor, Tensor]]) -> Score:
    """Accuracy and loss over all chunks.

    Raises:
        DivergedError: the loss is not finite.
    """
    environment, correct, loss = question.environment, 0.0, 0.0
    for log_probabilities, y in predictions:
        correct += float((log_probabilities.argmax(dim=1) == y).sum())
        loss -= float(log_probabilities.gather(1, y.unsqueeze(1)).cpu().double().sum())
    n = len(environment.samples)
    if not math.isfinite(loss):
        raise DivergedError(
            f"The loss on '{environment.name}' is not finite after round {question.moment.round}. "
            f"{advice(question.setup)}"
        )
    return Score(correct / n, loss / n, n)


def _batch_axes(setup: Setup) -> dict[str, int]:
    """Along which dimension each of a prediction's draws has the batch."""
    one, two = (setup.method.prediction_draws(setup.spec, batch) for batch in (1, 2))
    return {
        name: next(axis for axis, (a, b) in enumerate(zip(one[name].shape, two[name].shape, strict=True)) if a != b)
        for name in one
    }


def _reestimate(net: Net, question: Question) -> None:
    """Measure batch-norm statistics on the environment's inputs, each batch with equal weight."""
    layers = [layer for module in net.parts.values() for _, layer in batch_norms(module)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    for _ in _predictions(net, question):
        pass
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()
