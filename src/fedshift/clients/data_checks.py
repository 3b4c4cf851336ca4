"""What every data set and its names must fulfil, wherever they come from, before it is divided among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.errors import FedshiftError, Problems


def check_names(kind: str, places: Mapping[str, str]) -> None:
    """Refuse names that cannot be printed, and names that differ only in case or white space.

    Args:
        kind: "domain" or "class".
        places: where each name occurs first, by the name.

    Raises:
        FedshiftError: the message names each such name and its place.
    """
    problems = Problems(f"{kind} names cannot be used")
    spelled: dict[str, str] = {}
    for name, place in places.items():
        if not name.strip() or not name.isprintable():
            problems.add(FedshiftError(f"The {kind} name {name!r} ({place}) is empty or cannot be printed; rename it."))
            continue
        other = spelled.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            problems.add(
                FedshiftError(
                    f"The {kind} names {other!r} ({places[other]}) and {name!r} ({place}) differ only in case or white "
                    "space. Spell them the same; if they are two, give them names that differ in more."
                )
            )
    problems.check()


FLOAT32 = torch.finfo(torch.float32).max
PIECE = 1 << 22  # numbers inspected together, so that inputs that are mapped from a file need no memory


def check_data(data: DomainData, inputs: Inputs, one_class: bool = False) -> None:
    """Refuse data from which numbers would come that mean something else than they seem to.

    Args:
        data: what a data set gave.
        inputs: how its samples become inputs; classes that are the characters of a text may differ in case alone.
        one_class: whether all samples may be of one class, as those of a site may.

    Raises:
        FedshiftError: it is no DomainData, names are unusable or spelled twice, fewer than two classes occur, or inputs
            are not finite or no token of the vocabulary; the message names them and where.
    """
    if not isinstance(data, DomainData):
        raise FedshiftError(f"A data set's load gave a {type(data).__name__}; it should return a DomainData.")
    data.check_fields()  # again, since tensors can be changed in place
    problems = Problems("things are wrong with the data")
    with problems.gathered():
        check_names("domain", {name: _first(data, data.domain, number) for number, name in enumerate(data.domains)})
    if data.classes != inputs.vocabulary:
        with problems.gathered():
            check_names("class", {name: _first(data, data.y, number) for number, name in enumerate(data.classes)})
    with problems.gathered():
        if not one_class and (data.y == data.y[0]).all():
            raise FedshiftError(
                f"Every sample is of the class '{data.classes[int(data.y[0])]}', so any model would be right; give "
                "data of at least two classes."
            )
    with problems.gathered():
        check_inputs(data.x, inputs, partial(_place, data))
    problems.check()


def _first(data: DomainData, numbers: Tensor, number: int) -> str:
    found = (numbers == number).nonzero()
    return f"first of {data.place(int(found[0]))}" if len(found) else "of no sample"


def _place(data: DomainData, row: int) -> str:
    domain, label = data.domains[int(data.domain[row])], data.classes[int(data.y[row])]
    return f"{data.place(row)} (domain '{domain}', class '{label}')"


def check_inputs(x: Tensor, inputs: Inputs, place: Callable[[int], str]) -> None:
    """Refuse samples (N, ...) with a number that is not finite, beyond float32 or no token.

    Args:
        x: the samples.
        inputs: how they become inputs; only rows that are prepared may lack numbers.
        place: what errors call a sample.

    Raises:
        FedshiftError: a number is wrong; the message names the first, and how many samples have one.
    """
    if x.dtype == torch.uint8:
        return
    step = max(1, PIECE // x[0].numel())
    bad: list[int] = []
    for start in range(0, len(x), step):
        right = _right(x[start : start + step], inputs).flatten(1).all(dim=1)
        bad += (start + (~right).nonzero().flatten()).tolist()
    if not bad:
        return
    sample = x[bad[0]]
    at = (~_right(sample, inputs)).nonzero()[0].tolist()
    more = f", and {len(bad) - 1} more samples are wrong" if len(bad) > 1 else ""
    tokens = f"tokens from 0{f' to {inputs.ids - 1}' if inputs.ids else ''}"
    needed = "finite numbers of float32" if sample.is_floating_point() else tokens
    raise FedshiftError(
        f"x contains {sample[tuple(at)].item()} at {at} of {place(bad[0])}{more}; it should contain {needed}. Correct "
        "such samples or leave them out."
    )


def _right(x: Tensor, inputs: Inputs) -> Tensor:
    if x.is_floating_point():
        right = x.abs() <= FLOAT32
        return right | x.isnan() if inputs.preparation is not None else right
    return (x >= 0) & (x < inputs.ids) if inputs.ids else x >= 0
