"""The reference engine: one resident model, one client after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from fedshift.core.contract import Batch, LocalWork, ServerState
from fedshift.core.messages import Up
from fedshift.core.metrics import ACCURACY, measured
from fedshift.core.net import Net, batch_norms
from fedshift.core.setup import Setup
from fedshift.core.state import ClientState
from fedshift.core.tensors import SAMPLES, Tensors, full_name
from fedshift.core.uncertainty import intervals
from fedshift.engines.banks import Resident
from fedshift.engines.divergence import explained
from fedshift.engines.engine import SERVER, Job, Outcome, Question, Score, ServerJob
from fedshift.engines.kernels import Kernels
from fedshift.engines.lane import Lane, even_chunks
from fedshift.engines.local import run_phases, set_modes
from fedshift.errors import DivergedError
from fedshift.streams import sample_draws


class Sequential:
    """Loads each client's tensors into resident modules and trains it there."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or Kernels()
        self._residents: dict[Setup, Resident] = {}

    def resident(self, setup: Setup) -> Resident:
        """The modules of a run, created on first use."""
        if setup not in self._residents:
            self._residents[setup] = Resident(setup, self.kernels)
        return self._residents[setup]

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome | Exception]:
        for job in jobs:
            try:
                yield self._work(job)
            except Exception as error:  # it is this job's outcome
                yield error

    def _work(self, job: Job) -> Outcome:
        bank, lane = self.resident(job.setup).client, Lane(job)
        bank.load([initial_tensors(job)])
        with job.global_draws("work"):
            run_phases(bank, [lane])
        return outcome_of(job, lane, *bank.copy(trained_names(job)))

    def serve(self, job: ServerJob) -> tuple[ServerState, dict[str, float]]:
        state = job.state
        if not job.exchange.server_phases:
            return state, {}
        bank = self.resident(job.setup).server
        bank.load([state.tensors])
        lane = Lane(job)
        with job.setup.global_draws("server phases", *job.round.key, job.exchange.name):
            run_phases(bank, [lane])
        if lane.error:
            raise lane.error
        state = state.updated(*bank.copy([*state.down, *state.server]))
        own = state.down | state.server
        state = state.updated({n: tensor for n, tensor in lane.measured.items() if full_name(n) in own})
        scalars = {name: float(value) for name, value in lane.measured.items() if not value.ndim}
        return replace(state, optimisers=lane.optimisers), lane.means | scalars

    def score(self, questions: Iterable[Question]) -> Iterator[Score]:
        """Score model after model; small environments of one model are predicted together."""
        for together in _with_one_model(questions):
            bank = self.resident(together[0].setup).client
            bank.load([together[0].model])
            yield from _score(bank.net, together)

    @torch.no_grad()
    def observe(self, question: Question) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (n, classes), representations (n, d) and labels (n,) of an environment, on the CPU."""
        bank = self.resident(question.setup).client
        bank.load([question.model])
        predicted = _predict(bank.net, [question])
        log_probabilities, y = (torch.cat(tensors).cpu() for tensors in zip(*predicted, strict=True))
        return log_probabilities, torch.cat(list(_represent(bank.net, question))).cpu(), y

    def close(self) -> None:
        """Release the modules."""
        self._residents.clear()


def initial_tensors(job: Job) -> Tensors:
    """A client's tensors before its phases."""
    private = Tensors(job.state.tensors)
    if job.exchange.begin is None:
        return job.down | private
    with job.global_draws("begin"):
        return job.down | private | job.exchange.begin(private, job.down)


def trained_names(job: Job) -> list[str]:
    """The client's tensors after its phases; shared tensors that were not sent are a previous client's."""
    scopes = job.setup.scopes.items()
    return [name for name, scope in scopes if scope == "client" or (scope == "shared" and name in job.down)]


def outcome_of(job: Job, lane: Lane, tensors: Mapping[str, Tensor]) -> Outcome:
    """What a client sends and keeps after its phases; DivergedError if one of its losses was not finite."""
    if lane.error:
        raise lane.error
    setup, exchange = job.setup, job.exchange
    private, shared = (
        Tensors({name: tensor for name, tensor in tensors.items() if setup.scopes[name] == scope})
        for scope in ("client", "shared")
    )
    work = LocalWork(
        job.down,
        Tensors(lane.measured),
        lane.counts,
        shared,
        private,
        job.client.train,
        lane.steps,
        setup.train.lr_in(job.round.number, job.round.stage.rounds),
        lane.seen,
    )
    with job.global_draws("keep and upload") if exchange.keep or exchange.upload else nullcontext():
        given = exchange.keep(work) if exchange.keep else {}
        kept = {full_name(name): tensor.detach().clone() for name, tensor in given.items()}
        uploaded = setup.named(exchange, exchange.upload(work) if exchange.upload else {})
    reply = work.trained.only(setup.declaration(exchange).returned) | uploaded
    count = {SAMPLES: torch.tensor(work.samples)} if exchange.counted else {}
    drawn = {**job.state.drawn, job.round.stage.name: lane.drawn}
    trained = job.state.trained or lane.steps > 0 or bool(kept)
    state = ClientState(dict(private | kept), lane.optimisers, drawn, trained)
    return Outcome(job.client.id, Up(reply | count), state, lane.means, lane.steps)


# Scoring ------------------------------------------------------------------------------------------


def _with_one_model(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Consecutive questions with one model that fit into one batch."""
    together: list[Question] = []
    for question in questions:
        if together and not _fit([*together, question]):
            yield together
            together = []
        together.append(question)
    if together:
        yield together


def _fit(questions: Sequence[Question]) -> bool:
    """Whether questions, of which only the last may differ, have one model and fit into one batch."""
    first, last = questions[0], questions[-1]
    if last.model is not first.model or last.setup is not first.setup:
        return False
    # Re-estimated statistics differ between environments.
    if any(first.setup.method.core.reestimates(unseen) for unseen in (True, False)):
        return False
    return sum(len(question.environment.samples) for question in questions) <= first.setup.evaluate.batch


@torch.no_grad()
def _score(net: Net, questions: Sequence[Question]) -> list[Score]:
    """Score a net on one environment, or on several that fit into one batch."""
    predicted = _predict(net, questions)
    sizes = [len(question.environment.samples) for question in questions]
    sums = torch.stack(
        [_sums(log_probabilities, y, sizes if len(questions) > 1 else [len(y)]) for log_probabilities, y in predicted]
    ).sum(dim=0)
    parts = zip(*(torch.split(torch.cat(tensors), sizes) for tensors in zip(*predicted, strict=True)), strict=True)
    return [
        _score_of(question, both, log_probabilities.cpu(), y.cpu())
        for question, both, (log_probabilities, y) in zip(questions, sums.T.tolist(), parts, strict=True)
    ]


def _predict(net: Net, questions: Sequence[Question]) -> list[tuple[Tensor, Tensor]]:
    """Predictions and labels of a net, batch by batch."""
    set_modes(net, ())
    first = questions[0]
    with _global_draws(first):
        if first.setup.method.core.reestimates(unseen=first.environment.scored_as is None):
            _reestimate(net, first)
        return list(_predictions(net, questions))


def _global_draws(question: Question) -> AbstractContextManager[None]:
    environment = question.environment
    client = SERVER if environment.client is None else environment.client
    return question.setup.global_draws("prediction", *question.round.key, environment.role, environment.name, client)


def _represent(net: Net, question: Question) -> Iterator[Tensor]:
    with _global_draws(question):
        for number, rows in enumerate(even_chunks(len(question.environment.samples), question.setup.evaluate.batch)):
            x, _, y = _chunk(question, number, rows)
            yield question.setup.method.core.encode(net, Batch(x, y), {}).z.flatten(1)


def _predictions(net: Net, questions: Sequence[Question]) -> Iterator[tuple[Tensor, Tensor]]:
    """Predictions and labels of one environment, batch by batch, or of several as one batch."""
    first = questions[0]
    if len(questions) > 1:
        requested = [_chunk(question, 0, torch.arange(len(question.environment.samples))) for question in questions]
        xs, noises, ys = zip(*requested, strict=True)
        noise = {name: torch.cat([one[name] for one in noises], axis) for name, axis in _batch_axes(first).items()}
        yield first.setup.method.core.predict(net, torch.cat(xs), noise), torch.cat(ys)
        return
    for number, rows in enumerate(even_chunks(len(first.environment.samples), first.setup.evaluate.batch)):
        x, noise, y = _chunk(first, number, rows)
        yield first.setup.method.core.predict(net, x, noise), y


def _sums(log_probabilities: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    right = log_probabilities.argmax(dim=1) == y
    losses = -log_probabilities.gather(1, y.unsqueeze(1)).squeeze(1)
    rows = torch.stack([right.cpu().double(), losses.cpu().double()])
    part = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.zeros(2, len(sizes), dtype=torch.float64).index_add_(1, part, rows)


def _chunk(question: Question, number: int, rows: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The inputs, noise and labels of a chunk of an environment."""
    setup, environment = question.setup, question.environment
    x, y = environment.samples.batch(rows.to(setup.device))
    draws = setup.method.core.prediction_draws(setup.model, len(y))
    key = (*question.round.key, environment.name, environment.role, number)
    noise = sample_draws(draws, setup.streams.generator("prediction", *key), setup.device) if draws else {}
    x = question.inputs.evaluation(x)
    return setup.typed(x), {name: setup.typed(value) for name, value in noise.items()}, y


def _score_of(question: Question, sums: Sequence[float], log_probabilities: Tensor, y: Tensor) -> Score:
    """Accuracy and mean loss from their sums, and the declared metrics; DivergedError if the loss is not finite."""
    (right, loss), samples, setup = sums, question.environment.samples, question.setup
    if not math.isfinite(loss) or (setup.metrics and not log_probabilities.exp().isfinite().all()):
        what = f"The loss on '{question.environment.name}' is not finite after round {question.round.number}"
        raise DivergedError(*explained(setup, what, question.inputs, samples))
    requested, n = (setup.evaluate.metrics, setup.classes, log_probabilities, y), len(samples)
    metrics = measured(*requested, setup.evaluate.support_of(len(setup.classes))) if setup.metrics else {}
    defined = {name: value for name, value in metrics.items() if value is not None} | {ACCURACY: right / n}
    bounds = intervals(*requested, samples.group.cpu().numpy())
    return Score(right / n, loss / n, n, metrics, {name: bounds[name] for name in bounds if name in defined})


def _batch_axes(question: Question) -> dict[str, int]:
    """The batch dimension of each of a prediction's draws."""
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
    for _ in _predictions(net, [question]):
        pass
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()
