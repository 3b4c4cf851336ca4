"""Sphinx configuration of the documentation site."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx_gallery.sorting import FileNameSortKey

import fedshift

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

project = "fedshift"
author = "the fedshift developers"
copyright = "2026, the fedshift developers"
version = release = fedshift.__version__

extensions = [
    "api_links",
    "reference_pages",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # equations need no network
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_ext", "gallery/*.ipynb"]
templates_path: list[str] = []
html_static_path = ["_static"]
html_css_files = ["fedshift.css"]
html_theme = "pydata_sphinx_theme"
html_title = "fedshift"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "fedshift"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
suppress_warnings = ["config.cache"]

# Markdown
myst_enable_extensions = ["colon_fence", "dollarmath", "attrs_block"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_in_temp = True

# API reference
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autosummary_generate = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True

# Gallery: every script runs in the build, and a failing one fails it.
sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": FileNameSortKey,
    "abort_on_example_error": True,
    "parallel": 2,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}
