"""Write or verify constraints.txt: a version of every distribution that fedshift, with all its extras, installs.

    python tools/constraints.py            # resolve the ranges of pyproject.toml anew, and write the file
    python tools/constraints.py --check    # exit with 1 if a pin is missing, different or not needed
    python tools/constraints.py --installed    # exit with 1 if this Python has another version of a distribution

torch's line is kept as it is. Without a suffix such as +cu126 it lets pip take the build that your index or a local
folder serves, which may be one for CPUs only. Run this with the oldest Python that pyproject.toml supports.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
HEAD = "# Written by tools/constraints.py: the versions that are tested together.\n"
PIN = re.compile(r"^([\w.-]+)==(\S+)$", re.MULTILINE)

Versions = dict[str, str]


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> Versions:
    """The versions in the file."""
    return {normalised(name): version for name, version in PIN.findall(FILE.read_text(encoding="utf-8"))}


def resolved(requirement: str, pins: Versions) -> Versions:
    """What pip would install into an empty environment, by name, without local suffixes of versions."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["-c", "/dev/stdin", requirement]
    text = "".join(f"{name}=={version}\n" for name, version in pins.items())
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    versions = {normalised(each["name"]): each["version"].partition("+")[0] for each in found}
    return {name: versions[name] for name in sorted(versions) if name != "fedshift"}


def installed() -> Versions:
    """The versions in this Python's environment, except for what venv itself brings."""
    found = {normalised(each.name): each.version.partition("+")[0] for each in distributions()}
    return {name: version for name, version in found.items() if name not in ("fedshift", "pip")}


def write() -> None:
    """Resolve everything anew but torch, and write the file."""
    versions = resolved(".[dev]", {"torch": pinned()["torch"]})
    FILE.write_text(HEAD + "".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")


def differences(needed: Versions) -> list[str]:
    """Where pins differ from what is needed, a line each."""
    pins = pinned()
    lacking = [f"{name} {version} has no pin" for name, version in needed.items() if name not in pins]
    both = sorted(pins.keys() & needed)
    return lacking + [
        f"{name} is pinned to {pins[name]}, not {needed[name]}" for name in both if pins[name] != needed[name]
    ]


def main(requested: str = "") -> int | str:
    """Do what is asked; returns an exit code, or what is wrong."""
    if requested == "--installed":
        found = differences(installed())
    elif requested == "--check":
        needed = resolved(".[dev]", pinned())
        found = differences(needed) + [
            f"{name} is pinned, but nothing needs it" for name in pinned() if name not in needed
        ]
    elif requested:
        return f"{requested!r} is none of its options.\n{__doc__}"
    else:
        write()
        return 0
    return "\n".join([*found, "Run `python tools/constraints.py`, and the tests."]) if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
