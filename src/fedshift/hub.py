"""The Hugging Face hub: files in the local cache are found at once when the hub cannot be reached."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from fedshift.errors import FedshiftError, needs

COMMIT = re.compile("[0-9a-f]{40}")
SECONDS = 2.0  # in which the hub has to answer
MEMORY = 60.0  # seconds until the hub is tried again


@contextmanager
def hub(name: str) -> Iterator[None]:
    """Let a library read a hub id or a folder; offline if the hub does not answer.

    The libraries retry an unreachable hub for half a minute before they read their cache. Within this context they
    behave as under HF_HUB_OFFLINE instead.
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


@contextmanager
def reading(source: str, setting: str, instead: str = "") -> Iterator[None]:
    """Read a network, tokenizer or file of a hub id or a folder within this context.

    Args:
        source: the hub id or folder.
        setting: the setting that names it, for messages.
        instead: a sentence with an alternative.
    """
    from safetensors import SafetensorError

    try:
        with hub(source):
            yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FedshiftError(
            f"{setting} = '{source}' could not be read ({reason}). Give a folder on this machine that save_pretrained "
            f"wrote, or download it once where the hub can be reached.{f' {instead}' if instead else ''}"
        ) from error


def pretrained(source: str, setting: str, commit: str | None = None, random: str = "", **options: Any) -> Any:
    """A pretrained network, opened by an Auto class of transformers.

    Args:
        source: the hub id or folder.
        setting: the setting that names it, for messages.
        commit: the hub's commit; None: the newest, or a folder.
        random: tensors whose names contain this may be missing, and are then initialised randomly.
        options: further arguments of ``from_pretrained``.
    """
    with needs("images", f"{setting} = '{source}'"):
        from transformers import AutoModel
    with reading(source, setting):
        network, about = AutoModel.from_pretrained(
            source, revision=commit or "main", output_loading_info=True, **options
        )
    missing = sorted(name for name in about["missing_keys"] if not random or random not in name)
    if missing:
        raise FedshiftError(
            f"{setting} = '{source}' lacks weights for {missing[0]} and {len(missing) - 1} more tensors, which "
            "would be random; save them, or take another network."
        )
    return network


def answers() -> bool:
    """Whether the hub can be reached, tried once a minute; False without the library that reads it."""
    return find_spec("huggingface_hub") is not None and _answers(int(time.monotonic() // MEMORY))


@lru_cache(maxsize=1)
def _answers(period: int) -> bool:
    """Try the hub; ``period`` numbers the intervals for which a result is cached."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    reached: list[int] = []

    def ask() -> None:
        try:
            reached.append(get_session().head(constants.ENDPOINT, timeout=SECONDS).status_code)
        except Exception as error:  # of the HTTP library in use; the caller reports that the hub cannot be reached
            logging.getLogger(__name__).info("the hub does not answer: %s", error)

    # In a thread, since name resolution has no time limit.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return bool(reached)


def located(path: str, setting: str) -> tuple[str, str | None]:
    """The folder that a setting names, and None; or a hub id and its commit.

    A hub id requires its commit, ID@COMMIT, since a branch may change.
    """
    folder = Path(path).expanduser()
    if path and folder.is_dir():
        return str(folder), None
    name, _, commit = path.partition("@")
    if COMMIT.fullmatch(commit):
        return name, commit
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name in (".", ".."):
        raise FedshiftError(
            f"{setting} = '{path}' is neither a folder of this machine nor a hub id; give ID@COMMIT or a folder."
        )
    known = commit_of(name)
    fix = (
        f"--set {setting}={name}@{known}"
        if known
        else (
            "give a folder that save_pretrained wrote, or ID@COMMIT, with the 40 digits that the hub shows; the hub "
            "cannot be reached from here, or does not have it, and this machine has no copy"
        )
    )
    raise FedshiftError(
        f"{setting} = '{path}' is not a folder here; a hub id is written with its commit, so that it stays the "
        f"same: {fix}"
    )


def commit_of(name: str) -> str:
    """The commit of a hub id in the local cache, else the hub's newest; empty if neither is available."""
    with needs("images", f"The hub id '{name}'"):
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        held = try_to_load_from_cache(name, "config.json") or try_to_load_from_cache(name, "tokenizer_config.json")
        if isinstance(held, str):
            return Path(held).parent.name
        return HfApi().model_info(name).sha or "" if answers() else ""
    except (HfHubHTTPError, HFValidationError, OSError):
        return ""
