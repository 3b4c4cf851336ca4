"""A site's model: what all sites share, and what its own client keeps, which only the site has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedshift import files
from fedshift.core.messages import pack
from fedshift.core.preparation import PREPARATION
from fedshift.core.setup import Setup
from fedshift.deployment.agreement import Agreement, read_site
from fedshift.errors import FedshiftError
from fedshift.rounds.evaluation import parts_predicted
from fedshift.runs.schema import Blueprint
from fedshift.runs.trained import Trained, rebuilt

FILE = "model.safetensors"


def parts_of_model(agreement: Agreement, setup: Setup) -> frozenset[str]:
    """The parts that a prediction reads.

    Raises:
        FedshiftError: no model could be made for the site that is held out.
    """
    experiment, inputs = agreement.experiment, agreement.inputs
    sample = inputs.like(agreement.federation.shape).to(setup.device)
    read = parts_predicted(setup.method, setup.model, setup.parts, inputs, sample)
    own = sorted(part for part in read if any(name.startswith(f"{part}.") for name in setup.initial("client")))
    if own and agreement.target is not None:
        shared = "data.statistics = 'pooled'" if own == [PREPARATION] else "a method whose model is shared"
        raise FedshiftError(
            f"'{experiment.method_name}' predicts with what each client keeps ({', '.join(own)}), so the site "
            f"'{agreement.target}', which never trains, has no model here; only a simulation can make one. Use "
            f"protocol.name = 'in-domain', or {shared}."
        )
    return read


def blueprint_of(agreement: Agreement) -> Blueprint:
    """What modules are rebuilt from; how many samples clients have is the sites' to know."""
    federation = agreement.federation
    return Blueprint(
        shape=federation.shape,
        classes=federation.classes,
        clients=agreement.clients,
        inputs=agreement.inputs,
        environments=tuple(agreement.clients.values()),
        columns=federation.names_of_columns,
        domains=agreement.clients,
        norm_factor=federation.norm_factor,
    )


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
    return rebuilt(agreement.experiment, blueprint_of(agreement), weights, agreement.client(settings.name))
