"""What a value follows from that the code of a traced iteration asks for: advice depends on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, fx

from ..devices.calls.randomness import draws
from ..guards.values_used import is_real
from ..torch_support.hints import CHANCE, NUMBERS, WEIGHTS
from ..torch_support.torch_make_fx import get_proxy_mode


def origin_of(tensors: Iterable[Tensor], weights: Collection[Tensor], inputs: Iterable[Tensor]) -> str:
    """Return what values of tensors follow from: weights, else real numbers of inputs, else random numbers;
    "" if none of these has a part in them.

    weights: the trace's parameters.
    """
    ancestors = _with_ancestors(tensors)
    if not ancestors.isdisjoint(_nodes_of(weights)):
        return WEIGHTS
    if not ancestors.isdisjoint(_nodes_of(filter(is_real, inputs))):
        return NUMBERS
    calls = (node for node in ancestors if node.op == "call_function")
    return CHANCE if any(draws(node.target, node.args, node.kwargs) for node in calls) else ""


def _with_ancestors(tensors: Iterable[Tensor]) -> set[fx.Node]:
    following, seen = [*_nodes_of(tensors)], set[fx.Node]()
    while following:
        node = following.pop()
        # A node is reached along many paths; their number grows exponentially with the depth.
        if node not in seen:
            seen.add(node)
            following += node.all_input_nodes
    return seen


def _nodes_of(tensors: Iterable[Tensor]) -> set[fx.Node]:
    """Return the nodes of the trace in progress that have made these tensors."""
    mode: Any = get_proxy_mode()
    if mode is None:
        return set()
    tracked = (mode.tracer.tensor_tracker.get(tensor) for tensor in tensors)
    return {each.proxy.node for each in tracked if each is not None}
