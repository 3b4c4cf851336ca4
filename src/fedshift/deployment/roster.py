"""What a coordinator keeps of each site between messages: the last reply, and whether the site is in quarantine.

A site's key says who it is. Who has stolen the key cannot say what the site replied before, so a site that fails to
prove it is in quarantine: it is sent nothing and nothing of it is merged, until the coordinator's operator confirms it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedshift import files
from fedshift.errors import DamagedError, FedshiftError
from fedshift.manifest import checked, parsed
from fedshift.runs.schema import File

ROSTER = "roster"  # the folder of a coordinator, with a folder for each run


class Entry(File):
    """What is kept of a site.

    Attributes:
        last: the digest of its last reply; empty: the site has still to send its first, or is confirmed.
        quarantine: why it is in quarantine; empty if it is not.
    """

    last: str = ""
    quarantine: str = ""


@dataclass(frozen=True)
class Roster:
    """The sites of a run; every change is on the disk at once, and another process may make one.

    Attributes:
        folder: of the files, one for each site.
    """

    folder: Path

    def entry(self, site: str) -> Entry:
        """What is kept of a site.

        Raises:
            DamagedError: its file cannot be read.
        """
        path = self._path(site)
        try:
            return checked(parsed(path.read_bytes()), Entry) if path.exists() else Entry()
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"'{path}' is not what was written ({error}). Remove it if you know that '{site}' is who it says: its "
                "next reply is then taken without a proof."
            ) from error

    def replied(self, site: str, digest: str) -> None:
        """Keep the digest of a site's last reply."""
        self._write(site, Entry(last=digest))

    def quarantine(self, site: str, why: str) -> None:
        """Put a site in quarantine."""
        self._write(site, Entry(last=self.entry(site).last, quarantine=why))

    def confirm(self, site: str) -> str:
        """Take a site out of quarantine: its next reply is taken without a proof.

        Returns:
            Why it was there.

        Raises:
            FedshiftError: it is not in quarantine.
        """
        if not (why := self.entry(site).quarantine):
            raise FedshiftError(f"'{site}' is not in quarantine, so there is nothing to confirm.")
        self._write(site, Entry())
        return why

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.json"

    def _write(self, site: str, entry: Entry) -> None:
        files.make_folder(self.folder)
        files.write(self._path(site), entry.model_dump_json(), private=True)
