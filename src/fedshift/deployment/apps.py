"""What a member does in a run of Flower: the coordinator carries it out, a site answers messages."""

from __future__ import annotations

from pathlib import Path

from fedshift.deployment.agreement import Agreement
from fedshift.deployment.attend import Attendant
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.flower import TYPE, FlowerLink, content, data_of, is_ours, sites_by_key
from fedshift.errors import FedshiftError, needs
from fedshift.reporting.live import LiveProgress

with needs("flower", "A federation"):
    from flwr.app import Message
    from flwr.serverapp import Grid

FOREIGN = "The run was started with another app than fedshift's. Nothing of it was run."


def carry_out(folder: Path, grid: Grid, app: bytes) -> None:
    """Carry out the run of a coordinator's folder; standard error shows how far it is.

    Args:
        folder: the coordinator's.
        grid: Flower's way to the sites.
        app: the app bundle that the run was started with.

    Raises:
        FedshiftError: the bundle is another app's, or the run cannot go on.
    """
    if not is_ours(app):
        raise FedshiftError(f"{FOREIGN} Start runs with `fedshift federation run`.")
    link = FlowerLink(grid, sites_by_key(folder / "keys", Agreement.read(folder).federation.sites))
    with LiveProgress(1) as progress:
        coordinate(folder, link, progress)


def attend(folder: Path, message: Message, app: bytes) -> Message:
    """Answer one request of the coordinator.

    Args:
        folder: the site's.
        message: the request.
        app: the app bundle that the run was started with.

    Raises:
        FedshiftError: there is no answer, since the bundle is another app's (which the site's log says), the message
            is no request, or a file of the folder cannot be read or written. The text may leave the site.
    """
    try:
        return Message(content(_answer(Attendant(folder), message, app)), reply_to=message)
    except Exception as error:
        raise FedshiftError("The site could not answer; its logs show why.") from error


def _answer(attendant: Attendant, message: Message, app: bytes) -> bytes:
    if not is_ours(app):
        attendant.log("refused", FOREIGN)
        raise FedshiftError(FOREIGN)
    if message.metadata.message_type != TYPE:
        raise FedshiftError(f"A message of type '{message.metadata.message_type}' is no request.")
    return attendant.answer(data_of(message))
