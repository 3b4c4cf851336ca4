"""Federated learning when clients' features differ.

The stub beside this file lists the public names. Each is imported when it is first used, so that the command line
starts quickly. What a method's page needs is in :mod:`fedshift.page`.
"""

from __future__ import annotations

import os

import lazy_loader

__version__ = "0.1.0"

# Threads that wait for work sleep instead of spinning: beside another busy process spinning makes two threads ten times
# slower. It stands here because OpenMP reads it once, when torch is loaded; a user's own value is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
