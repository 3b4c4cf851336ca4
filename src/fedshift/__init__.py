"""Federated learning when clients' features differ.

``__init__.pyi`` lists the public names; each is imported on first use, so that the command line starts quickly.
Method pages import :mod:`fedshift.page` instead.
"""

from __future__ import annotations

import os

import lazy_loader

__version__ = "0.1.0"

# Idle threads sleep instead of spinning: on a busy machine spinning makes two threads ten times
# slower. OpenMP reads the variable once, when torch is loaded; a value that the user set is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
