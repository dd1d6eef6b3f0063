"""Kinds of objects and of functions that a recording distinguishes, and reads of classes."""

from __future__ import annotations

import functools
import importlib.util
from collections import deque
from functools import partial
from numbers import Number
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
)
from typing import Any, Generic, Protocol

from torch import Tensor, nn

from ...torch_support.raw import MISSING, bases_of, class_entries, derives_from, is_a, is_one_of, module_of
from ...torch_support.raw import full_name as full_class_name
from ...torch_support.reach import is_of_user, is_of_user_class
from ...torch_support.torch_fakes import FakeTensor
from .contents import SCALARS
from .reads import (
    of_bases,
)

_OURS = __name__.partition(".")[0]
CACHED: Any = type(functools.cache(len))
SKIPPED = (*SCALARS, FakeTensor)
CODE_OF_ANY = (FunctionType, MethodType, BuiltinFunctionType, type, nn.Module, partial, CACHED)
MAKING = frozenset({"__init__", "__new__", "__repr__", "__init_subclass__", "__set_name__"})
OF_CONTENT = frozenset({"shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "is_cuda"})
"""Attributes of tensors that their content tells too."""


def entries(thing: Any) -> list[Any]:
    if is_a(thing, dict):
        return list(dict.values(thing))
    return list(thing) if is_one_of(type(thing), (list, tuple, set, frozenset, deque)) else []


def is_of_python_alone(kind: type) -> bool:
    """Tell whether all that instances hold is attributes: no base is a container or another type written
    in C.
    """
    return all(
        is_of_user_class(base) or is_one_of(base, (object, nn.Module, Generic, Protocol))  # pyright: ignore
        for base in bases_of(kind)
    )


def of_type(thing: Any, _key: Any) -> Any:
    return type(thing)


def of_super(kind: type, key: tuple[type, str]) -> Any:
    """Return the entry for `super().name` in a method of a class, of an object of this kind."""
    order = bases_of(kind)
    places = (place for place, base in enumerate(order, 1) if base is key[0])
    # The object's order, from the method's class on: siblings come before the class's own bases.
    after = order[next(places, len(order)) :]
    return next((class_entries(base)[key[1]] for base in after if key[1] in class_entries(base)), MISSING)


def of_code(function: Any, name: str) -> Any:
    return getattr(function, name, MISSING)


def of_its_bases(kind: Any, name: str) -> Any:
    """Return the entry of a class for an attribute of the class itself."""
    return of_bases(kind, name) if is_a(kind, type) else MISSING


def replaces(value: Any) -> bool:
    """Tell whether it is a function of this package, which replaces a library's for the time of a trace."""
    if is_a(value, partial):
        return replaces(value.func)
    function = value.__func__ if is_a(value, MethodType) else value
    if is_a(function, FunctionType):
        return is_ours(str(function.__globals__.get("__name__")))
    return is_ours(module_of(type(value)))


def full_name(function: FunctionType, module: str, level: int) -> str:
    """Return the name of a module that a function imports."""
    package = function.__globals__.get("__package__") or ""
    return importlib.util.resolve_name("." * level + module, package) if level else module


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == _OURS


def is_users_function(thing: Any) -> bool:
    return is_a(thing, FunctionType) and is_of_user(thing)


def is_hashable(thing: Any) -> bool:
    try:
        hash(thing)
    except Exception:  # a `__hash__` of the user's may raise anything
        return False
    # It hashes by identity and compares elementwise: `in` would ask for a truth value.
    return not is_a(thing, Tensor)


def is_pool_of_threads(thing: Any) -> bool:
    """Tell whether functions that are given to an object run on its threads."""
    names = ("concurrent.futures.thread.ThreadPoolExecutor", "multiprocessing.pool.ThreadPool")
    return any(full_class_name(base) in names for base in bases_of(type(thing)))


def is_number(value: Any) -> bool:
    """Tell whether the value is a number of another kind than Python's: Decimal, Fraction."""
    return derives_from(type(value), Number)
