"""HTML pages, from the templates here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fedshift.errors import FedshiftError
from fedshift.files import make_folder, write
from fedshift.reporting.units import bytes_text, printable


def render(template: str, **values: Any) -> str:
    """A page of the templates here."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedshift", "reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_safe,
    )
    environment.filters["bytes"] = bytes_text
    return environment.get_template(template).render(values)


def _safe(value: Any) -> Any:
    """A text without what no page may hold, such as control characters; line feeds stay."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(printable(line) for line in value.split("\n"))


def write_page_to(path: Path, name: str, text: str) -> Path:
    """Write a page to a file, or to one of this name in a folder, and return its path.

    Raises:
        FedshiftError: it cannot be written.
    """
    try:
        path = path / name if path.is_dir() else path
        make_folder(path.parent)
        write(path, text)
    except (FedshiftError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        in_a_file = isinstance(cause, FileExistsError | NotADirectoryError)
        reason = "its folder would be a file" if in_a_file else getattr(cause, "strerror", None) or error
        raise FedshiftError(
            f"The report cannot be written to '{path}': {reason}. Write it elsewhere: `fedshift report RUNS --to FILE`."
        ) from error
    return path
