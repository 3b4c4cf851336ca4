"""Where this folder is on Python's path, SuperNodes wait less and import less, for which Flower has no settings.

A SuperNode looks for messages a fraction of a second after its last look, not three, and is missed 30 seconds after its
last heartbeat, not 60. The process that answers a message is a fork of one that has imported PyTorch once, because the
import takes most of its time. That Flower starts it by its command is for test_demo.py to show, which leaves Flower as
it is. A site whose folder has a file ``held`` answers nothing more when it has sent as many messages as the file says.
"""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

HELD, SENT = Path("held"), Path("sent.jsonl")
PAUSES = {3: 0.3, 0.5: 0.2}  # seconds between a SuperNode's looks for messages, and for answers


def answer_one(command: Sequence[str]) -> None:
    """Do what the program `flwr-clientapp` does."""
    from flwr.supernode.cli import flwr_clientapp

    from fedshift.deployment import apps

    class Attendant(apps.Attendant):
        def answer(self, data: bytes) -> bytes:
            while held():
                time.sleep(0.1)
            return super().answer(data)

    apps.Attendant = Attendant
    sys.argv = [*command]
    flwr_clientapp()


def held() -> bool:
    """Whether the site of this process's folder answers nothing more."""
    try:
        most = int(HELD.read_text())
    except FileNotFoundError:
        return False
    return SENT.exists() and SENT.read_bytes().count(b"\n") >= most


def start(command: Sequence[str], **options: object) -> object:
    """Start a program of Flower; `flwr-clientapp` without an interpreter of its own."""
    if command[0] != "flwr-clientapp":
        return subprocess.Popen(command, **options)

    import fedshift.deployment.apps  # noqa: F401  # so that forks need not

    forked = multiprocessing.get_context("fork").Process(target=answer_one, args=(command,))
    forked.start()
    return forked


match Path(sys.argv[0]).name:
    case "flower-supernode":
        from flwr.common import constant

        constant.HEARTBEAT_DEFAULT_INTERVAL = 15
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(PAUSES.get(seconds, seconds))
    case "flower-superexec":
        from flwr.supercore.superexec.executor import subprocess_executor

        subprocess_executor.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
