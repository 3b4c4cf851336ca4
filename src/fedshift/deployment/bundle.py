"""The app that ``flwr run`` sends, and whether one that came is the same; no code of an app is ever run."""

from __future__ import annotations

import zlib
from functools import cache
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from fedshift.errors import needs

APP = Path(__file__).with_name("app")


def is_ours(bundle: bytes) -> bool:
    """Whether an app bundle of Flower has the files of the app that is installed here, and no others.

    Files are compared, not the archives: their bytes depend on the compression library of whoever packed them.

    Args:
        bundle: what came, which may be anything.
    """
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            sizes = {file.filename: file.file_size for file in archive.infolist()}
            if sizes != {name: len(content) for name, content in _ours().items()}:
                return False  # before anything large is unpacked
            return all(archive.read(name) == content for name, content in _ours().items())
    except (BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError):  # no archive, or a damaged one
        return False


@cache
def _ours() -> dict[str, bytes]:
    """The files of the bundle that Flower makes of the installed app, by name."""
    with needs("flower", "A federation"):
        from flwr.cli.build import build_fab_from_disk
    with ZipFile(BytesIO(build_fab_from_disk(APP))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
