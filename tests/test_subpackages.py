"""Other packages import from a subpackage only its public modules.

These are the files that its `__init__` names, and the file with the subpackage's name. Subpackages are the
folders below the layers, which are the folders of memplan. The files at the top of a layer are open to all
who may import the layer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = (
    "graphs",
    "instances",
    "planner",
    "solvers",
    "comparison",
    "torch_support",
    "program",
    "devices",
    "model",
    "updates",
    "guards",
    "tracing",
    "runtime",
    "steps",
    "profiling",
    "training",
    "report",
    "exchange",
    "sizing",
    "cli",
)
PUBLIC = re.compile(r"Public modules: ([\w, \n]+)\.")


@cache
def modules() -> dict[str, Path]:
    files = (path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py")))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield memplan's modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = name.split(".")[: -node.level]
            parts = [*base, *(node.module.split(".") if node.module else ())]
            for alias in node.names:
                whole = ".".join([*parts, alias.name])
                yield whole if whole in known else ".".join(parts)


def subpackage(module: str) -> str:
    return module.rpartition(".")[0]


def public_modules(name: str) -> set[str]:
    """Return the modules that a subpackage's `__init__` names, and the file with its name."""
    text = ast.get_docstring(ast.parse((ROOT / name.replace(".", "/") / "__init__.py").read_text())) or ""
    named = PUBLIC.search(text)
    return {name.rpartition(".")[2], *(re.split(r",\s+", named[1]) if named else ())}


@cache
def imports() -> dict[str, dict[str, list[str]]]:
    """Return per subpackage which of its files others import, and who."""
    known = modules()
    found: dict[str, dict[str, list[str]]] = {}
    for name, path in known.items():
        for target in imported(name, path, known):
            if target in known and subpackage(target) != subpackage(name) and "." in subpackage(target):
                file = target.rpartition(".")[2]
                found.setdefault(subpackage(target), {}).setdefault(file, []).append(name)
    return found


def test_others_import_public_modules_alone() -> None:
    faults = [
        f"{', '.join(who)}: {name}.{file} is not public: import {public_modules(name)}"
        for name, files in imports().items()
        for file, who in files.items()
        if file not in public_modules(name)
    ]
    assert not faults, "\n".join(faults)


def test_public_modules_are_imported_by_others() -> None:
    """A module that nobody imports any more is not public."""
    subpackages = {subpackage(name) for name in modules() if "." in subpackage(name)}
    used = imports()
    for name in sorted(subpackages):
        own = name.rpartition(".")[2]
        assert public_modules(name) - {own} <= used.get(name, {}).keys(), name
