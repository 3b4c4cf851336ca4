"""What studies found, as tables, plots and one HTML page."""

from __future__ import annotations

from base64 import b64encode
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from fedshift.files import write
from fedshift.reporting.page import render, write_page_to
from fedshift.reporting.table import Table
from fedshift.reporting.units import printable
from fedshift.runs.folder import RunFolder
from fedshift.runs.terms import shares
from fedshift.tuning.figures import FEW, as_png, history, importance, shares_of, slices
from fedshift.tuning.outcome import Outcome
from fedshift.tuning.space import in_words
from fedshift.tuning.study import Study, Trial


class Picture(NamedTuple):
    """A figure on the page: the file's name, what it shows, and the PNG."""

    name: str
    caption: str
    png: bytes

    @property
    def base64(self) -> str:
        """The PNG as text."""
        return b64encode(self.png).decode()


def tables(outcome: Outcome) -> list[Table]:
    """What was found in each study, and what the trials were spent on."""
    found, spent = [], []
    for study in outcome.studies:
        trials = study.trials[: outcome.trials]
        number = study.best(outcome.trials)
        of = [study.method, *([study.hold_out] if _held_out(outcome) else [])]
        chosen = trials[number] if number is not None else None
        found.append([*of, _percent(chosen), _percent(trials[0]), str(number + 1) if number is not None else "none"])
        count = {
            state: str(sum(trial.state == state for trial in trials)) for state in ("complete", "pruned", "failed")
        }
        repeated = str(sum(trial.repeats is not None for trial in trials))
        seeds = ", ".join(str(each.seed) for each in study.experiments)
        spent.append([*of, str(len(trials)), *count.values(), repeated, str(study.experiments[0].train.rounds), seeds])
    named = ["method", *(["held out"] if _held_out(outcome) else [])]
    metric = outcome.studies[0].metric
    return [
        Table(
            f"Validation {metric.title} in %{metric.remark}, last round",
            [*named, "best", "as it stands", "best trial"],
            found,
        ),
        Table("Budget", [*named, "trials", "complete", "pruned", "failed", "repeated", "rounds", "seeds"], spent),
    ]


def lines(outcome: Outcome) -> list[str]:
    """The best settings of each study, where it looked, and what a reader must know."""
    found = []
    for study in outcome.studies:
        number = study.best(outcome.trials)
        if number is not None:
            found.append(f"{study.label}: {settings_in_words(study.trials[number])}")
        found.append(f"  searched: {study.space}")
    repeated = any(trial.repeats is not None for study in outcome.studies for trial in study.trials[: outcome.trials])
    notes = (
        ["Trials that repeat the settings of an earlier one have its outcome, and cost nothing."] if repeated else []
    )
    return [*found, f"Chosen on {outcome.tuned.chosen_on}.", *(f"Note: {note}" for note in (*notes, *outcome.failed))]


def _held_out(outcome: Outcome) -> bool:
    return any(study.hold_out for study in outcome.studies)


def _percent(trial: Trial | None) -> str:
    """A trial's value in %, or how it ended."""
    if trial is None:
        return ""
    return f"{100 * trial.value:.1f}" if trial.value is not None else trial.state


def settings_in_words(trial: Trial) -> str:
    """A trial's settings."""
    return ", ".join(f"{key}={in_words((value,))}" for key, value in trial.settings.items()) or "as it stands"


def as_text(outcome: Outcome, width: int = 120) -> str:
    """The tables as plain text."""
    file = StringIO()
    console = Console(file=file, width=width, force_terminal=False, force_jupyter=False, color_system=None)
    for table in tables(outcome):
        console.print(table.rich())
    for line in lines(outcome):
        console.print(printable(line), markup=False, soft_wrap=True)
    return file.getvalue()


def write_page(outcome: Outcome, path: Path) -> Path:
    """Write the page, and each study's figures as PNG files into its folder; returns the page."""
    sections = []
    for study in outcome.studies:
        trials = study.trials[: outcome.trials]
        drawn = pictures(study, trials)
        for picture in drawn:
            write(study.path / picture.name, picture.png)
        sections.append((study.label, drawn, _notes(study, trials), _all(study, trials)))
    text = render(
        "tuned.html.jinja",
        title=f"Tuned settings: {outcome.studies[0].experiments[0].name}",
        tables=tables(outcome),
        lines=lines(outcome),
        sections=sections,
        toml=outcome.path.read_text(encoding="utf-8"),
    )
    return write_page_to(path, "tuned.html", text)


def pictures(study: Study, trials: list[Trial]) -> list[Picture]:
    """The figures that a study has: none of what cannot be told."""
    drawn = [Picture("history.png", f"Validation {study.metric.title} by trial", as_png(history(study, trials)))]
    if not study.space.searched or not any(trial.value is not None for trial in trials):
        return drawn
    drawn.append(
        Picture(
            "slices.png",
            f"Validation {study.metric.title} by setting (star: the best trial; the darker, the later)",
            as_png(slices(study, trials)),
        )
    )
    if shares := shares_of(study, trials):
        drawn.append(
            Picture(
                "importance.png",
                "How much each setting matters for being among the better trials (PED-ANOVA)",
                as_png(importance(shares)),
            )
        )
    return drawn


def _notes(study: Study, trials: list[Trial]) -> list[str]:
    """What a reader of the figures must know."""
    complete = sum(trial.state == "complete" for trial in trials)
    notes = []
    if len(study.space.searched) > 1 and complete < FEW:
        notes.append(f"Importance is estimated from {complete} complete trials, which is too few to mean much.")
    if not study.space.searched:
        notes.append("Nothing is searched here: every trial is the experiment as it stands.")
    return notes


def _all(study: Study, trials: list[Trial]) -> Table:
    """Every trial, with what part of the clients' loss each term made up at the end of its first seed."""
    keys = list(trials[0].settings) if trials else []
    rows = [
        [
            str(number),
            trial.state + (f" (as trial {trial.repeats + 1})" if trial.repeats is not None else ""),
            f"{100 * trial.value:.1f}" if trial.value is not None else "",
            str(trial.rounds[-1]) if trial.rounds else "",
            *(in_words((trial.settings[key],)) for key in keys),
            _shares(study, trial),
            trial.reason,
        ]
        for number, trial in enumerate(trials, 1)
    ]
    columns = ["trial", "state", "value in %", "after round", *keys, "loss terms, in % of the loss", "why it failed"]
    return Table("All trials", columns, rows)


def _shares(study: Study, trial: Trial) -> str:
    """What part of the clients' loss each term made up when a trial's first run was last scored."""
    records = RunFolder(study.path / trial.runs[0]).records() if trial.rounds else []
    return ", ".join(f"{name} {100 * share:.3g}" for name, share in shares(records[-1]).items()) if records else ""
