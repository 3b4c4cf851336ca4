"""What members type while a federation is at work: ``serve``, ``join``, ``run`` and ``confirm``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import join as typed

import typer

from fedshift.cli.console import interruptible, open_console
from fedshift.deployment import serving, shell
from fedshift.deployment.flower import APP
from fedshift.deployment.serving import AUTHORITY, OF_COORDINATOR, OF_SITE, Member
from fedshift.deployment.supervisor import ChildProcess, free_port


def serve(folder: Path, port: int | None, dry_run: bool) -> None:
    """Start the coordinator's processes until they are interrupted.

    Args:
        folder: the coordinator's.
        port: where the SuperLink listens on this machine; None: at the port after the public one.
        dry_run: print the commands instead.

    Raises:
        FedshiftError: the folder lacks something, or a port is taken.
    """
    if dry_run:
        member = Member.read(folder, OF_COORDINATOR)
        _print_parts(member, serving.parts_of_coordinator(serving.inner_port(member.address, port)))
    else:
        _go_on(lambda: serving.serve(folder, port, say))


def join(folder: Path, address: str | None, dry_run: bool) -> None:
    """Start a site's processes until they are interrupted.

    Args:
        folder: the site's.
        address: host and port of the coordinator; None: as federation.toml says.
        dry_run: print the commands instead.

    Raises:
        FedshiftError: the folder lacks something.
    """
    if dry_run:
        member = Member.read(folder, OF_SITE)
        _print_parts(member, serving.parts_of_site(address or member.address, free_port()))
    else:
        _go_on(lambda: serving.join(folder, address, say))


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
        say(f"  {typed(shell.start_run(str(APP), member.federation))}")
        return
    with interruptible("; the run goes on. The same command shows it again, and `flwr stop` ends it."):
        code = serving.run(folder)
    if code:
        raise typer.Exit(code)


def confirm(site: str, folder: Path) -> None:
    """Take a site out of quarantine.

    Args:
        site: the site's name.
        folder: the coordinator's.

    Raises:
        FedshiftError: there is no such site, or it is not in quarantine.
    """
    from fedshift.deployment.members import confirm

    why = confirm(folder, site)
    say(f"'{site}' takes part again from the next round on. It was in quarantine as it {why.partition(';')[0]}.")


def _go_on(start: Callable[[], None]) -> None:
    if advice := serving.advice_to_root():
        say(advice)
    with interruptible("; every process is ended. The same command goes on."):
        start()


def _print_parts(member: Member, parts: list[ChildProcess]) -> None:
    """What would be started in a member's folder."""
    say(f"These commands would be started in '{member.folder}', and started again when one ends:")
    for part in parts:
        say(f"  {typed(part.command if part.command[0] != '-m' else ['python', *part.command])}")


def say(line: str) -> None:
    """Print a line."""
    open_console().print(line, highlight=False, markup=False, soft_wrap=True)
