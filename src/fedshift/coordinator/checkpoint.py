"""What a run is between two rounds, in one file that is replaced atomically; and files that notice damage.

The clients' states lie in files of their own (:mod:`fedshift.site.store`), of which a checkpoint names the versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from fedshift.core.contract import ServerState
from fedshift.core.messages import Tensors, pack
from fedshift.core.state import flat_moments, moments_from_flat
from fedshift.errors import FedshiftError
from fedshift.files import write

_BLANK = b"0" * 32  # stands where the checksum will, while that is computed


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        experiment: the experiment's fingerprint.
        position: how many rounds are done, over all stages.
        bytes_down: bytes sent to clients so far.
        bytes_up: bytes sent by clients so far.
        server: the server's state.
        clients: which version of its state each client has that took part: the position that wrote it.
    """

    experiment: str
    position: int
    bytes_down: int
    bytes_up: int
    server: ServerState
    clients: Mapping[int, int]

    def save(self, path: Path) -> None:
        """Write it atomically; when this returns it is on the disk.

        Raises:
            FedshiftError: the disk is full, say; the checkpoint before is kept.
        """
        tensors: dict[str, Tensor] = {}
        for scope in ("shared", "down", "server"):
            tensors |= {f"{scope}//{name}": tensor for name, tensor in getattr(self.server, scope).items()}
        tensors |= {f"moments//{name}": tensor for name, tensor in flat_moments(self.server.moments).items()}
        # Two rows of whole numbers: 10,000 clients take 160 kB.
        versions = sorted(self.clients.items())
        tensors["clients//versions"] = torch.tensor(versions, dtype=torch.int64).reshape(-1, 2).T
        about = {name: getattr(self, name) for name in ("experiment", "position", "bytes_down", "bytes_up")}
        write(path, sealed(tensors, about))

    @classmethod
    def load(cls, path: Path, experiment: str, device: torch.device) -> Checkpoint:
        """Read one back onto a device, bit for bit.

        Raises:
            FedshiftError: it is truncated, or belongs to another experiment.
        """
        fix = "Remove it, and `fedshift resume` starts the run again from its first round."
        tensors, about = unsealed(path, experiment, "checkpoint", fix)
        ids, positions = tensors.pop("clients//versions").tolist()
        scopes: dict[str, dict[str, Tensor]] = {"shared": {}, "down": {}, "server": {}, "moments": {}}
        for key, tensor in tensors.items():
            scope, _, name = key.partition("//")
            scopes[scope][name] = tensor.to(device)
        moments = moments_from_flat(scopes["moments"])
        server = ServerState(scopes["shared"], scopes["down"], scopes["server"], moments)
        return cls(server=server, clients=dict(zip(ids, positions, strict=True)), **about)


def sealed(tensors: Tensors, about: Mapping[str, Any]) -> bytes:
    """A safetensors file with a checksum over all of it.

    Args:
        tensors: named tensors of any shape, type, layout and device.
        about: what JSON can say of them; ``experiment``, the fingerprint, is among it.
    """
    # One entry only, safetensors writes several in no fixed order; it is the first thing in the file.
    data = pack(tensors, {"run": json.dumps({"checksum": _BLANK.decode(), **about})})
    return data.replace(_BLANK, _digest(data), 1)


def unsealed(path: Path, experiment: str, what: str, fix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a sealed file, on the CPU, and what it says about them.

    Args:
        path: the file.
        experiment: the fingerprint it must carry.
        what: what the file is, for messages.
        fix: what to do about a damaged one, for messages.

    Raises:
        FedshiftError: it is missing, damaged, truncated, or of another experiment.
    """
    try:
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = json.loads(header.get("__metadata__", {}).get("run", "{}"))
        checksum = about.pop("checksum", "").encode()
        reason = "" if _digest(data.replace(checksum, _BLANK, 1)) == checksum else "its checksum is wrong"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError:
        reason = "its header is no JSON"
    if reason:
        raise FedshiftError(f"The {what} '{path}' is damaged or truncated ({reason}). {fix}")
    if about["experiment"] != experiment:
        raise FedshiftError(
            f"The {what} '{path}' belongs to another experiment than the experiment.toml of its run "
            f"({about['experiment']} is not {experiment}): that file, a plugin or the data has changed. "
            "Restore it, or start a new run."
        )
    return load(data), about


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=len(_BLANK) // 2).hexdigest().encode()
