"""Scoring a model that a net holds: small environments of one model are predicted for together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fedshift.core.metrics import Values, measured
from fedshift.core.net import Net, batch_norms
from fedshift.core.setup import Setup
from fedshift.engines.engine import SERVER, Question, Score
from fedshift.engines.lane import even_chunks
from fedshift.engines.local import advice, set_modes
from fedshift.errors import DivergedError
from fedshift.streams import sample_draws


def alike(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Questions in a row that have one model and fit into one batch."""
    together: list[Question] = []
    for question in questions:
        if together and not (_one_model(together[0], question) and _fit([*together, question])):
            yield together
            together = []
        together.append(question)
    if together:
        yield together


def _one_model(one: Question, other: Question) -> bool:
    if one.model is not other.model or one.setup is not other.setup:
        return False
    # Statistics that are measured again are an environment's own.
    return not any(one.setup.method.core.reestimates(unseen) for unseen in (True, False))


def _fit(questions: Sequence[Question]) -> bool:
    return sum(len(question.environment.samples) for question in questions) <= questions[0].setup.evaluate.batch


@torch.no_grad()
def score(net: Net, questions: Sequence[Question]) -> list[Score]:
    """Score the model that a net holds on one environment, or on several that fit into one batch."""
    set_modes(net, ())
    with _lent(questions[0]):
        return _scores(net, questions)


def _lent(question: Question) -> AbstractContextManager[None]:
    """A stream for a prediction that draws from global generators."""
    environment = question.environment
    client = SERVER if environment.client is None else environment.client
    return question.setup.lend("prediction", *question.round.key, environment.role, environment.name, client)


def _scores(net: Net, questions: Sequence[Question]) -> list[Score]:
    first, sizes = questions[0], [len(question.environment.samples) for question in questions]
    if first.setup.method.core.reestimates(unseen=first.environment.client is None):
        _reestimate(net, first)
    if len(questions) == 1:
        predicted = list(_predictions(net, first))
        sums = torch.stack([_sums(log_probabilities, y, [len(y)]) for log_probabilities, y in predicted]).sum(dim=0)
    else:
        predicted = [_predicted_together(net, questions)]
        sums = _sums(*predicted[0], sizes)
    parts = zip(*(torch.split(torch.cat(tensors), sizes) for tensors in zip(*predicted, strict=True)), strict=True)
    return [
        _score(question, both, _metrics(question, log_probabilities.cpu(), y.cpu()))
        for question, both, (log_probabilities, y) in zip(questions, sums.T.tolist(), parts, strict=True)
    ]


def _predicted_together(net: Net, questions: Sequence[Question]) -> tuple[Tensor, Tensor]:
    """Predictions and labels of several environments, one after the other."""
    asked = [_asked(question, 0, torch.arange(len(question.environment.samples))) for question in questions]
    xs, noises, ys = zip(*asked, strict=True)
    axes = _batch_axes(questions[0]).items()
    noise = {name: torch.cat([one[name] for one in noises], axis) for name, axis in axes}
    return questions[0].setup.method.core.predict(net, torch.cat(xs), noise), torch.cat(ys)


def _sums(log_probabilities: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """How many predictions are right and the sum of the losses, (2, parts), of parts of the rows (B,)."""
    right = log_probabilities.argmax(dim=1) == y
    losses = -log_probabilities.gather(1, y.unsqueeze(1)).squeeze(1)
    rows = torch.stack([right.cpu().double(), losses.cpu().double()])
    part = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.zeros(2, len(sizes), dtype=torch.float64).index_add_(1, part, rows)


def _asked(question: Question, number: int, rows: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The inputs, noise and labels of a chunk of an environment."""
    setup, environment = question.setup, question.environment
    x, y = environment.samples.batch(rows.to(setup.device))
    draws = setup.method.core.prediction_draws(setup.model, len(y))
    key = (*question.round.key, environment.name, environment.role, number)
    noise = sample_draws(draws, setup.streams.generator("prediction", *key), setup.device) if draws else {}
    x = question.inputs.evaluation(x)
    return _typed(x, setup), {name: _typed(value, setup) for name, value in noise.items()}, y


def _typed(x: Tensor, setup: Setup) -> Tensor:
    return x.to(setup.dtype) if x.is_floating_point() else x


def _predictions(net: Net, question: Question) -> Iterator[tuple[Tensor, Tensor]]:
    setup = question.setup
    chunks = even_chunks(len(question.environment.samples), setup.evaluate.batch)
    for number, rows in enumerate(chunks):
        x, noise, y = _asked(question, number, rows)
        yield setup.method.core.predict(net, x, noise), y


def _metrics(question: Question, log_probabilities: Tensor, y: Tensor) -> Values:
    """The declared metrics of an environment's predictions; none of what is not finite, as its loss will say."""
    setup = question.setup
    if not setup.metrics or not log_probabilities.exp().isfinite().all():
        return {}
    return measured(setup.evaluate.metrics, setup.classes, log_probabilities, y)


def _score(question: Question, sums: Sequence[float], metrics: Values) -> Score:
    """Accuracy and mean loss from their sums, and metrics.

    Raises:
        DivergedError: the loss is not finite.
    """
    (right, loss), n = sums, len(question.environment.samples)
    if not math.isfinite(loss) or len(metrics) < len(question.setup.metrics):
        raise DivergedError(
            f"The loss on '{question.environment.name}' is not finite after round {question.round.number}.",
            advice(question.setup),
        )
    return Score(right / n, loss / n, n, metrics)


def _batch_axes(question: Question) -> dict[str, int]:
    """Along which dimension each of a prediction's draws has the batch."""
    setup = question.setup
    one, two = (setup.method.core.prediction_draws(setup.model, batch) for batch in (1, 2))
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
