"""An audit of what leaves a client: every tensor of a reply is compared, by content, with what must stay.

What must stay are the client's samples, as they are stored and as a network reads them, its labels in their order,
and its private tensors. A copy of one is found anywhere within a tensor (row by row, or column by column), in another
type and scaled and shifted; one of 8 to 31 numbers only as it is. A sample is also found with its elements in another
order, where a tensor has nothing but rows of its length.

It does not find what is cut up (over tensors, rounds or within a row), mixed with other numbers, noisy, encoded or
passed through a function that is not linear, nor less than a handful of numbers, nor labels that change fewer than
three times; nor a private tensor as training left it under the name of a shared one, since pages rightly keep copies
of what they return. An upload may hold tensors of the private part that it says it reveals. A stage that works on
something else than samples (Client2Vec's embeddings) is compared with the samples, not with that. It is a net for
mistakes, and no defence against a page that wants to deceive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.core.tensors import Tensors, part_of
from fedshift.engines.engine import Job, Outcome
from fedshift.errors import AuditError
from fedshift.federation.inputs import Inputs
from fedshift.federation.samples import Samples

FEW = 8  # numbers; equality of fewer says nothing
ENOUGH = 32  # numbers from which a correlation says something; also the window that is looked for first
DISTINCT = 8  # different numbers that a row in another order must have
CORRELATED = 0.9999
LIKELY = 0.998  # of a window, whose own noise counts more
AT_ONCE = 1 << 24  # numbers in memory


@dataclass(frozen=True)
class Secret:
    """Rows of numbers that must not leave a client.

    Attributes:
        what: what they are, for a message; ``{}`` stands for the row's number.
        rows: the numbers, (rows, length), float64.
        correlated: whether a copy need agree in its correlation only, or in every number but for rounding.
        reordered: whether a row counts as well with its elements in another order.
        part: the private part that it is of; empty for samples and labels.
    """

    what: str
    rows: Tensor
    correlated: bool = False
    reordered: bool = False
    part: str = ""

    @cached_property
    def numbers(self) -> Tensor:
        """The numbers of the rows that say something."""
        return _varied(self.rows).nonzero()[:, 0]

    @cached_property
    def told(self) -> Tensor:
        """These rows."""
        return self.rows[self.numbers]

    @cached_property
    def windows(self) -> tuple[Tensor, Tensor]:
        """Where in each of these rows a window varies most, and the window itself, with mean 0 and norm 1."""
        width = min(self.rows.shape[1], ENOUGH)
        centred = (self.told - self.told.mean(dim=1, keepdim=True))[:, None]
        spread = F.avg_pool1d(centred.square(), width, 1) - F.avg_pool1d(centred, width, 1).square()
        starts = spread[:, 0].argmax(dim=1)
        window = self.told.gather(1, starts[:, None] + torch.arange(width, device=starts.device))
        return starts, _normed(window).float()


def audit(job: Job, outcome: Outcome, train: Samples, inputs: Inputs, initial: Tensors) -> None:
    """Raise an error if a reply equals or contains what must not leave its client.

    Args:
        job: what the client was asked for, and what it had before.
        outcome: what it would send and keep.
        train: its samples, whatever the stage makes of them.
        inputs: how they become inputs of a network.
        initial: the private tensors that every client starts with, which are no secret.

    Raises:
        FedshiftError: which client, round, exchange and tensor, and what it contains.
    """
    returned = {name: tensor for name, tensor in outcome.up.items() if name in job.setup.returned(job.exchange)}
    uploaded = {name: tensor for name, tensor in outcome.up.items() if name not in returned}
    public = [*job.down.values(), *initial.values()]
    before = list(_private(job.state.tensors, "as it was before", public))
    after = list(_private(outcome.state.tensors, "as it is now", [*public, *returned.values()])) if uploaded else []
    for of_samples in _of_samples(train, inputs):
        _search(job, outcome.up, [of_samples])
    _search(job, returned, before)
    reveals = job.setup.reveals(job.exchange)
    for name, tensor in uploaded.items():
        told = reveals.get(name)
        _search(job, {name: tensor}, [secret for secret in (*before, *after) if not told or secret.part != told])


def _search(job: Job, tensors: Mapping[str, Tensor], secrets: Iterable[Secret]) -> None:
    for secret in secrets:
        for name, tensor in tensors.items():
            found = _found(tensor.detach(), secret)
            if found is not None:
                raise AuditError(
                    f"The reply of client '{job.client.name}', round {job.round.number} of the stage "
                    f"'{job.round.stage.name}', in the exchange '{job.exchange.name}' was not sent (run.audit): "
                    f"'{name}' contains {secret.what.format(found)}. Leave it out, or send what says less."
                )


# What must stay -----------------------------------------------------------------------------------


def _of_samples(train: Samples, inputs: Inputs) -> Iterator[Secret]:
    """Samples as they are stored and as a network reads them, a few at a time, and the labels."""
    length = train.pool.x[0].numel()
    if length >= FEW:
        chunk = max(1, AT_ONCE // length)
        for start in range(0, len(train), chunk):
            x, _ = train.batch(torch.arange(start, min(start + chunk, len(train)), device=train.pool.x.device))
            forms = [x.double().nan_to_num()]
            if (
                length < ENOUGH or inputs.normalise or inputs.preparation is not None
            ):  # else the one is the other, scaled
                forms.append(inputs.evaluation(x).double())
            for form in forms:
                rows = form.flatten(1)
                yield Secret("its sample {}", rows, correlated=length >= ENOUGH, reordered=length >= ENOUGH)
    if len(train) >= FEW:
        yield Secret("its labels, in order", train.y.double()[None], correlated=len(train) >= ENOUGH)


def _private(tensors: Mapping[str, Tensor], when: str, public: Iterable[Tensor]) -> Iterator[Secret]:
    """Private tensors that are not what everybody knows."""
    known: dict[int, list[Tensor]] = {}
    for tensor in public:
        known.setdefault(tensor.numel(), []).append(tensor.detach().double().flatten())
    for name, tensor in tensors.items():
        row = tensor.detach().double().flatten()[None]
        length = row.shape[1]
        same = (bool(_equal(row, other.to(row.device)[None], 1e-5)) for other in known.get(length, []))
        if length >= FEW and not any(same):
            yield Secret(f"its private tensor '{name}' {when}", row, part=part_of(name))


# Where it is --------------------------------------------------------------------------------------


def _found(tensor: Tensor, secret: Secret) -> int | None:
    """The number of the first row of a secret that a tensor contains."""
    length = secret.rows.shape[1]
    if tensor.numel() < length:
        return None
    rounding = max(1e-5, 8 * torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 1e-5
    if not len(secret.numbers):
        return None
    for view in _views(tensor.to(secret.rows.device).double()):
        place = _along(view, secret, rounding)
        if place is None and secret.reordered and not len(view) % length:
            place = _in_another_order(view.view(-1, length), secret.told, rounding)
        if place is not None:
            return int(secret.numbers[place])
    return None


def _varied(rows: Tensor) -> Tensor:
    """Which rows are no constants; short ones have several different numbers."""
    several = rows.amax(dim=1) > rows.amin(dim=1)
    if rows.shape[1] >= ENOUGH:
        return several
    ordered = rows.sort(dim=1).values
    return several & ((ordered.diff(dim=1) != 0).sum(dim=1) >= 3)


def _views(tensor: Tensor) -> Iterator[Tensor]:
    """The numbers of a tensor row by row, and column by column."""
    yield tensor.flatten()
    if tensor.ndim > 1 and tensor.shape[-1] > 1:
        yield tensor.movedim(-1, 0).flatten()


def _along(numbers: Tensor, secret: Secret, rounding: float) -> int | None:
    """Which row of a secret the numbers (m,) contain in one piece; its most telling window is looked for first."""
    rows, (starts, probes) = secret.told, secret.windows
    length, width = rows.shape[1], probes.shape[1]
    windows = numbers.unfold(0, width, 1)
    chunk, block = max(1, AT_ONCE // max(width, len(rows))), max(1, AT_ONCE // length)
    for start in range(0, len(windows), chunk):
        alike = _normed(windows[start : start + chunk]).float() @ probes.T
        place, row = (alike.abs() > LIKELY).nonzero(as_tuple=True)
        offset = place + start - starts[row]
        inside = ((offset >= 0) & (offset + length <= len(numbers))).nonzero()[:, 0]
        for first in range(0, len(inside), block):
            some = inside[first : first + block]
            pieces = numbers[offset[some, None] + torch.arange(length, device=rows.device)]
            fits = _agree(pieces, rows[row[some]], secret.correlated, rounding)
            if fits.any():
                return int(row[some][fits][0])
    return None


def _in_another_order(pieces: Tensor, rows: Tensor, rounding: float) -> int | None:
    """Which of the rows (n, length) is one of the pieces (m, length), whatever the order of their elements."""
    ordered = rows.sort(dim=1).values
    enough = ((ordered.diff(dim=1) != 0).sum(dim=1) >= DISTINCT - 1).nonzero()[:, 0]
    if not len(enough):
        return None
    theirs = pieces.sort(dim=1).values
    mine = ordered[enough]
    for either in (theirs, -theirs.flip(1)):
        alike = _normed(either).float() @ _normed(mine).float().T
        for piece, row in (alike > LIKELY).nonzero().tolist():
            if _equal(either[piece][None], mine[row][None], rounding)[0]:
                return int(enough[row])
    return None


def _agree(pieces: Tensor, rows: Tensor, correlated: bool, rounding: float) -> Tensor:
    """Whether pieces are rows (both (n, length)), scaled and shifted; short ones only as they are."""
    if correlated:
        return (_normed(pieces) * _normed(rows)).sum(dim=1).abs() > CORRELATED
    if rows.shape[1] < ENOUGH:
        return (pieces - rows).abs().amax(dim=1) <= rounding * rows.abs().amax(dim=1)
    return _equal(pieces, rows, rounding)


def _equal(pieces: Tensor, rows: Tensor, rounding: float) -> Tensor:
    """Whether pieces are rows, scaled and shifted, but for rounding; none is where one is constant."""
    one, other = _normed(pieces), _normed(rows)
    signs = (one * other).sum(dim=1, keepdim=True).sign()
    apart = (one - signs * other).abs().amax(dim=1) * rows.shape[1] ** 0.5  # in standard deviations
    equal: Tensor = (apart <= rounding * _offset(pieces)) & (other.abs().amax(dim=1) > 0)
    return equal


def _offset(rows: Tensor) -> Tensor:
    """How much larger a row's numbers are than their spread, which is what rounding costs more; 1 or more."""
    larger: Tensor = rows.abs().amax(dim=1) / rows.std(dim=1, correction=0).clamp_min(1e-300)
    return larger


def _normed(rows: Tensor) -> Tensor:
    """Rows with mean 0 and norm 1; zeros where a row is constant."""
    centred = rows - rows.mean(dim=1, keepdim=True)
    norms = centred.norm(dim=1, keepdim=True)
    flat = norms <= 1e-9 * rows.abs().amax(dim=1, keepdim=True) * rows.shape[1] ** 0.5
    normed: Tensor = torch.where(flat, 0.0, centred / norms)
    return normed
