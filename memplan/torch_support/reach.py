"""The objects that can be reached from an object by its attributes and containers, and the path to each.

Classes, modules, tensors, signal handlers and objects of Python's own library are ends: a walk from a model
stays within the model. Functions are ends too, unless the walk follows code: closures, defaults, and the
globals that a user's own function names.
"""

from __future__ import annotations

import dis
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache, partial
from hashlib import sha256
from signal import Signals
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import ProxyTypes

from torch import Tensor

from .raw import (
    bases_of,
    by_class,
    class_entries,
    is_a,
    is_same_key,
    module_of,
    name_of,
    own_attributes,
    slots_of,
)
from .torch_modules import MODULE_REGISTERS

Path = tuple[object, ...]
"""Keys and names of attributes, from the object at which a walk starts."""

Parts = Iterator[tuple[object, Any]]

LONGEST = 10_000
"""Containers of more entries are data: a walk does not enter them."""

_ENDS = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, Tensor, CellType)
_PASSED_BY = (str, bytes, int, float, complex, bool, type(None), *ProxyTypes)
"""Simple values, and weak proxies: what they refer to may be gone, and then any use of them fails."""
_CONTAINERS = (OrderedDict, dict, list, tuple, deque, set, frozenset)
_HELD = (Tensor, list, dict, tuple, set)
# The others in bodies of classes; the third in those of generic ones, from 3.12 on.
READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_USES_GLOBAL = (*READS_GLOBAL, "STORE_GLOBAL", "DELETE_GLOBAL")
_LIBRARIES = ("site-packages", "dist-packages")
_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
"""This package's folder: a library, installed from its sources too."""


def reachable(root: Any, parts: Callable[[Any], Parts] | None = None) -> Iterator[tuple[Path, Any]]:
    """Yield every object once, with the shortest path to it, nearest first.

    parts: what an object consists of.
    """
    parts = parts or parts_of
    seen = {id(root): root}  # with the objects: one that is let go of would pass its identity on to another
    following: deque[tuple[Path, Any]] = deque([((), root)])
    while following:
        path, thing = following.popleft()
        yield path, thing
        for key, part in parts(thing):
            if id(part) not in seen and not issubclass(type(part), _PASSED_BY):
                seen[id(part)] = part
                following.append(((*path, key), part))


def parts_of(thing: Any) -> Parts:
    """Yield attributes, those that the object's class holds included, and the entries of containers."""
    if (base := container_of(thing)) is not None:
        found = entries_of(thing, base)
        if found is None:
            return
        # Trainers keep the handlers that they replace: forward calls none, and they lead to all of a program.
        yield from ((key, part) for key, part in found if not is_a(key, Signals))
    if not is_a(thing, _ENDS) and not is_of_python(type(thing)):
        yield from _attributes(thing)


def container_of(thing: Any) -> Any:
    """Return Python's container type that the object is or derives from; None for anything else.

    Use that type's methods instead of the object's: a method of its own may load or make what it lists, or
    refuse to (`__len__` of e3nn's `Irreps`). An OrderedDict has a separate order, which `dict`'s methods
    would break.
    """
    return next((base for base in _CONTAINERS if issubclass(type(thing), base)), None)


def entries_of(thing: Any, base: Any, *, longest: int | None = LONGEST) -> Iterable[tuple[Any, Any]] | None:
    """Return the entries of a container by their keys, elements of a set by themselves; None if it is data.

    base: its `container_of`.
    longest: a container of more entries is data.

    It is a list of what is there now: the walk may run code that changes the container.
    """
    if longest is not None and base.__len__(thing) > longest:
        return None
    if issubclass(base, dict):
        return list(base.items(thing))
    found = list(base.__iter__(thing))
    return zip(found, found, strict=True) if base in (set, frozenset) else enumerate(found)


def parts_with_code(thing: Any) -> Parts:
    """Yield what `parts_of` yields, and also what functions hold, and the methods of a user's own classes."""
    yield from parts_of(thing)
    if is_a(thing, FunctionType):
        yield from enumerate(thing.__defaults__ or ())
        yield from zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        if is_of_user(thing):
            named = (name for name in globals_in(thing.__code__) if name in thing.__globals__)
            yield from ((name, thing.__globals__[name]) for name in named)
    elif is_a(thing, CellType) and (held := cell_contents(thing)):
        yield "", held[0]
    elif is_a(thing, MethodType):
        yield from (("__self__", thing.__self__), ("__func__", thing.__func__))
    elif is_a(thing, partial):
        yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
    elif not is_a(thing, _ENDS):
        for kind in bases_of(type(thing)):
            yield from ((each.__name__, each) for each in methods_of_user(kind))


def hash_of_values(root: Any) -> bytes:
    """Return a hash of the numbers and texts that an object and its code hold, and of the code."""
    found = sha256()
    for _path, thing in reachable(root, parts_with_code):
        if is_a(thing, FunctionType):
            found.update(str(hash(thing.__code__)).encode())
        for key, part in parts_with_code(thing):
            if part is None or is_a(part, str | bytes | int | float | complex):
                found.update(f"{spelled((key,))}={simple_text(part)};".encode(errors="replace"))
    return found.digest()


def follow(root: Any, path: Path, parts: Callable[[Any], Parts] | None = None) -> Any:
    """Return the object at the path now; None if there is none.

    parts: see `reachable`.
    """
    for key in path:
        steps = (parts or parts_of)(root)
        root = next((part for name, part in steps if is_same_key(name, key)), None)
    return root


def spelled(path: Path) -> str:
    """Return the path as a user would write it: `layers.0.mask`."""
    return ".".join(each for each in map(_spelled_key, path) if each not in ("", *MODULE_REGISTERS))


def _spelled_key(key: Any) -> str:
    """Write a key in a few words: a tensor's text would be its values, a user's object's may be anything."""
    if type(key) is tuple:
        return f"({', '.join(map(_spelled_key, key))})"
    if is_a(key, Enum):
        return simple_text(key)
    shown = is_a(key, str | int) or module_of(type(key)).partition(".")[0] == __name__.partition(".")[0]
    if shown:
        return str(key) if not is_of_user_class(type(key)) else simple_text(key)
    return f"<{name_of(type(key))}>"


def simple_text(thing: Any) -> str:
    """Write a simple value; one of a user's own class as the class that it derives from does."""
    if is_a(thing, Enum):
        return f"{name_of(type(thing))}.{(own_attributes(thing) or {}).get('_name_')}"
    base: Any = next(each for each in bases_of(type(thing)) if not is_of_user_class(each))
    return base.__repr__(thing)


def cell_contents(cell: CellType) -> tuple[Any, ...]:
    """Return the value of a closure's variable as a tuple of one; an empty tuple if it has none."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def is_of_python(kind: type) -> bool:
    return module_of(kind).partition(".")[0] in sys.stdlib_module_names


@cache
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return the globals and attributes that a function and those inside of it name."""
    inner = (name for part in code.co_consts if is_a(part, CodeType) for name in names_in(part))
    return (*code.co_names, *inner)


@cache
def globals_in(code: CodeType, *, stored: bool = False) -> tuple[str, ...]:
    """Return the globals that a function and those inside of it read, or also those that they store.

    Not all that they name: an attribute may have the name of a global of the script that they do not use.
    """
    uses = _USES_GLOBAL if stored else READS_GLOBAL
    own = (each.argval for each in dis.get_instructions(code) if each.opname in uses)
    parts = (part for part in code.co_consts if is_a(part, CodeType))
    return tuple(dict.fromkeys((*own, *(name for part in parts for name in globals_in(part, stored=stored)))))


@by_class
def methods_of_user(kind: type) -> list[FunctionType]:
    return [each for each in class_entries(kind).values() if is_a(each, FunctionType) and is_of_user(each)]


def is_of_user(function: FunctionType) -> bool:
    """Tell whether a function's code is neither a library's nor Python's own."""
    return not is_of_library(function.__code__.co_filename)


def is_of_user_class(kind: type) -> bool:
    """Tell whether a class is in a file that is neither a library's nor Python's own."""
    name = module_of(kind)
    if not name or name.startswith("_cython"):  # of types written in C it may be anything
        return False
    if name in ("builtins", "torch") or name.partition(".")[0] in sys.stdlib_module_names:
        return name == "__main__"
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return name == "__main__" or module is None or file is None or not is_of_library(file)


@cache
def is_of_library(filename: str) -> bool:
    """Tell whether a file is a library's or Python's own."""
    return any(folder in filename for folder in _LIBRARIES) or filename.startswith(
        (sys.base_prefix, "<frozen", _OURS)
    )


def _attributes(thing: Any) -> Parts:
    # A list: the walk may run code that sets attributes.
    yield from list(dict.items(own_attributes(thing) or {}))
    for kind in bases_of(type(thing)):
        if not is_of_python(kind) and module_of(kind).partition(".")[0] != "torch":
            yield from slots_of(thing, kind)
            held = [*class_entries(kind).items()]
            yield from ((name, part) for name, part in held if is_a(part, _HELD))
