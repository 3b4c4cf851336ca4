"""Folders of a search, whose runs are trials and no results."""

from __future__ import annotations

from pathlib import Path

from fedshift.errors import FedshiftError

STUDY = "study.journal"  # of a folder whose runs are trials of a search, and no results of their own


def study_of(path: Path) -> Path | None:
    """The folder of a study that a path is, or lies directly in as a trial's run does; None if there is none."""
    here = path.resolve()
    return next((folder for folder in (here, here.parent) if (folder / STUDY).is_file()), None)


def check_no_study(path: Path) -> None:
    """Raise an error if a path is a study's or a trial's, which are no results and have no scores to be looked at."""
    if study := study_of(path):
        raise FedshiftError(
            f"'{path}' holds trials of a study, some of which were given up for good, and whose test scores nobody "
            f"looks at while settings are chosen. What it found is in '{study.parent / 'tuned-*.html'}', which "
            f"`fedshift tune` writes; {carried_on_by(path)} carries it on."
        )


def carried_on_by(path: Path) -> str:
    """What carries on the runs at or below a path."""
    return "the command that began the search" if study_of(path) else f"`fedshift resume {path}`"
