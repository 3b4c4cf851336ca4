"""One output of a notebook's cell that is drawn in place, again and again."""

from __future__ import annotations

import sys
from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

WIDTH = 110  # columns
FORMAT = '<pre style="font-family: monospace; line-height: 1.3; white-space: pre-wrap; margin: 0">{code}</pre>'


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter's, Colab's or an editor's."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


class NotebookOutput:
    """Lines that stay and a view below them, in an output that has one display id."""

    def __init__(self) -> None:
        self.console = Console(file=StringIO(), width=WIDTH, force_terminal=True, force_jupyter=False, record=True)
        self._lines: list[str] = []
        self._handle: Any = None

    def leave(self, line: str) -> None:
        """Add a line that stays."""
        self._lines.append(line)

    def show(self, view: RenderableType) -> None:
        """Draw the lines and a view in the place of what was drawn before."""
        data = self.drawn(view)
        if self._handle is None:
            self._handle = import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def drawn(self, view: RenderableType) -> dict[str, str]:
        """What a notebook shows, by MIME type."""
        for line in self._lines:
            self.console.print(Text(line), soft_wrap=True)
        self.console.print(view)
        html = self.console.export_html(code_format=FORMAT, inline_styles=True, clear=False)
        plain = self.console.export_text()
        self.console.file = StringIO()  # which would grow
        return {"text/html": html, "text/plain": plain}
