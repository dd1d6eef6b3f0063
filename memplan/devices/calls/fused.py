"""A functional graph changed back to eager's use of memory, without changing a bit of its results.

Functionalising allocates a new block of memory for what eager changes in place. For common cases eager's own
calls are put back, as one operation of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ...torch_support.torch_tensors import memory_of
from .scatters import SCATTERS

aten: Any = torch.ops.aten


def dropout_mask(like: Tensor, keep: float, scale: float) -> Tensor:
    """Return the mask by which dropout multiplies: ones over `scale`, and zeros.

    It makes exactly eager's three calls.
    """
    return torch.empty_like(like).bernoulli_(keep).div_(scale)


def dropout_mask_of(
    size: Sequence[int], keep: float, scale: float, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the same mask for a tensor of this size without gaps, which need not be there."""
    return torch.empty(size, dtype=dtype, device=device).bernoulli_(keep).div_(scale)


RANDOM = {dropout_mask, dropout_mask_of}
"""Those that draw random numbers."""


_STEPS_OF_MASKS = {aten.div.Scalar: aten.bernoulli.p, aten.div_.Scalar: aten.bernoulli_.float}
"""The last two steps of a dropout's mask, functional and in place."""


def dropout_masks(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node, fx.Node]]:
    """Yield the nodes of each `div(bernoulli(empty_like(x), keep), scale)`, the last one first."""
    for scaled in (node for target in _STEPS_OF_MASKS for node in _calls(graph, target)):
        drawn: Any = scaled.args[0]
        if drawn.target is not _STEPS_OF_MASKS[scaled.target] or len(drawn.users) > 1 or drawn.kwargs:
            continue
        empty: Any = drawn.args[0]
        if empty.target is aten.empty_like.default and len(empty.users) == 1 and not empty.kwargs:
            yield scaled, drawn, empty


def fuse_dropout_masks(graph: fx.Graph) -> None:
    """Replace each of the `dropout_masks` by an operation.

    This saves memory, and it is needed for equal bits: if x is not contiguous, `bernoulli` draws in another
    order than `bernoulli_`.
    """
    for scaled, drawn, empty in dropout_masks(graph):
        _drawn, keep = (*drawn.args, 0.5)[:2]  # `bernoulli_` has this default
        with graph.inserting_before(scaled):
            mask = graph.call_function(dropout_mask, (empty.args[0], keep, scaled.args[1]))
        mask.meta = {**scaled.meta, "val": empty.meta["val"]}
        scaled.replace_all_uses_with(mask)
        for node in (scaled, drawn, empty):
            graph.erase_node(node)


def _calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return list(graph.find_nodes(op="call_function", target=target))


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
