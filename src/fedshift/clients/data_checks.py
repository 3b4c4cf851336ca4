"""Checks of every data set and its names before it is divided among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.clients.inputs import Inputs
from fedshift.errors import FedshiftError, Problems


def check_names(kind: str, places: Mapping[str, str]) -> None:
    """Refuse names that cannot be printed, or differ only in case or white space; ``places`` has first occurrences."""
    problems = Problems(f"{kind} names are invalid")
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
                    "space. Use one spelling, or clearly different names."
                )
            )
    problems.check()


FLOAT32 = torch.finfo(torch.float32).max
PIECE = 1 << 22  # numbers inspected together, so that inputs that are mapped from a file need no memory


def check_data(data: DomainData, inputs: Inputs, one_class: bool = False) -> None:
    """Refuse data whose results would be misleading; the FedshiftError names each problem and its place.

    Classes that are characters of a text may differ in case alone; ``one_class`` allows a single class, as at a site.
    """
    if not isinstance(data, DomainData):
        raise FedshiftError(f"A data set's load returned a {type(data).__name__}; it should return a DomainData.")
    data.check_fields()  # again, since tensors can be changed in place
    problems = Problems("problems with the data")
    with problems.gathered():
        check_names("domain", {name: _first(data, data.domain, number) for number, name in enumerate(data.domains)})
    if data.classes != inputs.vocabulary:
        with problems.gathered():
            check_names("class", {name: _first(data, data.y, number) for number, name in enumerate(data.classes)})
    with problems.gathered():
        if not one_class and (data.y == data.y[0]).all():
            raise FedshiftError(
                f"Every sample is of the class '{data.classes[int(data.y[0])]}', so any model would be right; provide "
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
    """Refuse samples (N, ...) with a number that is not finite, beyond float32 or no token; errors name its place."""
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
        "or remove such samples."
    )


def _right(x: Tensor, inputs: Inputs) -> Tensor:
    if x.is_floating_point():
        right = x.abs() <= FLOAT32
        return right | x.isnan() if inputs.preparation is not None else right
    return (x >= 0) & (x < inputs.ids) if inputs.ids else x >= 0
