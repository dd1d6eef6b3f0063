"""Replacements of a tensor, or of a part of one, as functionalising writes a change in place.

PyTorch's kernels copy all of the memory that the tensor lies in, however small a part of it the tensor is,
and the result keeps its offset there; their fake kernels know nothing of that. The kernels here copy the
tensor alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

aten: Any = torch.ops.aten


def copy(tensor: Tensor, source: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(tensor).copy_(source)


def slice_scatter(tensor: Tensor, part: Tensor, *where: Any, **named: Any) -> Tensor:
    made = tensor.clone()
    aten.slice.Tensor(made, *where, **named).copy_(part)
    return made


def select_scatter(tensor: Tensor, part: Tensor, *where: Any, **named: Any) -> Tensor:
    made = tensor.clone()
    aten.select.int(made, *where, **named).copy_(part)
    return made


def diagonal_scatter(tensor: Tensor, part: Tensor, *where: Any, **named: Any) -> Tensor:
    made = tensor.clone()
    aten.diagonal.default(made, *where, **named).copy_(part)
    return made


SCATTERS: Mapping[Any, Callable[..., Tensor]] = {
    aten.copy.default: copy,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.diagonal_scatter.default: diagonal_scatter,
}
"""Per kernel of PyTorch the one of this module. The result has the form of the tensor's clone."""


def replace_scatters(graph: fx.Graph) -> None:
    for node in graph.nodes:
        node.target = SCATTERS.get(node.target, node.target) if node.op == "call_function" else node.target
