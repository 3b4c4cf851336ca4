"""Runs of one table as one program: methods that differ only in numbers become one method with numbers per lane.

A method's losses read its hyper-parameters as ``self.name``. Where stacked runs differ in a number, the merged method
has a :class:`Varying` in its place, which acts as each lane's value while a loss runs under vmap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from torch import Tensor

from fedshift.core.contract import Phases, term_names
from fedshift.core.method import Method
from fedshift.core.net import Net
from fedshift.core.setup import Setup
from fedshift.engines.engine import Job


class Varying:
    """A number with a value per lane; arithmetic gives tensors, and comparisons must agree for all lanes.

    Outside of a loss, as in the weight of a term, arithmetic gives another such number.

    Attributes:
        values: the number of each lane.
        now: while a loss runs, the value of the lane in use, of shape (); else None.
    """

    def __init__(self, values: Sequence[float], made: Callable[[], Tensor | None] | None = None) -> None:
        self.values, self._made = tuple(values), made
        self._now: Tensor | None = None

    @property
    def now(self) -> Tensor | None:
        return self._now if self._made is None else self._made()

    @now.setter
    def now(self, value: Tensor | None) -> None:
        self._now = value

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return function(*map(_plain, args), **{name: _plain(value) for name, value in (kwargs or {}).items()})

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __neg__(self) -> Any:
        return self._arithmetic("__mul__", -1.0)

    def _arithmetic(self, name: str, other: Any) -> Any:
        if self.now is not None or isinstance(other, Tensor):
            return getattr(_plain(self), name)(_plain(other))
        others = other.values if isinstance(other, Varying) else [other] * len(self.values)
        values = [getattr(mine, name)(theirs) for mine, theirs in zip(self.values, others, strict=True)]
        return Varying(values, lambda: None if self.now is None else self._arithmetic(name, other))

    def __bool__(self) -> bool:
        return self._agreed("__ne__", 0)

    def _agreed(self, comparison: str, other: Any) -> bool:
        answers = {getattr(operator, comparison)(value, other) for value in self.values}
        if len(answers) > 1:
            raise TypeError("stacked runs take different branches here, so they cannot be stacked")
        return bool(answers.pop())


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Varying, _name, lambda self, other, name=_name: self._agreed(name, other))
for _name in ("add", "sub", "mul", "truediv", "pow"):
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(Varying, _method, lambda self, other, name=_method: self._arithmetic(name, other))


def _plain(value: Any) -> Any:
    """The tensor of a varying number now, also within lists and tuples; other values unchanged."""
    if isinstance(value, list | tuple) and any(isinstance(one, Varying) for one in value):
        return type(value)(map(_plain, value))
    if not isinstance(value, Varying):
        return value
    if value.now is None:
        raise TypeError("a number in which stacked runs differ is read outside a loss")
    return value.now


def kind(setup: Setup) -> tuple[object, ...]:
    """What stacked runs must share: everything but seeds, domains, and numbers of method and optimiser.

    Whether a number is above zero, its effect on modules (such as dropout) and which terms it enables must agree as
    well.
    """
    method, train = setup.method, setup.train
    numbers = _numbers(method)
    beside = {*numbers, "server"}  # its optimiser runs after the clients
    rest = {name: value for name, value in method.table().items() if name not in beside}
    schedule = train.table()
    for name in ("lr", "clip", "momentum", "weight_decay"):
        del schedule[name]
    tensors = Net({name: part.module for name, part in setup.parts.items()}).tensors()
    shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)
    layers = {name: part.module for name, part in setup.parts.items()}
    signs = {name: value > 0 for name, value in numbers.items()}
    exchanges = (exchange for stage in setup.stages for exchange in stage.exchanges)
    terms = [tuple(term_names((*exchange.phases, *exchange.server_phases))) for exchange in exchanges]
    plain = (rest, signs, terms, layers, schedule, setup.evaluate.table(), setup.model.model.table(), setup.model.shape)
    return type(method), type(setup.model.model), repr(plain), shapes, tuple(setup.scopes.items()), setup.device


def _numbers(method: Method) -> dict[str, float]:
    return {name: value for name in method.table() if isinstance(value := getattr(method, name), float)}


def merged_phases(jobs: Sequence[Job]) -> tuple[Phases, dict[str, Varying]]:
    """The phases of jobs of runs of one kind, and the numbers in which their methods differ."""
    first, methods = jobs[0], [job.setup.method for job in jobs]
    each = {name: [getattr(method, name) for method in methods] for name in _numbers(methods[0])}
    varying = {name: Varying(values) for name, values in each.items() if len(set(values)) > 1}
    if not varying:
        return first.exchange.phases, {}
    together = copy(methods[0])
    for name, value in varying.items():
        object.__setattr__(together, name, value)
    names = first.round.stage.name, first.exchange.name
    stages = first.setup.plan(together)
    (found,) = (each for stage in stages for each in stage.exchanges if (stage.name, each.name) == names)
    return found.phases, varying
