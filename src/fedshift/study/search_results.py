"""What studies found: the best settings and all trials, as tables and one HTML page."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from fedshift.files import write
from fedshift.reporting.table import Table
from fedshift.reporting.tabled import Tabled
from fedshift.runs.run import Run
from fedshift.runs.selection import shares
from fedshift.study.search import Study, Trial
from fedshift.study.space import in_words
from fedshift.study.tuned import Found, TunedSettings


@dataclass(frozen=True, repr=False)
class Tuning(Tabled):
    """What studies found; prints as tables.

    Attributes:
        path: the TOML file of the best settings, which ``compare`` takes.
        tuned: its content.
        studies: the studies that found something, with all their trials.
        found: what each of them found.
        failed: a message for each study without a complete trial.
    """

    path: Path
    tuned: TunedSettings
    studies: tuple[Study, ...]
    found: tuple[Found, ...]
    failed: tuple[str, ...] = ()

    def tables(self) -> list[Table]:
        """The best value of each study, and how its trials ended."""
        held_out = any(study.hold_out for study in self.studies)
        values, spent = [], []
        for study, found in zip(self.studies, self.found, strict=True):
            case = [study.method, study.hold_out] if held_out else [study.method]
            values.append([*case, f"{100 * found.value:.1f}", _percent(study.trials[0]), str(found.trial + 1)])
            counts = [found.trials, found.complete, found.pruned, found.failed, found.repeated]
            rounds, seeds = str(study.experiments[0].train.rounds), ", ".join(map(str, found.seeds))
            spent.append([*case, *map(str, counts), rounds, seeds])
        named, metric = ["method", "held out"][: 1 + held_out], self.studies[0].metric
        counted = ["trials", "complete", "pruned", "failed", "repeated"]
        title = f"Validation {metric.title} in %{metric.remark}, last round"
        return [
            Table(title, [*named, "best", "as it stands", "best trial"], values),
            Table("Budget", [*named, *counted, "rounds", "seeds"], spent),
        ]

    def notes(self) -> list[str]:
        """The best settings of each study, where it searched, and on what they were chosen."""
        words = [
            f"{study.label}: {settings_in_words(study.trials[found.trial])}; searched {study.space}."
            for study, found in zip(self.studies, self.found, strict=True)
        ]
        if any(found.repeated for found in self.found):
            words.append("Trials that repeat the settings of an earlier one have its outcome, and cost nothing.")
        return [*words, f"Chosen on {self.tuned.chosen_on}.", *self.failed]

    def report(self, path: str | Path | None = None) -> Path:
        """Write an HTML page with tables and plots, and the plots as PNG files into the studies' folders.

        Args:
            path: the page; None: beside the TOML file.

        Returns:
            The page.

        Raises:
            FedshiftError: a file cannot be written.
        """
        from fedshift.reporting.page import render, write_page_to
        from fedshift.study.figures import draw_search

        sections = []
        for study, found in zip(self.studies, self.found, strict=True):
            drawn = draw_search(study, found.trials)
            for name, png in drawn.items():
                write(study.path / name, png)
            pictures = {name.removesuffix(".png"): b64encode(png).decode() for name, png in drawn.items()}
            sections.append((study.label, pictures, _all_trials(study, found.trials)))
        text = render(
            "tuned.html.jinja",
            title=f"Tuned settings: {self.studies[0].experiments[0].name}",
            tables=self.tables(),
            notes=self.notes(),
            sections=sections,
            toml=self.path.read_text(encoding="utf-8"),
        )
        return write_page_to(Path(path) if path is not None else self.path.with_suffix(".html"), "tuned.html", text)


def _percent(trial: Trial) -> str:
    """A trial's value in %, or how it ended."""
    return f"{100 * trial.value:.1f}" if trial.value is not None else trial.state


def settings_in_words(trial: Trial) -> str:
    """A trial's settings."""
    return ", ".join(f"{key}={in_words((value,))}" for key, value in trial.settings.items()) or "as it stands"


def _all_trials(study: Study, trials: int) -> Table:
    """Every trial, with what part of the clients' loss each term made up at the end of its first seed."""
    keys = [*study.space.searched]
    rows = [
        [
            str(number),
            trial.state + (f" (as trial {trial.repeats + 1})" if trial.repeats is not None else ""),
            f"{100 * trial.value:.1f}" if trial.value is not None else "",
            str(trial.curve[-1][0]) if trial.curve else "",
            *(in_words((trial.settings[key],)) for key in keys),
            _shares(study, trial),
            trial.reason,
        ]
        for number, trial in enumerate(study.trials[:trials], 1)
    ]
    columns = ["trial", "state", "value in %", "after round", *keys, "loss terms, in % of the loss", "why it failed"]
    return Table("All trials", columns, rows)


def _shares(study: Study, trial: Trial) -> str:
    records = Run(study.path / trial.runs[0]).records if trial.curve else []
    return ", ".join(f"{name} {100 * share:.3g}" for name, share in shares(records[-1]).items()) if records else ""
