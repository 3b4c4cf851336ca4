"""What ``fedshift federation join`` does and prints."""

from __future__ import annotations

from pathlib import Path

from fedshift.cli.ending import interruptible
from fedshift.cli.federation_serve import say, started
from fedshift.deployment.serving import OF_SITE, Member, advice_to_root, parts_of_site
from fedshift.deployment.serving import join as start
from fedshift.deployment.supervisor import free_port


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
        for line in started(member.folder, parts_of_site(address or member.address, free_port())):
            say(line)
        return
    if advice := advice_to_root():
        say(advice)
    with interruptible("; every process is ended. The same command goes on."):
        start(folder, address, say)
