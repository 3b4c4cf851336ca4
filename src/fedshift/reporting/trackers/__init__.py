"""Where scores of runs can be followed beside those of other work: a page for each tracker, and the list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.reporting.trackers.tracker import Tracker

TRACKERS: Catalogue[Tracker] = Catalogue(
    "TRACKERS",
    __name__,
    kind="tracker",
    base=".tracker:Tracker",
    entries={
        "tensorboard": ".tensorboard:TensorBoard",
        "mlflow": ".mlflow:MLflow",
        "wandb": ".wandb:WandB",
        "prometheus": ".prometheus:Prometheus",
    },
)
