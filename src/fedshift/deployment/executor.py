"""Executes Flower's tasks with the installed fedshift. An app that Flower delivers is never executed.

Flower's SuperLink and SuperNode offer tasks to any process that knows their secret, and start no process themselves
(``--isolation process``). A site answers every message in this one process; the coordinator starts a process for each
run. Any error other than an answer ends the process, and its supervisor restarts it.

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
TASKS = {"site": TaskType.CLIENT_APP, "coordinator": TaskType.SERVER_APP}  # no other kinds are requested


def main() -> None:
    """Execute tasks until this process is ended."""
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
    """Request tasks and execute them one after another.

    Args:
        role: "site" or "coordinator", the kind of tasks.
        folder: the member's folder.
        address: of the SuperNode or the SuperLink, which has TLS.
        secret: the secret that it was started with.
        task: executes the task of a token.
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
    """Answer the message of a task; any error becomes a fixed text."""
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
    """Run the experiment of a coordinator's folder, with progress on standard error.

    Args:
        folder: the coordinator's folder.
        grid: Flower's connection to the sites.
        app: the app bundle that the run was started with.
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
    subprocess.run(command, input=f"{token}\n".encode(), check=False)  # Flower has the result


def carry_out_run(folder: Path, address: str, token: str) -> None:
    """Execute the run of a task in this process; ``flwr log`` shows its output."""
    from flwr.common.serde import context_from_proto, fab_from_proto, run_from_proto
    from flwr.supercore.logger import flush_logs, mirror_output_to_queue, start_log_uploader, stop_log_uploader
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    printed: Queue[str | None] = Queue()
    mirror_output_to_queue(printed)
    authority = (folder / AUTHORITY).read_bytes()
    grid = HttpGrid(runtime_api_address=address, insecure=False, root_certificates=authority, token=token)
    client = grid._runtime_client  # Flower's program reads the task's input and writes its output in the same way
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
            print(f"Error: {error}", file=sys.stderr)  # noqa: T201  # for the user who started the run
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
    """A connection to the process that offers tasks.

    Args:
        folder: the member's folder.
        address: host:port.
        who: adds credentials to a request.
        tls: whether it is encrypted, as the SuperLink's is; a SuperNode's stays on its machine.
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
    """Send Flower heartbeats of a task; if Flower has dropped the task, interrupt this process."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()


if __name__ == "__main__":
    main()
