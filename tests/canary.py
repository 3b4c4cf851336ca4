"""What is private at a site, and whether it is in bytes that the site sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, load_file
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.leaving import leaving
from fedshift.deployment.site_data import SiteFolder
from reference import small
from test_methods import BEFORE_BATCH_NORM, KEPT_AS_SENT

Windows = np.ndarray  # of eight bytes each, as numbers, in order and each once

# What a site keeps and has sent, on purpose: pFedAvg predicts with the model that it sent, and SCAFFOLD's control
# variate is, at first, the change that it sends, which declares that it reveals the variate.
SENT_BEFORE = {**KEPT_AS_SENT, "pfedavg": "personal_", "scaffold": "own_variate.", "fedfa": "statistics."}
# Vectors that stand for single samples, and leave; a site that refuses "embedding" takes no part.
EMBEDDINGS = {"client2vec": {"pairs"}}


def local(name: str) -> dict[str, Any]:
    """A method whose clients keep something for themselves."""
    others: dict[str, dict[str, Any]] = {"client2vec": {"method.base": {"name": "fedbn"}}, "silobn": {}}
    return {**small(name), **others.get(name, {"method.bn": "local"})}


def windows(data: bytes) -> Windows:
    """Every eight bytes that stand together, once."""
    whole = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 8).copy().view(np.uint64)
    return np.unique(whole)


def marks(tensors: list[Tensor]) -> Windows:
    """What would show that a tensor was sent: each pair of its neighbours as float32, each number of it as float64."""
    found = [np.zeros(0, np.uint64)]
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() > 1:
            numbers = tensor.detach().float().contiguous().numpy().ravel()
            telling = np.abs(numbers) % 0.125 > 0  # not 0, 1, 0.5, which are everywhere
            pairs = np.stack([numbers[:-1], numbers[1:]], axis=1)[telling[:-1] & telling[1:]]
            found += [pairs.view(np.uint64).ravel(), numbers[telling].astype(np.float64).view(np.uint64)]
    return np.unique(np.concatenate(found))


def shows(sent: Windows, tensors: list[Tensor], but: list[Tensor]) -> bool:
    """Whether what was sent contains a piece of tensors that is none of public ones."""
    telling = np.setdiff1d(marks(tensors), marks(but), assume_unique=True)
    return bool(np.isin(telling, sent, assume_unique=True).any())


class Watched:
    """A site whose folder is read after each message: every private tensor that it ever kept, by its name."""

    def __init__(self, site: Path) -> None:
        self.folder = site
        self.kept: dict[str, list[Tensor]] = {}

    def look(self) -> None:
        """Read what the site keeps now."""
        for path in self.folder.glob("state/*/*@*.safetensors"):
            for key, tensor in load_file(path).items():
                kind, *rest = json.loads(key)
                self.kept.setdefault("/".join([kind, *rest]), []).append(tensor)

    def samples(self) -> list[Tensor]:
        """Its images."""
        return [self._data.x]

    def labels(self) -> Tensor:
        """Their classes."""
        return self._data.y

    @property
    def _data(self) -> DomainData:
        return SiteFolder(self.folder).samples()

    def public(self) -> list[Tensor]:
        """What everyone begins with."""
        return list(Agreement.read(self.folder).setup(torch.device("cpu")).shapes.values())

    def leak(self, what: str) -> bytes:
        """Something private, as it would be sent: LEAKS lists what."""
        if what == "a private tensor":
            return max(self.kept.items())[1][-1].numpy().tobytes()
        (x,) = self.samples()
        return x[7].numpy().tobytes() if what == "a sample" else x[7, 0, 3].double().numpy().tobytes()


LEAKS = ("a sample", "a row of a sample", "a private tensor")


def assert_private(name: str, watched: Watched, sent: bytes, replies: Sequence[bytes]) -> None:
    """Neither two neighbouring numbers of a sample or of a private tensor are in any byte that left all sites.

    Nor are labels, nor a path. The sites' messages are found in these bytes as they are.
    """
    assert len(replies) > 6
    assert all(reply in sent for reply in replies)  # nothing is packed on the way, so what is sent is found
    setup = Agreement.read(watched.folder).setup(torch.device("cpu"))
    public, seen = watched.public(), windows(sent)
    assert not shows(seen, watched.samples(), public)
    for kind in (torch.int64, torch.int32, torch.uint8):
        assert watched.labels().to(kind).numpy().tobytes() not in sent
    assert str(watched.folder.parents[1]).encode() not in sent

    assert any(key.startswith("tensor/") for key in watched.kept) or not setup.initial("client")
    told = {key: tensors for key, tensors in watched.kept.items() if not key.endswith(BEFORE_BATCH_NORM)}
    found = {key for key, tensors in told.items() if shows(seen, tensors, public)}
    declared = SENT_BEFORE.get(name)
    assert bool(found) == (declared is not None)
    assert all(declared is not None and key.startswith(f"tensor/{declared}") for key in found)
    embeddings = {each.name for each in leaving(setup) if each.category == "embedding"}
    assert embeddings == EMBEDDINGS.get(name, set())
    for each in embeddings:
        up = [tensors[f"up.{each}"] for tensors in map(load, replies) if f"up.{each}" in tensors]
        assert up
        assert all(shows(seen, [tensor], []) for tensor in up)


def assert_noticed(what: str, watched: Watched, sent: bytes) -> None:
    """What should have stayed is seen in what was sent, and nothing else is."""
    seen, public = windows(sent), watched.public()
    kept = [tensor for tensors in watched.kept.values() for tensor in tensors]
    assert shows(seen, watched.samples(), public) == ("sample" in what)
    assert shows(seen, kept, public) == ("private" in what)
