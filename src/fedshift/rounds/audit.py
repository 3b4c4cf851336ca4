"""An audit of what leaves a client: every tensor of a reply is compared, by content, with what must stay.

What must stay are the client's samples, as they are stored and as a network reads them, its labels in their order,
and its private tensors. An exact copy of one is found anywhere within a tensor (row by row, or column by column), in
any type.

It does not find a copy that is scaled, reordered, cut up, noisy or encoded, nor fewer than eight numbers; nor a
private tensor as training left it under the name of a shared one, since pages rightly keep copies of what they return.
An upload may contain tensors of the private part that it reveals. A stage that works on something else than samples
(Client2Vec's embeddings) is compared with the samples, not with that. It is a net for mistakes, and no defence against
a page that wants to deceive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.tensors import Tensors, part_of
from fedshift.engines.engine import Job, Outcome
from fedshift.errors import AuditError

FEW = 8  # numbers; equality of fewer is a coincidence
ENOUGH = 32  # numbers from which two different values suffice
DISTINCT = 4  # different values that a shorter row must have
AT_ONCE = 1 << 24  # numbers in memory
BASE = -7046029254386353131  # odd, so that its powers have inverses modulo 2**64
INVERSE = (pow(BASE, -1, 1 << 64) + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True)
class Secret:
    """Rows of numbers that must not leave a client.

    Attributes:
        what: what they are, for a message; ``{}`` stands for the row's number.
        rows: the numbers, (rows, length).
        part: the private part that it is of; empty for samples and labels.
    """

    what: str
    rows: Tensor
    part: str = ""
    _cast: dict[torch.dtype, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def as_type(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows with their numbers rounded to a type, and the hashes of those that are not nearly constant."""
        if dtype not in self._cast:
            rows = _numbers(self.rows.to(dtype))
            several = rows.amax(dim=1) > rows.amin(dim=1)
            if rows.shape[1] < ENOUGH:
                several = (rows.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1) >= DISTINCT - 1
            self._cast[dtype] = rows, _hashes(rows[several], rows.shape[1])[:, 0]
        return self._cast[dtype]


def audit(job: Job, outcome: Outcome, train: Samples, inputs: Inputs, initial: Tensors) -> None:
    """Raise an error if a reply equals or contains what must not leave its client.

    Args:
        job: what the client was asked for, and what it had before.
        outcome: what it would send and keep.
        train: its samples, whatever the stage makes of them.
        inputs: how they become inputs of a network.
        initial: the private tensors that every client starts with, which are no secret.

    Raises:
        AuditError: which client, round, exchange and tensor, and what it contains.
    """
    declaration = job.setup.declaration(job.exchange)
    returned = {name: tensor for name, tensor in outcome.up.items() if name in declaration.returned}
    uploaded = {name: tensor for name, tensor in outcome.up.items() if name not in returned}
    public = [*job.down.values(), *initial.values()]
    before = list(_private(job.state.tensors, "as it was before", public))
    after = list(_private(outcome.state.tensors, "as it is now", [*public, *returned.values()])) if uploaded else []
    for of_samples in _of_samples(train, inputs):
        _search(job, outcome.up, [of_samples])
    _search(job, returned, before)
    reveals = declaration.reveals
    for name, tensor in uploaded.items():
        revealed = reveals.get(name)
        _search(job, {name: tensor}, [each for each in (*before, *after) if not revealed or each.part != revealed])


def _search(job: Job, tensors: Mapping[str, Tensor], secrets: Iterable[Secret]) -> None:
    for secret in secrets:
        for name, tensor in tensors.items():
            row = find_copy(tensor.detach(), secret)
            if row is not None:
                raise AuditError(
                    f"The reply of client '{job.client.name}', round {job.round.number} of the stage "
                    f"'{job.round.stage.name}', in the exchange '{job.exchange.name}' was not sent (run.audit): "
                    f"'{name}' contains {secret.what.format(row)}. Leave it out, or send what says less."
                )


def _of_samples(train: Samples, inputs: Inputs) -> Iterator[Secret]:
    """Samples as they are stored and as a network reads them, a few at a time, and the labels."""
    length = train.pool.x[0].numel()
    if length >= FEW:
        chunk = max(1, AT_ONCE // length)
        for start in range(0, len(train), chunk):
            x, _ = train.batch(torch.arange(start, min(start + chunk, len(train)), device=train.pool.x.device))
            for form in (x, inputs.evaluation(x)):
                yield Secret("its sample {}", form.flatten(1))
    if len(train) >= FEW:
        yield Secret("its labels, in order", train.y[None])


def _private(tensors: Mapping[str, Tensor], when: str, public: Iterable[Tensor]) -> Iterator[Secret]:
    """Private tensors that are not what everybody knows."""
    known = [tensor.detach().flatten() for tensor in public]
    for name, tensor in tensors.items():
        row = tensor.detach().flatten()
        near = (_near(row, other.to(row)) for other in known if len(other) == len(row))
        if len(row) >= FEW and not any(near):
            yield Secret(f"its private tensor '{name}' {when}", row[None], part_of(name))


def _near(row: Tensor, other: Tensor) -> bool:
    """Whether training hardly changed a tensor, as with tiny steps, so that it says no more than the other."""
    row, other = row.double(), other.double()
    return bool((row - other).abs().amax() <= 1e-5 * other.abs().amax())


def find_copy(tensor: Tensor, secret: Secret) -> int | None:
    """The number of the first row of a secret of which a tensor contains a copy; None: of none."""
    length = secret.rows.shape[1]
    if tensor.numel() < length:
        return None
    rows, hashes = secret.as_type(tensor.dtype)
    columns = [tensor.movedim(-1, 0)] if tensor.ndim > 1 and tensor.shape[-1] > 1 else []
    for view in (tensor, *columns):
        numbers = _numbers(view.to(rows.device)).flatten()
        for place in torch.isin(_hashes(numbers[None], length)[0], hashes).nonzero()[:, 0].tolist():
            equal = (rows == numbers[place : place + length]).all(dim=1).nonzero()
            if len(equal):
                return int(equal[0])
    return None


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.double().nan_to_num() + 0.0  # -0.0 becomes 0.0


def _hashes(rows: Tensor, length: int) -> Tensor:
    """A polynomial hash modulo 2**64 of every window of a length, (rows, windows), by differences of sums."""
    bits = rows.contiguous().view(torch.int64)
    bits = (bits ^ (bits >> 32)) * BASE
    bits = bits ^ (bits >> 29)
    powers = torch.full((bits.shape[1],), BASE, device=bits.device).cumprod(0)
    sums = torch.nn.functional.pad((bits * powers).cumsum(1), (1, 0))
    inverses = torch.full((bits.shape[1],), INVERSE, device=bits.device).cumprod(0)
    return (sums[:, length:] - sums[:, : sums.shape[1] - length]) * inverses[: bits.shape[1] - length + 1]
