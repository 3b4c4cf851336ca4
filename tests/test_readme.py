"""The guide's method is the example in the repository; commands, links and tests that pages name exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command

import fedshift
from conftest import TINY, simulate
from fedshift.cli.app import app
from fedshift.deployment.agreement import read_site
from fedshift.study.grid import expand, override
from test_examples import block

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "my_prox.py"
GENERATED = {"commands.md", "settings.md", "methods.md"}  # pages of the site that a build writes


def test_the_method_is_the_example():
    assert EXAMPLE.read_text() == block("quick-start.md", "plugin")


def test_the_method_of_the_guide_runs_by_name_and_is_fedprox():
    document = override(TINY, {"plugins": [str(EXAMPLE)], "method": {"name": ["my-prox", "fedprox"], "mu": 0.5}})
    mine, built_in = (simulate(experiment) for experiment in expand(document))
    assert mine.experiment.method_name == "my-prox"
    shared = built_in.coordinator.state.shared
    assert all(tensor.equal(shared[name]) for name, tensor in mine.coordinator.state.shared.items())


def test_what_the_federations_page_writes_into_site_toml_is_read(tmp_path: Path):
    text = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    rows = re.findall(r"^\| [^|]*\| (`name = .*`) \|$", text, re.MULTILINE)
    assert (len(blocks), len(rows)) == (2, 8)
    for written in (blocks[0], *("[data]\n" + row.replace("`, `", "\n").strip("`") for row in rows), blocks[1]):
        named = "" if written == blocks[0] else 'name = "berlin"\n'
        (tmp_path / "site.toml").write_text(named + written)
        settings, data = read_site(tmp_path)
        assert settings.name == "berlin"
        assert not data or fedshift.DATASETS.build(data, "data")


def commands() -> list[str]:
    """Every command of fedshift on the pages: lines of blocks, and code within a line."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files).replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    blocks = re.findall(r"^ *(fedshift [a-z-].*)$", fenced, re.MULTILINE)
    blocks += re.findall(r"^ {4,}(fedshift [a-z-].*)$", text, re.MULTILINE)
    return list(dict.fromkeys([*blocks, *re.findall(r"`(fedshift [a-z-][^`\n]*)`", text)]))


def test_the_commands_on_the_pages_exist_with_their_options():
    known = get_command(app)
    assert isinstance(known, Group)
    wrong = []
    for line in commands():
        words = shlex.split(line, comments=True)[1:]
        command = known.commands.get(words[0], known)
        if isinstance(command, Group) and command is not known and len(words) > 1:
            command = command.commands.get(words[1], known)
        options = {option for parameter in command.params for option in parameter.opts} | {"--help", "--debug"}
        if command is known and not words[0].startswith("-"):
            wrong.append(line)
        wrong += [line for word in words if word.startswith("-") and word not in {*options, "-"}]
    assert wrong == []
    assert len(commands()) > 20


def test_links_on_the_pages_lead_somewhere():
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = []
    for file in files:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", file.read_text(encoding="utf-8")):
            path, _, section = target.partition("#")
            there = file.parent / path if path else file
            heading = there.read_text(encoding="utf-8") if section and there.is_file() else ""
            anchors = [re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in heading.splitlines()]
            if there.name not in GENERATED and (not there.exists() or (section and section not in anchors)):
                broken.append(f"{file.name}: {target}")
    assert broken == []


@pytest.mark.parametrize("page", ["threat-model.md"])
def test_the_tests_that_show_what_a_page_says_exist(page: str):
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in files for name in re.findall(r"def (test_[a-z0-9_]+)\(", text)}
    assert len(named) > 10
    assert not named - there
