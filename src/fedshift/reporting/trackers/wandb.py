"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PrivateAttr

from fedshift import files
from fedshift.errors import needs
from fedshift.reporting.trackers.tracker import FOLDER, Folder, RunState, Tracker
from fedshift.spec import setting

if TYPE_CHECKING:
    from wandb import Run as WandbRun


class WandB(Tracker):
    """Weights & Biases, offline: files that `wandb sync` uploads if you want that."""

    mode: Literal["offline", "online"] = setting("offline", help="online: uploads while it logs")
    project: str = setting("", help="W&B's project; by default the experiment's name")
    folder: Folder = setting(
        "", help="files go to FOLDER/wandb; by default to trackers/wandb in the run's folder", path=True
    )
    _logged: WandbRun = PrivateAttr()

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Begin a part of the run; all parts have its id, so that W&B puts them together."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # or even offline W&B reports its use to its makers
        with needs("wandb", "The tracker 'wandb'"):
            import wandb
        run = self.run
        folder = Path(self.folder) if self.folder else run.path / FOLDER
        files.make_folder(folder)
        self._logged = wandb.init(
            mode=self.mode,
            project=self.project or run.experiment,
            id=run.id,
            name=run.name,
            group=run.method,
            dir=folder,
            config=dict(values),
            resume="allow",
            reinit="create_new",  # several runs may be open
            settings=wandb.Settings(
                silent=True,
                console="off",
                x_disable_stats=True,  # of this process, which is not the run's
                x_disable_meta=True,
                disable_git=True,
                disable_code=True,
            ),
        )

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        self._logged.log({**values, "_timestamp": when}, step=step, commit=True)

    def finish(self, state: RunState) -> None:
        """Write the rest; a run that failed ends with an exit code."""
        self._logged.finish(exit_code=int(state == "failed"))
