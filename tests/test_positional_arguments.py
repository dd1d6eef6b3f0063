"""Calls are readable: no more than five positional arguments (CONTRIBUTING.md), the rest by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import memplan

ROOT = Path(memplan.__file__).parent
MOST = 5
COMPILED = {"compiled", "inner"}
"""Decorators of functions that numba compiles: inner loops, to which a state's many arrays go by position."""
FOREIGN = {"aten", "functional"}
"""Modules of PyTorch whose functions bear names that ours bear too."""


def _is_compiled(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(each, ast.Name) and each.id in COMPILED for each in decorators)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in Python code; within compiled functions there are none to look at."""
    waiting = [node]
    for each in waiting:  # a generator in each node would hand each call up through all around it
        children = [child for child in ast.iter_child_nodes(each) if not _is_compiled(child)]
        yield from (child for child in children if isinstance(child, ast.Call))
        waiting += children


def _callee(call: ast.Call) -> str | None:
    """Return the name of what is called, None for a function of PyTorch."""
    if not isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func)
    return None if ast.unparse(call.func).split(".")[0] in FOREIGN else call.func.attr


def long_calls(sources: dict[str, str]) -> list[str]:
    """Return the calls of what these sources define that have too many positional arguments.

    Others' functions, PyTorch's operators and `functools.partial` among them, have their own rules.
    """
    trees = {name: ast.parse(source) for name, source in sources.items()}
    named = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    defined = {node.name for node in named} - {node.name for node in named if _is_compiled(node)}
    return [
        f"{name}:{call.lineno}: {_callee(call)}"
        for name, tree in trees.items()
        for call in _calls(tree)
        if sum(not isinstance(each, ast.Starred) for each in call.args) > MOST and _callee(call) in defined
    ]


def test_calls_have_five_positional_arguments_at_most() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    assert long_calls(sources) == []


def test_what_is_counted() -> None:
    source = """
def many(a, b, c, d, e, f): ...
@inner
def compiled_one(a, b, c, d, e, f): return many(a, b, c, d, e, f)
many(1, 2, 3, 4, 5, 6)
many(1, 2, 3, 4, 5, f=6)
many(*some, 2, 3, 4, 5, 6)
it.many(1, 2, 3, 4, 5, 6)
compiled_one(1, 2, 3, 4, 5, 6)
others(1, 2, 3, 4, 5, 6)
"""
    assert long_calls({"a.py": source}) == ["a.py:5: many", "a.py:8: many"]
