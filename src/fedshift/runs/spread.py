"""The runs of a table on a Ray cluster: tasks that share them as shards do, each run whole on one processor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment, load_plugins
from fedshift.runs.events import Progress
from fedshift.runs.shard import Shard


def spread(
    call: Callable[[Shard], Any], experiments: Sequence[Experiment], shard: Shard | None, progress: Progress
) -> Shard | None:
    """Let tasks of a Ray cluster run runs first, if the experiments request it; the cluster shares a folder.

    Tasks claim runs as shards do. A task that dies leaves its runs to the others, and to the caller, which runs
    whatever is left when all have ended. ``call`` runs the runs of a shard; the first experiment sets the cluster and
    the number of tasks (``workers``; 0: one per processor); other shards are left to their callers. Returns the
    caller's new shard. Raises a FedshiftError if there is no cluster.
    """
    options = experiments[0].run
    if shard or options.engine != "ray" or options.spread != "runs":
        return shard
    from fedshift.engines.ray_actors import connect, first_line

    ray = connect(options.address)
    count = max(options.workers or int(ray.cluster_resources().get("CPU", 1)), 1)
    task = ray.remote(_called).options(num_cpus=1, num_gpus=options.gpus or None, max_retries=0)
    shards = [Shard(number, count) for number in range(1, count + 1)]
    work, plugins = cloudpickle.dumps(call), list(dict.fromkeys(path for each in experiments for path in each.plugins))
    waiting = {task.remote(str(Path.cwd()), plugins, work, each): each for each in shards}
    out = f"{options.out}/{experiments[0].name}"
    progress.note(f"{count} Ray tasks run the runs; `fedshift watch {out}` shows their progress.")
    while waiting:
        (done,), _ = ray.wait([*waiting], num_returns=1)
        its = waiting.pop(done)
        try:
            reason = ray.get(done)
        except ray.exceptions.RayTaskError:  # a defect, not a death
            raise
        except ray.exceptions.RayError as error:
            reason = first_line(error)
        if reason:
            progress.note(f"Ray task {its.number} of {count} ended early: {reason} Its runs go to the others.")
    return Shard(1, 1)


def _called(folder: str, plugins: Sequence[str], call: bytes, shard: Shard) -> str:
    """A task; returns the errors of runs, or of this node."""
    os.chdir(folder)  # where paths that a user gave begin
    load_plugins(plugins)  # which the call refers to
    try:
        cloudpickle.loads(call)(shard)
    except FedshiftError as error:
        return str(error)
    return ""
