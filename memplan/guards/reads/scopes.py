"""The names that a function, a class or a comprehension binds, and those that it declares otherwise."""

from __future__ import annotations

import ast
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)


class Scope:
    """The names that a function, a class or a comprehension binds, and those that it declares otherwise."""

    def __init__(self, node: ast.AST) -> None:
        self.is_class = isinstance(node, ast.ClassDef)
        self.bound: set[str] = set()
        self.outer: set[str] = set()
        self.globals: set[str] = set()
        if isinstance(node, _FUNCTIONS):
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            self.bound |= {each.arg for each in every if each is not None}
        if isinstance(node, _COMPREHENSIONS):
            for generator in node.generators:
                self._bind(generator.target)
        else:
            body: Any = getattr(node, "body")  # noqa: B009 (nodes have other fields by their kind)
            for each in [body] if isinstance(node, ast.Lambda) else body:
                self._bind(each)
        self.bound -= self.outer | self.globals

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.bound.add(node.name)
        elif isinstance(node, ast.alias):
            self.bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Global):
            self.globals.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            self.outer.update(node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            self.bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self.bound.add(node.rest)
        if isinstance(node, _SCOPES):
            # what is in another scope binds there, but a walrus in a comprehension binds here
            if isinstance(node, _COMPREHENSIONS):
                walrus = (each for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
                self.bound |= {each.target.id for each in walrus}
            return
        for child in ast.iter_child_nodes(node):
            self._bind(child)
