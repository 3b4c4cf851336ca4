"""How rows of a table become inputs: missing cells are imputed, numbers standardised, and categories one-hot.

As scikit-learn's ``SimpleImputer``, ``StandardScaler`` and ``OneHotEncoder(handle_unknown="ignore")`` in sequence, with
statistics of training rows only. Deviations from the mean are summed in float64 and merged by Chan, Golub and LeVeque
(The American Statistician, 1983), as in scikit-learn, so that a column of large, similar numbers keeps its spread.

Choices, where a federation needs what scikit-learn does not offer:

- A column without a value in any training row is 0 (categories: zeros) in every row, as if it had been excluded.
- A site that never trained has no statistics. If statistics are local, it gets the mean over the sites that have the
  column; for categories the most frequent one at most sites, the first on ties.
- With ComBat (:mod:`fedshift.clients.combat`) a missing number is 0 after harmonisation, the mean of all sites.
  Covariates and categories use pooled statistics. A site that never trained is not harmonised: its numbers use the
  location and scale that all sites share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from fedshift.clients.combat import covariate_sums, effects_of, location_and_scale, residuals
from fedshift.errors import UnknownNameError

Statistics = Mapping[str, Tensor]
"""``rows`` (), int64, the number of rows; ``fill`` (columns,), the value for a missing cell; and of the
columns of numbers ``center`` and ``scale``, each (numbers,), all float64. A ``scale`` of 0: no row has a value.
With covariates also their ``slopes`` (numbers, covariates) and ``offset`` (numbers,), which preserve their effects; and
what sites share has ``effects`` and ``covariates``, see :func:`fedshift.clients.combat.effects_of`."""
UNSEEN = -1.0  # the code of a category without training rows


@dataclass(frozen=True)
class Column:
    """A column of inputs; cells are codes 0, 1, ... of its ``categories``, or numbers if that is None."""

    name: str
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Preparation:
    """Turns rows (B, columns) into inputs; NaN is a missing cell and a category is its code.

    Attributes:
        statistics: their source: each site, or all sites' training rows together; "combat": pooled statistics, and
            a site's difference from all sites is removed.
        impute: the value of a missing number; for a missing category it is the most frequent one.
        columns: in the file's order; empty until known.
        pool: the names of columns with pooled statistics where the other columns' are local.
        indicate: the names of columns with a further input that marks missing cells.
        covariates: the names of columns that ComBat does not change, and whose effects on the others it preserves.
    """

    statistics: Literal["site", "pooled", "combat"]
    impute: Literal["mean", "median"] = "mean"
    columns: tuple[Column, ...] = ()
    pool: tuple[str, ...] = ()
    indicate: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Preparation('{self.statistics}', '{self.impute}', columns: {len(self.columns)})"

    def of_columns(self, columns: tuple[Column, ...]) -> Preparation:
        """The same for these columns; UnknownNameError if a setting names another column."""
        names = [column.name for column in columns]
        for setting in ("pool", "indicate", "covariates"):
            for name in getattr(self, setting):
                if name not in names:
                    raise UnknownNameError(f"column in data.{setting}", name, names)
        return replace(self, columns=columns)

    @cached_property
    def numbers(self) -> list[int]:
        """The indices of the columns of numbers."""
        return [place for place, column in enumerate(self.columns) if column.categories is None]

    @cached_property
    def codes(self) -> list[tuple[int, int]]:
        """For each category of each column, in order, the column's index and the category's code."""
        return [
            (place, code) for place, column in enumerate(self.columns) for code in range(len(column.categories or ()))
        ]

    @cached_property
    def indicators(self) -> list[int]:
        """The indices of the columns with an input that marks missing cells."""
        return [place for place, column in enumerate(self.columns) if column.name in self.indicate]

    @property
    def width(self) -> int:
        """Number of inputs of a row: columns of numbers, each category of the other columns, and indicators."""
        return len(self.numbers) + len(self.codes) + len(self.indicators)

    @cached_property
    def common(self) -> Preparation | None:
        """The preparation of columns with pooled statistics, from sums that each site sends; None: all are local."""
        if self.statistics != "site":
            return self
        pooled = tuple(column for column in self.columns if column.name in self.pool)
        return replace(self, statistics="pooled", columns=pooled, pool=(), indicate=()) if self.pool else None

    @property
    def settled(self) -> tuple[str, ...]:
        """The names of the columns for which settings decide about missing cells."""
        return (*self.pool, *self.indicate)

    @property
    def effects(self) -> int:
        """Number of covariates, each category as one; 0 without covariates."""
        own = [column for column in self.columns if column.name in self.covariates]
        return sum(len(column.categories or "1") for column in own)

    # Statistics of rows -------------------------------------------------------------------------

    def measured(self, x: Tensor) -> dict[str, Tensor]:
        """A site's report on rows x (n, columns), the input of :meth:`merged` and :meth:`statistics_of`.

        Returns ``rows`` (); ``present`` (numbers,), int64, the number of cells with a value; their ``mean`` and
        ``squares``, the sum of the squared deviations from it, each (numbers,), float64; and ``frequencies``
        (categories,), int64. With covariates also the results of :func:`fedshift.clients.combat.covariate_sums`.
        """
        x = x.double()
        values = x[:, self.numbers]
        known = ~values.isnan()
        present = known.sum(dim=0)
        count = present.clamp_min(1)
        first = values.gather(0, known.long().argmax(dim=0, keepdim=True)).nan_to_num()  # large numbers: near the mean
        mean = first[0] + torch.where(known, values - first, 0.0).sum(dim=0) / count
        apart = torch.where(known, values - mean, 0.0)
        squares = apart.square().sum(dim=0) - apart.sum(dim=0).square() / count  # minus the mean's rounding error
        place, code = self._codes(x.device)
        frequencies = (x[:, place] == code).sum(dim=0)
        rows = torch.tensor(len(x), device=x.device)
        more = covariate_sums(values, self._covariates(x)) if self.covariates else {}
        return {"rows": rows, "present": present, "mean": mean, "squares": squares, "frequencies": frequencies, **more}

    @staticmethod
    def merged(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The result of :meth:`measured` for all rows together, but for rounding and covariates."""
        whole = dict(parts[0])
        for part in parts[1:]:
            present = whole["present"] + part["present"]
            share = part["present"].double() / present.clamp_min(1)
            apart = part["mean"] - whole["mean"]
            squares = whole["squares"] + part["squares"] + apart.square() * whole["present"] * share
            mean = whole["mean"] + apart * share
            counts = {name: whole[name] + part[name] for name in ("rows", "frequencies")}
            whole = {"present": present, "mean": mean, "squares": squares, **counts}
        return whole

    def statistics_of(self, measured: Mapping[str, Tensor], medians: Tensor | None = None) -> dict[str, Tensor]:
        """The statistics from the results of :meth:`measured`; ``medians`` (numbers,) impute instead of means."""
        rows, present, mean = measured["rows"], measured["present"], measured["mean"]
        filled = mean if medians is None else medians
        count, missing = rows.clamp_min(1), rows - present
        center = mean + missing * (filled - mean) / count
        squares = measured["squares"] + present * (mean - center).square() + missing * (filled - center).square()
        variance = squares / count
        # As scikit-learn distinguishes a constant column from one whose numbers differ by rounding alone.
        epsilon = torch.finfo(torch.float64).eps
        constant = variance <= count * epsilon * variance + (count * center * epsilon).square()
        scale = torch.where(present > 0, torch.where(constant, 1.0, variance.sqrt()), 0.0)
        fill = torch.full((len(self.columns),), UNSEEN, dtype=torch.float64, device=mean.device)
        fill[self.numbers] = filled
        for place, frequencies in self._by_column(measured["frequencies"]).items():
            if frequencies.any():
                fill[place] = float(frequencies.cpu().numpy().argmax())  # the first on ties
        return {"rows": rows, "fill": fill, "center": center, "scale": scale}

    def shared_by(self, sites: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The statistics of all sites together, from each site's :meth:`measured`.

        With ComBat ``scale`` is the residuals' scale within sites; for covariates it is the deviation of all rows.
        """
        whole = self.merged(sites)
        statistics = self.statistics_of(whole)
        if self.statistics != "combat":
            return statistics
        within = torch.stack([site["squares"] for site in sites]).sum(dim=0)
        found = effects_of(sites) if self.covariates else {}
        within = (within - found.pop("explained", torch.zeros_like(within))).clamp_min(0)
        apart = self.statistics_of({**whole, "rows": whole["present"], "squares": within})
        scale = torch.where(self._kept(within.device), statistics["scale"], apart["scale"])
        return {**statistics, "center": whole["mean"], "scale": scale, **found}

    def of_site(self, x: Tensor, shared: Statistics) -> dict[str, Tensor]:
        """The statistics that prepare a site's rows, from its training rows x (n, columns) and shared statistics."""
        if self.statistics == "combat":
            return self._harmonised(x, shared)
        own = self.of_rows(x)
        if self.common is None or not shared:
            return own
        names = [column.name for column in self.columns]
        own["fill"][[names.index(column.name) for column in self.common.columns]] = shared["fill"]
        numbers = [n for n, place in enumerate(self.numbers) if names[place] in self.pool]
        own["center"][numbers], own["scale"][numbers] = shared["center"], shared["scale"]
        return own

    def _harmonised(self, x: Tensor, shared: Statistics) -> dict[str, Tensor]:
        """The statistics that remove a site's gamma and delta; empty without rows."""
        x, center, scale = x.double(), shared["center"], shared["scale"]
        alone = self._kept(x.device) | (scale == 0)
        values, z = x[:, self.numbers], self._covariates(x)
        if self.covariates:
            values = residuals(values, z, shared["effects"], shared["covariates"])
        standard = (values - center) / torch.where(alone, 1.0, scale)
        gamma, delta = location_and_scale(standard.masked_fill(alone, torch.nan))
        own = {"rows": torch.tensor(len(x), device=x.device), "fill": shared["fill"].clone()}
        own |= {"center": center + scale * gamma, "scale": scale * delta.sqrt()}
        if self.covariates:
            weight = (1 - delta.rsqrt()) / torch.where(alone, 1.0, scale)
            slopes = shared["effects"] * weight[:, None]
            own |= {"slopes": slopes, "offset": (shared["covariates"] * slopes).sum(dim=1)}
        return own

    def of_rows(self, x: Tensor) -> dict[str, Tensor]:
        return self.statistics_of(self.measured(x), self._medians(x) if self.impute == "median" else None)

    def empty_statistics(self) -> dict[str, Tensor]:
        """Statistics of an empty table; every number becomes 0."""
        shared = self.empty_shared_statistics()
        return self.of_unseen((), shared) if self.statistics == "combat" else shared

    def empty_shared_statistics(self) -> dict[str, Tensor]:
        """Shared statistics before any site has reported."""
        number, count = torch.zeros(len(self.numbers), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        nothing = {"rows": count, "present": number.long(), "mean": number, "squares": number}
        nothing["frequencies"] = torch.zeros(len(self.codes), dtype=torch.int64)
        if self.covariates:
            nothing |= covariate_sums(number[None, :][:0], torch.zeros(0, self.effects, dtype=torch.float64))
        return self.shared_by([nothing])

    def of_unseen(self, sites: Sequence[Statistics], shared: Statistics) -> dict[str, Tensor]:
        """The statistics for a site that never trained, from the trained sites' and the shared statistics."""
        if self.statistics == "combat":
            return self._harmonised(shared["fill"].new_zeros(0, len(self.columns)), shared)
        scales = torch.stack([site["scale"] for site in sites])
        known = scales > 0
        count = known.sum(dim=0).clamp_min(1)

        def mean(rows: Tensor) -> Tensor:
            return torch.where(known, rows, 0.0).sum(dim=0) / count

        fills = torch.stack([site["fill"] for site in sites])
        fill = fills[0].clone()
        fill[self.numbers] = mean(fills[:, self.numbers])
        for place, column in enumerate(self.columns):
            if column.categories is not None:
                counts = torch.bincount(fills[:, place][fills[:, place] != UNSEEN].long().cpu())
                fill[place] = float(counts.numpy().argmax()) if len(counts) else UNSEEN
        center = mean(torch.stack([site["center"] for site in sites]))
        rows = torch.stack([site["rows"] for site in sites]).sum()
        return {"rows": rows, "fill": fill, "center": center, "scale": mean(scales)}

    def _medians(self, x: Tensor) -> Tensor:
        """The median of each column of numbers (for even counts the mean of the middle two); 0 without values."""
        found = []
        for place in self.numbers:
            ordered = x[:, place][~x[:, place].isnan()].double().sort().values
            middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
            found.append(middle.mean() if len(middle) else middle.new_zeros(()))
        return torch.stack(found) if found else x.new_zeros(0).double()

    def _by_column(self, frequencies: Tensor) -> dict[int, Tensor]:
        places = {place: len(c.categories) for place, c in enumerate(self.columns) if c.categories is not None}
        return dict(zip(places, torch.split(frequencies, list(places.values())), strict=True)) if places else {}

    # Inputs -------------------------------------------------------------------------------------

    def inputs(self, x: Tensor, statistics: Statistics) -> Tensor:
        """Rows (B, columns) as inputs (B, :attr:`width`), float32; a category without a code becomes zeros."""
        own = {name: tensor.to(x.device) for name, tensor in statistics.items()}
        x = x.double()
        missing = x.isnan()
        x = torch.where(missing, own["fill"], x)
        known = own["scale"] > 0
        numbers = (x[:, self.numbers] - own["center"]) / torch.where(known, own["scale"], 1.0)
        if self.covariates:
            numbers = numbers + self._covariates(x) @ own["slopes"].T - own["offset"]
        if self.statistics == "combat":
            numbers = numbers.masked_fill(missing[:, self.numbers], 0.0)
        place, code = self._codes(x.device)
        inputs = [
            torch.where(known, numbers, 0.0),
            (x[:, place] == code).double(),
            missing[:, self.indicators].double(),
        ]
        return torch.cat(inputs, dim=1).float()

    def _covariates(self, x: Tensor) -> Tensor:
        """The covariates of rows x (n, columns): numbers, then each category as 0 or 1; NaN where a cell is missing."""
        own = {place for place, column in enumerate(self.columns) if column.name in self.covariates}
        numbers = x[:, [place for place in self.numbers if place in own]]
        place, code = self._codes(x.device)
        chosen = torch.tensor([each in own for each, _ in self.codes], dtype=torch.bool, device=x.device)
        cells = x[:, place[chosen]]
        return torch.cat([numbers, (cells == code[chosen]).double().masked_fill(cells.isnan(), torch.nan)], dim=1)

    def _kept(self, device: torch.device) -> Tensor:
        kept = [self.columns[place].name in self.covariates for place in self.numbers]
        return torch.tensor(kept, dtype=torch.bool, device=device)

    def _codes(self, device: torch.device) -> tuple[Tensor, Tensor]:
        pairs = self._pairs.to(device)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def _pairs(self) -> Tensor:
        return torch.tensor(list(chain.from_iterable(self.codes)), dtype=torch.int64).view(-1, 2)


def recoded(x: Tensor, own: Sequence[Column], agreed: Sequence[Column]) -> Tensor:
    """Rows (N, columns) with categories recoded for other columns; :data:`UNSEEN` if these lack a category."""
    x = x.clone()
    for place, (one, other) in enumerate(zip(own, agreed, strict=True)):
        if one.categories == other.categories or one.categories is None or other.categories is None:
            continue
        codes = {name: float(code) for code, name in enumerate(other.categories)}
        table = torch.tensor([codes.get(name, UNSEEN) for name in one.categories], dtype=x.dtype)
        cells = x[:, place]
        there = ~cells.isnan()
        cells[there] = table[cells[there].long()]
    return x
