"""Heat maps of the similarity between clients, with the clients of a domain next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

MOST_LETTERS = 24  # of a label of a heat map


def heat_maps(cosines: Mapping[str, Tensor], domains: Sequence[str]) -> Figure:
    """Similarities between clients, and the mean of the last matrix by domain (Client2Vec, Fig. 2 and 3).

    Args:
        cosines: by title, a matrix (K, K).
        domains: the domain of each client.
    """
    order = sorted(range(len(domains)), key=lambda client: (domains[client], client))
    figure = Figure(figsize=(5.4 * (len(cosines) + 1), 5.2), layout="constrained")
    axes = figure.subplots(1, len(cosines) + 1, squeeze=False)[0]
    for axis, (name, matrix) in zip(axes, cosines.items(), strict=False):
        _heat(figure, axis, matrix[order][:, order], f"{name}, between clients", [domains[each] for each in order])
    *_, (name, matrix) = cosines.items()
    _heat(figure, axes[-1], by_domain(matrix, domains), f"{name}, mean between domains", sorted(set(domains)))
    return figure


def by_domain(cosines: Tensor, domains: Sequence[str]) -> Tensor:
    """The mean similarity (D, D) between clients of every two domains, in sorted order.

    A client is not paired with itself, unless its domain has no other.
    """
    names = sorted(set(domains))
    member = torch.tensor([[domain == name for domain in domains] for name in names]).to(cosines)
    counts = member.sum(dim=1)
    itself = torch.diag((counts > 1).to(cosines))
    sums = member @ cosines @ member.T - itself * torch.diag(member @ torch.diag(cosines))
    return sums / (counts.unsqueeze(1) * counts - itself * torch.diag(counts))


def drawable(name: str) -> str:
    """A name as a figure can show it: characters that the font lacks are escaped, and a long middle is cut."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    text = "".join(letter if ord(letter) in known else letter.encode("unicode_escape").decode() for letter in name)
    half = MOST_LETTERS // 2
    return text if len(text) <= MOST_LETTERS else f"{text[:half]}…{text[-half:]}"


def _heat(figure: Figure, axis: Axes, cosines: Tensor, title: str, rows: list[str]) -> None:
    """One heat map; ``rows`` names the domain of each row."""
    values = np.asarray(cosines)
    outside = values[~np.eye(len(values), dtype=bool)]
    low = float(outside.min()) if len(outside) else 0.0
    shown = axis.imshow(values, cmap="viridis", vmin=low, vmax=1.0)
    starts = [place for place, name in enumerate(rows) if place == 0 or rows[place - 1] != name]
    ends = [*starts[1:], len(rows)]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    names = [drawable(rows[start]) for start in starts]
    axis.set_xticks(middles, names, rotation=40, ha="right", parse_math=False)
    axis.set_yticks(middles, names, parse_math=False)
    for start in starts[1:]:
        axis.axhline(start - 0.5, color="white", linewidth=1)
        axis.axvline(start - 0.5, color="white", linewidth=1)
    axis.set_title(title)
    figure.colorbar(shown, ax=axis, shrink=0.8, label="cosine")
