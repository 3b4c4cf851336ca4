"""A user's Python file as a module: a plugin, or one that holds a model."""

from __future__ import annotations

import importlib
import linecache
import sys
from functools import cache
from hashlib import blake2b
from importlib import util
from pathlib import Path
from types import ModuleType

from fedshift.content import code_digest, imported
from fedshift.errors import FedshiftError


def module_of(path: str | Path) -> ModuleType:
    """What a file defines; it is imported again only when it, or what it imports from its folder, has changed.

    Raises:
        FedshiftError: the file is missing or fails when imported.
    """
    return _imported(str(Path(path).expanduser().resolve()), code_digest(path))


@cache
def _imported(path: str, content: str) -> ModuleType:
    if not content:
        raise FedshiftError(f"The plugin '{path}' does not exist; give the path of a Python file.")
    name = f"fedshift_plugin_{Path(path).stem}_{blake2b(path.encode(), digest_size=4).hexdigest()}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FedshiftError(f"The plugin '{path}' is no Python file.")
    module = util.module_from_spec(spec)
    if name in sys.modules:  # it is imported again, so what it imports from its folder is as well
        stale = {str(file) for file in imported(path)}
        for each in [key for key, loaded in sys.modules.items() if getattr(loaded, "__file__", None) in stale]:
            del sys.modules[each]
        importlib.invalidate_caches()
    sys.modules[name] = module
    linecache.checkcache(path)
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)  # what a plugin is for
    except FedshiftError:
        raise
    except (Exception, SystemExit) as error:  # which would end the command, and say nothing
        raise FedshiftError(f"The plugin '{path}' fails when imported: {type(error).__name__}: {error}") from error
    return module
