"""The Containerfile copies files that exist, and its commands and extras are those of this version."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from fedshift.cli.app import app
from fedshift.deployment.folders import UNPRIVILEGED

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
USAGE = re.sub(r"\\\\\n# *", "", TEXT)  # commands on one line each


def written(instruction: str) -> list[str]:
    """The words of every such instruction."""
    return re.findall(rf"^{instruction} (.*)$", TEXT, re.MULTILINE)


def test_it_copies_files_that_exist_and_the_builder_receives():
    sources = [word for line in written("COPY") if "--from" not in line for word in line.split()[:-1]]
    received = [line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")]
    assert sources
    assert sorted(sources) == sorted(received)
    assert all((ROOT / source).exists() for source in sources)
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


def test_its_commands_exist_with_their_options():
    commands = [line.split("#")[0] for line in re.findall(r"fedshift (federation [a-z].*)", USAGE) if "`" not in line]
    assert len(commands) == 6
    for line in commands:
        group, name, *words = shlex.split(line)
        command = get_command(app).commands[group].commands[name]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, line


def test_its_extras_and_its_pythons_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", TEXT, re.MULTILINE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    (version,) = re.findall(r"^ARG BASE=python:([\d.]+)", TEXT, re.MULTILINE)
    assert version >= project["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("name", ["compose.yaml", "Dockerfile"])
def test_a_federations_files_fit_the_image(name: str):
    template = (ROOT / f"src/fedshift/deployment/templates/{name}.jinja").read_text()
    assert written("USER") == [UNPRIVILEGED]
    assert "ENTRYPOINT" not in TEXT  # compose.yaml gives whole commands
    image, folder = "image: fedshift-federation", "/federation"
    assert folder in template
    assert written("WORKDIR")[-1] == written("VOLUME")[0] == folder
    assert name != "compose.yaml" or image in template
