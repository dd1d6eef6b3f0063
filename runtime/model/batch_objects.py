"""Batches that are objects: dataclasses, nodes of PyTorch's pytrees, objects with tensors inside.

registered    by its flatten and unflatten functions
keys          an object with keys, items that can be set and a copy, like PyTorch Geometric's Data
kinds         one that holds such by kind, like its HeteroData
sparse        a matrix in COO or CSR form, see sparse_inputs.py
attributes    dataclasses and other objects, of a copy of which the tensors are replaced
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..torch_internals import pytree_node
from .sparse_inputs import TracedMatrix, is_sparse_matrix, sparse_parts, with_sparse_parts

Parts = list[tuple[Any, Any]]

_WHOLE = (
    *(bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, Enum, Tensor, nn.Module),
    *(
        FunctionType,
        BuiltinFunctionType,
        MethodType,
        ModuleType,
        type,
        torch.Generator,
        torch.dtype,
        torch.device,
    ),
    *(range, slice),
)


def object_parts(thing: Any) -> Parts | None:
    """Return the parts of an object by their keys; None if it has none, or no tensor in any."""
    if is_sparse_matrix(thing):
        return sparse_parts(thing)
    if isinstance(thing, TracedMatrix):
        return thing.parts()
    if isinstance(thing, _WHOLE):
        return None
    if (node := pytree_node(type(thing))) is not None:
        children, context = node.flatten_fn(thing)
        return [*enumerate(children), (_CONTEXT, context)]
    if _of_kinds(thing):
        return [(_Kind(n, key), store[key]) for n, store in enumerate(thing.stores) for key in store]
    if _has_keys(type(thing)):
        listed: Any = thing.keys
        if callable(listed):
            listed = list(_called(listed))
        return [(key, thing[key]) for key in listed]
    names = _names(thing)
    parts = [(name, getattr(thing, name)) for name in names if hasattr(thing, name)]
    return parts if any(_has_tensor(part) for _name, part in parts) else None


def with_parts(thing: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a copy of the object with other parts; the object itself stays as it is."""
    if is_sparse_matrix(thing) or isinstance(thing, TracedMatrix):
        return with_sparse_parts(parts)
    if (node := pytree_node(type(thing))) is not None:
        context = node.flatten_fn(thing)[1]
        return node.unflatten_fn([part for key, part in parts.items() if key != _CONTEXT], context)
    made = copy.copy(thing)
    for key, part in parts.items():
        if isinstance(key, _Kind):
            made.stores[key.number][key.key] = part
        elif _has_keys(type(thing)):
            made[key] = part
        elif part is not getattr(thing, key):
            object.__setattr__(made, key, part)  # of a frozen dataclass too
    return made


_CONTEXT = "(form)"
"""Key of what a registered node's flatten function returns in addition to the children."""


class _Kind(NamedTuple):
    """The place of a part of a graph of several kinds of nodes: the kind's number, and the part's key."""

    number: int
    key: str

    def __str__(self) -> str:
        return f"{self.number}.{self.key}"


def _of_kinds(thing: Any) -> bool:
    """Tell whether an object holds dicts by kind, like PyTorch Geometric's HeteroData, in which
    `thing[key]` makes one.
    """
    return _has_keys(type(thing)) and hasattr(thing, "node_types") and hasattr(thing, "stores")


@cache
def _has_keys(kind: type) -> bool:
    """Tell whether instances are like a dict without being a Mapping."""
    return all(hasattr(kind, name) for name in ("keys", "__getitem__", "__setitem__", "__copy__"))


def _called(function: Any) -> Any:
    return function()


def _names(thing: Any) -> list[str]:
    if dataclasses.is_dataclass(thing):
        return [each.name for each in dataclasses.fields(thing)]
    slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
    own: dict[str, Any] = getattr(thing, "__dict__", {})
    return [*own, *slots]


def _has_tensor(thing: Any, depth: int = 0) -> bool:
    if isinstance(thing, Tensor):
        return True
    if depth > 4 or isinstance(thing, _WHOLE):
        return False
    if isinstance(thing, Mapping):
        return any(_has_tensor(each, depth + 1) for each in thing.values())
    if isinstance(thing, list | tuple):
        return any(_has_tensor(each, depth + 1) for each in thing)
    parts = [getattr(thing, name, None) for name in _names(thing)]
    return any(_has_tensor(each, depth + 1) for each in parts)
