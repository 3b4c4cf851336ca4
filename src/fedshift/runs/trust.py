"""Which plugins have run on this machine: a run folder from elsewhere may hold Python that nobody here has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedshift.content import digest, ran_here, remember_code
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment


class UntrustedError(FedshiftError):
    """A run folder's plugin never ran on this machine."""


def remember_plugins(plugins: Iterable[str]) -> None:
    """Remember, by their digests, plugins that a user named."""
    for path in plugins:
        remember_code(path)


def check_plugins(plugins: Mapping[str, str], folder: Path, trust: bool) -> None:
    """Raise an error before a plugin is imported that a run folder names and nobody here has used.

    Args:
        plugins: their digests when the run began, by path.
        folder: the run's, for the message.
        trust: whether the user has said that they may be imported.

    Raises:
        UntrustedError: one has never run here.
        FedshiftError: one is missing, or is not what it was.
    """
    for path, content in plugins.items():
        now = digest(path)
        if now != content:
            state = "is not what it was" if now else "is missing"
            fix = "Restore it" if now or not folder.is_dir() else "Restore it, put a copy into that folder"
            raise FedshiftError(
                f"The plugin '{path}' of the run '{folder}' {state} (then {content[:12]}, now {now[:12] or 'none'}). "
                f"{fix}, or start a new run."
            )
        if not trust and not ran_here(path):
            raise UntrustedError(
                f"The run '{folder}' imports the plugin '{path}' (digest {content[:12]}), which never ran on this "
                "machine. A plugin can do whatever you can: read it, and if you trust it, add --trust "
                "(trust=True in Python)."
            )
    if trust:
        remember_plugins(plugins)


def check_code(experiment: Experiment, plugins: Mapping[str, str], folder: Path) -> None:
    """Raise an error if a setting names code that :func:`check_plugins` is not asked about; none of it has run yet.

    Args:
        experiment: as the run's folder has it.
        plugins: digests of its code, by path, as the run's folder has them.
        folder: the run's, for the message.

    Raises:
        FedshiftError: a file has no digest.
    """
    for path in experiment.code:
        if path not in plugins:
            raise FedshiftError(
                f"The experiment of the run '{folder}' names the code '{path}', but not its digest, so it was changed "
                "since it was written. Restore it, or start a new run."
            )


def check_digests(table: Mapping[str, Any], plugins: Mapping[str, str], folder: Path) -> None:
    """Raise an error if an experiment imports a plugin that :func:`check_plugins` is not asked about.

    Args:
        table: the experiment.
        plugins: digests of its plugins, by path, as the run's folder has them.
        folder: the run's, for the message.

    Raises:
        FedshiftError: a plugin has no digest.
    """
    named = table.get("plugins", ())
    for path in named if isinstance(named, list | tuple) else ():
        if isinstance(path, str) and path not in plugins:
            raise FedshiftError(
                f"The experiment of the run '{folder}' names the plugin '{path}', but not its digest, so it was "
                "changed since it was written. Restore it, or start a new run."
            )
