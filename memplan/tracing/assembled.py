"""Tensors made of a list that holds tensors of one number each: `torch.tensor([a, b + 1, 0.5])`.

PyTorch reads each number there, which the trace has not. The same tensor is stacked of them instead, by
operators that the trace sees: then no number need be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..torch_support.torch_fakes import FakeTensor

ASSEMBLES = ("tensor", "as_tensor", "new_tensor")
"""The functions of these names take a list."""


def assembled(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Tensor | None:
    """Return the value that the function returns, None if its list holds no tensor of the trace."""
    like, data = (
        (args[0], args[1]) if name == "new_tensor" and len(args) > 1 else (None, args[0] if args else None)
    )
    leaves = _leaves(data) if isinstance(data, list | tuple) else []
    if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
        return None
    if any(isinstance(leaf, Tensor) and leaf.numel() != 1 for leaf in leaves):
        return None  # PyTorch refuses these itself
    dtype = keywords.get("dtype") or _inferred(leaves)
    device = keywords.get("device") or ("cpu" if like is None else like.device)
    with torch.no_grad():
        made = _stacked(data, dtype, torch.device(device))
    return made.requires_grad_(bool(keywords.get("requires_grad")))


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, list | tuple):
        return [leaf for part in data for leaf in _leaves(part)]
    return [data]


def _inferred(leaves: list[Any]) -> torch.dtype:
    """Return the dtype that holds all of them, as PyTorch finds it."""
    kinds = [
        leaf.dtype if isinstance(leaf, Tensor) else torch.tensor(leaf, device="cpu").dtype for leaf in leaves
    ]
    return reduce(torch.promote_types, kinds)


def _stacked(data: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(part, dtype, device) for part in data])
    if isinstance(data, Tensor):
        return data.detach().reshape(()).to(device, dtype)
    return torch.tensor(data, dtype=dtype, device=device)
