"""The two applications that Flower starts: ``server`` at the coordinator, ``client`` at a site, for every message."""

from __future__ import annotations

from pathlib import Path

from fedshift.deployment.agreement import Agreement
from fedshift.deployment.attend import Attendant
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.flower import FlowerLink, content, data_of, sites_by_key
from fedshift.deployment.orphan import end_with_parent
from fedshift.errors import FedshiftError, needs
from fedshift.reporting.live import LiveProgress

with needs("flower", "An application of Flower"):
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

FOLDER = "folder"  # of the member, in a SuperNode's --node-config and in the run's configuration


def carry_out(grid: Grid, context: Context) -> None:
    """Carry out the run of the coordinator's folder; on standard error, which Flower shows, it says how far it is."""
    end_with_parent()
    folder = _folder(context.run_config.get(FOLDER), "folder in app/pyproject.toml")
    link = FlowerLink(grid, sites_by_key(folder / "keys", Agreement.read(folder).federation.sites))
    with LiveProgress(1) as progress:
        coordinate(folder, link, progress)


def attend(message: Message, context: Context) -> Message:
    """Answer one request of the coordinator.

    Raises:
        FedshiftError: there is no answer, since the folder is missing or a file in it cannot be read or written.
    """
    try:
        folder = _folder(context.node_config.get(FOLDER), "--node-config")
        return Message(content(Attendant(folder).answer(data_of(message))), reply_to=message)
    except Exception as error:
        # Flower sends this text to the coordinator, and shows at the site what it was raised from.
        raise FedshiftError("The site could not answer; its SuperNode shows why.") from error


def _folder(given: object, where: str) -> Path:
    """A member's folder, from the root, so that it has the member's name.

    Raises:
        FedshiftError: none is given, or there is none.
    """
    if not isinstance(given, str) or not Path(given).is_dir():
        raise FedshiftError(f"{where} says folder = {given!r}, which is no folder of a federation's member.")
    return Path(given).resolve()


server = ServerApp()
server.main()(carry_out)
client = ClientApp()
client.query()(attend)
