"""Reorder the operations of a graph; tensors keep their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..draft import Draft
from ..graph import Graph


def in_order(graph: Graph, order: Sequence[int]) -> Graph:
    """Return the same graph with its operations in another order.

    order: all operations, as their dependencies allow; that is not checked.
    """
    draft = Draft(graph.name)
    for x in range(len(graph.tensors)):
        draft.tensor(*graph.tensor(x))
    for operation in order:
        draft.operation(**graph.operation(operation)._asdict())
    return replace(draft.graph(graph.results), machine=graph.machine)
