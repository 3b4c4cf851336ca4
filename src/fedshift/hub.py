"""The Hugging Face hub: what this machine holds of it is found at once where the hub cannot be reached."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

SECONDS = 2.0  # in which the hub has to answer


@contextmanager
def hub(name: str) -> Iterator[None]:
    """Let a library read a hub id or a folder; if the hub does not answer, from this machine alone.

    The libraries ask a hub that cannot be reached again and again, for half a minute, before they look at what they
    have. Within, they are told that there is no network instead, as by the environment variable HF_HUB_OFFLINE.
    """
    if Path(name).expanduser().is_dir() or answers():
        yield
        return
    from huggingface_hub import constants

    modules = [constants, *(sys.modules[held] for held in ("datasets.config",) if held in sys.modules)]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def answers() -> bool:
    """Whether the hub can be reached, whatever it says."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    reached: list[int] = []

    def ask() -> None:
        try:
            reached.append(get_session().head(constants.ENDPOINT, timeout=SECONDS).status_code)
        except Exception as error:  # of whatever library it asks by; the caller says that the hub cannot be reached
            logging.getLogger(__name__).info("the hub does not answer: %s", error)

    # In a thread, since looking up a name has no time limit of its own.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return bool(reached)
