"""What every data set must fulfil, wherever it comes from, before it is divided among clients."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift.errors import FedshiftError, Problems
from fedshift.federation.domains import DomainData
from fedshift.federation.inputs import Inputs
from fedshift.federation.names import check_names

PIECE = 1 << 22  # numbers looked at together, so that inputs that are mapped from a file need no memory


def check_data(data: DomainData, inputs: Inputs, one_class: bool = False) -> None:
    """Refuse data from which numbers would come that mean something else than they seem to.

    Args:
        data: what a data set gave.
        inputs: how its samples become inputs; classes that are the characters of a text may differ in case alone.
        one_class: whether all samples may be of one class, as those of a site may.

    Raises:
        FedshiftError: it is no DomainData, names are unusable or spelled twice, fewer than two classes occur, or inputs
            are not finite or no token of the vocabulary; the message says which and where.
    """
    if not isinstance(data, DomainData):
        raise FedshiftError(f"A data set's load gave a {type(data).__name__}; it should return a DomainData.")
    data.check_fields()  # again, since tensors can be changed in place
    problems = Problems("things are wrong with the data")
    with problems.gathered():
        check_names("domain", {name: _first(data.domain, number) for number, name in enumerate(data.domains)})
    if data.classes != inputs.vocabulary:
        with problems.gathered():
            check_names("class", {name: _first(data.y, number) for number, name in enumerate(data.classes)})
    with problems.gathered():
        if not one_class and (data.y == data.y[0]).all():
            raise FedshiftError(
                f"Every sample is of the class '{data.classes[int(data.y[0])]}', so any model would be right; give "
                "data of at least two classes."
            )
    with problems.gathered():
        _check_inputs(data, inputs.ids, missing=inputs.preparation is not None)
    problems.check()


def _first(numbers: Tensor, number: int) -> str:
    """Where a name occurs first."""
    found = (numbers == number).nonzero()
    return f"first of sample {int(found[0])}" if len(found) else "of no sample"


def _check_inputs(data: DomainData, tokens: int, missing: bool) -> None:
    if data.x.dtype == torch.uint8:
        return
    step = max(1, PIECE // data.x[0].numel())
    starts = range(0, len(data.x), step)
    bad: list[int] = []
    for start in starts:
        right = _right(data.x[start : start + step], tokens, missing).flatten(1).all(dim=1)
        bad += (start + (~right).nonzero().flatten()).tolist()
    if not bad:
        return
    sample = data.x[bad[0]]
    place = (~_right(sample, tokens, missing)).nonzero()[0].tolist()
    more = f", and {len(bad) - 1} more samples are wrong" if len(bad) > 1 else ""
    needed = "finite numbers" if sample.is_floating_point() else f"tokens from 0{f' to {tokens - 1}' if tokens else ''}"
    raise FedshiftError(
        f"x holds {sample[tuple(place)].item()} at {place} of sample {bad[0]} (domain "
        f"'{data.domains[int(data.domain[bad[0]])]}', class '{data.classes[int(data.y[bad[0]])]}'){more}; it should "
        f"hold {needed}. Correct such samples or leave them out."
    )


def _right(x: Tensor, tokens: int, missing: bool) -> Tensor:
    """Which numbers may be: finite ones (or NaN, if missing ones may), or tokens of so many (0: unknown)."""
    if x.is_floating_point():
        return ~x.isinf() if missing else x.isfinite()
    return (x >= 0) & (x < tokens) if tokens else x >= 0
