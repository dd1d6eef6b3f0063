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
from contextlib import suppress
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..torch_support.raw import (
    MISSING,
    bases_of,
    by_class,
    class_entries,
    class_entry,
    is_a,
    is_mapping,
    own_attributes,
    slots_of,
)
from ..torch_support.reach import container_of, entries_of, is_of_user_class
from ..torch_support.torch_trees import pytree_node
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
    if is_a(thing, TracedMatrix):
        return thing.parts()
    if is_a(thing, _WHOLE):
        return None
    if (node := pytree_node(type(thing))) is not None:
        children, context = node.flatten_fn(thing)
        return [*enumerate(children), (_CONTEXT, context)]
    parts = _attributes(thing)
    if not any(_has_tensor(part) for _name, part in parts):
        return None
    if _of_kinds(thing):
        return [(_Kind(n, key), store[key]) for n, store in enumerate(thing.stores) for key in store]
    if _has_keys(type(thing)):
        listed: Any = thing.keys
        if callable(listed):  # a property before PyTorch Geometric 2.4
            listed = list(_called(listed))
        return [(key, thing[key]) for key in listed]
    return parts


def container_parts(thing: Any) -> Parts | None:
    """Return the entries of a mapping, a list or a tuple by their keys; None for anything else.

    Of a mapping of a user's own class, which may list them as it likes, None if no tensor is in it.
    """
    if type(thing) is Tensor:  # most leaves of a batch: the questions below go through all its bases
        return None
    users = is_of_user_class(type(thing))
    if is_a(thing, tuple | list) or (users and is_a(thing, dict)):
        return [*(entries_of(thing, container_of(thing), longest=None) or ())]
    if not is_a(thing, dict) and not is_mapping(thing):
        return None
    if users and not any(_has_tensor(part) for _name, part in _attributes(thing)):
        return None
    with suppress(Exception):
        return list(thing.items())
    return None


def _attributes(thing: Any) -> Parts:
    """Return an object's attributes and slots; of a dataclass those that are its fields."""
    kind = type(thing)
    slotted = (base for base in bases_of(kind) if "__slots__" in class_entries(base))
    found = {
        **(own_attributes(thing) or {}),
        **{n: part for base in slotted for n, part in slots_of(thing, base)},
    }
    fields = class_entry(kind, "__dataclass_fields__")
    names = found if fields is MISSING else [each.name for each in dataclasses.fields(kind)]
    return [(name, found[name] if name in found else class_entry(kind, name)) for name in names]


def with_parts(thing: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a copy of the object with other parts; the object itself stays as it is."""
    if is_sparse_matrix(thing) or is_a(thing, TracedMatrix):
        return with_sparse_parts(parts)
    if (node := pytree_node(type(thing))) is not None:
        context = node.flatten_fn(thing)[1]
        return node.unflatten_fn([part for key, part in parts.items() if key != _CONTEXT], context)
    # Not through __init__, whose arguments nobody knows.
    made, before = copy.copy(thing), dict(_attributes(thing))
    for key, part in parts.items():
        if isinstance(key, _Kind):
            made.stores[key.number][key.key] = part
        elif _has_keys(type(thing)):
            made[key] = part
        elif part is not before[key]:
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
    kind = type(thing)
    names = {"node_types", "stores"} - (own_attributes(thing) or {}).keys()
    return _has_keys(kind) and all(class_entry(kind, name) is not MISSING for name in names)


@by_class
def _has_keys(kind: type) -> bool:
    """Tell whether instances are like a dict without being a Mapping."""
    names = ("keys", "__getitem__", "__setitem__", "__copy__")
    return all(class_entry(kind, name) is not MISSING for name in names)


def _called(function: Any) -> Any:
    return function()


def _has_tensor(thing: Any, depth: int = 0) -> bool:
    if is_a(thing, Tensor):
        return True
    if depth > 4 or is_a(thing, _WHOLE):  # objects may refer to each other in a circle
        return False
    found = container_parts(thing)
    parts = _attributes(thing) if found is None else found
    return any(_has_tensor(each, depth + 1) for _name, each in parts)
