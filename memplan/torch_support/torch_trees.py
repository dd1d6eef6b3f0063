"""Nests of containers: their leaves, and the form around them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree
from torch.utils._pytree import (
    SUPPORTED_NODES,
    GetAttrKey,
    tree_flatten_with_path,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

from .raw import class_entry, is_one_of

__all__ = ["tree_map", "tree_map_only"]


def leaves_and_form(nest: Any) -> tuple[dict[str, Any], Callable[[list[Any]], Any]]:
    """Return the leaves of nested containers, by their path (`hidden_states.0`), and a function that makes
    the nest of leaves.

    Containers that libraries have registered are included.
    """
    leaves, spec = tree_flatten_with_path(nest)
    named = {".".join(_key_text(key) for key in path): leaf for path, leaf in leaves}
    return named, lambda leaves: tree_unflatten(leaves, spec)


def tree_leaves(nest: Any) -> list[Any]:
    """Return the leaves of nested containers; fast for what operators are given."""
    found: list[Any] = []
    _gather(nest, found)
    return found


def tensors_among(nest: Any) -> list[Tensor]:
    """Return the tensors among the leaves of nested containers."""
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


_LEAVES = {FakeTensor, Tensor, nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}


def _gather(nest: Any, found: list[Any]) -> None:
    kind = type(nest)
    if kind in _LEAVES:
        found.append(nest)
    elif kind is tuple or kind is list:
        for part in nest:
            _gather(part, found)
    elif kind is dict:
        for part in nest.values():
            _gather(part, found)
    else:
        found += _pytree.tree_leaves(nest)


def _key_text(key: Any) -> str:
    if isinstance(key, GetAttrKey):
        return key.name
    return str(key.idx if hasattr(key, "idx") else key.key)


def pytree_node(kind: type) -> Any:
    """Return how PyTorch's pytrees flatten and unflatten a registered class; None for others."""
    if is_one_of(kind, _OWN_NODES):
        return None
    # A metaclass of the user's may have another hash, and refuse to tell it.
    hashable = class_entry(type(kind), "__hash__") is object.__hash__
    return SUPPORTED_NODES.get(kind) if hashable else None


_OWN_NODES = (tuple, list, dict, OrderedDict, defaultdict, deque)
