"""Prometheus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from fedshift import files
from fedshift.reporting.trackers.tracker import Folder, RunState, Tracker
from fedshift.spec import setting

HELP = {
    "fedshift_rounds": "Rounds done at the last evaluation.",
    "fedshift_evaluated_seconds": "Time of the last evaluation, in seconds since 1970.",
    "fedshift_score": "Accuracy (0 to 1), loss, or another metric: the mean over the clients of an environment.",
    "fedshift_mean_score": "The same as the mean over the environments of a role.",
    "fedshift_loss_term": "A weighted term of the training loss: the mean over clients.",
    "fedshift_bytes": "Bytes sent since the start of the run, to clients (down) and by them (up).",
}
STATE = "# HELP fedshift_state Always 1: the label is the run's state: running, finished or failed.\n"
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]


class Prometheus(Tracker):
    """The last scores as a text file for each run, which the textfile collector of node_exporter reads."""

    folder: Folder = setting(
        "prometheus", help="of the files; that of node_exporter's --collector.textfile.directory", path=True
    )
    _newest: list[tuple[str, Labels, float]] = PrivateAttr(default_factory=list)
    _scores: str = PrivateAttr("")

    @property
    def file(self) -> Path:
        return Path(self.folder, f"{self.run.name}-{self.run.id}.prom")

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Read the scores that were logged before, which stay if there are no others."""
        if self.file.is_file():
            self._scores = self.file.read_text(encoding="utf-8").partition(STATE)[0]

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        self._newest = [("fedshift_rounds", {}, step), ("fedshift_evaluated_seconds", {}, when)]
        self._newest += [(*_family(name), value) for name, value in values.items()]

    def flush(self) -> None:
        found: dict[str, list[str]] = {name: [] for name in HELP}
        for family, labels, value in self._newest:
            found[family].append(self._line(family, labels, value))
        heads = {name: f"# HELP {name} {text}\n# TYPE {name} gauge\n" for name, text in HELP.items()}
        self._scores = "".join(heads[name] + "".join(lines) for name, lines in found.items() if lines)
        self._write("running")

    def finish(self, state: RunState) -> None:
        self._write(state)

    def _write(self, state: RunState) -> None:
        files.make_folder(self.file.parent)
        line = self._line("fedshift_state", {"state": state}, 1)
        files.write(self.file, f"{self._scores}{STATE}# TYPE fedshift_state gauge\n{line}", soon=True)

    def _line(self, family: str, labels: Labels, value: float) -> str:
        run = self.run
        own = {"experiment": run.experiment, "run": run.name, "id": run.id, "method": run.method, "seed": str(run.seed)}
        text = ",".join(f'{name}="{label.translate(ESCAPED)}"' for name, label in {**own, **labels}.items())
        return f"{family}{{{text}}} {_number(value)}\n"


def _family(name: str) -> tuple[str, Labels]:
    """The metric and the labels of a score, from its name; that of an environment may have slashes."""
    kind, _, rest = name.partition("/")
    if kind == "bytes":
        return "fedshift_bytes", {"direction": rest}
    if kind == "terms":
        return "fedshift_loss_term", {"term": rest}
    metric, mean, environment = rest.partition("/")
    labels = {"role": kind, "metric": metric}
    return ("fedshift_score", {**labels, "environment": environment}) if mean else ("fedshift_mean_score", labels)


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
