"""Measure the tree: executable lines, files, folders, levels of imports, names used twice, long modules, the contract.

    python tools/size.py

An executable line holds a token that is no docstring, import, comment or blank. A level is a set of folders whose
imports only go to lower levels. The modules beside the folders that import none of these are the ground level.

A hook is a public method or class attribute of ``Method`` or ``Averaging`` that a class in ``methods/`` overrides, but
for what describes the publication; those that give a field of an ``Exchange`` by its name are one hook. A field is one
of a value class in ``core/contract.py``; those that several classes inherit count once.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = 350  # lines of a module, with its docstrings and blanks
LAYOUT = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def executable(path: Path) -> int:
    """The number of lines of a file that hold code: no docstring, import, comment or blank."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in LAYOUT]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines -= _lines_of(node)
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= _lines_of(node.body[0])
    return len(lines)


def levels(package: Path, files: Iterable[Path]) -> list[list[str]]:
    """The folders and single modules of a package by level, lowest first.

    Raises:
        graphlib.CycleError: two of them import each other.
    """
    homes = {".".join(file.relative_to(package).with_suffix("").parts): _home(package, file) for file in files}
    needs: dict[str, set[str]] = {home: set() for home in homes.values()}
    for file in files:
        home = _home(package, file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.name):
                module = (node.module or "").removeprefix(package.name).lstrip(".")
                for name in (f"{module}.{alias.name}".lstrip(".") for alias in node.names):
                    known = homes.get(name) or homes.get(module) or homes.get(f"{module}.__init__")
                    if known and known != home:
                        needs[home].add(known)
    ground = {home for home in needs if not (package / home).is_dir()}
    while above := {home for home in ground if needs[home] - ground}:
        ground -= above
    needs = {home: needed - ground | {"(ground)"} for home, needed in needs.items() if home not in ground}
    sorter = TopologicalSorter(needs)
    sorter.prepare()
    found = []
    while sorter.is_active():
        level = sorter.get_ready()
        found.append(sorted(level))
        sorter.done(*level)
    return found


def hooks(package: Path) -> list[str]:
    """The names that pages override, those of an exchange's fields as one."""
    paths = [package / "core" / "method.py", *(package / "methods").rglob("*.py")]
    classes = {node.name: node for path in paths for node in _classes(path)}

    def is_method(name: str) -> bool:
        bases = [ast.unparse(base) for base in classes[name].bases] if name in classes else []
        return name in ("Method", "Averaging") or any(is_method(base) for base in bases)

    own = {name for base in ("Method", "Averaging") for name in _names(classes[base]) if not name.startswith("_")}
    (values,) = (node for node in _classes(package / "core" / "contract.py") if node.name == "Exchange")
    exchange = set(_fields(values))
    pages = [node for name, node in classes.items() if is_method(name) and name not in ("Method", "Averaging")]
    overridden = {name for node in pages for name in _names(node)} & (own | exchange) - {"our_form", "paper", "presets"}
    return [*sorted(overridden - exchange), f"exchange fields ({', '.join(sorted(overridden & exchange))})"]


def main() -> int:
    """Print the measurements; 0, the exit status."""
    package = ROOT / "src" / "fedshift"
    files = sorted(package.rglob("*.py"))
    folders = Counter[str]()
    for file in files:
        folders[_home(package, file) if file.parent != package else "(modules)"] += executable(file)
    print("| folder | executable lines |\n|---|---:|")
    for folder, lines in sorted(folders.items(), key=lambda each: -each[1]):
        print(f"| {folder} | {lines:,} |")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    modules = Counter(file.stem for file in files if file.stem != "__init__")
    long = [file for file in files if _length(file) > LONG]
    print()
    print(f"executable lines: {sum(folders.values()):,}")
    print(f"files: {len(files)}, folders: {len(folders) - 1}, levels: {_levels_text(package, files)}")
    print(f"class names used twice or more: {_repeated(classes)}")
    print(f"module names used twice or more: {_repeated(modules)}")
    print(f"modules above {LONG} lines: {len(long)} ({', '.join(str(file.relative_to(package)) for file in long)})")
    fields = {node.name: len(_fields(node)) for node in _classes(package / "core" / "contract.py") if _fields(node)}
    found = hooks(package)
    print(f"hooks: {len(found)} ({', '.join(found)})")
    print(f"fields: {sum(fields.values())} ({', '.join(f'{name} {count}' for name, count in fields.items())})")
    print(f"lines of tests: {sum(map(_length, (ROOT / 'tests').rglob('*.py'))):,}")
    return 0


def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]


def _fields(node: ast.ClassDef) -> list[str]:
    """The names that a class annotates, but for class variables."""
    annotated = [each for each in node.body if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.dump(each)]
    return [ast.unparse(each.target) for each in annotated]


def _names(node: ast.ClassDef) -> list[str]:
    """The names of a class's methods and class variables."""
    methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
    given = [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
    return [*methods, *(name for name in given if name not in _fields(node))]


def _levels_text(package: Path, files: Iterable[Path]) -> str:
    """The number of levels, or which folders import each other."""
    try:
        return str(len(levels(package, files)))
    except CycleError as error:
        return f"none, since folders import each other ({' -> '.join(error.args[1])})"


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _home(package: Path, file: Path) -> str:
    """The folder of the package in which a file lies, or the file's own name if it lies in none."""
    first = file.relative_to(package).parts[0]
    return first.removesuffix(".py")


def _length(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def _repeated(names: Counter[str]) -> str:
    repeated = {name: count for name, count in sorted(names.items()) if count > 1}
    return f"{len(repeated)} ({', '.join(f'{name} {count}' for name, count in repeated.items())})"


if __name__ == "__main__":
    sys.exit(main())
