"""A functional graph changed back to eager's use of memory, without changing a bit of its results.

Functionalising allocates a new block of memory for what eager changes in place. For common cases eager's own
calls are put back, as one operation of this package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..torch_internals import memory_of
from .scatters import SCATTERS

aten: Any = torch.ops.aten


def dropout_mask(like: Tensor, keep: float, scale: float) -> Tensor:
    """Return the mask by which dropout multiplies: ones over `scale`, and zeros.

    It makes exactly eager's three calls.
    """
    return torch.empty_like(like).bernoulli_(keep).div_(scale)


RANDOM = {dropout_mask}
"""Those that draw random numbers."""


def fuse_dropout_masks(graph: fx.Graph) -> None:
    """Replace `div(bernoulli(empty_like(x), keep), scale)` by `dropout_mask`.

    This saves memory, and it is needed for equal bits: if x is not contiguous, `bernoulli` draws in another
    order than `bernoulli_`.
    """
    for scaled in graph.find_nodes(op="call_function", target=aten.div.Scalar):
        drawn, scale = scaled.args
        if drawn.target is not aten.bernoulli.p or len(drawn.users) > 1 or drawn.kwargs:
            continue
        empty, keep = drawn.args
        if empty.target is not aten.empty_like.default or len(empty.users) > 1 or empty.kwargs:
            continue
        with graph.inserting_before(scaled):
            mask = graph.call_function(dropout_mask, (empty.args[0], keep, scale))
        mask.meta = {**scaled.meta, "val": empty.meta["val"]}
        scaled.replace_all_uses_with(mask)
        for node in (scaled, drawn, empty):
            graph.erase_node(node)


def drop_copies(graph: fx.Graph) -> None:
    """Use the source instead of `copy(target, source)` if the two have one form.

    A copy stays if the source is an input of the graph, which may change before the copy is used, or if there
    are views of the copy. The strides may differ if the copy is only written into a larger tensor.
    """
    for copy in graph.find_nodes(op="call_function", target=aten.copy.default):
        target, source = copy.args[:2]
        one, other = target.meta["val"], source.meta["val"]
        identical = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        written = all(user.target in SCATTERS and user.args[0] is not copy for user in copy.users)
        placed = written or one.stride() == other.stride()
        viewed = any(_lies_in(user.meta.get("val"), copy.meta["val"]) for user in copy.users)
        if source.op != "placeholder" and identical and placed and not viewed:
            copy.replace_all_uses_with(source)
            graph.erase_node(copy)


def _lies_in(made: Any, tensor: Tensor) -> bool:
    """Tell whether any of what a call makes is a view of the tensor."""
    parts = made if isinstance(made, tuple | list) else (made,)
    return any(isinstance(part, Tensor) and memory_of(part) == memory_of(tensor) for part in parts)
