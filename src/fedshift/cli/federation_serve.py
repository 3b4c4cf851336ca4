"""What ``fedshift federation serve`` does and prints."""

from __future__ import annotations

from pathlib import Path
from shlex import join as typed

from fedshift.cli.console import open_console
from fedshift.cli.ending import interruptible
from fedshift.deployment.serving import OF_COORDINATOR, Member, advice_to_root, inner_port, parts_of_coordinator
from fedshift.deployment.serving import serve as start
from fedshift.deployment.supervisor import Part


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
        for line in started(member.folder, parts_of_coordinator(inner_port(member.address, port))):
            say(line)
        return
    if advice := advice_to_root():
        say(advice)
    with interruptible("; every process is ended. The same command goes on."):
        start(folder, port, say)


def started(folder: Path, parts: list[Part]) -> list[str]:
    """The lines of a dry run: what would be started in a member's folder."""
    lines = [f"  {typed(part.command if part.command[0] != '-m' else ['python', *part.command])}" for part in parts]
    return [f"These commands would be started in '{folder}', and started again when one ends:", *lines]


def say(line: str) -> None:
    """Print a line."""
    open_console().print(line, highlight=False, markup=False, soft_wrap=True)
