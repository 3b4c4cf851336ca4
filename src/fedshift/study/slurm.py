"""A job array of Slurm, whose tasks are the shards of one command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedshift import files
from fedshift.core.training import RunOptions
from fedshift.errors import FedshiftError
from fedshift.study.study_plan import Forecast

MARGIN = 3  # times the seconds of a dry run, which is without loading and evaluation, and of another machine
LEAST_MINUTES = 10
MEMORY_MARGIN = 1.5  # times the peak of a dry run, which trains on no batch
OWN_MEMORY = 2**30  # bytes on top
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name="{name}"
#SBATCH --array=1-{shards}
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem={megabytes}M
#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --output="{log}"
{gpus}
# {runs} runs, about {hours} in all on one process. A task that ends early, or a job
# that is submitted again, continues where the runs were.
cd {here}
export OMP_NUM_THREADS={cpus}
exec {command} --shard "$SLURM_ARRAY_TASK_ID/{shards}"
"""


@dataclass(frozen=True)
class Slurm:
    """What a cluster needs to know about a command."""

    folder: Path  # the command's, which all machines see; the script and the tasks' output lie there
    command: Sequence[str]  # its words
    shards: int
    runs: int
    seconds: float  # of all runs in one process
    longest: float  # seconds of the longest run
    memory: int  # bytes of a process
    options: RunOptions  # how runs are run

    @classmethod
    def of(
        cls, forecasts: Sequence[Forecast], folder: Path, command: Sequence[str], shards: int, options: RunOptions
    ) -> Slurm:
        costs = [(each.runs, each.cost) for each in forecasts if each.cost is not None and each.runs]
        if not costs:
            raise FedshiftError("There is nothing to run: all runs are finished, or none can run.")
        return cls(
            folder=folder,
            command=command,
            shards=shards,
            runs=sum(runs for runs, _ in costs),
            seconds=sum(runs * (cost.seconds or 0.0) for runs, cost in costs),
            longest=max(cost.seconds or 0.0 for _, cost in costs),
            memory=max(cost.memory for _, cost in costs),
            options=options,
        )

    @property
    def minutes(self) -> int:
        """The limit of a task: its share of the runs, but one run at least, with a margin."""
        return max(LEAST_MINUTES, round(MARGIN * max(self.seconds / self.shards, self.longest) / 60))

    @property
    def script(self) -> str:
        cpus = self.options.workers or self.options.threads or 1
        on_gpu = self.options.device.startswith("cuda")
        return SCRIPT.format(
            name=f"fedshift-{self.folder.name}",
            shards=self.shards,
            cpus=cpus,
            megabytes=round((MEMORY_MARGIN * self.memory + OWN_MEMORY) / 2**20),
            time=_clock(self.minutes),
            log=self.folder.absolute() / "slurm-%A_%a.log",
            gpus="#SBATCH --gpus=1\n" if on_gpu else "",
            runs=self.runs,
            hours=_clock(round(self.seconds / 60)),
            here=shlex.quote(str(Path.cwd())),
            command=shlex.join(self.command),
        )

    def write(self) -> Path:
        files.make_folder(self.folder)
        path = self.folder / "slurm.sh"
        files.write(path, self.script)
        return path


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}:00"
