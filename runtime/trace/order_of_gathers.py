"""Collectives of weights that an iteration gathers itself, each where it is needed.

A trace gathers all weights first, and scatters all gradients last:

    gather w1, gather w2, F1, F2, B2, B1, scatter dw2, scatter dw1

Here a gather comes right before the first operation that reads its weight, and a scatter right after the one
that completes its gradient:

    gather w1, F1, gather w2, F2, B2, scatter dw2, B1, scatter dw1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..calls.collectives import Collective
from ..torch_collectives import gathers, scatters

_AROUND = {
    torch.ops.aten.constant_pad_nd.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.clone.default,
    torch.ops.aten._to_copy.default,
}
"""Operators between a share, or the gradient of one, and its collective."""


def put_in_place(graph: fx.Graph) -> None:
    """Move the gathers of weights, and the scatters of gradients, to where the graph needs them."""
    weights = {node for node in graph.nodes if node.op == "placeholder"}
    chains: list[fx.Node] = []
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if inputs and weights.issuperset(inputs) and (_is(node, gathers) or node.target in _AROUND):
            weights.add(node)
            chains.append(node)
    for node in reversed(chains):
        if node.users:
            min(node.users).prepend(node)
    for node in [node for node in graph.nodes if _is(node, scatters)]:
        for each in (*_before(node), node, *_after(node)):
            max(each.all_input_nodes).append(each)


def _before(scatter: fx.Node) -> list[fx.Node]:
    """Return what makes the form of a gradient that is scattered, in order."""
    (gradient,) = scatter.all_input_nodes
    if gradient.target not in _AROUND or len(gradient.users) > 1:
        return []
    return [*_before(gradient), gradient]


def _after(scatter: fx.Node) -> list[fx.Node]:
    """Return what cuts and casts the share that is scattered, in order."""
    users = [user for user in scatter.users if user.target in _AROUND]
    return [node for user in users for node in (user, *_after(user))]


def _is(node: fx.Node, kind: Callable[[Any], bool]) -> bool:
    return isinstance(node.target, Collective) and kind(node.target.operator)
