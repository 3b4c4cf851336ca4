"""What ``fedshift federation run`` does and prints."""

from __future__ import annotations

from pathlib import Path
from shlex import join as typed

import typer

from fedshift.cli.ending import interruptible
from fedshift.cli.federation_serve import say
from fedshift.deployment import commands
from fedshift.deployment.bundle import APP
from fedshift.deployment.serving import AUTHORITY, Member
from fedshift.deployment.serving import run as start


def run(folder: Path, dry_run: bool) -> None:
    """Start the coordinator's run, or carry it on.

    Args:
        folder: the coordinator's.
        dry_run: print the command instead.

    Raises:
        FedshiftError: `fedshift federation serve` does not run here, or the folder is wrong.
        typer.Exit: the run has failed.
    """
    if dry_run:
        member = Member.read(folder, (AUTHORITY,))
        say(f"This command would be started in '{member.folder}', with what `fedshift federation serve` writes there:")
        say(f"  {typed(commands.start_run(str(APP), member.federation))}")
        return
    with interruptible("; the run goes on. The same command shows it again, and `flwr stop` ends it."):
        code = start(folder)
    if code:
        raise typer.Exit(code)
