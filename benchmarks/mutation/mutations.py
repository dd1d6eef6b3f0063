"""Mutations of Python's source: one operator, comparison, constant or name of a line is changed.

Annotations and decorators are left as they are: they say how code is kept, not what it computes.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import NamedTuple

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


class Mutant(NamedTuple):
    """A mutation of one line.

    line: number in the file, from 1.
    number: place among the mutations of that line.
    """

    file: str
    line: int
    number: int


class Mutation(ast.NodeTransformer):
    """Change the mutation site of this number in a line; `found` counts the sites that it has passed."""

    def __init__(self, line: int, number: int) -> None:
        self.line, self.number, self.found = line, number, 0

    def _is_it(self, node: ast.AST) -> bool:
        if getattr(node, "lineno", -1) != self.line:
            return False
        self.found += 1
        return self.found - 1 == self.number

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for at, operator in enumerate(node.ops):
            if type(operator) in SWAPS and self._is_it(node):
                node.ops[at] = SWAPS[type(operator)]()  # pyright: ignore
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) in SWAPS and self._is_it(node):
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) in SWAPS and self._is_it(node):
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_it(node):
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not | ast.USub) and self._is_it(node) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return ast.copy_location(ast.Constant(not node.value), node) if self._is_it(node) else node
        if isinstance(node.value, int | float) and self._is_it(node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in NAMES and isinstance(node.ctx, ast.Load) and self._is_it(node):
            return ast.copy_location(ast.Name(NAMES[node.id], node.ctx), node)
        return node

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return ast.copy_location(ast.Break(), node) if self._is_it(node) else node

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return ast.copy_location(ast.Continue(), node) if self._is_it(node) else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # its annotation

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.args = self.visit(node.args)
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._is_it(node):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return node


class Sites(Mutation):
    """Count the mutation sites of every line, and change nothing."""

    def __init__(self, source: str) -> None:
        super().__init__(0, 0)
        self.counts = Counter[int]()
        self.visit(ast.parse(source))

    def _is_it(self, node: ast.AST) -> bool:
        self.counts[getattr(node, "lineno", 0)] += 1
        return False


def mutated(source: str, line: int, number: int) -> str:
    """Return the source with one mutation."""
    mutation = Mutation(line, number)
    tree = mutation.visit(ast.parse(source))
    assert mutation.found > number
    return ast.unparse(ast.fix_missing_locations(tree))


def function_at(source: str, line: int) -> str:
    """Return the name of the innermost function around a line; an empty string outside of all."""
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""
