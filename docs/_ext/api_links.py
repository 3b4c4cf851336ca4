"""Sphinx extension for the API page: links between names of any module, and readable types."""

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
    app.connect("object-description-transform", without_limits, priority=400)  # before the types are added
    app.connect("missing-reference", link_by_last_name)
    return {"parallel_read_safe": True}


def keep_colon(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Replace the colon in the first line of a property or attribute, which napoleon takes for a type."""
    if what in {"property", "attribute"} and lines:
        lines[0] = lines[0].replace(": ", " -- ", 1)


def without_limits(app: Sphinx, domain: str, kind: str, content: nodes.Element) -> None:
    """Forget the annotated types of a Spec's fields, which the settings' page lists with their limits."""
    signature = content.parent[0] if content.parent else None
    if domain == "py" and kind == "class" and isinstance(signature, nodes.Element):
        name = ".".join(filter(None, (signature.get("module"), signature.get("fullname"))))
        annotations = app.env.current_document.autodoc_annotations
        if any("Annotated[" in text for text in annotations.get(name, {}).values()):
            del annotations[name]


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
