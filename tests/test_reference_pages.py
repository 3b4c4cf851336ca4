"""The generated reference pages cover every method, every tensor that leaves a client and every public name."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import fedshift

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture
def method_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield importlib.import_module("method_pages")
    for name in ("method_pages", "settings_tables", "markup"):
        sys.modules.pop(name, None)


def test_every_method_has_a_page_and_a_row_of_the_index(method_pages):
    on_pages = [name for names in method_pages.pages().values() for name in names]
    in_families = [name for names in method_pages.FAMILIES.values() for name in names.split()]
    assert sorted(on_pages) == sorted(in_families)


def test_a_page_lists_every_tensor_that_a_run_counts(method_pages, tmp_path: Path):
    few = {"data.images_per_class": 10, "train.steps": 1, "run.engine": "sequential"}
    run = fedshift.run("rotated-mnist", method="fedcir", rounds=2, out=tmp_path, settings=few)
    counted = {
        (exchange, method_pages.DOWN if direction == "down" else method_pages.UP, tensor, tuple(about["shape"]))
        for exchange, directions in run.messages.items()
        for direction, its in directions.items()
        for tensor, about in its["tensors"].items()
    }
    declared = {(c.exchange, c.direction, c.tensor, c.shape) for c in method_pages.crossings("fedcir")}
    assert counted == declared


def test_the_api_page_lists_every_public_name_but_methods_and_catalogues():
    tree = ast.parse((DOCS.parent / "src" / "fedshift" / "__init__.pyi").read_text())
    public = {
        alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    listed = set(re.findall(r"auto(?:function|class|exception):: (?:[\w.]+\.)?(\w+)", (DOCS / "api.md").read_text()))
    expected = {name for name, module in public.items() if not module.startswith("methods.") and not name.isupper()}
    assert expected - listed == set()


def test_the_page_of_a_system_begins_with_when_to_choose_it_and_its_results(method_pages):
    for page in ("fedsr", "fedcir", "fraug", "client2vec", "fedpin"):
        lines = [*filter(None, method_pages.method_page(page, method_pages.pages()[page], DOCS))]
        assert lines[3].startswith("**When to choose it.**")
        assert lines[5].startswith("[Results of") and f"(../results/{page}.md)" in lines[5]


def test_a_page_names_the_federations_where_its_method_diverged(method_pages):
    lines = [*method_pages.method_page("irm", method_pages.pages()["irm"], DOCS)]
    rotated = [line for line in lines if line.startswith("| RotatedMNIST 0 |")]
    assert ["diverged in a seed" in line for line in rotated] == [True, False]  # irm and pooled-irm
