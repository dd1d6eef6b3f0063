"""The patterns of `match`: what they read of their subject.

Python runs patterns itself, so a case is reported before it is tried, by its shape: a nest of constants, in
which the classes, values and keys that the pattern names are numbers.

    Cfg(1, v=2)    ("class", 0, ("value", 1), "v", ("value", 2))       [a, *_]    ("sequence", 1, None)
    {"k": Cfg()}   ("mapping", 0, ("class", 1))                        a | b      ("or", a, b)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Protocol

from ...torch_support.raw import MISSING, is_a

Shape = tuple[Any, ...] | None


def shape_of(pattern: ast.pattern | None, named: list[ast.expr]) -> Shape:
    """Return the shape of a pattern, None if it reads nothing but the subject itself.

    named: the expressions that it names are added.
    """

    def number(expression: ast.expr) -> int:
        named.append(expression)
        return len(named) - 1

    match pattern:
        case ast.MatchValue():
            return "value", number(pattern.value)
        case ast.MatchClass():
            kind = number(pattern.cls)
            parts: list[Any] = [shape_of(each, named) for each in pattern.patterns]
            for name, each in zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True):
                parts += [name, shape_of(each, named)]
            return "class", kind, *parts
        case ast.MatchMapping():
            keys = map(number, pattern.keys)
            pairs = zip(keys, pattern.patterns, strict=True)
            return "mapping", *(part for key, each in pairs for part in (key, shape_of(each, named)))
        case ast.MatchSequence():
            stars = [n for n, each in enumerate(pattern.patterns) if isinstance(each, ast.MatchStar)]
            parts = [shape_of(each, named) for each in pattern.patterns]
            return "sequence", stars[0] if stars else len(parts), *parts
        case ast.MatchOr():
            return "or", *(shape_of(each, named) for each in pattern.patterns)
        case ast.MatchAs():
            return shape_of(pattern.pattern, named)
        case _:
            return None


class Reporter(Protocol):
    """Interface of what a pattern's reads are reported to."""

    def read_whole(self, thing: Any, *, deep: bool = False) -> None: ...
    def reported_instance(self, thing: Any, kind: Any) -> bool: ...
    def reported_attribute_or_none(self, thing: Any, name: str) -> Any: ...
    def read_item(self, thing: Any, key: Any, value: Any, *, made: bool) -> None: ...
    def read_membership(self, thing: Any, key: Any, value: bool) -> None: ...


def report(thing: Any, shape: Shape, named: tuple[Any, ...], to: Reporter) -> None:
    """Report what a pattern may read of a subject, down to where the subject is not of its kind."""
    if shape is None or thing is MISSING:
        return
    how, *parts = shape
    if how == "or":
        # All alternatives: which one matches is not known before Python tries them.
        for each in parts:
            report(thing, each, named, to)
    elif how == "value":
        to.read_whole(thing)
    elif how == "class":
        for inner, each in _attributes(thing, named[parts[0]], parts[1:], to):
            report(inner, each, named, to)
    elif how == "mapping" and is_a(thing, dict):
        for key, each in zip(parts[::2], parts[1::2], strict=True):
            inner = dict.get(thing, named[key], MISSING)
            if inner is MISSING:
                to.read_membership(thing, named[key], False)
            else:
                to.read_item(thing, named[key], inner, made=False)
            report(inner, each, named, to)
    elif how == "sequence" and is_a(thing, list | tuple):
        to.read_whole(thing)
        star, shapes = parts[0], parts[1:]
        after = shapes[star + 1 :]
        entries = [*thing]
        pairs = [*zip(entries, shapes[:star]), *zip(entries[len(entries) - len(after) :], after)]  # noqa: B905
        for inner, each in pairs:
            report(inner, each, named, to)


def _attributes(thing: Any, kind: Any, parts: list[Any], to: Reporter) -> Iterator[tuple[Any, Shape]]:
    """Yield what a class pattern takes of a subject, with the pattern for each."""
    if not to.reported_instance(thing, kind):
        return
    positional = [each for number, each in enumerate(parts) if not _is_named(parts, number)]
    names = getattr(kind, "__match_args__", None)
    if names is None and positional:  # `int(x)`: the subject itself
        yield thing, positional[0]
    for name, each in zip(names or (), positional):  # noqa: B905
        yield to.reported_attribute_or_none(thing, name), each
    for number in range(len(parts)):
        if isinstance(parts[number], str):
            yield to.reported_attribute_or_none(thing, parts[number]), parts[number + 1]


def _is_named(parts: list[Any], number: int) -> bool:
    """Tell whether a part is the name of an attribute, or the pattern after one."""
    return isinstance(parts[number], str) or (number > 0 and isinstance(parts[number - 1], str))
