"""The app that ``flwr run`` sends, and whether one that came is the same; no code of an app is ever run."""

from __future__ import annotations

import tomllib
import zlib
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from zipfile import BadZipFile, ZipFile

APP = Path(__file__).with_name("app")
SETTINGS, CODE = "pyproject.toml", "fedshift_federation.py"
MANIFEST = ".info/CONTENT"  # digests of the other two, which Flower's builder adds
LARGEST = 10_000  # bytes of a file that is looked at


def is_ours(bundle: bytes) -> bool:
    """Whether an app bundle of Flower is made of the app that is installed here.

    Contents are compared, not archives: an archive's bytes depend on the compression library of whoever packed it, and
    Flower writes the settings anew.

    Args:
        bundle: what came, which may be anything.
    """
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            sizes = {file.filename: file.file_size for file in archive.infolist()}
            if set(sizes) != {SETTINGS, CODE, MANIFEST} or max(sizes.values()) > LARGEST:
                return False
            code, settings = archive.read(CODE), tomllib.loads(archive.read(SETTINGS).decode())
    except (
        BadZipFile,
        zlib.error,
        LZMAError,
        EOFError,
        RuntimeError,
        ValueError,
        OSError,
    ):  # no archive, or a damaged one
        return False
    return code == (APP / CODE).read_bytes() and settings == tomllib.loads((APP / SETTINGS).read_text())
