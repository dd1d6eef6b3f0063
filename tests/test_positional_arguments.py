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


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of Python code: of compiled functions the definition alone."""
    waiting: list[ast.AST] = [tree]
    for each in waiting:  # a generator in each node would hand each node up through all around it
        yield each
        if not _is_compiled(each):
            waiting += ast.iter_child_nodes(each)


def _positional(call: ast.Call) -> int:
    return sum(not isinstance(each, ast.Starred) for each in call.args)


def _callee(call: ast.Call) -> str | None:
    """Return the name of what is called, None for a function of PyTorch."""
    if not isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func)
    return None if ast.unparse(call.func).split(".")[0] in FOREIGN else call.func.attr


def long_calls(sources: dict[str, str]) -> list[str]:
    """Return the calls of what these sources define that have too many positional arguments.

    Others' functions, PyTorch's operators and `functools.partial` among them, have their own rules.
    """
    defined, compiled, calls = set[str](), set[str](), list[tuple[str, str | None]]()
    for name, source in sources.items():
        for node in _nodes(ast.parse(source)):  # a tree at a time: the collector would look through all
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                (compiled if _is_compiled(node) else defined).add(node.name)
            elif isinstance(node, ast.Call) and _positional(node) > MOST:
                calls.append((f"{name}:{node.lineno}", _callee(node)))
    return [f"{place}: {callee}" for place, callee in calls if callee in defined - compiled]


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
