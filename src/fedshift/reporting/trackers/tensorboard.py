"""TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from fedshift import files
from fedshift.errors import needs
from fedshift.reporting.trackers.tracker import FOLDER, Folder, RunState, Tracker
from fedshift.spec import setting

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    """Event files of TensorBoard, which `tensorboard --logdir runs` shows."""

    folder: Folder = setting(
        "", help="files go to FOLDER/EXPERIMENT/RUN; by default to trackers/ in the run's folder", path=True
    )
    _writer: SummaryWriter = PrivateAttr()

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Open another event file; what a kill left at steps that come again is hidden."""
        with needs("tensorboard", "The tracker 'tensorboard'"):
            import tensorboard  # noqa: F401  # torch's error would not name the extra
            from torch.utils.tensorboard import SummaryWriter
        run = self.run
        folder = Path(self.folder, run.experiment, run.name) if self.folder else run.path / FOLDER
        files.make_folder(folder)
        self._writer = SummaryWriter(str(folder), purge_step=run.logged + 1)
        if run.logged < 0:
            rows = [f"| {name} | {value} |" for name, value in values.items()]
            text = "\n".join(["| setting | value |", "|---|---|", *rows])
            self._writer.add_text("settings", text, 0)

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, when)

    def flush(self) -> None:
        self._writer.flush()

    def finish(self, state: RunState) -> None:
        self._writer.close()
