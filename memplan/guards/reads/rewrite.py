"""Python code whose reads are reported: each load of an attribute, an item or a global goes through a reader.

A file's syntax tree is rewritten expression by expression, and keeps its functions, their order and their
variables, so that the code of each function can replace the original while a trace runs:

    e.name        reader.attribute(e, "name")         f(a, b)     reader.callee(f)(a, b)
    e[k]          reader.item(e, k)                   if e:       if reader.truth(e):
    name          reader.name("name", name, free)     a in b      reader.contains(a, b)
    e.name = v    reader.place(e, "name").name = v    a + b, for  reader.whole(a) + reader.whole(b)

The reader is a constant in the code, `SENTINEL` until a function gets its own reader.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from .patterns import shape_of
from .scopes import Scope

SENTINEL = "\0memplan's reader"

_Node = TypeVar("_Node", bound=ast.AST)
_COUNTABLE = (ast.Attribute, ast.Name)
_FRAME_READERS = frozenset({"super", "locals", "vars", "dir", "globals", "eval", "exec"})
"""Builtins that look at the frame that calls them."""
_LOGGING = frozenset({"debug", "info", "warning", "error", "exception", "critical", "add_scalar"})


def _constant(value: Any) -> ast.expr:
    """Write a constant that may be a tuple."""
    return ast.Constant(value)


class Rewrite(ast.NodeTransformer):
    """Transformer of a syntax tree: module and class bodies stay as they are, the functions in them are
    rewritten.
    """

    def __init__(self) -> None:
        self._scopes: list[Scope] = []
        self._classes: list[str] = []
        self._own: list[str] = []
        """Attributes and variables, as text, that the assignment around counts up: `self.n = self.n + 1`."""

    # ── scopes ──────────────────────────────────────────────────────────────────────────────────────

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = self._all(node.decorator_list)
        node.bases, node.keywords = self._all(node.bases), self._all(node.keywords)
        self._scopes.append(Scope(node))
        self._classes.append(node.name)
        node.body = self._all(node.body)
        self._classes.pop()
        self._scopes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: _Node) -> _Node:
        function: Any = node
        function.decorator_list = self._all(function.decorator_list)
        self._defaults(function.args)
        self._scopes.append(Scope(function))
        function.body = self._all(function.body)
        self._scopes.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._defaults(node.args)
        self._scopes.append(Scope(node))
        node.body = self._one(node.body)
        self._scopes.pop()
        return node

    def _defaults(self, given: ast.arguments) -> None:
        given.defaults = self._all(given.defaults)
        given.kw_defaults = [each and self._one(each) for each in given.kw_defaults]

    def _comprehension(self, node: _Node) -> _Node:
        whole: Any = node
        first = whole.generators[0]
        first.iter = self._whole(first.iter)  # runs in the scope around
        self._scopes.append(Scope(node))
        for generator in whole.generators:
            generator.target = self._one(generator.target)
            if generator is not first:
                generator.iter = self._whole(generator.iter)
            generator.ifs = [self._truth(each) for each in generator.ifs]
        for name in ("elt", "key", "value"):
            if hasattr(node, name):
                setattr(node, name, self._one(getattr(node, name)))
        self._scopes.pop()
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    # ── loads ───────────────────────────────────────────────────────────────────────────────────────

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load) or (where := self._where(node.id)) is None:
            return node
        if node.id in self._own:
            return node
        return self._call(node, "name", ast.Constant(node.id), node, ast.Constant(where == "free"))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self._mangled(node.attr)
        if not self._inside:
            return self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            read = "counted" if self._own and ast.unparse(node) in self._own else "attribute"
            return self._call(node, read, self._one(node.value), ast.Constant(name))
        node.value = self._call(node, "place", self._one(node.value), ast.Constant(name))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not self._inside:
            return self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            return self._call(node, "item", self._one(node.value), self._index(node.slice))
        node.value = self._call(node, "holder", self._one(node.value))
        node.slice = self._call(node, "key", self._index(node.slice))
        return node

    def _index(self, node: ast.expr) -> ast.expr:
        """Rewrite a slice as the object that it makes."""
        if isinstance(node, ast.Slice):
            ends = [each and self._one(each) for each in (node.lower, node.upper, node.step)]
            return self._call(node, "slice", *(each or ast.Constant(None) for each in ends))
        if isinstance(node, ast.Tuple) and any(
            isinstance(each, ast.Slice | ast.Starred) for each in node.elts
        ):
            node.elts = [self._index(each) for each in node.elts]
            return node
        return self._one(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        if isinstance(function, ast.Attribute) and getattr(function.value, "value", None) == SENTINEL:
            return node  # the reader's own, which is complete
        if isinstance(function, ast.Name) and function.id == "getattr" and len(node.args) > 1 and self._own:
            thing, name = node.args[:2]
            if isinstance(name, ast.Constant) and f"{ast.unparse(thing)}.{name.value}" in self._own:
                return node
        looks = isinstance(function, ast.Name) and function.id in _FRAME_READERS
        given, named = self._all(node.args), self._all(node.keywords)
        called = self._one(function)
        # With arguments, as in vars(x), they look at these and not at the frame.
        if self._inside and not (looks and not node.args):
            called = self._call(function, "callee", called)
        return ast.copy_location(ast.Call(called, given, named), node)

    # ── what consumes values ────────────────────────────────────────────────────────────────────────

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node.left, node.right = self._whole(node.left), self._whole(node.right)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        negates = isinstance(node.op, ast.Not)
        node.operand = self._truth(node.operand) if negates else self._whole(node.operand)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        # The last operand is the result: its truth is not asked for here.
        node.values = [*map(self._truth, node.values[:-1]), self._one(node.values[-1])]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if self._inside and len(node.ops) > 1:
            return self._chain(node)
        within = isinstance(node.ops[0], ast.In | ast.NotIn)
        if self._inside and len(node.ops) == 1 and within:
            operands = self._one(node.left), self._one(node.comparators[0])
            found = self._call(node, "contains", *operands)
            return ast.UnaryOp(ast.Not(), found) if isinstance(node.ops[0], ast.NotIn) else found
        if all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
            constant = any(isinstance(each, ast.Constant) for each in (node.left, *node.comparators))
            if constant:
                return self.generic_visit(node)
            if self._inside and len(node.ops) == 1:
                same = self._call(node, "same", self._one(node.left), self._one(node.comparators[0]))
                return ast.UnaryOp(ast.Not(), same) if isinstance(node.ops[0], ast.IsNot) else same
            node.left = self._consumed(node.left, "identity")
            node.comparators = [self._consumed(each, "identity") for each in node.comparators]
            return node
        node.left, node.comparators = self._whole(node.left), [self._whole(each) for each in node.comparators]
        return node

    def _chain(self, node: ast.Compare) -> ast.AST:
        """Rewrite `a < b in c` as `a < keep(b) and kept() in c`: each comparison reports, each operand
        runs once.
        """
        left, parts = node.left, list[ast.expr]()
        for number, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            site = ast.Constant(f"{node.lineno}:{node.col_offset}:{number}")
            last = number == len(node.ops) - 1
            right = right if last else self._call(node, "keep", site, self._one(right))
            parts.append(self._one(ast.copy_location(ast.Compare(left, [operator], [right]), node)))
            left = self._call(node, "kept", site)
        return ast.copy_location(ast.BoolOp(ast.And(), parts), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test, node.body, node.orelse = (
            self._truth(node.test),
            self._one(node.body),
            self._one(node.orelse),
        )
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = self._truth(node.test)
        node.body, node.orelse = self._all(node.body), self._all(node.orelse)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        node.test = self._truth(node.test)
        node.body, node.orelse = self._all(node.body), self._all(node.orelse)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.test = self._truth(node.test)
        node.msg = node.msg and self._one(node.msg)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        node.target, node.iter = self._one(node.target), self._whole(node.iter)
        node.body, node.orelse = self._all(node.body), self._all(node.orelse)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        loads = isinstance(node.ctx, ast.Load)
        node.value = self._whole(node.value) if loads else self._one(node.value)
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        node.value = self._whole(node.value)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self._whole(node.value)
        node.format_spec = node.format_spec and self._one(node.format_spec)
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        """Rewrite a match: before each case that reads more than its subject, one that only reports."""
        node.subject, site = self._whole(node.subject), ast.Constant(f"{node.lineno}:{node.col_offset}")
        if self._inside:
            node.subject = self._call(node, "subject", site, node.subject)
        cases: list[ast.match_case] = []
        for case in node.cases:  # patterns stay as they are
            named: list[ast.expr] = []
            if (shape := shape_of(case.pattern, named)) is not None and self._inside:
                given = (copy.deepcopy(each) for each in named)
                reports = self._call(node, "tries", site, _constant(shape), *map(self._one, given))
                cases.append(ast.match_case(ast.MatchAs(), reports, [ast.copy_location(ast.Pass(), node)]))
            case.guard = case.guard and self._truth(case.guard)
            case.body = self._all(case.body)
            cases.append(case)
        node.cases = cases
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Rewrite a dict: `{**these}` reads all of them."""
        pairs = zip(node.keys, node.values, strict=True)
        node.values = [self._whole(value) if key is None else self._one(value) for key, value in pairs]
        node.keys = [key and self._one(key) for key in node.keys]
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.value = self._whole(node.value) if node.arg is None else self._one(node.value)
        return node

    # ── statements that assign ──────────────────────────────────────────────────────────────────────

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        before = self._own
        if isinstance(node.value, ast.BinOp):
            self._own = [ast.unparse(each) for each in node.targets if isinstance(each, _COUNTABLE)]
        counts, unpacks = (
            bool(self._own),
            any(isinstance(each, ast.Tuple | ast.List) for each in node.targets),
        )
        node.value = self._whole(node.value) if unpacks else self._one(node.value)
        self._own = before
        node.targets = [self._target(each, counts=counts) for each in node.targets]
        return self._with_stores(node, node.targets, counts=counts)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self._one(node.value)
        node.target = self._one(node.target)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        node.value = self._whole(node.value)
        target: Any = self._target(node.target, counts=True)
        node.target = target
        return self._with_stores(node, [target], counts=True)

    def visit_Import(self, node: ast.Import) -> Any:
        """Rewrite an import in a function: which modules there are is read."""
        if not self._inside:
            return node
        return [self._tried(node, each.name, 0) for each in node.names]

    def _tried(self, node: ast.Import | ast.ImportFrom, module: str, level: int) -> ast.stmt:
        """Return the import with a report after it, also if there is no such module."""
        called = self._call(node, "loaded", ast.Constant(module), ast.Constant(level))
        report = ast.copy_location(ast.Expr(called), node)
        if isinstance(node, ast.Import):
            node = ast.Import([each for each in node.names if each.name == module])
        return ast.copy_location(ast.Try([node], [], [], [report]), report)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Rewrite an import in a function: what is imported is read."""
        if not self._inside or node.module == "__future__":
            return node
        reported: list[ast.AST] = [self._tried(node, node.module or "", node.level)]
        for each in node.names:
            if each.name != "*":
                given = (node.module or "", node.level, each.name)
                value = ast.Name(each.asname or each.name, ast.Load())
                called = self._call(node, "imported", *map(ast.Constant, given), value)
                reported.append(ast.copy_location(ast.Expr(called), node))
        return reported

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Leave the arguments of printing and logging as they are: what is only logged decides nothing."""
        if isinstance(node.value, ast.Call):
            function = node.value.func
            prints = isinstance(function, ast.Name) and function.id == "print"
            logs = isinstance(function, ast.Attribute) and function.attr in _LOGGING
            if prints or logs:
                return node
        node.value = self._one(node.value)
        return node

    def _with_stores(self, node: ast.stmt, targets: Iterable[ast.expr], *, counts: bool) -> Any:
        """Return the statement, and reports of the globals and the outer variables that it writes."""
        found: list[ast.AST] = [node]
        for target in targets:
            if isinstance(target, ast.Name) and (where := self._where(target.id)) is not None:
                given = (target.id, where == "free", counts)
                called = self._call(node, "stored", *map(ast.Constant, given))
                found.append(ast.copy_location(ast.Expr(called), node))
        return found if len(found) > 1 else node

    def _target(self, node: ast.expr, *, counts: bool) -> ast.expr:
        """Rewrite the target of an assignment.

        counts: the value that is written is made of the one that was there.
        """
        if not (counts and self._inside):
            return self._one(node)
        if isinstance(node, ast.Attribute):
            name = ast.Constant(self._mangled(node.attr))
            node.value = self._call(node, "counts", self._one(node.value), name)
            return node
        if isinstance(node, ast.Subscript):
            node.value = self._call(node, "holder", self._one(node.value), ast.Constant(True))
            node.slice = self._call(node, "key", self._index(node.slice))
            return node
        return self._one(node)

    @property
    def _inside(self) -> bool:
        """Tell whether this is code of a function."""
        return any(not scope.is_class for scope in self._scopes)

    def _where(self, name: str) -> str | None:
        """Return `global` or `free`; None for a local variable, and outside of functions."""
        if not self._inside or self._scopes[-1].is_class:
            return None
        for depth, scope in enumerate(reversed(self._scopes)):
            if depth and scope.is_class:
                continue
            if name in scope.globals:
                return "global"
            if name in scope.bound:
                return "free" if depth else None
        return "global"

    def _mangled(self, name: str) -> str:
        if self._classes and name.startswith("__") and not name.endswith("__"):
            return f"_{self._classes[-1].lstrip('_')}{name}"
        return name

    def _one(self, node: _Node) -> _Node:
        return self.visit(node)

    def _all(self, nodes: Iterable[_Node]) -> list[_Node]:
        found: list[Any] = []
        for node in nodes:
            made = self.visit(node)
            found += made if isinstance(made, list) else [made]
        return found

    def _whole(self, node: ast.expr) -> ast.expr:
        return self._consumed(node, "whole")

    def _truth(self, node: ast.expr) -> ast.expr:
        return self._consumed(node, "truth")

    def _consumed(self, node: ast.expr, how: str) -> ast.expr:
        simple = isinstance(node, ast.Constant | ast.Compare | ast.BinOp | ast.JoinedStr)
        made = self._one(node)
        return made if simple or not self._inside else self._call(node, how, made)

    def _call(self, at: ast.AST, method: str, *arguments: ast.expr) -> ast.expr:
        called = ast.Attribute(ast.Constant(SENTINEL), method, ast.Load())
        return ast.copy_location(ast.Call(called, list(arguments), []), at)
