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
        name=[old.name[row] for row in rows],
        phase=old.phase[rows],
        time=old.time[rows],
        workspace=old.workspace[rows],
        reads=old.reads.take(rows),
        writes=old.writes.take(rows),
        mutates=old.mutates.take(rows),
        recompute=old.recompute[rows],
        random=old.random[rows],
        layer=[old.layer[row] for row in rows],
        modes={place: old.modes[row] for place, row in enumerate(rows) if row in old.modes},
        launch=old.launch[rows],
        comm=frozenset(place for place, row in enumerate(rows) if row in old.comm),
    )
    return replace(graph, operations=operations, source={})
