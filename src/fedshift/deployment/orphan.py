"""The end of a process with the one that started it, however that ends.

    python -m fedshift.deployment.orphan PARENT flower-supernode --superlink ...
    python -m fedshift.deployment.orphan PARENT -m fedshift.deployment.executor site ...

carries out an installed command, or a module, in this process, which ends when the process PARENT has ended.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from importlib.metadata import entry_points

SECONDS_BETWEEN_LOOKS = 0.5
EXIT_CODE = 1


def with_parent(command: list[str]) -> list[str]:
    """A command that ends with this process.

    Args:
        command: an installed command with its arguments, or ``-m``, a module and its arguments.
    """
    # -P: nothing is imported from the folder that it works in, which is a member's.
    return [sys.executable, "-P", "-m", "fedshift.deployment.orphan", str(os.getpid()), *command]


def end_with(parent: int) -> None:
    """From now on, end this process soon after its parent has ended, or now if it has.

    Args:
        parent: the parent's process id.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(EXIT_CODE)  # as a kill, after which a run goes on from its last checkpoint


def main() -> None:
    """Carry the command out."""
    parent, *sys.argv = sys.argv[1:]
    end_with(int(parent))
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        (command,) = entry_points(group="console_scripts", name=sys.argv[0])
        sys.exit(command.load()())


if __name__ == "__main__":
    main()
