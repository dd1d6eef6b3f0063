"""Calls that return a state and change none (switches, locks, loggers): repeated before each iteration."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple, Protocol

from ...torch_support.raw import is_a, part_of
from .contents import content, is_plain
from .reads import or_missing

_TELLS = re.compile(
    r"^_?(get|is|are|current|active)_|^get(?!trace|profile|frame)[a-z]|^is[a-z]|_enabled$|^initial_seed$"
)
_NEVER = re.compile(
    "available|built|supported|capability"  # the machine's, which stay
    "|compiling|export|scripting|tracing|anomaly|multithreading"  # others while a trace runs
    "|grad_enabled|inference_mode"  # each step sees to these itself
)
_OF_PYTHON = frozenset({"sys", "gc", "threading", "locale", "resource", "numpy"})
"""Packages with functions that tell a state: `sys.getrecursionlimit()`, `numpy.geterr()`."""
_OF_OBJECTS = frozenset(
    {
        *("locked", "is_set", "isEnabledFor", "getEffectiveLevel", "hasHandlers", "qsize", "empty", "full"),
        *("is_alive", "done", "running", "cancelled", "initial_seed"),
    }
)
"""Methods of Python's and of C's objects."""


class Call(NamedTuple):
    """The key of a read: the arguments of a call.

    method: of the object; empty if the object itself is called.
    """

    method: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        shown = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.keywords)]
        return f"{self.method}({', '.join(shown)})" if self.method else "__call__"


def call_of(function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Call | None:
    """Return the call, if it reads a state of PyTorch's or of the object whose method it is."""
    if not all(map(is_plain, (*arguments, *keywords.values()))):
        return None
    name = str(part_of(function, "__name__"))
    given = arguments, tuple(keywords.items())
    if name in _OF_OBJECTS and not is_of_torch(function):
        return Call(name, *given)
    tells = _TELLS.search(name) and not _NEVER.search(name)
    top = str(part_of(function, "__module__")).partition(".")[0]
    known = is_of_torch(function) or top.removeprefix("_") in _OF_PYTHON  # _locale is locale's part in C
    return Call("", *given) if tells and known else None


def is_of_torch(function: Any) -> bool:
    if not is_a(function, FunctionType | BuiltinFunctionType):
        return False
    return str(function.__module__).partition(".")[0] == "torch"


@or_missing
def of_call(thing: Any, call: Call) -> Any:
    function = getattr(thing, call.method) if call.method else thing
    return function(*call.arguments, **dict(call.keywords))


def of_call_content(thing: Any, call: Call) -> Any:
    return content(of_call(thing, call))


# ── calls that read what they are given by a name or a key that they hold ───────────────────────────


class Reporter(Protocol):
    """Interface of reports for Python's own kinds of reads."""

    def reported_attribute(self, thing: Any, name: str) -> Any: ...
    def reported_item(self, thing: Any, key: Any) -> Any: ...
    def callee(self, function: Any) -> Any: ...


READERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller, functools.partial)
CALL_THEIR_ARGUMENTS = frozenset({"builtins", "functools", "_functools", "itertools"})
"""Modules whose functions call their arguments: `map`, `sorted`, `reduce`."""


def reporting(function: Any, to: Reporter) -> Any:
    """Return one of READERS, with what it reads reported."""
    if is_a(function, functools.partial):
        return functools.partial(to.callee(function.func), *function.args, **function.keywords)
    make, made_of = function.__reduce__()
    if is_a(function, operator.methodcaller):
        keywords = make.keywords if is_a(make, functools.partial) else {}
        name, *given = (*make.args, *made_of) if is_a(make, functools.partial) else made_of
        return lambda thing: to.callee(to.reported_attribute(thing, name))(*given, **keywords)  # pyright: ignore

    def read(thing: Any, key: Any) -> Any:
        if is_a(function, operator.itemgetter):
            return to.reported_item(thing, key)
        return functools.reduce(to.reported_attribute, key.split("."), thing)

    if len(made_of) == 1:
        return lambda thing: read(thing, made_of[0])  # pyright: ignore
    return lambda thing: tuple(read(thing, key) for key in made_of)  # pyright: ignore
