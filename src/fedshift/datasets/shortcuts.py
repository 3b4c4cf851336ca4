"""Data sets with a shortcut: something easy to see that agrees with the label with probability p, by environment.

Tang et al., "Causally Motivated Personalized Federated Invariant Learning with Shortcut-Averse Information-Theoretic
Regularization" (FedPIN), ICML 2024, Sec. 5.1 and E.1. Every client contains originals of a few kinds (digits, species)
and trains in one environment; it is tested in many, where the same test originals get their shortcut again.

Choices:
- A kind's originals are dealt in equal numbers to the clients that contain it; each client keeps the same part of each
  kind for its tests.
- Each client's training p is drawn from the given ones; chance may give all clients the same.
- Clients with the same training p share a training environment.
- Whether a sample's shortcut agrees is drawn for itself, so counts are near p, and exact where p is 0 or 1. A test
  environment does not depend on the other requested environments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.clients.domains import DomainData
from fedshift.datasets.dataset import Dataset
from fedshift.errors import FedshiftError
from fedshift.spec import Clients, Probability, ProperFraction, WholeNumber, setting
from fedshift.streams import Streams


@dataclass(frozen=True)
class ShortcutPlan:
    """Which original is shown to which client, where, and whether its shortcut agrees with its label."""

    original: Tensor  # index of the original of each sample, (N,), int64
    client: Tensor  # whose sample it is, (N,), int64
    environment: Tensor  # 0 is training, the others are the tests in the order of ``test_p``, (N,), int64
    agrees: Tensor  # whether the shortcut agrees with the label, (N,), bool
    trained_with: Tensor  # which of the p that clients train with is that of the sample's client, (N,), int64
    train_environments: tuple[str, ...]  # a name for each of those p, in rising order


class ShortcutDataset(Dataset):
    """Clients that contain a few kinds each, one training environment a client, and common test environments."""

    clients: Clients = setting(8, help="clients; the windows of kinds repeat", source="FedPIN, E.1: 8; in part 80")
    train_p: tuple[Probability, ...] = setting(
        (0.9, 0.8), help="a client's training p is drawn from these", source="FedPIN, Sec. 5.1"
    )
    test_p: tuple[Probability, ...] = setting(
        (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        help="a test environment for each, with the same originals",
        source="FedPIN, Sec. 5.1",
    )
    test: ProperFraction = setting(0.2, help="part of a client's originals of each kind that it is tested on")
    originals: WholeNumber = setting(0, help="originals of each kind that are used, drawn by the seed; 0: all")
    oracle: bool = setting(False, help="remove the shortcut from every sample", source="FedPIN, Fig. 2: Oracle")

    def domain_names(self) -> tuple[str, ...]:
        """One domain a client; its training p is its own affair and no part of the name."""
        return tuple(f"client {number}" for number in range(1, self.clients + 1))

    def environment_names(self) -> tuple[str, ...]:
        """Training, then one name for each test p."""
        names = ("train", *(f"p={p:g}" for p in self.test_p))
        if len(names) == 1 or len(set(names)) < len(names):
            raise FedshiftError(f"data.test_p = {list(self.test_p)}: give at least one probability, each once.")
        if not self.train_p:
            raise FedshiftError("data.train_p = []: give at least one probability.")
        return names

    def plan(self, kind: Tensor, windows: Sequence[Collection[int]], streams: Streams) -> ShortcutPlan:
        """Deal the originals to the clients and decide where shortcuts agree.

        Args:
            kind: the kind of each original, (N,), int64.
            windows: the kinds that a client contains, one window a client, repeated from the first when they run out.
            streams: the run's streams.
        """
        names = self.environment_names()
        dealt = self._deal(kind, windows, streams)
        parts = [_stack([train for train, _ in dealt]), *[_stack([test for _, test in dealt])] * len(self.test_p)]
        drawn = torch.randint(len(self.train_p), (self.clients,), generator=streams.generator("shortcut training p"))
        train_p = torch.tensor(self.train_p, dtype=torch.float64)[drawn]
        p = [train_p[parts[0][1]], *(torch.tensor(value, dtype=torch.float64) for value in self.test_p)]
        agrees = [
            torch.rand(len(original), dtype=torch.float64, generator=streams.generator("shortcut", name)) < value
            for name, (original, _), value in zip(names, parts, p, strict=True)
        ]
        sizes = torch.tensor([len(original) for original, _ in parts])
        client = torch.cat([client for _, client in parts])
        used, which = torch.unique(train_p, return_inverse=True)
        return ShortcutPlan(
            original=torch.cat([original for original, _ in parts]),
            client=client,
            environment=torch.arange(len(names)).repeat_interleave(sizes),
            agrees=torch.cat(agrees),
            trained_with=which[client],
            train_environments=tuple(f"p={value:g}" for value in used.tolist()),
        )

    def made(self, plan: ShortcutPlan, x: Tensor, y: Tensor, classes: tuple[str, ...]) -> DomainData:
        """The samples x (N, ...) with labels y (N,) that a plan requested; all copies of an original share a group."""
        return DomainData(
            x=x,
            y=y,
            domain=plan.client,
            domains=self.domain_names(),
            classes=classes,
            group=plan.original,
            environment=plan.environment,
            environments=self.environment_names(),
            train_environment=plan.trained_with,
            train_environments=plan.train_environments,
        )

    def _deal(
        self, kind: Tensor, windows: Sequence[Collection[int]], streams: Streams
    ) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Each client's training and test originals, a tensor a kind."""
        held = [windows[client % len(windows)] for client in range(self.clients)]
        dealt: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in held]
        for value in sorted(set().union(*held)):
            holders = [client for client, window in enumerate(held) if value in window]
            members = (kind == value).nonzero().flatten()
            if len(members) < self.originals:
                raise FedshiftError(
                    f"data.originals = {self.originals}, but there are only {len(members)} of kind {value}."
                )
            order = streams.permutation(len(members), "shortcut originals", value)
            used = members[order[: self.originals or None]]
            if len(used) < 2 * len(holders):
                raise FedshiftError(
                    f"data.clients = {self.clients}: {len(used)} originals of kind {value} are too few for "
                    f"{len(holders)} clients to train and be tested on; give fewer clients or more originals."
                )
            for client, share in zip(holders, used.tensor_split(len(holders)), strict=True):
                tested = min(max(round(self.test * len(share)), 1), len(share) - 1)
                dealt[client][0].append(share[tested:])
                dealt[client][1].append(share[:tested])
        return dealt


def _stack(parts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    of_client = [torch.cat(list(part)) for part in parts]
    sizes = torch.tensor([len(part) for part in of_client])
    return torch.cat(of_client), torch.arange(len(of_client)).repeat_interleave(sizes)
