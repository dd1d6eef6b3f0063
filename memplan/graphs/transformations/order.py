"""Reorder the operations of a graph; tensors keep their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph import Graph, Operations


def in_order(graph: Graph, order: Sequence[int]) -> Graph:
    """Return the same graph with its operations in another order.

    order: all operations, as their dependencies allow; that is not checked.
    """
    old, rows = graph.operations, list(order)
    operations = Operations(
        [old.name[row] for row in rows],
        old.phase[rows],
        old.time[rows],
        old.workspace[rows],
        old.reads.take(rows),
        old.writes.take(rows),
        old.mutates.take(rows),
        old.recompute[rows],
        old.random[rows],
        [old.layer[row] for row in rows],
        {place: old.modes[row] for place, row in enumerate(rows) if row in old.modes},
        old.launch[rows],
        frozenset(place for place, row in enumerate(rows) if row in old.comm),
    )
    return replace(graph, operations=operations, source={})
