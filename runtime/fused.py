"""Calls of our own that stand for several of PyTorch's: what eager does in place, in one block of memory."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten: Any = torch.ops.aten


def dropout_mask(like: Tensor, keep: float, scale: float) -> Tensor:
    """The mask by which dropout multiplies: ones over `scale`, and zeros. Exactly eager's three calls."""
    return torch.empty_like(like).bernoulli_(keep).div_(scale)


RANDOM = {dropout_mask}
"""Those that draw random numbers."""


def fuse_dropout_masks(graph: fx.Graph) -> None:
    """Put `dropout_mask` in the place of `div(bernoulli(empty_like(x), keep), scale)`.

    Functionalised, the three make three blocks of memory where eager has one.
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
        mask.meta = scaled.meta
        scaled.replace_all_uses_with(mask)
        for node in (scaled, drawn, empty):
            graph.erase_node(node)
