"""Verify a release: the files of the sdist and the wheel, and README's Python example with the installed wheel.

    python tools/release.py contents DIST          # exit with 1 if a file is missing or does not belong there
    python -I tools/release.py example README.md   # outside the source tree, in an environment with the wheel

The example runs a few small rounds instead of hundreds; its code is the page's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/fedshift"
BESIDE = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml"}
GENERATED = {"PKG-INFO", "setup.cfg"}
SMALL = {"data.images_per_class": 10, "train.batch": 16, "run.engine": "sequential", "run.threads": 1}


def contents(dist: str) -> list[str]:
    """What is wrong with the files of the only sdist and the only wheel in a folder, a line each."""
    (sdist,), (wheel,) = Path(dist).glob("*.tar.gz"), Path(dist).glob("*.whl")
    listed = subprocess.run(["git", "ls-files", PACKAGE], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    package = set(listed.stdout.split())
    with tarfile.open(sdist) as archive:
        source = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    source = {name for name in source if name not in GENERATED and ".egg-info/" not in name}
    with ZipFile(wheel) as archive:
        installed = {f"src/{name}" for name in archive.namelist() if ".dist-info/" not in name}
    return [*differences("The sdist", source, package | BESIDE), *differences("The wheel", installed, package)]


def differences(archive: str, found: set[str], expected: set[str]) -> list[str]:
    """The files that an archive lacks, and those that do not belong there."""
    lacking = [f"{archive} lacks {name}." for name in sorted(expected - found)]
    return lacking + [f"{archive} contains {name}." for name in sorted(found - expected)]


def example(readme: str) -> list[str]:
    """Execute README's example, with small runs; what is wrong, a line each."""
    import fedshift  # noqa: PLC0415  # of the installed wheel

    place = Path(fedshift.__file__)
    if ROOT in place.parents or "site-packages" not in place.parts:
        return [f"This Python imports fedshift from '{place}', not from an installed wheel."]
    text = Path(readme).read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- api -->\n```python\n(.*?)```", text, re.DOTALL)
    compare: Callable[..., Any] = fedshift.compare

    def small(*source: Any, settings: dict[str, Any] | None = None, **options: Any) -> Any:
        return compare(*source, **{**options, "rounds": 2}, settings={**(settings or {}), **SMALL})

    fedshift.compare = small  # type: ignore[assignment]
    exec(compile(code, "README's example", "exec"), {"__name__": "example"})
    return []


def main(check: str = "", path: str = "") -> int | str:
    """Run a check; returns an exit code, or what is wrong."""
    checks = {"contents": contents, "example": example}
    if check not in checks or not path:
        return __doc__ or ""
    return "\n".join(checks[check](path)) or 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
