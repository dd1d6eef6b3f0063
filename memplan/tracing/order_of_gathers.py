"""Collectives of weights that an iteration gathers itself, each where it is needed.

A trace gathers all weights first, and scatters all gradients last:

    gather w1, gather w2, F1, F2, B2, B1, scatter dw2, scatter dw1

Here a gather comes right before the first operation that reads its weight, and a scatter right after the one
that completes its gradient:

    gather w1, F1, gather w2, F2, B2, scatter dw2, B1, scatter dw1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from ..devices.calls.collectives import Collective
from ..torch_support.torch_collectives import gathers, reduces, scatters
from ..torch_support.torch_operators import CAST
from .layers import MARK, Mark

aten = torch.ops.aten

_COPIES = {aten.constant_pad_nd.default, aten.clone.default, CAST}
"""Operators between a share, or the gradient of one, and its collective, but for views."""


def put_in_place(graph: fx.Graph, names: Iterable[str]) -> None:
    """Move the gathers of weights, and the scatters of gradients, to where the graph needs them.

    names: of the weights, which are the first placeholders. A gather is of its weight's layer.
    """
    placeholders = (node for node in graph.nodes if node.op == "placeholder")
    layers = {node: name.rpartition(".")[0] or None for name, node in zip(names, placeholders, strict=False)}
    chains: list[fx.Node] = []
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if inputs and layers.keys() >= {*inputs} and (_is(node, gathers) or _is_form(node)):
            layers[node] = layers[inputs[0]]
            node.meta[MARK] = Mark(layers[node], backward=False)
            chains.append(node)
    # From the last: each goes before its first user, which has its place by then.
    for node in reversed(chains):
        if node.users:
            min(node.users).prepend(node)
    for node in [node for node in graph.nodes if _is(node, scatters)]:
        for each in (*_before(node), node, *_after(node)):
            # Nodes compare by their place in the graph: the last input is what it has to wait for.
            max(each.all_input_nodes).append(each)


def _before(scatter: fx.Node) -> list[fx.Node]:
    """Return what makes the form of a gradient that is scattered, in order."""
    (gradient,) = scatter.all_input_nodes
    # With a second user, it would come after what reads it.
    if not _is_form(gradient) or len(gradient.users) > 1:
        return []
    return [*_before(gradient), gradient]


def _after(scatter: fx.Node) -> list[fx.Node]:
    """Return what averages over replicas, cuts and casts the share that is scattered, in order."""
    users = [user for user in scatter.users if _is_form(user) or _is(user, reduces)]
    return [node for user in users for node in (user, *_after(user))]


def _is_form(node: fx.Node) -> bool:
    """Tell whether a node gives a tensor another form alone."""
    return node.target in _COPIES or getattr(node.target, "is_view", False)


def _is(node: fx.Node, kind: Callable[[Any], bool]) -> bool:
    return isinstance(node.target, Collective) and kind(node.target.operator)
