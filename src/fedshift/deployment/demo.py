"""A federation on one laptop: sites with digits of their own, made and carried out by real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor

from fedshift.datasets.mnist import RotatedMNIST
from fedshift.deployment.agreement import FederationSettings
from fedshift.deployment.folders import DATA, SITES, Planned, planned
from fedshift.deployment.processes import Processes
from fedshift.deployment.supervisor import free_port
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.reporting.follow import follow
from fedshift.runs.run import Run
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
    """The sites' names, and by how many degrees the digits of each are turned."""
    return dict(zip(CITIES[:sites], ANGLES[:sites], strict=True))


def experiment(method: str, rounds: int) -> Experiment:
    """What is carried out.

    Raises:
        FedshiftError: there is no such method, or it cannot work with this.
    """
    return Experiment.from_table(
        {**EXPERIMENT, "method": {"name": method}, "train": {**EXPERIMENT["train"], "rounds": rounds}}
    )


def planned_demo(folder: Path, experiment: Experiment, sites: Mapping[str, float]) -> Planned:
    """All files of the demonstration's federation, with the samples of each site in its own folder.

    Args:
        folder: the federation's.
        experiment: what :func:`experiment` gave.
        sites: as :func:`members` says.

    Raises:
        FedshiftError: sites cannot carry the experiment out, or the extra 'flower' is not installed.
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
    files = planned(folder, federation, experiment, at_sites=AT_SITES)
    for number, site in enumerate(sites):
        own = (data.domain == number) & (data.group % len(sites) == number)  # no two sites have the same digit
        files[f"{SITES}/{site}/{DATA}/{FILE}"] = _written(data.x[own], data.y[own], data.classes)
    return files


def _written(x: Tensor, y: Tensor, classes: Sequence[str]) -> bytes:
    """Samples as a site has them on its disk."""
    file = BytesIO()
    images = x.mul(255).round().byte().numpy()
    np.savez_compressed(file, x=images, y=y.numpy(), classes=np.array(classes))
    return file.getvalue()


def carry_out(folder: Path, say: Callable[[str], None], console: Console) -> Run:
    """Start the processes of a federation whose members all lie in one folder, carry out its run, and end them.

    Args:
        folder: the federation's.
        say: takes a line on what is started.
        console: where the run is shown.

    Raises:
        FedshiftError: a process or the run has ended too early; the message says where its log is.
    """
    with Processes(folder) as started:
        sites, address = started.agreement.federation.sites, started.agreement.federation.address
        say(f"Starting the coordinator at {address}, with TLS ...")
        started.start_coordinator()
        say(f"Starting the sites {', '.join(sites)} ...")
        for site in sites:
            started.start_site(site)
        say("Starting the run ...")
        started.start_run()
        return _follow(started, console)


def _follow(started: Processes, console: Console) -> Run:
    """Show the run until it is over."""
    run, process = Run(started.coordinator / "runs" / started.agreement.run), started.process("run")
    logs = f"'{started.log('run')}' and '{started.log('coordinator')}'"
    ended = FedshiftError(f"The run has ended before its last round: see {logs}.")

    def look() -> None:
        started.check()
        if process.poll() is not None and not run.finished:
            raise ended

    while not run.begun:
        look()
        time.sleep(0.2)
    follow(run.path, console, meanwhile=look)
    if not run.finished:
        raise ended
    with suppress(TimeoutExpired):
        process.wait(SECONDS_TO_LEAVE)  # so that the SuperLink knows that it is over
    return run
