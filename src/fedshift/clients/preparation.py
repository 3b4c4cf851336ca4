"""How rows of a table become inputs: what is missing is filled in, numbers are standardised, categories are one-hot.

As scikit-learn's ``SimpleImputer``, ``StandardScaler`` and ``OneHotEncoder(handle_unknown="ignore")`` one after the
other, with statistics of training rows only. Sums over rows are kept as scikit-learn's own are: of deviations from the
mean, in float64, merged by Chan, Golub and LeVeque (The American Statistician, 1983), so that a column of large numbers
that hardly differ keeps its spread.

Choices, where a federation asks what scikit-learn does not:

- A column of which no training row has a value is 0 (of categories: zeros) in every row, as if it had been left out.
- A site that never trained has no statistics of its own. Where they are each site's alone it is given the mean over
  the sites that know the column; of categories the most frequent one at most sites, the first of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

Statistics = Mapping[str, Tensor]
"""``rows`` (), int64, how many rows they are of; ``fill`` (columns,), what stands for a missing cell; and of the
columns of numbers ``center`` and ``scale``, each (numbers,), all float64. A ``scale`` of 0: no row has a value."""
UNSEEN = -1.0  # the code of a category that no training row has


@dataclass(frozen=True)
class Column:
    """A column of inputs.

    Attributes:
        name: in the file.
        categories: what its cells' codes 0, 1, ... stand for; None: it holds numbers.
    """

    name: str
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Preparation:
    """What makes inputs of rows (B, columns), in which NaN is a missing cell and a category is its code.

    Attributes:
        statistics: whose they are: each site's own, or of all sites' training rows together.
        impute: what stands for a missing number; for a missing category it is the most frequent one.
        columns: in the order of the file's; none: not known yet.
    """

    statistics: Literal["site", "pooled"]
    impute: Literal["mean", "median"] = "mean"
    columns: tuple[Column, ...] = ()

    def __repr__(self) -> str:
        return f"Preparation('{self.statistics}', '{self.impute}', columns: {len(self.columns)})"

    @cached_property
    def numbers(self) -> list[int]:
        """The places of the columns of numbers."""
        return [place for place, column in enumerate(self.columns) if column.categories is None]

    @cached_property
    def codes(self) -> list[tuple[int, int]]:
        """For each category of each column, in order, the column's place and the category's code."""
        return [
            (place, code) for place, column in enumerate(self.columns) for code in range(len(column.categories or ()))
        ]

    @property
    def width(self) -> int:
        """How many inputs a row becomes: the columns of numbers, then each category of each of the other columns."""
        return len(self.numbers) + len(self.codes)

    # Statistics of rows -------------------------------------------------------------------------

    def measured(self, x: Tensor) -> dict[str, Tensor]:
        """What is told of rows x (n, columns): what :meth:`merged` and :meth:`statistics_of` need.

        Returns:
            ``rows`` (); ``present`` (numbers,), int64, how many cells have a value; their ``mean`` and ``squares``, the
            sum of the squared deviations from it, each (numbers,), float64; and ``frequencies`` (categories,), int64.
        """
        x = x.double()
        values = x[:, self.numbers]
        known = ~values.isnan()
        present = known.sum(dim=0)
        count = present.clamp_min(1)
        first = values.gather(0, known.long().argmax(dim=0, keepdim=True)).nan_to_num()  # of large ones, close to all
        mean = first[0] + torch.where(known, values - first, 0.0).sum(dim=0) / count
        apart = torch.where(known, values - mean, 0.0)
        squares = apart.square().sum(dim=0) - apart.sum(dim=0).square() / count  # less what rounding of the mean adds
        place, code = self._codes(x.device)
        frequencies = (x[:, place] == code).sum(dim=0)
        rows = torch.tensor(len(x), device=x.device)
        return {"rows": rows, "present": present, "mean": mean, "squares": squares, "frequencies": frequencies}

    @staticmethod
    def merged(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What :meth:`measured` would tell of all rows together, but for rounding."""
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
        """The statistics of rows of which so much was measured.

        Args:
            measured: see :meth:`measured`.
            medians: of the columns of numbers, (numbers,), where these are filled in; None: means are.
        """
        rows, present, mean = measured["rows"], measured["present"], measured["mean"]
        filled = mean if medians is None else medians
        count, missing = rows.clamp_min(1), rows - present
        center = mean + missing * (filled - mean) / count
        squares = measured["squares"] + present * (mean - center).square() + missing * (filled - center).square()
        variance = squares / count
        # As scikit-learn tells a constant column from one whose numbers differ by rounding alone.
        epsilon = torch.finfo(torch.float64).eps
        constant = variance <= count * epsilon * variance + (count * center * epsilon).square()
        scale = torch.where(present > 0, torch.where(constant, 1.0, variance.sqrt()), 0.0)
        fill = torch.full((len(self.columns),), UNSEEN, dtype=torch.float64, device=mean.device)
        fill[self.numbers] = filled
        for place, frequencies in self._by_column(measured["frequencies"]).items():
            if frequencies.any():
                fill[place] = float(frequencies.cpu().numpy().argmax())  # the first of several
        return {"rows": rows, "fill": fill, "center": center, "scale": scale}

    def of_rows(self, x: Tensor) -> dict[str, Tensor]:
        """The statistics of rows x (n, columns) alone."""
        return self.statistics_of(self.measured(x), self._medians(x) if self.impute == "median" else None)

    def of_nobody(self) -> dict[str, Tensor]:
        """Those of no row, before there are any: every number becomes 0."""
        number, count = torch.zeros(len(self.numbers), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        frequencies = torch.zeros(len(self.codes), dtype=torch.int64)
        nothing = {"rows": count, "present": number.long(), "mean": number, "squares": number}
        return self.statistics_of({**nothing, "frequencies": frequencies})

    def of_unseen(self, sites: Sequence[Statistics]) -> dict[str, Tensor]:
        """What a site that never trained is given of those of the sites that did."""
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
                said = torch.bincount(fills[:, place][fills[:, place] != UNSEEN].long().cpu())
                fill[place] = float(said.numpy().argmax()) if len(said) else UNSEEN
        center = mean(torch.stack([site["center"] for site in sites]))
        rows = torch.stack([site["rows"] for site in sites]).sum()
        return {"rows": rows, "fill": fill, "center": center, "scale": mean(scales)}

    def _medians(self, x: Tensor) -> Tensor:
        """The median of each column of numbers, of two in the middle their mean; 0 where no row has a value."""
        found = []
        for place in self.numbers:
            ordered = x[:, place][~x[:, place].isnan()].double().sort().values
            middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
            found.append(middle.mean() if len(middle) else middle.new_zeros(()))
        return torch.stack(found) if found else x.new_zeros(0).double()

    def _by_column(self, frequencies: Tensor) -> dict[int, Tensor]:
        """Those of each column of categories, by its place."""
        places = {place: len(c.categories) for place, c in enumerate(self.columns) if c.categories is not None}
        return dict(zip(places, torch.split(frequencies, list(places.values())), strict=True)) if places else {}

    # Inputs -------------------------------------------------------------------------------------

    def inputs(self, x: Tensor, statistics: Statistics) -> Tensor:
        """Rows (B, columns) as inputs (B, :attr:`width`), float32; a category without a code becomes zeros."""
        own = {name: tensor.to(x.device) for name, tensor in statistics.items()}
        x = x.double()
        x = torch.where(x.isnan(), own["fill"], x)
        known = own["scale"] > 0
        numbers = (x[:, self.numbers] - own["center"]) / torch.where(known, own["scale"], 1.0)
        place, code = self._codes(x.device)
        return torch.cat([torch.where(known, numbers, 0.0), (x[:, place] == code).double()], dim=1).float()

    def _codes(self, device: torch.device) -> tuple[Tensor, Tensor]:
        pairs = self._pairs.to(device)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def _pairs(self) -> Tensor:
        return torch.tensor(list(chain.from_iterable(self.codes)), dtype=torch.int64).view(-1, 2)


def recoded(x: Tensor, own: Sequence[Column], agreed: Sequence[Column]) -> Tensor:
    """Rows (N, columns) whose categories have the codes of other columns; :data:`UNSEEN` stands for what these lack."""
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
