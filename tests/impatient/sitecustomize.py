"""Where this folder is on Python's path, members wait less than Flower does, for which it has no settings.

A SuperNode looks for messages a fraction of a second after its last look, not three, and is missed 30 seconds after its
last heartbeat, not 60. A site whose folder has a file ``held`` answers nothing more when it has sent as many messages
as the file states.
"""

import sys
import time
from pathlib import Path

HELD, SENT = Path("held"), Path("sent.jsonl")
WAITING = Path("waiting")  # exists as soon as an executor has a message that it does not answer
PAUSES = {3: 0.3, 0.5: 0.2}  # seconds between a SuperNode's looks for messages, and for answers


def held() -> bool:
    """Whether the site of this process's folder answers nothing more."""
    try:
        most = int(HELD.read_text())
    except FileNotFoundError:
        return False
    return SENT.exists() and SENT.read_bytes().count(b"\n") >= most


def wait_where_held() -> None:
    """Let the site of this process answer only what it may."""
    from fedshift.deployment import attend

    class Attendant(attend.Attendant):
        def answer(self, data: bytes) -> bytes:
            while held():
                WAITING.touch()
                time.sleep(0.1)
            return super().answer(data)

    attend.Attendant = Attendant


def wait_less() -> None:
    """Change what Flower waits."""
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = 15
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(PAUSES.get(seconds, seconds))


if "flower-supernode" in sys.orig_argv:
    wait_less()
elif "fedshift.deployment.executor" in sys.orig_argv and "site" in sys.orig_argv:
    wait_where_held()
