"""Numbers, words and switches that the user's code reads from outside: a trace holds them as they were.

A temperature in a closure, a global that a loop counts up, `args.alpha`, `self._weights["aux"]`: whatever the
code of forward and loss names, of functions and methods that it names in turn, is looked at before every
iteration. Names that this code also writes are the iteration's own state, which the comparison with plain
PyTorch looks at. Code of libraries is not looked into, nor are arrays above `LARGEST` bytes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dis
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, partial
from reprlib import Repr
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...graphs.errors import MismatchError
from ..reach import (
    LONGEST,
    Path,
    container_of,
    is_of_library,
    is_of_python,
    is_of_user,
    names_in,
    own_attributes,
    spelled,
)
from ..torch_internals import RUNS_IN_FORWARD
from .iteration import Iteration

LARGEST = 2**20

_OURS = __name__.partition(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype, Enum)
_CODE = (FunctionType, BuiltinFunctionType)
_SPACES = (Namespace, SimpleNamespace)
_FIRST = frozenset({"forward", "__call__"})
_HOLD: dict[type, tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    partial: ("func", "args", "keywords"),
    property: ("fget",),
}
_MISSING = object()
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class _Part(NamedTuple):
    """What `read(holder, key)` gives. array: of one that code may change in place, a copy."""

    read: Callable[[Any, Any], Any]
    holder: Any
    key: Any
    value: Any
    array: Any = None

    @property
    def kept(self) -> Any:
        return self.value if self.array is None else self.array

    def now(self) -> Any:
        try:
            return self.read(self.holder, self.key)
        except (LookupError, AttributeError, ValueError):
            return _MISSING


class PlainValues:
    """Of an iteration, as they were when this was made."""

    def __init__(self, iteration: Iteration) -> None:
        self._roots = {"module": iteration.module, "loss_fn": iteration.loss_fn}
        self._own = {id(part) for part in iteration.module.modules()}  # granted.py looks at these
        self._names, self._written = set(_FIRST), set[str]()
        size = -1
        while size != len(self._names) + len(self._written):  # code that a name leads to names more
            size = len(self._names) + len(self._written)
            self._known, self._parts = self._values()

    def check(self) -> None:
        """Raises MismatchError where one is another now."""
        if all(_same(part.now(), part.kept) for part in self._parts):
            return
        now, parts = self._values()
        for path, value in self._known.items():
            if not _same(there := now.get(path, _MISSING), value):
                found = "not there" if there is _MISSING else _short(there)
                raise MismatchError(
                    f"{_spelled(path)} is {found}; the plan is for {_short(value)}: give what changes as a "
                    "tensor, among inputs, targets or buffers, or plan the module anew"
                )
        self._parts = parts  # others that hold the same

    def _values(self) -> tuple[dict[Path, Any], list[_Part]]:
        """By path, and all parts that led to them."""
        parts: list[_Part] = []
        found: dict[Path, Any] = {}
        seen: dict[int, Any] = {id(self._roots): self._roots}
        following: deque[tuple[Path, Any]] = deque([((), self._roots)])
        while following:
            path, thing = following.popleft()
            for part in self._of(thing):
                value, where = part.value, (*path, part.key)
                if isinstance(value, Tensor):
                    continue
                if isinstance(value, np.ndarray) and value.nbytes <= LARGEST:
                    part = part._replace(array=value.copy())
                if part.read is not _itself:
                    parts.append(part)
                if isinstance(value, (*_PLAIN, *_CODE)) or part.array is not None:
                    found[where] = part.kept
                if not isinstance(value, _PLAIN) and id(value) not in seen:
                    seen[id(value)] = value
                    following.append((where, value))
        return found, parts

    def _of(self, thing: Any) -> Iterator[_Part]:
        if isinstance(thing, FunctionType):
            yield from self._of_function(thing)
        elif (names := next((_HOLD[kind] for kind in _HOLD if isinstance(thing, kind)), None)) is not None:
            yield from (_Part(getattr, thing, name, getattr(thing, name)) for name in names)
        elif isinstance(thing, ModuleType):
            if not is_of_library(getattr(thing, "__file__", None) or "<frozen"):
                yield from self._named(vars(thing), self._names)
        elif not isinstance(thing, Tensor):
            base = container_of(thing)
            if base not in (None, set, frozenset) and base.__len__(thing) <= LONGEST:
                read: Any = base.__getitem__
                items = base.items(thing) if issubclass(base, dict) else enumerate(base.__iter__(thing))
                yield from [_Part(read, thing, key, part) for key, part in items]
            if isinstance(thing, nn.Module):
                yield from self._of_module(thing)
            yield from self._attributes(thing)

    def _of_module(self, module: nn.Module) -> Iterator[_Part]:
        """Its parts and hooks; whether there are others now granted.py looks, for those of the module."""
        own = id(module) in self._own
        for register in RUNS_IN_FORWARD:
            for key, part in vars(module)[register].items():
                yield (
                    _Part(_itself, part, key, part)
                    if own
                    else _Part(_item, vars(module)[register], key, part)
                )

    def _of_function(self, function: FunctionType) -> Iterator[_Part]:
        if not is_of_user(function) or function.__module__.partition(".")[0] == _OURS:
            return
        code = function.__code__
        self._names.update(names_in(code))
        self._written.update(_written_in(code))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in self._written and (part := _cell(cell, name, None)) is not None:
                yield _Part(partial(_cell, otherwise=_MISSING), cell, name, part)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                yield _Part(getattr, function, name, getattr(function, name))
        yield from self._named(function.__globals__, names_in(code))

    def _attributes(self, thing: Any) -> Iterator[_Part]:
        """Those that code names, its class's too."""
        kind: type[Any] = thing if isinstance(thing, type) else type(thing)
        if kind.__module__.partition(".")[0] == "torch":
            if isinstance(thing, nn.Module) and id(thing) not in self._own:
                yield from self._named(vars(thing), [name for name in vars(thing) if name[0] != "_"])
            return
        if is_of_python(kind) and not isinstance(thing, _SPACES):
            return
        own = own_attributes(thing)
        if isinstance(own, dict) and not isinstance(thing, type):
            yield from self._named(own, self._names)
        for each in kind.__mro__:
            if is_of_python(each) or each.__module__.partition(".")[0] == "torch":
                continue
            for name in self._names.intersection(vars(each)) - self._written:
                part = vars(each)[name]
                if isinstance(part, _PLAIN):
                    yield _Part(getattr, thing, name, getattr(thing, name))
                elif name in getattr(each, "__slots__", ()):
                    if hasattr(thing, name):
                        yield _Part(getattr, thing, name, getattr(thing, name))
                else:
                    part = part.__func__ if isinstance(part, staticmethod | classmethod) else part
                    yield _Part(_itself, part, name, part)

    def _named(self, there: dict[str, Any], names: Any) -> Iterator[_Part]:
        for name in names:
            if name in there and name not in self._written:
                yield _Part(dict.__getitem__, there, name, there[name])


def _item(holder: Any, key: Any) -> Any:
    return holder[key]


def _itself(holder: Any, _name: Any) -> Any:
    return holder


def _cell(cell: CellType, _name: str, otherwise: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return otherwise


@cache
def _written_in(code: CodeType) -> frozenset[str]:
    """Attributes, globals and variables of closures that a function, or one inside of it, writes."""
    writes = ("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR")
    own = {each.argval for each in dis.get_instructions(code) if each.opname in writes}
    closed = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_DEREF"}
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in _written_in(part))
    return frozenset({*own, *closed.intersection(code.co_freevars), *inner})


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, FunctionType):
        return one.__code__ is other.__code__
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return isinstance(one, _PLAIN) and bool(one == other or (one != one and other != other))


def _short(value: Any) -> str:
    """In one line: an array or a text may have many."""
    return " ".join(_SHORT.repr(value).split())


def _spelled(path: Path) -> str:
    return spelled(tuple(key for key in path if not str(key).startswith("__")))
