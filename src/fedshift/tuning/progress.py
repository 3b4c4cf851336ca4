"""What a display hears of trials: not how they do on the test, which nobody should see while settings are chosen."""

from __future__ import annotations

from fedshift.runs.progress import Outlook, Progress, RunListeners, RunProgress
from fedshift.runs.records import Record


class TrialProgress(Progress):
    """Passes everything on but scores of other roles than the one that settings are chosen on."""

    def __init__(self, progress: Progress, role: str) -> None:
        self._progress, self._role = progress, role

    def embedded(self, network: str, done: int, total: int) -> None:
        """Pass it on."""
        self._progress.embedded(network, done, total)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._progress.note(text)

    def begin(self, outlook: Outlook) -> RunProgress:
        """Pass it on, and what is heard of the run."""
        return _Run(self._progress.begin(outlook), self._role)

    def reused(self, name: str) -> None:
        """Pass it on."""
        self._progress.reused(name)


class _Run(RunListeners):
    """A run of a trial."""

    def __init__(self, run: RunProgress, role: str) -> None:
        super().__init__(run)
        self._role = role

    def evaluated(self, record: Record) -> None:
        """Pass on scores of the role."""
        shown = [row for row in record["environments"] if row["role"] == self._role]
        super().evaluated({**record, "environments": shown})
