"""MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, PrivateAttr

from fedshift.errors import FedshiftError, needs
from fedshift.reporting.trackers.tracker import RunState, Tracker
from fedshift.spec import setting

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

TAG = "fedshift.id"
SQLITE = "sqlite:///"
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # that MLflow takes together
LONGEST_VALUE = 500  # characters of a setting, which every version of MLflow takes


def _from_the_root(uri: str) -> str:
    return SQLITE + str(Path(uri.removeprefix(SQLITE)).expanduser().absolute()) if uri.startswith(SQLITE) else uri


class MLflow(Tracker):
    """A run of MLflow in a database or on a server; `mlflow ui` in the folder of mlflow.db shows it."""

    uri: Annotated[str, AfterValidator(_from_the_root)] = setting(
        "sqlite:///mlflow.db", help="MLflow's tracking URI: a database, or a server as in http://localhost:5000"
    )
    project: str = setting("", help="MLflow's experiment; by default the experiment's name")
    _client: MlflowClient = PrivateAttr()
    _id: str = PrivateAttr()
    _metrics: list[Metric] = PrivateAttr(default_factory=list)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Find the run by its tag, or create it with the settings as parameters."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow would report its use to its makers
        with needs("mlflow", "The tracker 'mlflow'"):
            import alembic  # noqa: F401  # what mlflow-skinny needs for a database, and does not bring
            import cryptography  # noqa: F401
            import sqlalchemy  # noqa: F401
            from mlflow import MlflowClient
            from mlflow.entities import Param
            from mlflow.exceptions import MlflowException
        run, project = self.run, self.project or self.run.experiment
        try:
            self._client = MlflowClient(tracking_uri=self.uri)
            known = self._client.get_experiment_by_name(project)
            experiment = known.experiment_id if known else self._client.create_experiment(project)
            found = self._client.search_runs([experiment], f"tags.`{TAG}` = '{run.id}'")
            tags = {TAG: run.id, "fedshift.folder": str(run.path.resolve())}
            made = found[0] if found else self._client.create_run(experiment, run_name=run.name, tags=tags)
        except MlflowException as error:
            raise FedshiftError(f"MLflow cannot log to tracker.uri = '{self.uri}': {error.message}") from error
        self._id = made.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        params = [Param(_key(name), str(value)[:LONGEST_VALUE]) for name, value in values.items()]
        for start in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=params[start : start + MOST_PARAMETERS])

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        from mlflow.entities import Metric

        self._metrics += [Metric(_key(name), value, int(1000 * when), step) for name, value in values.items()]

    def flush(self) -> None:
        """Send the values together; MLflow stores those that come again, as after a kill, once."""
        while self._metrics:
            self._client.log_batch(self._id, metrics=self._metrics[:MOST_METRICS])
            del self._metrics[:MOST_METRICS]

    def finish(self, state: RunState) -> None:
        """Set the status of the run, which stays RUNNING while it may continue."""
        if state != "running":
            self._client.set_terminated(self._id, status=state.upper())


def _key(name: str) -> str:
    return re.sub(r"[^\w\-. /]", lambda found: f"_{ord(found[0]):x}_", name)
