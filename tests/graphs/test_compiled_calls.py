"""What Python calls of compiled code gives a number or nothing back, and writes the rest into arrays.

To make an object compiled code calls Python, where a Ctrl-C that waits is raised, and then crashes. Here the
sources are read: every function under `@compiled`, or `@inner`, which runs as Python where Python calls it,
and everyone who names it outside of such functions.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TypeGuard

import memplan
import pytest
from memplan.graphs import compiled as room

PACKAGE = Path(memplan.__file__).parent
SAFE = {"None", "int", "float", "bool"}
ALLOWED: set[str] = set()
"""Names of functions that may give back something else."""
RUN_AS_PYTHON = {"temperature_at", "acceptance", "_most_deletes"}
"""Inner functions that Python calls too: each is one formula, so the interpreter is fast enough for it."""

Function = tuple[Path, str]


def trees_with(*words: str) -> dict[Path, ast.Module]:
    """Trees of the files with one of these words. All together are a million objects: nobody keeps them."""
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    return {path: ast.parse(text) for path, text in texts.items() if any(map(text.__contains__, words))}


def compiled_functions(trees: dict[Path, ast.Module]) -> dict[Function, ast.FunctionDef]:
    return {
        (path, node.name): node for path, tree in trees.items() for node in tree.body if is_compiled(node)
    }


def is_compiled(node: ast.AST, names: Container[str] = ("compiled", "inner")) -> TypeGuard[ast.FunctionDef]:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(each, ast.Name) and each.id in names for each in decorators)


def outside(node: ast.AST) -> Iterator[ast.AST]:
    """All below it that is not compiled."""
    for below in ast.iter_child_nodes(node):
        if not is_compiled(below):
            yield below
            yield from outside(below)


def named(path: Path, tree: ast.Module, within: Iterable[ast.AST]) -> Iterator[Function]:
    """The functions of the package that these nodes of a file name, and much else."""
    bound: dict[str, tuple[Path, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                bound[alias.asname or alias.name] = (folder.with_suffix(".py"), alias.name)
    for node in within:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield bound.get(node.id, (path, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            module, name = bound[node.value.id]
            yield module.with_suffix("") / f"{name}.py", node.attr


@pytest.mark.scripts
def test_what_python_calls_of_compiled_code_gives_no_object_back() -> None:
    trees = trees_with("")
    functions = compiled_functions(trees)
    called = {
        one for path, tree in trees.items() for one in named(path, tree, outside(tree))
    } & functions.keys()
    assert len(functions) > 60
    assert len(called) > 10
    assert {name for path, name in called if is_compiled(functions[path, name], ("inner",))} == RUN_AS_PYTHON
    gives = {one: ast.unparse(functions[one].returns or ast.Name("anything")) for one in called}
    boxed = {f"{path.stem}.{name}" for (path, name), what in gives.items() if what not in SAFE}
    assert boxed == ALLOWED


def test_the_cache_knows_the_files_of_all_that_compiled_code_calls() -> None:
    """A change in any of them makes another folder."""
    trees = trees_with("@compiled", "@inner")
    functions = compiled_functions(trees)
    for path, tree in trees.items():
        inside = [node for node in tree.body if is_compiled(node)]
        for node in inside:
            called = {one for one in named(path, tree, ast.walk(node)) if one in functions}
            assert {file for file, _name in called} <= set(room.sources(path))
