"""A federation's run as a simulation, where all sites' folders lie on one machine: the same bits in a part of the time.

It shows before the institutions begin what the run will come to, and afterwards that nothing was lost on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedshift.clients.federated import FederatedData
from fedshift.deployment.agreement import Agreement, read_site
from fedshift.deployment.folders import COORDINATOR, SITES
from fedshift.deployment.site_data import site_data, site_federation
from fedshift.engines.choice import asked_for
from fedshift.errors import FedshiftError
from fedshift.runs.events import Progress
from fedshift.runs.folder import RunFolder
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation
from fedshift.runs.together import carry_out


def rehearse(folder: Path, progress: Progress) -> RunFolder:
    """Carry out the run of a federation's folder with the sequential engine, in its folder ``rehearsal``.

    Args:
        folder: the federation's, with those of the coordinator and of all sites in it.
        progress: hears of it.

    Raises:
        FedshiftError: a site's folder or data are missing or wrong.
    """
    agreement = _agreement(folder)
    simulation = simulated(agreement, [folder / SITES / site for site in agreement.federation.sites], progress)
    run = RunFolder(folder / "rehearsal" / agreement.run)
    if run.finished:
        progress.reused(run.path.name)
        return run
    choice = asked_for(simulation.setup, agreement.experiment.run.replace(engine="sequential"))
    for error in carry_out([(simulation, run)], choice, progress).values():
        raise error
    return run


def carried_out(folder: Path) -> RunFolder:
    """The folder of the run that a federation's coordinator carries out, which may not have begun.

    Raises:
        FedshiftError: it is no federation's folder.
    """
    return RunFolder(folder / COORDINATOR / "runs" / _agreement(folder).run)


def _agreement(folder: Path) -> Agreement:
    if not (folder / COORDINATOR).is_dir():
        raise FedshiftError(
            f"'{folder}' has no folder {COORDINATOR}: give a federation's, as `fedshift federation init` makes it, "
            f"with those of all its sites in {folder / SITES}."
        )
    return Agreement.read(folder / COORDINATOR)


def simulated(agreement: Agreement, folders: Sequence[Path], progress: Progress) -> Simulation:
    """The run with all sites in one process.

    Args:
        agreement: what the members agreed on.
        folders: those of the sites, in the federation's order.
        progress: hears of images that a frozen network embeds.
    """
    alone = []
    for folder in folders:
        settings, data = read_site(folder)
        own = agreement.at(folder)
        alone.append(site_federation(own, settings, site_data(own, settings, data, progress.embedded)))
    return Simulation(agreement.experiment, progress.embedded, together(alone))


def together(sites: Sequence[FederatedData]) -> FederatedData:
    """The clients and environments of several sites, in order."""
    first = sites[0]
    return replace(
        first,
        clients=tuple(client for site in sites for client in site.clients),
        environments=tuple(environment for site in sites for environment in site.environments),
        notes=tuple(dict.fromkeys(note for site in sites for note in site.notes)),
    )


def difference(one: RunFolder, other: RunFolder) -> float:
    """How far numbers of the final tensors that two finished runs both have are apart at most; 0.0: they are equal.

    Raises:
        FedshiftError: a run is not finished, or its weights are damaged.
    """
    ours, theirs = Run(one).weights, Run(other).weights
    return max(_apart(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
