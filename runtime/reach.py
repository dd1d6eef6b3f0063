"""What can be reached from an object by its attributes and containers, and by which path.

Classes, modules, functions, tensors and objects of Python's own library are ends: a walk from a model stays
within the model.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

from .torch_internals import MODULE_REGISTERS

Path = tuple[object, ...]
"""Keys and names of attributes, from the object at which a walk starts."""

Parts = Iterator[tuple[object, Any]]

_ENDS = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, Tensor)
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def reachable(root: Any, parts: Callable[[Any], Parts] | None = None) -> Iterator[tuple[Path, Any]]:
    """Every object once, with the shortest path to it, nearest first. parts: what an object consists of."""
    parts = parts or parts_of
    seen = {id(root): root}
    following: deque[tuple[Path, Any]] = deque([((), root)])
    while following:
        path, thing = following.popleft()
        yield path, thing
        for key, part in parts(thing):
            if id(part) not in seen and not isinstance(part, _PLAIN):
                seen[id(part)] = part
                following.append(((*path, key), part))


def parts_of(thing: Any) -> Parts:
    """Attributes, those that its class holds included, and the entries of containers."""
    if isinstance(thing, Mapping):
        yield from list(thing.items())
    elif isinstance(thing, list | tuple | deque):
        yield from enumerate(list(thing))
    elif isinstance(thing, set | frozenset):
        yield from ((part, part) for part in list(thing))
    if not isinstance(thing, _ENDS) and not _is_of_python(type(thing)):
        yield from _attributes(thing)


def follow(root: Any, path: Path) -> Any:
    """What is there now; None where nothing is."""
    for key in path:
        root = next((part for name, part in parts_of(root) if name == key), None)
    return root


def spelled(path: Path) -> str:
    """`layers.0.mask`: the path as a user would write it."""
    return ".".join(str(key) for key in path if key not in MODULE_REGISTERS)


def _attributes(thing: Any) -> Parts:
    own = getattr(thing, "__dict__", None)
    if isinstance(own, dict):
        yield from list(own.items())
    for kind in type(thing).__mro__:
        if _is_of_python(kind) or kind.__module__.partition(".")[0] == "torch":
            continue
        for name in getattr(kind, "__slots__", ()):
            if hasattr(thing, name):
                yield name, getattr(thing, name)
        held = (Tensor, list, dict, tuple, set)
        yield from ((name, part) for name, part in list(vars(kind).items()) if isinstance(part, held))


def _is_of_python(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names
