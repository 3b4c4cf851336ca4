"""List the files that `fedshift compare` passes through, from option to first step and from a client to the merge.

    python tools/walk.py

A file is listed when a function of it is called for the first time. A run before that imports everything, so that
modules that are only imported do not count; dunder methods do not count either.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import fedshift
from fedshift.cli.app import app

PACKAGE = Path(fedshift.__file__).parent
OPTIONS = ["compare", "--method", "fedavg", "--seed", "0", "--hold-out", "0", "--rounds", "1"]
OPTIONS += ["--set", "run.engine=sequential"]


class Walk:
    """The files whose functions are called, in the order of their first calls, on two stretches of a run."""

    def __init__(self) -> None:
        self.to_step: list[str] = []
        self.to_merge: list[str] = []
        self._stepped = self._merged = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call; for :func:`sys.setprofile`."""
        name, path = frame.f_code.co_name, Path(frame.f_code.co_filename)
        if event != "call" or self._merged or name.startswith(("<", "__")) or not path.is_relative_to(PACKAGE):
            return
        file = str(path.relative_to(PACKAGE))
        if file.startswith("methods") and name == "risk":
            self._stepped = True
            self.to_merge.clear()  # until the last step before the merge
        elif self._stepped and name == "merge":
            self._merged = True
        stretch = self.to_merge if self._stepped else self.to_step
        if file not in stretch:
            stretch.append(file)


def main() -> int:
    """Run a small comparison and print both lists; the exit status of the command."""
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        app([*OPTIONS, "--out", f"{folder}/first"], standalone_mode=False)
        sys.setprofile(walk)
        try:
            app([*OPTIONS, "--out", f"{folder}/second"], standalone_mode=False)
        finally:
            sys.setprofile(None)
    for title, files in (("from the option to the first step", walk.to_step), ("to the merge", walk.to_merge)):
        print(f"{title}: {len(files)} files in {len({file.partition('/')[0] for file in files})} folders")
        print("  " + ", ".join(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
