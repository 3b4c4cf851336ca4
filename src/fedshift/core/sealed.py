"""Files of named tensors that notice damage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from fedshift.core.messages import pack
from fedshift.errors import FedshiftError

_BLANK = b"0" * 32  # stands where the checksum will, while that is computed


def sealed(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
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
