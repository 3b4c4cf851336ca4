"""Everything of a run that changes over time, in one file that is replaced atomically."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedshift.core.contract import ServerState
from fedshift.core.messages import pack
from fedshift.core.state import ClientState, flat_moments, moments_from_flat
from fedshift.errors import FedshiftError
from fedshift.files import write


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        experiment: the experiment's fingerprint.
        position: how many rounds are done, over all stages.
        bytes_down: bytes sent to clients so far.
        bytes_up: bytes sent by clients so far.
        server: the server's state.
        clients: the state of every client that has taken part.
    """

    experiment: str
    position: int
    bytes_down: int
    bytes_up: int
    server: ServerState
    clients: dict[int, ClientState]

    def save(self, path: Path) -> None:
        """Write it atomically.

        Raises:
            FedshiftError: the disk is full, say; the checkpoint before is kept.
        """
        tensors: dict[str, Tensor] = {}
        for scope in ("shared", "down", "server"):
            tensors |= {f"{scope}//{name}": tensor for name, tensor in getattr(self.server, scope).items()}
        tensors |= {f"moments//{name}": tensor for name, tensor in flat_moments(self.server.moments).items()}
        for client, state in self.clients.items():
            tensors |= {f"client//{client}//{name}": tensor for name, tensor in state.flat().items()}
        about = {name: getattr(self, name) for name in ("experiment", "position", "bytes_down", "bytes_up")}
        about["checksum"] = _checksum(tensors)
        # One entry only: safetensors writes several in no fixed order.
        write(path, pack(tensors, {"run": json.dumps(about)}))

    @classmethod
    def load(cls, path: Path, experiment: str, device: torch.device) -> Checkpoint:
        """Read one back onto a device, bit for bit.

        Raises:
            FedshiftError: it is truncated, or belongs to another experiment.
        """
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                about = json.loads((file.metadata() or {}).get("run", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            sound = about.pop("checksum", None) == _checksum(tensors)
            reason = "" if sound else "its checksum is wrong"
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            reason = str(error)
        if reason:
            raise FedshiftError(
                f"The checkpoint '{path}' is damaged or truncated ({reason}). Remove it, and `fedshift resume` starts "
                "the run again from its first round."
            )
        if about.get("experiment") != experiment:
            raise FedshiftError(
                f"The checkpoint '{path}' belongs to another experiment than the experiment.toml beside it "
                f"({about.get('experiment')} is not {experiment}): that file, a plugin or the data has changed. "
                "Restore it, or start a new run."
            )
        server, clients = _unpack(tensors)
        return cls(server=server, clients=clients, **about)


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _unpack(tensors: dict[str, Tensor]) -> tuple[ServerState, dict[int, ClientState]]:
    scopes: dict[str, dict[str, Tensor]] = {"shared": {}, "down": {}, "server": {}, "moments": {}}
    clients: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        scope, _, rest = key.partition("//")
        if scope == "client":
            client, _, name = rest.partition("//")
            clients[int(client)][name] = tensor
        else:
            scopes[scope][rest] = tensor
    states = {client: ClientState.from_flat(flat) for client, flat in clients.items()}
    server = ServerState(scopes["shared"], scopes["down"], scopes["server"], moments_from_flat(scopes["moments"]))
    return server, states
