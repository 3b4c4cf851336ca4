"""Sphinx extension that links names in docstrings to the API page, whatever module a docstring is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", keep_colon, priority=400)  # before napoleon
    app.connect("missing-reference", link_by_last_name)
    return {"parallel_read_safe": True}


def keep_colon(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Replace the colon in the first line of a property or attribute, which napoleon takes for a type."""
    if what in {"property", "attribute"} and lines:
        lines[0] = lines[0].replace(": ", " -- ", 1)


def link_by_last_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Resolve ``fedshift.runs.run.Run`` or ``Run`` to ``fedshift.Run`` if only one documented name ends so."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rpartition(".")[2]
    found = env.domains.python_domain.find_obj(env, "", "", last, None, 1)
    if len(found) != 1:
        return None
    name, target = found[0]
    return make_refnode(app.builder, node["refdoc"], target.docname, target.node_id, content, name)
