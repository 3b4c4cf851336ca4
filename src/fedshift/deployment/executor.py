"""Carries out Flower's tasks with the fedshift that is installed here. An app that Flower brings is never run.

Flower's SuperLink and SuperNode hand out tasks to whoever knows their secret, and start nothing themselves
(``--isolation process``). A site answers every message in this one process. The coordinator starts a process for each
run. What goes wrong beyond an answer ends the process, which its supervisor starts again.

    python -m fedshift.deployment.executor site FOLDER 127.0.0.1:9094 FILE-OF-THE-SECRET
    python -m fedshift.deployment.executor coordinator FOLDER 127.0.0.1:8001 FILE-OF-THE-SECRET
"""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

from fedshift.deployment.federation_toml import read_federation
from fedshift.deployment.flower import TYPE, FlowerLink, content, data_of, is_ours, sites_by_key
from fedshift.deployment.shell import AUTHORITY, KEYS
from fedshift.deployment.supervisor import with_parent
from fedshift.errors import FedshiftError, needs

with needs("flower", "A federation"):
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedshift.deployment.attend import Attendant

SECONDS_BETWEEN_ASKING = {"site": 0.3, "coordinator": 1.0}
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
FOREIGN = "The run was started with another app than fedshift's. Nothing of it was run."
UNANSWERED = "The site could not answer; its logs show why."
TASKS = {"site": TaskType.CLIENT_APP, "coordinator": TaskType.SERVER_APP}  # no others are ever asked for


def main() -> None:
    """Carry out tasks until this process is ended."""
    role, place, address, *secret = sys.argv[1:]
    folder = Path(place).resolve()
    if role == "run":
        carry_out_run(folder, address, sys.stdin.readline().strip())
        return
    task = partial(start_run, folder, address)
    if role == "site":
        from fedshift.deployment.attend import Attendant  # before a message waits for it

        task = partial(answer_message, Attendant(folder), address)
    carry_out_tasks(role, folder, address, Path(*secret).read_bytes(), task)


def carry_out_tasks(role: str, folder: Path, address: str, secret: bytes, task: Callable[[str], None]) -> None:
    """Ask for tasks, one after the other, and carry each out.

    Args:
        role: "site" or "coordinator", of whose kind tasks are.
        folder: the member's.
        address: of the SuperNode or the SuperLink, which has TLS.
        secret: what it was started with.
        task: takes the token of one task.
    """
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
    client = _client(folder, address, signed, tls=role == "coordinator")
    while True:
        acquired = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TASKS[role]]))
        if acquired.HasField("task") and acquired.token and acquired.task.type == TASKS[role]:
            task(acquired.token)
        else:
            time.sleep(SECONDS_BETWEEN_ASKING[role])


# At a site ----------------------------------------------------------------------------------------


def answer_message(attendant: Attendant, address: str, token: str) -> None:
    """Answer the message of a task; whatever is wrong, the coordinator gets a fixed text."""
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    client = _client(attendant.folder, address, RuntimeTokenHttpInterceptor(token), tls=False)
    try:
        with _heartbeats(client):
            message, context, _, app = pull_task_input(client)
            try:
                reply, status = attend(attendant, message, app.content), SubStatus.COMPLETED
            except FedshiftError as error:
                traceback.print_exception(error)
                failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
                reply, status = Message(failed, reply_to=message), SubStatus.FAILED
            push_message(client, reply, context)
            push_task_output(client, context, status, "")
    finally:
        client.close()


def attend(attendant: Attendant, message: Message, app: bytes) -> Message:
    """Answer one request of the coordinator.

    Args:
        attendant: the site.
        message: the request.
        app: the app bundle that the run was started with.

    Raises:
        FedshiftError: there is no answer, since the bundle is another app's (which the site's log says), the message
            is no request, or a file of the folder cannot be read or written. The text may leave the site.
    """
    try:
        if not is_ours(app):
            attendant.log("refused", FOREIGN)
        elif message.metadata.message_type == TYPE:
            return Message(content(attendant.answer(data_of(message))), reply_to=message)
    except Exception as error:
        raise FedshiftError(UNANSWERED) from error
    raise FedshiftError(UNANSWERED)


# At the coordinator -------------------------------------------------------------------------------


def carry_out(folder: Path, grid: Grid, app: bytes) -> None:
    """Carry out the run of a coordinator's folder; standard error shows how far it is.

    Args:
        folder: the coordinator's.
        grid: Flower's way to the sites.
        app: the app bundle that the run was started with.

    Raises:
        FedshiftError: the bundle is another app's, or the run cannot go on.
    """
    from fedshift.deployment.coordinate import coordinate
    from fedshift.reporting.live import LiveProgress

    if not is_ours(app):
        raise FedshiftError(f"{FOREIGN} Start runs with `fedshift federation run`.")
    link = FlowerLink(grid, sites_by_key(folder / KEYS, read_federation(folder).sites))
    with LiveProgress(1) as progress:
        coordinate(folder, link, progress)


def start_run(folder: Path, address: str, token: str) -> None:
    command = with_parent(["-m", "fedshift.deployment.executor", "run", str(folder), address])
    subprocess.run(command, input=f"{token}\n".encode(), check=False)  # Flower has been told what came of it


def carry_out_run(folder: Path, address: str, token: str) -> None:
    """Carry out the run of a task in this process; what it prints is shown by ``flwr log``."""
    from flwr.common.serde import context_from_proto, fab_from_proto, run_from_proto
    from flwr.supercore.logger import flush_logs, mirror_output_to_queue, start_log_uploader, stop_log_uploader
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    printed: Queue[str | None] = Queue()
    mirror_output_to_queue(printed)
    authority = (folder / AUTHORITY).read_bytes()
    grid = HttpGrid(runtime_api_address=address, insecure=False, root_certificates=authority, token=token)
    client = grid._runtime_client  # of which Flower's own program takes the task's input and output, too
    with _heartbeats(client):
        task = client.PullTaskInput(PullTaskInputRequest())
        context, run = context_from_proto(task.context), run_from_proto(task.run)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run.run_id, context.node_id
        grid.set_run(run)
        uploader = start_log_uploader(printed, 0, run.run_id, client)
        status, why = SubStatus.COMPLETED, ""
        try:
            carry_out(folder, grid, fab_from_proto(task.fab).content)
        except FedshiftError as error:
            print(f"Error: {error}", file=sys.stderr)  # noqa: T201  # for whoever started the run
            status, why = SubStatus.FAILED, str(error)
        except Exception as error:
            traceback.print_exception(error)
            status, why = SubStatus.FAILED, f"{type(error).__name__}: {error}"
        flush_logs(printed)
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=why))
        stop_log_uploader(printed, uploader)
    grid.close()


# Flower's runtime API -----------------------------------------------------------------------------


def _client(folder: Path, address: str, who: Any, tls: bool) -> RuntimeHttpClient:
    """A connection to where tasks are handed out.

    Args:
        folder: the member's.
        address: host:port.
        who: adds to a request what shows who asks.
        tls: whether it is encrypted, as the SuperLink's is; a SuperNode's never leaves its machine.
    """
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=not tls,
        root_certificates=(folder / AUTHORITY).read_bytes() if tls else None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), who],
        retry_invoker=make_simple_http_retry_invoker(),
    )


@contextmanager
def _heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell Flower that a task is under way; where Flower has given it up, this process is interrupted."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()


if __name__ == "__main__":
    main()
