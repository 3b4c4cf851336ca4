"""Language and size: no avoided word (tools/words.toml), few docstrings, one meaning a name, short controls."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import fedshift

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(Path(fedshift.__file__).parent.rglob("*.py"))
TWICE = 5  # names of classes or modules that may stand for two things
PART = 0.13  # of the lines, docstrings at most; the descriptions of papers in methods/ are the site's pages
CONTROLS = "coral fedfa feddg_ga fedproto fixbn fpl groupdro irm mixup silobn vrex"
PERSONAL_CONTROLS = "apfl fedala fedbabu fedper knn_per lg_fedavg"
LONGEST = 40  # executable lines of a control
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prose = tool("prose")
size = tool("size")


@pytest.mark.parametrize("tree", ["src", "docs", "toml"])
def test_no_avoided_word(tree: str):
    assert [f"{hit.path.name}:{hit.line}: {hit.word}" for hit in prose.hits(prose.trees()[tree])] == []


@pytest.mark.parametrize("tree", ["src", "docs", "toml"])
def test_limited_words_are_rare(tree: str):
    limits = prose.WORDS["limits"][tree]
    assert {word: n for word, n in prose.counts(tree).items() if n > limits[word]} == {}


@pytest.mark.parametrize(
    ("suffix", "text", "words"),
    [
        (".py", '"""What is heard of a run."""\n', ["heard"]),
        (".py", "x = 1  # it is left\n# out\n", []),
        (".py", 'x = "one\\n"\ny = """A column is left\n    out of it."""\n', ["left out"]),
        (".py", "said = f'{said} three words here'\n", []),
        (".toml", "# It is left\n# out\nleft_out = 'as told'\n", ["told", "left out"]),
        (".md", "# Told\n\n`told` and [a](told.md)\n\n```\ntold\n```\n", ["Told"]),
    ],
)
def test_where_words_are_found(tmp_path: Path, suffix: str, text: str, words: list[str]):
    """In docstrings, comments and longer strings, across lines; not in code, addresses or names."""
    file = tmp_path / f"x{suffix}"
    file.write_text(text)
    assert [hit.word for hit in prose.hits([file])] == words


def test_docstrings_are_a_small_part_of_the_lines():
    docstrings, lines = 0, 0
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        lines += len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            page = isinstance(node, ast.Module) and "methods" in source.parts
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None and not page:
                docstrings += node.body[0].end_lineno - node.body[0].lineno + 1
    assert docstrings < PART * lines


def test_a_name_means_one_thing():
    classes = Counter(
        node.name
        for source in SOURCES
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    modules = Counter(source.stem for source in SOURCES if source.stem != "__init__")
    assert [name for name, count in (classes + modules).items() if count > 1 and "_" not in name[:1]][TWICE:] == []


@pytest.mark.parametrize("name", f"{CONTROLS} {PERSONAL_CONTROLS}".split())
def test_a_control_is_short(name: str):
    assert 0 < size.executable(Path(fedshift.__file__).parent / "methods" / f"{name}.py") <= LONGEST
