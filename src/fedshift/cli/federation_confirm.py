"""What ``fedshift federation confirm`` does and prints."""

from __future__ import annotations

from pathlib import Path

from fedshift.cli.console import open_console
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.roster import ROSTER, Roster
from fedshift.errors import UnknownNameError


def confirm(site: str, folder: Path) -> None:
    """Take a site out of quarantine.

    Args:
        site: the site's name.
        folder: the coordinator's.

    Raises:
        FedshiftError: there is no such site, or it is not in quarantine.
    """
    agreement = Agreement.read(folder)
    if site not in agreement.federation.sites:
        raise UnknownNameError("site", site, agreement.federation.sites)
    why = Roster(folder / ROSTER / agreement.run).confirm(site)
    text = f"'{site}' takes part again from the next round on. It was in quarantine as it {why.partition(';')[0]}."
    open_console().print(text, highlight=False, markup=False, soft_wrap=True)
