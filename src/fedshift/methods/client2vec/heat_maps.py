"""An index of clients as files: vectors in Parquet, and similarities between clients and domains as a heat map."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fedshift.errors import needs
from fedshift.files import make_folder, write
from fedshift.methods.client2vec.vectors import least_cosine, similarity

if TYPE_CHECKING:
    from fedshift.methods.client2vec.index import Index

MOST_LETTERS = 24  # of a name beside a heat map


def write_index(index: Index, folder: Path) -> list[Path]:
    """Write ``index.parquet``, ``similarity.png`` and ``messages.json`` into a folder; returns their paths."""
    with needs("parquet", "Writing an index"):
        import pyarrow
        import pyarrow.parquet

    columns = {"client": index.clients, "domain": index.domains, "samples": index.samples}
    vectors = {"feature": index.feature.tolist()} | ({} if index.label is None else {"label": index.label.tolist()})
    table, image = BytesIO(), BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns | vectors), table)
    heat_maps(index).savefig(image, format="png", dpi=110)
    contents: dict[str, bytes | str] = {
        "index.parquet": table.getvalue(),
        "similarity.png": image.getvalue(),
        "messages.json": json.dumps(index.messages, indent=2),
    }
    make_folder(folder)
    for name, content in contents.items():
        write(folder / name, content)
    return [folder / name for name in contents]


def cosines(index: Index) -> str:
    """The cosines of the feature index in a sentence: the least of all, and the means inside and between domains."""
    text = f"Cosines of the feature index: {least_cosine(index.feature):.3f} at least between two clients"
    table = by_domain(similarity(index.feature, None), index.domains)
    if len(table) < 2:
        return f"{text}."
    inside = torch.diag(table)
    between = table[~torch.eye(len(table), dtype=torch.bool)]
    return f"{text}; inside a domain {inside.mean():.3f}, between domains {between.mean():.3f} in the mean."


def heat_maps(index: Index) -> Figure:
    """Cosine similarity between clients (whole index and feature index), and the feature index's mean by domain.

    Clients of one domain stand together; lines part the domains (Client2Vec, Fig. 2 and 3).
    """
    order = sorted(range(len(index.clients)), key=lambda client: (index.domains[client], client))
    domains = [index.domains[client] for client in order]
    panels = [("feature index", similarity(index.feature, None))]
    if index.label is not None:
        panels.insert(0, ("client index", similarity(index.feature, index.label)))
    figure = Figure(figsize=(5.4 * (len(panels) + 1), 5.2), layout="constrained")
    axes = figure.subplots(1, len(panels) + 1, squeeze=False)[0]
    for axis, (title, cosines) in zip(axes, panels, strict=False):
        _heat(figure, axis, cosines[order][:, order], f"{title}, between clients", domains)
    names = sorted(set(index.domains))
    between = by_domain(similarity(index.feature, None), index.domains)
    _heat(figure, axes[-1], between, "feature index, mean between domains", names)
    return figure


def by_domain(cosines: Tensor, domains: tuple[str, ...]) -> Tensor:
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
    """A name as a figure can show it: letters that the font lacks as escapes, and the middle of a long one left out."""
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
