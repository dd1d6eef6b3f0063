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

from ..reach import is_of_user, is_of_user_class
from ..torch_internals import FakeTensor
from .contents import MISSING, SCALARS
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
    if isinstance(thing, dict):
        return list(dict.values(thing))
    return list(thing) if type(thing) in (list, tuple, set, frozenset, deque) else []


def is_of_python_alone(kind: type) -> bool:
    """Tell whether all that instances hold is attributes: no base is a container or another type written
    in C.
    """
    return all(
        is_of_user_class(base) or base in (object, nn.Module, Generic, Protocol) for base in kind.__mro__
    )


def of_type(thing: Any, _key: Any) -> Any:
    return type(thing)


def of_super(kind: type, key: tuple[type, str]) -> Any:
    """Return the entry for `super().name` in a method of a class, of an object of this kind."""
    order = kind.__mro__
    after = order[order.index(key[0]) + 1 :] if key[0] in order else ()
    return next((base.__dict__[key[1]] for base in after if key[1] in base.__dict__), MISSING)


def of_code(function: Any, name: str) -> Any:
    return getattr(function, name, MISSING)


def of_its_bases(kind: Any, name: str) -> Any:
    """Return the entry of a class for an attribute of the class itself."""
    return of_bases(kind, name) if isinstance(kind, type) else MISSING


def replaces(value: Any) -> bool:
    """Tell whether it is a function of this package, which replaces a library's for the time of a trace."""
    if isinstance(value, partial):
        return replaces(value.func)
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(function, FunctionType):
        return is_ours(str(function.__globals__.get("__name__")))
    return is_ours(str(type(value).__module__))


def full_name(function: FunctionType, module: str, level: int) -> str:
    """Return the name of a module that a function imports."""
    package = function.__globals__.get("__package__") or ""
    return importlib.util.resolve_name("." * level + module, package) if level else module


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == _OURS


def is_users_function(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and is_of_user(thing)


def is_hashable(thing: Any) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return not isinstance(thing, Tensor)


def is_number(value: Any) -> bool:
    """Tell whether the value is a number of another kind than Python's: Decimal, Fraction."""
    return issubclass(type(value), Number)
