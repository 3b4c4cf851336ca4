"""A site's final model: what all sites share, and what its own client keeps, which only the site has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedshift import files
from fedshift.core.messages import pack
from fedshift.deployment.agreement import Agreement, read_site
from fedshift.errors import FedshiftError
from fedshift.runs.trained import Blueprint, Trained, rebuilt

FILE = "model.safetensors"


def keep_model(state: Path, sent: Mapping[str, Tensor], client: int | None, kept: Mapping[str, Tensor]) -> None:
    """Write the tensors of a site's model.

    Args:
        state: the folder of what the site keeps of the run.
        sent: what the coordinator sends of it.
        client: the number of the site's client; None where it never trained.
        kept: what the client keeps of it.
    """
    files.write(state / FILE, pack({**sent, **{f"client.{client}.{name}": tensor for name, tensor in kept.items()}}))


def site_model(folder: str | Path) -> Trained:
    """The final model of a site, as a module in evaluation mode, from the site's folder alone.

    Where a method leaves every client with a model of its own this is the site's; else it is the one that all share.

    Args:
        folder: the site's.

    Raises:
        FedshiftError: the folder is none of a site's, or the run has not ended there.
    """
    agreement, (settings, _) = Agreement.read(Path(folder)), read_site(Path(folder))
    path = Path(folder) / "state" / agreement.run / FILE
    try:
        weights = load(path.read_bytes())
    except FileNotFoundError as error:
        raise FedshiftError(f"'{path}' does not exist: a site has its model when the run has ended.") from error
    except (OSError, SafetensorError) as error:
        raise FedshiftError(f"'{path}' is damaged ({error}).") from error
    federation, clients = agreement.federation, agreement.clients
    environments, columns = tuple(clients.values()), federation.names_of_columns
    blueprint = Blueprint(federation.shape, federation.classes, clients, agreement.inputs, environments, "", columns)
    return rebuilt(agreement.experiment, blueprint, weights, agreement.client(settings.name))
