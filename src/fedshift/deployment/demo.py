"""A federation on one machine: a demonstration with real processes, and any run as a simulation with the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor

from fedshift.clients.federated import FederatedData
from fedshift.datasets.mnist import RotatedMNIST
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.coordinate import RUNS
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.folders import DATA, Planned, planned
from fedshift.deployment.shell import COORDINATOR, SITES
from fedshift.deployment.site_data import SiteFolder
from fedshift.deployment.supervisor import Processes, free_port
from fedshift.engines.choice import requested_engine
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.reporting.follow import follow
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.runs.simulation import Simulation
from fedshift.runs.together import run_together as simulate
from fedshift.streams import Streams

CITIES = ("berlin", "oslo", "rome", "lisbon", "vienna", "athens")
ANGLES = (0, 30, 60, 15, 45, 75)  # degrees, by city
IMAGES_PER_CLASS = 80  # at a site; 500 are shipped, so that six sites have others each
FILE = "digits.npz"
EXPERIMENT: Mapping[str, Any] = {
    "name": "federation-demo",
    "seed": 0,
    "data": {"name": "arrays", "path": DATA},
    "partition": {"name": "domains"},
    "protocol": {"name": "in-domain"},
    "model": {"name": "cnn"},
    "train": {"steps": 40, "lr": 0.03, "min_answers": 0.5},  # in eight rounds it can be seen to learn
    "evaluate": {"every": 1},
    "run": {"device": "cpu", "threads": 1},
}
AT_SITES: Mapping[str, Any] = {"threads": 1, "device": "cpu"}
SECONDS_TO_LEAVE = 10.0  # that Flower has until it knows that a run is over
SECONDS_TO_WAIT = 120.0  # for a site


def members(sites: int) -> dict[str, float]:
    """The sites' names, and by how many degrees the digits of each are rotated."""
    return dict(zip(CITIES[:sites], ANGLES[:sites], strict=True))


def experiment(method: str, rounds: int) -> Experiment:
    """The demonstration's experiment."""
    return Experiment.from_table(
        {**EXPERIMENT, "method": {"name": method}, "train": {**EXPERIMENT["train"], "rounds": rounds}}
    )


def planned_demo(experiment: Experiment, sites: Mapping[str, float]) -> Planned:
    """All files of the demonstration's federation, with each site's samples in its folder.

    Args:
        experiment: from :func:`experiment`.
        sites: from :func:`members`.
    """
    data = RotatedMNIST(angles=tuple(sites.values()), images_per_class=IMAGES_PER_CLASS * len(sites)).load(
        Streams(experiment.seed)
    )
    federation = FederationSettings(
        name="demo",
        sites=tuple(sites),
        shape=tuple(data.x.shape[1:]),
        classes=data.classes,
        address=f"127.0.0.1:{free_port()}",
        deadline=SECONDS_TO_WAIT,
        wait=SECONDS_TO_WAIT,
    )
    files = planned(federation, experiment, at_sites=AT_SITES)
    for number, site in enumerate(sites):
        own = (data.domain == number) & (data.group % len(sites) == number)  # no two sites have the same digit
        files[f"{SITES}/{site}/{DATA}/{FILE}"] = _written(data.x[own], data.y[own], data.classes)
    return files


def _written(x: Tensor, y: Tensor, classes: Sequence[str]) -> bytes:
    file = BytesIO()
    images = x.mul(255).round().byte().numpy()
    np.savez_compressed(file, x=images, y=y.numpy(), classes=np.array(classes))
    return file.getvalue()


def carry_out(folder: Path, say: Callable[[str], None], console: Console) -> Run:
    """Start the processes of a federation whose folders are all here, run it, and end them.

    Args:
        folder: the federation's folder.
        say: receives a line for each started process.
        console: shows the run.
    """
    with Processes(folder) as started:
        sites, address = started.federation.sites, started.federation.address
        say(f"Starting the coordinator at {address}, with TLS ...")
        started.start_coordinator()
        say(f"Starting the sites {', '.join(sites)} ...")
        for site in sites:
            started.start_site(site)
        say("Starting the run ...")
        process, run = started.start_run(), carried_out(folder)
        logs = f"'{started.log('run')}' and '{started.log(COORDINATOR)}'"
        ended = FedshiftError(f"The run has ended before its last round: see {logs}.")

        def look() -> None:
            started.check()
            if process.poll() is not None and not run.finished:
                raise ended

        while not run.has_started:
            look()
            time.sleep(0.2)
        follow(run.path, console, meanwhile=look)
        if not run.finished:
            raise ended
        with suppress(TimeoutExpired):
            process.wait(SECONDS_TO_LEAVE)  # so that the SuperLink knows that it is over
        return run


# The same as a simulation -----------------------------------------------------------------------


def rehearse(folder: Path, progress: Progress) -> Run:
    """Run a federation's folder with the sequential engine, in its folder ``rehearsal``.

    Args:
        folder: the federation's, with the coordinator's and all sites' folders in it.
        progress: receives the progress events.
    """
    run = Run(folder / "rehearsal" / carried_out(folder).path.name)
    agreement, alone = Agreement.read(folder / COORDINATOR), list[FederatedData]()
    for place in (folder / SITES / site for site in agreement.federation.sites):
        site = SiteFolder(place, agreement.at(place))
        alone.append(site.federated(site.samples(progress.embedded)))
    whole = replace(
        alone[0],
        clients=tuple(client for each in alone for client in each.clients),
        environments=tuple(environment for each in alone for environment in each.environments),
        notes=tuple(dict.fromkeys(note for each in alone for note in each.notes)),
    )
    simulation = Simulation(agreement.experiment, progress.embedded, whole)
    if run.finished:
        progress.reused(run.path.name)
        return run
    choice = requested_engine(simulation.setup, agreement.experiment.run.replace(engine="sequential"))
    for error in simulate([(simulation, run)], choice, progress).values():
        raise error
    return run


def carried_out(folder: Path) -> Run:
    """The folder of the run of a federation's coordinator, which may not have started."""
    if not (folder / COORDINATOR).is_dir():
        raise FedshiftError(
            f"'{folder}' has no folder {COORDINATOR}: give a federation's, as `fedshift federation init` makes it, "
            f"with all its sites' folders in {folder / SITES}."
        )
    return Run(folder / COORDINATOR / RUNS / Agreement.read(folder / COORDINATOR).run)


def difference(one: Run, other: Run) -> float:
    """The largest absolute difference between final tensors that two finished runs share; 0.0: they are equal."""
    ours, theirs = one.weights, other.weights
    both = ((ours[name].double() - theirs[name].double()).abs() for name in ours.keys() & theirs.keys())
    return max(float(apart.max()) for apart in both if apart.numel())
