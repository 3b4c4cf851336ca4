"""Execute the notebooks in docs/notebooks; they are committed without outputs.

    python tools/notebooks.py            # execute all; exit with 1 at the first error
    python tools/notebooks.py OUT        # also write them with their outputs into the folder OUT

Each notebook runs in an empty folder; a warning in its output is an error. Needs the extra docs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
LIMIT = 300  # seconds of a cell


def execute(path: Path) -> nbformat.NotebookNode:
    """A notebook with its outputs.

    Raises:
        CellExecutionError: a cell raised an error.
        RuntimeError: a cell gave a warning.
    """
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=LIMIT, resources={"metadata": {"path": folder}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if warned := [text for output in outputs if "Warning" in (text := str(output.get("text", "")))]:
        raise RuntimeError(f"{path.name}: {warned[0]}")
    return notebook


def main(folder: str = "") -> int | str:
    """Execute all; returns an exit code, or which notebooks have outputs in the repository."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    if full := [path.name for path in paths if any(cell.get("outputs") for cell in nbformat.read(path, 4).cells)]:
        return f"Remove the outputs of {', '.join(full)}: outputs are not committed."
    for path in paths:
        started = time.monotonic()
        notebook = execute(path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, Path(folder, path.name))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
