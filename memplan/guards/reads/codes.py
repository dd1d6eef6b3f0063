"""The code of a file's functions, rewritten so that it reports what it reads (rewrite.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from types import CodeType

from .rewrite import SENTINEL, Rewrite


@cache
def rewritten(source: str, filename: str) -> dict[CodeType, CodeType]:
    """Return, by the code of each function in a file, the same function's code with a reader.

    The result is empty if the rewritten functions don't correspond one to one. Raises SyntaxError if it is
    not Python.
    """
    tree = ast.parse(source, filename)
    # Before the visit, which changes the tree.
    original = compile(tree, filename, "exec", dont_inherit=True)
    changed = ast.fix_missing_locations(Rewrite().visit(tree))
    pairs = list(_pairs(original, compile(changed, filename, "exec", dont_inherit=True)))
    if any(one is None or other is None or not _corresponds(one, other) for one, other in pairs):
        return {}
    return {one: other for one, other in pairs if one is not None and other is not None}


def with_reader(code: CodeType, reader: object) -> CodeType:
    """Return rewritten code, and that of the functions inside of it, with this reader."""
    constants = tuple(
        with_reader(each, reader) if isinstance(each, CodeType) else reader if each == SENTINEL else each
        for each in code.co_consts
    )
    # As a constant: a global would be seen by the user's code, a cell would move its other cells.
    return code.replace(co_consts=constants)


def _pairs(one: CodeType, other: CodeType) -> Iterator[tuple[CodeType | None, CodeType | None]]:
    yield one, other
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (one, other)]
    # The rewriting has added or removed a scope: pairs by position would be wrong.
    if len(inner[0]) != len(inner[1]):
        yield None, None
        return
    for first, second in zip(*inner, strict=True):
        yield from _pairs(first, second)


def _corresponds(one: CodeType, other: CodeType) -> bool:
    """Tell whether a function may run the other code: closures are given by position."""
    return (one.co_name, one.co_freevars, one.co_firstlineno, one.co_argcount) == (
        *(other.co_name, other.co_freevars, other.co_firstlineno, other.co_argcount),
    )
